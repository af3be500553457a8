"""What is done as a job's owner is done with few means."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ftslurm.system.owner import Owner, run_as

SHOW = "import os, resource; print(resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CORE), os.nice(0))"


def test_its_program_gets_no_more_than_it_needs() -> None:
    me = Owner(os.getuid(), os.getgid(), "root" if os.getuid() == 0 else "me", Path("/"))
    done = run_as(me, [sys.executable, "-c", SHOW], 60.0, {})
    assert done.stdout.split("\n")[0] == f"(30, 30) (0, 0) {min(os.nice(0) + 5, 19)}"


def test_it_may_not_fill_a_disk(tmp_path: Path) -> None:
    me = Owner(os.getuid(), os.getgid(), "root" if os.getuid() == 0 else "me", Path("/"))
    done = run_as(me, ["dd", "if=/dev/zero", f"of={tmp_path}/big", "bs=1M", "count=64"], 60.0, {"PATH": os.environ["PATH"]})
    assert done.status != 0 and (tmp_path / "big").stat().st_size == 16 << 20

"""What `--bcast` makes of a command; that it arrives is a test on a cluster (tests/scripts)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.launchers.srun import delivery
from ftslurm.launchers.srun_options import Component


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "train").touch(0o755)
    return {"PATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("options", "more", "copied", "command"),
    [
        (("--bcast=/tmp/t",), {}, "--jobid=7 %/train /tmp/t", "/tmp/t -n3"),
        (("-l", "--bcast=/tmp/"), {}, "--jobid=7 %/train /tmp/slurm_bcast_7", "/tmp/slurm_bcast_7 -n3"),
        ((), {"SLURM_BCAST": "/tmp/t"}, "--jobid=7 %/train /tmp/t", "/tmp/t -n3"),
        (("--bcast=/tmp/t", "--send-libs=no", "--compress"), {}, "--jobid=7 --compress %/train /tmp/t", "/tmp/t -n3"),
        (
            ("--bcast=/tmp/t", "--send-libs", "--bcast-exclude=/opt"),
            {"LD_LIBRARY_PATH": "/l"},
            "--jobid=7 --exclude=/opt --send-libs %/train /tmp/t",
            "env LD_LIBRARY_PATH=/tmp/t_libs:/l /tmp/t -n3",
        ),
        (("--bcast",), {}, "", "train -n3"),
        (("--bcast=/tmp/t", "--multi-prog"), {}, "", "train -n3"),
        (("-l",), {}, "", "train -n3"),
    ],
)
def test_what_is_copied_and_what_runs(
    env: dict[str, str], options: tuple[str, ...], more: dict[str, str], copied: str, command: str
) -> None:
    found = delivery(Component(options, ("train", "-n3")), {**env, **more}, 7)
    assert " ".join(found.argv) == (f"sbcast --force {copied}".replace("%", env["PATH"]) if copied else "")
    assert " ".join(found.component.command) == command
    assert found.component.options == tuple(word for word in options if word in ("-l", "--multi-prog"))


def test_a_program_that_is_not_there_is_the_steps_to_miss(env: dict[str, str]) -> None:
    assert not delivery(Component(("--bcast=/tmp/t",), ("nonesuch",)), env, 7).argv

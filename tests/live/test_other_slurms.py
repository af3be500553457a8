"""The tests that face Slurm (mark `slurms`) pass on its other releases too, with ftslurm on those releases' Python.

Each release is a root folder made by tools/slurm-root; `tools/test-slurm forky -k requeue` runs some of them by hand.
Where no such root can be had these are skipped, with the reason; with FTSLURM_REQUIRE_SLURM=1 that is an error.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.live.stories import processes_with

pytestmark = [pytest.mark.live, pytest.mark.long]

TOOLS = Path(__file__).resolve().parents[2] / "tools"
LAST_LINES = 300  # of hundreds of tests
ARGUMENTS = ("-m", "slurms", "tests/live")
EX_UNAVAILABLE = 69  # slurm-root's word for "this machine cannot do it"


@pytest.mark.timeout(2400)
@pytest.mark.flaky(reruns=0)  # those that it runs have their second try
@pytest.mark.parametrize("release", [pytest.param("trixie", id="24.11"), pytest.param("forky", id="26.05")])
def test_what_faces_slurm_works_on(release: str, tmp_path: Path) -> None:
    build(release)
    output = tmp_path / "output"
    status: int | None = None
    try:
        with output.open("wb") as opened:
            status = subprocess.run([TOOLS / "test-slurm", release, "-v", *ARGUMENTS], stdin=subprocess.DEVNULL, stdout=opened,
                                    stderr=subprocess.STDOUT, check=False).returncode  # fmt: skip
    finally:
        if status != 0:  # also where time was up: the last line names the test that ran
            print(*output.read_text(errors="replace").splitlines()[-LAST_LINES:], sep="\n")
    assert status == 0, f"tools/test-slurm {release}: status {status}; its last words are the output below"


@pytest.mark.timeout(2400)
def test_a_run_that_is_killed_leaves_no_mount_and_no_process() -> None:
    build("trixie")
    mark = f"SLURM_ROOT_TEST={os.getpid()}"
    inside = "touch /usr/x /etc/x 2>/dev/null && echo writable; setsid sleep 1000 & echo up; wait"
    running = subprocess.Popen([TOOLS / "slurm-root", "run", "trixie", "--", "env", mark, "sh", "-c", inside],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert running.stdout is not None and running.stdout.readline() == "up\n"
        assert len(processes_with(mark)) >= 2
        assert "slurm-root" not in Path("/proc/mounts").read_text(), "mounts of its own are nobody else's"
    finally:
        running.kill()
        running.wait()
    deadline = time.monotonic() + 30.0
    while left := processes_with(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def build(release: str) -> None:
    argv = [TOOLS / "slurm-root", "build", release]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == EX_UNAVAILABLE and os.environ.get("FTSLURM_REQUIRE_SLURM") != "1":
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr

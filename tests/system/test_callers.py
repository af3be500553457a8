"""Who has called this program, as /proc tells it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ftslurm.system.processes import callers, killed_after_s


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("timeout -k 3 60 ftrun x", 3.0),
        ("/usr/bin/timeout --foreground -vk2m 60 ftrun x", 120.0),
        ("timeout --kill-after=0.5s --signal INT 60 ftrun -k 9", 0.5),
        ("timeout --kill=1h 60 ftrun x", 3600.0),
        ("timeout 60 ftrun -k 3", 0.0),
        ("timeout -k soon 60 ftrun", 0.0),
        ("timeout --unknown 60 ftrun", 0.0),
        ("sh -k 3 ftrun", 0.0),
    ],
)
def test_a_timeout_above_tells_when_it_kills(tmp_path: Path, line: str, seconds: float) -> None:
    for pid, words, parent in ((7, "nice ftrun x", 6), (6, line, 1)):
        place = tmp_path / str(pid)
        place.mkdir()
        (place / "cmdline").write_text("".join(f"{word}\0" for word in words.split()))
        (place / "stat").write_text(f"{pid} (x) S {parent} 0")
    assert killed_after_s(7, tmp_path) == seconds


def test_a_script_in_a_pipe_is_not_read() -> None:
    """`bash <(...)`: nobody writes any more, so to open it once more waits for ever."""
    read, write = os.pipe()
    os.write(write, b"echo begun; read -r line\n")
    os.close(write)
    with subprocess.Popen(["bash", f"/dev/fd/{read}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[read]) as shell:
        os.close(read)
        assert shell.stdin is not None
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"begun\n"
        assert next(callers(frozenset(), shell.pid)).text is None
        shell.stdin.close()

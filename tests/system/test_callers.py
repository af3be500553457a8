"""Who has called this program, as /proc tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.system.processes import killed_after_s


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

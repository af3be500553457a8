"""The agent reads real pages and notes of a real program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ftslurm.model.settings.ft_config import BeatLimits
from ftslurm.sdk import notes
from ftslurm.wrapper.agent.pages import PageWatch, Task, sweep_pages

ROOT = Path(__file__).resolve().parents[2]
SAYS = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from ftslurm.sdk import client
client.heartbeat()
client.message("half way")
client.leave_this_node("slow")
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def started(folder: Path, seconds: float) -> subprocess.Popen[str]:
    env = {"FTSLURM_PAGE": f"{folder}/3.1", "SLURM_PROCID": "3", "FTSLURM_ATTEMPT": "1", "PATH": "/usr/bin:/bin"}
    child = subprocess.Popen([sys.executable, "-c", SAYS, str(seconds)], env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def turns(pages: PageWatch, seconds: float) -> list[dict[str, Any]]:
    told, until = [], time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        told += pages.turn(now)
        time.sleep(0.02)
    return told


def test_words_are_told_and_a_late_beat_once(folder: Path) -> None:
    pages = PageWatch()
    pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(beat_s=0.5), time.monotonic())
    child = started(folder, 30)
    try:
        told = turns(pages, 2.5)
    finally:
        child.kill()
        child.wait()
    assert [(one["what"], one["words"]) for one in told if one["t"] == "said"] == [
        ("message", ["half way"]), ("exclude", ["slow"]),
    ]  # fmt: skip
    (late,) = [one for one in told if one["t"] == "overdue"]
    assert late["rank"] == 3 and "no heartbeat" in late["why"]


def test_a_rank_that_reports_again_is_told_too(folder: Path) -> None:
    pages = PageWatch()
    pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(beat_s=0.5), time.monotonic())
    child = started(folder, 30)
    try:
        assert [one["why"] != "" for one in turns(pages, 2.5) if one["t"] == "overdue"] == [True]
        child.kill()  # owes nothing any more
        child.wait()
        assert [one["why"] for one in turns(pages, 1.5) if one["t"] == "overdue"] == [""]
    finally:
        child.kill()
        child.wait()


def test_a_program_that_has_ended_owes_no_beats(folder: Path) -> None:
    pages = PageWatch()
    pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(beat_s=0.5), time.monotonic())
    child = started(folder, 0)
    turns(pages, 0.3)
    child.wait()
    assert not [one for one in turns(pages, 2.0) if one["t"] == "overdue"]


def test_pages_of_another_attempt_are_not_read(folder: Path) -> None:
    pages = PageWatch()
    pages.watch([Task(3, f"{folder}/3.2", 2)], BeatLimits(beat_s=0.2), time.monotonic())
    child = started(folder, 30)
    try:
        assert not turns(pages, 1.5)
    finally:
        child.kill()
        child.wait()


STAGES = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from ftslurm.sdk import client
client.progress(41)
with client.hang_interval(90):
    print("ready", flush=True)
    sys.stdin.readline()
    with client.hang_interval(-1):
        client.progress(42)
        print("inner", flush=True)
        sys.stdin.readline()
client.progress(43)
print("out", flush=True)
time.sleep(30)
"""


def test_stages_and_progress_are_told_when_they_change(folder: Path) -> None:
    pages = PageWatch()
    pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(), time.monotonic())
    env = {"FTSLURM_PAGE": f"{folder}/3.1", "SLURM_PROCID": "3", "FTSLURM_ATTEMPT": "1", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen([sys.executable, "-c", STAGES], env=env, stdin=-1, stdout=-1, text=True, bufsize=1) as child:
        assert child.stdout is not None and child.stdin is not None
        try:
            seen = []
            for word, stage_s in (("ready", 90.0), ("inner", -1.0), ("out", None)):
                assert child.stdout.readline() == f"{word}\n"
                until = time.monotonic() + 20
                while pages.stage_s != stage_s and time.monotonic() < until:
                    seen += turns(pages, 0.1)
                assert pages.stage_s == stage_s
                child.stdin.write("\n")
            seen += turns(pages, 1.5)
        finally:
            child.kill()
    assert [one["stage_s"] for one in seen if one["t"] == "stage"] == [90.0, -1.0, None]
    assert [one["step"] for one in seen if one["t"] == "progress"] == [41, 42, 43]


SAVES = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from ftslurm.sdk import client
for _ in range(100):
    client.heartbeat()
with client.section("checkpointing"):
    pass
print("saved", flush=True)
sys.stdin.readline()
"""


def test_beats_and_what_is_saved_are_told_where_no_steps_are(folder: Path) -> None:
    pages = PageWatch()
    pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(), time.monotonic())
    env = {"FTSLURM_PAGE": f"{folder}/3.1", "SLURM_PROCID": "3", "FTSLURM_ATTEMPT": "1", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen([sys.executable, "-c", SAVES], env=env, stdin=-1, stdout=-1, text=True, bufsize=1) as child:
        assert child.stdout is not None and child.stdin is not None
        try:
            assert child.stdout.readline() == "saved\n"
            told, until = [], time.monotonic() + 20
            while not any(one["t"] == "progress" and one["saved"] for one in told) and time.monotonic() < until:
                told += turns(pages, 0.1)
            assert not [one for one in turns(pages, 0.3) if one["t"] == "progress"], "nothing new"
        finally:
            child.kill()
    last = [one for one in told if one["t"] == "progress"][-1]
    assert 0.0 < last.pop("saving_s") < 20.0
    assert last == {"t": "progress", "step": 0, "beats": 100, "saved": 1}


def test_what_killed_steps_left_is_swept_and_nothing_that_may_live(tmp_path: Path) -> None:
    mark = f"ftslurm.{os.getuid()}"
    for name in ("1.0.aa", "2.0.bb", "3.0.cc", "4.0.dd", "5.0.own"):
        (tmp_path / f"{mark}.{name}").mkdir(mode=0o700)
    (tmp_path / "ftslurm.0.0").symlink_to(tmp_path / f"{mark}.1.0.aa")
    dead, alive = tmp_path / f"{mark}.1.0.aa", tmp_path / f"{mark}.2.0.bb"
    started(dead, 0).wait()
    child = started(alive, 60)
    try:
        long_ago = time.time() - 3600
        for name in ("1.0.aa", "2.0.bb", "3.0.cc", "5.0.own"):
            os.utime(tmp_path / f"{mark}.{name}", (long_ago, long_ago))
        sweep_pages(str(tmp_path / f"{mark}.5.0.own"), time.time())
    finally:
        child.kill()
        child.wait()
    assert sorted(path.name for path in tmp_path.iterdir() if not path.is_symlink()) == [
        f"{mark}.{name}" for name in ("2.0.bb", "4.0.dd", "5.0.own")
    ]


def test_a_watch_that_begins_anew_tells_a_late_beat_again(folder: Path) -> None:
    """What was told before may have been held for an answer to a signal."""
    pages, limits = PageWatch(), BeatLimits(beat_s=0.3)
    pages.watch([Task(3, f"{folder}/3.1", 1)], limits, time.monotonic())
    child = started(folder, 60)
    try:
        for _ in range(2):
            told = turns(pages, 2.5)
            assert [one["t"] for one in told if one["t"] == "overdue"] == ["overdue"]
            pages.watch([Task(3, f"{folder}/3.1", 1)], limits, time.monotonic())
    finally:
        child.kill()
        child.wait()


def test_the_last_words_of_a_start_are_not_lost_with_it(folder: Path) -> None:
    pages = PageWatch()
    now = time.monotonic()
    assert pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(), now) == []
    child = started(folder, 0)
    child.wait()
    assert pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(), now) == [], "it goes on, and is read in its turn"
    told = pages.watch([Task(3, f"{folder}/3.2", 2)], BeatLimits(), now)
    assert [(one["t"], one["what"], one["attempt"]) for one in told] == [("said", "message", 1), ("said", "exclude", 1)]
    assert pages.turn(now) == []


def test_limits_that_the_program_has_calculated_are_told_as_well_as_kept(folder: Path) -> None:
    pages, now = PageWatch(), time.monotonic()
    pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(), now)
    assert notes.limits(f"{folder}/3.1.notes", 60.0, 2.5, None, {"step": 9.0}) == ""
    (told,) = pages.turn(now)
    assert (told["what"], told["words"]) == ("limits", ["first beat 60 s", "beat 2.5 s", "section step 9 s"])


CHECKPOINTS = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from ftslurm.sdk import client
client.checkpoint(100)
print("ready", flush=True)
sys.stdin.readline()
client.checkpoint()
time.sleep(30)
"""


def test_a_checkpoint_is_told_the_first_too_and_makes_nobody_owe_beats(folder: Path) -> None:
    pages = PageWatch()
    pages.watch([Task(3, f"{folder}/3.1", 1)], BeatLimits(initial_s=0.5, beat_s=0.5), time.monotonic())
    env = {"FTSLURM_PAGE": f"{folder}/3.1", "SLURM_PROCID": "3", "FTSLURM_ATTEMPT": "1", "PATH": "/usr/bin:/bin"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", CHECKPOINTS], env=env, text=True, **pipes)
    try:
        assert child.stdout is not None and child.stdin is not None and child.stdout.readline() == "ready\n"
        assert turns(pages, 1.3) == [{"t": "said", "rank": 3, "attempt": 1, "what": "checkpoint", "words": ["step 100"]}]
        assert turns(pages, 1.1) == []
        child.stdin.write("go on\n")
        child.stdin.flush()
        assert [one["words"] for one in turns(pages, 1.3)] == [[]]
    finally:
        child.kill()
        child.wait()

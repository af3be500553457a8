"""Files that checkpoints make or change, seen from outside."""

from __future__ import annotations

import os
import queue
from pathlib import Path

from ftslurm.model.events import CheckpointMade
from ftslurm.wrapper.controller.checkpoints import CheckpointWatch, SettlingFiles, looked_at


def complete(settling: SettlingFiles, known: dict[str, tuple[int, int, int]], pattern: str, *times: float) -> list[list[str]]:
    return [settling.complete(known, looked_at(pattern), now) for now in times]


def test_a_file_counts_once_when_it_is_new_or_another_and_then_the_same_for_a_while(tmp_path: Path) -> None:
    old, new = tmp_path / "1.pt", tmp_path / "2.pt"
    old.write_text("old")
    pattern, settling = str(tmp_path / "*.pt"), SettlingFiles(5.0)
    known = looked_at(pattern)
    assert complete(settling, known, pattern, 0.0, 10.0) == [[], []]
    new.write_text("half")
    assert complete(settling, known, pattern, 11.0, 14.0) == [[], []]
    new.write_text("whole, and longer")
    assert complete(settling, known, pattern, 15.0, 19.0, 20.0, 30.0) == [[], [], [str(new)], []]
    os.utime(old, ns=(1, 1))  # written anew with as many bytes
    assert complete(settling, known, pattern, 31.0, 36.0) == [[], [str(old)]]


def test_a_folder_is_as_new_as_what_is_in_it_and_an_empty_one_is_none(tmp_path: Path) -> None:
    pattern, settling = str(tmp_path / "step_*"), SettlingFiles(5.0)
    known = looked_at(pattern)
    shard = tmp_path / "step_7" / "a"
    shard.mkdir(parents=True)
    assert complete(settling, known, pattern, 0.0, 60.0) == [[], []]
    (shard / "0.bin").write_text("x")
    assert complete(settling, known, pattern, 61.0, 65.0) == [[], []]
    (shard / "1.bin").write_text("x")
    assert complete(settling, known, pattern, 66.0, 71.0) == [[], [str(tmp_path / "step_7")]]


def test_shards_beside_each_other_are_one_checkpoint_and_an_old_one_that_goes_is_none(tmp_path: Path) -> None:
    pattern, settling = str(tmp_path / "*.pt"), SettlingFiles(5.0)
    (tmp_path / "0.pt").write_text("old")
    known = looked_at(pattern)
    for name in ("1.pt", "2.pt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "0.pt").unlink()
    assert complete(settling, known, pattern, 0.0, 5.0, 6.0) == [[], [str(tmp_path / "2.pt")], []]


def test_hostile_patterns_and_files_hold_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert [name.rpartition("/")[2] for name in looked_at(str(tmp_path / "*"))] == ["up"]
    assert looked_at("\0") == {} and looked_at("") == {}
    assert looked_at(str(tmp_path / "**" / "**" / "nothing")) == {}, "it ends, though a link leads up"


def test_the_watch_tells_of_it_until_it_is_stopped(tmp_path: Path) -> None:
    told: queue.Queue[object] = queue.Queue()
    pattern = str(tmp_path / "*.pt")
    (tmp_path / "0.pt").write_text("before")
    watch = CheckpointWatch((pattern,), 0.1, told.put)
    number = 0
    while True:  # the first look is made beside us
        number += 1
        (tmp_path / f"{number}.pt").write_text("x")
        try:
            event = told.get(timeout=1.0)
            break
        except queue.Empty:
            assert number < 10
    assert event == CheckpointMade(pattern, str(tmp_path / f"{number}.pt"))
    watch.stop()

"""Requests on their way through the ledger, and what a reader makes of files that are traps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ftslurm.ledger.journal import Journal, to_line
from ftslurm.ledger.live import TAIL_MAX, RequestReader, answer_to, ask_ftrun
from ftslurm.model import record as rec
from ftslurm.model.folds.history import History


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "c.7.jsonl")
    journal.append([rec.RunBegan(1.0, "r1", "7", "c", 0, "k", "train", "n[1-2]")])
    return journal


def hold(_: History) -> rec.Requested:
    return rec.Requested(2.0, 0, "anna", "hold", rung="shrink")


def test_requests_are_numbered_in_the_order_in_which_they_are_written(journal: Journal) -> None:
    assert [ask_ftrun(journal, hold).number for _ in range(3)] == [1, 2, 3]


def test_two_that_ask_at_once_get_two_numbers(journal: Journal) -> None:
    numbers: list[int] = []
    askers = [threading.Thread(target=lambda: numbers.append(ask_ftrun(Journal(journal.path), hold).number)) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(30.0)
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_reader_begins_with_what_nobody_has_answered_and_goes_on_with_what_comes(journal: Journal) -> None:
    first, second = ask_ftrun(journal, hold), ask_ftrun(journal, hold)
    journal.append([rec.RequestAnswered(3.0, "r1", first.number, True, "taken")])
    reader = RequestReader(journal.path)
    assert list(reader.look()) == [second]
    assert list(reader.look()) == []
    third = ask_ftrun(journal, hold)
    journal.append([rec.Signalled(3.0, "SIGTERM", "warning")])
    assert list(reader.look()) == [third]
    assert answer_to(journal, first.number) is not None and answer_to(journal, third.number) is None


def test_half_a_line_is_read_when_it_is_whole(journal: Journal) -> None:
    reader = RequestReader(journal.path)
    reader.look()
    line = to_line(rec.Requested(2.0, 1, "anna", "stop"))
    with journal.path.open("ab") as file:
        file.write(line[:40])
        file.flush()
        assert list(reader.look()) == []
        file.write(line[40:])
    assert [request.number for request in reader.look()] == [1]


def test_rubbish_between_requests_is_passed_over_and_a_flood_of_it_too(journal: Journal) -> None:
    reader = RequestReader(journal.path)
    reader.look()
    with journal.path.open("ab") as file:
        file.write(b'{"kind":"Requested"}\n{"v":1,"kind":"Requested","at":"now","number":-1}\n\x00\xff"Requested"\n[[[\n')
        file.write(b'{"v":1,"kind":"Requested","at":NaN,"number":1,"by":"x","verb":"stop"}\n')
        file.write(os.urandom(TAIL_MAX + 4096).replace(b"\n", b"x") + b"\n")
        file.write(to_line(rec.Requested(2.0, 9, "anna", "stop")))
    seen = [request for _ in range(4) for request in reader.look()]
    assert [request.number for request in seen] == [9]


def test_a_file_that_was_cut_short_is_followed_from_there(journal: Journal) -> None:
    reader = RequestReader(journal.path)
    ask_ftrun(journal, hold)
    reader.look()
    os.truncate(journal.path, 0)
    assert list(reader.look()) == []
    with journal.path.open("ab") as file:
        file.write(to_line(rec.Requested(2.0, 1, "anna", "stop")))
    assert [request.verb for request in reader.look()] == ["stop"]


TRAPS: dict[str, Callable[[Path, Path], object]] = {
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "link to one of ours": lambda path, other: path.symlink_to(other),
    "link to a device": lambda path, _: path.symlink_to("/dev/zero"),
    "writable by others": lambda path, other: (path.write_bytes(other.read_bytes()), path.chmod(0o666)),
    "nothing": lambda path, _: None,
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("what", TRAPS)
def test_what_is_no_ledger_of_ours_is_not_read_and_not_waited_for(journal: Journal, what: str) -> None:
    ask_ftrun(journal, hold)
    other = journal.path.rename(journal.path.with_name("other"))
    TRAPS[what](journal.path, other)
    with pytest.raises(OSError):
        RequestReader(journal.path).look()


def test_what_another_user_has_laid_there_is_not_obeyed(journal: Journal) -> None:
    ask_ftrun(journal, hold)
    with pytest.raises(PermissionError, match="ours alone"):
        RequestReader(journal.path, owner=os.getuid() + 1).look()
    reader = RequestReader(journal.path)
    reader.look()
    if os.geteuid() == 0:  # and not later either
        ask_ftrun(journal, hold)
        os.chown(journal.path, 12345, 12345)
        with pytest.raises(PermissionError):
            reader.look()

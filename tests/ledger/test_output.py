"""Copies of what a script printed: only of what is overwritten, bounded, and of plain files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.ledger import output
from ftslurm.ledger.output import keep_files, kept_copies, same_beginning, settle


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir(mode=0o700)
    return tmp_path / "jobs" / "c.7.jsonl"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-7.out"
    path.write_bytes(b"first run\n")
    return path


MOST = 1 << 20


def test_a_file_that_slurm_begins_anew_is_kept(ledger: Path, log: Path) -> None:
    keep_files(ledger, 0, [str(log), str(log)], MOST)
    log.write_bytes(b"second run, longer than the first\n")
    settle(ledger)
    (one,) = kept_copies(ledger)
    assert (one.schedule, one.source, one.head) == (0, str(log), one.size) and one.copy.read_bytes() == b"first run\n"
    assert not same_beginning(one) and one.copy.stat().st_mode & 0o777 == 0o600
    keep_files(ledger, 1, [str(log)], MOST)
    assert [one.schedule for one in kept_copies(ledger)] == [0, 1]


def test_a_file_that_is_only_appended_to_is_not(ledger: Path, log: Path) -> None:
    keep_files(ledger, 0, [str(log)], MOST)
    with log.open("ab") as file:
        file.write(b"second run\n")
    assert same_beginning(kept_copies(ledger)[0])
    settle(ledger)
    assert kept_copies(ledger) == () and list(output.output_folder(ledger).iterdir()) == []


@pytest.mark.parametrize("after", [b"first ru", b"First run\n", b"first run!", b""])
def test_what_is_shorter_or_differs_at_one_end_is_no_longer_there(ledger: Path, log: Path, after: bytes) -> None:
    keep_files(ledger, 0, [str(log)], MOST)
    log.write_bytes(after)
    assert not same_beginning(kept_copies(ledger)[0])


def test_of_a_long_output_the_beginning_and_the_end_are_kept(ledger: Path, log: Path) -> None:
    log.write_bytes(b"begin" + bytes(100_000) + b"end")
    keep_files(ledger, 0, [str(log)], 8000)
    (one,) = kept_copies(ledger)
    data = one.copy.read_bytes()
    assert data.startswith(b"begin") and data.endswith(b"end") and b"\nftslurm: 92008 bytes were not kept" in data[1000:1040]
    assert data.count(b"\0") == 8000 - 8 and (one.size, one.head) == (100_008, 1000) and same_beginning(one)


def test_nothing_is_kept_of_what_is_no_file_or_not_wanted(ledger: Path, log: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    keep_files(
        ledger, 0, ["/dev/null", str(tmp_path / "none"), str(tmp_path), str(tmp_path / "fifo"), str(tmp_path / "empty")], MOST
    )
    keep_files(ledger, 0, [str(log)], 0)
    assert kept_copies(ledger) == ()


def test_the_oldest_make_room(ledger: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_FILES", 3)
    for schedule in range(5):
        log.write_bytes(b"run %d\n" % schedule)
        keep_files(ledger, schedule, [str(log)], MOST)
    assert [one.schedule for one in kept_copies(ledger)] == [2, 3, 4] and len(list(output.output_folder(ledger).iterdir())) == 6


@pytest.mark.parametrize(
    "text", ["", "[]", '{"v": 2}', '{"v": 1, "source": 5}', '{"v": 1, "source": "x", "schedule": -1}', "[" * 9999]
)
def test_a_damaged_note_is_passed_over(ledger: Path, log: Path, text: str) -> None:
    keep_files(ledger, 0, [str(log)], MOST)
    (output.output_folder(ledger) / "run-9.00000000.json").write_text(text)
    assert len(kept_copies(ledger)) == 1

"""The index is a cache: whatever is wrong with it, the list is what the ledgers say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftslurm.ledger.index import Index
from ftslurm.ledger.journal import Journal
from ftslurm.model.record import AttemptBegan, Finished, RunBegan


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    for number in (1, 2, 3):
        ledger(tmp_path, number).append(
            [
                RunBegan(1.0, "r", str(number), "c", 0, "k", "train", "n1", number=number),
                AttemptBegan(2.0, "r", 1, 0, "k", 1, "n1", 1),
            ]
        )
    return tmp_path


def ledger(root: Path, number: int) -> Journal:
    return Journal(root / "jobs" / f"c.{number}.jsonl")


def states(root: Path) -> dict[str, str]:
    return {job.job: job.state for job in Index(root).named().values()}


ALL = {"1": "running", "2": "running", "3": "running"}


def test_without_a_state_folder_there_is_nothing(tmp_path: Path) -> None:
    assert Index(tmp_path / "none").named() == {}


def test_only_what_has_changed_is_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(root) == ALL
    ledger(root, 2).append([Finished(3.0, "r", 0, "done")])
    (root / "jobs" / "c.4.jsonl").touch()  # of a job that begins just now
    read: list[str] = []
    plain = Journal.read
    monkeypatch.setattr(Journal, "read", lambda self: (read.append(self.path.name), plain(self))[1])
    assert states(root) == {**ALL, "2": "completed"}
    assert sorted(read) == ["c.2.jsonl", "c.4.jsonl"]
    assert states(root) == {**ALL, "2": "completed"} and len(read) == 2


def test_a_ledger_that_is_gone_is_listed_no_more(root: Path) -> None:
    states(root)
    ledger(root, 1).path.unlink()
    ledger(root, 3).path.rename(root / "jobs" / "c.3.was.1.jsonl")
    assert states(root) == {"2": "running"}


@pytest.mark.parametrize("damage", [
    b"\xff\xfe{[", b"[]", b"null", b"[6,[]]", b"[6,null]", b'[6,{"c.1.jsonl":[0,0,[1,2]]}]', b'[99,{"c.1.jsonl":[1,1,null]}]',
    b'[6,{"c.1', b'[6,{"c.1.jsonl":[1],"c.2.jsonl":{},"c.3.jsonl":[1,2,3,4]}]', b"[" * 100_000,
])  # fmt: skip
def test_a_damaged_index_costs_time_only(root: Path, damage: bytes) -> None:
    states(root)
    file = Index(root).path
    good = file.read_bytes()
    file.write_bytes(damage)
    assert states(root) == ALL
    file.write_bytes(good + damage)
    assert states(root) == ALL
    file.write_bytes(damage + b"\n" + good)
    assert states(root) == ALL


def test_a_summary_of_other_types_is_made_anew(root: Path) -> None:
    states(root)
    file = Index(root).path
    version, entries = json.loads(file.read_text())
    entries["c.1.jsonl"][2][7] = "many"
    file.write_text(json.dumps([version, entries]))
    assert states(root) == ALL


def test_it_does_not_grow_for_ever(root: Path) -> None:
    size = len(Index(root).path.read_bytes()) if states(root) else 0
    for number in range(20):
        ledger(root, 1).append([AttemptBegan(3.0, "r", number + 2, 0, "k", 1, "n1", 1)])
        states(root)
    assert len(Index(root).path.read_bytes()) < size + 100
    assert states(root) == ALL and sorted(path.name for path in root.iterdir()) == ["index.jsonl", "jobs"]


def test_an_index_that_cannot_be_written_or_is_a_link_is_none(root: Path) -> None:
    target = root / "target"
    target.write_text("")
    Index(root).path.symlink_to(target)
    assert states(root) == ALL and target.read_text() == ""

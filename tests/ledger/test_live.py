"""The two files between ftrun and whoever watches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.ledger import live as files
from tests.model.test_live import LIVE


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "c.7.jsonl"


def test_who_watches_is_seen_without_a_clock(ledger: Path) -> None:
    assert files.request_changed(ledger) is None
    with pytest.raises(FileNotFoundError):
        files.write_request(ledger, {})  # no ftrun is there to tell
    files.make_request(ledger)
    before = files.request_changed(ledger)
    assert before == files.request_changed(ledger) and before is not None
    files.write_request(ledger, {"stacks": ["a", "n1"]})
    os.utime(files.request_path(ledger), ns=(1, 1))  # by a clock of long ago
    assert files.request_changed(ledger) != before
    assert files.read_request(ledger) == {"stacks": ["a", "n1"]}
    files.write_request(ledger, {})
    assert files.read_request(ledger) == {}
    files.make_request(ledger)  # by a second ftrun of the script
    assert files.request_path(ledger).stat().st_size == files.REQUEST_BYTES


def test_what_is_told_is_replaced_as_a_whole_and_private(ledger: Path) -> None:
    assert files.read_live(ledger) is None
    files.write_live(ledger, LIVE)
    files.write_live(ledger, LIVE)
    assert files.read_live(ledger) == LIVE
    path = files.live_path(ledger)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in ledger.parent.iterdir()] == [path.name]
    files.remove_live(ledger, request=True)
    files.remove_live(ledger, request=True)
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"v":1}', b"null", b"\xff"])
def test_what_is_no_answer_is_none(ledger: Path, content: bytes) -> None:
    files.live_path(ledger).write_bytes(content)
    files.request_path(ledger).write_bytes(content)
    assert files.read_live(ledger) is None and files.read_request(ledger) in ({}, {"v": 1})


def test_links_and_fifos_are_neither_followed_nor_waited_for(ledger: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("untouched")
    for path in (files.live_path(ledger), files.request_path(ledger)):
        path.symlink_to(secret)
    assert files.read_live(ledger) is None and files.request_changed(ledger) is None
    for call in (lambda: files.write_request(ledger, {}), lambda: files.make_request(ledger)):
        with pytest.raises(OSError):
            call()
    files.write_live(ledger, LIVE)  # replaces the link
    assert secret.read_text() == "untouched" and not files.live_path(ledger).is_symlink()
    files.request_path(ledger).unlink()
    os.mkfifo(files.request_path(ledger))
    assert files.request_changed(ledger) is None
    with pytest.raises(OSError):
        files.write_request(ledger, {})

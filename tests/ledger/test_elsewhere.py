"""A state folder that cannot be used, and where the ledger goes then."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ftslurm.errors import NoRoom, StateError
from ftslurm.ledger import store as store_module
from ftslurm.ledger.store import Identity, open_ledger
from ftslurm.system.files import check_room

ME = Identity("c", "7", restarts=0, start_time=1000, name="train")


def test_a_state_folder_that_can_be_used_is_used(tmp_path: Path) -> None:
    said: list[str] = []
    opened = open_ledger({"HOME": str(tmp_path)}, ME, said.append)
    assert opened.lasts and opened.store.root == tmp_path / ".ftslurm" and not said
    assert not list(opened.journal.path.parent.iterdir()), "the look for room leaves nothing"


@pytest.mark.parametrize("home", ["/proc", "/dev/null"])
def test_a_home_that_cannot_be_written(tmp_path: Path, home: str) -> None:
    said: list[str] = []
    opened = open_ledger({"HOME": home, "TMPDIR": str(tmp_path)}, ME, said.append)
    assert not opened.lasts and opened.store.root == tmp_path / f"ftslurm-state-{os.getuid()}"
    assert len(said) == 1 and "cannot be requeued" in said[0]


def test_a_folder_that_the_user_has_named_is_no_guess(tmp_path: Path) -> None:
    with pytest.raises(StateError):
        open_ledger({"FTSLURM_STATE_DIR": "/proc/state", "TMPDIR": str(tmp_path)}, ME, lambda text: None)


def test_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def room(folder: Path) -> None:
        if "home" in folder.parts:
            raise NoRoom(f"{folder}: {os.strerror(errno.EDQUOT)}")

    monkeypatch.setattr(store_module, "check_room", room)
    opened = open_ledger({"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}, ME, lambda text: None)
    assert not opened.lasts


def test_no_room_is_told(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be written"):
        check_room(tmp_path / "missing")

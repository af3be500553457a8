"""Reading what a user may have laid as a trap."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ftslurm.errors import StateError
from ftslurm.ledger.shared_file import read_untrusted

ME = os.getuid()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "state/jobs").mkdir(parents=True, mode=0o755)
    (tmp_path / "state/jobs/ledger").write_text("said")
    return tmp_path


def read(home: Path, owner: int = ME, limit: int = 100) -> bytes | None:
    return read_untrusted(home, ("state", "jobs", "ledger"), owner, limit)


def test_a_plain_file_is_read(home: Path) -> None:
    assert read(home) == b"said"


@pytest.mark.parametrize("gone", ["state/jobs/ledger", "state/jobs", "state", ""])
def test_what_is_not_there_is_no_error(home: Path, gone: str) -> None:
    (home / gone).rename(home.with_name(f"{home.name}-elsewhere"))
    assert read(home) is None


def swap(path: Path, make: Callable[[Path, Path], object]) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    make(path, aside)


@pytest.mark.parametrize(
    "trap",
    [
        lambda home: swap(home / "state/jobs/ledger", lambda path, aside: path.symlink_to(aside)),
        lambda home: swap(home / "state/jobs/ledger", lambda path, aside: path.hardlink_to(aside)),
        lambda home: swap(home / "state/jobs/ledger", lambda path, aside: os.mkfifo(path)),
        lambda home: swap(home / "state/jobs/ledger", lambda path, aside: path.mkdir()),
        lambda home: swap(home / "state/jobs/ledger", lambda path, aside: path.symlink_to("/dev/zero")),
        lambda home: swap(home / "state/jobs", lambda path, aside: path.symlink_to(aside)),
        lambda home: swap(home / "state", lambda path, aside: path.symlink_to(aside)),
        lambda home: swap(home / "state", lambda path, aside: path.write_text("a file")),
        lambda home: (home / "state/jobs").chmod(0o777),
        lambda home: (home / "state/jobs/ledger").chmod(0o666),
        lambda home: os.truncate(home / "state/jobs/ledger", 1 << 40),
    ],
    ids=[
        "link",
        "hard link",
        "fifo",
        "folder",
        "device",
        "linked folder",
        "linked state",
        "file",
        "open folder",
        "open file",
        "giant",
    ],
)
def test_traps_are_refused_at_once(home: Path, trap: Callable[[Path], object]) -> None:
    trap(home)
    with pytest.raises(StateError):
        read(home)


def test_another_owner_is_refused(home: Path) -> None:
    with pytest.raises(StateError, match="belongs to user"):
        read(home, owner=ME + 1)


def test_a_link_above_the_home_is_the_site_s(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("other") / "home"
    link.symlink_to(home)
    assert read(link) == b"said"


def test_a_large_one_is_refused(home: Path) -> None:
    (home / "state/jobs/ledger").write_bytes(b"x" * ((4 << 20) + 1))
    with pytest.raises(StateError, match="4194304 at most"):
        read_untrusted(home, ("state", "jobs", "ledger"), ME)

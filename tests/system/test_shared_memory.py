"""What a user has left in a folder like /dev/shm goes, and nothing else."""

from __future__ import annotations

import os
import pwd
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftslurm.system.commands import CommandResult
from ftslurm.system.owner import Owner
from ftslurm.system.remains import files_of, remove_files, remove_segments

ME = os.getuid()
DEPTH = 3000


def soon() -> float:
    return time.monotonic() + 60.0


def test_files_links_and_very_deep_trees_go(tmp_path: Path) -> None:
    shm, kept = tmp_path / "shm", tmp_path / "kept"
    shm.mkdir()
    kept.write_text("precious")
    (shm / "-rf").write_text("x")
    (shm / "link").symlink_to(kept)
    here = os.open(shm, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    files = files_of(ME, shm)
    assert [file.name for file in files] == ["-rf", "d", "link"]
    assert remove_files(files, ME, soon(), shm) == 3
    assert not list(shm.iterdir()) and kept.read_text() == "precious"


def test_only_what_the_first_look_found_goes(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    (tmp_path / "swapped").write_text("x")
    files = files_of(ME, tmp_path)
    (tmp_path / "new").write_text("x")
    (tmp_path / "swapped").rename(tmp_path / "elsewhere")
    (tmp_path / "swapped").write_text("another's by now")
    assert remove_files(files, ME, soon(), tmp_path) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"new", "swapped", "elsewhere"}


def test_another_user_s_is_neither_found_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    assert files_of(ME + 1, tmp_path) == ()
    assert remove_files(files_of(ME, tmp_path), ME + 1, soon(), tmp_path) == 0 and (tmp_path / "x").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="whose a file is only root can lay down")
def test_a_folder_of_another_user_in_one_of_the_user_s_stays() -> None:
    """As it would if the user removed it."""
    user, other = (pwd.getpwnam(name).pw_uid for name in ("nobody", "games"))
    with tempfile.TemporaryDirectory(prefix="ftslurm-") as folder:  # pytest's are closed to others
        shm = Path(folder)
        shm.chmod(0o1777)
        (shm / "mine/theirs").mkdir(parents=True)
        for name, owner in (("mine", user), ("mine/x", user), ("mine/theirs", other), ("mine/theirs/y", other)):
            if not (shm / name).exists():
                (shm / name).write_text("x")
            os.chown(shm / name, owner, -1)
        assert remove_files(files_of(user, shm), user, soon(), shm) == 0
        assert not (shm / "mine/x").exists() and (shm / "mine/theirs/y").read_text() == "x"


def test_after_the_time_limit_nothing_more_is_touched(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    assert remove_files(files_of(ME, tmp_path), ME, time.monotonic(), tmp_path) == 0 and (tmp_path / "x").exists()


def test_segments_of_the_first_look_that_are_there_still_by_the_user_s_own_right() -> None:
    """A number may be another's by then, whose segment the user cannot remove."""
    there, asked = [(5, 6, 9), (6, 9)], []

    def ipcrm(owner: Owner, argv: Sequence[str], timeout_s: float, env: object) -> CommandResult:
        asked.append((owner.user_id, *argv))
        return CommandResult(tuple(argv), 1, "", "")

    assert remove_segments([5, 6, 7], ME, soon(), lambda user_id: there.pop(0), ipcrm) == 2
    assert asked == [(ME, "ipcrm", "--shmem-id", "5", "--shmem-id", "6")]

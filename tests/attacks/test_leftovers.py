"""What a user does so that the Epilog cannot clear up after her, on this machine's own /dev/shm and /proc.

She is nobody here, as nobody else has processes or shared memory of that user's in these namespaces.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.system import remains
from ftslurm.system.remains import files_of, remove_files, remove_segments, segments_of
from tests.attacks.users import NEIGHBOUR, OWNER, run_as

# POSIX and System V, each user's own; closed to herself, and deep.
CLOSED = """
import os
os.chdir("/dev/shm")
os.makedirs("ftslurm-test/a/b")
for name in ("ftslurm-test/a/b/x", "ftslurm-test/y"):
    open(name, "w").close()
os.mkdir("ftslurm-test/empty", 0)
os.chmod("ftslurm-test/a/b", 0)
os.chmod("ftslurm-test/a", 0o100)
os.chmod("ftslurm-test", 0)
"""
SEGMENTS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(*(libc.shmget(0, 4096, 0o1600) for _ in range(3)))
"""
MANY = """
import os
os.mkdir("/dev/shm/ftslurm-many.d")
for number in range(3000):
    open(f"/dev/shm/ftslurm-many.{number}", "w").close()
"""


def soon() -> float:
    return time.monotonic() + 60.0


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    yield
    subprocess.run(["sh", "-c", "rm -rf /dev/shm/ftslurm-test /dev/shm/ftslurm-many.*"], check=True)


def test_a_folder_that_she_closed_to_herself_goes() -> None:
    run_as(OWNER, CLOSED)
    mine = [file for file in files_of(OWNER) if file.name == "ftslurm-test"]
    assert len(mine) == 1 and remove_files(mine, OWNER, soon()) == 1 and not Path("/dev/shm/ftslurm-test").exists()


def test_as_many_files_as_she_likes_are_found_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remains, "MAX_FILES", 1000)
    run_as(OWNER, MANY)
    rounds = 0
    while found := [file for file in files_of(OWNER) if file.name.startswith("ftslurm-many")]:
        assert remove_files(found, OWNER, soon()) == len(found)
        rounds += 1
    assert rounds == 4 and not list(Path("/dev/shm").glob("ftslurm-many*"))


def test_a_segment_that_became_another_s_meanwhile_stays() -> None:
    hers, theirs = ([int(word) for word in run_as(user, SEGMENTS).split()] for user in (OWNER, NEIGHBOUR))
    try:
        assert set(hers) <= set(segments_of(OWNER))
        # As if the numbers of the first look were given to the neighbour since.
        fooled = lambda user_id: (*segments_of(OWNER), *segments_of(NEIGHBOUR))  # noqa: E731
        remove_segments([*hers, *theirs], OWNER, soon(), fooled)
        assert not set(hers) & set(segments_of(OWNER)) and set(theirs) <= set(segments_of(NEIGHBOUR))
    finally:
        for number in (*hers, *theirs):
            subprocess.run(["ipcrm", "--shmem-id", str(number)], stderr=subprocess.DEVNULL, check=False)

"""Files that others of the same user write: shared by all jobs in the state folder, or read by root, who trusts none of it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ftslurm.errors import StateError, WireError
from ftslurm.ledger.journal import body_in
from ftslurm.model.folds.history import CLEAN_UP_MAX_S, CLEAN_UPS_MAX, CleanUpTook, History
from ftslurm.model.folds.node_memory import NodeCleared, NodeFailed, NodeLeft, NodeReinstated, Told
from ftslurm.model.plain import Bounds, from_plain
from ftslurm.model.values import fields
from ftslurm.system.files import Locked, append, locked, private_folder, read_private

# --- reads a user's file safely for a reader with more rights than its owner: the file may be a trap
# Below the folder that the site names every part is opened by itself, follows no link, belongs to the owner, and can be
# written by nobody else. The file is a plain one with one name, and small. Opening waits for nobody: a FIFO has no writer.
# Everything else is refused; nothing here is ever written.

# A restart leaves about 1 KB: some thousand of them, read within a few seconds and some 50 MB. The most that can be made of so
# many bytes costs 15 s, within what an owner's program may use (system/owner.py).
MAX_BYTES = 4 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OPEN_TO_OTHERS = 0o022


def read_untrusted(base: Path, parts: Sequence[str], owner: int, limit: int = MAX_BYTES) -> bytes | None:
    """The bytes of base/parts, whole; None if it is not there.

    base: what the site vouches for, the owner's home say; links above and at it are the site's.
    Raises: StateError for everything that is not as it should be.
    """
    place = base.joinpath(*parts)
    try:
        with _folder(base, parts[:-1], owner) as folder:
            fd = os.open(parts[-1], _FILE, dir_fd=folder)
            with os.fdopen(fd, "rb") as file:
                _check_file(os.fstat(fd), owner, limit, place)
                data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(place, error.strerror or "cannot be read") from None
    if len(data) > limit:
        raise _refused(place, "grows while it is read")
    return data


@contextmanager
def _folder(base: Path, parts: Sequence[str], owner: int) -> Iterator[int]:
    """An open folder, base/parts."""
    opened = [os.open(base, _FOLDER)]
    try:
        _check_owner(os.fstat(opened[0]), owner, base)
        for number, part in enumerate(parts, 1):
            opened.append(os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=opened[-1]))
            _check_folder(os.fstat(opened[-1]), owner, base.joinpath(*parts[:number]))
        yield opened[-1]
    finally:
        for fd in opened:
            os.close(fd)


def _check_owner(info: os.stat_result, owner: int, place: Path) -> None:
    if info.st_uid != owner:
        raise _refused(place, f"belongs to user {info.st_uid} and not to {owner}")


def _check_folder(info: os.stat_result, owner: int, place: Path) -> None:
    _check_owner(info, owner, place)
    if info.st_mode & _OPEN_TO_OTHERS:
        raise _refused(place, "may be written by others")


def _check_file(info: os.stat_result, owner: int, limit: int, place: Path) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise _refused(place, "is not a plain file")
    _check_folder(info, owner, place)
    if info.st_nlink != 1:
        raise _refused(place, f"has {info.st_nlink} names")
    if info.st_size > limit:
        raise _refused(place, f"has {info.st_size} bytes, {limit} at most are read")


def _refused(place: Path, why: str) -> StateError:
    return StateError(f"{place} {why}", hint="its contents are ignored")


LOCK_TIMEOUT_S = 10.0


class MemoryFile:
    """max_bytes: of a longer file, only the end is read."""

    def __init__(self, root: Path, name: str, max_bytes: int) -> None:
        self.root = root
        self.path = root / name
        self._max_bytes = max_bytes

    def read(self) -> list[bytes]:
        """The lines in the order written, none where there is no file. Raises: StateError."""
        try:
            return read_private(self.path, self._max_bytes).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}", hint="check its owner and rights") from None

    def add(self, lines: bytes) -> None:
        """Raises: StateError."""
        private_folder(self.root)
        try:
            with locked(self.path.with_suffix(".lock"), LOCK_TIMEOUT_S):
                append(self.path, lines)
        except Locked:
            raise StateError(f"{self.path} is locked by another program", hint="try again") from None
        except OSError as error:
            raise StateError(f"{self.path} cannot be written: {error.strerror}", hint="check free space and rights") from None


# --- how long the nodes of a cluster took to clean up after requeues: `<state folder>/clean-ups.jsonl`, for the user's next jobs

# A hundred bytes a requeue, of the latest some hundred.
CLEAN_UPS_BYTES = 32 << 10


def _clean_ups(root: Path) -> MemoryFile:
    return MemoryFile(root, "clean-ups.jsonl", CLEAN_UPS_BYTES)


def add_clean_up(root: Path, cluster: str, job: str, at: float, took: CleanUpTook) -> None:
    """root: the state folder. at: Unix seconds. Raises: StateError."""
    body = {"v": 1, "at": at, "cluster": cluster, "job": job, "seconds": float(round(took.seconds, 1))}
    if took.rough:
        body["rough"] = True
    _clean_ups(root).add(json.dumps(body, separators=(",", ":")).encode() + b"\n")


def known_clean_ups(root: Path, cluster: str, history: History) -> tuple[CleanUpTook, ...]:
    """Clean-ups of all jobs of the user on the cluster, the latest last; if there are none, or they cannot be read, of this job
    only."""
    try:
        found = (_clean_up_in(line, cluster) for line in _clean_ups(root).read())
    except StateError:
        return history.clean_ups
    return tuple(took for took in found if took is not None)[-CLEAN_UPS_MAX:] or history.clean_ups


def _clean_up_in(line: bytes, cluster: str) -> CleanUpTook | None:
    body = body_in(line, 1)
    if body.get("cluster") != cluster:
        return None
    seconds = body.get("seconds")
    if not isinstance(seconds, float) or not 0 < seconds <= CLEAN_UP_MAX_S:
        return None
    return CleanUpTook(seconds, body.get("rough") is True)


# --- the file that tells the jobs of one user about nodes: `<state folder>/nodes.jsonl`, append-only

# Some 200 bytes a record; of a longer file the end counts.
NODES_BYTES = 4 << 20
# Lines of version 1 do not say whether a fact or only words were behind them, and count for nothing.
VERSION = 2
_KINDS: Mapping[str, type[Told]] = {"left": NodeLeft, "failed": NodeFailed, "reinstated": NodeReinstated, "cleared": NodeCleared}


class NodeMemory:
    """root: the state folder."""

    def __init__(self, root: Path) -> None:
        self._file = MemoryFile(root, "nodes.jsonl", NODES_BYTES)
        self.path = self._file.path

    def read(self) -> tuple[Told, ...]:
        """In the order written; lines that cannot be read are passed over. Raises: StateError."""
        return _known(self._file.read())

    def add(self, records: Sequence[Told]) -> None:
        """Raises: StateError."""
        self._file.add(b"".join(_to_line(record) for record in records))


def parse_memory(data: bytes) -> tuple[Told, ...]:
    """As `read`, from bytes that the caller has read."""
    return _known(data.splitlines())


def _known(lines: Sequence[bytes]) -> tuple[Told, ...]:
    found = (_told_in(line) for line in lines if line)
    return tuple(record for record in found if record is not None)


def _to_line(record: Told) -> bytes:
    kind = next(name for name, kind in _KINDS.items() if type(record) is kind)
    told = {field.name: getattr(record, field.name) for field in fields(record)}
    return json.dumps({"v": VERSION, "kind": kind, **told}, separators=(",", ":")).encode() + b"\n"


def _told_in(line: bytes) -> Told | None:
    body = body_in(line, VERSION)
    if str(body.get("kind")) not in _KINDS:
        return None
    try:
        told = from_plain(_KINDS[body["kind"]], body, Bounds(NODES_BYTES, real=1e12))
    except WireError:
        return None
    return told if told.node else None

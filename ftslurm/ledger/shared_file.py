"""A file in the state folder that all jobs of one user share: lines, append-only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ftslurm.errors import StateError, WireError
from ftslurm.model.folds.history import CLEAN_UP_MAX_S, CLEAN_UPS_MAX, CleanUpTook, History
from ftslurm.model.folds.node_memory import NodeCleared, NodeFailed, NodeLeft, NodeReinstated, Told
from ftslurm.model.plain import Bounds, from_plain
from ftslurm.system.files import Locked, append, locked, private_folder, read_private

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


class CleanUps:
    """root: the state folder."""

    def __init__(self, root: Path) -> None:
        self._file = MemoryFile(root, "clean-ups.jsonl", CLEAN_UPS_BYTES)

    def of(self, cluster: str) -> tuple[CleanUpTook, ...]:
        """The clean-ups of the cluster, the latest last, without unreadable lines. Raises: StateError."""
        found = (_clean_up_in(line, cluster) for line in self._file.read())
        return tuple(took for took in found if took is not None)[-CLEAN_UPS_MAX:]

    def add(self, cluster: str, job: str, at: float, took: CleanUpTook) -> None:
        """at: Unix seconds. Raises: StateError."""
        body = {"v": 1, "at": at, "cluster": cluster, "job": job, "seconds": float(round(took.seconds, 1))}
        if took.rough:
            body["rough"] = True
        self._file.add(json.dumps(body, separators=(",", ":")).encode() + b"\n")


def known_clean_ups(root: Path, cluster: str, history: History) -> tuple[CleanUpTook, ...]:
    """Clean-ups of all jobs of the user; if those cannot be read, of this job only."""
    try:
        return CleanUps(root).of(cluster) or history.clean_ups
    except StateError:
        return history.clean_ups


def _clean_up_in(line: bytes, cluster: str) -> CleanUpTook | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("v") != 1 or body.get("cluster") != cluster:
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
    return json.dumps({"v": VERSION, "kind": kind, **asdict(record)}, separators=(",", ":")).encode() + b"\n"


def _told_in(line: bytes) -> Told | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("v") != VERSION or str(body.get("kind")) not in _KINDS:
        return None
    try:
        told = from_plain(_KINDS[body["kind"]], body, Bounds(NODES_BYTES, real=1e12))
    except WireError:
        return None
    return told if told.node else None

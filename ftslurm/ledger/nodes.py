"""The file that tells the jobs of one user about nodes: `<state folder>/nodes.jsonl`, append-only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ftslurm.ledger.shared_file import MemoryFile
from ftslurm.model.folds.node_memory import NodeCleared, NodeFailed, NodeLeft, NodeReinstated, Told

# Some 200 bytes a record; of a longer file the end counts.
MAX_BYTES = 4 << 20
# Lines of version 1 do not say whether a fact or only words were behind them, and count for nothing.
VERSION = 2
_KINDS: Mapping[str, type[Told]] = {"left": NodeLeft, "failed": NodeFailed, "reinstated": NodeReinstated, "cleared": NodeCleared}
_BY_A_JOB = ("cluster", "node", "job", "why")
_TEXTS = {"left": _BY_A_JOB, "failed": _BY_A_JOB, "reinstated": _BY_A_JOB, "cleared": ("cluster", "node")}


class NodeMemory:
    """root: the state folder."""

    def __init__(self, root: Path) -> None:
        self._file = MemoryFile(root, "nodes.jsonl", MAX_BYTES)
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
    found = (_from_line(line) for line in lines if line)
    return tuple(record for record in found if record is not None)


def _to_line(record: Told) -> bytes:
    kind = next(name for name, kind in _KINDS.items() if type(record) is kind)
    return json.dumps({"v": VERSION, "kind": kind, **asdict(record)}, separators=(",", ":")).encode() + b"\n"


def _from_line(line: bytes) -> Told | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("v") != VERSION or str(body.get("kind")) not in _TEXTS:
        return None
    at, texts = body.get("at"), [body.get(name, "") for name in _TEXTS[body["kind"]]]
    if not (isinstance(at, (int, float)) and type(at) is not bool and 0 <= at < 1e12):
        return None
    if any(type(text) is not str for text in texts) or not texts[1]:
        return None
    return _KINDS[body["kind"]](float(at), *texts)

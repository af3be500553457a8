"""The file in which jobs of one user remember nodes for each other: `<state folder>/nodes.jsonl`, append-only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ftslurm.errors import StateError
from ftslurm.model.node_memory import NodeCleared, NodeLeft
from ftslurm.system.files import append, private_folder, read_private

# Some 200 bytes a record; of a longer file the end counts.
MAX_BYTES = 4 << 20
LOCK_TIMEOUT_S = 10.0
_TEXTS = {"left": ("cluster", "node", "job", "why"), "cleared": ("cluster", "node")}


class NodeMemory:
    """root: the state folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "nodes.jsonl"

    def read(self) -> tuple[NodeLeft | NodeCleared, ...]:
        """In the order written; lines that cannot be read are passed over. Raises: StateError."""
        try:
            data = read_private(self.path, MAX_BYTES)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}", hint="whose is it?") from None
        found = (_from_line(line) for line in data.splitlines())
        return tuple(record for record in found if record is not None)

    def add(self, records: Sequence[NodeLeft | NodeCleared]) -> None:
        """Raises: StateError."""
        from filelock import FileLock, Timeout  # 50 ms to load

        private_folder(self.root)
        data = b"".join(_to_line(record) for record in records)
        try:
            with FileLock(self.path.with_suffix(".lock"), timeout=LOCK_TIMEOUT_S, mode=0o600):
                append(self.path, data)
        except Timeout:
            raise StateError(f"{self.path} is locked by another program", hint="try again") from None
        except OSError as error:
            raise StateError(f"{self.path} cannot be written: {error.strerror}", hint="free space or rights there") from None


def _to_line(record: NodeLeft | NodeCleared) -> bytes:
    kind = "left" if isinstance(record, NodeLeft) else "cleared"
    return json.dumps({"v": 1, "kind": kind, **asdict(record)}, separators=(",", ":")).encode() + b"\n"


def _from_line(line: bytes) -> NodeLeft | NodeCleared | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("v") != 1 or str(body.get("kind")) not in _TEXTS:
        return None
    at, texts = body.get("at"), [body.get(name, "") for name in _TEXTS[body["kind"]]]
    if not (isinstance(at, (int, float)) and type(at) is not bool and 0 <= at < 1e12):
        return None
    if any(type(text) is not str for text in texts) or not texts[1]:
        return None
    return NodeLeft(float(at), *texts) if body["kind"] == "left" else NodeCleared(float(at), *texts)

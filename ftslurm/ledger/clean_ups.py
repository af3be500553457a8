"""How long the nodes of a cluster took to clean up after requeues: `<state folder>/clean-ups.jsonl`, for the user's next jobs."""

from __future__ import annotations

import json
from pathlib import Path

from ftslurm.errors import StateError
from ftslurm.ledger.shared_file import MemoryFile
from ftslurm.model.folds.history import CLEAN_UP_MAX_S, CLEAN_UPS_MAX, CleanUpTook, History

# A hundred bytes a requeue, of the latest some hundred.
MAX_BYTES = 32 << 10


class CleanUps:
    """root: the state folder."""

    def __init__(self, root: Path) -> None:
        self._file = MemoryFile(root, "clean-ups.jsonl", MAX_BYTES)

    def of(self, cluster: str) -> tuple[CleanUpTook, ...]:
        """The clean-ups of the cluster, the latest last, without unreadable lines. Raises: StateError."""
        found = (_from_line(line, cluster) for line in self._file.read())
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


def _from_line(line: bytes, cluster: str) -> CleanUpTook | None:
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

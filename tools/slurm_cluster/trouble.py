"""What can go wrong, and how it is said."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

EX_FAILED, EX_USAGE, EX_UNAVAILABLE = 1, 64, 69  # the last two as in sysexits.h


class Trouble(Exception):
    """What went wrong and what to do about it; it ends the command with `status`."""

    def __init__(self, message: str, status: int = EX_FAILED) -> None:
        super().__init__(message)
        self.status = status


class BootFailed(Trouble):
    """A daemon did not start or did not become ready; its `logs` tell why."""

    def __init__(self, message: str, logs: Sequence[Path]) -> None:
        super().__init__(message)
        self.logs = tuple(logs)


def say(sentence: str) -> None:
    print(f"slurm-cluster: {sentence}", file=sys.stderr, flush=True)

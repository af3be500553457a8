"""How the tasks of a local step ended, in srun's words. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from ftslurm.launchers.local_layout import Place
from ftslurm.model.exits import ExitStatus
from ftslurm.model.text import fold_numbers
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    place: Place
    status: ExitStatus
    core: bool = False

    def __str__(self) -> str:
        if not self.status.signal:
            return f"Exited with exit code {self.status.code}"
        name = signal.strsignal(self.status.signal) or f"Unknown signal {self.status.signal}"
        return name + (" (core dumped)" if self.core else "")


def describe_exits(ended: Iterable[Ended]) -> list[str]:
    """srun's lines: one for each node and kind of end, none for success. Source: _task_finish in launch_slurm.c."""
    groups: dict[tuple[str, str], list[int]] = {}
    for one in sorted(ended, key=lambda one: (one.place.slot, one.place.rank)):
        if not one.status.ok:
            groups.setdefault((one.place.node, str(one)), []).append(one.place.rank)
    return [
        f"error: {node}: {'task' if len(ranks) == 1 else 'tasks'} {fold_numbers(ranks)}: {how}"
        for (node, how), ranks in groups.items()
    ]


def step_status(statuses: Iterable[ExitStatus]) -> int:
    """srun's own: the highest signal, as 128+n, before the highest exit code."""
    statuses = list(statuses)
    killed_by = max((status.signal for status in statuses), default=0)
    return 128 + killed_by if killed_by else max((status.code for status in statuses), default=0)

"""How the tasks of a local step ended, in srun's words. Pure but for the clock it is handed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable

from ftslurm.launchers.local_layout import Layout, Place
from ftslurm.model.exits import ExitStatus
from ftslurm.model.numbers import fold_numbers
from ftslurm.model.values import dataclass

EXIT_REPORT_DELAY_S = 0.1  # what ends on a node within this time shares a line (_wait_for_all_tasks in slurmstepd/mgr.c)


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
    """srun's lines for tasks of one node: one a kind of end, none for success. Source: _task_finish in launch_slurm.c."""
    groups: dict[str, list[Ended]] = {}
    for one in ended:
        if not one.status.ok:
            groups.setdefault(str(one), []).append(one)
    return [
        f"error: {group[0].place.node}: {'task' if len(group) == 1 else 'tasks'} "
        f"{fold_numbers(one.place.rank for one in group)}: {how}"
        for how, group in groups.items()
    ]


def step_status(statuses: Iterable[ExitStatus]) -> int:
    """srun's own: the highest signal, as 128+n, before the highest exit code."""
    statuses = list(statuses)
    killed_by = max((status.signal for status in statuses), default=0)
    return 128 + killed_by if killed_by else max((status.code for status in statuses), default=0)


class ExitReports:
    """Gathers ends by node until the node's line is due."""

    def __init__(self, layout: Layout) -> None:
        self._running = Counter(place.node for place in layout.places())
        self._ended: dict[str, list[Ended]] = {}
        self._due: dict[str, float] = {}

    def add(self, ended: Ended, now: float) -> None:
        node = ended.place.node
        self._running[node] -= 1
        self._ended.setdefault(node, []).append(ended)
        self._due.setdefault(node, now + EXIT_REPORT_DELAY_S)
        if not self._running[node]:
            self._due[node] = now

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def take(self, now: float) -> list[str]:
        ready = [node for node, due in self._due.items() if due <= now]
        lines = [line for node in ready for line in describe_exits(self._ended.pop(node))]
        for node in ready:
            del self._due[node]
        return lines

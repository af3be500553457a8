"""Nodes that no rank is on: spares, looked at before they are needed, idle ones, those of donor jobs, and those given back."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ftslurm.model import events as ev
from ftslurm.model.decisions import CheckNode, Decision, EndLoans

# A look at a spare node counts for so long, seconds.
LOOK_COUNTS_S = 30.0


class Spares:
    """given_back: nodes of the allocation. fit: spare -> what was seen there. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.given_back: set[str] = set()
        self.fit: dict[str, ev.NodeChecked] = {}
        self._looked_at: dict[str, float] = {}  # spare -> when a look was asked for
        self._absent: dict[str, int] = {}  # idle node -> how often its slurmd did not answer, in a row
        self._asked: dict[str, float] = {}  # idle node -> when it was asked last

    def look_at(self, spare: str, check_s: float, now: float) -> list[Decision]:
        """Unless the answer is still to come, or was asked for just now. check_s: what the look may take."""
        since = self._looked_at.get(spare)
        if since is not None and (spare not in self.fit or now - since <= LOOK_COUNTS_S):
            return []
        self._looked_at[spare] = now
        self.fit.pop(spare, None)
        return [CheckNode(spare, 0, check_s)]

    def seen(self, event: ev.NodeChecked) -> None:
        """What told nothing is not kept: the node is looked at again when it is needed."""
        if event.good is None:
            self._looked_at.pop(event.node, None)
        elif event.node in self._looked_at:
            self.fit[event.node] = event

    def used(self, spare: str) -> None:
        """What was seen there has been made use of."""
        self._looked_at.pop(spare, None)
        self.fit.pop(spare, None)

    def ask_idle(self, idle: Collection[str], most: int, now: float) -> list[str]:
        """Those that were asked the longest ago are asked now."""
        found = sorted(idle, key=lambda node: self._asked.get(node, 0.0))[:most]
        self._asked.update(dict.fromkeys(found, now))
        return found

    def idle_lives(self, node: str) -> None:
        self._absent.pop(node, None)

    def idle_absent(self, node: str) -> int:
        """Gives how often in a row."""
        self._absent[node] = self._absent.get(node, 0) + 1
        return self._absent[node]

    def give_back(self, nodes: Iterable[str]) -> None:
        self.given_back.update(nodes)


class Loans:
    """Donor jobs, by their numbers."""

    def __init__(self) -> None:
        self._ours: set[int] = set()  # that are ours to end
        self._all: set[int] = set()  # and those whose end was decided, which may not have been carried out

    def begin(self, job: int) -> None:
        self._ours.add(job)
        self._all.add(job)

    def too_late(self, job: int) -> list[Decision]:
        """It is not used, and its end is decided. job: 0 for none."""
        if not job:
            return []
        self._all.add(job)
        return [EndLoans((job,))]

    def end(self, jobs: Iterable[int]) -> list[Decision]:
        over = tuple(sorted(set(jobs)))
        self._ours.difference_update(over)
        return [EndLoans(over)] if over else []

    def end_all(self) -> list[Decision]:
        return self.end(self._ours)

    def all_again(self) -> None:
        """An end that was decided with what could not be written has not come; twice does no harm."""
        self._ours = set(self._all)

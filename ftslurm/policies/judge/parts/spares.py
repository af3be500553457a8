"""Nodes without ranks: spares, checked before they are needed, idle nodes, those of donor jobs, and those given back."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ftslurm.model import events as ev
from ftslurm.model.decisions import CheckNode, Decision, EndLoans

# How long the check of a spare counts, seconds.
LOOK_COUNTS_S = 30.0


class Spares:
    """given_back: nodes of the allocation. fit: spare -> what the check found. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.given_back: set[str] = set()
        self.fit: dict[str, ev.NodeChecked] = {}
        self._looked_at: dict[str, float] = {}  # spare -> when a check was requested
        self._absent: dict[str, int] = {}  # idle node -> how often its slurmd did not answer, in a row
        self._asked: dict[str, float] = {}  # idle node -> when it was last probed

    def look_at(self, spare: str, check_s: float, now: float) -> list[Decision]:
        """Check the spare, unless a result is pending or recent. check_s: time limit of the check."""
        since = self._looked_at.get(spare)
        if since is not None and (spare not in self.fit or now - since <= LOOK_COUNTS_S):
            return []
        self._looked_at[spare] = now
        self.fit.pop(spare, None)
        return [CheckNode(spare, 0, check_s)]

    def seen(self, event: ev.NodeChecked) -> None:
        """Keep the result of a check. One without an answer is dropped: the node is checked again when it is needed."""
        if event.good is None:
            self._looked_at.pop(event.node, None)
        elif event.node in self._looked_at:
            self.fit[event.node] = event

    def used(self, spare: str) -> None:
        """The result of the check has been used."""
        self._looked_at.pop(spare, None)
        self.fit.pop(spare, None)

    def ask_idle(self, idle: Collection[str], most: int, now: float) -> list[str]:
        """The nodes to probe now: those that were probed the longest ago, at most `most`."""
        found = sorted(idle, key=lambda node: self._asked.get(node, 0.0))[:most]
        self._asked.update(dict.fromkeys(found, now))
        return found

    def idle_lives(self, node: str) -> None:
        self._absent.pop(node, None)

    def idle_absent(self, node: str) -> int:
        """The node did not answer. Gives how often in a row."""
        self._absent[node] = self._absent.get(node, 0) + 1
        return self._absent[node]

    def give_back(self, nodes: Iterable[str]) -> None:
        self.given_back.update(nodes)


class Loans:
    """The donor jobs, by their numbers."""

    def __init__(self) -> None:
        self._ours: set[int] = set()  # jobs that we must end
        self._all: set[int] = set()  # these and the jobs whose end was decided, but perhaps not carried out

    def begin(self, job: int) -> None:
        self._ours.add(job)
        self._all.add(job)

    def too_late(self, job: int) -> list[Decision]:
        """The node of this donor job is not used: decide to end the job. job: 0 for none."""
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
        """End them all again: an end whose record could not be written was not carried out; ending twice does no harm."""
        self._ours = set(self._all)

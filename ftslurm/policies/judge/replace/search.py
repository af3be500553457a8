"""The search for other nodes: for each slot of a bad node a spare, otherwise a node that a donor job lends; each is checked
before use. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import BorrowNode, CheckNode, Decision, EndLoans, Remember, Say
from ftslurm.model.events import Now
from ftslurm.model.nodes import Near, Topology
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass
from ftslurm.policies.node.health import NodeHealth, short_of, wanted

# How long the check of a spare counts, seconds.
LOOK_COUNTS_S = 30.0


# --- the spares of the allocation


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


# --- the search


@dataclass(frozen=True, slots=True)
class Around:
    """What a search needs to know about the rest of the job at one moment."""

    now: Now
    spares: tuple[str, ...]  # spares against which nothing is known
    used: frozenset[str]  # nodes that a donor job must not get: the job's own, and excluded ones
    devices: Mapping[str, Mapping[str, int]]  # node -> kind -> number of devices that its agent has seen
    no_donor: str  # why no node can be borrowed
    step: frozenset[str] = frozenset()  # the nodes of the step
    topology: Topology = Topology()  # empty: not known, or there is none


class ReplacementSearch:
    """One search; it decides what is asked next, and the judge records what it returns. It fails as soon as one slot has no
    candidate left.

    decision: id of the decision that is being carried out, empty before the first launch. out: slot -> the node that leaves it.
    dead: those of them that can no longer run anything. found: slot -> node that fills it. lent: node -> donor job. failed: why
    no node was found. unsure: the reason may be missing answers, as when slurmctld is away.
    """

    def __init__(
        self, decision: str, out: Mapping[int, str], until: float, dead: frozenset[str], found: Mapping[int, str],
        settings: Settings, spares: Spares, loans: Loans,
    ) -> None:  # fmt: skip
        self.decision, self.out, self.until, self.dead = decision, dict(out), until, dead
        self.found = dict(found)
        self.lent: dict[str, int] = {}
        self.failed = ""
        self.unsure = False
        self._checking: dict[str, int] = {}  # node -> slot, being checked
        self._borrowing: set[int] = set()  # slots for which a donor job waits in the queue
        self._donors: dict[int, ev.DonorSubmitted] = {}  # slot -> the donor job that was submitted for it
        self._tried: set[str] = set()  # unsuitable nodes
        self._settings, self._spares, self._loans = settings, spares, loans

    @property
    def done(self) -> bool:
        return self.found.keys() == self.out.keys()

    @property
    def over(self) -> bool:
        return bool(self.failed) or self.done

    def searches_at(self, node: str) -> bool:
        """Is the node being checked for this search?"""
        return node in self._checking

    def borrows_for(self, slot: int) -> bool:
        """Does the slot wait for a node of a donor job?"""
        return slot in self._borrowing and not self.failed

    def fill(self, around: Around) -> list[Decision]:
        """Ensure that something is under way for every slot."""
        asked: list[Decision] = []
        for slot in self._open():
            others = around.step - {*self.out.values()} | {*self.found.values(), *self._checking}
            spare = self._next_of(around.topology.nearest(around.spares, self.out[slot], others))
            if spare is not None:
                self._checking[spare] = slot
                asked += self._spares.look_at(spare, self._settings.nodes.check_timeout_s, around.now.mono)
            elif reason := self._no_loan(around):
                self.failed = reason
                return asked
            else:
                self._borrowing.add(slot)
                not_again = tuple(sorted(around.used | self._tried | self.lent.keys()))
                near = Near(around.topology.around(self.out[slot]), others if around.topology.strict else frozenset())
                asked.append(BorrowNode(slot, not_again, self.until - around.now.mono, near))
        for known in [self._spares.fit[node] for node in self._checking if node in self._spares.fit]:
            if self.failed:
                break
            asked += self.checked(known, around)
        return asked

    def checked(self, event: ev.NodeChecked, around: Around) -> list[Decision]:
        """A node was checked for this search: take it, or try another one."""
        slot = self._checking.pop(event.node)
        self._spares.used(event.node)
        if self.failed:
            return []
        event = _with_as_many_devices(event, wanted(around.devices, self.out[slot]))
        if event.good:
            self.found[slot] = event.node
            return []
        self._tried.add(event.node)
        self.unsure |= event.good is None
        refused: list[Decision] = [Say(f"{event.node} cannot replace {self.out[slot]}: {event.why}")]
        if event.good is False:
            refused.insert(0, Remember(rec.NodeRefused(around.now.unix, event.node, event.why)))
        if event.node in self.lent:
            refused += self._loans.end([self.lent.pop(event.node)])
        return [*refused, *self.fill(around)]

    def borrowed(self, event: ev.NodeBorrowed, run: str, now: Now) -> list[Decision]:
        """A donor job has a node for us, or will have none."""
        self._borrowing.discard(event.slot)
        if not event.node:
            self.failed, self.unsure = f"no node could be borrowed: {event.why}", self.unsure or event.away
            return self._loans.too_late(event.job)
        self._loans.begin(event.job)
        self.lent[event.node] = event.job
        self._checking[event.node] = event.slot
        lent = Remember(rec.NodeLent(now.unix, run, event.node, event.job), vital=True)
        return [lent, CheckNode(event.node, event.job, self._settings.nodes.check_timeout_s)]

    def submitted(self, event: ev.DonorSubmitted) -> None:
        self._donors[event.slot] = event

    @property
    def waits_for(self) -> str:
        """The donor jobs that the search waits for, in words; empty if there is none."""
        donors = [donor for slot, donor in sorted(self._donors.items()) if slot in self._borrowing]
        jobs = ", ".join(str(donor.job) for donor in donors)
        if donors and all(donor.boots for donor in donors):
            return f"{', '.join(donor.boots for donor in donors)} of donor job {jobs} to boot"
        return f"a node of donor job {jobs}" if donors else ""

    def overdue(self) -> None:
        if not self.failed:
            self.failed, self.unsure = f"no node was ready within {self._settings.nodes.replacement_wait_s:g} s", True

    def drop(self) -> list[Decision]:
        """End the search; nobody uses what it has found."""
        return self._loans.end(self.lent.values())

    @property
    def missing(self) -> list[str]:
        return [node for slot, node in self.out.items() if slot not in self.found]

    def in_words(self) -> str:
        def whose(node: str) -> str:
            return f"lent by job {self.lent[node]}" if node in self.lent else "a spare"

        return ", ".join(f"{self.out[slot]} by {node} ({whose(node)})" for slot, node in sorted(self.found.items()))

    def _open(self) -> tuple[int, ...]:
        """Slots for which nothing is under way."""
        busy = {*self.found, *self._checking.values(), *self._borrowing}
        return tuple(slot for slot in sorted(self.out) if slot not in busy)

    def _next_of(self, spares: Iterable[str]) -> str | None:
        """A spare that has not been tried, is not being checked and is not taken."""
        taken = {*self._tried, *self._checking, *self.found.values()}
        return next((node for node in spares if node not in taken), None)

    def _no_loan(self, around: Around) -> str:
        if not self._settings.nodes.donor:
            return "no spare node is left (nodes.donor is off)"
        if around.no_donor:
            return f"no spare node is left, and none can be borrowed: {around.no_donor}"
        return (
            ""
            if self.until > around.now.mono
            else f"no node became available within {self._settings.nodes.replacement_wait_s:g} s"
        )


def _with_as_many_devices(event: ev.NodeChecked, least: Mapping[str, int]) -> ev.NodeChecked:
    """The result of the check, compared with the devices of the node that it replaces."""
    if not event.good or event.there is None:
        return event
    short = short_of(least, event.there)
    good = {NodeHealth.GOOD: True, NodeHealth.BAD: False, NodeHealth.UNKNOWN: None}[short.health]
    return event if good else replace(event, good=good, why=short.reason)

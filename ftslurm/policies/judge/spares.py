"""Which nodes could take the place of a bad one, and which nodes each rank runs on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import BorrowNode, CheckNode, Decision, EndLoans, Remember, Say
from ftslurm.model.events import Now
from ftslurm.model.job import Layout, Task
from ftslurm.model.nodes import Near, Topology
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import Value, field, replace
from ftslurm.policies.judge.phases import RunFacts
from ftslurm.policies.node import NodeHealth, short_of, wanted

# --- The search for other nodes: for each slot of a bad node a spare, otherwise a node that a donor job lends; each is checked
# before use. Times are monotonic seconds

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


class Around(Value):
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


# --- Where ranks run: the nodes of the next step, of the last step, and of the first step of an ftrun


class Places:
    """layout: of the next step, None: as srun places it. last: where the ranks were when they last started."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.last: Layout | None = None
        self.search: ReplacementSearch | None = None  # for other nodes, while it goes on
        self._meant: tuple[tuple[str, str], ...] = ()  # by slot: name and address of the node that the script may have named

    def take_search(self) -> ReplacementSearch | None:
        """Take the search away: from now on nobody uses what it found."""
        search, self.search = self.search, None
        return search

    def choose(self, layout: Layout | None) -> None:
        self.layout = layout

    def start(self, tasks: Mapping[int, Task], granted: Sequence[str]) -> None:
        """The ranks start where their tasks have connected. granted: the job's nodes as Slurm gave them."""
        self.last = self.layout or _as_placed(tasks)
        if not self._meant:
            meant = self.last.nodes if self.layout is None else granted[: len(self.last.nodes)]
            there = {task.node: task.address for task in tasks.values()}
            self._meant = tuple((node, there.get(node, "")) for node in meant)

    def moved(self, tasks: Mapping[int, Task]) -> dict[str, str]:
        """Name and address of a node that the step has no more -> those of the node that has its slot."""
        here = {task.slot: (task.node, task.address) for task in tasks.values()}
        present = {"", *(word for words in here.values() for word in words)}
        pairs = (pair for slot, meant in enumerate(self._meant) for pair in zip(meant, here.get(slot, ()), strict=False))
        return {old: new for old, new in pairs if new and old not in present}

    @property
    def known(self) -> Layout | None:
        return self.layout or self.last

    def planned(self, facts: RunFacts) -> tuple[str, ...]:
        """The nodes of the step; empty if srun chooses them."""
        if (layout := self.known) is not None:
            return layout.nodes
        return facts.nodes if facts.width == len(facts.nodes) else ()

    @property
    def lent(self) -> Mapping[str, int]:
        """node of the step -> the donor job that lends it."""
        return self.layout.lent if self.layout is not None else {}

    def nodes(self, started: bool, facts: RunFacts) -> tuple[str, ...] | None:
        """The nodes of the step: as we have chosen them, or all if it has never started; None: as its tasks say. started: have
        ranks of this attempt been started?
        """
        placed_by_srun = started and self.layout is None and self.last is not None
        return None if placed_by_srun else self.planned(facts) or None


def _as_placed(tasks: Mapping[int, Task]) -> Layout:
    nodes = {task.slot: task.node for task in tasks.values()}
    return Layout(tuple(nodes[slot] for slot in sorted(nodes)), tuple(tasks[rank].slot for rank in sorted(tasks)))


class FirstPlaces(Value):
    """The nodes of the first step of an ftrun."""

    layout: Layout | None
    news: Mapping[int, str] = field(default_factory=dict)  # slot -> node, if an earlier ftrun had another there
    out: Mapping[int, str] = field(default_factory=dict)  # slot -> node that a search must replace before the start
    here: Mapping[int, str] = field(default_factory=dict)  # of those slots, slot -> node that fills it already
    too_few: bool = False  # the job has lost nodes, and the remaining ones are not enough


class FirstChoice(Value):
    """Chooses the nodes of the first step: srun places it on all; with spares, or if nodes were excluded, on the healthy ones."""

    facts: RunFacts
    settings: Settings
    before: tuple[str, ...]  # slot -> its node in an earlier ftrun of this scheduling
    let_in: frozenset[str]  # nodes that the last requeue did not exclude though the job excludes them
    kept_out: tuple[str, ...]  # nodes that the job does not use again

    def made(self, layout: Layout | None) -> FirstPlaces:
        """The choice. layout: the present one."""
        f = self.facts
        kept_out = self._not_to_use()
        all_there = len(f.nodes) >= f.width and not kept_out & set(f.nodes)
        if not f.width or (all_there and not self.settings.nodes.spares):
            return FirstPlaces(layout)
        well = [node for node in f.nodes if node not in kept_out]
        if len(well) >= f.width:
            return self._of_well(well)
        lost = [*f.missing, *sorted(kept_out - {*f.nodes, *f.missing})]  # the job no longer has them
        bad = [*(node for node in f.nodes if node in kept_out), *lost]
        may_fill = Capability.REPLACE in f.can and self.settings.node_replacement.enabled
        if not may_fill or len(well) + len(bad) < f.width:
            fewer = self.fewer()
            return FirstPlaces(fewer, too_few=fewer is None and bool(f.missing) and len(f.nodes) < f.width)
        return self._to_be_filled(well, bad, lost)

    def fewer(self) -> Layout | None:
        """The healthy nodes, if the job accepts so few."""
        well = tuple(node for node in self.facts.nodes if node not in set(self.kept_out))
        st = self.settings
        if Capability.REPLACE not in self.facts.can or not st.shrink.enabled or not 0 < st.nodes.min <= len(well):
            return None
        return Layout(self.before, chosen=True) if sorted(self.before) == sorted(well) else Layout(well)  # its slots stay

    def _not_to_use(self) -> set[str]:
        """Excluded nodes, except those that the last requeue let in, if neither the others nor fewer are enough."""
        f, kept_out = self.facts, set(self.kept_out)
        lacking = f.width - sum(node not in kept_out for node in f.nodes)
        again = [node for node in f.nodes if node in kept_out & self.let_in]
        return kept_out if lacking > len(again) or self.fewer() else kept_out - {*again[: max(0, lacking)]}

    def _of_well(self, well: Sequence[str]) -> FirstPlaces:
        """Suspect nodes become spares. A node that an earlier ftrun of this scheduling had in a slot stays there."""
        f = self.facts
        best = sorted(well, key=lambda node: node in f.remembered)  # a stable sort: otherwise in Slurm's order
        if len(self.before) != f.width or Capability.REPLACE not in f.can:
            return FirstPlaces(Layout(tuple(node for node in f.nodes if node in best[: f.width])))
        there = {slot: node for slot, node in enumerate(self.before) if node in well}
        others = (node for node in best if node not in self.before)
        news = dict(zip((slot for slot in range(f.width) if slot not in there), others, strict=False))
        return FirstPlaces(Layout(self.before, chosen=True).filled(news, {}), news)

    def _to_be_filled(self, well: Sequence[str], bad: Sequence[str], lost: Sequence[str]) -> FirstPlaces:
        """Too few nodes are healthy: search for others."""
        f = self.facts
        before = self.before
        if len(before) == f.width:
            found = self._there_again(well, bad)
        else:
            given = dict.fromkeys((*(f.granted or f.nodes), *f.nodes, *lost))
            before, found = tuple(node for node in given if node in {*well, *bad[: f.width - len(well)]}), {}
        here = {slot: node for slot, node in found.items() if node in well}
        out = {slot: node if slot in here else found.get(slot, node) for slot, node in enumerate(before) if node not in well}
        return FirstPlaces(Layout(before).filled(found, {}), out=out, here=here)

    def _there_again(self, well: Sequence[str], bad: Sequence[str]) -> dict[int, str]:
        """slot -> its new node, if its last node was lent or is bad: a free node, else the missing one."""
        before = self.before
        own = [node for node in before if node in bad]
        free = [node for node in well if node not in before]
        for_others = [node for node in bad if node not in before][: max(0, len(before) - len(well) - len(own))]
        open_ = sorted((slot for slot, node in enumerate(before) if node not in well), key=lambda slot: before[slot] in bad)
        return dict(zip(open_, (*free, *for_others), strict=False))

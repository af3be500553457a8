"""Which nodes could take the place of a bad one, and which nodes each rank runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftslurm.model import events as ev
from ftslurm.model.decisions import CheckNode, Decision, EndLoans
from ftslurm.model.job import Layout, Task
from ftslurm.model.values import Value, field
from ftslurm.policies.judge.phases import RunFacts

# --- The search for other nodes: for each slot of a bad node a spare, otherwise a node that a donor job lends; each is checked
# before use. Times are monotonic seconds

# How long the check of a spare counts, seconds.
LOOK_COUNTS_S = 30.0


# --- the spares of the allocation


class Absent(Counter[str]):
    """Node -> how often its slurmd did not answer, in a row."""

    def again(self, node: str) -> int:
        self[node] += 1
        return self[node]


class Spares:
    """given_back: nodes of the allocation. fit: spare -> what the check found. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.given_back: set[str] = set()
        self.fit: dict[str, ev.NodeChecked] = {}
        self._looked_at: dict[str, float] = {}  # spare -> when a check was requested
        self.unreachable = Absent()  # idle nodes
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


class ReplacementSearch(Value, frozen=False):
    """One search: what is under way for the slots, what is found. It fails as soon as one slot has no candidate left."""

    decision: str  # id of the decision that is being carried out, empty before the first launch
    out: Mapping[int, str]  # slot -> the node that leaves it
    until: float  # monotonic seconds
    dead: frozenset[str]  # those of them that can no longer run anything
    found: dict[int, str]  # slot -> node that fills it
    lent: dict[str, int] = field(default_factory=dict)  # node -> donor job
    failed: str = ""  # why no node was found
    unsure: bool = False  # the reason may be missing answers, as when slurmctld is away
    checking: dict[str, int] = field(default_factory=dict)  # node -> slot, being checked
    borrowing: set[int] = field(default_factory=set)  # slots for which a donor job waits in the queue
    donors: dict[int, ev.DonorSubmitted] = field(default_factory=dict)  # slot -> the donor job that was submitted for it
    tried: set[str] = field(default_factory=set)  # unsuitable nodes

    @property
    def done(self) -> bool:
        return self.found.keys() == self.out.keys()

    def borrows_for(self, slot: int) -> bool:
        """Does the slot wait for a node of a donor job?"""
        return slot in self.borrowing and not self.failed

    @property
    def waits_for(self) -> str:
        """The donor jobs that the search waits for, in words; empty if there is none."""
        donors = [donor for slot, donor in sorted(self.donors.items()) if slot in self.borrowing]
        jobs = ", ".join(str(donor.job) for donor in donors)
        if donors and all(donor.boots for donor in donors):
            return f"{', '.join(donor.boots for donor in donors)} of donor job {jobs} to boot"
        return f"a node of donor job {jobs}" if donors else ""

    @property
    def missing(self) -> list[str]:
        return [node for slot, node in self.out.items() if slot not in self.found]

    def in_words(self) -> str:
        def whose(node: str) -> str:
            return f"lent by job {self.lent[node]}" if node in self.lent else "a spare"

        return ", ".join(f"{self.out[slot]} by {node} ({whose(node)})" for slot, node in sorted(self.found.items()))

    @property
    def open(self) -> tuple[int, ...]:
        """Slots for which nothing is under way."""
        busy = {*self.found, *self.checking.values(), *self.borrowing}
        return tuple(slot for slot in sorted(self.out) if slot not in busy)

    def next_of(self, spares: Iterable[str]) -> str | None:
        """A spare that has not been tried, is not being checked and is not taken."""
        taken = {*self.tried, *self.checking, *self.found.values()}
        return next((node for node in spares if node not in taken), None)


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
    out: Mapping[int, str] = field(default_factory=dict)  # slot -> node that another must replace before the start
    here: Mapping[int, str] = field(default_factory=dict)  # of those slots, slot -> node that fills it already
    too_few: bool = False  # the job has lost nodes, and the remaining ones are not enough

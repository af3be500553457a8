"""Where ranks run: the nodes of the next step, of the last step, and of the first step of an ftrun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ftslurm.model.job import Layout, Task
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass
from ftslurm.policies.judge.phases import RunFacts
from ftslurm.policies.judge.replace.search import ReplacementSearch


class Places:
    """layout: of the next step, None: as srun places it. last: where the ranks were when they last started."""

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.last: Layout | None = None
        self.search: ReplacementSearch | None = None  # for other nodes, while it goes on
        self._meant: tuple[tuple[str, str], ...] = ()  # by slot: name and address of the node that the script may have named

    def search_with(self, search: ReplacementSearch) -> None:
        self.search = search

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
        if self.layout is not None:
            return self.layout.nodes
        if self.last is not None:
            return None if started else self.last.nodes
        return facts.nodes if facts.width == len(facts.nodes) else None


def _as_placed(tasks: Mapping[int, Task]) -> Layout:
    nodes = {task.slot: task.node for task in tasks.values()}
    return Layout(tuple(nodes[slot] for slot in sorted(nodes)), tuple(tasks[rank].slot for rank in sorted(tasks)))


@dataclass(frozen=True, slots=True)
class FirstPlaces:
    """The nodes of the first step of an ftrun."""

    layout: Layout | None
    news: Mapping[int, str] = field(default_factory=dict)  # slot -> node, if an earlier ftrun had another there
    out: Mapping[int, str] = field(default_factory=dict)  # slot -> node that a search must replace before the start
    here: Mapping[int, str] = field(default_factory=dict)  # of those slots, slot -> node that fills it already
    too_few: bool = False  # the job has lost nodes, and the remaining ones are not enough


@dataclass(frozen=True, slots=True)
class FirstChoice:
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

"""Random lives of a job: whatever its ranks print, words stay within their budget, and no memory makes a remedy dearer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.folds.history import fold
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, RankEnd, Retriable, Suspect, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from tests.stories.replay import RUNNING, Job, fault, of_kind, requeueing
from tests.stories.test_blame import book

CLUSTER = tuple(f"n{number}" for number in range(1, 10))
BROKEN = "80E18402"


@dataclass(frozen=True)
class Words:
    """Ranks fail with words that accuse their nodes. at: the ranks, by their place."""

    signature: str
    at: tuple[int, ...]
    blame: Blame
    error_class: ErrorClass
    retriable: Retriable
    heals: bool
    setup: bool


@dataclass(frozen=True)
class Unknown:
    rank: int


@dataclass(frozen=True)
class Device:
    """On the node at that place. isolate: it does not heal."""

    node: int
    isolate: bool


@dataclass(frozen=True)
class Hang:
    """Ranks print nothing any more."""


@dataclass(frozen=True)
class Progress:
    lives_s: float


Act = Words | Unknown | Device | Hang | Progress
ACTS: st.SearchStrategy[Act] = st.one_of(
    st.builds(
        Words, st.sampled_from(["a", "b"]), st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True).map(tuple),
        st.sampled_from([Blame.YES, Blame.SUSPECT]), st.sampled_from(list(ErrorClass)), st.sampled_from(list(Retriable)),
        st.booleans(), st.booleans(),
    ),
    st.builds(Unknown, st.integers(0, 7)), st.builds(Device, st.integers(0, 3), st.booleans()), st.just(Hang()),
    st.builds(Progress, st.sampled_from([0.0, 10.0, 5000.0])),
)  # fmt: skip


@dataclass
class Life:
    """One job over its schedulings. proven: nodes that a fact spoke against. healing: how often a fault that heals was seen
    at a place, of which `dearer` were not answered in place though they came too seldom for more."""

    policy: Settings
    remembered: frozenset[str]
    width: int
    per_node: int
    words: Verdict | None = None
    proven: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)  # of these, nodes with a fault that no restart heals
    told: set[str] = field(default_factory=set)
    healing: dict[str, int] = field(default_factory=dict)
    dearer: list[str] = field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        known = dict.fromkeys(self.remembered, "excluded after a fault by jobs 3, 4")
        self.job = Job(self.policy, nodes=CLUSTER[: self.width], per_node=self.per_node, diagnose=self.diagnose, remembered=known)
        self._begin()

    def diagnose(self, ends: tuple[RankEnd, ...], faults: tuple[Fault, ...], bad: Mapping[str, str]) -> Verdict:
        if faults or bad or self.words is None:
            return diagnose(ends, Facts(faults, bad), book())
        return self.words

    def _begin(self) -> None:
        kept = frozenset(fold(self.job.ledger).kept_out(self.job.now.unix, 0.0))
        self.job.slurm = replace(RUNNING, node_count=self.width, usable=frozenset(CLUSTER), excluded=kept)
        self.job.begin()

    @property
    def over(self) -> bool:
        return self.job.status is not None and not self.job.did(do.Requeue)

    def live(self, act: Act) -> None:
        decided, was_over = len(of_kind(self.job.ledger, rec.Decided)), self.over
        self._act(act)
        self.told |= {node for told in self.job.did(do.TellOthers) for node in told.nodes}
        new = of_kind(self.job.ledger, rec.Decided)[decided:]
        if isinstance(act, Device) and not act.isolate and not was_over:
            node = self.job.nodes[act.node % self.width]
            # Each sighting counts, also one that was laid to the program, or that nothing was done about.
            self.healing[node] = self.healing.get(node, 0) + 1
            if (
                new
                and new[0].cause == "device"
                and node not in self.broken
                and self.healing[node] < self.policy.in_place_restart.same_code_limit
                and new[0].rung != "in-place-restart"
            ):
                self.dearer.append(f"{new[0].rung}: {new[0].passed}")
        if self.job.did(do.Requeue):
            free = [node for node in CLUSTER if node not in self.job.excluded]
            self.job = self.job.again(nodes=(free + list(CLUSTER))[: self.width])
            self._begin()

    def _act(self, act: Act) -> None:
        job, ranks = self.job, self.width * self.per_node
        self.words = None
        match act:
            case Words():
                self.words = self._verdict(act)
                job.exits(act.at[0] % ranks, 1)
            case Unknown(rank):
                job.exits(rank % ranks, 1)
            case Device(place, isolate):
                node = job.nodes[place % self.width]
                code = BROKEN if isolate else "80E01801"
                self.proven.add(node)  # as its own third time is one
                self.broken |= {node} if isolate else set()
                job.shows(fault(node, code, graded=FaultClass.ISOLATE if isolate else FaultClass.SELF_HEALING))
            case Hang():
                job.tell(*(ev.RankSilent(rank, 1800.0) for rank in range(ranks)))
            case Progress(lives_s):
                self.step += 10
                job.wait(lives_s)
                job.tell(ev.Progressed(job.nodes[0], self.step))

    def _verdict(self, act: Words) -> Verdict:
        shown = {}
        for place in act.at:
            rank = place % (self.width * self.per_node)
            shown[rank] = self.job.nodes[rank // self.per_node]
        suspects = {
            node: Suspect(node, rank, act.blame, f"rank {rank} on {node}: {act.signature}") for rank, node in shown.items()
        }
        return Verdict(
            act.error_class, act.retriable, Confidence.STRONG, act.signature, f"{act.signature} was seen",
            tuple(suspects.values()), heals=act.heals, shown=shown, setup=act.setup,
        )  # fmt: skip

    @property
    def left_on_words(self) -> set[str]:
        """Ever, as the decisions say, and no fact: also those that were reinstated later."""
        isolated = {node for decided in of_kind(self.job.ledger, rec.Decided) for node in decided.isolate}
        return isolated - self.proven - self.remembered


LIVES: dict[str, st.SearchStrategy[Any]] = {
    "acts": st.lists(ACTS, min_size=3, max_size=25),
    "budget": st.integers(0, 2),
    "remembered": st.frozensets(st.sampled_from(CLUSTER[:4]), max_size=2),
    "shape": st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 2), (4, 2)]),
}


def lived(acts: Sequence[Act], budget: int, remembered: frozenset[str], shape: tuple[int, int], **more: Any) -> Life:
    policy = requeueing(blame__on_words=budget, hang__log_silence=True, hang_restart__enabled=True, **more)
    life = Life(policy, remembered, *shape)
    for act in acts:
        if life.over:
            break
        life.live(act)
    return life


BY_A = Words("a", (0,), Blame.YES, ErrorClass.HARDWARE, Retriable.YES, heals=False, setup=False)


@settings(max_examples=60, deadline=None)
@given(**LIVES)
# n1 is left for words that heal, which name nobody; then for others, which name it beside what is remembered: n2 is the first.
@example(acts=[replace(BY_A, heals=True), BY_A, BY_A], budget=1, remembered=frozenset({"n1"}), shape=(2, 1))
def test_words_never_cost_more_nodes_than_they_may_and_nobody_hears_of_them(
    acts: Sequence[Act], budget: int, remembered: frozenset[str], shape: tuple[int, int]
) -> None:
    """Healing is never answered by more because of a memory, either."""
    life = lived(acts, budget, remembered, shape, max_restarts=128, unconditional_requeue__in_a_row=128)
    assert len(life.left_on_words) <= budget
    history = fold(life.job.ledger)
    on_words = {node for decided in of_kind(life.job.ledger, rec.Decided) for node in decided.words}
    assert len(on_words - life.proven - remembered) <= budget, "words that name a node of an earlier fault are not words alone"
    assert len(history.exclusions.left_on_words) <= budget
    assert life.left_on_words <= set(history.exclusions.left_on_words) | life.proven
    assert life.told <= life.proven, "facts alone are remembered"
    assert not life.dearer


@settings(max_examples=40, deadline=None)
@given(act=st.builds(
    Words, st.just("a"), st.just((1,)), st.sampled_from([Blame.YES, Blame.SUSPECT]), st.sampled_from(list(ErrorClass)),
    st.sampled_from(list(Retriable)), st.booleans(), st.booleans(),
), other=st.lists(st.sampled_from([Unknown(0), Hang()]), max_size=2), shape=LIVES["shape"])  # fmt: skip
def test_a_bug_without_progress_or_facts_comes_to_an_end_and_leaves_one_node_out_at_the_most(
    act: Words, other: list[Act], shape: tuple[int, int]
) -> None:
    """The same error of the same rank, again and again, with other failures between: at most a dozen tries, whatever it says."""
    life = lived([act, *other] * 12, 1, frozenset(), shape, max_restarts=128)
    assert life.over
    assert len(fold(life.job.ledger).exclusions.isolated) <= 1
    tries = len(of_kind(life.job.ledger, rec.Decided))
    assert tries <= 12, [decided.rung for decided in of_kind(life.job.ledger, rec.Decided)]

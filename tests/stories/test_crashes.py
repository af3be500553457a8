"""Stories of crashes that no fact explains, under the default: first in place, then an experiment, then a judgement by contrast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds.history import fold
from ftslurm.model.settings import tree
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Piece
from tests.settings import settings_with
from tests.stories.replay import HOUR_S, RUNNING, Job, fault, of_kind
from tests.stories.test_blame import BOOM, CLUSTER, UNHEARD, judged

IN_PLACE, REPLACE, WITHOUT, PLAIN, FAIL = (
    "in-place-restart", "node-replacement", "isolated-requeue", "unconditional-requeue", "fail",
)  # fmt: skip
NO_SCRATCH = "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/train.bin'\n"
TRACE = f'Traceback (most recent call last):\n  File "/home/u/train.py", line 7, in <module>\n    read()\n{NO_SCRATCH}'


@dataclass
class World:
    """One job, and a cluster that gives it the nodes that it had before, first of all. fails: on these nodes of a step, which
    (index) fails first; -1: none. busy: all other nodes run something else."""

    fails: Callable[[Sequence[str]], int]
    width: int = 1
    text: str = ""
    busy: bool = False
    policy: Settings = field(default_factory=Settings)
    more: dict[str, Any] = field(default_factory=dict)
    tried: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = Job(self.policy, nodes=CLUSTER[: self.width], per_node=1, diagnose=judged, **self.more)
        self.start()

    def start(self) -> None:
        kept = fold(self.job.ledger).exclusions.ours if self.job.facts.schedule else frozenset()
        idle = frozenset() if self.busy else frozenset(CLUSTER) - {*self.job.nodes}
        self.job.slurm = replace(
            RUNNING, node_count=self.width, usable=frozenset(CLUSTER) - kept, excluded=frozenset(kept), idle=idle
        )
        self.job.begin()

    def attempt(self) -> str:
        """One attempt to its end; the rung that follows, empty where all ended well."""
        job = self.job
        nodes = [task.node for task in job.tasks]
        self.tried.append(tuple(nodes))
        job.wait(1.0)
        rank = self.fails(nodes)
        if rank < 0:
            job.all_exit(0)
            return ""
        pieces = (Piece(job.now.unix - 0.1, "err", self.text),) if self.text else ()
        job.tell(replace(job.exit_of(rank, 1), output=pieces))
        if job.did(do.Requeue):
            self.job = self.next()
            self.start()
        return of_kind(self.job.ledger, rec.Decided)[-1].rung

    def next(self) -> Job:
        out = {*self.job.excluded}
        nodes = [node for node in (*self.job.nodes, *CLUSTER) if node not in out]
        return self.job.again(nodes=tuple(dict.fromkeys(nodes))[: self.width])

    def life(self, most: int = 12) -> list[str]:
        """The rungs, until the job is over."""
        found: list[str] = []
        while self.job.status is None and len(found) < most:
            found.append(self.attempt())
        return [rung for rung in found if rung]

    @property
    def excluded(self) -> dict[str, str]:
        return {node: why for node, (why, _) in fold(self.job.ledger).exclusions.isolated.items()}


def on(*bad: str) -> Callable[[Sequence[str]], int]:
    return lambda nodes: next((place for place, node in enumerate(nodes) if node in bad), -1)


def everywhere(nodes: Sequence[str]) -> int:
    return 0


# --- the cases that were seen


@pytest.mark.parametrize("text", ["", BOOM, UNHEARD, TRACE])
def test_a_job_that_fails_on_one_node_alone_ends_well_on_another_one(text: str) -> None:
    """With and without words of its own, those of a scratch that is not mounted among them."""
    world = World(on("n1"), text=text)
    assert world.life() == [IN_PLACE, WITHOUT]
    assert world.tried == [("n1",), ("n1",), ("n2",)] and world.job.status == 0
    assert "failed there twice" in world.excluded["n1"] and "ran elsewhere" in world.excluded["n1"]
    assert "n1 is excluded from this job: failed there twice" in world.job.said


def test_of_two_nodes_the_bad_one_is_found() -> None:
    world = World(on("n2"), width=2)
    assert world.life() == [IN_PLACE, WITHOUT]
    assert world.tried[-1] == ("n1", "n3") and set(world.excluded) == {"n2"}


def test_the_same_on_another_node_is_the_program_s_fault() -> None:
    world = World(everywhere)
    assert world.life() == [IN_PLACE, WITHOUT, FAIL]
    assert world.tried == [("n1",), ("n1",), ("n2",)] and not world.excluded
    assert "exit 1 on n[1-2] alike: the fault is in the program, not in a node" in world.job.said
    assert "n1 may be used again" in world.job.said


def test_an_error_that_another_try_cannot_help_fails_at_once() -> None:
    world = World(everywhere, text='  File "t.py", line 1\n    x = = 1\nSyntaxError: invalid syntax\n')
    assert FAIL in world.life()[:2]


def test_where_no_other_node_is_idle_the_job_does_not_wait_for_one() -> None:
    world = World(on("n1"), busy=True)
    assert world.life() == [IN_PLACE, PLAIN, PLAIN, PLAIN, FAIL]
    assert "in the program, or in n1: no other node was free to try" in world.job.said


def test_the_experiment_is_made_as_soon_as_a_node_is_idle() -> None:
    world = World(on("n1"), busy=True)
    assert [world.attempt() for _ in range(4)] == [IN_PLACE, PLAIN, PLAIN, PLAIN]
    world.busy = False
    world.job.slurm = replace(world.job.slurm, idle=frozenset({"n5"}))
    assert world.attempt() == WITHOUT


def test_the_experiment_lasts_for_one_attempt() -> None:
    """A requeue for another reason takes the node off the list again."""
    world = World(everywhere)
    world.attempt(), world.attempt()
    assert world.job.nodes == ("n2",) and fold(world.job.ledger).kept_out(world.job.now.unix, 0.0) == ()
    world.job.tell(ev.SlurmAnswered("RUNNING"))
    assert fold(world.job.ledger).exclusions.ours == {"n1"}, "Slurm still excludes it until a requeue takes it off"


def test_a_spare_node_is_tried_before_a_requeue() -> None:
    policy = settings_with(node_replacement__enabled=True, node_replacement__budget=2, nodes__spares=1)
    world = World(on("n1"), policy=policy, more={"can": ("ask", "requeue", "replace"), "width": 1})
    world.job = Job(policy, nodes=("n1", "n2"), per_node=1, diagnose=judged, can=("ask", "requeue", "replace"), width=1)
    world.job.tasks = world.job.tasks[:1]
    world.start()
    assert world.life()[:2] == [IN_PLACE, REPLACE]
    assert world.tried[-1] == ("n2",) and set(world.excluded) == {"n1"}


# --- what counts


def test_progress_begins_the_count_again() -> None:
    job = Job(Settings(), diagnose=judged).begin()
    for _ in range(2):
        job.exits(0, 1)
    assert job.rungs[0] == IN_PLACE
    job = Job(Settings(), diagnose=judged).begin()
    job.exits(0, 1)
    job.wait(HOUR_S)
    job.exits(0, 1)
    assert job.rungs == [IN_PLACE, IN_PLACE]


def test_the_total_is_a_bound_whatever_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "CRASH_RESTARTS_IN_ALL", 2)
    job = Job(Settings(), diagnose=judged).begin()
    lives = 60.0
    for _ in range(3):
        job.exits(0, 1)
        lives *= 3
        job.wait(lives)
    assert job.rungs[:2] == [IN_PLACE, IN_PLACE] and job.rungs[2:] != [IN_PLACE]


def test_a_fault_that_healed_is_no_part_of_the_series() -> None:
    """One crash on n1 after it: nothing is held against n1."""
    world = World(on("n1"))
    world.job.shows(fault("n1"))
    world.job.clears("n1")
    assert world.attempt() == IN_PLACE
    assert not fold(world.job.ledger).crashes.left


def test_what_a_person_mends_and_requeues_begins_with_a_fresh_series() -> None:
    world = World(everywhere)
    assert world.life()[-1] == FAIL
    again = Job(
        Settings(), past=world.job.ledger, schedule=world.job.facts.schedule + 1, nodes=("n1",), per_node=1, diagnose=judged,
        now=world.job.now,
    ).begin()  # fmt: skip
    again.exits(0, 1)
    assert again.rungs == [IN_PLACE], "its first passing fault"
    assert fold(world.job.ledger).budgets.spent["max_restarts"] == 1, "budgets of the whole job stay"


@pytest.mark.parametrize(
    "policy", [settings_with(retry__policy="OnFailure"), settings_with(unconditional_requeue__enabled=False)]
)
def test_a_job_whose_policy_does_not_judge_makes_no_experiment(policy: Settings) -> None:
    assert WITHOUT not in World(on("n1"), policy=policy).life()


# --- what a person orders


BY_SCANCEL = ev.StepEnded(ExitStatus(137), frozenset({"7.0"}))


def test_a_step_that_a_person_cancels_ends_for_good() -> None:
    job = Job(Settings(), diagnose=judged).begin()
    job.tell(BY_SCANCEL)
    assert job.status == 137 and not job.did(do.Requeue) and job.rungs == []
    assert job.recorded(rec.Finished)[-1].what == "the step was cancelled"


def test_so_it_does_where_shims_saw_their_ranks_die_before() -> None:
    job = Job(Settings(), diagnose=judged).begin()
    job.silent |= {do.StopRanks, do.EndStep}
    job.exits(0, 0, 9)
    job.tell(BY_SCANCEL)
    assert job.status == 137 and not job.did(do.Requeue)


def test_and_where_srun_says_so_after_the_decision() -> None:
    job = Job(Settings(restart_via="step"), diagnose=judged).begin()
    job.silent |= {do.EndStep, do.KillStep}
    job.tell(*(ev.ShimLost(task.rank, "it was reset") for task in job.tasks))
    job.tell(BY_SCANCEL)
    assert job.status == 137 and not job.did(do.Requeue)


@pytest.mark.parametrize("own", [1, 0])
def test_a_step_that_ends_otherwise_is_started_again(own: int) -> None:
    """A rank failed by itself before; or srun named no step of ours."""
    job = Job(Settings(), diagnose=judged).begin()
    job.silent.add(do.StopRanks)
    if own:
        job.exits(0, own)
    job.tell(replace(BY_SCANCEL, cancelled=frozenset({"7.0" if own else "7.1"})))
    assert job.rungs and job.rungs[-1] != FAIL


# --- whatever happens


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 3), bad=st.sets(st.sampled_from(CLUSTER[:5]), max_size=2), program=st.booleans(),
    text=st.sampled_from(["", BOOM, UNHEARD, TRACE]), busy=st.lists(st.booleans(), min_size=14, max_size=14),
    passing=st.lists(st.integers(-1, 2), min_size=14, max_size=14),
)  # fmt: skip
def test_no_job_fails_while_an_idle_node_was_never_tried_and_no_experiment_waits(
    width: int, bad: set[str], program: bool, text: str, busy: list[bool], passing: list[int]
) -> None:
    """passing: in each attempt, a rank that fails for no reason."""

    def fails(nodes: Sequence[str]) -> int:
        if program:
            return 0
        hit = on(*bad)(nodes)
        return hit if hit >= 0 else min(passing[len(world.tried) % 14], len(nodes) - 1)

    def noted(nodes: Sequence[str]) -> int:
        rank = fails(nodes)
        failed.extend([nodes[rank]] if rank >= 0 else [])
        return rank

    failed: list[str] = []
    world = World(noted, width=width, text=text, busy=busy[0])
    for turn in range(1, 14):
        if world.job.status is not None:
            break
        idle = world.job.slurm.idle
        world.busy = busy[turn]
        last = world.job
        rung = world.attempt()
        decided = of_kind(world.job.ledger, rec.Decided)
        if rung == WITHOUT and last is not world.job and decided[-1].without:
            assert idle, "an experiment waits for no node"
            assert {*world.job.nodes} <= {*last.nodes, *CLUSTER} - {decided[-1].without}
        if rung == FAIL and idle:
            suspects = {*failed}.intersection(*world.tried)
            left = {decision.without for decision in decided}
            assert len({*failed}) > 1 or suspects <= left, (world.tried, failed, decided[-1].reason)
    assert len(world.excluded) <= 1, "words alone cost one node"

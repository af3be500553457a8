"""The judge's table is whole, and whatever happens in whatever order, its rules hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass, HealResult
from ftslurm.model.events import Event
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds.control import ACTS, ALLOW_RESTARTS, EXCLUDE, HOLD, NO_RESTARTS, REINSTATE, RELEASE, REQUEUE, STOP, UNDO
from ftslurm.model.settings.tree import Settings
from ftslurm.model.timers import Timer
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Retriable, Suspect, Verdict, unknown
from ftslurm.policies.judge.judge import DUE, NEXT, TABLE, Phase
from tests.settings import settings_with
from tests.stories.replay import RUNNING, SILENT, Job, fault


def kinds_of(module: ModuleType, base: type) -> tuple[type, ...]:
    return tuple(kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, base) and kind is not base)


EVENTS = kinds_of(ev, Event)
VERDICTS = (
    unknown("nobody looked"),
    Verdict(ErrorClass.USER_CODE, Retriable.NO, Confidence.STRONG, "py-key", "KeyError", program=True),
    Verdict(
        ErrorClass.HARDWARE,
        Retriable.YES,
        Confidence.STRONG,
        "cuda-ecc",
        "ECC error",
        (Suspect("n2", 1, Blame.YES, "it said so"),),
    ),
)
ONLY_FIRST = "the loop tells it once, first of all"
NOT_UP = "the loop tells Begun first; nothing was launched, asked or written before"
NO_REQUEUE = "only Requeue is answered so, and nothing but that answer leads out of that phase"
VERBS = (STOP, REQUEUE, EXCLUDE, REINSTATE, HOLD, RELEASE, NO_RESTARTS, ALLOW_RESTARTS, UNDO, UNDO)
OVER = "the loop has ended"

# Pairs that cannot happen, and why. What is neither here nor in the table is a hole.
IMPOSSIBLE = {
    **{(Phase.NEW, kind): NOT_UP for kind in EVENTS if kind is not ev.Begun},
    **{(phase, ev.Begun): ONLY_FIRST for phase in Phase if phase is not Phase.NEW},
    **{
        (phase, ev.RequeueEnded): NO_REQUEUE
        for phase in (Phase.LAUNCHING, Phase.RUNNING, Phase.SETTLING, Phase.HEALING, Phase.REPLACING, Phase.ENDING)
    },
    # Not LedgerFailed: the answer that finishes may itself hold the record that cannot be written.
    **{(Phase.FINISHED, kind): OVER for kind in EVENTS if kind not in (ev.LedgerFailed, ev.Begun)},
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_is_answered_or_cannot_happen(phase: Phase, kind: type) -> None:
    answered, impossible = (phase, kind) in TABLE, (phase, kind) in IMPOSSIBLE
    assert answered or impossible, f"{kind.__name__} while {phase.value} can happen and has no answer"
    assert not (answered and impossible), f"{kind.__name__} while {phase.value} is answered, and said to be impossible"


def test_an_event_that_cannot_happen_is_an_error_and_not_passed_over() -> None:
    with pytest.raises(LookupError, match="TimePassed"):
        Job().judge.handle(ev.TimePassed(), Job().now)


def test_the_rows_name_the_phases_that_they_may_lead_to() -> None:
    """`handle` holds every answer to it, here and in the random runs."""
    reached = {Phase.NEW}.union(*NEXT.values())
    assert reached == {*Phase} and not NEXT[Phase.FINISHED]
    assert all(phase not in row.leads_to for (phase, _), row in TABLE.items())
    assert NEXT[Phase.RUNNING] == {Phase.SETTLING, Phase.ENDING}


def test_an_answer_that_leads_where_its_row_does_not_is_an_error() -> None:
    job = Job().begin()
    with pytest.raises(LookupError, match="no way from running to requeueing"):
        job.judge.run.enter(Phase.REQUEUEING)


def test_every_wait_has_an_end() -> None:
    assert set(DUE) == set(Timer) and all(phases for phases, _ in DUE.values())


# --- random runs


class Chaos:
    """A world that answers late, in any order or not at all. `possible` is what may happen next; nothing else is told."""

    def __init__(self, policy: Settings, can: tuple[str, ...], script: list[int]) -> None:
        nodes = tuple(f"n{number}" for number in range(1, 3 + policy.nodes.spares))
        width = (2 - script[-1] % 2 if policy.nodes.spares else 2) if "replace" in can else 0
        self.job = Job(policy, can=can, nodes=nodes, per_node=1, width=width, batch_node="n1")
        self.job.silent = {kind for kind in kinds_of(do, do.Decision) if kind is not do.Remember}
        self._script = iter(script)
        self._donors = 10

    def run(self) -> None:
        job = self.job
        job.tell(ev.Begun())
        for number in filter(None, self._script):
            if job.judge.finished:
                return
            job.jump((0.0, 0.0, 0.0, 1.0, 7.0, 25.0, 100.0)[number % 7])
            job.full = number % 29 == 0
            happens = list(self.possible(number))
            if happens:
                event = happens[number // 7 % len(happens)]
                note(f"{job.now.mono:g} {job.judge.phase.value}: {event}")
                before = len(job.decisions)
                job.tell(event)
                note(f"    -> {[d for d in job.decisions[before:] if not isinstance(d, do.Remember)]}")

    def possible(self, number: int) -> Iterator[Event]:
        """By what was asked and what has happened, as shims, agents, srun, Slurm and the loop behave."""
        yield from self._clock()
        yield from self._step(number)
        yield from self._agents(number)
        truth = self.job.truth
        if truth.questions > 0:
            yield self._slurm(number)
        for attempt, rank in truth.puzzles[:2]:
            yield ev.Diagnosed(attempt, VERDICTS[number % len(VERDICTS)], rank)
            yield ev.Advised(attempt, (("loader", "they wait", "use fewer", ()),))
        if truth.requeueing:
            yield ev.RequeueEnded(number % 2 == 0, "as told", away=number % 3 == 0)
        yield from self._others(number)
        if number % 14 == 9:
            yield from self._requests(number)
        if number % 10 == 0:
            yield ev.SignalSeen((2, 15, 10, 15)[number // 10 % 4])

    def _others(self, number: int) -> Iterator[Event]:
        """Other nodes: looked at, borrowed, given back; donors are numbered as their nodes."""
        truth = self.job.truth
        for node in sorted(+truth.checks):
            yield from [ev.NodeChecked(node, (True, True, False, None)[number % 4], "as told")] * 2
        for slot in sorted(+truth.borrows):
            self._donors += 1
            lent = ev.NodeBorrowed(slot, f"n{self._donors}", 900 + self._donors)
            yield from [lent if number % 4 else ev.NodeBorrowed(slot, "", 0, "none is free")] * 2
        if self._donors and number % 7 == 0:
            yield ev.LoansEnded((900 + self._donors,) if number % 2 else ())
        for nodes in truth.releases[:1]:
            yield ev.NodesReleased(nodes, number % 2 == 0, "as told")

    def _requests(self, number: int) -> Iterator[Event]:
        """Of the owner of the job, each in the ledger before ftrun sees it. To undo is asked for the most."""
        asked = 1 + max(self.job.judge.history.control.requests, default=0)
        verb = VERBS[number // 14 % len(VERBS)]
        waits = number % 3 == 0 and verb in ACTS
        request = rec.Requested(
            self.job.now.unix, asked, "anna", verb, nodes=("n2",) if verb in (EXCLUDE, REINSTATE) or number % 4 == 1 else (),
            rung="in-place-restart", checkpoints=int(waits), files="/c/*", until=self.job.now.unix + 30.0 if waits else 0.0,
            later=number % 5 == 0, target=max(0, asked - 1 - number % 2), schedule=self.job.facts.schedule,
        )  # fmt: skip
        yield ev.ControlAsked(request)
        yield ev.CheckpointMade("/c/*", "/c/1")
        yield ev.ProgramSaid(0, "checkpoint", (), max(self.job.truth.attempts, default=0))

    def _clock(self) -> Iterator[Event]:
        wakes_at = self.job.judge.wakes_at
        if wakes_at is not None and wakes_at <= self.job.now.mono:
            yield from [ev.TimePassed()] * 3  # likelier than the rest

    def _step(self, number: int) -> Iterator[Event]:
        truth = self.job.truth
        if not truth.up:
            return
        for task in self.job.tasks:
            if task.rank not in truth.came:
                yield from [ev.TaskArrived(task, len(self.job.tasks), "7.0")] * 5
        for rank, attempt in truth.running.items():
            status = (ExitStatus(0), ExitStatus(1), ExitStatus(0, 9), ExitStatus(0, 15))[number % 4]
            yield ev.RankStarted(rank, attempt, 1)
            yield ev.RankExited(rank, attempt, status, self.job.now.unix)
            if number % 9 == 0:
                yield ev.RankUnstartable(rank, attempt, 127, "not found")
        for rank, attempt in truth.stops.items():
            yield from [ev.RankStopped(rank, attempt, (4711,) if number % 13 == 0 else (), 30000)] * 3
        before = truth.starts.get(0, 0) - 1
        if before > 0 and number % 17 == 0:  # stragglers
            yield ev.RankExited(0, before, ExitStatus(1), self.job.now.unix)
            yield ev.RankStopped(0, before, (), 30001)
        for rank in truth.shims if number % 8 == 0 else ():
            yield ev.ShimLost(rank, "it hung up")
            yield ev.SignalSeen((15, 10)[number // 8 % 2], rank)
        for rank in truth.shims if truth.let_go_at is not None else ():
            yield ev.ShimLost(rank, "it hung up") if number % 2 else ev.ShimLeft(rank)
        for node in sorted({task.node for task in self.job.tasks}) if number % 6 == 0 else ():
            yield ev.NodeHeard(node) if node in truth.silent else ev.NodeSilent(node, 15.0 + number % 3)
        if number % 12 == 7:
            yield ev.StepsListed((None, frozenset(), frozenset({"7.9"}))[number % 3])
        for rank in truth.shims if number % 10 == 3 else ():
            yield ev.RankPaused(rank, rank not in truth.paused)
        if number % 22 == 5:
            yield ev.StoodStill(float(number % 100))
        for node, asked in truth.probes.items():
            if asked > 0:
                yield from [ev.NodeProbed(node, (True, False, None)[number % 3], "as told")] * 2
        if number % 8 == 1 or self.job.judge.phase is Phase.ENDING:
            yield ev.StepEnded(ExitStatus(number % 2))

    def _agents(self, number: int) -> Iterator[Event]:
        truth = self.job.truth
        faults = (
            (),
            (fault("n1"),),
            (fault("n2"), fault("n2", "80C98002", users=True)),
            (fault("n2", graded=FaultClass.ISOLATE),),
        )
        for node, up in truth.agents.items():
            if not up:
                yield ev.AgentArrived(node, ("ascend",) if number % 5 else ())
                continue
            shown = tuple(replace(found, node=node) for found in faults[number % 4])
            yield ev.DevicesSeen(node, shown)
            if number % 11 == 0:
                yield ev.AgentLost(node, "it hung up")
            if truth.looks[node] > 0:
                error = "" if number % 3 else "npu-smi: timeout"
                yield from [ev.DevicesSeen(node, () if error else shown, asked=True, error=error)] * 3
            if node in truth.healing:
                for healed in (True, True, False, None):
                    yield ev.HealingDone(node, tuple(HealResult(device, healed, "") for device in truth.healing[node]))

    def _slurm(self, number: int) -> ev.SlurmAnswered:
        return (
            RUNNING,
            RUNNING,
            SILENT,
            replace(RUNNING, state="CANCELLED"),
            replace(RUNNING, bad_nodes=(("n1", "DOWN"),)),
            replace(RUNNING, usable=frozenset({"n1", "n2"})),
            replace(RUNNING, requeueable=False),
        )[number % 7]


def scripts(most: int) -> st.SearchStrategy[list[int]]:
    """Numbers that say what happens; 0 is nothing, so that a failure shrinks to what it takes."""
    return st.lists(st.integers(0, 10**6), min_size=most, max_size=most)


POLICIES = st.builds(
    settings_with,
    max_restarts=st.integers(1, 3),
    in_place_restart__crash_restarts=st.sampled_from([0, 2]),
    restart_via=st.sampled_from(["shim", "step"]),
    warning__requeue=st.booleans(),
    warning__signals=st.sampled_from([("TERM",), ("TERM", "USR1")]),
    in_place_restart__enabled=st.booleans(),
    rendezvous=st.sampled_from(["none", "torch"]),
    slurm__timeout_s=st.sampled_from([5.0, 50.0, 60.0]),  # 50 s: due at the same moment as the stop
)
REPLACING = st.builds(
    settings_with,
    max_restarts=st.integers(1, 3),
    in_place_restart__crash_restarts=st.sampled_from([0, 2]),
    restart_via=st.sampled_from(["shim", "step"]),
    mode=st.sampled_from(["sync", "async"]),
    warning__requeue=st.booleans(),
    warning__signals=st.sampled_from([("TERM",), ("TERM", "USR1")]),
    node_replacement__enabled=st.booleans(),
    node_replacement__budget=st.integers(1, 3),
    nodes__spares=st.integers(0, 2),
    nodes__donor=st.booleans(),
    shrink__enabled=st.booleans(),
    nodes__min=st.sampled_from([0, 1, 2]),
    nodes__replacement_wait_s=st.sampled_from([10.0, 600.0]),
)
CAN_REPLACE = ("ask", "requeue", "probe", "replace", "release")


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


ANYTHING = given(
    policy=POLICIES,
    can=st.sampled_from([("ask", "requeue", "probe"), ("ask", "requeue", "diagnose", "advise"), ("ask", "diagnose"), ()]),
    script=scripts(60),
)
WHILE_REPLACING = given(
    policy=REPLACING,
    can=st.sampled_from([CAN_REPLACE, (*CAN_REPLACE, "diagnose"), ("ask", "requeue", "replace"), ("replace", "diagnose")]),
    script=scripts(80),
)


@examples(100)
@ANYTHING
def test_whatever_happens_the_rules_hold(policy: Settings, can: tuple[str, ...], script: list[int]) -> None:
    """The rules are those of replay.Truth: see there. Whatever the judge cannot answer is a LookupError."""
    Chaos(policy, can, script).run()


@examples(80)
@WHILE_REPLACING
def test_whatever_happens_while_nodes_are_replaced_the_rules_hold(
    policy: Settings, can: tuple[str, ...], script: list[int]
) -> None:
    Chaos(policy, can, script).run()


@pytest.mark.long
@pytest.mark.timeout(900)
@examples(500)
@ANYTHING
def test_whatever_happens_the_rules_hold_at_length(policy: Settings, can: tuple[str, ...], script: list[int]) -> None:
    Chaos(policy, can, script).run()


@pytest.mark.long
@pytest.mark.timeout(900)
@examples(500)
@WHILE_REPLACING
def test_whatever_happens_while_nodes_are_replaced_the_rules_hold_at_length(
    policy: Settings, can: tuple[str, ...], script: list[int]
) -> None:
    Chaos(policy, can, script).run()


# A rank that was started again alone, a shim that is lost, and a late word on the start before: no proof that it has ended.
LATE_WORD = [0] * 17 + [1, 129, 127, 1186, 1, 118, 14, 21, 128, 102505, 765, 364, 1]
ALONE = settings_with(
    mode="async", max_restarts=1, in_place_restart__crash_restarts=0, restart_via="shim", warning__requeue=False, warning__signals=("TERM",),
    node_replacement__enabled=True, node_replacement__budget=1, nodes__spares=2, nodes__donor=False, nodes__replacement_wait_s=10.0,
)  # fmt: skip


LEFT_ALONE = given(policy=POLICIES | REPLACING, script=scripts(30))


@examples(50)
@LEFT_ALONE
@example(policy=ALONE, script=LATE_WORD)
def test_left_alone_after_anything_a_job_comes_to_an_end(policy: Settings, script: list[int]) -> None:
    """Whatever has happened: once nobody answers any more and a day goes by, ftrun is done or its ranks still run."""
    comes_to_an_end(policy, script)


@pytest.mark.long
@examples(300)
@LEFT_ALONE
def test_left_alone_after_anything_a_job_comes_to_an_end_at_length(policy: Settings, script: list[int]) -> None:
    comes_to_an_end(policy, script)


def comes_to_an_end(policy: Settings, script: list[int]) -> None:
    chaos = Chaos(
        policy,
        CAN_REPLACE
        if policy.node_replacement.enabled or policy.shrink.enabled
        else ("ask", "requeue", "probe", "diagnose", "advise"),
        script,
    )
    chaos.run()
    job = chaos.job
    job.full = False
    job.wait(86400)
    if not job.judge.finished:
        note(f"at the end: {job.judge.phase.value}")
        assert job.judge.phase in (Phase.LAUNCHING, Phase.RUNNING, Phase.REQUEUEING)


OVER_SCHEDULINGS = given(policy=POLICIES, script=scripts(60))


@examples(50)
@OVER_SCHEDULINGS
def test_no_job_is_requeued_more_often_than_it_may(policy: Settings, script: list[int]) -> None:
    """Over all its schedulings: each starts from what the last one wrote."""
    is_requeued_no_more_often(policy, script)


@pytest.mark.long
@examples(300)
@OVER_SCHEDULINGS
def test_no_job_is_requeued_more_often_than_it_may_at_length(policy: Settings, script: list[int]) -> None:
    is_requeued_no_more_often(policy, script)


def is_requeued_no_more_often(policy: Settings, script: list[int]) -> None:
    job, numbers = Job(policy, per_node=1), iter(script)
    job.begin()
    for number in numbers:
        if number % 5 == 0:
            job.exits(number % 2, 1)
        elif number % 5 == 1:
            job.shows(fault(graded=FaultClass.ISOLATE, device=str(number)))
        elif number % 5 == 2:
            job.shows(fault(device=f"{number % 3}.0"))
        elif number % 5 == 3:
            job.wait(number % 50000)
        else:
            job.tell(ev.SignalSeen(15, 0), *(job.exit_of(task.rank, 0, 15) for task in job.tasks))
        if job.status is not None:
            if job.status != 75:
                return
            job = job.again().begin()

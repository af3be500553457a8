"""The batch node dies: who takes over from its controller, when, and what then becomes of the job.

With `--no-kill` Slurm leaves such a job running without a script until its time limit. So the agents on the other nodes
stay when the controller falls silent, each with its place in the order of the slots. Silence is no proof: a controller
that stands still or is out of reach is not dead, nor is a script whose ftrun was killed. So while the slurmd of its node
answers that node is looked at; one that is back without its script is as good as dead. And nobody acts before the last lease
that the controller may have renewed has run out everywhere (lease.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from ftslurm.model import record as rec
from ftslurm.model.events import SlurmAnswered
from ftslurm.model.folds.control import STANDS, State
from ftslurm.model.folds.history import OUTSIDE, SLURM_S_CAUSES, History, fold
from ftslurm.model.messages import STANDBYS, HandoverPlan
from ftslurm.model.nodes import expand
from ftslurm.model.record import Record
from ftslurm.model.rungs import REQUEUES, Capability, Rung
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import Value
from ftslurm.policies.ladder import Cause, Choice, Situation
from ftslurm.policies.lease import longest_s

# From one's turn to the next one's: it has looked around, asked Slurm and written down what it will do.
TURN_S = 30.0
# A node that lives and whose agent does not act has lost its agent.
OVERTAKE_S = 300.0


class JobNow(Enum):
    """What Slurm says of the job."""

    OURS = "runs, scheduled as it was"
    OVER = "has ended, waits, or runs anew"
    UNKNOWN = "nobody says"


class LedgerNow(Enum):
    """What the ledger says."""

    OURS = "the dead controller's run is the last word"
    OPEN = "a requeue was decided, and nobody wrote that it was done"
    FAILED = "the end of the job was decided, and nobody wrote that it came"
    CLOSED = "that run has ended, or another has begun"
    ELSEWHERE = "ranks that were on this node run on others now"
    UNKNOWN = "it cannot be read"


class KnownByAgent(Value):
    """What an agent knows. silent_s: since the controller was last heard, or seen to write.

    batch_node: does it live, and ftrun or its script on it? None: cannot be told. before: does a node live whose turn comes
    before ours?
    """

    silent_s: float
    place: int
    batch_node: bool | None
    before: bool
    job: JobNow
    ledger: LedgerNow

    @property
    def in_the_dark(self) -> bool:
        return self.batch_node is None or self.job is JobNow.UNKNOWN or self.ledger is LedgerNow.UNKNOWN


class Turn(Enum):
    """What the agent does now."""

    WAIT = "wait"
    LEAVE = "leave"
    TAKE_OVER = "ask the ladder"
    FINISH_REQUEUE = "carry out the requeue as it was decided"
    FINISH_END = "end the job as it was decided"


def due_s(place: int, settings: Settings) -> float:
    """The turn of that place comes when the controller has been silent for so long."""
    return longest_s(settings) + place * TURN_S


def give_up_s(settings: Settings) -> float:
    """The controller was silent for so long, and still nobody could find out what has happened; by then the turn of the last
    one has come, and of whoever it had to overtake. A requeue waits for slurmctld as long."""
    return max(settings.slurm.patience_s, due_s(STANDBYS, settings) + OVERTAKE_S)


def may_take_over(plan: HandoverPlan, node: str) -> bool:
    """Does the agent of that node stay at all?"""
    place = plan.place(node)
    return place is not None and place < STANDBYS


# The first that holds is the answer.
RULES: tuple[tuple[Turn, str, Callable[[KnownByAgent, Settings], bool]], ...] = (
    (Turn.LEAVE, "the ledger says how the run ended", lambda k, _: k.ledger is LedgerNow.CLOSED),
    (Turn.LEAVE, "the job has gone on without this node", lambda k, _: k.ledger is LedgerNow.ELSEWHERE),
    (Turn.LEAVE, "the job has ended or was scheduled anew", lambda k, _: k.job is JobNow.OVER),
    (Turn.LEAVE, "the batch node lives, and its script goes on", lambda k, _: k.batch_node is True),
    (Turn.WAIT, "a lease that the controller renewed may last", lambda k, st: k.silent_s < longest_s(st)),
    (Turn.WAIT, "it is the turn of others", lambda k, st: k.silent_s < due_s(k.place, st)),
    (Turn.LEAVE, "nobody could find out for too long", lambda k, st: k.in_the_dark and k.silent_s >= give_up_s(st)),
    (Turn.WAIT, "no second proof that the batch node or its script is dead", lambda k, _: k.batch_node is None),
    (Turn.WAIT, "Slurm does not say how the job stands", lambda k, _: k.job is JobNow.UNKNOWN),
    (Turn.WAIT, "the ledger cannot be read", lambda k, _: k.ledger is LedgerNow.UNKNOWN),
    (Turn.WAIT, "a node before this one lives", lambda k, st: k.before and k.silent_s < due_s(k.place, st) + OVERTAKE_S),
    (Turn.FINISH_END, "the end stands open", lambda k, _: k.ledger is LedgerNow.FAILED),
    (Turn.FINISH_REQUEUE, "a requeue stands open", lambda k, _: k.ledger is LedgerNow.OPEN),
    (Turn.TAKE_OVER, "nobody else is there to go on", lambda k, _: True),
)


def succeed(known: KnownByAgent, settings: Settings) -> tuple[Turn, str]:
    """What the agent does now, and why."""
    return next((turn, why) for turn, why, holds in RULES if holds(known, settings))


def ledger_now(records: Sequence[Record], plan: HandoverPlan, node: str) -> LedgerNow:
    """As the agent on `node` reads it. An other ftrun of the same script, if one is under way, has agents of its own, and
    goes on."""
    began = [record for record in records if isinstance(record, rec.RunBegan)]
    ended = {record.run for record in records if isinstance(record, rec.Finished)}
    ours = next((at for at, run in enumerate(began) if run.run == plan.run), None)
    if ours is None or plan.run in ended:
        return LedgerNow.CLOSED
    later = began[ours + 1 :]
    if any(run.schedule > plan.schedule or run.run not in ended for run in later):
        return LedgerNow.CLOSED
    if _was_left(records, plan.run, node):
        return LedgerNow.ELSEWHERE
    if decided_end(records, plan) is not None:
        return LedgerNow.FAILED
    return LedgerNow.OPEN if fold(records).requeues.open is not None else LedgerNow.OURS


def decided_end(records: Sequence[Record], plan: HandoverPlan) -> rec.Decided | None:
    """That of the job, by that run; nothing comes after it. Its ftrun did not live to leave the script, and Slurm, the status."""
    ours = (record for record in records if isinstance(record, rec.Decided) and record.id.startswith(f"{plan.run}-"))
    return next((decided for decided in ours if decided.rung == Rung.FAIL), None)


def before(records: Sequence[Record], plan: HandoverPlan, node: str) -> tuple[str, ...]:
    """The nodes whose turn comes before that of `node`. Agents are where ranks of the run are or were; if none have begun yet,
    they may be anywhere."""
    had = frozenset[str]().union(*_placed(records, plan.run)) or frozenset(plan.nodes)
    return tuple(other for other in plan.before(node) if other in had)


def _was_left(records: Sequence[Record], run: str, node: str) -> bool:
    """Had it ranks of that run, and has none now? Then its controller may be silent to this node alone, and the job well.

    A spare has had none yet.
    """
    placed = _placed(records, run)
    return any(node in nodes for nodes in placed) and node not in placed[-1]


def _placed(records: Sequence[Record], run: str) -> list[frozenset[str]]:
    """Where ranks of that run were or were to be, in the order of time."""
    return [
        frozenset(expand(record.nodes)) if isinstance(record, rec.AttemptBegan) else frozenset(record.nodes)
        for record in records
        if isinstance(record, rec.AttemptBegan | rec.SlotsChanged) and record.run == run
    ]


def cut_short(records: Sequence[Record], schedule: int, down: Mapping[str, str], clean: float) -> tuple[Record, ...]:
    """How the scheduling before this one ended, where nobody lived to write it: Slurm requeued the job by itself.

    down: node -> why Slurm takes it for dead. clean: when its nodes were clean at the latest, Unix seconds. Costs no budget:
    nobody has decided anything.
    """
    runs = [record for record in records if isinstance(record, rec.RunBegan)]
    ended = {record.run for record in records if isinstance(record, rec.Finished)}
    if not runs or runs[-1].schedule >= schedule or runs[-1].run in ended:
        return ()
    node = runs[-1].batch_node
    if node in down:
        cause, what = Cause.NODE.value, f"the batch node {node} died ({down[node]}), and Slurm requeued the job"
    else:
        # Where Slurm tracks processes by cgroups it ends a job at once, ftrun too: so does every preemption, and an operator's
        # requeue. Only what that ftrun had seen before it ended tells of another reason.
        seen = fold(records).trouble
        cause = seen if seen in SLURM_S_CAUSES else OUTSIDE
        what = f"ftrun{f' on {node}' if node else ''} ended without a word, and the job was requeued"
    return unended(records, cause, what, max(records[-1].at, clean))


def situation(plan: HandoverPlan, why: str, history: History, slurm: SlurmAnswered, now: float) -> Situation:
    """Of a job whose batch node is dead. why: in words. now: Unix seconds."""
    node = plan.batch_node
    return Situation(
        cause=Cause.NODE,
        what=f"the batch node {node} is dead, and ftrun with it: {why}",
        status=1,
        history=history,
        settings=plan.settings,
        now=now,
        blamed={node: why},
        slurm=slurm,
        can=frozenset({Capability.ASK, Capability.REQUEUE}),
    )


def allowed(choice: Choice, noticed: bool) -> str:
    """Why what the ladder has chosen is not done yet; empty if it is.

    Where it can only end the job, that is Slurm's to do, which may know better (without --no-kill it requeues the job
    itself). A job that still runs after Slurm has noticed is one that it leaves alone. noticed: that the node was dead, or
    that it is back.
    """
    return "" if choice.rung in REQUEUES or noticed else "the ladder can only end the job, and Slurm has not noticed yet"


def answers_to(records: Sequence[Record], plan: HandoverPlan, node: str, now: float) -> tuple[Record, ...]:
    """To requests of the owner's that nobody has taken and that the ladder has to know of before it is asked. What stops or moves
    ranks is left to the next ftrun; that the job is to be stopped the ladder knows in any case. node: the successor."""
    history = fold(records)
    waiting = (request for request in history.control.of(State.OPEN) if request.asked.verb in STANDS)
    text = "taken by the standby controller"
    return tuple(rec.RequestAnswered(now, plan.run, one.number, True, text, history.attempts, node) for one in waiting)


def by_ftrun(records: Sequence[Record]) -> int:
    """How many of them an ftrun has written, or who took its place: a request is no sign that its ftrun lives."""
    return sum(not isinstance(record, rec.Requested) for record in records)


def records_of(
    plan: HandoverPlan, node: str, s: Situation, choice: Choice, records: Sequence[Record], silent_s: float = 0.0
) -> tuple[tuple[Record, ...], rec.Decided]:
    """What goes into the ledger before anything is done, as the controller would have written it, and of it the decision.

    node: the successor. records: what stands there. silent_s: since the controller was last heard; 0: not known.
    """
    history, isolated = s.history, dict(s.blamed) if choice.rung == Rung.ISOLATED_REQUEUE else {}
    kept_out = history.kept_out(s.now, s.settings.isolation.expires_s)
    decided = rec.Decided(
        s.now, f"{plan.run}-{node}-{history.decisions + 1}", history.attempts, choice.rung.value, s.cause.value,
        f"{s.what}; {choice.why} (decided on {node})", choice.passed, isolated,
        tuple(sorted({*kept_out, *isolated})), choice.cost, s.status, reason=choice.why,
        settings=choice.settings, limit=choice.limit,
    )  # fmt: skip
    since = s.now - silent_s if silent_s else 0.0
    return (*unended(records, s.cause.value, s.what, s.now, since), decided), decided


def unended(records: Sequence[Record], cause: str, what: str, now: float, since: float = 0.0) -> tuple[Record, ...]:
    """The end of an attempt that nobody lived to write down; nothing if there is none. now, since: Unix seconds."""
    begun = [record for record in records if isinstance(record, rec.AttemptBegan)]
    ended = {record.attempt for record in records if isinstance(record, rec.AttemptEnded)}
    if not begun or begun[-1].attempt in ended:
        return ()
    attempt, tasks = begun[-1].attempt, begun[-1].tasks
    return rec.TroubleSeen(now, attempt, cause, what, since), rec.AttemptEnded(now, attempt, {"unknown": tasks})

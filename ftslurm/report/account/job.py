"""One job as its report tells it: where its time went, what failed, what was done about it. Pure: records in, values out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ftslurm.model import record as rec
from ftslurm.model.folds.history import fold
from ftslurm.model.folds.summary import JobSummary, Story
from ftslurm.model.text import counted
from ftslurm.model.values import Value, field, replace
from ftslurm.report.account.parts import LOST, UNSURE, Outage, Part, Spent, Stretch, seconds_of, spent
from ftslurm.report.card import Card, cards
from ftslurm.report.moments import fault
from ftslurm.report.view import AttemptView, attempts

# cred_expire (120 s) + 1: slurmctld's batch_requeue_fini(); docs/slurm-facts.md, "The 121 seconds".
REQUEUE_S = 121.0
ASSUMPTION = (
    "a plain requeue is taken to cost 121 s (the begin time that slurmctld gives a job that was requeued with scontrol) and this "
    "job's own median start of script and step; the queue is taken to be empty, and a hang, which Slurm never notices, to be "
    "noticed as soon as ftrun did: so the true saving is higher. Compared is the time from the last process of an attempt to the "
    "first of the next; drills and what people or Slurm wanted are left out"
)


class Saved(Value):
    """By `outages` remedies after which ranks ran again. seconds: may be below 0. gpu_s: of those whose GPUs are known."""

    outages: int = 0
    seconds: float = 0.0
    gpu_s: float = 0.0
    plain_s: float = 0.0


def start_s(records: Sequence[rec.Record]) -> float:
    """From the start of a scheduling, or of ftrun where Slurm did not tell, to the first attempt in it: the median."""
    found: list[float] = []
    run: rec.RunBegan | None = None
    for record in records:
        if isinstance(record, rec.RunBegan):
            run = record
        elif isinstance(record, rec.AttemptBegan) and run is not None:
            granted = float(run.start_time) if 0 < run.at - run.start_time < 3600 else run.at
            found.append(max(0.0, record.at - granted))
            run = None
    return median(found) if found else 0.0


def saved(outages: Iterable[tuple[Outage, Sequence[Stretch]]], usual_start_s: float) -> Saved:
    """outages: each with what is owed to it."""
    plain_s, found = REQUEUE_S + usual_start_s, Saved()
    for outage, owed in outages:
        if outage.back and outage.decided and not (outage.drill or outage.by_others):
            down = [each for each in owed if each.end <= outage.back and each.part in _DOWN]
            gain = plain_s - sum(each.seconds for each in down)
            found = Saved(found.outages + 1, found.seconds + gain, found.gpu_s + gain * max(0, outage.gpus))
    return replace(found, plain_s=plain_s)


_DOWN = frozenset({Part.DECIDING, Part.WAITING, Part.STARTING})


# --- one job as its report tells it: where its time went, what failed, what was done about it. Pure: records in, values out

# Of one job that fails all the time; the latest are shown.
FAILURES_SHOWN = 200


class Failure(Value):
    """One outage and what it cost. number: from 1. name: what failed, in one word where there is one. cost: seconds by part.
    node: to blame, empty if none is. card: of the last decision.
    """

    number: int
    outage: Outage
    name: str
    error_class: str
    nodes: tuple[str, ...]
    cost: Mapping[Part, float]
    card: Card | None = None

    @property
    def remedy(self) -> str:
        """The last rung that was decided on, in a word for people."""
        return self.outage.rung or ("Slurm's requeue" if self.outage.unseen else "none")

    @property
    def lost_s(self) -> float:
        return sum(self.cost.get(part, 0.0) for part in LOST)

    @property
    def unsure_s(self) -> float:
        return sum(self.cost.get(part, 0.0) for part in UNSURE)


class NodeEvent(Value):
    """what: fault, excluded, reinstated, refused, lent."""

    at: float
    node: str
    what: str
    why: str


class JobAccount(Value):
    """One job."""

    summary: JobSummary
    began: float  # began, ended: Unix seconds; ended is now while it is not over
    ended: float
    nodes: str  # of the last attempt
    tasks: int
    gpus: int  # likewise, -1: not known
    spent: Spent
    starts: int  # attempts, those of single ranks too
    failures: tuple[Failure, ...]
    budgets: Mapping[str, tuple[int, int]]  # name -> (left, limit)
    excluded: Mapping[str, str]  # node -> why, as it stands
    reinstated: Mapping[str, str]  # node -> why
    events: tuple[NodeEvent, ...]  # of nodes
    saved: Saved
    rungs: Mapping[str, int] = field(default_factory=dict)
    queued_s: float = -1.0  # before its first start, -1: not known; no part of the rest
    damaged: int = 0
    user: str = ""
    notes: tuple[str, ...] = ()  # what a reader has to know about the figures
    attempts: tuple[AttemptView, ...] = ()  # only with its whole story

    @property
    def lost_s(self) -> float:
        return sum(self.spent.parts[part] for part in LOST)


def account(records: Sequence[rec.Record], known: JobSummary, now: float, damaged: int = 0, user: str = "") -> JobAccount:
    """known: how the job stands, with Slurm's word where there was one. now: Unix seconds."""
    time_spent = spent(records, now, known.over)
    history = fold(records)
    run = next(record for record in records if isinstance(record, rec.RunBegan))
    last = next((record for record in reversed(records) if isinstance(record, rec.AttemptBegan)), None)
    last_run = history.last_run or run
    owed = time_spent.by_outage()
    failures = tuple(_failure(place, outage, owed[place]) for place, outage in enumerate(time_spent.outages))
    events = tuple(_events(records))
    found = JobAccount(
        known._replace(name=run.name, command=run.command), time_spent.began, time_spent.ended,
        last.nodes if last else run.nodes, last.tasks if last else 0,
        time_spent.stretches[-1].gpus if time_spent.stretches else -1, time_spent, history.attempts, failures,
        history.budgets.left(last_run.budgets),
        {node: why for node, (why, _) in history.exclusions.isolated.items()},
        {event.node: event.why for event in events if event.what == "reinstated"}, events,
        saved(zip(time_spent.outages, owed, strict=True), start_s(records)),
        Counter(record.rung for record in records if isinstance(record, rec.Decided)),
        float(run.start_time - run.submit_time) if 0 < run.submit_time <= run.start_time and not run.schedule else -1.0,
        damaged, user,
    )  # fmt: skip
    return replace(found, notes=tuple(_notes(found)))


def with_story(job: JobAccount, records: Sequence[rec.Record]) -> JobAccount:
    """And its attempts one by one, and the cards of its failures: what takes longest, and no list of many jobs shows."""
    story = Story(records)
    by_decision = {id: card for _, id, card in cards(story) if id}
    told = tuple(
        replace(one, card=next((by_decision[each.id] for each in reversed(one.outage.decided) if each.id in by_decision), None))
        for one in job.failures
    )
    return replace(job, failures=told, attempts=tuple(attempts(records, story)))


def since(job: JobAccount, at: float) -> JobAccount:
    """The same from that moment on (Unix seconds): what went before is no part of the figures."""
    if at <= job.began:
        return job
    left = tuple(replace(stretch, begin=max(stretch.begin, at)) for stretch in job.spent.stretches if stretch.end > at)
    owed_to = zip(job.spent.outages, job.spent.by_outage(), strict=True)
    return replace(
        job, began=at, spent=replace(job.spent, stretches=left),
        failures=tuple(one for one in job.failures if one.outage.at >= at),
        saved=saved(((outage, owed) for outage, owed in owed_to if outage.at >= at), job.saved.plain_s - REQUEUE_S),
        events=tuple(event for event in job.events if event.at >= at),
    )  # fmt: skip


def _failure(place: int, outage: Outage, owed: Sequence[Stretch]) -> Failure:
    verdict, cost = outage.verdict, seconds_of(owed)
    told = verdict is not None and (verdict.confidence != "none" or not verdict.said)
    name = verdict.signature if verdict is not None and told else outage.cause
    name = _PLAIN.get(name, name)
    nodes = {node for decided in outage.decided for node in decided.isolate} | {*(verdict.blamed if verdict is not None else ())}
    error_class = verdict.error_class if verdict is not None else "unknown"
    return Failure(place + 1, outage, f"{name} (drill)" if outage.drill else name, error_class, tuple(sorted(nodes)), cost)


_PLAIN = {
    "lost": "a node or its ranks lost", "hang": "hang", "crash": "a rank failed", "launch": "the step did not come up",
    "warning": "a signal", "outside": "requeued from outside", "node": "a node failed", "device": "a device fault",
}  # fmt: skip


_OF_NODES: Mapping[type, tuple[str, Callable[[Any], Mapping[str, str]]]] = {
    rec.FaultSeen: ("fault", lambda seen: {seen.node: fault(seen)}),
    rec.Decided: ("excluded", lambda decided: decided.isolate),
    rec.Reinstated: ("reinstated", lambda cleared: cleared.nodes),
    rec.ExperimentEnded: ("excluded", lambda ended: {ended.node: ended.why} if ended.excluded else {}),
    rec.NodeRefused: ("refused", lambda refused: {refused.node: refused.why}),
    rec.NodeLent: ("lent", lambda lent: {lent.node: f"by job {lent.job}"}),
}


def _events(records: Sequence[rec.Record]) -> list[NodeEvent]:
    found: list[NodeEvent] = []
    for record in records:
        what, told = _OF_NODES.get(type(record), ("", lambda _: {}))
        left = {event.node for event in found if event.what == "excluded"} if what == "reinstated" else None
        found += [NodeEvent(record.at, node, what, why) for node, why in told(record).items() if left is None or node in left]
    return found


def _notes(job: JobAccount) -> list[str]:
    found: list[str] = []
    parts = job.spent.parts
    if parts[Part.NEW_OR_REDONE]:
        found.append(
            "The program reports no training steps, so how much work it repeated after a restart is unknown: "
            "at most as much as ranks had run. Report steps with ftslurm.sdk.progress(step)."
        )
    elif not job.spent.tells_steps and job.starts:
        found.append("The program reports no training steps: its own start (imports, checkpoint) counts as training.")
    if parts[Part.UNKNOWN]:
        found.append("Not known: ranks seemed to hang and nobody acted, or nothing recorded when they ended (10 min at most).")
    if any(one.outage.at and not one.outage.began and not one.outage.unseen for one in job.failures):
        found.append("Where the ledger does not say when a fault began, its detection counts as zero time.")
    if job.spent.misfits:
        misfits = counted(job.spent.misfits, "record")
        found.append(f"The times of {misfits} fit no order; such a record counts as old as the one before it.")
    if job.damaged:
        found.append(f"Of the ledger {counted(job.damaged, 'damaged line')} {'was' if job.damaged == 1 else 'were'} skipped.")
    if job.summary.over and job.summary.state == "gone":
        found.append("The ledger ends before the job did: the figures leave out what came after its last record.")
    if not job.summary.over and job.spent.outages and job.summary.state in ("requeued", "pending", "held"):
        found.append("The job waits to run again; that time counts as waiting.")
    return found

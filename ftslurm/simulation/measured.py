"""What became of jobs: of a trace under one policy, and of a real job, whose ledger gives the plan of a simulation. Pure.

What the ledger does not tell keeps the plan's default, and is named as an assumption.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ftslurm.errors import UsageError
from ftslurm.model import record as rec
from ftslurm.model.nodes import count_nodes, named_nodes
from ftslurm.model.rungs import REQUEUES, Rung
from ftslurm.model.values import Value, field, replace
from ftslurm.report.account.parts import Part, Spent, seconds_of
from ftslurm.simulation.clockwork import TimePart
from ftslurm.simulation.trace import MOST_NODES, JobPlan, TraceFault

# --- what became of a trace under one policy, and of each of its faults


class Answered(Value):
    """What became of one fault. at: in seconds from the first start of the job. hit: did it meet the job at all? answers: the
    rungs, in order, each with its reason. passed: rung -> why it was not the one. left: nodes that were excluded."""

    fault: TraceFault
    at: float
    node: str
    hit: bool
    answers: tuple[tuple[str, str], ...] = ()
    passed: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()


class PolicyOutcome(Value):
    """One policy on one trace."""

    name: str
    ended: str  # completed, failed, trains (until the end of the trace), hangs, pending
    why: str
    at: float  # when, in seconds from the first start
    wall_s: float  # the time that all parts add up to
    parts: Mapping[TimePart, float]
    lost_to: Mapping[str, float]
    rungs: Mapping[str, int]
    budgets: Mapping[str, tuple[int, int]]
    faults: tuple[Answered, ...]
    starts: int
    requeues: int
    excluded: tuple[str, ...]
    node_s: float  # nodes held, times seconds
    plan_nodes: int
    ledger: tuple[rec.Record, ...] = ()

    @property
    def over(self) -> bool:
        """Has the job come to its end?"""
        return self.ended in ("completed", "failed")

    @property
    def useful_s(self) -> float:
        return self.parts[TimePart.USEFUL]

    @property
    def goodput(self) -> float:
        """Useful share of the time, 0 to 1."""
        return self.useful_s / self.wall_s if self.wall_s else 0.0

    @property
    def node_goodput(self) -> float:
        """Useful share of the time of all nodes that were held, spares and loans too."""
        return self.useful_s * self.plan_nodes / self.node_s if self.node_s else 0.0


def answered(fault: TraceFault, at: float, node: str, hit: bool, decided: Sequence[rec.Decided]) -> Answered:
    """decided: what followed, in order."""
    return Answered(
        fault, at, node, hit, tuple((record.rung, record.reason or record.why) for record in decided),
        {rung: why for record in decided for rung, why in record.passed},
        tuple(dict.fromkeys(node for record in decided for node in record.isolate)),
    )  # fmt: skip


MOST_PER_NODE = 64
# What a job waits for after the decision.
_WAITS: Mapping[str, str] = {Rung.IN_PLACE_RESTART: "heal_s", **dict.fromkeys(REQUEUES, "requeue_s")}


class Measured(Value):
    """plan: of the job. names: of its nodes, the batch node first. known: names of the plan's fields that the ledger told, each
    with how many times it was measured; the others are defaults. ftrun_apart: as in
    Trace."""

    plan: JobPlan
    names: tuple[str, ...]
    known: Mapping[str, int]
    ftrun_apart: bool


def measured_job(records: Sequence[rec.Record], spent: Spent) -> Measured:
    """Raises: UsageError for a ledger in which no rank has ever run."""
    first = next((record for record in records if isinstance(record, rec.AttemptBegan)), None)
    if first is None:
        raise UsageError("no rank of it has ever run, so there is nothing to play", hint="choose another job")
    nodes = count_nodes(first.nodes)
    if not 0 < nodes <= MOST_NODES:  # an enemy may have written it
        raise UsageError(f"its ledger names {nodes} nodes: it is damaged", hint="choose another job")
    names = _names(records, first)
    plan = JobPlan(
        nodes=nodes, tasks_per_node=min(MOST_PER_NODE, max(1, -(-first.tasks // nodes))),
        other_nodes=max(len(names), nodes + _failed_nodes(records)) - nodes,
        probe=_shows_collectives(records),
    )  # fmt: skip
    times = _times(records, spent)
    values: dict[str, Any] = {name: max(0.0, median(found)) for name, found in times.items()}
    if "diagnosis_s" in values:  # both happen in the time that is known
        values["slurm_s"] = min(plan.slurm_s, values["diagnosis_s"] / 2)
        values["diagnosis_s"] -= values["slurm_s"]
    known = {name: len(found) for name, found in times.items()}
    if not spent.tells_steps:
        values["program_start_s"] = 0.0  # a part of the training then, in the account of the real job as well
    if (step_s := _step_s(records)) > 0:
        values["step_s"], known["step_s"] = step_s, 1
    lost = _lost_steps(records)
    if lost and step_s > 0:
        # Restarts come at any moment between two checkpoints; so far beyond the largest loss is the likely limit of the losses.
        values["checkpoint_s"] = max(step_s, max(lost) * step_s * (len(lost) + 1) / len(lost))
        known["checkpoint_s"] = len(lost)
    return Measured(replace(plan, **values), names, known, _run(records).launcher == "local")


def _run(records: Sequence[rec.Record]) -> rec.RunBegan:
    return next(record for record in records if isinstance(record, rec.RunBegan))


def _names(records: Sequence[rec.Record], first: rec.AttemptBegan) -> tuple[str, ...]:
    """Of every node that the job has had: those of its first attempt, from the batch node on, then the others as they came."""
    found = dict.fromkeys(_expanded(first.nodes))
    batch = _run(records).batch_node
    if batch in found:
        found = {batch: None, **found}
    for record in records:
        match record:
            case rec.RunBegan() | rec.AttemptBegan():
                found |= dict.fromkeys(_expanded(record.nodes))
            case rec.SlotsChanged():
                found |= dict.fromkeys(record.nodes)
            case rec.NodeLent():
                found[record.node] = None
    return tuple(found)[:MOST_NODES]


def _expanded(text: str) -> tuple[str, ...]:
    return named_nodes(text) if count_nodes(text) <= MOST_NODES else ()


def _failed_nodes(records: Iterable[rec.Record]) -> int:
    found: set[str] = set()
    for record in records:
        if isinstance(record, rec.Decided):
            found |= {*record.isolate, *record.dead}
        elif isinstance(record, rec.FaultSeen):
            found.add(record.node)
    return len(found)


def _shows_collectives(records: Iterable[rec.Record]) -> bool:
    """Did a hang, if there was one, show in the ranks' collectives?"""
    signs = {record.sign for record in records if isinstance(record, rec.HangSeen)}
    return not signs or "stall" in signs


def _times(records: Sequence[rec.Record], spent: Spent) -> dict[str, list[float]]:
    """Name of the plan's field -> seconds, each time that it was seen, by the account of the job's time."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    begun = {record.at for record in records if isinstance(record, rec.AttemptBegan)}
    lent = [record.at for record in records if isinstance(record, rec.NodeLent)]
    hung_up = {record.at for record in records if isinstance(record, rec.TroubleSeen) and record.hung_up}
    for stretch in spent.stretches:
        if stretch.part is Part.STARTING and begun & {stretch.begin, stretch.end}:
            found["program_start_s" if stretch.begin in begun else "launch_s"].append(stretch.seconds)
    for outage, owed in zip(spent.outages, spent.by_outage(), strict=True):
        if not outage.decided or not outage.back:
            continue
        last = outage.decided[-1]
        took = seconds_of(each for each in owed if each.part is not Part.WAITING or each.begin >= last.at)
        found["diagnosis_s"].append(took[Part.DECIDING])
        if outage.cause in ("crash", "device", "hang"):
            found["stop_s"].append(took[Part.STOPPING])
        if outage.at in hung_up:
            found["node_known_s"].append(outage.decided[0].at - outage.at)
        if last.rung in _WAITS:
            found[_WAITS[last.rung]].append(took[Part.WAITING])
        elif any(last.at <= at <= outage.back for at in lent):
            found["borrow_s"].append(took[Part.WAITING])
    return found


def _step_s(records: Iterable[rec.Record]) -> float:
    """Seconds of a training step: all attempts that told their first step and their last; 0.0: not known."""
    seconds, steps = 0.0, 0
    first: rec.StepReached | None = None
    trouble = 0.0
    for record in records:
        match record:
            case rec.AttemptBegan():
                first, trouble = None, 0.0
            case rec.StepReached() if first is None:
                first = record
            case rec.TroubleSeen() | rec.HangSeen():
                trouble = trouble or record.since or record.at
            case rec.AttemptEnded() if first is not None and record.step > first.step:
                seconds += max(0.0, (trouble or record.stopped or record.at) - first.at)
                steps += record.step - first.step
                first = None
    return seconds / steps if steps else 0.0


def _lost_steps(records: Iterable[rec.Record]) -> list[int]:
    """How many steps each restart took back: from the last one of an attempt to the one before the first of the next."""
    found = []
    last = 0
    saved: int | None = None
    for record in records:
        match record:
            case rec.AttemptEnded() if record.step:
                last, saved = record.step, None
            case rec.IterationSeen() if last:
                saved = record.iteration
            case rec.StepReached() if last:
                kept = saved if saved is not None else record.step - 1
                found.append(max(0, last - kept))
                last = 0
    return found

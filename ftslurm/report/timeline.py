"""What has happened to a job, one line each, as it is followed while it runs. Pure: records in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ftslurm.model import record as rec
from ftslurm.model.nodes import fold
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.rungs import Rung
from ftslurm.model.text import counted, visible
from ftslurm.model.values import dataclass
from ftslurm.report.view import culprit, slots
from ftslurm.report.words import clock, experiment


@dataclass(frozen=True, slots=True)
class Happened:
    """at: Unix seconds. weight: `bad` (something failed), `done` (a decision, and what became of it), `` (all else)."""

    at: float
    what: str
    weight: str = ""


def happened(records: Iterable[rec.Record]) -> list[Happened]:
    """In order, made safe for a terminal; a trouble that is the fault that was just told is told once."""
    found: list[Happened] = []
    for record in records:
        for what, weight in _told(record):
            if not (isinstance(record, rec.TroubleSeen) and found and visible(what) in found[-1].what):
                found.append(Happened(record.at, visible(what), weight))
    return found


def _told(record: rec.Record) -> Iterator[tuple[str, str]]:
    match record:
        case rec.RunBegan() if record.schedule:
            yield f"ftrun came up, after {counted(record.schedule, 'requeue')}", ""
        case rec.AttemptBegan():
            yield f"attempt {record.attempt} began on {record.nodes}, {counted(record.tasks, 'rank')}", ""
        case rec.RankBegan():
            yield f"rank {record.rank} started again alone, as attempt {record.attempt}", ""
        case rec.SlotsChanged():
            yield slots(record), ""
        case rec.NodeLent():
            yield f"job {record.job} lends {record.node}", ""
        case rec.NodeRefused():
            yield f"{record.node} was not taken: {record.why}", "bad"
        case rec.FaultSeen():
            yield f"fault {record.code} ({record.name}) on device {record.device} of {record.node}: {record.fault_class}", "bad"
        case rec.TroubleSeen():
            yield record.what, "bad"
        case rec.HangSeen():
            yield f"hangs: {record.culprit or record.what}", "bad"
        case rec.CulpritSeen():
            yield culprit(record), "bad" if record.level == "Error" else ""
        case rec.Diagnosed():
            yield f"found: {record.what}", "bad"
        case rec.Advised():
            yield f"{record.what}: {record.advice}", ""
        case rec.Reinstated():
            yield f"{fold(record.nodes)} reinstated: it is the program", "done"
        case rec.ExperimentEnded():
            yield experiment(record), "bad" if record.excluded else "done"
        case rec.ProgramSaid():
            yield f"rank {record.rank} says: {record.what} {record.text}", ""
        case rec.Drilled():
            yield f"drill: {record.fault} on {record.target}: {record.how}", ""
        case rec.Waiting() if record.what:
            yield f"waiting for {record.what}{f' until {clock(record.until)}' if record.until else ''}", ""
        case rec.Signalled():
            yield f"{record.signal}: {record.meaning}", ""
        case rec.Decided():
            cost = f" (costs one of {record.cost})" if record.cost else ""
            yield f"{record.rung}{cost}: {record.why}", "bad" if record.rung == Rung.FAIL else "done"
        case rec.CarriedOut():
            yield f"{'done' if record.ok else 'FAILED'}: {record.what}", "done" if record.ok else "bad"
        case rec.AttemptEnded():
            exits = ", ".join(f"{count} {how.removeprefix('was ')}" for how, count in sorted(record.exits.items()))
            yield f"attempt {record.attempt} ended{f': {exits}' if exits else ''}", ""
        case rec.Finished() if outcome_of(record) is not Outcome.REQUEUED:
            yield f"ended with status {record.status}: {record.what}", "bad" if record.status else "done"
        case _:
            pass

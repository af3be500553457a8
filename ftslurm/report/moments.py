"""What has happened to a job: each record of its ledger in words, told once for all views. Pure: records in, moments out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import partial

from ftslurm.model import record as rec
from ftslurm.model.folds.control import request_in_words
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.rungs import Rung
from ftslurm.model.text import counted, fold_numbers, visible
from ftslurm.model.values import Value
from ftslurm.report.words import clock, experiment, saves


class MomentKind(Enum):
    BEGAN = "began"
    FAILED = "failed"  # a fault, a trouble, a hang, a remedy
    FOUND = "found"  # by a look at what failed
    DETAIL = "detail"  # of what was found or failed
    DECIDED = "decided"
    DONE = "done"  # what became of a decision
    CHANGED = "changed"  # nodes, slots, single ranks, checkpoints
    CLEARED = "cleared"  # a node is to blame no more, or is after all
    ASKED = "asked"  # by a signal, by the job's owner, by a drill
    SAID = "said"  # by the program
    WAITED = "waited"
    STOPPED = "stopped"  # the attempt
    ENDED = "ended"  # ftrun


class Moment(Value):
    """source: who told it, where a decision may go by it. head: what stands before it on a timeline. bad: something failed."""

    at: float  # Unix seconds
    kind: MomentKind
    what: str
    source: str = ""
    head: str = ""
    bad: bool = False

    @property
    def weight(self) -> str:
        """`bad` (something failed), `done` (a decision, and what became of it), empty for all else."""
        return "bad" if self.bad or self.kind is MomentKind.FAILED else "done" if self.kind in _ANSWERS else ""


_ANSWERS = frozenset({MomentKind.DECIDED, MomentKind.DONE, MomentKind.CLEARED, MomentKind.ENDED})


def happened(records: Iterable[rec.Record]) -> list[Moment]:
    """In order, made safe for a terminal; a trouble that is the fault that was just told is told once."""
    found: list[Moment] = []
    for record in records:
        for each in moments(record):
            what = visible(f"{each.head}{each.what}")
            again = isinstance(record, rec.TroubleSeen) and found and what in found[-1].what
            if each.kind is not MomentKind.DETAIL and not again:
                found.append(Moment(each.at, each.kind, what, bad=each.bad))
    return found


def moments(record: rec.Record) -> Iterator[Moment]:
    """What one record tells; of most kinds of records one moment."""
    tell = partial(Moment, record.at)
    match record:
        case rec.RunBegan() if record.schedule:
            yield tell(MomentKind.BEGAN, f"ftrun came up, after {counted(record.schedule, 'requeue')}")
        case rec.AttemptBegan():
            yield tell(MomentKind.BEGAN, f"attempt {record.attempt} began on {record.nodes}, {counted(record.tasks, 'rank')}")
        case rec.RankBegan():
            yield tell(
                MomentKind.CHANGED, f"rank {record.rank} started again alone, as attempt {record.attempt} (start {record.starts})"
            )
        case rec.SlotsChanged():
            yield tell(MomentKind.CHANGED, _slots(record))
        case rec.NodeLent():
            yield tell(MomentKind.CHANGED, f"{record.node} was lent by job {record.job}")
        case rec.NodeRefused():
            yield tell(MomentKind.CHANGED, f"{record.node} was not taken: {record.why}", "node check", bad=True)
        case rec.IterationSeen() if record.attempt:
            vain = f", {counted(record.in_vain, 'attempt')} in a row without progress" if record.in_vain else ""
            yield tell(MomentKind.CHANGED, f"checkpoint of iteration {record.iteration}{vain}", "progress file" if vain else "")
        case rec.CheckpointSeen():
            more = f", {record.left} more to come" if record.left else ""
            yield tell(MomentKind.CHANGED, f"request {record.request}: a checkpoint is complete ({record.where}){more}")
        case rec.FaultSeen():
            yield tell(MomentKind.FAILED, fault(record), "devices", "fault ")
        case rec.TroubleSeen():
            yield tell(MomentKind.FAILED, record.words, "ftrun")
        case rec.HangSeen():
            yield tell(MomentKind.FAILED, record.culprit or record.what, "hang detection", "hangs: ")
            yield from (tell(MomentKind.DETAIL, line, "hang detection") for line in _spoken(record))
        case rec.HangEnded():
            yield tell(MomentKind.CHANGED, f"it went on: {record.what}", "hang detection")
        case rec.CulpritSeen():
            what = f"{record.level} {culprit(record)}"
            yield tell(MomentKind.FOUND, what, "comparison of ranks", bad=record.level == "Error")
            yield from (tell(MomentKind.DETAIL, line, "comparison of ranks") for line in _spoken(record))
        case rec.Diagnosed():
            yield tell(MomentKind.FOUND, record.what, head="found: ", bad=True)
            yield from (tell(MomentKind.DETAIL, what, source) for source, what in _verdict(record) if what)
        case rec.Advised():
            yield tell(MomentKind.FOUND, f"{record.what}: {record.advice}")
            yield from (tell(MomentKind.DETAIL, line) for line in record.evidence)
        case rec.Reinstated():
            for node, why in record.nodes.items():
                yield tell(MomentKind.CLEARED, f"{node} is not to blame: {why}", "verdict")
        case rec.ExperimentEnded():
            yield tell(MomentKind.CLEARED, experiment(record), "experiment", bad=record.excluded)
        case rec.ProgramSaid():
            rank = f"rank {record.rank}"
            yield tell(MomentKind.SAID, f"{record.what} {record.text}".strip(), f"program, {rank}", f"{rank} says: ")
        case rec.CallRead():
            yield tell(MomentKind.DETAIL, record.words, "the script")
        case rec.Drilled():
            yield tell(MomentKind.ASKED, f"DRILL {record.fault} on {record.target}: {record.how}", "drill")
        case rec.Signalled():
            yield tell(MomentKind.ASKED, f"{record.signal}: {record.meaning}", "signal")
        case rec.Requested():
            yield tell(MomentKind.ASKED, f"request {record.number} of {record.by}: {request_in_words(record)}", "ftslurm control")
        case rec.RequestAnswered():
            yield tell(MomentKind.ASKED, f"request {record.number} was {'taken' if record.ok else 'refused'}: {record.text}")
        case rec.RequestDone() if not record.ok:
            yield tell(MomentKind.ASKED, f"request {record.number} could not be carried out: {record.text}")
        case rec.Waiting() if record.what:
            until = f", until {clock(record.until)} at the latest" if record.until else ""
            yield tell(MomentKind.WAITED, f"began to wait for {record.what}{until}")
        case rec.Decided():
            cost = f" (costs one of {record.cost})" if record.cost else ""
            yield tell(MomentKind.DECIDED, f"{record.rung}{cost}: {record.why}", bad=record.rung == Rung.FAIL)
            yield from (tell(MomentKind.DETAIL, what) for what in _choice(record))
        case rec.CarriedOut():
            kind, head = (MomentKind.DONE, "done: ") if record.ok else (MomentKind.FAILED, "FAILED: ")
            yield tell(kind, record.what, head=head)
        case rec.AttemptEnded():
            how = f": {exits(record.exits)}" if record.exits else ""
            yield tell(MomentKind.STOPPED, f"attempt {record.attempt} ended{how}")
            for what in saves(record.saves):
                yield tell(MomentKind.CHANGED, what, "ranks")
        case rec.Finished() if outcome_of(record) is not Outcome.REQUEUED:
            how = f" with status {record.status}" if record.status else ""
            yield tell(MomentKind.ENDED, f"ended{how}: {record.what}", bad=bool(record.status))
        case _:
            pass


_CLASSES = {"ignore": "recorded, and no more", "avoid": "a requeue leaves the node out", "unknown": "meaning unknown"}


def fault(f: rec.FaultSeen) -> str:
    graded = _CLASSES.get(f.fault_class, f.fault_class)
    return f"{f.code} ({f.name}) on device {f.device} of {f.node}: {graded}"


def exits(counts: Mapping[str, int]) -> str:
    """How many ranks ended, and how."""
    return ", ".join(f"{count} {how.removeprefix('was ')}" for how, count in sorted(counts.items()))


def culprit(c: rec.CulpritSeen) -> str:
    many = "ranks" if len(c.ranks) > 1 else "rank"
    who = f"{many} {fold_numbers(c.ranks)} on {fold_nodes(c.nodes)}" if c.ranks else "no rank in particular"
    return f"{c.sign}: {who}{f' in {c.operation}' if c.operation else ''}: {c.cause}"


def hang_words(seen: rec.HangSeen | rec.CulpritSeen) -> str:
    """By what it was noticed, or for who was found."""
    return culprit(seen) if isinstance(seen, rec.CulpritSeen) else seen.what


def _spoken(seen: rec.HangSeen | rec.CulpritSeen) -> tuple[str, ...]:
    return (*seen.evidence, f"to let it go on: {seen.helps}") if seen.helps else seen.evidence


def _slots(changed: rec.SlotsChanged) -> str:
    if changed.filled:
        new = ", ".join(f"{node} in slot {slot}" for slot, node in sorted(changed.filled.items()))
        return f"from here on {new}: MA_SCHEDULE_CNT one more there, MA_PROC_START_CNT 1"
    return f"from here on {counted(len(changed.nodes), 'node')}: {', '.join(changed.nodes)}"


def _choice(d: rec.Decided) -> Iterator[str]:
    yield from (f"not {rung}: {why}" for rung, why in d.passed)
    yield from (f"isolated {why if node in why else f'{node}: {why}'}" for node, why in d.isolate.items())
    if d.exclude:
        yield f"without {fold_nodes(d.exclude)}"


def _verdict(d: rec.Diagnosed) -> Iterator[tuple[str, str]]:
    """(who told it, what)."""
    if d.said:
        place = f" ({d.place})" if d.place else ""
        by_device = f"devices of {d.node}" if d.node and d.place else "verdict"
        where = f"output of rank {d.rank} on {d.node}" if d.rank >= 0 else by_device
        yield where, f"{d.said}{place}"
    everywhere = f"{', the same everywhere' if d.program else ''}{' (a drill)' if d.drill else ''}"
    words = "; ".join(word for word in ((d.meaning, d.spread) if d.said else (d.what,)) if word)
    sure = f"{d.signature}; worth another try: {d.retriable}; confidence: {d.confidence}{everywhere}"
    yield "verdict", f"{d.error_class}: {words}; {sure}" if words else f"{d.error_class}: {sure}"
    if d.because:
        yield "verdict", f"by the rules: {', '.join(d.because)}"
    for line in d.evidence:
        if line not in d.what and line != d.said:
            yield "verdict", line
    for node, why in {**d.suspects, **d.blamed}.items():
        yield "verdict", f"suspect: {why if node in why else f'{node}: {why}'}" if why not in d.evidence else ""

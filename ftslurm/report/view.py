"""A ledger as people ask for it: where a job stands, and what has happened to it. Pure: records in, values out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ftslurm.model import record as rec
from ftslurm.model.folds.control import NO_RESTARTS, Control, Request, State, request_in_words, utc
from ftslurm.model.folds.history import counters
from ftslurm.model.folds.summary import Answer, JobSummary, Story, Stuck, stuck, summarise
from ftslurm.model.values import Value, field
from ftslurm.report.card import Card, card_of, cards
from ftslurm.report.moments import MomentKind, fault, hang_words, moments
from ftslurm.report.words import moment

# --- what the owner of a job has asked for (`ftslurm control`)


def held(control: Control, moment: Callable[[float], str] = utc) -> dict[str, str]:
    """What requests hold now: a rung, or `no-restarts` for all of them -> why. moment: writes Unix seconds for people."""
    names = [NO_RESTARTS] if control.no_restarts is not None else control.held
    return {name: control.why_held(name, moment) for name in names}


def in_a_line(request: Request, moment: Callable[[float], str]) -> str:
    """Without its time."""
    asked, taken = request.asked, request.state is State.TAKEN
    state = "not taken yet" if request.state is State.OPEN else request.state.value
    seen = f", {request.seen} of {asked.checkpoints} checkpoints" if asked.checkpoints and taken else ""
    return f"{request_in_words(asked, moment)}: {state}{seen}{f' ({request.text})' if request.text else ''}"


def request_lines(requests: Sequence[Request], moment: Callable[[float], str]) -> list[str]:
    """A line each."""
    width = max((len(str(request.number)) for request in requests), default=0)
    rows = [(each, each.asked, f" on {each.asked.host}" if each.asked.host else "") for each in requests]
    return [f"{a.number:>{width}}  {moment(a.at)}  {a.by}{where}  {in_a_line(each, moment)}" for each, a, where in rows]


# --- where a job stands, and its attempts

Hang = rec.HangSeen | rec.CulpritSeen


class Status(Value):
    """Where a job stands. summary: with Slurm's word, where Slurm was asked."""

    summary: JobSummary
    start_count: int
    why: str  # of the last decision
    excluded: Mapping[str, str]
    left: Mapping[str, tuple[int, int]]  # budget -> (left, limit)
    unconditional_in_a_row: int
    damaged: int = 0
    card: Card | None = None
    hang: Hang | None = None  # the last one that the present attempt was seen in, with whom it is laid to
    wait: rec.Waiting | None = None  # also of a requeue that waits in Slurm's queue: its ftrun has ended
    requests: tuple[Request, ...] = ()  # what the owner of the job has asked for and is still to come
    held: Mapping[str, str] = field(default_factory=dict)  # a rung, or `no-restarts` for all -> why a request holds it
    stuck: Stuck | None = None  # a standstill that is no hang yet
    # blind, faults: of the attempt that runs: why nobody can see which rank hangs; what devices have shown
    blind: str = ""
    faults: tuple[rec.FaultSeen, ...] = ()


class Remedy(Value):
    """One decision of the ladder, and what became of it: nothing while it is open."""

    decided: rec.Decided
    done: Sequence[rec.CarriedOut]


class AttemptView(Value, frozen=False):
    """One attempt, as the ledger's records tell it. ended: None: not yet, or nobody lived to write it."""

    began: rec.AttemptBegan
    ended: rec.AttemptEnded | None = None
    faults: list[rec.FaultSeen] = field(default_factory=list)
    troubles: list[rec.TroubleSeen] = field(default_factory=list)
    verdicts: list[rec.Diagnosed] = field(default_factory=list)
    hangs: list[Hang] = field(default_factory=list)
    hints: list[rec.Advised] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # who is cleared, how ftrun ended: what a card says, where there is one
    cards: list[Card] = field(default_factory=list)

    @property
    def number(self) -> int:
        return self.began.attempt

    @property
    def cause(self) -> str:
        return self.troubles[0].words if self.troubles else ""

    @property
    def exits(self) -> Mapping[str, int]:
        return self.ended.exits if self.ended is not None else {}


class HistoryTold(Value):
    """For programs. evidence: files with what hung ranks were doing."""

    job: Status
    attempts: Sequence[AttemptView]
    evidence: Sequence[str]


def status_of(
    records: Sequence[rec.Record], damaged: int = 0, known: JobSummary | None = None, story: Story | None = None
) -> Status | None:
    """None for a ledger in which nothing has begun. known: of this ledger, with Slurm's word; None: by the ledger alone.
    story: of the records, where there is one already.
    """
    story, known = story or Story(records), known or summarise(records)
    past = story.past
    run = past.last_run
    if run is None or known is None:
        return None
    runs = known.state == "running"
    return Status(
        known._replace(command=run.command, requeue_open=past.requeues.open is not None),
        counters(past, run.schedule, run.step_key).starts,
        past.last_decision.why if past.last_decision else "",
        {node: why for node, (why, _) in past.exclusions.isolated.items()},
        past.budgets.left(run.budgets),
        past.requeues.unconditional_in_a_row,
        damaged,
        card_of(story),
        _last_hang(records),
        _wait(records, known),
        tuple(request for request in past.control.requests.values() if request.state in (State.OPEN, State.TAKEN)),
        held(past.control, moment),
        stuck(records),
        _blind(records) if runs else "",
        story.known.faults if runs else (),
    )


def _wait(records: Sequence[rec.Record], job: JobSummary) -> rec.Waiting | None:
    if job.over or job.state not in ("waiting", "requeued", "pending"):
        return None
    last = next((each for each in reversed(records) if isinstance(each, (rec.Waiting, rec.RunBegan, rec.AttemptBegan))), None)
    return last if isinstance(last, rec.Waiting) else None


def _last_hang(records: Sequence[rec.Record]) -> Hang | None:
    """The last word on who hangs, else on how it was noticed; slow ranks do not hang."""
    hang: rec.HangSeen | None = None
    for record in reversed(records):
        if isinstance(record, rec.AttemptBegan | rec.HangEnded | rec.Paused):
            break
        if isinstance(record, rec.CulpritSeen) and record.sign in HANG_CLASSES and record.ranks:
            return record
        if isinstance(record, rec.HangSeen):
            hang = hang or record
    return hang


def _blind(records: Sequence[rec.Record]) -> str:
    for record in reversed(records):
        if isinstance(record, rec.ProgramSaid) and record.what == "probe":
            return f"rank {record.rank} has no probe: {record.text}"
        if isinstance(record, rec.AttemptBegan):
            break
    return ""


HANG_CLASSES = frozenset({"RankCommHang", "RankNonCommHang", "ExitHang"})


def attempts(records: Sequence[rec.Record], story: Story | None = None, whole: bool = True) -> list[AttemptView]:
    """Every attempt in order, with what happened in it and what was done about it. story: as in `status`. whole: also with the
    cards of those that `folded` does not show."""
    found: list[AttemptView] = []
    for record in records:
        if isinstance(record, rec.AttemptBegan):
            found.append(AttemptView(record))
        elif found:
            _tell(found[-1], record)
    by_number = {view.number: view for view in found}
    story = story or Story(records)
    for each in story.told:
        if isinstance(each, Answer) and each.known.attempt is not None:
            by_number[each.known.attempt.attempt].remedies.append(Remedy(each.decided, each.done))
    shown = by_number if whole else {view.number for view in folded(found) if isinstance(view, AttemptView)}
    for number, _, card in cards(story, shown):
        by_number[number].cards.append(card)
    return found


_NOTES = frozenset({MomentKind.CHANGED, MomentKind.ASKED, MomentKind.WAITED})
_OF_CARDS = frozenset({MomentKind.CLEARED, MomentKind.ENDED})


_LISTS: Mapping[type, str] = {
    rec.FaultSeen: "faults", rec.TroubleSeen: "troubles", rec.HangSeen: "hangs", rec.CulpritSeen: "hangs", rec.Advised: "hints",
    rec.Diagnosed: "verdicts",
}  # fmt: skip
# What a job that fails again and again has most of: none of their moments is a note.
_WITHOUT_NOTES = (rec.TroubleSeen, rec.Diagnosed, rec.Decided, rec.CarriedOut)


def _tell(view: AttemptView, record: rec.Record) -> None:
    for each in moments(record) if not isinstance(record, _WITHOUT_NOTES) else ():
        if each.kind in _NOTES:
            view.notes.append(each.what)
        elif each.kind in _OF_CARDS:
            view.ends.append(each.what)
    if isinstance(record, rec.AttemptEnded):
        view.ended = record
    elif name := _LISTS.get(type(record)):
        getattr(view, name).append(record)


# --- what repeats in a job's history, said once. Pure: attempts in, what is shown of them out

# One that repeats once is shown: to say so takes as much room.
FOLD_FROM = 2
_DIGITS = re.compile(r"\d+")


class Again(Value):
    """Attempts that went as the one before them. shortest_s, longest_s: of their lives, 0 where no end was recorded."""

    first: int
    last: int
    count: int
    shortest_s: float
    longest_s: float


def folded(attempts: Sequence[AttemptView]) -> list[AttemptView | Again]:
    """In order; the last attempt always stands for itself, as it is the one that people ask for."""
    shown: list[AttemptView | Again] = []
    same: list[AttemptView] = []
    before: tuple[object, ...] | None = None
    for number, attempt in enumerate(attempts):
        last, way = number == len(attempts) - 1, _way(attempt)
        if way == before and not last:
            same.append(attempt)
        else:
            shown += [*_again(same), attempt]
            same = []
        before = way
    return shown


def _again(same: list[AttemptView]) -> Iterable[AttemptView | Again]:
    if len(same) < FOLD_FROM:
        return same
    lives = [attempt.ended.at - attempt.began.at for attempt in same if attempt.ended]
    return [Again(same[0].number, same[-1].number, len(same), min(lives, default=0.0), max(lives, default=0.0))]


def _way(a: AttemptView) -> tuple[object, ...]:
    """How it went, without what differs each time: numbers in a text (pids, seconds, budgets left)."""
    return (
        a.began.nodes, a.began.tasks, tuple(map(fault, a.faults)),
        tuple((v.signature, v.retriable, v.program, (*v.suspects, *v.blamed)) for v in a.verdicts),
        "" if a.verdicts else _DIGITS.sub("0", a.cause), tuple(sorted(a.exits)),
        tuple((hang.sign, _DIGITS.sub("0", hang_words(hang))) for hang in a.hangs), tuple(hint.name for hint in a.hints),
        tuple((r.decided.rung, r.decided.cost, r.done[-1:] and r.done[-1].ok, tuple(r.decided.isolate)) for r in a.remedies),
        tuple(_DIGITS.sub("0", note) for note in (*a.notes, *a.ends)),
    )  # fmt: skip

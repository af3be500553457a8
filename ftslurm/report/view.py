"""A ledger as people ask for it: where a job stands, and what has happened to it. Pure: records in, values out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ftslurm.model import record as rec
from ftslurm.model.folds.control import Control, Request, State, request_in_words, utc
from ftslurm.model.folds.history import counters, counters_of_attempt, fold
from ftslurm.model.folds.summary import Answer, JobSummary, Story, Stuck, state_words, stuck, summarise
from ftslurm.model.rungs import Rung
from ftslurm.model.values import Value, field
from ftslurm.report.card import Card, card_of, numbered_cards
from ftslurm.report.moments import MomentKind, culprit, fault, moments

# --- what the owner of a job has asked for (`ftslurm control`)


class RequestView(Value):
    """A request of the owner of the job, for people; fields without a comment as in record.Requested. Times in Unix seconds, 0:
    not, or not yet."""

    number: int
    state: str  # open (nobody has taken it yet), taken, refused, done, undone
    verb: str
    what: str
    text: str  # the answer, or what came of it
    by: str
    host: str
    at: float
    answered_at: float = 0.0
    done_at: float = 0.0
    attempt: int = 0  # attempt, node: of the ftrun that answered
    node: str = ""
    nodes: tuple[str, ...] = ()
    rung: str = ""
    checkpoints: int = 0
    seen: int = 0  # checkpoints that counted so far
    after: float = 0.0
    until: float = 0.0
    files: str = ""
    target: int = 0


class InForce(Value):
    """What requests hold now. held: rung -> since when (Unix seconds) and by whom. no_restarts: likewise, None if allowed."""

    held: dict[str, tuple[float, str]]
    no_restarts: tuple[float, str] | None
    excluded: tuple[str, ...]

    def why_held(self, rung: str, moment: Callable[[float], str]) -> str:
        """In words; empty if it is not."""
        if rung == Rung.FAIL:
            return ""
        if self.no_restarts is not None:
            return f"no more restarts, by {self.no_restarts[1]} since {moment(self.no_restarts[0])}"
        if rung in self.held:
            at, who = self.held[rung]
            return f"held by {who} since {moment(at)}"
        return ""


def requests(records: Iterable[rec.Record], moment: Callable[[float], str] = utc) -> tuple[RequestView, ...]:
    """All, in the order they were asked. moment: writes Unix seconds for people."""
    return _views(fold(records).control, moment)


def _views(control: Control, moment: Callable[[float], str] = utc) -> tuple[RequestView, ...]:
    return tuple(_view(request, moment) for request in control.requests.values())


def _view(r: Request, moment: Callable[[float], str]) -> RequestView:
    a = r.asked
    return RequestView(
        r.number, r.state.value, a.verb, request_in_words(a, moment), r.text, a.by, a.host, a.at, r.answered_at, r.done_at,
        r.attempt, r.node, a.nodes, a.rung, a.checkpoints, r.seen, a.after, a.until, a.files, a.target,
    )  # fmt: skip


def in_force(control: Control) -> InForce:
    ban = control.no_restarts
    return InForce(
        {rung: (request.asked.at, request.who) for rung, request in control.held.items()},
        (ban.asked.at, ban.who) if ban is not None else None, tuple(sorted(control.excluded)),
    )  # fmt: skip


def to_come(views: Iterable[RequestView]) -> list[RequestView]:
    """Those that nobody has taken or carried out yet."""
    return [view for view in views if view.state in (State.OPEN.value, State.TAKEN.value)]


def in_a_line(view: RequestView) -> str:
    """Without its time."""
    state = "not taken yet" if view.state == State.OPEN.value else view.state
    seen = f", {view.seen} of {view.checkpoints} checkpoints" if view.checkpoints and view.state == State.TAKEN.value else ""
    return f"{view.what}: {state}{seen}{f' ({view.text})' if view.text else ''}"


def request_lines(views: Sequence[RequestView], moment: Callable[[float], str]) -> list[str]:
    """A line each."""
    width = max((len(str(view.number)) for view in views), default=0)
    rows = [(view, f"{view.by}{f' on {view.host}' if view.host else ''}") for view in views]
    return [f"{view.number:>{width}}  {moment(view.at)}  {who}  {in_a_line(view)}" for view, who in rows]


# --- where a job stands, and its attempts


class Status(Value):
    """Where a job stands."""

    job: str
    cluster: str
    command: str
    state: str  # state, what: as in JobSummary
    what: str
    attempt: int
    schedule_count: int
    start_count: int
    rung: str
    cause: str
    why: str
    nodes: str
    excluded: Mapping[str, str]
    left: Mapping[str, tuple[int, int]]  # budget -> (left, limit)
    unconditional_in_a_row: int
    at: float  # of the last record, Unix seconds
    requeue_open: bool
    damaged: int = 0
    card: Card | None = None
    hang: HangView | None = None  # the last one that the present attempt was seen in, with whom it is laid to
    wait: _Wait | None = None
    requests: tuple[RequestView, ...] = ()  # what the owner of the job has asked for and is still to come
    in_force: InForce | None = None  # what such requests hold
    stuck: Stuck | None = None  # a standstill that is no hang yet
    sight: Sight | None = None  # of the attempt that runs

    @property
    def state_words(self) -> str:
        """State and what in one."""
        return state_words(self.state, self.what)


class _Wait(Value):
    """until: at the latest, Unix seconds; 0: nobody knows. helps: what a person can type to end it."""

    until: float
    helps: str


class Sight(Value):
    """What is seen of ranks and devices that run. blind: why nobody can see which rank hangs. faults: that devices have shown."""

    blind: str
    faults: tuple[rec.FaultSeen, ...]


class AttemptView(Value, frozen=False):
    """One attempt. ended 0: not yet, or nobody lived to write it. Times in Unix seconds."""

    number: int
    schedule_count: int
    start_count: int
    nodes: str
    tasks: int
    step: str
    began: float
    ended: float = 0.0
    exits: Mapping[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    cause: str = ""
    verdicts: list[rec.Diagnosed] = field(default_factory=list)
    hangs: list[HangView] = field(default_factory=list)
    hints: list[rec.Advised] = field(default_factory=list)
    remedies: list[RemedyView] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # who is cleared, how ftrun ended: what a card says, where there is one
    cards: list[Card] = field(default_factory=list)


class HangView(Value):
    """The attempt stood still."""

    sign: str  # by what it was noticed, or for who was found the class
    what: str  # in words
    evidence: tuple[str, ...]
    at: float = 0.0  # Unix seconds
    ranks: tuple[int, ...] = ()  # ranks, nodes: who hangs, empty if that is not known
    nodes: tuple[str, ...] = ()
    hang_class: str = ""  # RankCommHang, ...
    level: str = ""  # Error, Warn, Info
    operation: str = ""
    cause: str = ""
    blamed: tuple[str, ...] = ()  # of the nodes, those that something speaks against


class HistoryTold(Value):
    """For programs. evidence: files with what hung ranks were doing."""

    job: Status
    attempts: Sequence[AttemptView]
    evidence: Sequence[str]


class RemedyView(Value, frozen=False):
    """One decision of the ladder."""

    at: float
    rung: str
    cause: str
    why: str
    cost: str
    isolated: Mapping[str, str]
    excluded: tuple[str, ...]
    passed: tuple[tuple[str, str], ...]  # rungs not taken, and why
    ok: bool | None = None
    done: str = ""  # what became of it, empty while open


def status_of(
    records: Sequence[rec.Record], damaged: int = 0, known: JobSummary | None = None, story: Story | None = None
) -> Status | None:
    """None for a ledger in which nothing has begun. known: of this ledger, with Slurm's word; None: by the ledger alone.
    story: of the records, where there is one already.
    """
    story, known = story or Story(records), known or summarise(records)
    history = story.past
    run = history.last_run
    if run is None or known is None:
        return None
    decided = history.last_decision
    counted = counters(history, run.schedule, run.step_key)
    return Status(
        run.job,
        run.cluster,
        run.command,
        known.state,
        known.what,
        history.attempts,
        counted.schedule,
        counted.starts,
        known.rung,
        known.cause,
        decided.why if decided else "",
        known.nodes,
        {node: why for node, (why, _) in history.exclusions.isolated.items()},
        history.budgets.left(run.budgets),
        history.requeues.unconditional_in_a_row,
        known.at,
        history.requeues.open is not None,
        damaged,
        card_of(story),
        _last_hang(records),
        _wait(records, known),
        tuple(to_come(_views(history.control))),
        in_force(history.control),
        stuck(records),
        Sight(_blind(records), story.known.faults) if known.state == "running" else None,
    )


def _wait(records: Sequence[rec.Record], job: JobSummary) -> _Wait | None:
    """Also of a requeue that waits in Slurm's queue: its ftrun has ended."""
    if job.over or job.state not in ("waiting", "requeued", "pending"):
        return None
    last = next((each for each in reversed(records) if isinstance(each, (rec.Waiting, rec.RunBegan, rec.AttemptBegan))), None)
    return _Wait(job.until if job.state == "waiting" else 0.0, last.helps if isinstance(last, rec.Waiting) else "")


def _last_hang(records: Sequence[rec.Record]) -> HangView | None:
    """The last word on who hangs, else on how it was noticed; slow ranks do not hang."""
    hang: HangView | None = None
    for record in reversed(records):
        if isinstance(record, rec.AttemptBegan | rec.HangEnded | rec.Paused):
            break
        if isinstance(record, rec.CulpritSeen) and record.sign in HANG_CLASSES and record.ranks:
            return _found(record)
        if isinstance(record, rec.HangSeen):
            hang = hang or _noticed(record)
    return hang


def _blind(records: Sequence[rec.Record]) -> str:
    for record in reversed(records):
        if isinstance(record, rec.ProgramSaid) and record.what == "probe":
            return f"rank {record.rank} has no probe: {record.text}"
        if isinstance(record, rec.AttemptBegan):
            break
    return ""


HANG_CLASSES = frozenset({"RankCommHang", "RankNonCommHang", "ExitHang"})


def _noticed(h: rec.HangSeen) -> HangView:
    return HangView(h.sign, h.what, h.evidence, h.at, h.ranks, h.nodes, h.hang_class, h.level, h.operation, h.cause, h.blamed)


def _found(c: rec.CulpritSeen) -> HangView:
    return HangView(c.sign, culprit(c), c.evidence, c.at, c.ranks, c.nodes, c.sign, c.level, c.operation, c.cause, c.blamed)


def attempts(records: Sequence[rec.Record], story: Story | None = None) -> list[AttemptView]:
    """Every attempt in order, with what happened in it and what was done about it. story: as in `status`."""
    found: list[AttemptView] = []
    for record in records:
        if isinstance(record, rec.AttemptBegan):
            found.append(_begun(record))
        elif found:
            _tell(found[-1], record)
    by_number = {view.number: view for view in found}
    story = story or Story(records)
    for each in story.told:
        if isinstance(each, Answer) and each.known.attempt is not None:
            by_number[each.known.attempt.attempt].remedies.append(_remedy(each))
    for number, card in numbered_cards(story):
        if number in by_number:
            by_number[number].cards.append(card)
    return found


def _remedy(answer: Answer) -> RemedyView:
    d, last = answer.decided, answer.done[-1] if answer.done else None
    return RemedyView(
        d.at, d.rung, d.cause, d.why, d.cost, d.isolate, d.exclude, d.passed, last.ok if last else None, last.what if last else ""
    )


def _begun(record: rec.AttemptBegan) -> AttemptView:
    counted = counters_of_attempt(record)
    return AttemptView(counted.attempt, counted.schedule, counted.starts, record.nodes, record.tasks, record.step, record.at)


_NOTES = frozenset({MomentKind.CHANGED, MomentKind.ASKED, MomentKind.WAITED})
_OF_CARDS = frozenset({MomentKind.CLEARED, MomentKind.ENDED})


def _tell(view: AttemptView, record: rec.Record) -> None:
    for each in moments(record):
        if each.kind in _NOTES:
            view.notes.append(each.what)
        elif each.kind in _OF_CARDS:
            view.ends.append(each.what)
    match record:
        case rec.FaultSeen():
            view.faults.append(fault(record))
        case rec.HangSeen():
            view.hangs.append(_noticed(record))
        case rec.CulpritSeen():
            view.hangs.append(_found(record))
        case rec.Advised():
            view.hints.append(record)
        case rec.Diagnosed():
            view.verdicts.append(record)
        case rec.TroubleSeen():
            view.cause = view.cause or record.words
        case rec.AttemptEnded():
            view.ended, view.exits = record.at, record.exits
        case _:
            pass


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
    for number, attempt in enumerate(attempts):
        last = number == len(attempts) - 1
        if number and not last and _way(attempt) == _way(attempts[number - 1]):
            same.append(attempt)
            continue
        shown += [*_again(same), attempt]
        same = []
    return shown


def _again(same: list[AttemptView]) -> Iterable[AttemptView | Again]:
    if len(same) < FOLD_FROM:
        return same
    lives = [attempt.ended - attempt.began for attempt in same if attempt.ended]
    return [Again(same[0].number, same[-1].number, len(same), min(lives, default=0.0), max(lives, default=0.0))]


def _way(a: AttemptView) -> tuple[object, ...]:
    """How it went, without what differs each time: numbers in a text (pids, seconds, budgets left)."""
    return (
        a.nodes, a.tasks, tuple(a.faults),
        tuple((v.signature, v.retriable, v.program, (*v.suspects, *v.blamed)) for v in a.verdicts),
        "" if a.verdicts else _DIGITS.sub("0", a.cause), tuple(sorted(a.exits)),
        tuple((hang.sign, _DIGITS.sub("0", hang.what)) for hang in a.hangs), tuple(hint.name for hint in a.hints),
        tuple((r.rung, r.cost, r.ok, tuple(r.isolated)) for r in a.remedies),
        tuple(_DIGITS.sub("0", note) for note in (*a.notes, *a.ends)),
    )  # fmt: skip

"""The failure card: what a person reads when a job fails, is moved or hangs. Pure: records in, lines out.

It has at most eight lines, in a narrow terminal sixteen. The same card goes to ftrun's log, to `ftslurm status`, to
`ftslurm history` and into notices (`lines` makes its text).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterable, Iterator, Sequence

from ftslurm.model import record as rec
from ftslurm.model.exits import signal_name, signal_number
from ftslurm.model.folds.history import History
from ftslurm.model.folds.summary import AFTER_LIMIT, Answer, AtLimit, KnownThen, LeftAlone, Story
from ftslurm.model.nodes import fold_nodes, mark_down
from ftslurm.model.rungs import REQUEUES, RESTARTS, SWAPS, Budget, Rung
from ftslurm.model.text import cut, cut_front, file_of_rank, visible
from ftslurm.model.values import Value, field, replace
from ftslurm.model.verdict import EVERYWHERE, Confidence, ErrorClass
from ftslurm.report.moments import culprit
from ftslurm.report.words import FAULT, KILLED, KILLED_BY, budgets, experiment, saves, span

MAX_LINES = 8
# Below this width eight lines would cut every fact short, so a card may take twice as many. ftrun on 80 columns has 73.
NARROW = 72
# Length of one fact in a pipe, where lines are not wrapped. An exception's message may be as long as a page.
MAX_CHARS = 300
# In a terminal: the facts in the order in which they get another row while rows are left, and the most rows of one fact.
_WANTS_ROOM = ("what", "why", "again", "done", "", "hint", "next", "where", "log")
_MAX_ROWS = 3
# Narrower than this nothing can be read.
MIN_WIDTH = 40
_PATHS = frozenset({"where", "log"})
_INDENT, _LABEL = 2, 5


class Card(Value):
    """One failure and what was done about it."""

    at: float  # Unix seconds
    rung: str  # the one that handled it; empty for a hang left alone
    title: str  # what becomes of the job, and who failed (rank, node)
    what: str = ""  # exception or code
    meaning: str = ""  # what that means
    where: str = ""  # file:line or device
    why: str = ""  # the evidence
    done: str = ""  # what ftrun did, and its cost
    hint: str = ""  # what a person can do
    log: str = ""  # the rank's log file
    next: str = ""  # a command to type
    again: str = ""  # for a log, is another try worth it?

    def rows(self, most: int = MAX_CHARS) -> tuple[tuple[str, str], ...]:
        """(label, value) of the known facts; the title's label is empty. most: characters of a value; what a message means is
        left out where both do not fit, but for one that would be cut alone as well."""
        means = f" ({self.meaning})" if self.meaning else ""
        if len(self.what) <= most < len(self.what) + len(means):
            means = ""
        told = bool(self.what) and not self.meaning and self.what in self.title
        what = "" if told else cut(self.what, max(most // 2, most - len(means)))
        facts = (
            ("", self.title), ("what", what and f"{what}{means}"), ("where", self.where), ("why", self.why),
            ("again", self.again),
            ("done", self.done), ("hint", self.hint), ("log", self.log), ("next", self.next),
        )  # fmt: skip
        return tuple((label, visible(value)) for label, value in facts if value)


def card_lines(card: Card, width: int | None = None) -> list[str]:
    """The card as text, at most `max_lines(width)` lines.

    width: columns of a terminal: a long value continues on the next line while lines are left, and the hint gives way to the
    other facts. None for a pipe or a message: one line per fact, cut at MAX_CHARS.
    """
    if width is None:
        return [_first(label) + _fitted(label, value, MAX_CHARS, 1)[0] for label, value in card.rows()]
    wants = {label: len(_fitted(label, value, _room(label, width))) for label, value in card.rows()}
    if sum(wants.values()) > max_lines(width):
        wants.pop("hint", None)
    share, spare = dict.fromkeys(wants, 1), max_lines(width) - len(wants)
    for label in (name for name in _WANTS_ROOM if name in wants):
        more = min(spare, _MAX_ROWS - 1, wants[label] - 1)
        share[label], spare = share[label] + more, spare - more
    most = share.get("what", 1) * (_room("what", width) - 4)  # a line that ends with a whole word is not full
    return [
        (_first(label) if number == 0 else " " * max(_INDENT, len(_first(label)))) + line
        for label, value in card.rows(most)
        if label in share
        for number, line in enumerate(_fitted(label, value, _room(label, width), share[label]))
    ]


def max_lines(width: int) -> int:
    """The most lines of a card in a terminal with this many columns."""
    return MAX_LINES if width >= NARROW else 2 * MAX_LINES


def _room(label: str, width: int) -> int:
    """Columns for a value."""
    return max(MIN_WIDTH, width) - _INDENT - (_LABEL + 2 if label else 0)


def _first(label: str) -> str:
    return f"{' ' * _INDENT}{label:<{_LABEL}}  " if label else ""


def _fitted(label: str, value: str, width: int, rows: int | None = None) -> list[str]:
    """The value in at most `rows` rows, shortened if need be."""
    shown = cut_front(value, rows * width) if rows and label in _PATHS else value
    return textwrap.wrap(shown, width, break_on_hyphens=False, max_lines=rows, placeholder="...") or [""]


def last_card(records: Sequence[rec.Record]) -> Card | None:
    """The card of the last failure in the records."""
    return card_of(Story(records))


def card_of(story: Story) -> Card | None:
    """The last one."""
    return _card(story.told[-1]) if story.told else None


class LastCard:
    """The last card of a growing ledger: it reads each record once, however many failures there were before."""

    def __init__(self) -> None:
        self._story = Story()

    def after(self, records: Iterable[rec.Record]) -> Card | None:
        """records: those after the ones of the last call."""
        for record in records:
            self._story.see(record)
        self._story.forget()
        return card_of(self._story)


def cards(story: Story, attempts: Container[int] | None = None) -> Iterator[tuple[int, str, Card]]:
    """A card for each decision of the ladder, and for each hang left alone, in order, each with the attempt that it ended and the
    id of the decision. attempts: only of these."""
    for each in story.told:
        if attempts is None or _attempt(each) in attempts:
            yield _attempt(each), each.decided.id if isinstance(each, Answer) else "", _card(each)


def _attempt(told: Answer | LeftAlone | AtLimit) -> int:
    match told:
        case Answer(decided=decided):
            return decided.attempt
        case LeftAlone(seen=seen):
            return seen.attempt
        case AtLimit(known=known):
            return known.attempt.attempt if known.attempt is not None else 0


def _card(told: Answer | LeftAlone | AtLimit) -> Card:
    match told:
        case Answer():
            card = _Writer(told.known, told.past, told.again is not None).of_decision(told.decided)
            return replace(card, done="; ".join([card.done, *_became(told)]))
        case LeftAlone():
            card = _Writer(told.known, over=told.after_s is not None).of_hang(told.seen)
            over = "" if told.after_s is None else f"; went on by itself after {span(told.after_s)}"
            return replace(card, done=f"{card.done}{over}")
        case AtLimit():
            return _Writer(told.known).of_limit(told.finished)


def _became(answer: Answer) -> Iterator[str]:
    """What became of a decision, as far as it is not what everybody expects."""
    decided, known = answer.decided, answer.known
    yield from saves(known.ended.saves) if known.ended is not None else ()
    for done in answer.done:
        if not done.ok:
            yield f"that failed: {done.what}"
        elif decided.rung in SWAPS and done.what:
            yield done.what
    if isinstance(answer.again, rec.AttemptBegan) and known.attempt is not None and decided.attempt == known.attempt.attempt:
        yield f"back after {span(max(0.0, answer.again.at - (known.trouble or decided).at))}"


class _Writer(Value):
    """Words a card. past: all that was known of the job. over: the job went on since then."""

    known: KnownThen
    past: History = field(default_factory=History)
    over: bool = False

    @property
    def job(self) -> str:
        return self.known.run.job if self.known.run else "?"

    def of_hang(self, hang: rec.HangSeen) -> Card:
        """Announced: nothing is done about it."""
        title = f"job {self.job} {'seemed' if self.over else 'seems'} to hang: {hang.what}"
        return Card(
            hang.at, "", title, hang.culprit or self._culprit(), "", "", _pieces(hang.evidence),
            f"nothing: {hang.left or 'hang-restart is switched off'}; the ranks {'kept' if self.over else 'keep'} running",
            self._hint(None)
            or f"`ftslurm control {self.job} restart` restarts them in place; rungs.hang-restart.enabled: true always does",
            self._log(-1, ""), f"ftslurm history {self.job}" if self.over or not hang.helps else hang.helps,
        )  # fmt: skip

    def of_limit(self, finished: rec.Finished) -> Card:
        title, done = f"job {self.job}: the time limit ended it", "nothing: the job was not to be requeued at its limit"
        return Card(finished.at, Rung.FAIL, title, done=done, hint=AFTER_LIMIT, next=f"ftslurm history {self.job}")

    def of_decision(self, decided: rec.Decided) -> Card:
        hung = decided.cause == "hang"
        v = self.known.verdict
        if v is not None and not v.said and v.confidence == "none":
            v = None  # it knows no more than the title
        return Card(
            decided.at, decided.rung, f"{self._becomes(decided)}: {self._who(decided)}",
            what_of(v) if v else self._culprit() if hung else "", meaning_of(v) if v else "",
            v.place if v else "",
            self._why(decided, v), self._done(decided), self._hint(v),
            self._log(v.rank if v else -1, v.node if v else ""), self._then(decided),
        )  # fmt: skip

    def _becomes(self, decided: rec.Decided) -> str:
        without = f" without {fold_nodes(decided.exclude)}" if decided.exclude else ""
        left = f" {fold_nodes(decided.isolate or [decided.without])}" if decided.isolate or decided.without else " a node"
        becomes: dict[str, tuple[str, str]] = {
            Rung.RANK_RESTART: ("one rank is started again", "one rank was started again"),
            Rung.IN_PLACE_RESTART: ("is restarted in place", "was restarted in place"),
            Rung.HANG_RESTART: ("hangs and is restarted in place", "hung and was restarted in place"),
            Rung.NODE_REPLACEMENT: (f"replaces{left}", f"replaced{left}"),
            Rung.SHRINK: (f"continues without{left}", f"continued without{left}"),
            Rung.FAIL: ("failed", "failed"),
        }
        words = becomes.get(decided.rung, (f"is requeued{without}", f"was requeued{without}"))[self.over]
        return f"job {self.job}{':' if decided.rung == Rung.RANK_RESTART else ''} {words}"

    def _who(self, decided: rec.Decided) -> str:
        v, trouble = self.known.verdict, self.known.trouble
        if decided.cause == "hang" and self.known.hang is not None:
            return f"it hung: {self.known.hang.what}" if decided.rung == Rung.FAIL else self.known.hang.what
        if trouble is None:
            return decided.why.partition("; ")[0]
        if trouble.cause in _DEVICE and v is not None and v.place and v.rank < 0:
            return v.place
        everywhere = v is not None and v.tasks > 1 and v.spread == EVERYWHERE  # some were stopped before they had ended
        if v is not None and v.program and (len(v.ranks) > 1 or everywhere):
            many = f"all {v.tasks}" if everywhere or len(v.ranks) == v.tasks else f"{len(v.ranks)} of {v.tasks}"
            return f"{many} ranks failed; {trouble.words}"
        if v is not None and v.rank not in (-1, trouble.rank):
            return f"rank {v.rank} on {v.node} {v.end or 'is where it began'}; {trouble.words}"
        return trouble.words

    def _culprit(self) -> str:
        return culprit(self.known.culprit) if self.known.culprit is not None else ""

    def _why(self, decided: rec.Decided, v: rec.Diagnosed | None) -> str:
        trouble = self.known.trouble.what if self.known.trouble else ""
        told: list[str] = []
        if v is None:
            evidence = (
                *(self.known.hang.evidence if self.known.hang else ()),
                *(self.known.culprit.evidence if self.known.culprit else ()),
            )
            known, more = [trouble], [_pieces(evidence)] if evidence else []
        else:
            known = [v.said, trouble] if v.said else [v.what]
            more = more_of(v, known)
            if _CONTRAST not in v.because:  # its sentence says whose fault it is
                told.append(fault_of(v))
            if v.confidence == "fact" and v.rank < 0 and v.place:
                told.append("the device itself reports it")
        for node, why in list(decided.isolate.items())[:1]:
            told += self._held(node, why, decided.often.get(node, ""), (*known, *(v.evidence if v else ())))
        told += more
        if self.known.back:
            told.append(f"{fold_nodes(self.known.back)} {'is' if len(self.known.back) == 1 else 'are'} reinstated")
        told += [experiment(self.known.experiment)] if self.known.experiment else []
        return "; ".join(told)

    def _held(self, node: str, why: str, often: str, known: Sequence[str]) -> list[str]:
        """Why a node is left, less what the card has told already."""
        reason = self.known.verdict.suspects.get(node, why) if often and self.known.verdict is not None else why
        held = [] if _is_told(reason, known) else [reason.removeprefix(f"{node}: ")]
        held += [f"held against it {often}"] if often else []
        return [f"{node}: {'; '.join(held)}"] if held else []

    def _done(self, decided: rec.Decided) -> str:
        if decided.rung == Rung.FAIL:
            reason = decided.reason or "nothing above applies"
            used = {Budget.JOB_RESTARTS: self.past.budgets.used(Budget.JOB_RESTARTS), **self.past.budgets.spent}
            spent = [name for name, n in used.items() if n and self._limit(name) and name not in reason]
            left = [self._cost(name) for name in spent]
            told = [f"nothing more: {reason}", *left, self._lived()]
        else:
            why = f" ({decided.reason})" if decided.reason else ""
            together = [self._cost(Budget.JOB_RESTARTS)] if self._limit(Budget.JOB_RESTARTS) and decided.rung in RESTARTS else []
            costs = [self._cost(decided.cost)] if decided.cost else [] if together else ["costs nothing"]
            told = [f"{decided.rung}{why}", *together, *costs, self._lived()]
        return "; ".join(each for each in told if each)

    def _cost(self, name: str) -> str:
        limit = self._limit(name)
        return budgets({name: (limit - self.past.budgets.used(name), limit)})

    def _limit(self, name: str) -> int:
        return self.known.run.budgets.get(name, 0) if self.known.run else 0

    def _lived(self) -> str:
        if self.known.attempt is None or self.known.trouble is None or self.known.trouble.attempt != self.known.attempt.attempt:
            return ""
        return f"it ran {span(max(0.0, self.known.trouble.at - self.known.attempt.at))}"

    def _hint(self, v: rec.Diagnosed | None) -> str:
        if self.known.advice is not None:
            return f"{self.known.advice.what}: {self.known.advice.advice}"
        if v is None or _CONTRAST in v.because:
            return ""  # it has been found whose fault it is: advice on how to find out is of no use any more
        return v.advice

    def _log(self, rank: int, node: str) -> str:
        if self.known.run is None or not self.known.run.log:
            return ""
        path = file_of_rank(self.known.run.log, rank, node)
        return f"{path}, lines labelled `{rank}:`" if self.known.run.labels and rank >= 0 else path

    def _then(self, decided: rec.Decided) -> str:
        """What helps now, else where more stands."""
        v = self.known.verdict
        if decided.dead and decided.rung in REQUEUES and not self.over:
            return f"{mark_down(decided.dead)}  (an administrator, to start at once)"
        if v is not None and decided.cause in _DEVICE and v.rank < 0 and v.place:
            return f"ftslurm explain {v.said}"
        if decided.isolate and not decided.without and not self.over:
            return "ftslurm nodes  (what mends the node)"
        if decided.rung == Rung.FAIL:
            more = f"ftrun --ft-set {decided.limit}=N  (allows more)"
            return more if decided.limit else f"ftslurm history {self.job}"
        return f"ftslurm status {self.job}"


def what_of(v: rec.Diagnosed) -> str:
    if not v.said:
        return v.what
    return v.meaning if _is_signal(v) else " ".join(_TAGS.sub("", v.said).split())


def meaning_of(v: rec.Diagnosed) -> str:
    return "" if not v.said or v.meaning in v.said or _is_signal(v) else v.meaning


def _is_signal(v: rec.Diagnosed) -> bool:
    """It ended by a signal, and nothing else is known: the catalogue's meaning names that as well."""
    return v.said == v.signature == signal_name(signal_number(v.said))


def fault_of(v: rec.Diagnosed) -> str:
    """Whose it is, and how widely it was seen."""
    fault = _fault(v)
    if not v.spread:
        return fault
    return f"{fault}; seen {v.spread}" if fault == _NOT_KNOWN else f"{fault}, {v.spread}"


def more_of(v: rec.Diagnosed, known: Sequence[str]) -> list[str]:
    """Of the evidence what is not known already, two pieces at the most."""
    return [piece for piece in v.evidence if not _is_told(piece, known)][:2]


def _fault(v: rec.Diagnosed) -> str:
    known = {each.value: FAULT[each] for each in ErrorClass if each is not ErrorClass.UNKNOWN}
    if v.error_class not in known:
        return _NOT_KNOWN
    if v.signature == "node":
        return "the node's fault"  # a power cut, a reboot or its network: nobody knows
    if v.signature in KILLED_BY:
        known[ErrorClass.OOM.value] = KILLED
    whose, rest = _WHOSE.match(known[v.error_class]).groups()  # type: ignore[union-attr]
    by_words = v.error_class == ErrorClass.HARDWARE.value and v.confidence == Confidence.STRONG.value
    sure = "by its words " if by_words else "probably " if v.confidence == Confidence.WEAK.value else ""
    return f"{sure}{whose} fault{rest}"


_NOT_KNOWN = "cause unknown"
_WHOSE = re.compile(r"([^:,]*)(.*)")
# Causes of the ladder that a device's code is behind.
_DEVICE = frozenset({"device", "user-induced"})
# The rule (policies/weigh.py) that finds whose fault it is by what the job has seen before.
_CONTRAST = "contrast"


def _pieces(evidence: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(evidence[:2]))


# What loggers write first: `[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] `.
_TAGS = re.compile(r"^(?:\[[^\[\]]{1,60}\]:? ?)+(?=[^: ].{19})")
_WHO = re.compile(r"^(?:rank \d+(?: on [^ :]+)?|[\w.-]+): ")


def _is_told(piece: str, known: Sequence[str]) -> bool:
    """Does the card say that already? Other ranks with the same words add nothing."""
    bare = _TAGS.sub("", _WHO.sub("", piece, count=1))
    return any(each and (bare.startswith(_TAGS.sub("", each)[:60]) or piece.startswith(each[:60])) for each in known)

"""The failure card: what a person reads when a job fails, is moved or hangs. Pure: records in, lines out.

It has at most eight lines, in a narrow terminal sixteen. The same card goes to ftrun's log, to `ftslurm status`, to
`ftslurm history` and into notices (`lines` makes its text).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ftslurm.model import record as rec
from ftslurm.model.folds.history import History
from ftslurm.model.folds.summary import AFTER_LIMIT
from ftslurm.model.nodes import fold
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.rungs import RESTARTS, SWAPS, Budget, Rung
from ftslurm.model.text import cut, cut_front, visible
from ftslurm.model.values import dataclass
from ftslurm.model.verdict import Confidence, ErrorClass
from ftslurm.report.words import FAULT, experiment, span

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


@dataclass(frozen=True, slots=True)
class Card:
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
        what = cut(self.what, max(most // 2, most - len(means)))
        facts = (
            ("", self.title), ("what", f"{what}{means}"), ("where", self.where), ("why", self.why), ("again", self.again),
            ("done", self.done), ("hint", self.hint), ("log", self.log), ("next", self.next),
        )  # fmt: skip
        return tuple((label, visible(value)) for label, value in facts if value)


def lines(card: Card, width: int | None = None) -> list[str]:
    """The card as text, at most `max_lines(width)` lines.

    width: columns of a terminal: a long value continues on the next line while lines are left, and the hint gives way to the
    other facts. None for a pipe or a message: one line per fact, cut at MAX_CHARS.
    """
    if width is None:
        return [_first(label) + _short(label, value, MAX_CHARS) for label, value in card.rows()]
    wants = {label: len(_wrapped(value, _room(label, width))) for label, value in card.rows()}
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


def _wrapped(value: str, width: int) -> list[str]:
    return textwrap.wrap(value, width, break_on_hyphens=False) or [""]


def _short(label: str, value: str, most: int) -> str:
    return cut_front(value, most) if label in _PATHS else cut(value, most)


def _fitted(label: str, value: str, width: int, rows: int) -> list[str]:
    """The value in at most `rows` rows, shortened if need be."""
    most = rows * width
    while len(told := _wrapped(_short(label, value, most), width)) > rows:
        most -= 4
    return told


def last_card(records: Sequence[rec.Record]) -> Card | None:
    """The card of the last failure in the records."""
    found = cards(records)
    return found[-1] if found else None


class LastCard:
    """The last card of a growing ledger: it reads each record once, however many failures there were before."""

    def __init__(self) -> None:
        self._walk = _Walk()
        self._seen = 0  # records

    def of(self, records: Sequence[rec.Record]) -> Card | None:
        """records: those of the last call, and the new ones after them."""
        for record in records[self._seen :]:
            self._walk.see(record)
        self._seen = len(records)
        return self._walk.found[-1][2] if self._walk.found else None


def cards(records: Iterable[rec.Record]) -> list[Card]:
    """A card for each decision of the ladder, and for each hang left alone, in order."""
    return [card for _, card in numbered(records)]


def numbered(records: Iterable[rec.Record]) -> list[tuple[int, Card]]:
    """As `cards`, each with the attempt that it ended."""
    walk = _Walk()
    for record in records:
        walk.see(record)
    return [(attempt, card) for attempt, _, card in walk.found]


def by_decision(records: Iterable[rec.Record]) -> dict[str, Card]:
    """id of the decision -> its card."""
    walk = _Walk()
    for record in records:
        walk.see(record)
    return {id: card for _, id, card in walk.found if id}


class _Walk:
    """Goes through a ledger and makes the cards on the way. found: attempt, id of the decision, card."""

    def __init__(self) -> None:
        self.past = History()
        self.run: rec.RunBegan | None = None
        self.attempts = 0  # starts of all ranks
        self.found: list[tuple[int, str, Card]] = []
        self._next_attempt()

    def _next_attempt(self, begun: rec.AttemptBegan | None = None) -> None:
        self.attempt = begun
        self.trouble: rec.TroubleSeen | None = None
        self._know_nothing()

    def _know_nothing(self) -> None:
        """Forget the cause of the previous failure, also if no attempt lies between."""
        self.verdict: rec.Diagnosed | None = None
        self.hang: rec.HangSeen | None = None
        self.culprit: rec.CulpritSeen | None = None
        self.advice: rec.Advised | None = None
        self.back: list[str] = []
        self.experiment = ""  # what came of one

    def see(self, record: rec.Record) -> None:
        match record:
            case rec.RunBegan():
                self.run = record
                self._know_nothing()
            case rec.AttemptBegan():
                self._began_again(record)
            case rec.TroubleSeen():
                self.trouble = record
                if record.cause == "hang":
                    self._drop_hang(record.attempt)
            case rec.Diagnosed():
                self.verdict = record
            case rec.Reinstated():
                self.back = [
                    node for node in record.nodes
                    if self.past.exclusions.left_on_words.get(node) == record.signature and node in self.past.exclusions.isolated
                ]  # fmt: skip
            case rec.ExperimentEnded():
                self.experiment = experiment(record)
            case rec.HangSeen():
                self.hang = record
                self._drop_hang(record.attempt)
                self.found.append((record.attempt, "", self._of_hang(record)))
            case rec.HangEnded():
                self._went_on(record.attempt, record.at - self.hang.at if self.hang else 0.0)
                self.hang = None
            case rec.Paused() if self.hang is not None:
                self._went_on(record.attempt, record.seconds)
                self.hang = None
            case rec.CulpritSeen():
                self.culprit = record
            case rec.Advised():
                self.advice = self.advice or record
                self._advised(record)
            case rec.Decided():
                self.past = self.past.add(record)
                self.found.append((record.attempt, record.id, self._of_decision(record)))
                return
            case rec.CarriedOut():
                self._carried_out(record)
            case rec.Finished() if outcome_of(record) is Outcome.TIMEOUT:
                self.found.append((self.attempt.attempt if self.attempt else 0, "", self._of_limit(record)))
            case _:
                pass
        self.past = self.past.add(record)

    # --- what comes after a card

    def _began_again(self, begun: rec.AttemptBegan) -> None:
        if self.found and self.found[-1][1] and self.attempt is not None and self.found[-1][0] == self.attempt.attempt:
            away_s = begun.at - (self.trouble.at if self.trouble else self.found[-1][2].at)
            self._amend(f"back after {span(max(0.0, away_s))}")
        self.attempts += 1
        self._next_attempt(begun)

    def _carried_out(self, done: rec.CarriedOut) -> None:
        if not self.found or self.found[-1][1] != done.id:
            return
        if done.ok is False:
            self._amend(f"that failed: {done.what}")
        elif self.found[-1][2].rung in SWAPS and done.what:
            self._amend(done.what)

    def _went_on(self, number: int, after_s: float) -> None:
        if self.found and not self.found[-1][1] and self.found[-1][0] == number:
            self._amend(f"went on by itself after {span(max(0.0, after_s))}")

    def _advised(self, advised: rec.Advised) -> None:
        """Show a common reason for a hang left alone: it helps more than the setting that would restart the job."""
        if self.found and not self.found[-1][1] and self.found[-1][0] == advised.attempt and advised is self.advice:
            number, id, card = self.found[-1]
            self.found[-1] = number, id, replace(card, hint=f"{advised.what}: {advised.advice}")

    def _amend(self, what: str) -> None:
        attempt, id, card = self.found[-1]
        self.found[-1] = attempt, id, replace(card, done=f"{card.done}; {what}")

    def _drop_hang(self, attempt: int) -> None:
        """One that was announced, and is seen anew or answered: its own card comes in its place."""
        if self.found and not self.found[-1][1] and self.found[-1][0] == attempt:
            self.found.pop()

    # --- cards

    @property
    def job(self) -> str:
        return self.run.job if self.run else "?"

    def _of_hang(self, hang: rec.HangSeen) -> Card:
        """Announced: nothing is done about it."""
        title = f"job {self.job} seems to hang: {hang.what}"
        return Card(
            hang.at, "", title, hang.culprit or self._culprit(), "", "", _pieces(hang.evidence),
            f"nothing: {hang.left or 'hang-restart is switched off'}; the ranks keep running",
            self._hint(None)
            or f"`ftslurm control {self.job} restart` restarts them in place; rungs.hang-restart.enabled: true always does",
            self._log(-1, ""), f"ftslurm history {self.job}",
        )  # fmt: skip

    def _of_limit(self, finished: rec.Finished) -> Card:
        title, done = f"job {self.job}: the time limit ended it", "nothing: the job was not to be requeued at its limit"
        return Card(finished.at, Rung.FAIL, title, done=done, hint=AFTER_LIMIT, next=f"ftslurm history {self.job}")

    def _of_decision(self, decided: rec.Decided) -> Card:
        hung = decided.cause == "hang"
        v = self.verdict
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
        without = f" without {fold(decided.exclude)}" if decided.exclude else ""
        left = f" {fold(decided.isolate or [decided.without])}" if decided.isolate or decided.without else " a node"
        job = f"job {self.job}"
        becomes: dict[str, str] = {
            Rung.RANK_RESTART: f"job {self.job}: one rank is started again",
            Rung.IN_PLACE_RESTART: f"{job} is restarted in place",
            Rung.HANG_RESTART: f"{job} hangs and is restarted in place",
            Rung.NODE_REPLACEMENT: f"{job} replaces{left}",
            Rung.SHRINK: f"{job} continues without{left}",
            Rung.FAIL: f"{job} failed",
        }
        return becomes.get(decided.rung, f"{job} is requeued{without}")

    def _who(self, decided: rec.Decided) -> str:
        v, trouble = self.verdict, self.trouble
        if decided.cause == "hang" and self.hang is not None:
            return f"it hung: {self.hang.what}" if decided.rung == Rung.FAIL else self.hang.what
        if trouble is None:
            return decided.why.partition("; ")[0]
        if trouble.cause in _DEVICE and v is not None and v.place and v.said and v.said in trouble.what:
            return v.place
        if v is not None and v.program and len(v.ranks) > 1:
            many = f"all {v.tasks}" if len(v.ranks) == v.tasks else f"{len(v.ranks)} of {v.tasks}"
            return f"{many} ranks failed; {trouble.what}"
        if v is not None and v.rank >= 0 and not f"{trouble.what} ".startswith(f"rank {v.rank} on {v.node} "):
            return f"rank {v.rank} on {v.node} {v.end or 'is where it began'}; {trouble.what}"
        return trouble.what

    def _culprit(self) -> str:
        c = self.culprit
        if c is None:
            return ""
        ranks = f"rank {', '.join(map(str, c.ranks[:8]))} on {', '.join(c.nodes[:8])}" if c.ranks else "no rank in particular"
        return f"{c.sign}: {ranks}{f' in {c.operation}' if c.operation else ''}: {c.cause}"

    def _why(self, decided: rec.Decided, v: rec.Diagnosed | None) -> str:
        trouble = self.trouble.what.partition(" [drill: ")[0] if self.trouble else ""
        told: list[str] = []
        if v is None:
            evidence = (*(self.hang.evidence if self.hang else ()), *(self.culprit.evidence if self.culprit else ()))
            known, more = [trouble], [_pieces(evidence)] if evidence else []
        else:
            known = [v.said, trouble] if v.said else [v.what]
            more = more_of(v, known)
            if not (v.evidence and v.evidence[0].startswith(_SAME)):  # it says whose fault it is
                told.append(fault_of(v))
            if v.confidence == "fact" and v.rank < 0 and v.place:
                told.append("the device itself reports it")
        for node, why in list(decided.isolate.items())[:1]:
            told += self._held(node, why, (*known, *(v.evidence if v else ())))
        told += more
        if self.back:
            told.append(f"{fold(self.back)} {'is' if len(self.back) == 1 else 'are'} reinstated")
        told += [self.experiment] if self.experiment else []
        return "; ".join(told)

    def _held(self, node: str, why: str, known: Sequence[str]) -> list[str]:
        """Why a node is left, less what the card has told already."""
        reason, counted, times = why.partition("; held against it")
        held = [] if _is_told(reason, known) else [reason.removeprefix(f"{node}: ")]
        held += [f"held against it{times}"] if counted else []
        return [f"{node}: {'; '.join(held)}"] if held else []

    def _done(self, decided: rec.Decided) -> str:
        if decided.rung == Rung.FAIL:
            reason = decided.reason or "nothing above applies"
            used = {Budget.JOB_RESTARTS: self.past.budgets.used(Budget.JOB_RESTARTS), **self.past.budgets.spent}
            spent = [name for name, n in used.items() if n and self._limit(name) and name not in reason]
            left = [self._cost(name) for name in spent]
            told = [f"nothing more: {reason}", *left, self._lived()]
        else:
            known = decided.reason.startswith("without ") or decided.reason in _PLAIN
            why = f" ({decided.reason})" if decided.reason and not known else ""
            together = [self._cost(Budget.JOB_RESTARTS)] if self._limit(Budget.JOB_RESTARTS) and decided.rung in RESTARTS else []
            costs = [self._cost(decided.cost)] if decided.cost else [] if together else ["costs nothing"]
            told = [f"{decided.rung}{why}", *together, *costs, self._lived()]
        return "; ".join(each for each in told if each)

    def _cost(self, name: str) -> str:
        limit = self._limit(name)
        return f"{name} {limit - self.past.budgets.used(name)} of {limit} left" if limit else f"one of {name}"

    def _limit(self, name: str) -> int:
        return self.run.budgets.get(name, 0) if self.run else 0

    def _lived(self) -> str:
        if self.attempt is None or self.trouble is None or self.trouble.attempt != self.attempt.attempt:
            return ""
        return f"it ran {span(max(0.0, self.trouble.at - self.attempt.at))}"

    def _hint(self, v: rec.Diagnosed | None) -> str:
        if self.advice is not None:
            return f"{self.advice.what}: {self.advice.advice}"
        if v is None or (v.evidence and v.evidence[0].startswith(_SAME)):
            return ""  # it has been found whose fault it is: advice on how to find out is of no use any more
        return v.advice

    def _log(self, rank: int, node: str) -> str:
        if self.run is None or not self.run.log:
            return ""
        path = expand(self.run.log, rank, node)
        return f"{path}, lines labelled `{rank}:`" if self.run.labels and rank >= 0 else path

    def _then(self, decided: rec.Decided) -> str:
        if self.verdict is not None and decided.cause in _DEVICE and self.verdict.rank < 0 and self.verdict.place:
            return f"ftslurm explain {self.verdict.said}"
        return f"ftslurm {'history' if decided.rung == 'fail' else 'status'} {self.job}"


_FIELD = re.compile(r"%(?:(%)|(\d{0,4})([tnN]))")


def expand(pattern: str, rank: int, node: str) -> str:
    """The file of one rank, as srun names it; `*` for what is not known."""

    def value_of(found: re.Match[str]) -> str:
        if found[1]:
            return "%"
        if found[3] == "t":
            return str(rank).zfill(min(int(found[2] or 0), 10)) if rank >= 0 else "*"
        return (node or "*") if found[3] == "N" else "*"

    return _FIELD.sub(value_of, pattern)


def what_of(v: rec.Diagnosed) -> str:
    if not v.said:
        return v.what
    return v.meaning if v.meaning.startswith(f"{v.said}: ") else " ".join(_TAGS.sub("", v.said).split())  # of a signal


def meaning_of(v: rec.Diagnosed) -> str:
    return "" if not v.said or v.meaning in v.said or v.meaning.startswith(f"{v.said}: ") else v.meaning


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
    whose, rest = _WHOSE.match(known[v.error_class]).groups()  # type: ignore[union-attr]
    by_words = v.error_class == ErrorClass.HARDWARE.value and v.confidence == Confidence.STRONG.value
    sure = "by its words " if by_words else "probably " if v.confidence == Confidence.WEAK.value else ""
    return f"{sure}{whose} fault{rest}"


_NOT_KNOWN = "cause unknown"
_WHOSE = re.compile(r"([^:,]*)(.*)")
# Reasons of rungs that their names tell already.
_PLAIN = frozenset({
    "no node is to blame", "the fault is one that heals", "the error is one that a restart heals", "the ranks are independent",
    "a hang that no hardware fault explains",
})  # fmt: skip
# Causes of the ladder that a device's code is behind.
_DEVICE = frozenset({"device", "user-induced"})
# How contrast.py begins its sentence.
_SAME = "the same error ("


def _pieces(evidence: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(evidence[:2]))


# What loggers write first: `[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] `.
_TAGS = re.compile(r"^(?:\[[^\[\]]{1,60}\]:? ?)+(?=.{20})")
_WHO = re.compile(r"^(?:rank \d+(?: on [^ :]+)?|[\w.-]+): ")


def _is_told(piece: str, known: Sequence[str]) -> bool:
    """Does the card say that already? Other ranks with the same words add nothing."""
    bare = _WHO.sub("", piece, count=1)
    return any(each and (bare.startswith(each[:60]) or piece.startswith(each[:60])) for each in known)

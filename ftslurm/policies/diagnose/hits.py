"""The lines of the ranks' output that report a failure: what patterns and rules know of each rank's output, in order of time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate
from operator import attrgetter

from ftslurm.catalogs.patterns import Pattern
from ftslurm.model.devices import Fault
from ftslurm.model.text import visible
from ftslurm.model.values import dataclass
from ftslurm.model.verdict import Piece, RankEnd, Role
from ftslurm.policies.diagnose.text.errors import WORKED_ON_LINES, told_error
from ftslurm.policies.diagnose.text.findings import Book, Finding, ends_of_runs
from ftslurm.policies.diagnose.text.lines import is_of_ordinary_work
from ftslurm.policies.diagnose.text.traces import label_of, plain_pieces

# A rank that prints ordinary lines for this long after an error has overcome it; a traceback and what libraries say of it
# come within moments.
OVERCOME_S = 2.0
# So much of what stands below an error is looked at for ordinary work.
WORKED_ON_BYTES = 8000
# Lines this close before the next error belong to it (a traceback is printed before its last line).
BURST_S = 0.5
# Limits of what is shown to people.
EVIDENCE_LINES, EVIDENCE_CHARS = 6, 300
EXCERPT_BEFORE = 80
BEGINNING_CHARS = 80
# It cleans up behind a process that has died, and falls over what is gone already.
CLEANER = "multiprocessing/resource_tracker.py"
# Signals by which the kernel ends a process for what it did.
OF_ITSELF = frozenset({4, 7, 8, 11})
# How a process goes down that another's failure may have taken along.
CRASHES = frozenset({"segv", "sigbus"})
# What Slurm prints of a kill for memory.
SLURMS_WORD_ON_MEMORY = "slurm-oom"
# Lines of a launcher about its children.
HEADERS = frozenset({"child-failed", "torchelastic-child", "torchelastic-signal", "mpi-abort", "mpi-abort-more", "sigabrt"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known besides the ranks' ends. faults: of devices, graded. bad_nodes: node -> why it counts as broken."""

    faults: tuple[Fault, ...] = ()
    bad_nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """A line of a rank's output that reports a failure. own: its rank failed by itself."""

    end: RankEnd
    at: float
    line: str
    pattern: Pattern
    overcome: bool = False  # the rank then went on well
    place: str = ""  # in the user's own code, where a trace tells it
    mild: bool = False  # its writer does not call it an error
    settled: bool = False  # nor a failure
    led_to: bool = False  # an exception that came of the one before it
    whose: bytes = b""  # the label by which a launcher tells which of its processes has written it

    @property
    def own(self) -> bool:
        return failed(self.end)

    def __str__(self) -> str:
        where = f" (at {self.place})" if self.place else ""
        return f"rank {self.end.rank} on {self.end.node}: {self.line}{where}"


def of_another_voice(one: Hit, other: Hit) -> bool:
    """Are the two lines of different ranks, or of different processes whose launcher is the rank?"""
    return one.end.rank != other.end.rank or (bool(one.whose) and bool(other.whose) and one.whose != other.whose)


def failed(end: RankEnd) -> bool:
    """Did the rank fail by itself, and not because it was told to stop?"""
    return end.status is not None and not end.status.ok and not end.stopped


def hits_of(end: RankEnd, book: Book) -> list[Hit]:
    """Every line of the rank's output that a pattern or rule knows, in order of time."""
    found: list[Hit] = []
    for stream in ("out", "err"):
        pieces = [piece for piece in end.output if piece.stream == stream]
        if not pieces:
            continue
        texts = plain_pieces([piece.text for piece in pieces])
        begins = list(accumulate(map(len, texts[:-1]), initial=0))
        whole = b"".join(texts)
        hits = [hit for hit in ends_of_runs(whole, book) if CLEANER not in hit.place]
        errors = [hit for hit in hits if not hit.mild]
        last = max((hit.offset for hit in errors), default=-1)
        root = max((hit.offset for hit in errors if hit.pattern.role is Role.ROOT), default=-1)
        for hit in hits:
            at = pieces[bisect_right(begins, hit.offset) - 1].at
            whose, place = label_of(hit.line), visible(hit.place)
            below = whole[hit.offset + len(hit.line) :]
            # What only followed from another error is no better cause than what stands above.
            overcome = _worked_on(whose, below) and (root > hit.offset or (last <= hit.offset and _gave_up_below(end, below)))
            found.append(Hit(end, at, _excerpt(hit), hit.pattern, overcome, place, hit.mild, hit.settled, hit.led_to, whose))
    found.sort(key=lambda hit: hit.at)
    return _marked(end, found)


def _worked_on(whose: bytes, below: bytes) -> bool:
    """Has the process of that label logged some lines of its ordinary work right below?"""
    lines = below[:WORKED_ON_BYTES].split(b"\n")
    return sum(is_of_ordinary_work(line) and label_of(line) == whose for line in lines) >= WORKED_ON_LINES


def _gave_up_below(end: RankEnd, below: bytes) -> bool:
    """Did the rank end with an error that no pattern knows?"""
    return failed(end) and bool(told_error(below.decode(errors="replace"), reports=False, vaguely=False))


def _excerpt(hit: Finding) -> str:
    """The line for people; of a long line, the part that matters."""
    begin = hit.start - EXCERPT_BEFORE if hit.start > EVIDENCE_CHARS - EXCERPT_BEFORE else 0
    text = hit.line[begin:].decode(errors="replace").strip()
    text = text[:EVIDENCE_CHARS]
    return visible(f"... {text}" if begin else text)


def _marked(end: RankEnd, hits: list[Hit]) -> list[Hit]:
    """Marks hits as overcome if the rank printed ordinary lines for a while afterwards; never the last hit of a failed rank."""
    times = [hit.at for hit in hits]
    lines = _LinesAhead(end.output)
    marked = []
    for number, hit in enumerate(hits, start=1):
        later = bisect_right(times, hit.at + OVERCOME_S)
        until = (times[later] if later < len(times) else end.at or float("inf")) - BURST_S
        went_on = lines.second_after(hit.at + OVERCOME_S) < until
        last_words = hit.own and number == len(hits)
        marked.append(replace(hit, overcome=True) if went_on and not last_words else hit)
    return marked


class _LinesAhead:
    """When a rank printed lines. It is asked for ever later times, and so reads each piece once at most, mostly only a few."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = sorted(pieces, key=_printed_at)
        self._read = 0  # pieces that were read or passed over
        self._ahead: deque[float] = deque()

    def second_after(self, at: float) -> float:
        """When the second line after `at` was printed; infinity if there is none."""
        while self._ahead and self._ahead[0] <= at:
            self._ahead.popleft()
        self._read = bisect_right(self._pieces, at, lo=self._read, key=_printed_at)
        while len(self._ahead) < 2 and self._read < len(self._pieces):
            piece = self._pieces[self._read]
            self._ahead.extend(piece.at for line in piece.text[:1000].splitlines() if line.strip())
            self._read += 1
        return self._ahead[1] if len(self._ahead) >= 2 else float("inf")


_printed_at = attrgetter("at")


def beginning(hit: Hit) -> str:
    """The begin of its line as printed, without the detail that was joined to it."""
    return hit.line.split(" ... ")[0][:BEGINNING_CHARS]


def ranks_of(hits: Iterable[Hit]) -> dict[int, RankEnd]:
    return {hit.end.rank: hit.end for hit in hits}


def one_a_rank(hits: Sequence[Hit]) -> list[Hit]:
    found: dict[int, Hit] = defaultdict()
    for hit in sorted(hits, key=lambda hit: hit.at):
        found.setdefault(hit.end.rank, hit)
    return list(found.values())


def widespread(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> bool:
    """Is it on at least half of the ranks (the others may have been stopped earlier), and not on one node only?"""
    nodes = {end.node for end in ends}
    wide = len(nodes) > 1 and len({end.node for end in same.values()}) > 1
    most = len(same) >= 2 and 2 * len(same) >= len(ends)
    return (most and wide) or (len(nodes) == 1 and 1 < len(same) == len(ends))


def one_node(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    """The node all of whose ranks (two at the least) are in `same`, while none of another node is; else empty."""
    nodes = {end.node for end in same.values()}
    mine = [end for end in ends if end.node in nodes]
    return next(iter(nodes)) if len(nodes) == 1 and 1 < len(mine) == len(same) < len(ends) else ""


def no_other_node(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    """The node of all ranks in `same`, while there are others; else empty."""
    nodes = {end.node for end in same.values()}
    return next(iter(nodes)) if len(nodes) == 1 and len({end.node for end in ends}) > 1 else ""


def places_of(ends: Mapping[int, RankEnd]) -> dict[int, str]:
    return {rank: end.node for rank, end in ends.items()}


def spread_of(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    if len(ends) < 2:
        return ""
    return "on every rank" if len(same) == len(ends) else f"on {len(same)} of {len(ends)} ranks"

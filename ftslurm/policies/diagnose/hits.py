"""The lines of the ranks' output that report a failure, what a rank says of its own end, and which of it counts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, takewhile
from operator import attrgetter

from ftslurm.catalogs.patterns import Pattern, PatternBook
from ftslurm.model.devices import Fault
from ftslurm.model.text import visible
from ftslurm.model.values import Value, field, replace
from ftslurm.model.verdict import EVERYWHERE, Blame, ErrorClass, RankEnd, Retriable, Role
from ftslurm.policies.diagnose.errors import WORKED_ON_LINES, complaint, error_before, last_line, told_error
from ftslurm.policies.diagnose.findings import Finding, ends_of_runs
from ftslurm.policies.diagnose.lines import LAST_CHARS, child_line, is_of_ordinary_work, only_reports, signal_line, tells_reason
from ftslurm.policies.diagnose.traces import label_of, outline, plain, plain_pieces

# --- The lines of the ranks' output that report a failure: what patterns and rules know of each rank's output, in order of time

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


class Facts(Value):
    """What is known besides the ranks' ends. faults: of devices, graded. bad_nodes: node -> why it counts as broken."""

    faults: tuple[Fault, ...] = ()
    bad_nodes: Mapping[str, str] = field(default_factory=dict)


class Hit(Value):
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

    @property
    def own(self) -> bool:
        return failed(self.end)

    def __str__(self) -> str:
        where = f" (at {self.place})" if self.place else ""
        return f"rank {self.end.rank} on {self.end.node}: {self.line}{where}"


def failed(end: RankEnd) -> bool:
    """Did the rank fail by itself, and not because it was told to stop?"""
    return end.status is not None and not end.status.ok and not end.stopped


def hits_of(end: RankEnd, book: PatternBook) -> list[Hit]:
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
            found.append(Hit(end, at, _excerpt(hit), hit.pattern, overcome, place, hit.mild, hit.settled, hit.led_to))
    found.sort(key=lambda hit: hit.at)
    return _marked(end, found)


def _worked_on(whose: bytes, below: bytes) -> bool:
    """Has the process of that label logged some lines of its ordinary work right below?"""
    lines = below[:WORKED_ON_BYTES].split(b"\n")
    return sum(is_of_ordinary_work(line) and label_of(line) == whose for line in lines) >= WORKED_ON_LINES


def _gave_up_below(end: RankEnd, below: bytes) -> bool:
    """Did the rank end with an error that no pattern knows?"""
    return failed(end) and bool(told_error(below.decode(errors="replace"), vaguely=False))


def _excerpt(hit: Finding) -> str:
    """The line for people; of a long line, the part that matters."""
    begin = hit.start - EXCERPT_BEFORE if hit.start > EVIDENCE_CHARS - EXCERPT_BEFORE else 0
    text = hit.line[begin:].decode(errors="replace").strip()
    text = text[:EVIDENCE_CHARS]
    return visible(f"... {text}" if begin else text)


def _marked(end: RankEnd, hits: list[Hit]) -> list[Hit]:
    """Marks hits as overcome if the rank printed ordinary lines for a while afterwards; never the last hit of a failed rank."""
    times = [hit.at for hit in hits]
    since = times[0] + OVERCOME_S if times else float("inf")
    below = (piece for piece in end.output if piece.at > since)
    printed = sorted(piece.at for piece in below for line in piece.text[:1000].splitlines() if line.strip())
    marked = []
    for number, hit in enumerate(hits, start=1):
        later = bisect_right(times, hit.at + OVERCOME_S)
        until = (times[later] if later < len(times) else end.at or float("inf")) - BURST_S
        second = bisect_right(printed, hit.at + OVERCOME_S) + 1
        went_on = second < len(printed) and printed[second] < until
        last_words = hit.own and number == len(hits)
        marked.append(replace(hit, overcome=True) if went_on and not last_words else hit)
    return marked


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
    return EVERYWHERE if len(same) == len(ends) else f"on {len(same)} of {len(ends)} ranks"


# --- What a rank itself says of its end, and of what led to a line that it printed: its words, where no pattern knows them

# What a device error brings down fails within seconds.
LAST_WORDS_S = 5.0
# Tracebacks are long, and what was said before them may be the cause.
FURTHEST_CHARS = 4 * LAST_CHARS
# As a shell passes on a signal: 128 and its number.
SHELLS_OWN = range(128, 160)


def own_words(end: RankEnd, but: Collection[str], vaguely: bool = True) -> str:
    """The line that the program may have printed as the reason. but: beginnings of lines to pass over.

    vaguely: even if that only says that something failed.
    """
    return visible(next((line for text in _said(end) if (line := told_error(text, but, vaguely=vaguely))), ""))


def complaint_of(end: RankEnd) -> str:
    return visible(next((line for text in _said(end) if (line := complaint(text))), ""))


def end_words(end: RankEnd) -> str:
    """For people: the last line about the rank's end, by the rank or by its launcher."""
    number = end.status.signal or max(0, end.status.code - SHELLS_OWN.start) if end.status else 0
    for said in _said(end):
        shown = signal_line(said, number)
        found = shown or (child_line(said) if number else "")
        if found := found or told_error(said):
            return visible(f"; it printed: {found}")
    spoke = {piece.stream: piece.at for piece in end.output}
    for stream in sorted(spoke, key=lambda stream: (spoke[stream] < max(spoke.values()) - LAST_WORDS_S, stream)):
        said = _said_on(end, stream)
        # A warning of long before is none of its last words.
        if end.at <= spoke[stream] + LAST_WORDS_S and (mild := told_error(said, mild=True)):
            return visible(f"; it printed: {mild}")
        if last := last_line(said):
            return visible(f"; its last line: {last}")
    return ""


def slurms_reason(end: RankEnd, number: int) -> str:
    """The line in which Slurm says why it ended the rank with that signal; empty if it does not."""
    number = number or (max(0, end.status.code - SHELLS_OWN.start) if end.status else 0)
    return next((line for said in _said(end) if tells_reason(line := signal_line(said, number), number)), "")


def _said(end: RankEnd) -> Iterator[str]:
    """The end of each of its streams."""
    return (text for stream in ("err", "out") if (text := _said_on(end, stream)))


def _said_on(end: RankEnd, stream: str) -> str:
    """The end of what it printed there, without quoted text and without errors that nobody cares for."""
    seen = outline(plain("".join(piece.text for piece in end.output if piece.stream == stream)[-FURTHEST_CHARS:]))
    said = seen.said
    for raised in reversed(seen.raised):
        if raised.ignored or CLEANER in raised.deepest:
            until = said.find(b"\n", raised.offset)
            said = said[: raised.offset] + said[until:] if until >= 0 else said[: raised.offset]
    return said.decode(errors="replace")


def with_own_words(hit: Hit, hits: Sequence[Hit]) -> str:
    """The hit with what else its rank printed, which may be a cause that no pattern knows."""
    own = said_beside(hit, hits)
    if not own and (before := led_to(hit, hits)):
        return f"{hit}; just before: {before}"
    if not own and (after := _came_of(hit, hits)):
        return f"{hit}; which led to: {after}"
    return f"{hit}; it printed: {own}" if own else str(hit)


def led_to(hit: Hit, hits: Sequence[Hit]) -> str:
    """An error that no pattern knows, and that the rank printed in the moments before the hit."""
    if hit.pattern.role is not Role.ROOT:
        return ""
    said = [piece for piece in hit.end.output if hit.at - BURST_S <= piece.at <= hit.at]
    text = outline(plain("".join(piece.text for piece in said)[-2 * LAST_CHARS :])).said.decode(errors="replace")
    return visible(error_before(text, beginning(hit)))


def _came_of(hit: Hit, hits: Sequence[Hit]) -> str:
    """The last exception of the chain that this one began, by the runtime's word; its rank told it last of all."""
    mine = [each for each in hits if each.end.rank == hit.end.rank and hit.at <= each.at <= hit.at + LAST_WORDS_S]
    behind = mine[mine.index(hit) + 1 :] if hit in mine and hit.pattern.role is Role.ROOT else []
    last = next((each for each in reversed(behind) if each.pattern.role is Role.ROOT), None)
    if last is None or not last.led_to or last.pattern.defers:
        return ""
    said = last.line.partition(": ")[2] or last.line
    return "" if said in hit.line or hit.line in last.line else last.line  # it may only say the same again


def words_of_rank(hit: Hit, hits: Sequence[Hit]) -> str:
    """As `with_own_words`, without rank and place."""
    own = said_beside(hit, hits)
    if not own:
        return hit.line
    # A header says less than what it was said with; a line that names the thing says more.
    header = hit.pattern.defers or hit.pattern.id in HEADERS
    return f"{own}; {hit.line}" if header else f"{hit.line}; {own}"


def said_beside(hit: Hit, hits: Sequence[Hit]) -> str:
    if " ... " in hit.line or (not hit.pattern.defers and hit.pattern.role is Role.ROOT):
        return ""  # its detail is there already, or it needs none
    mine = (each for each in hits if each.end.rank == hit.end.rank)
    but = [beginning(each) for each in mine if each is hit or not each.pattern.defers]
    return own_words(hit.end, but)


# --- Which of the lines count? Not what is only a warning, a header, an echo of another rank's failure, or came after it

# What two ranks did is told to be one after the other if so far apart.
JITTER_S = 0.1
# In one moment, the order tells nothing: each rank has a clock and pipes of its own.
SAME_MOMENT_S = 1.0
# So many ranks are asked what they say; a thousand would say the same.
LISTENED_TO = 32
# What ends a rank by itself, so that the network errors of others come of it.
_ENDS_A_RANK = frozenset({ErrorClass.OOM, ErrorClass.HARDWARE})

_at = attrgetter("at")


def after_the_fact(hit: Hit, first: float) -> bool:
    """Did a rank that was told to stop print it after another rank had failed? Then it is a reaction, whatever it says.

    first: when the first rank failed. Slurm's word on a kill for memory is none, in whosever output it stands.
    """
    if hit.own or hit.pattern.role is not Role.ROOT or not hit.end.stopped or hit.pattern.id == SLURMS_WORD_ON_MEMORY:
        return False
    return hit.at > first


def without_warnings(hits: Sequence[Hit]) -> Sequence[Hit]:
    """The hits without warnings. A warning is a cause only if no rank reports an error, or only bystanders do.

    Then a warning of a failed rank may be the cause: PyTorch's store only warns that a name or a port is not available, and
    reports as an error that no rank could connect.
    """
    errors = [hit for hit in hits if not hit.mild]
    if any(hit.pattern.role is Role.ROOT and not hit.pattern.defers for hit in errors):
        return errors
    if not errors:
        return hits
    return [hit for hit in hits if not hit.mild or (hit.own and not hit.settled and hit.pattern.role is Role.ROOT)]


def without_headers(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without headers, on each rank that also printed the error itself."""
    named = {hit.end.rank for hit in hits if not hit.pattern.defers}
    return [hit for hit in hits if not hit.pattern.defers or hit.end.rank not in named]


def without_echoes(roots: Sequence[Hit]) -> Sequence[Hit]:
    """One trouble that several ranks meet in the same moment is told by whoever names it, not by who only says that it failed,
    nor by who crashed over it.
    """
    named = sorted((hit for hit in roots if not hit.pattern.defers), key=_at)
    times = [hit.at for hit in named]

    def about(hit: Hit, before_s: float, after_s: float) -> Iterator[Hit]:
        """Those who name a trouble from so long before the hit until so long after it."""
        begin = bisect_left(times, hit.at - before_s)
        return takewhile(lambda each: each.at <= hit.at + after_s, islice(named, begin, None))

    def echoes(hit: Hit) -> bool:
        if hit.pattern.id in CRASHES:
            others = (each for each in about(hit, SAME_MOMENT_S, SAME_MOMENT_S) if each.end.rank != hit.end.rank)
            return any(each.pattern.id not in CRASHES for each in others)
        alike = (each.pattern.error_class is hit.pattern.error_class for each in about(hit, LAST_WORDS_S, LAST_WORDS_S))
        return hit.pattern.defers and any(alike)

    return [hit for hit in roots if not echoes(hit)]


def but_reports(roots: Sequence[Hit], hits: Sequence[Hit]) -> Sequence[Hit]:
    """The roots; none if each only reports that something else failed, and its rank says what: then it is a bystander's line."""
    if not roots or not all(map(_only_reports, roots)):
        return roots
    told = {
        hit.end.rank
        for hit in hits
        if hit.pattern.role is Role.SYMPTOM and not hit.pattern.defers and hit.pattern.id not in HEADERS
    }
    return [] if all(hit.end.rank in told for hit in roots) else roots


def _only_reports(hit: Hit) -> bool:
    by_words = only_reports(hit.line.encode(errors="replace"))
    return by_words or (hit.pattern.defers and not hit.pattern.pattern)


def unless_told_before(roots: Sequence[Hit], hits: Sequence[Hit], ends: Sequence[RankEnd]) -> Sequence[Hit]:
    """The roots; none if each is of a kind that another's failure brings about, and another rank failed before and says of what.

    Of what that rank says no line is known, or it would be a root.
    """
    if not roots or any(hit.pattern.error_class in _ENDS_A_RANK for hit in roots):
        return roots
    spoke = {hit.end.rank for hit in hits}
    silent = [end for end in ends if failed(end) and end.rank not in spoke]
    return [] if (silent and _are_bystanders(roots)) or told_before(silent, roots) else roots


def _are_bystanders(roots: Sequence[Hit]) -> bool:
    """Has each of them lost a peer, and run on until it was stopped? Dask's workers do, whose scheduler has failed."""
    own = any(failed(hit.end) or hit.pattern.blame is not Blame.NO for hit in roots)
    return not own and ranks_of(roots) == ranks_of(hit for hit in roots if _is_loss(hit))


def told_before(silent: Sequence[RankEnd], hits: Sequence[Hit]) -> list[RankEnd]:
    """Of ranks of which no line is known: those that failed before any hit, and say of what."""
    until = min(hit.at for hit in hits) - JITTER_S
    before = [end for end in silent if end.output and max(piece.at for piece in end.output) < until]
    return [end for end in before[:LISTENED_TO] if own_words(end, (), vaguely=False)]


def _is_loss(hit: Hit) -> bool:
    """Of a connection that another's end may have closed; what stays so at the next try is a set-up, and not that."""
    return hit.pattern.error_class is ErrorClass.NETWORK and hit.pattern.retriable is not Retriable.NO

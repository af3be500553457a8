"""Finds failures in a text, line by line: known patterns and words, and errors that only their runtime knows.

The one reading of an output that the verdict and `ftslurm explain` share. Quoted lines, guesses and advice are left out
(traces.py, lines.py); an exception, panic or abort that no pattern knows is told by its own type, message and place.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ftslurm.catalogs.kinds import Kinds
from ftslurm.catalogs.patterns import Found, Pattern, PatternBook
from ftslurm.catalogs.scanner import asks
from ftslurm.catalogs.vocabulary import SYSTEM, ErrorWord
from ftslurm.model.devices import Remedy
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role
from ftslurm.policies.diagnose.lines import is_dealt_with, is_evidence, is_mild, only_reports, root_cause
from ftslurm.policies.diagnose.traces import Raised, outline, plain
from ftslurm.policies.diagnose.values import MEANS

# The lines below an exception belong to its message until an empty one; at most so many bytes.
DETAIL_BYTES = 4000
# The most errors kept from each end of one output.
FIRST_AND_LAST = 50
# A signature is kept in the ledger and compared.
SIGNATURE_CHARS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that a pattern or rule knows."""

    offset: int  # of the line, bytes
    line: bytes
    pattern: Pattern
    place: str = ""  # in the user's own code, where a trace tells it
    mild: bool = False  # below the level of an error
    word: ErrorWord | None = None  # of a device's vocabulary
    settled: bool = False  # the program says that it got over it
    start: int = 0  # in the line, where the words begin
    led_to: bool = False  # it comes of the exception before it


def findings(text: bytes, book: PatternBook) -> list[Finding]:
    """The findings, in the order of the text."""
    said, found = _found(text, book)
    return [_in_full(each, said) for each in found]


def ends_of_runs(text: bytes, book: PatternBook) -> list[Finding]:
    """Of findings of one kind that follow each other, which a cascade prints by the hundred, the first and the last."""
    said, found = _found(text, book)
    kept = []
    last = len(found) - 1
    for number, each in enumerate(found):
        within = 0 < number < last and found[number - 1].pattern is each.pattern is found[number + 1].pattern
        if not within:
            kept.append(_in_full(each, said))
    return kept


def _found(text: bytes, book: PatternBook) -> tuple[bytes, list[Found | Finding]]:
    """The text without what is quoted, and what it says of a failure, in order. What a pattern knows, and no exception is near
    to, is not read to its end yet: most of a cascade's thousand lines need not be."""
    seen = outline(text)
    hits = book.scan(seen.said, counts=lambda hit: is_evidence(seen.said, hit.offset, hit.line, hit.start))
    hits = [_by_its_values(hit, book) for hit in hits]
    places = [(raised.offset, raised) for raised in seen.raised]
    found: list[Found | Finding] = [_known(hit, places, seen.said) for hit in hits] if places else [*hits]
    for raised in (*seen.raised[:FIRST_AND_LAST], *seen.raised[FIRST_AND_LAST:][-FIRST_AND_LAST:]):
        if not raised.ignored and not _is_known(raised, hits, seen.said, book.kinds):
            found.append(_unknown(raised, text, book.kinds))
    found.sort(key=lambda each: each.offset)
    return seen.said, found


def _in_full(each: Found | Finding, text: bytes) -> Finding:
    return each if isinstance(each, Finding) else _finding(_with_detail(each, text), None, text)


# Below a header the detail stands: NCCL's, CANN's and container runtimes' own words for it.
_DETAIL = re.compile(rb"^.{0,80}?(?:Last error:|errorStr: ?|[Rr]eason: ?)\s*(.*)$")
DETAIL_LINES = 4
HEADER_CHARS = 140
LONGEST_WITH_DETAIL = HEADER_CHARS + 5 + DETAIL_BYTES
# torchrun's table, whose last block names the child that failed first.
_OF_TORCHRUN = frozenset({"torchelastic-child"})


def _with_detail(hit: Found, text: bytes) -> Found:
    """A header, joined with the detail printed below it if no pattern knows that detail either."""
    if hit.pattern.role is not Role.SYMPTOM:
        return hit
    begin = hit.offset + len(hit.line) + 1
    if hit.pattern.id in _OF_TORCHRUN:
        detail = root_cause(text[begin : begin + DETAIL_BYTES])
        return _joined(hit, detail) if detail else hit
    below = text[begin : begin + DETAIL_BYTES].split(b"\n", DETAIL_LINES)[:DETAIL_LINES]
    for number, line in enumerate(below):
        found = _DETAIL.match(line[: SIGNATURE_CHARS * 4])
        if found is None:
            continue
        detail = found.group(1).strip() or (below[number + 1].strip() if number + 1 < len(below) else b"")
        return _joined(hit, detail) if detail else hit
    return hit


def _joined(hit: Found, detail: bytes) -> Found:
    """The header and its detail; a long header is shortened so that the detail shows."""
    return hit._replace(line=hit.line[:HEADER_CHARS] + b" ... " + detail)


# What only says how a call has failed: what the call was about, its own words tell.
_HOW_ONLY = frozenset({"ofi", "ucx-error", "cannot-alloc", "threads-more", "device-file", "system-call", "nccl-warn"})
# Results that are handed up from call to call: whoever handed them up first has said why.
_HANDED_UP = frozenset({"hccl", "nccl"})
# Calls of a network library: what the system says of one is about the network, whatever it means elsewhere.
_is_of_a_network = asks(r"\b(?:ibv|fi|uct|ucp|psm2?|rdma|efadv|mlx5dv)_[a-z]")
# Patterns that know of an exception no more than its type: its words may say what it is about.
_BY_TYPE = {"py-value": "ValueError", "py-assert": "AssertionError", "fortran": "ValueError"}


def _by_its_values(hit: Found, book: PatternBook) -> Found:
    """The finding, corrected by the values in the line, which may tell more than its words."""
    meant = _meant(hit, book)
    if meant.role is Role.ROOT and not meant.defers and only_reports(hit.line):
        meant = _deferring(meant)
    return hit if meant is hit.pattern else hit._replace(pattern=meant)


# What was asserted the kernel has printed, and what a worker has raised stands below.
_passes_on = asks(
    r"device-side assert triggered|\bCaught \w+ in (?:DataLoader worker|replica|pin memory)|RayTaskError\("
    r"|\(\d+ sub-exceptions?\)|DatasetGenerationError: An error occurred|\bnccl(?:\w+Error|InvalidUsage|InvalidArgument): "
)


@lru_cache(maxsize=256)
def _deferring(pattern: Pattern) -> Pattern:
    return pattern.by("only-passes-on", defers=True)


def _text(hit: Found) -> str:
    return hit.line.decode(errors="replace")


def _meant(hit: Found, book: PatternBook) -> Pattern:
    if hit.pattern.role is Role.ROOT and not hit.pattern.defers and _passes_on(hit.line):
        return _deferring(hit.pattern)
    if meaning := next((meaning for look, meaning in MEANS.get(hit.pattern.id, ()) if look(_text(hit))), ""):
        named = book.named(meaning)
        return named.by(f"values of {hit.pattern.id}") if named else hit.pattern
    passed_on = hit.pattern.id in _HOW_ONLY or hit.pattern.defers or hit.pattern.role is Role.SYMPTOM
    how_only = passed_on or (hit.word is not None and hit.word.family in SYSTEM)
    if how_only and book.kinds.is_of_an_adapter(hit.line):
        told = hit.pattern.by("adapter", error_class=ErrorClass.NETWORK, retriable=Retriable.NO, role=Role.ROOT)
        return replace(told, blame=Blame.NO, remedy=Remedy.FAIL)
    if how_only and hit.pattern.role is Role.ROOT and _is_of_a_network(hit.line):
        return hit.pattern.by("call-of-network", error_class=ErrorClass.NETWORK, blame=Blame.NO)
    if hit.pattern.id == "slurm-launch-fail" and (reason := book.kinds.of_words(_text(hit).rpartition(": ")[2])):
        blame = Blame.NO if reason.error_class is ErrorClass.USER_CODE else hit.pattern.blame
        return hit.pattern.by("words-of-launch", error_class=reason.error_class, retriable=reason.retriable, blame=blame)
    if hit.word and hit.word.family in _HANDED_UP:
        return replace(hit.pattern, defers=True)
    if hit.pattern.id in _BY_TYPE and (kind := book.kinds.of_error(_BY_TYPE[hit.pattern.id], _text(hit))):
        remedy = Remedy.FAIL if kind.retriable is Retriable.NO else Remedy.RESTART
        return hit.pattern.by("words-of-type", error_class=kind.error_class, retriable=kind.retriable, remedy=remedy)
    return hit.pattern


# Where samples are read, a text that cannot be read is no configuration.
_READS_DATA = re.compile(
    r"(?i)(?:^|[/_])(?:data|jsonl|corpus|samples?|reader|loader|collat|stream|shard|token)[^/]*\.py:|/datasets/"
)


def _known(hit: Found, places: Sequence[tuple[int, Raised]], text: bytes) -> Found | Finding:
    """The line of an exception begins after its prefix, that of a hit before it. Gives the hit itself if it is no exception's."""
    at = bisect_left(places, hit.offset, key=lambda each: each[0])
    longest = max(1, len(hit.line), LONGEST_WITH_DETAIL)
    if at == len(places) or places[at][0] >= hit.offset + longest:
        return hit
    hit = _with_detail(hit, text)
    within = at < len(places) and places[at][0] < hit.offset + max(1, len(hit.line))
    raised = places[at][1] if within else None
    return _finding(hit, raised, text)


def _finding(hit: Found, raised: Raised | None, text: bytes) -> Finding:
    # What the program itself has thrown are its own words: they say what it takes the failure for, and blame no node.
    pattern = hit.pattern.by("thrown-by-program", blame=Blame.NO) if raised and raised.thrown else hit.pattern
    place = raised.place if raised else ""
    line = _with_message(hit.line, text, hit.offset)
    # A pattern that knows what stands below, or elsewhere, knows more than the type.
    announces = raised is not None and ((not raised.message and line is not hit.line) or _is_header(raised))
    if announces:
        pattern = replace(pattern, defers=True)
    if raised and pattern.id == "user-config" and _READS_DATA.search(raised.place):
        pattern = pattern.by("reads-data", error_class=ErrorClass.DATA, name="what should be a sample of the data cannot be read")
    mild = raised is None and is_mild(hit.line)
    led_to = raised is not None and raised.led_to and raised.offset >= hit.offset
    return Finding(hit.offset, line, pattern, place, mild, hit.word, mild and is_dealt_with(hit.line), hit.start, led_to)


def _with_message(line: bytes, text: bytes, offset: int) -> bytes:
    """The line; if it ends with a colon, joined with the line that it announces."""
    if not line.rstrip().endswith(b":"):
        return line
    begin = text.find(b"\n", offset) + 1
    below = text[begin : begin + DETAIL_BYTES].lstrip().split(b"\n", 1)[0].strip() if begin else b""
    return line.rstrip() + b" " + below if below else line


def _is_known(raised: Raised, hits: Sequence[Found], text: bytes, kinds: Kinds) -> bool:
    """Does a pattern know its line, or tells a line of its message more than the type?"""
    if raised.kind == "shell":
        return True  # told by the shell, which goes on: its status says what came of it
    begin = text.rfind(b"\n", 0, raised.offset) + 1
    first = bisect_left(hits, begin, key=lambda hit: hit.offset)
    end = text.find(b"\n", raised.offset)
    end = len(text) if end < 0 else end
    blank = text.find(b"\n\n", end, end + DETAIL_BYTES)
    until = blank if blank >= 0 else end + DETAIL_BYTES
    for hit in hits[first:]:
        if hit.offset >= until:
            return False
        if hit.offset < end and hit.pattern.defers and kinds.of_words(raised.kind):
            continue  # a header; the type alone tells more, as std::bad_alloc does
        if hit.offset < end and hit.pattern.role is Role.SYMPTOM and _says_why(raised, kinds):
            continue  # knows that C++ aborts, and not why
        if hit.offset < end or hit.pattern.role is Role.ROOT:
            return True
    return False


def _says_why(raised: Raised, kinds: Kinds) -> bool:
    """Is it an exception of C++ whose words are the program's own? A broken pipe or the like is mostly another's end."""
    if not raised.message or not raised.kind.startswith("std::"):
        return False
    return _LOGIC.search(raised.kind) is not None or kinds.of_words(raised.message) is None


# --- errors that nothing knows but their runtime

# Types of errors by what they are about, of whatever library. Else it is the program: nearly all that no pattern knows are.
_KINDS = (
    (re.compile(r"(?:^|\.)(?:requests|urllib3?|httpx|aiohttp|http|socket|ssl|grpc|botocore)\b.*\.|(?:Connect\w*|Timeout|TimedOut|TimeoutError|"
                r"RpcError|Comm(?:unication)?Error|HTTPError|HTTPStatusError|Unavailable|(?:Aborted|Unavailable|DeadlineExceeded|Cancelled)Error|Comm\w*Closed\w*|ConnectionClosed\w*|gaierror|SSLError|ProxyError|ProtocolError)$"),
     ErrorClass.NETWORK, Retriable.YES),
    (re.compile(r"(?:Unpickling\w*|Decode\w*|BadZipFile|ReadError|Arrow\w+|UnidentifiedImage\w*|Corrupt\w*|Parser?Error|FormatError|zlib\.error|LZMAError)$"),
     ErrorClass.DATA, Retriable.NO),
)  # fmt: skip
# What the words of an error of a connection may say that its type does not.
_ANSWERS = frozenset({ErrorClass.USER_CODE, ErrorClass.NETWORK})
# C++: what a program could have known before it ran.
_LOGIC = re.compile(
    r"^std::(?:\w+::)?(?:logic_error|out_of_range|invalid_argument|domain_error|length_error|bad_(?:cast|typeid|function_call"
    r"|optional_access|variant_access|any_cast))$"
)
_ABORTS = re.compile(r"^(?:std::|c10::|terminate|boost::|mlir::|xla::)")
_NAME_CHARS = re.compile(r"[^\w.:<>$-]+")


# What a framework says when a library below has failed, which has said more.
_PASSES_ON = re.compile(
    r"(?i)\b(?:NCCL|RCCL|HCCL|UCX|MPI|CUDA|HIP) error in\b|\bunhandled \w+ error|\binternal error\b|\berror code:? \d+\W*$"
    r"|^(?:\w+ ){1,5}failed\.?\s*$|\b(?:exception|error) (?:occurred|raised|was raised) in (?:an?|the|another) (?:\w+ )?"
    r"(?:sub-?process|process|worker|thread|child)\b"
    r"|\bSubprocException\b"
    r"|\bnon-zero exit|\bdied with <Signals|\b(?:exited|terminated|failed) with (?:exit )?(?:code|status)\b"
)
# An exception whose words announce another's: `Process 0 terminated with the following error:`.
_ANNOUNCES = re.compile(rb"(?i)\bfollowing (?:error|exception|traceback)s?\b\W*$")
# How types are named that tell that another process is gone, of whatever library.
_GONE = (
    r"(?:Worker|Actor|Node|Process|Executor|Engine|Server|Peer)(?:Died|Dead|Lost|Crashed|Killed|Gone)(?:Error|Exception)?"
    r"|KilledWorker"
)
# Types that only report the end of another process.
_OF_ANOTHER = re.compile(
    rf"(?:^|\.)(?:{_GONE}|CalledProcessError|ChildFailedError|Process\w*Exception|BrokenProcessPool|WorkerCrashed\w*|ActorDied\w*"
    r"|RayActorError|TerminatedWorkerError|CheckpointException|SubprocException|TaskFailedException|CompositeException"
    r"|RemoteException|CapturedException)$"
)
# Of these, those of a process that is gone without a word: it may have been killed, or its node lost.
_VANISHED = re.compile(
    rf"(?:^|\.)(?:{_GONE}|BrokenProcessPool|WorkerCrashed\w*|ActorDied\w*|RayActorError"
    r"|TerminatedWorkerError)$"
)


def _unknown(raised: Raised, text: bytes, kinds: Kinds) -> Finding:
    end = text.find(b"\n", raised.offset)
    begin = text.rfind(b"\n", 0, raised.offset) + 1
    line = text[begin : len(text) if end < 0 else end]
    line = _with_message(line, text, begin)
    if raised.message.endswith(":") and not line.endswith(b":"):
        told = line.decode(errors="replace").rpartition(raised.message)[2]
        raised = replace(raised, message=f"{raised.message}{told}"[:DETAIL_BYTES])
    if line.startswith(b"terminate called") and raised.message and not line.endswith(raised.message.encode()):
        line += b" what(): " + raised.message.encode()
    pattern = unlisted(raised, kinds)
    if _ANNOUNCES.search(line):
        pattern = replace(pattern, defers=True)
    return Finding(raised.offset, line, pattern, raised.place, led_to=raised.led_to)


def unlisted(raised: Raised, kinds: Kinds) -> Pattern:
    """The finding for an error that no pattern knows. Its type and place identify the same failure later."""
    error_class, retriable = ErrorClass.USER_CODE, Retriable.NO
    for types, this_class, this_retriable in _KINDS:
        if types.search(raised.kind):
            error_class, retriable = this_class, this_retriable
            told = kinds.of_words(raised.message) if this_class is ErrorClass.NETWORK else None
            if told and told.retriable is Retriable.NO and told.error_class in _ANSWERS:
                error_class, retriable = told.error_class, told.retriable  # it was reached, and answered
            break
    else:
        if kind := kinds.of_error(raised.kind, raised.message) or kinds.of_words(raised.kind):
            error_class, retriable = kind.error_class, kind.retriable
        elif _VANISHED.search(raised.kind):
            error_class, retriable = ErrorClass.UNKNOWN, Retriable.YES
        elif _ABORTS.search(raised.kind) and not _LOGIC.search(raised.kind):
            error_class, retriable = ErrorClass.UNKNOWN, Retriable.ONCE
    where = raised.place.rsplit("/", 1)[-1]
    name = _NAME_CHARS.sub("_", raised.kind.rsplit(".", 1)[-1]) or "error"
    return Pattern(
        id=(f"{name} at {where}" if where else name)[:SIGNATURE_CHARS],
        name="an error that no pattern knows",
        error_class=error_class,
        retriable=retriable,
        blame=Blame.NO,
        role=Role.ROOT,
        where="log",
        remedy=Remedy.FAIL if retriable is Retriable.NO else Remedy.RESTART,
        confirm=1,
        defers=_is_header(raised),
        pattern="",
        note="named by its type and its place in the code",
    )


def _is_header(raised: Raised) -> bool:
    """Does it only report that something else failed, which printed more?"""
    return (
        raised.wraps
        or raised.kind.endswith("ExceptionGroup")
        or only_reports(raised.message.encode(errors="replace"))
        or _PASSES_ON.search(raised.message) is not None
        or _OF_ANOTHER.search(raised.kind) is not None
    )


# --- What is known of a text that somebody shows, without the ranks that printed it

# The end of a text in which an exception is looked for that stands there without its trace.
LAST_LINES = 20
# The line above an exception: not directly above, where any line with a colon would count as an exception.
_ABOVE = b'Traceback (most recent call last):\n  File "-", line 1, in -\n-\n'


def explain(text: str, book: PatternBook) -> list[Finding]:
    """What is known of one line, or of the lines of a text, each kind once and in order."""
    text = text.strip("\n")
    return _of_line(text, book) if "\n" not in text else _of_lines(text, book)


def _of_line(line: str, book: PatternBook) -> list[Finding]:
    data = line.encode("utf-8", "surrogateescape")
    if (found := book.look(line)) is not None:
        return [Finding(0, data, found.pattern, word=found.word)]
    raised = _raised(line)
    return [Finding(0, data, unlisted(raised, book.kinds))] if raised else []


def _of_lines(text: str, book: PatternBook) -> list[Finding]:
    data = text.encode("utf-8", "surrogateescape")
    hints = [Finding(hit.offset, hit.line, hit.pattern) for hit in book.hints(data)]
    first: dict[str, Finding] = {}
    for hit in sorted([*findings(data, book), *hints], key=lambda hit: hit.offset):
        first.setdefault(hit.pattern.id, hit)
    ends = [line for each in text.splitlines()[-LAST_LINES:] if (line := each.strip()) and _raised(line)]
    return list(first.values()) or (_of_line(ends[-1], book) if ends else [])


def _raised(line: str) -> Raised | None:
    """The exception at the end of a trace, as a pasted line: ftrun, which sees the trace, knows it by its type."""
    found = outline(_ABOVE + plain(line)).raised
    return replace(found[-1], place="", own=False) if found else None

"""Common reasons why a job hangs, recognised in the output and the stacks of its ranks, with advice (catalogs/hang-hints.yaml).

Text is hostile input: RE2, linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise

import re2

from ftslurm.catalogs.scanner import compiled
from ftslurm.model.text import visible
from ftslurm.model.values import Value, field, replace
from ftslurm.model.verdict import HintWords, RankEnd
from ftslurm.policies.diagnose.joblog import NO_NODE
from ftslurm.policies.diagnose.traces import outline, plain

LINE_CHARS, EVIDENCE_LINES = 200, 4


class Hint(Value):
    """name: fixed, for programs. what: the observation. advice: what the user can do. evidence: the lines that support it."""

    name: str
    what: str
    advice: str
    evidence: tuple[str, ...]


class _Seen(Value):
    """What shows that a hint applies. values: for the braces in its words."""

    lines: tuple[str, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)


# NCCL's own lines, with NCCL_DEBUG=INFO: which way each channel takes.
# Each line begins with its host, so that the log of a whole job tells of its nodes, too.
_CHANNEL = compiled(r"(?:([\w.-]{1,255}):\d{1,9}:\d{1,9} \[\d{1,4}\] )?NCCL INFO Channel \S+ ?: .*\bvia (NET/[\w-]+/\d+/GDRDMA)?")
# HCCL's cluster heartbeat spreads what it finds, so the line of any rank names the place where it began.
_HCCL_PLACE = compiled(
    r"Cluster Exception Location\[IP/ID\]:\s?\[([^\]\n]{1,100})\][^\n]{0,400}ExceptionType:\s?\[([^\]\n]{1,60})\]"
)
_EPOCH = compiled(r"(?i)\bepoch\b[ :=\[(]*(\d{1,6})")
# Of a launcher that starts several ranks below one task: each line names its own.
_RANK_EPOCH = compiled(r"(?i)\brank\b[ :=\[(]*(\d{1,7})\b[^\n]{0,60}?\bepoch\b[ :=\[(]*(\d{1,6})")
_NCCL = compiled(r"NCCL (?:INFO|WARN)|\[Rank \d+\]|ProcessGroupNCCL")
_STEP = compiled(r"(?i)\b(?:step|iter(?:ation)?|epoch|loss)\b")
# The last characters of a stream that tell where a rank is.
LAST_CHARS = 2000
# Idle threads, which delay nobody: workers of a pool, readers of a queue, and the one that pins a data loader's memory.
_IDLE = compiled(r"\bget \(queue\.py|queue\.py\", line \d+ in get\b|_pin_memory_loop|utils/data/_utils/pin_memory\.py")
_THREAD = compiled(r"(?m)^(?:Current t|T)hread ")
_DUMP = compiled(r"(?m)^(?:Current t|T)hread .{1,200}\n(?:[ \t]+\S.{0,1000}\n)+")


def hints(ends: Sequence[RankEnd], stacks: Mapping[str, str], known: Mapping[str, HintWords]) -> tuple[Hint, ...]:
    """All hints that apply. ends: what the ranks printed. stacks: node -> evidence taken there before the ranks were stopped."""
    texts = {end.rank: _said(end) for end in ends}
    looks = {
        "gdr-mixed": _gdr(ends, texts),
        "ib-retries": _lines(ends, texts, known["ib-retries"].says),
        "hccl-place": _hccl_place(ends, texts),
        "epochs": _epochs(texts),
        **_in_stacks(stacks, known),
    }
    found = {name: seen for name, seen in looks.items() if seen}
    for name, words in known.items():
        if words.printed and name not in found and (seen := _printed(ends, words.printed, words.last)):
            found[name] = seen
    if not found.keys() & {"ib-retries", "hccl-place"} and (seen := _error_of_some(ends, texts, known["error-and-running"].says)):
        found["error-and-running"] = seen
    if not found and (seen := _before_nccl(ends, texts)):
        found["before-first-collective"] = seen
    if not found and not stacks:
        known = {name: replace(words, what=words.warning) for name, words in known.items() if words.warns}
        found = {name: seen for name, words in known.items() if (seen := _printed(ends, words.warns))}
    return tuple(_hint(name, known[name], seen) for name, seen in found.items())


def _hint(name: str, words: HintWords, seen: _Seen) -> Hint:
    return Hint(name, words.what.format(**seen.values), words.advice.format(**seen.values), seen.lines[:EVIDENCE_LINES])


def _said(end: RankEnd) -> bytes:
    """What the rank printed, one stream after the other, without colours and without what it only quotes: source lines and frames
    of a trace."""
    return b"".join(
        outline(plain("".join(piece.text for piece in end.output if piece.stream == stream))).said for stream in ("out", "err")
    )


def _lines(ends: Iterable[RankEnd], texts: Mapping[int, bytes], pattern: str) -> _Seen | None:
    """Of each rank the first line in its text that the pattern matches."""
    hits = ((end, compiled(pattern).search(texts[end.rank])) for end in ends)
    lines = tuple(f"rank {end.rank} on {end.node}: {_line(texts[end.rank], hit)}" for end, hit in hits if hit)
    return _Seen(lines) if lines else None


def _printed(ends: Sequence[RankEnd], pattern: str, last: bool = False) -> _Seen | None:
    """The same of what ranks printed, traces included. last: look at their last LAST_CHARS characters only."""
    texts = {end.rank: plain("".join(piece.text for piece in end.output)) for end in ends}
    return _lines(ends, {rank: text[-LAST_CHARS:] if last else text for rank, text in texts.items()}, pattern)


def _error_of_some(ends: Sequence[RankEnd], texts: Mapping[int, bytes], pattern: str) -> _Seen | None:
    """Some ranks printed an error and still run, while the others printed none: the others wait for them."""
    seen = _lines((end for end in ends if end.status is None or end.stopped), texts, pattern)
    return seen if seen and len(seen.lines) < len(ends) else None


def _gdr(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> _Seen | None:
    uses: dict[str, bool] = {}
    for end in ends:
        for hit in _CHANNEL.finditer(texts[end.rank]):
            host = (hit.group(1) or b"").decode(errors="replace")
            node = host if end.node == NO_NODE and host else end.node
            uses[node] = bool(hit.group(2)) or uses.get(node, False)
    with_gdr, without = (", ".join(node for node in sorted(uses) if uses[node] is wanted) for wanted in (True, False))
    return _Seen((f"with: {with_gdr}", f"without: {without}")) if with_gdr and without else None


def _hccl_place(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> _Seen | None:
    places: dict[str, str] = {}
    for end in ends:
        for hit in islice(_HCCL_PLACE.finditer(texts[end.rank]), 8):
            place, kind = (visible(hit.group(number).decode(errors="replace")) for number in (1, 2))
            places.setdefault(f"{kind} at {place}", f"rank {end.rank} on {end.node}: {_line(texts[end.rank], hit)}")
    return _Seen(tuple(places.values()), {"places": "; ".join(list(places)[:4])}) if places else None


def _epochs(texts: Mapping[int, bytes]) -> _Seen | None:
    last: dict[int, int] = {}
    for rank, text in texts.items():
        named = {int(hit.group(1)): int(hit.group(2)) for hit in _RANK_EPOCH.finditer(text[-16384:])}
        if len(named) > 1:
            last.update(named)
            continue
        for hit in _EPOCH.finditer(text[-16384:]):
            last[rank] = int(hit.group(1))
    if len(set(last.values())) < 2:
        return None
    return _Seen((", ".join(f"rank {rank}: {epoch}" for rank, epoch in sorted(last.items())[:16]),))


def _before_nccl(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> _Seen | None:
    """The ranks print, but none has reached the first collective."""
    if len(ends) < 2 or any(end.status is not None and end.status.ok for end in ends):
        return None
    begun = any(_NCCL.search(text) or _STEP.search(text) for text in texts.values())
    return _Seen() if any(texts.values()) and not begun else None


def _in_stacks(stacks: Mapping[str, str], known: Mapping[str, HintWords]) -> dict[str, _Seen]:
    """By threads that are not idle, as py-spy or faulthandler print them."""
    found = {}
    threads = {node: list(_threads(text.encode(errors="replace"))) for node, text in sorted(stacks.items())}
    for name, pattern in ((name, compiled(words.stacks)) for name, words in known.items() if words.stacks):
        found_in = {node: next(_hits(pattern, each), "") for node, each in threads.items()}
        if lines := tuple(f"{node}: {line}" for node, line in found_in.items() if line):
            found[name] = _Seen(lines)
    return found


def dumped_stacks(text: str) -> str:
    """The stacks that somebody had dumped into a log (faulthandler, py-spy); empty if there are none."""
    return "".join(hit.group(0).decode(errors="replace") for hit in _DUMP.finditer(text.encode(errors="replace")))


def _hits(pattern: re2._Regexp, threads: Sequence[bytes]) -> Iterator[str]:
    return (_line(thread, hit) for thread in threads if (hit := pattern.search(thread)))


def _threads(text: bytes) -> Iterator[bytes]:
    """The text of each thread that is not idle."""
    begins = [hit.start() for hit in _THREAD.finditer(text)]
    for begin, end in pairwise([0, *begins, len(text)]):
        thread = text[begin:end]
        if not _IDLE.search(thread) or b"_try_get_data" in thread:
            yield thread


def _line(text: bytes, hit: re2._Match) -> str:
    begin = text.rfind(b"\n", 0, hit.start()) + 1
    end = text.find(b"\n", hit.end())
    return visible(text[begin : end if end >= 0 else len(text)].decode(errors="replace").strip()[:LINE_CHARS])

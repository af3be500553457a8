"""Shakes the runs of the corpus: keeps the truth of each, and destroys what tuning could have leaned on.

A run is told anew (other rank numbers, other clocks, one log for all, other prefixes), or it is judged with a book that knows
other things than ours: marks that few runs bear out are taken off, the decisive line is not known, every line that sounds like
an error is, or the patterns stand in another order. What a rule has understood holds all the same. A way of shaking that would
change nothing in a run, or would touch the words of its decisive line, gives None, and the run does not count for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

import re2

from ftslurm.catalogs.kinds import Kind
from ftslurm.catalogs.patterns import OWN, Pattern, PatternBook
from ftslurm.model.devices import Remedy
from ftslurm.model.verdict import Blame, ErrorClass, Piece, RankEnd, Retriable, Role
from ftslurm.policies.diagnose.errors import told_error
from ftslurm.policies.diagnose.findings import findings
from ftslurm.policies.diagnose.hits import failed
from ftslurm.policies.diagnose.traces import plain, unlabelled, unstamped
from tests.corpus.load import Case

JITTER_S = 1.0
COPIES = 3
# A mark (symptom, defers) that so many runs bear out is a plain header's or bystander's, and no tuning for one run.
PLAIN_RUNS = 8
# Where the catalogue's general part begins: the special stands before it, and it is not shuffled among that.
GENERAL_FROM = "credentials"

# --- the same run, told otherwise


def renumbered(case: Case, chance: Random) -> Case | None:
    numbers = [end.rank for end in case.ends]
    if len(numbers) < 2:
        return None
    chance.shuffle(numbers)
    return _with_ends(case, sorted((replace(e, rank=n) for e, n in zip(case.ends, numbers, strict=True)), key=lambda e: e.rank))


def jittered(case: Case, chance: Random) -> Case | None:
    """Each rank's clock is off by up to a second."""
    return (
        _with_ends(case, [_later(end, chance.uniform(-JITTER_S, JITTER_S)) for end in case.ends]) if len(case.ends) > 1 else None
    )


def as_one_stream(case: Case, chance: Random) -> Case | None:
    """Each rank writes both of its streams into one."""
    mixed = [replace(end, output=tuple(replace(piece, stream="out") for piece in _in_time(end.output))) for end in case.ends]
    return _with_ends(case, mixed) if any(_streams(end) > 1 for end in case.ends) else None


def other_streams(case: Case, chance: Random) -> Case | None:
    """What was written to the one stream is written to the other, so that it is read before the other."""
    swapped = {"out": "err", "err": "out"}
    ends = [replace(end, output=tuple(replace(p, stream=swapped[p.stream]) for p in end.output)) for end in case.ends]
    return _with_ends(case, ends) if any(_streams(end) > 1 for end in case.ends) else None


def in_one_log(case: Case, chance: Random) -> Case | None:
    """One file has collected what all ranks wrote, in the order of time."""
    return _collected(case, lambda end: "")


def in_one_labelled_log(case: Case, chance: Random) -> Case | None:
    return _collected(case, lambda end: f"[rank{end.rank}]: ")


PREFIXES = (
    "[rank{rank}]: ", "{rank}: ", "2024-05-01 12:00:00,123 ", "[2024-05-01 12:00:00] ", "{node}: ", "[1,{rank}]<stderr>: ",
    "2024-05-01T12:00:00.123Z ", "(Worker pid=123, ip=10.0.0.7) ", "May  1 12:00:00 {node} train[123]: ", "worker-{rank} | ",
    "{node}.example.com: ", "[stderr] ", "[{node}:123] ", "2024-05-01T12:00:00.123456+00:00 {node} python[99]: ", "[worker-{rank}] ",
)  # fmt: skip
LEVELS = (
    "ERROR:root:", "2024-05-01 12:00:00.123 | ERROR    | __main__:main:12 - ", "ERROR 05-01 12:00:00 worker.py:12] ",
    "[2024-05-01 12:00:00,123] [ERROR] [launch.py:12:main] ", "(EngineCore_0 pid=123) ERROR 05-01 12:00:00 [core.py:12] ",
)  # fmt: skip


def prefixed(case: Case, chance: Random) -> Case | None:
    """Each line begins with what a launcher or a logger puts there."""
    return _behind(case, chance.choice(PREFIXES))


def logged_as_errors(case: Case, chance: Random) -> Case | None:
    """A logger has passed on each line as an error, whatever it says."""
    return _behind(case, chance.choice(LEVELS))


def stripped(case: Case, chance: Random) -> Case | None:
    """Without what launchers and loggers have put before the lines."""

    def bare(end: RankEnd, line: str) -> str:
        return unstamped(unlabelled(line.encode())).decode(errors="replace")

    return _relined(case, bare)


def with_more_bystanders(case: Case, chance: Random) -> Case | None:
    """Some more ranks fail in the words of one that does not know the cause."""
    knows = [end for end in case.ends if any(part in _text(end) for part in map(_one_space, case.decisive))]
    others = [end for end in case.ends if end not in knows and failed(end) and end.output]
    if not knows or not others:
        return None
    one, last = chance.choice(others), max(end.rank for end in case.ends)
    more = [_later(replace(one, rank=last + number), chance.uniform(0.0, 0.5)) for number in range(1, COPIES + 1)]
    return _with_ends(case, [*case.ends, *more])


def bystanders(cases: Iterable[Case]) -> list[RankEnd]:
    """The ranks of all runs that failed and do not tell the cause, where another rank does."""
    found = []
    for case in cases:
        knows = [end for end in case.ends if any(part in _text(end) for part in map(_one_space, case.decisive))]
        if knows and not case.expect.program:
            found += [end for end in case.ends if end not in knows and failed(end) and end.output]
    return found


def with_a_stranger(case: Case, chance: Random, others: Sequence[RankEnd]) -> Case | None:
    """A rank of another run fails in its own words shortly after the only one that speaks here."""
    voices = [end for end in case.ends if end.output]
    told = case.decisive and case.expect.error_class not in (ErrorClass.NETWORK, ErrorClass.UNKNOWN) and not case.expect.suspects
    if len(voices) != 1 or not failed(voices[0]) or not told or not others:
        return None
    stranger, begun = chance.choice(others), voices[0].at
    stranger = _later(stranger, begun + chance.uniform(0.2, 1.5) - stranger.at)
    said = tuple(replace(piece, at=max(piece.at, begun)) for piece in stranger.output)  # it reacts, and says nothing before
    number = max(end.rank for end in case.ends) + 1
    return _with_ends(case, [*case.ends, replace(stranger, rank=number, node="stranger", output=said)])


TELLINGS: Mapping[str, Callable[[Case, Random], Case | None]] = {
    "renumbered": renumbered, "jittered": jittered, "one stream": as_one_stream, "streams swapped": other_streams,
    "one log": in_one_log, "one log, labelled": in_one_labelled_log, "prefixed": prefixed, "logged as errors": logged_as_errors, "stripped": stripped,
    "bystanders": with_more_bystanders,
}  # fmt: skip


def _with_ends(case: Case, ends: Iterable[RankEnd]) -> Case:
    return replace(case, ends=tuple(ends))


def _later(end: RankEnd, by_s: float) -> RankEnd:
    pieces = tuple(replace(piece, at=piece.at + by_s) for piece in end.output)
    return replace(end, at=end.at + by_s if end.at else 0.0, output=pieces)


def _in_time(pieces: Iterable[Piece]) -> list[Piece]:
    return sorted(pieces, key=lambda piece: piece.at)


def _streams(end: RankEnd) -> int:
    return len({piece.stream for piece in end.output})


def _one_space(text: str) -> str:
    return " ".join(text.split())


def _text(end: RankEnd) -> str:
    return _one_space("".join(piece.text for piece in end.output))


def _lines_whole(end: RankEnd, say: Callable[[RankEnd, str], str]) -> RankEnd:
    """The rank with every line of its output said anew; a line that came in pieces comes with its first."""
    pieces: list[Piece] = []
    for stream in ("out", "err"):
        rest, at = "", 0.0
        for piece in (piece for piece in end.output if piece.stream == stream):
            at = at if rest else piece.at
            *lines, rest = (rest + piece.text).split("\n")
            pieces += [Piece(piece.at if number else at, stream, f"{say(end, line)}\n") for number, line in enumerate(lines)]
            at = piece.at if lines else at
        pieces += [Piece(at, stream, say(end, rest))] if rest else []
    return replace(end, output=tuple(_in_time(pieces)))


def _behind(case: Case, prefix: str) -> Case | None:
    return _relined(case, lambda end, line: prefix.format(rank=end.rank, node=end.node) + line if line.strip() else line)


def _relined(case: Case, say: Callable[[RankEnd, str], str]) -> Case | None:
    told = _with_ends(case, [_lines_whole(end, say) for end in case.ends])
    kept = [part for part in map(_one_space, case.decisive) if any(part in _text(end) for end in told.ends)]
    was = [part for part in map(_one_space, case.decisive) if any(part in _text(end) for end in case.ends)]
    changed = any(_text(a) != _text(b) for a, b in zip(case.ends, told.ends, strict=True))
    return told if changed and kept == was else None


def _collected(case: Case, label: Callable[[RankEnd], str]) -> Case | None:
    """One rank in place of all, which ends as the first that failed."""
    if sum(bool(end.output) for end in case.ends) < 2 or any(end.lost or end.oom for end in case.ends):
        return None
    said = [_lines_whole(end, lambda end, line: label(end) + line if line.strip() else line) for end in case.ends]
    first = min(case.ends, key=lambda end: (not failed(end), end.at))
    lines = _in_time(replace(piece, stream="out") for end in said for piece in end.output)
    whole = [piece if piece.text.endswith("\n") else replace(piece, text=f"{piece.text}\n") for piece in lines]
    return _with_ends(case, [replace(first, at=max(end.at for end in case.ends), output=tuple(whole))])


# --- the same run, judged with another book


def marks_borne_out(cases: Iterable[Case], book: PatternBook) -> Counter[str]:
    """Pattern -> in how many runs a line of it stands."""
    return Counter(id for case in cases for id in {pattern.id for pattern in known(case, book)})


def known(case: Case, book: PatternBook) -> list[Pattern]:
    return [each.pattern for end in case.ends for text in _outputs(end) for each in findings(text, book)]


def untuned(case: Case, book: PatternBook, runs: Mapping[str, int]) -> PatternBook | None:
    """Every known line of the run is an error like any other, but for plain headers and bystanders. runs: see `marks_borne_out`."""
    mine = {pattern.id for pattern in known(case, book)}

    def tuned(each: Pattern) -> bool:
        return (each.role is Role.SYMPTOM or each.defers) and each.id in mine and runs.get(each.id, 0) < PLAIN_RUNS

    if not any(tuned(each) for each in (*book.patterns, *book.meanings.values())):
        return None
    reset = [_unmarked(each) if tuned(each) else each for each in book.patterns]
    meanings = {id: _unmarked(each) if tuned(each) else each for id, each in book.meanings.items()}
    return PatternBook(reset, book.exits, book.rules, book.sources, book.vocabulary, meanings, book.kinds)


def without_decisive(case: Case, book: PatternBook) -> PatternBook | None:
    """No pattern knows the decisive line any more; all others know theirs."""
    taken: set[str] = set()
    lines = _decisive_lines(case)
    while more := {found.id for line in lines if (found := _first(line, _but(book, taken)))}:
        taken |= more
    return _but(book, taken) if taken else None


def all_known(case: Case, book: PatternBook) -> PatternBook | None:
    """Every line that sounds like an error and that no pattern knows is known for what its words are about."""
    lines = dict.fromkeys(
        line for end in case.ends for text in _outputs(end) for line in text.decode(errors="replace").splitlines() if line.strip()
    )
    told = [line for line in lines if told_error(line, vaguely=False) and not _first(line.encode(), book)]
    more = [_learnt(number, line, book.kinds.of_words(line)) for number, line in enumerate(told)]
    if not more:
        return None
    return PatternBook([*book.patterns, *more], book.exits, book.rules, book.sources, book.vocabulary, book.meanings, book.kinds)


def shuffled(book: PatternBook, chance: Random) -> PatternBook:
    """The special patterns in another order; a site's own stay first, and the general ones last."""
    places = [each.id for each in book.patterns]
    until = places.index(GENERAL_FROM)
    first = [each for each in book.patterns[:until] if OWN.intersection(each.sources)]
    special = [each for each in book.patterns[:until] if each not in first]
    chance.shuffle(special)
    rest = book.patterns[until:]
    return PatternBook(
        [*first, *special, *rest], book.exits, book.rules, book.sources, book.vocabulary, book.meanings, book.kinds
    )


def _unmarked(pattern: Pattern) -> Pattern:
    return replace(pattern, role=Role.ROOT, defers=False)


def _outputs(end: RankEnd) -> list[bytes]:
    texts = ["".join(piece.text for piece in end.output if piece.stream == stream) for stream in ("out", "err")]
    return [plain(text) for text in texts if text]


def _decisive_lines(case: Case) -> list[bytes]:
    lines = [line for end in case.ends for text in _outputs(end) for line in text.decode(errors="replace").splitlines()]
    return [line.encode() for line in lines if any(_one_space(part) in _one_space(line) for part in case.decisive)]


def _first(line: bytes, book: PatternBook) -> Pattern | None:
    found = book.scan(line)
    return found[0].pattern if found else None


def _but(book: PatternBook, ids: set[str]) -> PatternBook:
    rest = [each for each in book.patterns if each.id not in ids]
    meanings = {id: each for id, each in book.meanings.items() if id not in ids}
    known = book.vocabulary
    vocabulary = type(known)((word for word in known.words if word.means not in ids), known.frames)
    return PatternBook(rest, book.exits, book.rules, book.sources, vocabulary, meanings, book.kinds)


def _learnt(number: int, line: str, kind: Kind | None) -> Pattern:
    """As somebody would write it down who has met the line once: its words, with other numbers."""
    error_class, retriable = (kind.error_class, kind.retriable) if kind else (ErrorClass.USER_CODE, Retriable.NO)
    words = re2.escape(line.strip()[:200])
    return Pattern(
        f"learnt-{number}", "a line that was met once", error_class, retriable, Blame.NO, Role.ROOT, "log",
        Remedy.FAIL if retriable is Retriable.NO else Remedy.RESTART, 0, words, sample=line,
    )  # fmt: skip

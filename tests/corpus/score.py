"""Scores the classification against the corpus: `python -m tests.corpus.score` (or `make score`).

A run of our own counts as right when class, retriable, suspects, nodes to exclude and `program` are all as expected, and
the signature where one is expected. The runs from public threads are scored field by field, in two halves. The unseen half
gives numbers only: its differences, and its runs with `--why`, are shown with `--reveal`, and a pattern that was written
after that has not been tested on it. `--unmet` takes from each run of the seen half the pattern that knows it: so one sees
what the rules alone make of a failure that nobody has met, without a look at the unseen half. `--bare` is harder: all texts of
errors are taken from the catalogue at once, and then a part of them by chance, so that whole families are missing. `--shaken` tells each run otherwise, or judges it with a book
that knows other things (shake.py): the truth stays, and what tuning could lean on is gone. `--why NAME` shows one run's verdict with its evidence.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ftslurm.catalogs.codes import CodeBook
from ftslurm.catalogs.patterns import Pattern, PatternBook
from ftslurm.config.catalog_files import load_code_book, load_pattern_book
from ftslurm.model.devices import Fault, Severity
from ftslurm.model.verdict import Blame, Retriable, Role, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from tests.corpus import shake
from tests.corpus.load import SEEN, UNSEEN, Case, half_of, load_all, load_public

FIELDS = ("class", "retriable", "suspects", "isolate", "program", "signature")
# The part of the patterns that `--bare` takes away by chance, and with which seeds.
BARE_PART, BARE_SEEDS = 0.3, range(1, 6)
# How often a rank of another run is added by chance.
STRANGERS = 3
# Of a run from a public thread. `another try` is `retriable` with no difference between the answers that allow one.
MEASURES = ("class", "retriable", "another try", "decisive line")


def verdict_of(case: Case, patterns: PatternBook, codes: CodeBook) -> Verdict:
    faults = []
    for fault in case.faults:
        kind = "nvidia" if fault.code.startswith(("XID", "SXID", "RECOVERY", "ROW", "ECC", "GPU")) else "ascend"
        m = codes.meaning(kind, fault.code, Severity.UNKNOWN)
        faults.append(Fault(fault.node, fault.device, m.code, m.name, m.fault_class, m.user_induced))
    bad = {node: f"Slurm says {words}" for node, words in case.bad_nodes.items()}
    return diagnose(case.ends, Facts(tuple(faults), bad), patterns)


def differences(case: Case, v: Verdict) -> dict[str, str]:
    """field -> `expected, not got`, for what is not as expected and not open."""
    e = case.expect
    got = {
        "class": v.error_class.value, "retriable": v.retriable.value, "suspects": " ".join(sorted({s.node for s in v.suspects})),
        "isolate": " ".join(sorted({s.node for s in v.suspects if s.blame is Blame.YES})), "program": str(v.program),
        "signature": v.signature,
    }  # fmt: skip
    want = {
        "class": e.error_class.value, "retriable": e.retriable.value, "suspects": " ".join(sorted(e.suspects)),
        "isolate": " ".join(sorted(e.isolate)), "program": str(e.program), "signature": e.signature or v.signature,
    }  # fmt: skip
    return {
        name: f"{want[name] or '-'}, not {got[name] or '-'}" for name in FIELDS if got[name] != want[name] and name not in e.open
    }


def misses(case: Case, v: Verdict) -> dict[str, str]:
    """measure -> `expected, not got`, for what counts against the verdict on a run from a public thread."""
    found = {name: words for name, words in differences(case, v).items() if name in ("class", "retriable")}
    if "retriable" in found and (case.expect.retriable is Retriable.NO) is not (v.retriable is Retriable.NO):
        found["another try"] = found["retriable"]
    first = v.evidence[0] if v.evidence else ""
    if case.decisive and not any(one_space(part) in one_space(first) for part in case.decisive):
        found["decisive line"] = f"{' or '.join(map(repr, case.decisive))}, not {first!r}"
    return found


def one_space(text: str) -> str:
    return " ".join(text.split())


def falsely_held(case: Case, v: Verdict) -> dict[str, frozenset[str]]:
    """`convicted` and `suspected` -> the nodes against which the verdict holds what people do not."""
    found = {
        "convicted": ("isolate", {s.node for s in v.suspects if s.blame is Blame.YES} - case.expect.isolate),
        "suspected": ("suspects", {s.node for s in v.suspects} - case.expect.suspects),
    }
    return {name: frozenset(nodes) for name, (expected, nodes) in found.items() if nodes and expected not in case.expect.open}


def rate(right: int, total: int) -> str:
    return f"{right}/{total} = {right / total:.3f}" if total else "none"


@dataclass(slots=True)
class Half:
    """The count of one half of the public runs. held: `convicted` or `suspected` to how many runs have such a node falsely."""

    cases: int = 0
    with_decisive: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    def add(self, case: Case, v: Verdict) -> None:
        self.cases += 1
        self.with_decisive += bool(case.decisive)
        found, held = misses(case, v), falsely_held(case, v)
        self.missed.update(found.keys())
        self.held.update(held.keys())
        words = [f"{name}: {told}" for name, told in found.items() if name != "another try"]
        words += [f"falsely {name}: {' '.join(sorted(nodes))}" for name, nodes in held.items()]
        if words:
            self.details.append(f"{case.name}: " + "; ".join(words))

    def lines(self, name: str) -> list[str]:
        held = ", ".join(f"falsely {one} in {self.held[one]}" for one in ("convicted", "suspected"))
        return [self.rates(f"{name:10}", MEASURES), f"{'':10} nodes {held} of {self.cases} runs"]

    def rates(self, name: str, measures: Iterable[str]) -> str:
        totals = {measure: self.with_decisive if measure == "decisive line" else self.cases for measure in measures}
        right = (f"{measure} {rate(total - self.missed[measure], total)}" for measure, total in totals.items())
        return f"{name} {self.cases:3} runs: " + ", ".join(right)


def score_public(cases: Iterable[Case], judge: Callable[[Case], Verdict], halves: Sequence[str], reveal: bool) -> list[str]:
    """What to print of the public runs in these halves; the unseen half's differences only where `reveal`."""
    counts = {name: Half() for name in halves}
    for case in cases:
        if half_of(case.name) in counts:
            counts[half_of(case.name)].add(case, judge(case))
    lines = []
    for name, half in counts.items():
        lines += half.details if name == SEEN or reveal else []
        lines += half.lines(name)
    return lines


def score_own(cases: Sequence[Case], judge: Callable[[Case], Verdict]) -> list[str]:
    """What to print of the runs that we recorded or wrote."""
    wrong: Counter[str] = Counter()
    right: Counter[str] = Counter()
    lines = []
    for case in cases:
        found = differences(case, judge(case))
        wrong.update(found.keys())
        right[case.source] += not found
        if found:
            lines.append(f"{case.name}: " + "; ".join(f"{name}: {words}" for name, words in found.items()))
    total = Counter(case.source for case in cases)
    lines += [f"{source:10} {right[source]:3} of {total[source]:3} right" for source in sorted(total)]
    lines.append("by field   " + ", ".join(f"{name} {len(cases) - wrong[name]}/{len(cases)}" for name in FIELDS))
    lines.append(f"score      {sum(right.values())}/{len(cases)} = {sum(right.values()) / max(1, len(cases)):.3f}")
    return lines


def support(cases: Iterable[Case], judge: Callable[[Case], Verdict]) -> list[str]:
    """Of each pattern and rule: in how many runs of the seen half, and of our own, it made the verdict; those of one run last."""
    counts = Counter(rule for case in cases for rule in set(judge(case).because))
    return [f"{runs:5} {rule}" for rule, runs in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]


def without_its_pattern(case: Case, patterns: PatternBook, codes: CodeBook) -> Verdict | None:
    """The verdict with the very pattern taken away that knows the run, as if nobody had met its kind before.

    None where no pattern decides. What numbers and names of devices mean stays known.
    """
    known = verdict_of(case, patterns, codes).signature
    taken = next((pattern for pattern in patterns.patterns if pattern.id == known), None)
    if taken is None:
        return None
    return verdict_of(case, without(patterns, [taken]), codes)


def without(patterns: PatternBook, taken: Collection[Pattern]) -> PatternBook:
    """The book without these patterns; what numbers and names of devices mean stays known."""
    rest = [pattern for pattern in patterns.patterns if pattern not in taken]
    meanings = {**patterns.meanings, **{pattern.id: pattern for pattern in taken}}
    return PatternBook(rest, patterns.exits, patterns.rules, patterns.sources, patterns.vocabulary, meanings, patterns.kinds)


def error_texts(patterns: PatternBook) -> list[Pattern]:
    """The patterns that know a root error; not headers and what bystanders print, which tell of a line's place among lines."""
    return [pattern for pattern in patterns.patterns if pattern.role is Role.ROOT and not pattern.defers]


def score_bare(cases: Sequence[Case], patterns: PatternBook, codes: CodeBook) -> list[str]:
    """What to print of the seen half, judged without any text of an error, then without a part of them by each seed."""
    texts = error_texts(patterns)
    draws = [("bare", texts)]
    draws += [(f"seed {seed}", random.Random(seed).sample(texts, round(BARE_PART * len(texts)))) for seed in BARE_SEEDS]
    lines = []
    for name, taken in draws:
        book, half = without(patterns, taken), Half()
        for case in cases:
            if half_of(case.name) == SEEN:
                half.add(case, verdict_of(case, book, codes))
        lines += half.details if taken is texts else []
        lines += half.lines(name)
    return lines


def score_unmet(cases: Iterable[Case], patterns: PatternBook, codes: CodeBook) -> list[str]:
    """What to print of the seen half, each run judged without the pattern that knows it."""
    half = Half()
    for case in cases:
        if half_of(case.name) == SEEN and (verdict := without_its_pattern(case, patterns, codes)):
            half.add(case, verdict)
    return [*half.details, *half.lines("unmet")]


def score_shaken(cases: Sequence[Case], patterns: PatternBook, codes: CodeBook, shown: Collection[str] = ()) -> list[str]:
    """What to print of the seen half, each run told otherwise or judged with another book. shown: ways whose misses are listed."""
    mine = [case for case in cases if half_of(case.name) == SEEN]
    runs = shake.marks_borne_out(mine, patterns)
    ways: dict[str, Callable[[Case, random.Random], tuple[Case | None, PatternBook | None]]] = {
        "untuned": lambda case, _: (case, shake.untuned(case, patterns, runs)),
        "line unknown": lambda case, _: (case, shake.without_decisive(case, patterns)),
        "all known": lambda case, _: (case, shake.all_known(case, patterns)),
    }
    for name, tell in shake.TELLINGS.items():
        ways[name] = lambda case, chance, tell=tell: (tell(case, chance), patterns)  # type: ignore[misc]
    others = shake.bystanders(mine)
    for number in range(1, STRANGERS + 1):
        ways[f"stranger {number}"] = lambda case, chance: (shake.with_a_stranger(case, chance, others), patterns)
    books = [shake.shuffled(patterns, random.Random(seed)) for seed in BARE_SEEDS]
    for seed, book in zip(BARE_SEEDS, books, strict=True):
        ways[f"shuffled {seed}"] = lambda case, _, book=book: (case, book)  # type: ignore[misc]
    lines = []
    for name, way in ways.items():
        half = Half()
        for case in mine:
            told, book = way(case, random.Random(f"{name} {case.name}"))
            if told is not None and book is not None:
                half.add(told, verdict_of(told, book, codes))
        lines += half.details if name in shown else []
        lines.append(half.rates(f"{name:17}", ("class", "another try", "decisive line")))
    return lines


def hidden(name: str, reveal: bool) -> bool:
    """A run of the unseen half that nobody asked to reveal."""
    return not reveal and half_of(name) == UNSEEN and any(case.name == name for case in load_public())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--why", metavar="NAME", help="one run: its verdict and evidence")
    parser.add_argument("--half", choices=(SEEN, UNSEEN), help="only this half of the runs from public threads")
    parser.add_argument("--unmet", action="store_true", help="the seen half, each run without the pattern that knows it")
    parser.add_argument(
        "--bare", action="store_true", help="the seen half without all, and without a part, of the known errors' texts"
    )
    parser.add_argument(
        "--shaken",
        nargs="*",
        metavar="WAY",
        help="the seen half, told otherwise or judged with other books; of WAY the misses, too",
    )
    parser.add_argument("--support", action="store_true", help="how many runs each pattern and rule decides")
    parser.add_argument("--reveal", action="store_true", help="show the differences of the unseen half, too")
    asked = parser.parse_args()
    patterns, codes = load_pattern_book(()).of_ranks(), load_code_book(())

    def judge(case: Case) -> Verdict:
        return verdict_of(case, patterns, codes)

    if asked.why:
        if hidden(asked.why, asked.reveal):
            sys.exit(f"{asked.why} is in the unseen half; whoever writes patterns does not look at it. --reveal shows it.")
        for case in [*load_all(), *load_public()]:
            if case.name == asked.why:
                print(judge(case))
                print({**differences(case, judge(case)), **misses(case, judge(case))} or "as expected")
        return 0
    if asked.support:
        seen = [case for case in load_public() if half_of(case.name) == SEEN]
        print("\n".join(support([*seen, *load_all()], judge)))
        return 0
    if asked.unmet:
        print("\n".join(score_unmet(load_public(), patterns, codes)))
        return 0
    if asked.shaken is not None:
        print("\n".join(score_shaken(list(load_public()), patterns, codes, asked.shaken)))
        return 0
    if asked.bare:
        print("\n".join(score_bare(list(load_public()), patterns, codes)))
        return 0
    if not asked.half:
        print("\n".join(score_own(list(load_all()), judge)))
    print("\n".join(score_public(load_public(), judge, [asked.half] if asked.half else [SEEN, UNSEEN], asked.reveal)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

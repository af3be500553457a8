"""Scores the classification against the corpus: `python -m tests.corpus.score` (or `make score`).

A run counts as right when class, retriable, suspects, nodes to exclude and `program` are all as expected, and the
signature where one is expected. `--why NAME` shows one run's verdict with its evidence.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from ftslurm.model.devices import Fault, Severity
from ftslurm.model.verdict import Blame, Verdict
from ftslurm.policies.classify import Facts, classify
from ftslurm.policies.codebook import CodeBook
from ftslurm.policies.patterns import PatternBook
from ftslurm.wrapper.catalogs import load_code_book, load_pattern_book
from tests.corpus.load import Case, load_all

FIELDS = ("class", "retriable", "suspects", "isolate", "program", "signature")


def verdict_of(case: Case, patterns: PatternBook, codes: CodeBook) -> Verdict:
    faults = []
    for fault in case.faults:
        kind = "nvidia" if fault.code.startswith(("XID", "SXID", "RECOVERY", "ROW", "ECC", "GPU")) else "ascend"
        m = codes.meaning(kind, fault.code, Severity.UNKNOWN)
        faults.append(Fault(fault.node, fault.device, m.code, m.name, m.fault_class, m.user_induced))
    bad = {node: f"Slurm says {words}" for node, words in case.bad_nodes.items()}
    return classify(case.ends, Facts(tuple(faults), bad), patterns)


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
    return {name: f"{want[name] or '-'}, not {got[name] or '-'}" for name in FIELDS if got[name] != want[name] and name not in e.open}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--why", metavar="NAME", help="one run: its verdict and evidence")
    asked = parser.parse_args()
    patterns, codes = load_pattern_book(()).of_ranks(), load_code_book(())
    cases = [case for case in load_all() if asked.why in (None, case.name)]
    wrong: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for case in cases:
        v = verdict_of(case, patterns, codes)
        found = differences(case, v)
        wrong.update(found.keys())
        right[case.source] += not found
        if asked.why:
            print(v)
        if found:
            print(f"{case.name}: " + "; ".join(f"{name}: {words}" for name, words in found.items()))
    total = Counter(case.source for case in cases)
    for source in sorted(total):
        print(f"{source:10} {right[source]:3} of {total[source]:3} right")
    print("by field   " + ", ".join(f"{name} {len(cases) - wrong[name]}/{len(cases)}" for name in FIELDS))
    print(f"score      {sum(right.values())}/{len(cases)} = {sum(right.values()) / max(1, len(cases)):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

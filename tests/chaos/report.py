"""The table that a person reads."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from tests.chaos.campaign import Outcome
from tests.chaos.checks import answer


def print_report(outcome: Outcome, keep: str, console: Console | None = None) -> None:
    console = console or Console(width=150, highlight=False)
    console.print(table_of(outcome))
    jobs, helped = len(outcome.jobs), Counter(help.kind for e, _ in outcome.jobs for help in e.helped)
    console.print(
        f"{outcome.injected} faults in {jobs} jobs, {outcome.seconds / 60:.1f} min, seed {outcome.seed}"
        f" (repeat with --seed {outcome.seed}); {len(outcome.missed)} more found nobody to strike"
    )
    for what, count in sorted(helped.items()):
        console.print(f"the operator helped {count} times: {what}")
    if outcome.injected < outcome.wanted:
        console.print(f"FAILED: only {outcome.injected} of {outcome.wanted} faults could be injected in time")
    for words in outcome.cluster:
        console.print(f"FAILED: {words}")
    for evidence, wrong in outcome.jobs:
        if wrong:
            struck = ", ".join(f"{blow.kind}@{blow.attempt}" for blow in evidence.blows)
            console.print(
                f"FAILED: job {evidence.plan.number} ({evidence.plan.shape}, Slurm's {evidence.job}), struck by {struck}",
                soft_wrap=True,
                markup=False,
            )
            for words in wrong[:SHOWN]:
                console.print(f"    {words}", soft_wrap=True, markup=False)
    if any(wrong for _, wrong in outcome.jobs):
        console.print(f"what failing jobs left lies in {keep}")
    console.print("all is well" if outcome.well else "not all is well")


SHOWN = 12


def table_of(outcome: Outcome) -> Table:
    """A line a kind: how many, how they were answered, and in how many jobs that struck something was wrong."""
    answers: dict[str, Counter[str]] = {}
    failures: Counter[str] = Counter()
    for evidence, wrong in outcome.jobs:
        for blow in evidence.blows:
            if not blow.beside:
                answers.setdefault(blow.kind, Counter())[answer(evidence, blow)] += 1
        if wrong:
            failures.update({blow.kind for blow in evidence.blows})
    table = Table("fault", "injected", "answered by", "in failing jobs")
    for kind, count in sorted(answers.items()):
        table.add_row(
            kind,
            str(sum(count.values())),
            ", ".join(f"{name} {times}" for name, times in count.most_common()),
            str(failures[kind] or ""),
        )
    return table

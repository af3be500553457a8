"""What repeats in a job's history, said once. Pure: attempts in, what is shown of them out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ftslurm.model.values import dataclass
from ftslurm.report.view import AttemptView

# One that repeats once is shown: to say so takes as much room.
FOLD_FROM = 2
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Again:
    """Attempts that went as the one before them. shortest_s, longest_s: of their lives, 0 where no end was recorded."""

    first: int
    last: int
    count: int
    shortest_s: float
    longest_s: float


def folded(attempts: Sequence[AttemptView]) -> list[AttemptView | Again]:
    """In order; the last attempt always stands for itself, as it is the one that people ask for."""
    shown: list[AttemptView | Again] = []
    same: list[AttemptView] = []
    for number, attempt in enumerate(attempts):
        last = number == len(attempts) - 1
        if number and not last and _way(attempt) == _way(attempts[number - 1]):
            same.append(attempt)
            continue
        shown += [*_again(same), attempt]
        same = []
    return shown


def _again(same: list[AttemptView]) -> Iterable[AttemptView | Again]:
    if len(same) < FOLD_FROM:
        return same
    lives = [attempt.ended - attempt.began for attempt in same if attempt.ended]
    return [Again(same[0].number, same[-1].number, len(same), min(lives, default=0.0), max(lives, default=0.0))]


def _way(a: AttemptView) -> tuple[object, ...]:
    """How it went, without what differs each time: numbers in a text (pids, seconds, budgets left)."""
    return (
        a.nodes, a.tasks, tuple(a.faults), tuple((v.signature, v.retriable, v.program, tuple(v.against)) for v in a.verdicts),
        "" if a.verdicts else _DIGITS.sub("0", a.cause), tuple(sorted(a.exits)),
        tuple((hang.sign, _DIGITS.sub("0", hang.what)) for hang in a.hangs), tuple(hint.name for hint in a.hints),
        tuple((r.rung, r.cost, r.ok, tuple(r.isolated)) for r in a.remedies), tuple(_DIGITS.sub("0", note) for note in a.notes),
    )  # fmt: skip

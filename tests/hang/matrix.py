"""What was done to jobs against what was said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

HEALTHY, NOTHING = "(healthy)", "(nothing)"


@dataclass(frozen=True)
class Told:
    """A case. truth, said: kinds of findings, empty for none. ok: the right kind, and the right ranks."""

    act: str
    truth: str
    said: str
    ok: bool
    words: str

    @property
    def column(self) -> str:
        wrong_rank = self.said and self.said == self.truth and not self.ok
        return f"{self.said}, wrong rank" if wrong_rank else self.said or NOTHING


def table(told: Sequence[Told]) -> str:
    rows, columns = ({f(each): None for each in told} for f in (lambda t: t.truth or HEALTHY, lambda t: t.column))
    counts = Counter((each.truth or HEALTHY, each.column) for each in told)
    names, said = sorted(rows), sorted(columns)
    width = max(map(len, (*names, *said))) + 2
    head = " " * width + "".join(f"{name:>{width}}" for name in said)
    lines = (f"{name:<{width}}" + "".join(f"{counts[name, word] or '.':>{width}}" for word in said) for name in names)
    return "\n".join((head, *lines))


def rates(told: Sequence[Told], kind: str | None = None) -> tuple[int, int, int]:
    """(right findings, findings, faults), of one kind or of all."""
    said = [each for each in told if each.said and (kind is None or each.said == kind)]
    faults = [each for each in told if each.truth and (kind is None or each.truth == kind)]
    return sum(each.ok and bool(each.truth) for each in said), len(said), len(faults)


def summary(told: Sequence[Told], kinds: Sequence[str]) -> str:
    """The matrix, precision and recall, and the wrong cases."""
    lines = [table(told), ""]
    for kind in (*kinds, None):
        right, said, faults = rates(told, kind)
        shares = f"precision {share(right, said)}, recall {share(right, faults)}"
        lines.append(f"{kind or 'all':<16} {shares}   ({right} right of {said} said and {faults} done)")
    healthy = [each for each in told if not each.truth]
    lines.append(f"{'healthy':<16} {sum(each.ok for each in healthy)} of {len(healthy)} left alone")
    lines += [f"WRONG: {each.words}" for each in told if not each.ok]
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "  -  "

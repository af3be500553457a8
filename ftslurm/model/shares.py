"""What a step has of its nodes, as its own tasks are told and as the ledger keeps it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """Of one node: CPUs (SLURM_CPUS_ON_NODE) and GPUs (SLURM_GPUS_ON_NODE); 0 where nobody has said it."""

    cpus: int = 0
    gpus: int = 0


def fold_counts(numbers: Sequence[int]) -> str:
    """`2,2,2,1` as Slurm writes it: `2(x3),1`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][0] == number:
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in found)


_MOST = 1 << 20  # numbers in one text: more nodes than any cluster has


def unfold_counts(text: str) -> tuple[int, ...]:
    """The inverse; empty for what is no such text."""
    found: list[int] = []
    for word in text.split(","):
        run = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,7})\))?", word, re.ASCII)
        if run is None or len(found) + int(run[2] or 1) > _MOST:
            return ()
        found += [int(run[1])] * int(run[2] or 1)
    return tuple(found)


def fold_shares(shares: Sequence[Share]) -> tuple[str, str]:
    """CPUs and GPUs, each empty where no node has any."""
    cpus, gpus = [share.cpus for share in shares], [share.gpus for share in shares]
    return fold_counts(cpus) if any(cpus) else "", fold_counts(gpus) if any(gpus) else ""


def unfold_shares(cpus: str, gpus: str) -> tuple[Share, ...]:
    """The inverse; empty where the two do not speak of as many nodes."""
    c, g = unfold_counts(cpus), unfold_counts(gpus)
    if c and g and len(c) != len(g):
        return ()
    count = max(len(c), len(g))
    return tuple(Share(*each) for each in zip(c or (0,) * count, g or (0,) * count, strict=True))

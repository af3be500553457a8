"""Where the pages of ranks are: in the node's /dev/shm, or in that of a container, which is seen through its processes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ftslurm.wrapper.shim.processes import descendants

# Seconds after the ranks' start at which a page that is not there is looked for in containers, and from then on how often. Most
# programs have none, and each look asks the kernel for all processes of the rank.
LOOKS_S, THEN_S = (2.0, 5.0, 10.0, 20.0, 40.0), 60.0


class Folders:
    """Gives the folder of a rank's page. Call `turn` at `wakes_at`, monotonic seconds."""

    def __init__(self, folder: str, ranks: Sequence[tuple[int, int, int]], now: float) -> None:
        """folder: of the step on the node. ranks: (rank, pid of its shim, number of its start)."""
        self._folder, self.ranks = folder, ranks
        self._roots: dict[int, str] = {}  # rank -> of a process of it
        self._looks = [now + after_s for after_s in LOOKS_S] if ranks else [float("inf")]

    def __call__(self, rank: int) -> str:
        return self._roots.get(rank, "") + self._folder

    def turn(self, now: float) -> bool:
        """Has a page been found elsewhere since?"""
        if now < self._looks[0]:
            return False
        self._looks = self._looks[1:] or [now + THEN_S]
        before = dict(self._roots)
        for rank, shim, number in self.ranks:
            page = f"{rank}.{number}"
            if not os.path.exists(f"{self(rank)}/{page}"):  # noqa: PTH110
                self._roots[rank] = root_with(f"{self._folder}/{page}", shim)
        return self._roots != before


def root_with(page: str, shim: int) -> str:
    """`/proc/PID/root` of the first process of a rank, its shim or below it, that has the page; empty if none has."""
    for pid in (shim, *descendants(shim)):
        if os.path.exists(f"/proc/{pid}/root{page}"):  # noqa: PTH110
            return f"/proc/{pid}/root"
    return ""

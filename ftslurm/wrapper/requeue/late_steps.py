"""Steps that have ended and that slurmctld has not heard of, because it was away: a requeue waits for them.

A slurmstepd whose last message to slurmctld fails sends it again 60 s later, and its node is not clean before: a clean-up that
takes 4 s otherwise takes up to 65 s then, and a start time for 4 s costs Slurm's 121 s. What is waited for here the clean-up
would wait for too. Source: docs/slurm-facts.md, "How long a clean-up takes".

Slurm may list such a step no more: where it has read the message and could not answer, it is the slurmstepd that waits. That one
is looked for on our own node, which is the one that reports for all of a step.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from ftslurm.system.processes import all_processes

# Until the message is sent again, and is understood.
RESEND_S = 60.0 + 5.0
# slurmctld answers in less, unless it was away.
AWAY_S = 2.0
LOOK_AGAIN_S = 0.5

_STEPD = re.compile(rb"slurmstepd: \[(\d+)\.(\d+)\]")


def stepds(
    job: int, proc: Path = Path("/proc"), parents: Callable[[], Collection[int]] | None = None, owners: Collection[int] = ()
) -> frozenset[str]:
    """Numbered steps of the job, `7.0`, that have ended and whose slurmstepd is on this node; those hidden from us are not found.

    parents: pids of those that have children, as a slurmstepd has as long as its step runs. owners: users whose processes count,
    root and we ourselves if empty: anybody may call a process so.
    """
    found: dict[int, str] = {}
    trusted = owners or (0, os.geteuid())
    for entry in proc.glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if entry.stat().st_uid in trusted and (named := _STEPD.match(entry.read_bytes())) and int(named[1]) == job:
                found[int(entry.parent.name)] = f"{job}.{int(named[2])}"
    running = (parents or _parents)() if found else ()
    return frozenset(step for pid, step in found.items() if pid not in running)


def _parents() -> frozenset[int]:
    return frozenset(process.parent for process in all_processes().values())


class Outage:
    """Whether slurmctld was away a short while ago. clock: any seconds; unix: Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, unix: Callable[[], float] = time.time) -> None:
        self._clock, self._unix = clock, unix
        self._back: float | None = None

    def note(self, asked: float, answered: bool, up_since: int = 0) -> None:
        """Of one question. asked: when, by `clock`. up_since: of slurmctld, Unix seconds; 0: not told."""
        if not answered or self._clock() - asked >= AWAY_S or (up_since and self._unix() - up_since < RESEND_S):
            self._back = self._clock()

    def await_steps(self, listed: Callable[[], Collection[str] | None], pause: Callable[[float], None]) -> bool:
        """Wait until no step that has ended is left, for as long as one may be late; was there any?

        listed: those that are left, None: nobody knows. pause: waits for so many seconds.
        """
        waited = False
        while self._back is not None and self._clock() - self._back < RESEND_S:
            steps = listed()
            if steps is not None and not steps:
                break
            waited = True
            pause(LOOK_AGAIN_S)
        self._back = None
        return waited

"""Steps that have ended and that slurmctld has not heard of, because it was away: a requeue waits for them.

A slurmstepd whose last message to slurmctld fails sends it again 60 s later, and its node is not clean before: a clean-up that
takes 4 s otherwise takes up to 65 s then, and a start time for 4 s costs Slurm's 121 s. What is waited for here the clean-up
would wait for too. Source: docs/slurm-facts.md, "How long a clean-up takes".

Slurm may list such a step no more: where it has read the message and could not answer, it is the slurmstepd that waits. The first
node of a step reports for all of it, so on our own node the slurmstepds tell exactly. Of a step that reports from another node
only Slurm's list tells, where steps that still run stand too: of those in it only ours count, and only after an outage for sure.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from ftslurm.model.values import dataclass
from ftslurm.system.processes import all_processes

# Until the message is sent again, and is understood.
RESEND_S = 60.0 + 5.0
# An answer in less shows that slurmctld was there. A busy one may need more, so then only slurmstepds count.
LATE_S = 2.0
# A question that fails takes this long (MessageTimeout, 10 s by default, and as long where the connection is refused), so an
# answer in less was one to the first try.
AWAY_S = 9.0
LOOK_AGAIN_S = 0.5

_STEPD = re.compile(rb"slurmstepd: \[(\d+)\.(\d+)\]")


@dataclass(frozen=True, slots=True)
class StepsHere:
    """Numbered steps of the job, `7.0`, whose slurmstepd is on this node; those hidden from us are not found."""

    ended: frozenset[str]
    running: frozenset[str]


def steps_here(
    job: int, proc: Path = Path("/proc"), parents: Callable[[], Collection[int]] | None = None, owners: Collection[int] = ()
) -> StepsHere:
    """parents: pids of those that have children, as a slurmstepd has as long as its step runs. owners: users whose processes
    count, root and we ourselves if empty: anybody may call a process so.
    """
    found: dict[int, str] = {}
    trusted = owners or (0, os.geteuid())
    for entry in proc.glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if entry.stat().st_uid in trusted and (named := _STEPD.match(entry.read_bytes())) and int(named[1]) == job:
                found[int(entry.parent.name)] = f"{job}.{int(named[2])}"
    busy = (parents or _parents)() if found else ()
    running = frozenset(step for pid, step in found.items() if pid in busy)
    return StepsHere(frozenset(step for pid, step in found.items() if pid not in busy), running)


def _parents() -> frozenset[int]:
    return frozenset(process.parent for process in all_processes().values())


class Outage:
    """Whether slurmctld was away a short while ago. clock: any seconds; unix: Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, unix: Callable[[], float] = time.time) -> None:
        self._clock, self._unix = clock, unix
        self._back: float | None = None
        self._sure = False

    def note(self, asked: float, answered: bool, up_since: int = 0) -> None:
        """Of one question. asked: when, by `clock`. up_since: of slurmctld, Unix seconds; 0: not told."""
        took_s = self._clock() - asked
        sure = not answered or took_s >= AWAY_S or bool(up_since and self._unix() - up_since < RESEND_S)
        if sure or took_s >= LATE_S:
            self._back, self._sure = self._clock(), self._sure or sure

    def await_steps(
        self, ended: Callable[[], Collection[str]], listed: Callable[[], Collection[str] | None], pause: Callable[[float], None]
    ) -> bool:
        """Wait until no step that has ended is left, for as long as one may be late; was there any?

        ended: those known to be left. listed: those that may be, None: nobody knows; asked for after an outage for sure. pause:
        waits for so many seconds.
        """
        waited = False
        while self._back is not None and self._clock() - self._back < RESEND_S:
            steps = ended() or (listed() if self._sure else ())
            if steps is not None and not steps:
                break
            waited = True
            pause(LOOK_AGAIN_S)
        self._back, self._sure = None, False
        return waited

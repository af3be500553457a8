"""A job watched for slow ranks and links, as the controller would: window by window."""

from __future__ import annotations

import time
from collections.abc import Callable

from ftslurm.model.collectives import Culprit
from ftslurm.policies.hang.slow import SlowMemory, see, see_enters, window
from tests.hang.rig import Job, Verdict

WINDOW_S, ENTERS_S = 1.0, 3.0


def watch_slow(job: Job, act: Callable[[], Callable[[], None]], budget_s: float = 45.0) -> Verdict:
    """`act` is done once the job's usual speed is known."""
    memory = SlowMemory()
    job.node.waits()
    begun, acted_at, undo = time.monotonic(), 0.0, None
    enters_at = begun
    finding: Culprit | None = None
    while finding is None and time.monotonic() - begun < budget_s:
        time.sleep(WINDOW_S)
        by_wrappers = all(view.exact for view in job.node.look())
        seen = window(job.node.waits()) if by_wrappers else None
        if seen is not None:
            memory, finding = see(memory, seen)
        if not by_wrappers and time.monotonic() - enters_at > ENTERS_S:
            enters_at = time.monotonic()
            memory, finding = see_enters(memory, job.node.enters())
        known = memory.baseline is not None or (not by_wrappers and time.monotonic() - begun > 8)
        if undo is None and known:
            undo, acted_at = act(), time.monotonic()
        if finding is not None and not finding.ranks:
            finding = None  # slow in all, nobody stands out
    if undo is not None:
        undo()
    return Verdict(finding, time.monotonic() - (acted_at or begun))

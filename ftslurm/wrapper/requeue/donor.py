"""What a donor job runs: nothing but a watch over the job it lends its node to. It ends when that does, or is requeued.
Why a job does not grow instead: docs/slurm-facts.md, "Nodes for a running job".

ftrun ends its donors itself; this is for the case that it cannot any more.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from ftslurm.errors import FtslurmError, UnknownJob
from ftslurm.slurm.choice import choose_client
from ftslurm.slurm.client import JobState, SlurmClient

POLL_S = 10.0  # a request to slurmctld each; a node stands idle for no longer


def needed(client: SlurmClient, number: int, restarts: int) -> bool:
    """Is the job still in the scheduling that has borrowed? Yes while nobody can tell: the donor's time limit ends it."""
    try:
        job = client.job(number)
    except UnknownJob:
        return False
    except FtslurmError:
        return True
    return job.restarts == restarts and (job.completing is False) and job.state in _LIVES


# UNKNOWN: a word that this version does not know is no proof that the job has ended.
_LIVES = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN})


def lend(client: SlurmClient, number: int, restarts: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """Until the job needs it no longer."""
    while needed(client, number, restarts):
        sleep(POLL_S)


def main() -> None:
    """Arguments: the job's number, its requeues so far, seconds for an answer of Slurm."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the steps
    number, restarts, timeout_s = sys.argv[1:]
    lend(choose_client("cli", float(timeout_s)), int(number), int(restarts))

"""The program of a donor job: it only watches the job to which it lends its node, and ends when that job ends or is requeued. Why
a job does not grow instead: docs/slurm-facts.md, "Nodes for a running job".

ftrun ends its donor jobs itself; this is for an ftrun that no longer can.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

from ftslurm.errors import FtslurmError, UnknownJob
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import JobState

POLL_S = 10.0  # seconds; one request to slurmctld each; a node is idle for at most this long


def needed(client: SlurmClient, number: int, restarts: int) -> bool:
    """Is the borrowing job still in the same scheduling? Yes while nobody can tell: the donor job's time limit ends it."""
    try:
        job = client.job(number)
    except UnknownJob:
        return False
    except FtslurmError:
        return True
    return job.restarts == restarts and not job.completing and job.state in _LIVES


# UNKNOWN: a state that this version does not know is no proof that the job has ended.
_LIVES = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN})


def lend(client: SlurmClient, number: int, restarts: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until the job no longer needs the node."""
    while needed(client, number, restarts):
        sleep(POLL_S)


def main() -> None:
    """Runs a donor job. Arguments: the job's number, its requeues so far, seconds to wait for an answer of Slurm."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the steps
    number, restarts, timeout_s = sys.argv[1:]
    lend(SlurmClient(timeout_s=float(timeout_s)), int(number), int(restarts))

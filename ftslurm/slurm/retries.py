"""What failed requests to Slurm mean, and how they are repeated while slurmctld does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ftslurm.errors import FtslurmError, SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.model.text import in_time
from ftslurm.model.values import Value

T = TypeVar("T")

# A restart of slurmctld takes some seconds. The first wait is short, for a lost child or a controller that was only
# busy; the waits grow and are random, so that a thousand jobs do not greet a restarted controller all at once.
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
TELL_AGAIN_S = 600.0


class NoAnswerYet(SlurmUnavailable):
    """No answer this time; a repeated request may get one soon."""


class NoChangeNow(NoAnswerYet):
    """slurmctld answers, and takes no change of this job at present: its record in slurmdbd is being written."""


class Retries(Value):
    """limit_s: for all tries of one request. clock: monotonic seconds; tests hand in their own, and `sleep`."""

    limit_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def ask(self, once: Callable[[float], T], tell: Callable[[str], None] = lambda words: None) -> T:
        """What `once(seconds left)` answers; it is called again, after a wait, for as long as it raises NoAnswerYet. tell: is
        told what is waited for, now and then.

        Raises: the last NoAnswerYet when the time is up, and everything else at once.
        """
        now = tell_at = self.clock()
        deadline, longest_s = now + self.limit_s, FIRST_WAIT_S
        while True:
            try:
                return once(max(deadline - now, 0.0))
            except NoAnswerYet as silence:
                from random import uniform  # 10 ms, and most requests are answered at once

                now, wait_s = self.clock(), uniform(0, longest_s)
                if now + wait_s >= deadline:
                    raise
                if now >= tell_at:
                    tell(f"{silence.message}. ftrun waits up to {in_time(deadline - now)} (slurm.patience)")
                    tell_at = now + TELL_AGAIN_S
            self.sleep(wait_s)
            now, longest_s = self.clock(), min(2 * longest_s, LONGEST_WAIT_S)


# --- maps the messages of Slurm's programs and library on failed requests to errors

CONTROLLER_HINT = "is slurmctld up, and reachable from this node? `scontrol ping` tells"
_CONFIG_HINT = "is slurm.conf there and readable? SLURM_CONF names it"
_VERSION_HINT = "scontrol is older or newer than slurmctld allows"
_OWNER_HINT = "only the owner of the job and operators may do that"
_EXPEDITING_HINT = "Slurm itself is about to start this expedited job again; it takes no changes until it runs"
_REQUEUE_HINT = "submit with `sbatch --requeue`, or ask for JobRequeue=1 in slurm.conf"


class Complaint(Value):
    """error: the class to raise."""

    words: str
    error: type[FtslurmError]
    hint: str = ""


def _away(words: str, hint: str = CONTROLLER_HINT) -> Complaint:
    return Complaint(words, NoAnswerYet, hint)


def _refused(words: str, hint: str = "") -> Complaint:
    return Complaint(words, SlurmRefused, hint)


_AWAY = (
    "unexpected message received",  # 22.05 of requeuehold, update and release when nobody listens at the controller's port
    "unable to contact slurm controller", "connection refused", "connection timed out", "connection reset", "connection failure",
    "shutdown failure", "no route to host", "network is unreachable", "not connected", "broken pipe", "message send failure",
    "message receive failure", "socket timed out", "zero bytes were transmitted", "standby mode", "temporarily unavailable",
)  # fmt: skip
# From top to bottom, the first whose words are in the message. The words are slurm_strerror()'s in
# src/common/slurm_errno.c, the same from 22.05 to 26.05, and those of the programs around them.
COMPLAINTS = (
    Complaint("invalid job id", UnknownJob, "it ended a while ago, or never was"),
    # The fault is here, not at the controller, and does not pass.
    Complaint("unable to process configuration file", SlurmUnavailable, _CONFIG_HINT),
    # No slurm.conf, and no record in DNS of a slurmctld that would send it.
    Complaint("res_nsearch error: unknown host", SlurmUnavailable, _CONFIG_HINT),
    Complaint("incompatible versions of client and server", SlurmUnavailable, _VERSION_HINT),
    *map(_away, _AWAY),
    Complaint("db index is being set", NoChangeNow, "slurmctld is busy with this job"),
    _away("try again", "slurmctld is busy with this job"),
    _away("could not establish a configuration source"),
    _away("munge", "is munged running on this node?"),
    _away("authentication error", "is munged running on this node, with the cluster's key and the right time?"),
    _refused("job is no longer pending", "only a pending job can be changed like this: requeue it held first"),
    _refused("requested operation is presently disabled", _REQUEUE_HINT),
    _refused("requested operation not supported on this system", _EXPEDITING_HINT),
    _refused("only batch jobs", "salloc and a bare srun cannot be requeued; submit with sbatch"),
    _refused("invalid user id", _OWNER_HINT),
    _refused("access/permission denied", _OWNER_HINT),
    _refused("invalid node name", "a node of that name is not in this cluster, or no longer"),
    _refused("already completing or completed", "the job is over"),
    _refused("already finished", "the job is over"),
)


def parse_error(stderr: str) -> Complaint:
    """The complaint of a failed request, with Slurm's own words.

    Unknown words count as a refusal by Slurm: that blames nothing else, and ftslurm does not ask again.
    """
    said = stderr.lower()
    known = next((complaint for complaint in COMPLAINTS if complaint.words in said), _refused(""))
    return Complaint(_slurms_words(stderr), known.error, known.hint)


def _slurms_words(stderr: str) -> str:
    """The last line with a message. Array tasks that succeeded print `No error`, which is none."""
    lines = [line.strip() for line in stderr.split("\n") if line.strip() and not line.strip().endswith(": No error")]
    return lines[-1] if lines else "no reason given"

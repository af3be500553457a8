"""Repeats requests while slurmctld does not answer, within one time limit for all tries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ftslurm.errors import SlurmUnavailable

T = TypeVar("T")

# A restart of slurmctld takes some seconds. The first wait is short, for a lost child or a controller that was only
# busy; the waits grow and are random, so that a thousand jobs do not greet a restarted controller all at once.
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
TELL_AGAIN_S = 600.0


class NoAnswer(SlurmUnavailable):
    """No answer this time; a repeated request may get one soon."""


class NoChangeNow(NoAnswer):
    """slurmctld answers, and takes no change of this job at present: its record in slurmdbd is being written."""


@dataclass(frozen=True)
class Retries:
    """limit_s: for all tries of one request. clock: monotonic seconds; tests hand in their own, and `sleep`."""

    limit_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def keep_asking(self, once: Callable[[], T], tell: Callable[[str], None]) -> T:
        """What `once()` answers, which keeps a (shorter) limit of its own. tell: is told what is waited for, now and then.

        Raises: as `ask`.
        """
        deadline, tell_at = self.clock() + self.limit_s, self.clock()
        while True:
            try:
                return once()
            except NoAnswer as silence:
                now = self.clock()
                if now >= deadline:
                    raise
                if now >= tell_at:
                    tell(f"{silence.message}. ftrun waits up to {deadline - now:.0f} s (slurm.patience)")
                    tell_at = now + TELL_AGAIN_S
            self.sleep(min(LONGEST_WAIT_S, max(deadline - self.clock(), 0.0)))

    def ask(self, once: Callable[[float], T]) -> T:
        """What `once(seconds left)` answers; it is called again, after a wait, for as long as it raises NoAnswer.

        Raises: the last NoAnswer when the time is up, and everything else at once.
        """
        deadline = self.clock() + self.limit_s
        try:
            return once(self.limit_s)
        except NoAnswer:
            if self.clock() + FIRST_WAIT_S >= deadline:
                raise
        # Loaded here: most requests are answered at once, and it takes 10 ms.
        from random import uniform

        from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

        def no_time_left(state: RetryCallState) -> bool:
            return self.clock() + getattr(state, "upcoming_sleep", 0.0) >= deadline  # there since tenacity 8.3

        self.sleep(uniform(0, FIRST_WAIT_S))
        tries = Retrying(
            retry=retry_if_exception_type(NoAnswer),
            wait=wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
            stop=no_time_left,
            sleep=self.sleep,
            reraise=True,
        )
        return tries(lambda: once(max(deadline - self.clock(), 0.0)))

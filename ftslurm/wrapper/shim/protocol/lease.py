"""The lease: until when what a shim watches over may run. Pure; all times are given, as boot_s()."""

from __future__ import annotations

from ftslurm.wrapper.shim.protocol.messages import Message

CUT_OFF = "cut off from ftrun for longer than the lease"
# From Slurm's announcement that it will stop the job to taking it that it did not, by a clock that goes on meanwhile.
# slurmd sends the SIGSTOP two seconds after the SIGTSTP; seen on 22.05.
PAUSE_S = 10.0


class Lease:
    """It runs out when the controller's answers no longer renew it, but not while the controller has promised to wait for a
    suspended job."""

    def __init__(self) -> None:
        self.until = float("inf")  # its end; before the first answer there is nothing to end
        self.why = CUT_OFF  # it has ended
        self.answered = 0.0  # when the last answer was asked for, whether it renewed the lease or not
        self.paused = False  # the controller waits for us: it does not run out
        self._lasts_s = 0.0  # 0: there is none
        self._pause_at: float | None = None  # since when we expect to be stopped
        self._held_at: float | None = None  # it has run out meanwhile, and counts anew: nothing runs before an answer

    @property
    def held(self) -> bool:
        """Must everything that runs under the lease be stopped?"""
        return self._held_at is not None

    @property
    def pausing(self) -> bool:
        """Are we stopped, or about to be?"""
        return self._pause_at is not None

    def over(self, now: float) -> bool:
        """Has it run out?"""
        return now >= self.until and not self.paused

    def wakes_at(self) -> float:
        """When it runs out, or an announced pause is overdue; infinite for never."""
        pause_over = float("inf") if self._pause_at is None else self._pause_at + PAUSE_S
        return min(float("inf") if self.paused else self.until, pause_over)

    def lasts(self, seconds: float) -> None:
        """From each question to the controller on that gets an answer; 0: for ever."""
        self._lasts_s = seconds

    def renew(self, asked_at: float, answer: Message) -> None:
        """Renew from the time of the question, since the answer may have been on its way for long."""
        if self._lasts_s and not answer.get("let_go"):
            # From one that is itself cut off nothing is taken, and who has no lease yet gets none.
            until = asked_at + (0.0 if answer.get("cut_off") else self._lasts_s)
            if self._held_at is not None and asked_at >= self._held_at and not answer.get("cut_off"):
                self._held_at = None
            self.until = until if self.until == float("inf") else max(self.until, until)
            self.answered = max(self.answered, asked_at)

    def end(self, why: str, now: float) -> None:
        self.why, self.until, self.paused = why, min(self.until, now), False

    def pause(self, now: float) -> bool:
        """Note that we are about to be stopped. Must the controller be asked to wait for us?"""
        if self._lasts_s:
            self._pause_at = now
        return self._lasts_s > 0

    def promised(self, answer: Message) -> None:
        """Take in the controller's answer to that."""
        self.paused = self.pausing and bool(answer.get("paused"))

    def not_stopped(self, now: float) -> bool:
        """Has the pause that was announced not come?"""
        return self._pause_at is not None and now - self._pause_at >= PAUSE_S

    def resume(self, now: float) -> bool:
        """We run (again). A lease that ran out meanwhile counts anew, but nothing may run before the controller has answered:
        it may have been ended, or have begun without us by somebody else's hand. False where no pause was announced."""
        if self._pause_at is None:
            return False
        self._pause_at = None
        if self.paused and now >= self.until:
            self._held_at, self.until = now, now + self._lasts_s
        self.paused = False
        return True

    def excuse(self, now: float) -> None:
        """We stood still ourselves, and watch over nothing that may not run beside others: it counts anew."""
        if self.until < float("inf"):
            self.until = max(self.until, now + self._lasts_s)

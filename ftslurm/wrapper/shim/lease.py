"""The lease: until when what a shim watches over may run; the clock that it goes by, and the kernel's own timers for its end."""

from __future__ import annotations

import ctypes
import time

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, signal
from ftslurm.wrapper.shim.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable

# --- The clock that leases go by, and the kernel's own timers for their end.

# From the end of the lease to the kernel's own SIGKILL, for the case that the shim cannot act: it kills the shim as well.
# Below the lease's margin (lease.margin).
GUARD_S = 1.0


def boot_s() -> float:
    """Seconds by a clock that goes on while a machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def timer_library(load: Callable[[str | None], ctypes.CDLL]) -> ctypes.CDLL | None:
    """Where timer_create is, None if it is nowhere. load: as ctypes.CDLL. glibc before 2.34 keeps it in a library of its own."""
    for name in (None, "librt.so.1"):
        try:
            library = load(name)
            if hasattr(library, "timer_create"):
                return library
        except OSError:
            continue
    return None


class _Timer:
    """A signal of the kernel's for this process at a given time, also while it is stopped. Where the kernel has no such
    timer there is none.

    Source: timer_create(2), which lets the signal be any.
    """

    def __init__(self, library: ctypes.CDLL | None, number: int) -> None:
        """library: None where there are no timers."""
        self._library = library
        self._timer = ctypes.c_void_p()
        event = (ctypes.c_int * 16)()  # struct sigevent: a value of 8 bytes, the signal, how to notify (0: by signal)
        event[2] = number
        made = library.timer_create(time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)) if library else -1
        self.there = made == 0

    def set(self, at: float) -> None:
        """at: as boot_s(); 0: not at all."""
        if self.there and self._library:
            whole = int(at)
            when = (ctypes.c_long * 4)(0, 0, whole, int((at - whole) * 1e9))
            self._library.timer_settime(self._timer, 1, ctypes.byref(when), None)  # 1: TIMER_ABSTIME


class Guard:
    """For the end of a lease while we stand still: SIGCONT wakes who was only stopped, so that we end all below us; then
    SIGKILL for us, and PR_SET_PDEATHSIG for the command alone. signal(7): both reach stopped processes.
    """

    def __init__(self, load: Callable[[str | None], ctypes.CDLL] = ctypes.CDLL) -> None:
        library = timer_library(load)
        self._wakes, self._kills = _Timer(library, signal.SIGCONT), _Timer(library, signal.SIGKILL)

    @property
    def there(self) -> bool:
        """Can the kernel do it?"""
        return self._wakes.there and self._kills.there

    def set(self, at: float) -> None:
        """at: the end of the lease, as boot_s(); 0: not at all."""
        self._wakes.set(at)
        self._kills.set(at + GUARD_S if at else 0.0)


CUT_OFF = "cut off from ftrun for longer than the lease"
# From Slurm's announcement that it will stop the job to taking it that it did not, by a clock that goes on meanwhile.
# slurmd sends the SIGSTOP two seconds after the SIGTSTP; seen on 22.05.
PAUSE_S = 10.0


# --- The lease itself is pure; all times are given, as boot_s().


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
        self._held_at: float | None = None  # it ran out meanwhile, and starts again: nothing runs before an answer

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
        """We run (again). A lease that ran out meanwhile starts again, but nothing may run before the controller has answered:
        it may have been ended, or have begun without us by somebody else's hand. False where no pause was announced."""
        if self._pause_at is None:
            return False
        self._pause_at = None
        if self.paused and now >= self.until:
            self._held_at, self.until = now, now + self._lasts_s
        self.paused = False
        return True

    def excuse(self, now: float) -> None:
        """Start the lease again: we stood still ourselves, and guard nothing that may not run beside others."""
        if self.until < float("inf"):
            self.until = max(self.until, now + self._lasts_s)

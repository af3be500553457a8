"""The clock that leases go by, and the kernel's own timers for their end."""

from __future__ import annotations

import ctypes
import time

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, signal

if TYPE_CHECKING:
    from collections.abc import Callable

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


class Timer:
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
        self._wakes, self._kills = Timer(library, signal.SIGCONT), Timer(library, signal.SIGKILL)

    @property
    def there(self) -> bool:
        """Can the kernel do it?"""
        return self._wakes.there and self._kills.there

    def set(self, at: float) -> None:
        """at: the end of the lease, as boot_s(); 0: not at all."""
        self._wakes.set(at)
        self._kills.set(at + GUARD_S if at else 0.0)

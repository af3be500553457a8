"""How long may a job stall? The limits are learned from its own pauses, separately for quiet and busy stalls.

A pause is quiet when the ranks that delay the others show no work (no input, output or computing), and busy when they do:
a checkpoint, an evaluation, a compilation. The limit is a factor times the longest pause so far. The factor comes from
how heavy the tail of the pauses is: it is what the running maximum is exceeded by in one case out of twenty, if there
are as many pauses again. Rules that model the usual interval (phi-accrual, median and MAD) fail here by design:
checkpoints live in the tail.
"""

from __future__ import annotations

from enum import Enum
from math import log

from ftslurm.model.values import dataclass

PAUSE_FACTOR = 4.0  # a step that takes more usual intervals than this is a pause
BUSY_PAUSES = 4  # until so many were seen, the cap is the limit
DOUBLED_MAX = 2  # repeated false alarms make a limit up to four times as long
RISK = 0.05
PRIOR_TAIL, PRIOR_WEIGHT = 2.0, 5.0  # of the Hill estimate: as heavy a tail as storage has, until pauses say otherwise
FACTOR_MIN, FACTOR_MAX = 2.0, 8.0


class Phase(str, Enum):
    """STARTING: until the first sign of progress. ENDING: some ranks have ended, or said that they are about to."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


class Stall(str, Enum):
    """WARN: report it and gather evidence. ACT: it is a hang."""

    NONE = "none"
    WARN = "warn"
    ACT = "act"


@dataclass(frozen=True, slots=True)
class StallLimits:
    """In seconds. floor_s, cap_s: what is learned stays between. act_floor_s: nothing is done before.

    An operator who wants hangs ended faster lowers act_floor_s to 30 or 60.
    """

    floor_s: float = 30.0
    cap_s: float = 1800.0
    warn_floor_s: float = 10.0
    act_floor_s: float = 180.0
    starting_s: float = 600.0
    ending_s: float = 600.0


@dataclass(frozen=True, slots=True)
class PauseLimits:
    """What was learned of a job's pauses.

    usual_s: the usual interval between two signs of progress (`usual_interval_s`), None until it is known. quiet, busy: the
    longest pauses of each class, the longest first (`with_pause`). false_alarms: hangs in a row of which the restart did not
    help, so that the limits seem too short.
    """

    usual_s: float | None = None
    quiet: tuple[float, ...] = ()
    busy: tuple[float, ...] = ()
    false_alarms: int = 0

    def longest_s(self, busy: bool) -> float:
        return max(self.busy if busy else self.quiet, default=0.0)

    def top(self, busy: bool) -> tuple[float, ...]:
        """The longest pauses of a class that are long compared with the usual interval, too. Seconds."""
        pauses = self.busy if busy else self.quiet
        return tuple(seconds for seconds in pauses if seconds > PAUSE_FACTOR * (self.usual_s or 0.0))

    def is_known(self, busy: bool) -> bool:
        return len(self.top(busy)) >= BUSY_PAUSES if busy else self.usual_s is not None or bool(self.quiet)

    def doubled(self) -> float:
        """The factor by which false alarms lengthen the limits."""
        return float(1 << min(self.false_alarms, DOUBLED_MAX))


@dataclass(frozen=True, slots=True)
class StallVerdict:
    """What a stall of this length is, the limits that were applied, and the reason in words."""

    stall: Stall
    warn_s: float
    act_s: float
    reason: str


def factor(top: tuple[float, ...]) -> float:
    """How far beyond the longest pause so far the next ones may reach: 0.05 ** (-1 / tail index), 2 to 8.

    The tail index is Hill's estimate, drawn towards PRIOR_TAIL: of tail 2 come 4.5 times, of 5 and lighter twice.
    """
    count = len(top) - 1
    tail = PRIOR_TAIL
    if count >= 3 and top[-1] > 0:
        spread = sum(log(pause / top[-1]) for pause in top[:-1]) / count
        tail = (PRIOR_WEIGHT + count) / (PRIOR_WEIGHT / PRIOR_TAIL + count * max(spread, 1e-3))
    return float(min(FACTOR_MAX, max(FACTOR_MIN, RISK ** (-1.0 / max(tail, 1.0)))))  # of tail 1.44 come the 8


def limit_s(learned: PauseLimits, busy: bool, limits: StallLimits) -> float:
    """The longest stall of this class that is not yet a hang, in seconds."""
    if not learned.is_known(busy):
        return limits.cap_s * learned.doubled()
    # Pauses that are known from before a restart count before the usual interval is known anew.
    longest_s = learned.longest_s(busy)
    if not busy:
        longest_s = max(longest_s, PAUSE_FACTOR * (learned.usual_s or 0.0))
    return min(limits.cap_s, max(limits.floor_s, factor(learned.top(busy)) * longest_s)) * learned.doubled()


def judge(learned: PauseLimits, stalled_s: float, busy: bool, phase: Phase, limits: StallLimits) -> StallVerdict:
    """Is a stall worth a warning, or a hang? stalled_s: seconds since the last sign of progress."""
    if phase is Phase.STARTING:
        act_s, of_what = max(limits.starting_s, limits.cap_s if busy else 0.0), "since the start"
    elif phase is Phase.ENDING:
        act_s, of_what = limits.ending_s, "since ranks have ended"
    else:
        # A quiet stall is a hang after act_floor_s, unless the job itself has made longer pauses.
        own_s = limit_s(learned, busy, limits) if busy or learned.is_known(busy) else 0.0
        act_s = max(limits.act_floor_s * learned.doubled(), own_s)
        of_what = "with work going on in the ranks waited for" if busy else "without any work in the ranks waited for"
    own_s = limit_s(learned, busy, limits) if phase is Phase.RUNNING else act_s
    warn_s = min(act_s, max(limits.warn_floor_s, own_s / 3))
    stall = Stall.ACT if stalled_s >= act_s else Stall.WARN if stalled_s >= warn_s else Stall.NONE
    reason = f"no progress for {stalled_s:.0f} s {of_what}; the limit is {act_s:.0f} s"
    return StallVerdict(stall, warn_s, act_s, reason)

"""How long may a job stand still? Limits that are learned from its own pauses, for quiet stalls and busy ones.

A pause is quiet when the ranks that hold the others up show no work (no input, output, computing), busy when they do:
a checkpoint, an evaluation, a compilation. The limit is a factor times the longest pause so far. The factor comes from
how heavy the tail of the pauses is: it is what the running maximum is exceeded by in one case out of twenty, if there
are as many pauses again. Rules that model the usual interval (phi-accrual, median and MAD) fail here by design:
checkpoints live in the tail.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum
from math import log
from statistics import median

from ftslurm.model.values import dataclass

WARM_INTERVALS = 30
PAUSE_FACTOR = 4.0  # as many times the median interval is no step any more, but a pause
TOP_PAUSES = 25
BUSY_PAUSES = 4  # before that many were seen, the cap holds
RISK = 0.05
PRIOR_TAIL, PRIOR_WEIGHT = 2.0, 5.0  # of the Hill estimate: as heavy a tail as storage has, until pauses say otherwise
FACTOR_MIN, FACTOR_MAX = 2.0, 8.0


class Phase(str, Enum):
    """STARTING: until the first sign of progress. ENDING: some ranks have ended, or said that they are about to."""

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


class Stall(str, Enum):
    """WARN: tell, and gather evidence. ACT: it is a hang."""

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
class Pauses:
    """Of one class. longest_s: of all intervals. top: the longest pauses, downwards. doubled: false alarms so far."""

    longest_s: float = 0.0
    top: tuple[float, ...] = ()
    doubled: int = 0


@dataclass(frozen=True, slots=True)
class StallMemory:
    """What is known of a job's pauses. first: intervals until the median is known."""

    first: tuple[tuple[float, bool], ...] = ()
    median_s: float | None = None
    quiet: Pauses = field(default_factory=Pauses)
    busy: Pauses = field(default_factory=Pauses)

    def of(self, busy: bool) -> Pauses:
        return self.busy if busy else self.quiet

    def with_pauses(self, busy: bool, pauses: Pauses) -> StallMemory:
        return replace(self, busy=pauses) if busy else replace(self, quiet=pauses)


@dataclass(frozen=True, slots=True)
class StallVerdict:
    """What a stall of this length is, the limits that were asked, and why in words."""

    stall: Stall
    warn_s: float
    act_s: float
    reason: str


def learn(memory: StallMemory, interval_s: float, busy: bool) -> StallMemory:
    """Call with the time between two signs of progress, however short, but not with the start. busy: as the stall was."""
    if memory.median_s is None:
        first = (*memory.first, (interval_s, busy))
        longest = max(interval_s, memory.of(busy).longest_s)
        memory = replace(memory.with_pauses(busy, replace(memory.of(busy), longest_s=longest)), first=first)
        return _settled(memory) if len(first) >= WARM_INTERVALS else memory
    known = memory.of(busy)
    if interval_s <= PAUSE_FACTOR * memory.median_s:
        # Steps stay below a pause, so only a pause, or a job without any, moves the maximum.
        return memory if interval_s <= known.longest_s else memory.with_pauses(busy, replace(known, longest_s=interval_s))
    top = tuple(sorted((*known.top, interval_s), reverse=True)[:TOP_PAUSES])
    return memory.with_pauses(busy, replace(known, top=top, longest_s=max(known.longest_s, interval_s)))


def _settled(memory: StallMemory) -> StallMemory:
    """The median is known, so the pauses among the first intervals can be told."""
    usual = median(interval_s for interval_s, _ in memory.first)
    told = replace(memory, first=(), median_s=usual)
    for busy in (True, False):
        pauses = sorted((s for s, was_busy in memory.first if was_busy is busy and s > PAUSE_FACTOR * usual), reverse=True)
        known = told.of(busy)
        told = told.with_pauses(busy, replace(known, top=tuple(sorted((*known.top, *pauses), reverse=True)[:TOP_PAUSES])))
    return told


def factor(top: tuple[float, ...]) -> float:
    """How far beyond the longest pause so far the next ones may reach: 0.05 ** (-1 / tail index), 2 to 8.

    The tail index is Hill's estimate, drawn towards PRIOR_TAIL: of tail 2 come 4.5 times, of 5 and lighter twice.
    """
    count = len(top) - 1
    tail = PRIOR_TAIL
    if count >= 3 and top[-1] > 0:
        spread = sum(log(pause / top[-1]) for pause in top[:-1]) / count
        tail = (PRIOR_WEIGHT + count) / (PRIOR_WEIGHT / PRIOR_TAIL + count * max(spread, 1e-3))
    return float(min(FACTOR_MAX, max(FACTOR_MIN, RISK ** (-1.0 / tail))))


def limit_s(memory: StallMemory, busy: bool, limits: StallLimits) -> float:
    """The longest stall of this class that is no hang yet, in seconds."""
    known = memory.of(busy)
    if not _is_known(memory, busy):
        learned = limits.cap_s
    else:
        # Pauses that are known from before a restart count before the usual interval is known anew.
        longest = known.longest_s if busy else max(known.longest_s, PAUSE_FACTOR * (memory.median_s or 0.0))
        learned = min(limits.cap_s, max(limits.floor_s, factor(known.top) * longest))
    return learned * _doubled(known)


def _is_known(memory: StallMemory, busy: bool) -> bool:
    known = memory.of(busy)
    return len(known.top) >= BUSY_PAUSES if busy else memory.median_s is not None or known.longest_s > 0


def _doubled(pauses: Pauses) -> float:
    return float(1 << pauses.doubled)


def false_alarm(memory: StallMemory, busy: bool) -> StallMemory:
    """A stall that was taken for a hang was none: the restart, or a human, has shown it. The limit doubles."""
    known = memory.of(busy)
    return memory.with_pauses(busy, replace(known, doubled=min(known.doubled + 1, 10)))


def judge(memory: StallMemory, stalled_s: float, busy: bool, phase: Phase, limits: StallLimits) -> StallVerdict:
    """Is a stall of `stalled_s` seconds worth a word, or a hang? stalled_s: since the last sign of progress."""
    if phase is Phase.STARTING:
        act_s, of_what = max(limits.starting_s, limits.cap_s if busy else 0.0), "since the start"
    elif phase is Phase.ENDING:
        act_s, of_what = limits.ending_s, "since ranks have ended"
    else:
        # A quiet stall is a hang after act_floor_s, whatever is known; only pauses that the job has made say otherwise.
        learned = limit_s(memory, busy, limits) if busy or _is_known(memory, busy) else 0.0
        act_s = max(limits.act_floor_s * _doubled(memory.of(busy)), learned)
        of_what = "with work going on in the ranks waited for" if busy else "without any work in the ranks waited for"
    learned = limit_s(memory, busy, limits) if phase is Phase.RUNNING else act_s
    warn_s = min(act_s, max(limits.warn_floor_s, learned / 3))
    stall = Stall.ACT if stalled_s >= act_s else Stall.WARN if stalled_s >= warn_s else Stall.NONE
    reason = f"no progress for {stalled_s:.0f} s {of_what}; the limit is {act_s:.0f} s"
    return StallVerdict(stall, warn_s, act_s, reason)

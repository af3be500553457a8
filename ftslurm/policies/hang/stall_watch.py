"""Does the job hang? By no IO, no use and no output; by collectives that stand still for longer than its own pauses last.

A stall is examined when it is as long as C4D's timeout. It is reported when the limits learned from the job's own pauses call
for a word, and acted on when they, or C4D's count of identical verdicts, call it a hang.
Source: C4D (Alibaba Cloud PAI, "Use C4D") for levels and times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from math import log

from ftslurm.model.averages import median
from ftslurm.model.collectives import Culprit, CulpritKind, Level, ProcessState, RankView, fold_ranks
from ftslurm.model.events import QuietSeen, RankSilent, StallSeen, UseSampled
from ftslurm.model.folds.history import History
from ftslurm.model.settings.features import HangSettings
from ftslurm.model.values import Value, field, replace
from ftslurm.policies.hang import whohangs
from ftslurm.policies.hang.process_activity import LEAST_PER_S

# --- Does the job hang? Joins what agents and shims tell of one attempt.
#
# Source: ModelArts, hang detection (IO first, then use), AIMaster, fault tolerance monitoring (silence, ranks that do not end)


class Hang(Value):
    """still_s: seconds without activity."""

    what: str
    evidence: tuple[str, ...]
    still_s: float = 0.0


class HangWatch(Value, frozen=False):
    """Activity in one attempt, as far as known. IO on any node is activity; a node that reports nothing proves no activity."""

    _quiet: dict[str, QuietSeen] = field(default_factory=dict)
    _use: dict[str, UseSampled] = field(default_factory=dict)
    _silent: dict[int, float] = field(default_factory=dict)
    _looked_at: set[str] = field(default_factory=set)

    def quiet(self, event: QuietSeen, nodes: Collection[str]) -> bool:
        """Are all `nodes` quiet now?"""
        if event.quiet_s <= 0:
            self._quiet.pop(event.node, None)
            self._use.clear()
        else:
            self._quiet[event.node] = event
        return bool(nodes) and set(nodes) <= self._quiet.keys()

    def sampled(self, event: UseSampled, nodes: Collection[str]) -> bool:
        """Is the use of all `nodes` known now?"""
        self._use[event.node] = event
        return set(nodes) <= self._use.keys()

    def verdict(self, nodes: Sequence[str]) -> Hang | None:
        """A hang, if every node is quiet and its use has not changed. Unknown counts as no hang."""
        if not nodes or any(node not in self._quiet for node in nodes):
            return None
        if any(node not in self._use or self._use[node].unchanged is not True for node in nodes):
            return None
        least = min(self._quiet[node].quiet_s for node in nodes)
        evidence = [f"{node}: {self._quiet[node].what}; {self._use[node].what}" for node in nodes]
        what = f"no process of the job has done IO for {least:.0f} s, and its use of devices or CPUs has not changed"
        return Hang(what, tuple(evidence[:64]), least)

    def silent(self, event: RankSilent, running: Collection[int]) -> bool:
        """Have all running ranks stopped printing?"""
        if event.silent_s <= 0:
            self._silent.pop(event.rank, None)
        else:
            self._silent[event.rank] = event.silent_s
        return bool(running) and set(running) <= self._silent.keys()

    @property
    def silent_s(self) -> float:
        """Seconds for which no rank has printed anything, as far as their shims have reported."""
        return min(self._silent.values(), default=0.0)

    def begun(self, rank: int, node: str) -> None:
        """Forget what is known of `rank` and of its node: the rank has been restarted."""
        self._silent.pop(rank, None)
        self._quiet.pop(node, None)
        self._use.clear()

    def looked_at(self, node: str, nodes: Collection[str]) -> bool:
        """Has the evidence of all `nodes` arrived?"""
        self._looked_at.add(node)
        return set(nodes) <= self._looked_at


# --- How long may a job stall? The limits are learned from its own pauses, separately for quiet and busy stalls.
#
# A pause is quiet when the ranks that delay the others show no work (no input, output or computing), and busy when they do:
# a checkpoint, an evaluation, a compilation. The limit is a factor times the longest pause so far. The factor comes from
# how heavy the tail of the pauses is: it is what the running maximum is exceeded by in one case out of twenty, if there
# are as many pauses again. Rules that model the usual interval (phi-accrual, median and MAD) fail here by design:
# checkpoints live in the tail

PAUSE_FACTOR = 4.0  # a step that takes more usual intervals than this is a pause
BUSY_PAUSES = 4  # until so many were seen, the cap is the limit
DOUBLED_MAX = 2  # repeated false alarms make a limit up to four times as long
RISK = 0.05
PRIOR_TAIL, PRIOR_WEIGHT = 2.0, 5.0  # of the Hill estimate: as heavy a tail as storage has, until pauses say otherwise
FACTOR_MIN, FACTOR_MAX = 2.0, 8.0


class Stall(str, Enum):
    """WARN: report it and gather evidence. ACT: it is a hang."""

    NONE = "none"
    WARN = "warn"
    ACT = "act"


class StallLimits(Value):
    """In seconds. floor_s, cap_s: what is learned stays between. act_floor_s: nothing is done before.

    An operator who wants hangs ended faster lowers act_floor_s to 30 or 60.
    """

    floor_s: float = 30.0
    cap_s: float = 1800.0
    warn_floor_s: float = 10.0
    act_floor_s: float = 180.0
    starting_s: float = 600.0


class PauseLimits(Value):
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


class StallVerdict(Value):
    """What a stall of this length is, the limits that were applied, and the reason in words."""

    stall: Stall
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


def judge_pause(learned: PauseLimits, stalled_s: float, busy: bool, begun: bool, limits: StallLimits) -> StallVerdict:
    """Is a stall worth a warning, or a hang? stalled_s: seconds since the last sign of progress. begun: has there been one?"""
    if not begun:
        act_s, of_what = max(limits.starting_s, limits.cap_s if busy else 0.0), "since the start"
    else:
        # A quiet stall is a hang after act_floor_s, unless the job itself has made longer pauses.
        own_s = limit_s(learned, busy, limits) if busy or learned.is_known(busy) else 0.0
        act_s = max(limits.act_floor_s * learned.doubled(), own_s)
        of_what = "with work going on in the ranks waited for" if busy else "without any work in the ranks waited for"
    own_s = limit_s(learned, busy, limits) if begun else act_s
    warn_s = min(act_s, max(limits.warn_floor_s, own_s / 3))
    stall = Stall.ACT if stalled_s >= act_s else Stall.WARN if stalled_s >= warn_s else Stall.NONE
    reason = f"no progress for {stalled_s:.0f} s {of_what}; the limit is {act_s:.0f} s"
    return StallVerdict(stall, act_s, reason)


# --- Does a verdict prove a hang, so that the ranks may be stopped unasked? Only what is wrong within a rank, or in the ranks'
# communication, does. A rank that waits for something beyond both may still get it, however long nothing moves.
#
# | the named ranks | for example |
# |---|---|
# | wake up again and again | a rank that polls, or copies what another process makes (seen in healthy jobs) |
# | sleep in one call that another process ends | the answer of a server, a command, a lock on a file, a debugger |
# | wait for storage or a driver | a file server that is started again; no signal ends such a wait |
# | are all in communication, and data moves | a large broadcast over a slow network |

HUNG = (CulpritKind.COMM_HANG, CulpritKind.NON_COMM_HANG)
# Kernel functions of Linux 3.10 to 6.18 in which a thread sleeps until another process answers, ends, releases a lock on a file,
# or no longer debugs it. A lock within the program is a futex.
_OTHER_PROCESS = r"sk_wait|wait_woken|do_wait|kernel_wait|\w*lock_\w*wait|fcntl_|nlmclnt_|ptrace_"
# Where helpers sleep all their life as well: the thread of a pool that reads results, a server's.
_OR_HELPER = r"unix_|inet_csk_|__skb_|(do_|do_sys_|ep_)?poll|do_select|do_epoll|(anon_)?pipe_|fifo_|wait_for_partner"
_OWN_LOCK = "futex_"


NOBODY = "no rank is named from within as the one that hangs"


def doubt(finding: Culprit | None, views: Iterable[RankView]) -> str:
    """Why it is no proof, in words; empty if it is one. views: of all ranks, at the look that led to the finding, while no rank
    works that others may wait for.
    """
    if finding is None or finding.kind not in HUNG or not finding.ranks:
        return NOBODY
    there = list(views)
    if finding.kind is CulpritKind.COMM_HANG and any((view.io_bytes_s or 0.0) > whohangs.BUSY_IO_BYTES_S for view in there):
        return "data still moves between the ranks"
    named = [view for view in there if view.rank in finding.ranks]
    if awake := [view.rank for view in named if wakes_up(view)]:
        return f"rank {fold_ranks(awake)} wakes up again and again: it polls for what may still come, or does a little"
    if beyond := [view.rank for view in named if waits_beyond(view)]:
        return f"rank {fold_ranks(beyond)} waits for another process, for storage or a driver, and may still get it"
    return ""


def wakes_up(view: RankView) -> bool:
    """Does its program run now and then? One that waits for the interpreter lock wakes up every 5 ms to try it."""
    if view.gil_held or view.inside is not None or view.process in (ProcessState.STOPPED, ProcessState.EXITED):
        return False
    waits = view.wchan.startswith(_OWN_LOCK)  # for a thread, perhaps
    return max(view.polls_s or 0.0, view.wakes_s or 0.0, (view.beside_wakes_s or 0.0) if waits else 0.0) >= LEAST_PER_S


def waits_beyond(view: RankView) -> bool:
    """Does it wait for something that is neither in it nor in the ranks' communication? One whose Python code runs now and then
    does not: it waits for its data loader, in steps of five seconds.
    """
    if view.process is ProcessState.DISK:
        return True
    if view.process is ProcessState.EXITED or view.inside is not None or view.main_fresh:
        return False
    if view.wchan.startswith(_OWN_LOCK):  # of a thread that it waits for, perhaps
        return any(re.match(_OTHER_PROCESS, each) for each in view.beside)
    return re.match(f"{_OTHER_PROCESS}|{_OR_HELPER}", view.wchan) is not None


# --- the watch itself

# A stall that lasts is looked at again after this share of its length, so that a long evaluation is not disturbed.
AGAIN_SHARE = 0.1
# A verdict that changes between two looks does not count.
UNSURE_MAX = 5
# The most reports for a job whose pauses look like hangs for a while.
EARLY_MAX = 5
# Beyond what a verdict must hold, so that the second look confirms it.
CONFIRM_MARGIN = 1.2
AT_WORK = "ranks that the others wait for still do work"


class Pause(Value):
    """A stall that ended by itself. told: people had heard of it."""

    seconds: float
    busy: bool
    told: bool


class Opinion(Value):
    """What follows from a look at a stalled job. act: it is a hang. doubt: why that is no proof; empty: it is. tell: report it.
    idle_s: for how long no rank has worked that others may wait for. limit_s: from when on that is a hang; 0: one works, or
    nobody is named. again_s: seconds until the next look.
    """

    act: bool
    doubt: str
    tell: bool
    finding: Culprit | None
    what: str
    idle_s: float
    limit_s: float
    again_s: float


class StallWatch(Value, frozen=False):
    """Times are monotonic seconds."""

    c4d: whohangs.HangLimits
    limits: StallLimits
    attempt: int = 0
    left_alone: bool = False  # has this stall been reported as a hang that ftrun leaves alone?
    _nodes: dict[str, tuple[StallSeen, float]] = field(default_factory=dict)
    _probed: int = 0  # ranks with a probe, on all of these
    _meeting: int = 0  # of these nodes, those on which a rank waits for a group that is being made
    _views: dict[str, tuple[RankView, ...]] = field(default_factory=dict)
    _held: whohangs.HeldVerdict | None = None
    _sure_at: float | None = None  # since when no look has left a doubt
    _told: Culprit | None = None
    _told_level: Level | None = None
    _unsure: int = 0  # consecutive looks that found something else
    _early: int = 0  # how often a stall was reported before the job's own limits asked for it
    _busy: bool | None = None
    _lived_at: float = -math.inf

    def seen(self, event: StallSeen, now: float) -> Pause | None:
        """Take the event in. Gives the pause that it ends, if the job was examined during it."""
        self.lose(event.node)
        self._nodes[event.node] = (event, now)
        self._count(event, 1)
        if event.stalled_s > 0 or event.meets_s > 0 or self._busy is None:
            return None
        pause = Pause(event.paused_s, self._busy, self._told is not None)
        self._held = self._told = self._busy = self._sure_at = None
        self.left_alone = False
        self._views.clear()
        return pause if pause.seconds > 0 else None

    def stalled_s(self, nodes: Collection[str], ranks: int, now: float) -> float:
        """Seconds since a rank last made progress; 0 while one does, while one has no probe, or if detection is switched off."""
        if not self._meeting and self._probed < ranks:  # thousands of nodes report one after the other
            return 0.0
        told = [self._nodes[node] for node in nodes if node in self._nodes]
        meets = [event.meets_s + now - at for event, at in told if event.meets_s > 0]
        if meets:  # before there is a group, or where another one is made: since the last of those that wait there has come
            lives = any(event.stage_s == -1 or (event.probed and event.stalled_s <= 0) for event, _ in told)
            return 0.0 if lives else min(now - self._lived_at, *meets)
        probed = sum(event.probed for event, _ in told)  # more than `ranks` where a launcher starts several below one task
        if not told or probed < ranks:
            return 0.0
        ends = sum(event.left for event, _ in told) >= probed
        if ends or any(event.stalled_s <= 0 or event.stage_s == -1 for event, _ in told):
            return 0.0
        return min(now - self._lived_at, *(event.stalled_s + now - at for event, at in told))

    def lives(self, now: float) -> None:
        """Note that the program reported progress."""
        self._lived_at = now

    def put_off(self, seconds: float) -> None:
        """Nobody ran for `seconds`."""
        self._nodes = {node: (event, at + seconds) for node, (event, at) in self._nodes.items()}
        self._lived_at += seconds

    def ask(self) -> None:
        """Begin a new look at all nodes."""
        self._views.clear()

    def leave_alone(self) -> None:
        self.left_alone = True

    def lose(self, node: str) -> None:
        """Forget `node`, whose agent was lost; the next agent reports anew."""
        if node in self._nodes:
            self._count(self._nodes.pop(node)[0], -1)

    def _count(self, event: StallSeen, times: int) -> None:
        self._probed += times * event.probed
        self._meeting += times * (event.meets_s > 0)

    def examined(self, node: str, views: Iterable[RankView], nodes: Collection[str]) -> bool:
        """Take in the views of one node. Has every one of `nodes` been looked at now?"""
        self._views[node] = tuple(views)
        return len(self._views) >= len(nodes) and set(nodes) <= self._views.keys()

    def opinion(self, stalled_s: float, history: History, now: float) -> Opinion:
        """What follows from the last look at all nodes. Each look is used once."""
        views = [view for views in self._views.values() for view in views]
        self._views.clear()
        state = whohangs.JobState.of(views)
        finding, idle = whohangs.culprit(state), state.idle_s(stalled_s)
        unknown = finding is None or finding.kind is CulpritKind.UNKNOWN
        busy = unknown or state.is_busy
        # A pause is one of work if there was some in most of it.
        self._busy = busy or idle < stalled_s / 2
        self._held = whohangs.hold(self._held, finding, now)
        graded = whohangs.judged(self._held, now, stalled_s, self.c4d, self._repeated(history))
        verdict = self._verdict(history, stalled_s, busy, idle)
        confirmed = self._held is not None and now - self._held.since >= whohangs.CONFIRM_S
        # A hang outside of communication is an Error by its coming back alone, so the job's own limits hold as well.
        long = idle >= self.c4d.timeout_s * (self.c4d.times - 1)
        error = graded is not None and graded.level is Level.ERROR and graded.kind is CulpritKind.COMM_HANG and not busy and long
        judge_themselves = any(event.reports and event.stage_s is None for event, _ in self._nodes.values())
        self._unsure = 0 if confirmed else self._unsure + 1
        if verdict.stall is Stall.ACT and self._unsure >= UNSURE_MAX:  # it hangs, at an unknown place
            graded, finding = None, None
        not_ours = judge_themselves or state.at_end or (unknown and state.only_polls)
        doubts = doubt(finding, views) or (AT_WORK if busy else "")
        # One look without a doubt may fall into the moment in which a pause ends: seen on a busy machine.
        self._sure_at = None if doubts else now if self._sure_at is None else self._sure_at
        confirmed = confirmed and (self._sure_at is None or now - self._sure_at >= whohangs.CONFIRM_S)
        act = (verdict.stall is Stall.ACT or error) and (confirmed or finding is None) and not not_ours
        rests = not busy and (error or self._at_rest(history, idle).stall is Stall.ACT)
        doubts = doubts or ("" if rests else AT_WORK)
        if graded is not None and busy and not act:  # a long evaluation is no warning
            graded = replace(graded, level=Level.INFO)
        # Ranks do not start in the same moment; that is nobody's trouble.
        # Who works in short bursts, or gets little of a crowded core, rests at most looks.
        early = not busy and idle >= self.c4d.timeout_s and self._early < EARLY_MAX and self.begun
        over = busy and self._told_level is Level.WARN  # what was called stuck works again
        worth = verdict.stall is not Stall.NONE or early or over
        tell = worth and graded is not None and (not graded.same(self._told) or graded.level is not self._told_level)
        if tell and graded is not None:
            self._told, self._told_level = graded, graded.level
            self._early += verdict.stall is Stall.NONE
        left_s = verdict.act_s - (stalled_s if busy else idle)
        again_s = max(self.c4d.timeout_s, AGAIN_SHARE * stalled_s)
        if finding is not None and not confirmed:
            again_s = CONFIRM_MARGIN * whohangs.CONFIRM_S if self._unsure < UNSURE_MAX else again_s
        elif left_s > 0:
            again_s = min(again_s, max(left_s, whohangs.CONFIRM_S))
        limit_s = 0.0 if busy else verdict.act_s
        return Opinion(act, doubts, tell, graded or finding, verdict.reason, idle, limit_s, again_s)

    def _verdict(self, history: History, stalled_s: float, busy: bool, idle: float) -> StallVerdict:
        """The short limit counts from when the ranks that hold up the others last did any work, the long one from the stall."""
        at_work = judge_pause(self._learned(history), stalled_s, True, self.begun, self._limits)
        return at_work if busy or at_work.stall is Stall.ACT else self._at_rest(history, idle)

    def _at_rest(self, history: History, idle: float) -> StallVerdict:
        return judge_pause(self._learned(history), idle, False, self.begun, self._limits)

    def _repeated(self, history: History) -> frozenset[str]:
        """Nodes on which earlier attempts hung."""
        return frozenset().union(*(nodes for attempt, nodes in history.hangs.culprits.items() if attempt < self.attempt))

    @property
    def begun(self) -> bool:
        """Have the ranks made progress in their collectives?"""
        return any(event.begun for event, _ in self._nodes.values())

    @property
    def _limits(self) -> StallLimits:
        """What a program has set for where it is now counts more than anything learned."""
        stages = [event.stage_s for event, _ in self._nodes.values() if event.stage_s is not None and event.stage_s > 0]
        if not stages:
            return self.limits
        own = max(stages)
        return replace(self.limits, floor_s=own, cap_s=own, act_floor_s=own, starting_s=own)

    def _learned(self, history: History) -> PauseLimits:
        """What is known of the job's pauses. A hang restart that did not help was a false alarm, as far as is known."""
        usual = [event.usual_s for event, _ in self._nodes.values() if event.usual_s is not None]
        middle = median(usual) if usual else None
        return PauseLimits(middle, history.hangs.quiet_pauses, history.hangs.busy_pauses, history.hangs.in_a_row)


def stall_watch(hang: HangSettings, attempt: int = 0) -> StallWatch:
    limits = StallLimits(
        cap_s=hang.stall_at_work_s, act_floor_s=hang.stall_s, starting_s=hang.start_s,
        floor_s=min(StallLimits().floor_s, hang.stall_s), warn_floor_s=hang.c4d_timeout_s,
    )  # fmt: skip
    return StallWatch(whohangs.HangLimits(hang.c4d_timeout_s, hang.c4d_times), limits, attempt)


def as_seconds(word: str) -> float | None:
    """Of an interval that a program has set; -1: off. None for anything else."""
    try:
        seconds = float(word)
    except ValueError:
        return None
    return seconds if seconds == -1 or 0 < seconds < 1e9 else None


def levels_from(least: str) -> Mapping[Level, bool]:
    """The levels of findings that are reported. least: C4D's word for the lowest."""
    order = (Level.INFO, Level.WARN, Level.ERROR)
    first = {"Info": 0, "Warning": 1, "Error": 2}[least]
    return {level: place >= first for place, level in enumerate(order)}

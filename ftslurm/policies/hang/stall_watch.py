"""Is the job stalled, and what follows? Joins what the agents report of their nodes' collectives in one attempt.

A stall is examined when it is as long as C4D's timeout. It is reported when the limits learned from the job's own pauses call
for a word, and acted on when they, or C4D's count of identical verdicts, call it a hang.
Source: C4D (Alibaba Cloud PAI, "Use C4D") for levels and times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace

from ftslurm.model.averages import median
from ftslurm.model.collectives import Finding, Kind, Level, RankView
from ftslurm.model.events import StallSeen
from ftslurm.model.folds.history import History
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass
from ftslurm.policies.hang.pause_limits import PauseLimits, Phase, Stall, StallLimits, StallVerdict, judge
from ftslurm.policies.hang.proof import doubt
from ftslurm.policies.hang.whohangs import HangLimits, Held, at_end, hold, idle_s, is_busy, judged, only_polls, who_hangs

# A stall that lasts is looked at again after this share of its length, so that a long evaluation is not disturbed.
AGAIN_SHARE = 0.1
# A verdict that changes between two looks does not count.
UNSURE_MAX = 5
# The most reports for a job whose pauses look like hangs for a while.
EARLY_MAX = 5
# Beyond what a verdict must hold, so that the second look confirms it.
CONFIRM_MARGIN = 1.2
AT_WORK = "ranks that the others wait for still do work"


@dataclass(frozen=True, slots=True)
class Pause:
    """A stall that ended by itself. told: people had heard of it."""

    seconds: float
    busy: bool
    told: bool


@dataclass(frozen=True, slots=True)
class Opinion:
    """What follows from a look at a stalled job. act: it is a hang. doubt: why that is no proof; empty: it is. tell: report it.
    idle_s: for how long no rank has worked that others may wait for. limit_s: from when on that is a hang; 0: one works, or
    nobody is named. again_s: seconds until the next look.
    """

    act: bool
    doubt: str
    tell: bool
    finding: Finding | None
    what: str
    idle_s: float
    limit_s: float
    again_s: float


@dataclass(slots=True)
class StallWatch:
    """Times are monotonic seconds."""

    c4d: HangLimits
    limits: StallLimits
    attempt: int = 0
    left_alone: bool = False  # has this stall been reported as a hang that ftrun leaves alone?
    _nodes: dict[str, tuple[StallSeen, float]] = field(default_factory=dict)
    _probed: int = 0  # ranks with a probe, on all of these
    _meeting: int = 0  # of these nodes, those on which a rank waits for a group that is being made
    _views: dict[str, tuple[RankView, ...]] = field(default_factory=dict)
    _held: Held | None = None
    _sure_at: float | None = None  # since when no look has left a doubt
    _told: Finding | None = None
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
        finding = who_hangs(views)
        at_work, idle = is_busy(finding, views), idle_s(views, stalled_s)
        unknown = finding is None or finding.kind is Kind.UNKNOWN
        busy = unknown or at_work
        # A pause is one of work if there was some in most of it.
        self._busy = busy or idle < stalled_s / 2
        self._held = hold(self._held, finding, now)
        graded = judged(self._held, now, stalled_s, self.c4d, self._repeated(history))
        verdict = self._verdict(history, stalled_s, busy, idle)
        confirmed = self._held is not None and now - self._held.since >= self.c4d.confirm_s
        # A hang outside of communication is an Error by its coming back alone, so the job's own limits hold as well.
        long = idle >= self.c4d.timeout_s * (self.c4d.times - 1)
        error = graded is not None and graded.level is Level.ERROR and graded.kind is Kind.COMM_HANG and not busy and long
        judge_themselves = any(event.reports and event.stage_s is None for event, _ in self._nodes.values())
        self._unsure = 0 if confirmed else self._unsure + 1
        if verdict.stall is Stall.ACT and self._unsure >= UNSURE_MAX:  # it hangs, at an unknown place
            graded, finding = None, None
        not_ours = judge_themselves or at_end(views) or (unknown and only_polls(views))
        doubts = doubt(finding, views) or (AT_WORK if busy else "")
        # One look without a doubt may fall into the moment in which a pause ends: seen on a busy machine.
        self._sure_at = None if doubts else now if self._sure_at is None else self._sure_at
        confirmed = confirmed and (self._sure_at is None or now - self._sure_at >= self.c4d.confirm_s)
        act = (verdict.stall is Stall.ACT or error) and (confirmed or finding is None) and not not_ours
        rests = not busy and (error or self._at_rest(history, idle).stall is Stall.ACT)
        doubts = doubts or ("" if rests else AT_WORK)
        if graded is not None and busy and not act:  # a long evaluation is no warning
            graded = replace(graded, level=Level.INFO)
        # Ranks do not start in the same moment; that is nobody's trouble.
        # Who works in short bursts, or gets little of a crowded core, rests at most looks.
        early = not busy and idle >= self.c4d.timeout_s and self._early < EARLY_MAX and self._phase is Phase.RUNNING
        over = busy and self._told_level is Level.WARN  # what was called stuck works again
        worth = verdict.stall is not Stall.NONE or early or over
        tell = worth and graded is not None and (not graded.same(self._told) or graded.level is not self._told_level)
        if tell and graded is not None:
            self._told, self._told_level = graded, graded.level
            self._early += verdict.stall is Stall.NONE
        left_s = verdict.act_s - (stalled_s if busy else idle)
        again_s = max(self.c4d.timeout_s, AGAIN_SHARE * stalled_s)
        if finding is not None and not confirmed:
            again_s = CONFIRM_MARGIN * self.c4d.confirm_s if self._unsure < UNSURE_MAX else again_s
        elif left_s > 0:
            again_s = min(again_s, max(left_s, self.c4d.confirm_s))
        limit_s = 0.0 if busy else verdict.act_s
        return Opinion(act, doubts, tell, graded or finding, verdict.reason, idle, limit_s, again_s)

    def _verdict(self, history: History, stalled_s: float, busy: bool, idle: float) -> StallVerdict:
        """The short limit counts from when the ranks that hold up the others last did any work, the long one from the stall."""
        at_work = judge(self._learned(history), stalled_s, True, self._phase, self._limits)
        return at_work if busy or at_work.stall is Stall.ACT else self._at_rest(history, idle)

    def _at_rest(self, history: History, idle: float) -> StallVerdict:
        return judge(self._learned(history), idle, False, self._phase, self._limits)

    def _repeated(self, history: History) -> frozenset[str]:
        """Nodes on which earlier attempts hung."""
        return frozenset().union(*(nodes for attempt, nodes in history.hangs.culprits.items() if attempt < self.attempt))

    @property
    def begun(self) -> bool:
        """Have the ranks made progress in their collectives?"""
        return any(event.begun for event, _ in self._nodes.values())

    @property
    def _phase(self) -> Phase:
        return Phase.RUNNING if self.begun else Phase.STARTING

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


def stall_watch(settings: Settings, attempt: int = 0) -> StallWatch:
    limits = StallLimits(
        cap_s=settings.hang.stall_at_work_s, act_floor_s=settings.hang.stall_s, starting_s=settings.hang.start_s,
        floor_s=min(StallLimits().floor_s, settings.hang.stall_s), warn_floor_s=settings.hang.c4d_timeout_s,
    )  # fmt: skip
    return StallWatch(HangLimits(settings.hang.c4d_timeout_s, settings.hang.c4d_times), limits, attempt)


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

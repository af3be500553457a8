"""Watches, on one node, the progress of its ranks in their collectives, by the probes in them (sdk/probe.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from threading import Lock
from typing import Any

from ftslurm.model.collectives import RankView
from ftslurm.model.events import StallSeen
from ftslurm.model.folds.past import usual_interval_s
from ftslurm.model.messages import compared_message, stall_message
from ftslurm.model.values import replace
from ftslurm.policies.hang.whohangs import MEETINGS
from ftslurm.wrapper.agent.node_watch import NodeWatch
from ftslurm.wrapper.agent.pages import Task
from ftslurm.wrapper.agent.work import ReadUse
from ftslurm.wrapper.shim.lease import boot_s

# --- The clock of a node's ranks: it stops while their job is stopped.
#
# Slurm stops the agent together with the ranks (`scontrol suspend`, preemption, gang scheduling), for any time and any number
# of times. Nothing that the ranks did not do meanwhile is their silence.

# Later by this much than the agent meant to wake, and it was stopped or had no CPU, and its ranks were probably no better off.
AWAY_S = 2.0


class JobClock:
    """Call it for the seconds in which the job ran. Any thread may."""

    def __init__(self, clock: Callable[[], float] = boot_s) -> None:
        self._clock = clock
        self._stopped_s = self._told_s = 0.0
        self._due = inf
        self._lock = Lock()

    def __call__(self) -> float:
        with self._lock:
            return self._read() - self._stopped_s

    def expect(self, wait_s: float | None) -> bool:
        """The agent is going to wait for `wait_s` seconds, None: for any time. Was the job stopped since the last call?"""
        with self._lock:
            now = self._read()
            self._due = now + wait_s if wait_s is not None else inf
            before, self._told_s = self._told_s, self._stopped_s
            return self._stopped_s > before

    def _read(self) -> float:
        now = self._clock()
        if now - self._due > AWAY_S:
            self._stopped_s += now - self._due
            self._due = now
        return now


LOOK_S = 1.0
# Number of looks within the time after which a stall is reported.
LOOKS = 5
# Seconds after the ranks' start at which it looks for training ranks without a probe.
LACKING_S = (30.0, 120.0, 600.0)

Message = dict[str, Any]


class StallReports:
    """Call `turn` at `wakes_at`; both are seconds of `clock`. `turn` and `compare` give the messages to send."""

    def __init__(self, node: str, use: ReadUse | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """use: measures how busy the node's devices are."""
        self._name = node
        self._use = use
        self._clock = clock
        self.node = NodeWatch(node, clock, use=use)
        self.wakes_at: float | None = None
        self._stall_s = 0.0
        self._met_s = 0.0  # as StallSeen.meets_s, at the last look
        self.tell_again = False  # a stall, once more at the next turn: who heard of it counted on by another clock
        self._progress_at = 0.0
        self._intervals: list[float] = []
        self._usual_s: float | None = None
        self._told: StallSeen | None = None
        self._lacking: list[float] = []
        self._lack_told: set[int] = set()
        self._watched: tuple[list[Task], float] = ([], 0.0)
        self.views: tuple[RankView, ...] = ()  # of the last look

    def watch(self, tasks: Sequence[Task], stall_s: float, now: float) -> None:
        """Watch these from now on; earlier data is dropped. stall_s: report after this many seconds without progress; 0: do not
        watch.
        """
        if (list(tasks), stall_s) == self._watched:
            return
        self._watched = (list(tasks), stall_s)
        self.node = NodeWatch(self._name, self._clock, use=self._use)
        for task in tasks:
            self.node.watch(task)
        self._lacking = [now + after_s for after_s in LACKING_S]
        self._lack_told = set()
        self.views = ()
        self._stall_s, self._met_s, self._progress_at = stall_s, 0.0, now
        self._intervals, self._usual_s, self._told = [], None, None
        # Not at once: the starting ranks need the processor.
        self.wakes_at = now + self._every_s if stall_s else None

    @property
    def _every_s(self) -> float:
        return min(LOOK_S, self._stall_s / LOOKS)

    def turn(self, now: float, stage_s: float | None = None, reports: bool = False, at_once: bool = False) -> list[Message]:
        """stage_s, reports: as in StallSeen, from the ranks' pages. at_once: look now, before the next time."""
        if self.wakes_at is None or (now < self.wakes_at and not at_once):
            return []
        self.wakes_at = now + self._every_s
        views = self.views = self.node.look()
        probed = sum(1 for view in views if view.probed and (view.groups or view.left))
        left = sum(1 for view in views if view.left)
        paused_s = self._learn()
        stalled_s = max(0.0, now - self.node.progress_at)
        stalled_s = stalled_s if probed and stalled_s >= self._stall_s else 0.0
        meets = [view.inside.for_s for view in views if view.inside and view.inside.operation in MEETINGS]
        if not meets and not any(view.groups or view.left for view in views):
            meets = [*self.node.polls_for_s(now), *self.node.in_c_for_s(now)]
        meets_s = min(meets, default=0.0)
        meets_s = meets_s if meets_s >= self._stall_s else 0.0
        if not stalled_s and not meets_s and self._met_s and self.node.begun:  # programs without counters pause as well
            paused_s = max(paused_s, self._met_s)
        self._met_s = meets_s
        seen = StallSeen("", probed, stalled_s, 0.0, self.node.begun, self._usual_s, stage_s, reports, left, meets_s)
        return [*self._news(seen, paused_s), *self._without_probe(now)]

    def _without_probe(self, now: float) -> list[Message]:
        """Report once each training rank whose communication nobody sees."""
        if not self._lacking or now < self._lacking[0]:
            return []
        del self._lacking[0]
        numbers = {task.rank: task.attempt for task in self._watched[0]}
        found = {rank: why for rank, why in self.node.without_probe().items() if rank in numbers and rank not in self._lack_told}
        self._lack_told |= found.keys()
        about = {"t": "said", "what": "probe"}
        return [{**about, "rank": rank, "attempt": numbers[rank], "words": [why]} for rank, why in found.items()]

    def _learn(self) -> float:
        """The seconds between the last two signs of progress, if there is a new one."""
        interval_s = self.node.progress_at - self._progress_at
        self._progress_at = self.node.progress_at
        if interval_s > 0 and self.node.begun and self._usual_s is None:
            self._intervals.append(interval_s)
            self._usual_s = usual_interval_s(self._intervals)
        return interval_s

    def _news(self, stall: StallSeen, paused_s: float) -> list[Message]:
        told, again, self.tell_again = self._told, self.tell_again, False
        known = told and _kind(told) == _kind(stall) and not again
        stands = stall.stalled_s > 0 or stall.meets_s > 0
        if known and told and (not stands or (told.stage_s, told.reports) == (stall.stage_s, stall.reports)):
            return []
        if not stall.probed and not stands and told is None:
            return []
        self._told = stall
        stood = told is not None and (told.stalled_s > 0 or (told.meets_s > 0 and told.begun))
        if stood and stall.stalled_s <= 0 and stall.meets_s <= 0:
            stall = replace(stall, stalled_s=0.0, paused_s=paused_s)
        return [stall_message(stall)]

    def compare(self) -> Message:
        """How long the ranks waited lately; if native code issues their collectives, when they entered them."""
        probed = [view for view in self.node.look() if view.probed]
        if probed and all(view.exact for view in probed):
            return compared_message(self.node.waits(), ())
        return compared_message((), self.node.enters() if probed else ())


def _kind(stall: StallSeen) -> tuple[int, int, bool, bool]:
    return stall.probed, stall.left, stall.stalled_s > 0, stall.meets_s > 0

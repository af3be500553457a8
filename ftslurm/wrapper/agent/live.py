"""Live data on this node's ranks and devices for people who watch the job: collected only while someone watches."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ftslurm.model.collectives import RankView
from ftslurm.model.devices import DeviceReport, Utilisation
from ftslurm.model.messages import NAMES_MAX, TEXT_MAX, DeviceLive, RankLive, live_message
from ftslurm.model.values import replace
from ftslurm.policies.hang.beats import Since, Watch
from ftslurm.sdk.page import PageState
from ftslurm.wrapper.agent.activity import Below, usage_below
from ftslurm.wrapper.agent.pages import RankPages
from ftslurm.wrapper.agent.work import Sample, rates_of

# Steps per second are averaged over this many seconds, and at most this many samples.
RATE_S, RATE_LOOKS = 60.0, 30
# The tool of some devices takes a second: the pause between two calls is at least this, and this times the last duration.
USE_S, USE_SHARE = 4.0, 10.0

Message = dict[str, Any]


class Glance:
    """Call `turn` at `wakes_at`; both are monotonic seconds. `turn` gives the messages to send."""

    def __init__(self, use: Callable[[], Sequence[Utilisation]] | None, look: Below = usage_below) -> None:
        """use: measures how busy the node's devices are. look: reads the processes below a shim."""
        self._use = use
        self._look = look
        # (page of its task, rank) -> how many steps it had done, and since when
        self._steps: defaultdict[tuple[str, int], deque[Since]] = defaultdict(lambda: deque(maxlen=RATE_LOOKS))
        self._usage: dict[str, Sample] = {}  # page of a task -> of its processes
        self._used: dict[str, Utilisation] = {}
        self._use_at = 0.0
        self._until, self._every_s = 0.0, 1.0
        self.wakes_at: float | None = None

    def want(self, for_s: float, every_s: float, now: float) -> None:
        """Report for `for_s` seconds from now on, every `every_s` seconds."""
        self._until, self._every_s = now + for_s, every_s
        self.wakes_at = now if self.wakes_at is None else self.wakes_at

    def turn(
        self, now: float, tasks: Iterable[RankPages], views: Sequence[RankView], reports: Sequence[DeviceReport],
        at_work: bool = False,
    ) -> list[Message]:  # fmt: skip
        """tasks, views: as they were seen last. reports: of the last device check. at_work: the agent is busy, perhaps with the
        devices; their use is not measured then.
        """
        if self.wakes_at is None or now < self.wakes_at:
            return []
        if now >= self._until:
            self.wakes_at = None
            self._usage, self._used = {}, {}
            self._steps.clear()
            return []
        self.wakes_at = now + self._every_s
        ranks = self._all_ranks(now, tasks, {view.rank: view for view in views})
        return [live_message(ranks, self._devices(now, reports, at_work))]

    def _all_ranks(self, now: float, tasks: Iterable[RankPages], views: Mapping[int, RankView]) -> list[RankLive]:
        found = []
        for each in tasks:
            task = each.task.rank
            cores, io_bytes_s = self._work(each, now)
            pages = _latest(each)
            for rank, path in pages.items() or {task: ""}.items():
                alone = len(pages) < 2  # otherwise the processes could belong to either
                watch = each.watches.get(path)
                told = self._told(each, rank, each.pages[path], watch, now) if watch else RankLive(rank, task)
                view = views.get(rank)
                groups = view.groups if view is not None and view.probed else ()
                inside = view.inside if view is not None else None
                told = replace(told, collectives=sum(group.entered for group in groups) if groups else None)
                told = replace(told, cores=cores, io_bytes_s=io_bytes_s) if alone else told
                found.append(replace(told, inside=inside.operation[:TEXT_MAX], inside_s=inside.for_s) if inside else told)
        return found

    def _told(self, each: RankPages, rank: int, page: PageState, watch: Watch, now: float) -> RankLive:
        """What the program reports about itself."""
        beat_s = now - watch.beats.at if page.beats else None
        step_s = now - watch.stepped.at if page.step is not None else None
        sections = tuple(one.name[:TEXT_MAX] for one in page.sections if one.opened_ns)[:NAMES_MAX]
        rate = _rate(self._steps[each.task.page, rank], watch.stepped, now) if page.step is not None else None
        return RankLive(rank, each.task.rank, page.beats or None, beat_s, page.step, step_s, rate, sections)

    def _work(self, each: RankPages, now: float) -> tuple[float | None, float | None]:
        """Cores used and bytes per second since the last sample."""
        before, sample = self._usage.get(each.task.page), (now, *self._look(each.task.shim or 0))
        self._usage[each.task.page] = sample
        cpu_percent, io_bytes_s = rates_of((before, sample)) if before is not None else (None, None)
        return None if cpu_percent is None else cpu_percent / 100, io_bytes_s

    def _devices(self, now: float, reports: Sequence[DeviceReport], at_work: bool) -> list[DeviceLive]:
        if self._use is not None and not at_work and now >= self._use_at:
            began = time.monotonic()
            self._used = {one.device: one for one in self._use()}
            self._use_at = now + max(USE_S, USE_SHARE * (time.monotonic() - began))
        found = []
        for report in reports:
            use = self._used.get(report.device)
            found.append(
                DeviceLive(
                    report.device, report.kind, report.health.value, report.codes[:NAMES_MAX],
                    use.percent if use else None, use.memory_percent if use else None, use.power_w if use else None,
                )
            )  # fmt: skip
        return found


def _latest(each: RankPages) -> dict[int, str]:
    """rank -> its page, of programs that live or may live; the latest of several that report for it."""
    by_count = sorted(each.pages.items(), key=lambda item: (item[1].steps, item[1].beats))
    found = {each.task.rank if page.rank is None else page.rank: path for path, page in by_count}
    if len(found) > 1 and (own := found.get(each.task.rank)) and not each.watches[own]:
        del found[each.task.rank]  # a launcher written in Python, beside the ranks that it has started
    return found


def _rate(steps: deque[Since], last: Since, now: float) -> float | None:
    """Steps per second; it falls while no step completes."""
    if not steps or steps[-1] != last:
        if steps and last.word < steps[-1].word:
            steps.clear()  # another program
        steps.append(last)
    while len(steps) > 2 and last.at - steps[0].at > RATE_S:
        steps.popleft()
    passed_s = last.at - steps[0].at
    if passed_s <= 0:
        return None
    rate = (last.word - steps[0].word) / passed_s
    return min(rate, 1 / (now - last.at)) if now - last.at > 2 / rate else rate

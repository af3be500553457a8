"""Live data on this node's ranks and devices for people who watch the job: collected only while someone watches."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.model.collectives import RankView
from ftslurm.model.devices import DeviceReport, Utilisation
from ftslurm.model.messages import NAMES_MAX, TEXT_MAX, DeviceLive, RankLive, live_message
from ftslurm.model.values import Value, field, replace
from ftslurm.sdk.page import PageState, owner_lives, page_paths, read_page
from ftslurm.wrapper.agent.activity import Below, usage_below
from ftslurm.wrapper.agent.work import Sample, rates_of

# Steps per second are averaged over this many seconds, and at most this many samples.
RATE_S, RATE_LOOKS = 60.0, 30
# The tool of some devices takes a second: the pause between two calls is at least this, and this times the last duration.
USE_S, USE_SHARE = 4.0, 10.0

Message = dict[str, Any]


class _Seen(Value, frozen=False):
    """What was seen of one rank. changed: name -> (value, when it changed, monotonic). steps: (count, when by the program's
    clock, ns).
    """

    changed: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RATE_LOOKS))


class Glance:
    """Call `turn` at `wakes_at`; both are monotonic seconds. `turn` gives the messages to send."""

    def __init__(self, use: Callable[[], Sequence[Utilisation]] | None, look: Below = usage_below) -> None:
        """use: measures how busy the node's devices are. look: reads the processes below a shim."""
        self._use = use
        self._look = look
        self._ranks: list[tuple[int, int, str]] = []  # rank, pid of its shim, path of its page
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._usage: dict[int, Sample] = {}
        self._used: dict[str, Utilisation] = {}
        self._use_at = 0.0
        self._until, self._every_s = 0.0, 1.0
        self.wakes_at: float | None = None

    def watch(self, ranks: Sequence[tuple[int, int, int]], folder: Callable[[int], str]) -> None:
        """ranks: (rank, pid of its shim, number of its start). folder: of a rank's page. Earlier data is dropped."""
        self._ranks = [(rank, pid, f"{folder(rank)}/{rank}.{number}") for rank, pid, number in ranks]
        self._seen, self._usage = {}, {}

    def want(self, for_s: float, every_s: float, now: float) -> None:
        """Report for `for_s` seconds from now on, every `every_s` seconds."""
        self._until, self._every_s = now + for_s, every_s
        self.wakes_at = now if self.wakes_at is None else self.wakes_at

    def turn(
        self, now: float, views: Sequence[RankView], reports: Sequence[DeviceReport], at_work: bool = False
    ) -> list[Message]:
        """views: the latest views of the ranks. reports: of the last device check. at_work: the agent is busy, perhaps with the
        devices; their use is not measured then.
        """
        if self.wakes_at is None or now < self.wakes_at:
            return []
        if now >= self._until:
            self.wakes_at = None
            self._seen, self._usage, self._used = {}, {}, {}
            return []
        self.wakes_at = now + self._every_s
        return [live_message(self._all_ranks(now, {view.rank: view for view in views}), self._devices(now, reports, at_work))]

    def _all_ranks(self, now: float, views: Mapping[int, RankView]) -> list[RankLive]:
        found = []
        for task, pid, path in self._ranks:
            cores, io_bytes_s = self._work(task, pid, now)
            pages = _pages_of(path, task)
            for rank, page in pages.items() or {task: None}.items():
                alone = len(pages) < 2  # otherwise the processes could belong to either
                told = self._told(task, rank, page, now) if page is not None else RankLive(rank, task)
                view = views.get(rank)
                groups = view.groups if view is not None and view.probed else ()
                inside = view.inside if view is not None else None
                told = replace(told, collectives=sum(group.entered for group in groups) if groups else None)
                told = replace(told, cores=cores, io_bytes_s=io_bytes_s) if alone else told
                found.append(replace(told, inside=inside.operation[:TEXT_MAX], inside_s=inside.for_s) if inside else told)
        return found

    def _told(self, task: int, rank: int, page: PageState, now: float) -> RankLive:
        """What the program reports about itself."""
        seen = self._seen.setdefault((task, rank), _Seen())
        ours = _same_clock(page)
        beat_s = _age(seen, "beat", page.beats, page.beat_ns, ours, now)
        step_s = _age(seen, "step", page.steps, page.step_ns, ours, now)
        sections = tuple(one.name[:TEXT_MAX] for one in page.sections if one.opened_ns)[:NAMES_MAX]
        rate = _rate(seen.steps, page.steps, page.step_ns, step_s) if page.step is not None else None
        return RankLive(
            rank, task, page.beats if page.beats else None, beat_s if page.beats else None, page.step,
            step_s if page.step is not None else None, rate, sections,
        )  # fmt: skip

    def _work(self, task: int, pid: int, now: float) -> tuple[float | None, float | None]:
        """Cores used and bytes per second since the last sample."""
        before, sample = self._usage.get(task), (now, *self._look(pid))
        self._usage[task] = sample
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


def _pages_of(path: str, task: int) -> dict[int, PageState]:
    """rank -> its page, of programs that live or may live; for each rank the latest page, if it reports."""
    found: dict[int, PageState] = {}
    for own in page_paths(path):
        page = read_page(own)
        if page is None or owner_lives(page) is False:
            continue
        rank = page.rank if page.rank is not None else task
        if rank not in found or (page.steps, page.beats) > (found[rank].steps, found[rank].beats):
            found[rank] = page
    if len(found) > 1 and task in found and not (found[task].steps or found[task].beats or found[task].init_ns):
        del found[task]  # a launcher written in Python, beside the ranks that it has started
    return found


def _same_clock(page: PageState) -> bool:
    """Are its times those of our monotonic clock? A container may have another zero (time_namespaces(7))."""
    try:
        ours, theirs = os.stat("/proc/self/ns/time"), os.stat(f"/proc/{page.pid}/ns/time")  # noqa: PTH116
    except OSError:
        return False
    return owner_lives(page) is True and ours.st_ino == theirs.st_ino


def _age(seen: _Seen, name: str, count: int, at_ns: int, ours: bool, now: float) -> float | None:
    """Seconds since the value changed; None if it has not changed since we look, and its clock is not ours."""
    if ours and at_ns:
        return max(0.0, now - at_ns / 1e9)
    before = seen.changed.get(name)
    if before is None or before[0] != count:
        seen.changed[name] = (count, None if before is None else now)
    at = seen.changed[name][1]
    return None if at is None else now - at


def _rate(steps: deque[tuple[int, int]], count: int, at_ns: int, since_s: float | None) -> float | None:
    """Steps per second, by the program's own clock; it falls while no step completes."""
    if not steps or steps[-1][0] != count:
        if steps and count < steps[-1][0]:
            steps.clear()  # another program
        steps.append((count, at_ns))
    while len(steps) > 2 and steps[-1][1] - steps[0][1] > RATE_S * 1e9:
        steps.popleft()
    passed_ns = steps[-1][1] - steps[0][1]
    if passed_ns <= 0:
        return None
    rate = (steps[-1][0] - steps[0][0]) * 1e9 / passed_ns
    return min(rate, 1 / since_s) if since_s and since_s > 2 / rate else rate

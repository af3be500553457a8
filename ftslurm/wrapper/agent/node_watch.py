"""What a node knows about its ranks: their pages, /proc, torch's flight recorder, stacks, connections. It observes and decides
nothing.

`look()` is cheap and made for every second. `examine()` is for a suspicion only: it asks torch's worker server of each rank,
which answers even while native code holds the interpreter lock, reads the kernel's tables of connections, and takes stacks if
py-spy is installed. It never signals or stops a process: a signal interrupts the wait, and the hang would vanish before it is
understood.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache

from ftslurm.model.collectives import EntryTimes, ProcessState, RankView, WaitTimes
from ftslurm.model.values import Value, replace
from ftslurm.sdk.page import PageState
from ftslurm.system.commands import Runner, run
from ftslurm.system.sockets import Moved, inodes_of, moved_by_tcp, tcp_bytes
from ftslurm.wrapper.agent import processes
from ftslurm.wrapper.agent import recorders as nccl_ras
from ftslurm.wrapper.agent.pages import Task
from ftslurm.wrapper.agent.programs import ProbeState, pages_of, why_no_probe, without_launchers
from ftslurm.wrapper.agent.rank import (
    MAIN_FRESH_S,
    WatchedRank,
    as_text,
    entry_times,
    in_mpi,
    uses_nccl,
    view_of,
    wait_times,
    with_recorder,
)
from ftslurm.wrapper.agent.recorders import ASK_S
from ftslurm.wrapper.agent.work import AskConnections, DeviceUse, ReadUse
from ftslurm.wrapper.shim.processes import descendants

EXAMINE_S = 10.0
EVIDENCE_BYTES = 256 << 10
LATE_S = 0.5  # seconds without progress; more than between two collectives of most programs
OUTSIDE = -1  # in place of a rank's own number, for a task without a probe


class Examined(Value):
    """views: of every rank of the node. text: evidence for people."""

    views: tuple[RankView, ...]
    text: str


class NodeWatch:
    """The ranks of one node. All times are seconds of `clock`."""

    def __init__(
        self, node: str, clock: Callable[[], float] = time.monotonic, runner: Runner = run, use: ReadUse | None = None
    ) -> None:
        """use: measures how busy the node's devices are, within the given number of seconds."""
        self._node = node
        self._clock = clock
        self._tasks: dict[str, Task] = {}  # by FTSLURM_PAGE
        self._ranks: dict[tuple[str, int], WatchedRank] = {}
        self._stacks = processes.Stacks(runner)
        self._device_use = DeviceUse(use)
        self._connections: AskConnections = tcp_bytes
        self.progress_at = clock()  # when any rank of the node last made progress with its collectives
        self.begun = False  # has any rank ever?

    def watch(self, task: Task) -> None:
        """A task of this node runs."""
        self._tasks[task.page] = task
        self.progress_at = self._clock()

    def look(self) -> tuple[RankView, ...]:
        """The ranks as their pages and the kernel describe them now; a millisecond per rank. Call it once a second or twice."""
        now, self._connections = self._clock(), cache(tcp_bytes)
        for path, task in self._tasks.items():
            if task.pid is None and (below := descendants(task.shim or 0)):  # its command has started
                task = self._tasks[path] = task._replace(pid=below[0])
            self._read(path, task, now)
        return tuple(view_of(each, self._node, now) for each in self._ranks.values())

    def examine(self, budget_s: float = EXAMINE_S) -> Examined:
        """The ranks with all evidence that can be collected in this time."""
        from concurrent.futures import ThreadPoolExecutor  # with logging: 4 ms of each agent's start

        until = self._clock() + budget_s
        device_busy = self._devices_at_work(budget_s)
        views = {(view.rank, view.node): replace(view, device_busy=device_busy) for view in self.look()}
        found: list[tuple[RankView, str]] = []
        ranks = list(self._ranks.values())
        with ThreadPoolExecutor(max_workers=16) as pool:
            dumps = pool.map(lambda each: each.recorded(until - self._clock()), ranks)
            for each, dump in zip(ranks, dumps, strict=True):
                view = views[each.rank, self._node]
                if dump is not None:
                    view = with_recorder(view, each, dump)
                found.append(self._with_kernel(view, each, until))
        texts = [text for _, text in found]
        if any(uses_nccl(view) for view, _ in found) and (left_s := until - self._clock()) > 0:
            texts += ["NCCL RAS says:", *nccl_ras.ask_here(left_s)]
        share = EVIDENCE_BYTES // max(1, len(texts))
        cut = [text.encode()[:share].decode(errors="ignore") for text in texts]
        return Examined(tuple(view for view, _ in found), "\n".join(cut))

    def _devices_at_work(self, budget_s: float) -> bool | None:
        busy = self._device_use.at_work(budget_s, self.progress_at)
        for each in self._ranks.values() if busy else ():
            each.work.worked_at = self._clock()
        return busy

    def polls_for_s(self, now: float) -> list[float]:
        """For each rank with a probe that polls: seconds since it began."""
        since = [each.work.polls_since for each in self._ranks.values() if each.probe is not None]
        return [now - at for at in since if at is not None]

    def in_c_for_s(self, now: float) -> list[float]:
        """For each rank that uses MPI and no torch groups: seconds that its main thread has been inside one C call, if long."""
        ages = [each.age("main", now) for each in self._ranks.values() if each.may_be_in_mpi]
        return [age for age in ages if age > MAIN_FRESH_S]

    def without_probe(self) -> dict[int, str]:
        """Rank -> why its program has no probe, for ranks that have torch; some milliseconds each."""
        found: dict[int, str] = {}
        for each in self._ranks.values():
            if each.probe is None and each.pid:
                why = next(filter(None, map(why_no_probe, [each.pid, *descendants(each.pid)])), "")
                found |= {each.rank: why} if why else {}
        return found

    def enters(self) -> tuple[EntryTimes, ...]:
        """When the ranks entered their last collectives, from torch's flight recorder."""
        until = self._clock() + ASK_S
        self.look()
        dumps = ((each, each.recorded(until - self._clock())) for each in self._ranks.values())
        return tuple(enter for each, dump in dumps if dump is not None for enter in entry_times(each, self._node, dump))

    def waits(self, at_least: int = 60) -> tuple[WaitTimes, ...]:
        """The waits since the last answer, for the rules on slow ranks; none while a rank has fewer than `at_least`.

        A page keeps 120. What was sent the kernel tells, but of no rank with a network of its own.
        """
        self.look()
        ranks = [each for each in self._ranks.values() if each.probe is not None]
        if any(each.unheard_waits() < at_least for each in ranks):
            return ()
        connections = moved_by_tcp()
        return tuple(_with_sent(wait_times(each, self._node), each.pid or 0, connections) for each in ranks)

    def _read(self, path: str, task: Task, now: float) -> None:
        """Read the pages: each page with a probe is a rank; a task without one is observed from outside."""
        probed = pages_of(path, task.attempt)
        found, launchers = without_launchers(probed, task.pid)
        for launcher in launchers:
            self._ranks = {key: each for key, each in self._ranks.items() if each.path != launcher}
        for own, page, state in found:
            whose = page.rank if page.rank is not None else task.rank
            known = self._ranks.get((path, whose))
            if known is None or (known.path != own and known.is_worse_than(state, page)):
                known = self._ranks[path, whose] = WatchedRank(whose, path, own)
            if known.path == own:
                self._take(known, page, state, task, now)
        if probed:
            self._ranks.pop((path, OUTSIDE), None)
        elif not any(each.task == path and each.probe for each in self._ranks.values()):
            each = self._ranks.setdefault((path, OUTSIDE), WatchedRank(task.rank, path))
            each.pid = task.pid
            each.sample(task.shim, self._connections, now)

    def _take(self, each: WatchedRank, page: PageState, state: ProbeState, task: Task, now: float) -> None:
        if each.take(page, state, task.pid, now):
            self.progress_at = now
        self.begun = self.begun or each.is_under_way
        if now - self.progress_at >= LATE_S:  # whether a rank works matters only in a stall, and costs most of a look
            each.sample(task.shim, self._connections, now)
        each.read_names()

    def _with_kernel(self, view: RankView, each: WatchedRank, until: float) -> tuple[RankView, str]:
        if not each.pid or view.process is ProcessState.EXITED:
            return view, as_text(view, "")
        pid = each.pid
        view = replace(view, sockets=processes.tcp_sockets(pid), beside=processes.sleep_beside(pid, each.trainer_beside_main()))
        stack = self._stacks.of(pid, until - self._clock())
        if each.may_be_in_mpi and each.age("main", self._clock()) > MAIN_FRESH_S and view.process is ProcessState.RUNNING:
            call, native = each.call_of_mpi(lambda: self._stacks.of(pid, until - self._clock(), native=True))
            stack = native or stack
            view = in_mpi(view, each, call, self._clock())
        trainer = each.trainer_beside_main()
        inside = processes.stack_inside(stack, trainer)
        if inside is None and processes.in_other_call(pid, trainer):
            inside = False
        if not stack and view.gil_held is False:  # nobody can look from outside
            stack = each.traceback(until - self._clock())
        return replace(view, stack_inside=inside), as_text(view, f"{processes.process_line(pid)}\n{stack}")


def _with_sent(waits: WaitTimes, pid: int, connections: Mapping[int, Moved]) -> WaitTimes:
    """pid: of the rank, 0 if that is not known."""
    mine = [connections[inode] for inode in inodes_of([pid]) if inode in connections]
    if not mine:
        return waits
    return replace(waits, sent_mb=sum(each.sent for each in mine) / 1e6, busy_ms=sum(each.busy_ms for each in mine))

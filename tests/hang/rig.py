"""Real jobs of a few ranks on this machine, watched as an agent and the controller would watch them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from ftslurm.model.collectives import Culprit, CulpritKind, Level, ProcessState, RankView
from ftslurm.policies.hang.stall_watch import CONFIRM_MARGIN, doubt
from ftslurm.policies.hang.whohangs import CONFIRM_S, HangLimits, HeldVerdict, JobState, culprit, hold, judged, who_hangs
from ftslurm.system.processes import usage
from ftslurm.wrapper.agent import node_watch
from ftslurm.wrapper.agent.activity import ActivityWatch
from ftslurm.wrapper.agent.node_watch import NodeWatch
from ftslurm.wrapper.agent.pages import Task
from ftslurm.wrapper.shim.processes import descendants
from tests.hang.network import Network, moved_anywhere

node_watch.moved_by_tcp = moved_anywhere

HERE = Path(__file__).parent
QUIET_S, BUSY_S = 3.0, 12.0
IO_S, SAMPLE_S = 5.0, 3.0  # without IO, until the CPU is sampled, as long
START_S = 180.0
ORDER_S = 60.0


@dataclass
class Verdict:
    """finding: None if there was none in time. after_s: since the watch began. text: what an examination gathered. at_work: the
    ranks that the finding names do some work. doubt: why the finding is no proof of a hang.
    """

    finding: Culprit | None
    after_s: float
    views: tuple[RankView, ...] = ()
    text: str = ""
    examine_s: list[float] = field(default_factory=list)
    at_work: bool = False
    doubt: str = ""


class Orders:
    """What is told to the ranks of tests/hang/job.py, by files in their folder, and what they have noted there."""

    folder: Path
    world: int

    def log(self, rank: int) -> str:
        return ""

    def notes(self, rank: int) -> str:
        try:
            return (self.folder / f"notes.{rank}").read_text()
        except OSError:
            return ""

    def order(self, rank: int, kind: str, argument: float | str = "") -> None:
        """From the next step of `rank` on; returns when it has begun."""
        before = self.notes(rank).count(f"begin {kind}")
        hidden = self.folder / f"order.{rank}.new"
        hidden.write_text(f"{kind} {argument}".strip())
        hidden.rename(self.folder / f"order.{rank}")
        until = time.monotonic() + ORDER_S
        while self.notes(rank).count(f"begin {kind}") == before:
            assert time.monotonic() < until, f"rank {rank} does not take orders:\n{self.log(rank)}"
            time.sleep(0.02)

    def unblock(self, rank: int) -> None:
        """Ends the orders `fifo` and `spawn`."""
        path = self.folder / f"fifo.{rank}"
        with open(path, "w"):
            path.unlink()


class Job(Orders):
    """Ranks, each a process with a page. network: gives every rank an address of its own, so that links can be cut."""

    def __init__(self, folder: Path, world: int, level: str = "L1", network: Network | None = None, **env: str) -> None:
        self.folder, self.world, self.network = folder, world, network
        self.pages = folder / "pages"
        self.pages.mkdir(parents=True, mode=0o700)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.library, self.level = env.get("LIBRARY", ""), level
        # mpirun starts all ranks below one task.
        self.ranks = [self._start(rank, port, level, env) for rank in range(1 if self.library == "mpi" else world)]
        self.node = NodeWatch("here")
        for rank, process in enumerate(self.ranks):
            self.node.watch(Task(rank, str(self.page(rank)), pid=process.pid))

    def _start(self, rank: int, port: int, level: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        net = self.network
        own = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "OUT": str(self.folder), "OMP_NUM_THREADS": "1",
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world), "MASTER_PORT": str(port),
            "MASTER_ADDR": net.address(0) if net else "127.0.0.1", "GLOO_SOCKET_IFNAME": "eth0" if net else "lo", "TP_SOCKET_IFNAME": "eth0" if net else "lo",
            "PYTHONPATH": f"{HERE / 'inject'}:{HERE.parent.parent}", "FTSLURM_PAGE": str(self.page(rank)), "FTSLURM_WATCH": level,
        }  # fmt: skip
        program = [sys.executable, "-W", "ignore", str(HERE / ("others.py" if self.library else "job.py"))]
        argv = [*(net.inside(rank) if net else ()), *program]
        if self.library == "mpi":
            argv = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(self.world), *program]
            del own["RANK"], own["LOCAL_RANK"]
            own["SLURM_PROCID"] = "0"
        with open(self.folder / f"log.{rank}", "wb") as log:
            return subprocess.Popen(argv, env={**own, **env}, stdout=log, stderr=log, start_new_session=True)

    def page(self, rank: int) -> Path:
        return self.pages / f"page.{rank}"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for process in self.ranks:
            process.wait()

    def wait_until_ready(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if all("ready" in self.notes(rank) for rank in range(self.world)):
                return
            if any(process.poll() for process in self.ranks):
                break
            time.sleep(0.05)
        raise AssertionError("the job does not start:\n" + "\n".join(self.log(rank) for rank in range(self.world)))

    def log(self, rank: int) -> str:
        return (self.folder / f"log.{rank}").read_text(errors="replace")[-3000:]

    def signal(self, rank: int, number: signal.Signals) -> None:
        """To the process that trains: with a network of its own it is a child of `ip netns exec`, which becomes it by exec."""
        told = [line.split()[2] for line in self.notes(rank).splitlines() if " ready " in line]
        os.kill(int(told[-1]) if told else self.ranks[rank].pid, number)

    def with_exits(self, views: tuple[RankView, ...]) -> tuple[RankView, ...]:
        """As the controller knows from the shims how ranks ended."""
        found = []
        for view in views:
            status = self.ranks[view.rank].poll() if view.rank < len(self.ranks) else None
            if status is not None:
                view = replace(view, process=ProcessState.EXITED)
            found.append(view)
        return tuple(found)

    def watch(self, budget_s: float, quiet_s: float = QUIET_S, busy_s: float = BUSY_S) -> Verdict:
        """Until there is a verdict, or the time is over, or the job has ended well."""
        if self.level == "L0" or self.library == "jax":
            return self._watch_io(budget_s)
        begun = time.monotonic()
        held: HeldVerdict | None = None
        verdict = Verdict(None, budget_s)
        failed_at = again_at = 0.0
        sure_at: float | None = None  # since when no look has left a doubt
        while (now := time.monotonic()) - begun < budget_s:
            views = self.with_exits(self.node.look())
            statuses = [process.poll() for process in self.ranks]
            if all(status == 0 for status in statuses):
                break
            stalled_s = now - max(self.node.progress_at, begun - quiet_s)
            if self.library == "mpi":  # as the agent tells it (wrapper/agent/stalls.py)
                stalled_s = min(self.node.in_c_for_s(now), default=0.0)
            if any(statuses):
                # The first to die is a second ahead of those that die of it.
                failed_at = failed_at or now
                if now - failed_at > 1.5:
                    return Verdict(who_hangs(views), now - begun, views)
            elif stalled_s >= quiet_s and now < again_at:
                pass
            elif stalled_s >= quiet_s:
                # No oftener than the controller, for to answer takes the ranks some CPU and IO, which is not to be taken for work.
                again_at = now + CONFIRM_MARGIN * CONFIRM_S
                examined = self.node.examine()
                verdict.examine_s.append(time.monotonic() - now)
                views = self.with_exits(examined.views)
                state = JobState.of(views)
                finding = culprit(state)
                at_work = state.is_busy or state.idle_s(stalled_s) < quiet_s
                wait = finding is not None and at_work and stalled_s < busy_s
                ends = state.at_end and 0 not in statuses  # with ranks that have ended it is the exit hang's
                held = hold(held, None if wait or ends else finding, time.monotonic())
                doubtful = doubt(finding, views)
                sure_at = None if wait or doubtful else sure_at or time.monotonic()
                found = judged(held, time.monotonic(), stalled_s, HangLimits(timeout_s=quiet_s))
                if found is not None and found.kind is CulpritKind.UNKNOWN and not found.ranks:
                    found = None  # nobody can do anything with it, so it is kept and not said (policies/judge/hangs.py)
                unsure = sure_at is not None and time.monotonic() - sure_at < CONFIRM_S
                if found is not None and not unsure and (self.library or time.monotonic() - self.node.progress_at >= quiet_s):
                    return Verdict(found, time.monotonic() - begun, views, examined.text, verdict.examine_s, at_work, doubtful)
            else:
                held = sure_at = None
            time.sleep(max(0.0, 0.4 - (time.monotonic() - now)))
        return verdict

    def _watch_io(self, budget_s: float) -> Verdict:
        """As agents and controller do where no rank has a probe: by the IO of all, and then by their CPU time."""
        begun = time.monotonic()
        pids = [(rank, process.pid) for rank, process in enumerate(self.ranks)]
        life = ActivityWatch((), lambda pid: usage([pid, *descendants(pid)]))
        life.watch(pids, IO_S, begun)
        while (now := time.monotonic()) - begun < budget_s:
            for told in life.turn(now):
                if told["t"] == "quiet" and told["quiet_s"] > 0:
                    life.sample_use(SAMPLE_S, now)
                elif told["t"] == "use" and told["unchanged"] is True:
                    return Verdict(Culprit(CulpritKind.UNKNOWN, (), (), "", told["what"], Level.WARN), now - begun)
                elif told["t"] == "use":
                    life.watch(pids, IO_S, now)
            time.sleep(0.1)
        return Verdict(None, budget_s)

    def wait_for_progress(self) -> None:
        """Until all ranks go on, after a pause."""
        until, before = time.monotonic() + 60, None
        if self.level == "L0" or self.library:
            counts = [self.notes(rank).count("goes on") for rank in range(self.world)]
            while any(self.notes(rank).count("goes on") < count + 2 for rank, count in enumerate(counts)):
                assert time.monotonic() < until, "the job does not go on"
                time.sleep(0.1)
            return
        while time.monotonic() < until:
            self.node.look()
            if time.monotonic() - self.node.progress_at < 0.5:
                before = before or time.monotonic()
                if time.monotonic() - before > 1.0:
                    return
            else:
                before = None
            time.sleep(0.1)
        raise AssertionError("the job does not go on")


def right(finding: Culprit | None, kind: CulpritKind | None, ranks: tuple[int, ...]) -> bool:
    """Is it what was done to the job? kind: None for nothing."""
    if kind is None or finding is None:
        return kind is None and finding is None
    return finding.kind is kind and finding.ranks == ranks

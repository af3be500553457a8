"""Shows the state of the ranks to people who watch the job. Costs one look at a small file every few seconds otherwise.

A thread of its own looks and writes, since a file system may hang; the loop is asked for what it knows, and waits for nothing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ftslurm.ledger import live as files
from ftslurm.model.events import RankExited, RankStarted, RankStopped, RankUnstartable
from ftslurm.model.messages import Live, LiveReported, NodeLive, StacksReported, TaskLive
from ftslurm.wrapper.controller.sources import Sources

# Between two looks for who watches; who has not said so again for a while does no more.
LOOK_S, FORGET_S = 2.0, 15.0
# Between two times that it is told; the more ranks, the less often, as the file grows with them.
TELL_S, RANKS_A_SECOND = 2.0, 500
# From the first time to the second, by when the agents have answered.
SOON_S = 0.5
# For how long agents go on to report, after the time at which they are asked again.
ORDER_S = 15.0


class LiveBoard:
    """What the loop knows about ranks and nodes, for people. Runs in the loop."""

    def __init__(self, sources: Sources, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._run = run
        self._clock = clock
        self._states: dict[int, str] = {}
        self._told: dict[str, tuple[float, LiveReported]] = {}
        self._stacks = ("", "", "")
        self._number = 0

    def rank_said(self, rank: int, report: object) -> None:
        if isinstance(report, RankStarted):
            self._states[rank] = "running"
        elif isinstance(report, RankExited):
            self._states[rank] = str(report.status)
        elif isinstance(report, RankStopped):
            self._states[rank] = "stopped"
        elif isinstance(report, RankUnstartable):
            self._states[rank] = "cannot start"

    def node_said(self, node: str, report: LiveReported | StacksReported) -> None:
        if isinstance(report, StacksReported):
            self._stacks = (report.asked, node, report.text)
        else:
            self._told[node] = (self._clock(), report)

    def new_step(self) -> None:
        self._states, self._told = {}, {}

    def every_s(self) -> float:
        return max(TELL_S, len(self._sources.callers.shims) / RANKS_A_SECOND)

    def order(self) -> None:
        """Make the agents report until they are asked again, and a little longer."""
        every_s = self.every_s()
        for agent in self._sources.callers.agents.values():
            agent.send({"t": "live", "for_s": every_s + ORDER_S, "every_s": every_s})

    def ask_stacks(self, asked: str, node: str) -> None:
        agent = self._sources.callers.agents.get(node)
        if agent is None:
            self._stacks = (asked, node, f"there is no agent on {node}: nobody can look at its ranks")
        else:
            agent.send({"t": "stacks", "asked": asked})

    def snapshot(self) -> Live:
        now = self._clock()
        self._number += 1
        heard = self._sources.callers.heard_s()
        tasks = tuple(
            TaskLive(rank, caller.node, self._states.get(rank, "starting"), caller.connected)
            for rank, caller in sorted(self._sources.callers.shims.items())
        )
        names = dict.fromkeys((*(task.node for task in tasks), *self._sources.callers.agents, *heard))
        nodes = []
        for name in names:
            at, report = self._told.get(name, (None, None))
            nodes.append(
                NodeLive(
                    name, heard.get(name), None if at is None else now - at,
                    report.ranks if report else (), report.devices if report else (),
                )
            )  # fmt: skip
        return Live(self._run, self._number, time.time(), self.every_s(), tasks, tuple(nodes), self._stacks)


class LiveTeller:
    """The thread. `start`, then `close`."""

    def __init__(self, ledger: Path, sources: Sources, board: LiveBoard) -> None:
        self._ledger = ledger
        self._sources = sources
        self._board = board
        self._over = threading.Event()
        self._answers: queue.Queue[Live | None] = queue.Queue()
        self._asked: set[str] = set()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Never raises, nor needs a `start` before; a file system that hangs is not waited for."""
        if self._thread.ident is None:
            return
        self._over.set()
        self._answers.put(None)  # the loop has ended and gives none
        self._thread.join(1.0)

    def _work(self) -> None:
        seen_at: float | None = None
        with_file = False
        self._make()
        known = files.request_changed(self._ledger)
        wait_s = LOOK_S
        while not self._over.wait(wait_s):
            changed = files.request_changed(self._ledger)
            if changed is not None and changed != known:
                seen_at = time.monotonic()
                self._pass_on()
            elif changed is None:  # another ftrun of the script has ended, and taken it along
                self._make()
            known = changed
            watched = seen_at is not None and time.monotonic() - seen_at < FORGET_S
            begins = watched and not with_file
            if watched:
                with_file = self._tell() or with_file
            elif with_file:
                files.remove_live(self._ledger)
                with_file = False
            wait_s = SOON_S if begins else max(TELL_S, self._board.every_s()) if watched else LOOK_S
        files.remove_live(self._ledger, request=True)

    def _make(self) -> None:
        """Where it cannot be made, who watches sees the ledger alone."""
        with suppress(OSError):
            files.make_request(self._ledger)

    def _pass_on(self) -> None:
        """What is wanted besides: `{"stacks": [id, node]}`, once."""
        wanted = files.read_request(self._ledger).get("stacks")
        if not (isinstance(wanted, list) and len(wanted) == 2 and all(isinstance(one, str) for one in wanted)):
            return
        asked, node = wanted[0][:64], wanted[1][:256]
        if asked not in self._asked:
            self._asked.add(asked)
            self._sources.soon(lambda: self._board.ask_stacks(asked, node))

    def _tell(self) -> bool:
        """Was it written?"""

        def collect() -> None:
            self._board.order()
            self._answers.put(self._board.snapshot())

        self._sources.soon(collect)
        if (live := self._answers.get()) is None:
            return False
        try:
            files.write_live(self._ledger, live)
        except OSError:
            return False
        return True

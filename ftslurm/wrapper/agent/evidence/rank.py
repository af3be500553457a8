"""One rank of the node, as its page and its processes show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ftslurm.model.collectives import ProcessState
from ftslurm.sdk import probe as layout
from ftslurm.sdk.page import PageState, pid_namespace
from ftslurm.wrapper.agent.evidence.connections import file_size, read_text
from ftslurm.wrapper.agent.evidence.probe_words import GroupName, ProbeState, Wait, parse_groups
from ftslurm.wrapper.agent.evidence.program_pages import pid_here
from ftslurm.wrapper.agent.evidence.recorder import ASK_S, Recorded, ask_server, parse_recorder
from ftslurm.wrapper.agent.evidence.stacks import STACK_BYTES, has_main_thread, mpi_call
from ftslurm.wrapper.agent.evidence.threads import main_thread, own_number, threads_of
from ftslurm.wrapper.agent.evidence.work import NodeConnections, RankWork, passed_on

# If the main thread of an MPI program moved in this many looks, the program is under way. Nothing else shows that for MPI.
MPI_BEGUN_LOOKS = 10


class WatchedRank:
    """rank: its number. task: FTSLURM_PAGE of its task. path: of its page, empty without a probe. names: of its groups, by
    the key that the page has for them."""

    def __init__(self, rank: int, task: str, path: str = "", pid: int | None = None) -> None:
        self.rank = rank
        self.task = task
        self.path = path
        self.pid = pid
        self.page: PageState | None = None
        self.probe: ProbeState | None = None
        self.names: dict[int, GroupName] = {}
        self.work = RankWork()
        self._names_size = -1
        self._seen: dict[str, tuple[Any, float]] = {}  # name -> (value, when it changed)
        self._trainer = (0, 0)  # the probe's word, and the thread's number in our pid namespace
        self._told_waits = 0
        self._mpi_call: tuple[int, str] | None = None  # MAIN and the MPI call then: while MAIN stays the same, so does the call
        self._mpi_looks = 0  # since MPI is loaded, the looks in which the main thread had moved

    def age(self, name: str, now: float) -> float:
        """Seconds since it changed."""
        return now - self._seen[name][1] if name in self._seen else 0.0

    def begun(self, command: int) -> None:
        """Its task's command runs, which it did not before."""
        if self.pid is None:
            self.pid = pid_here(self.page, command) if self.page is not None else command

    def take(self, page: PageState, state: ProbeState, command: int | None, now: float) -> bool:
        """What its page says now. Has it got on? command: pid of its task's."""
        if self.page is None or (self.page.pid, self.page.start_ticks) != (page.pid, page.start_ticks):
            self._seen.clear()
            self.work.begin_program()
            self._trainer, self._mpi_looks = (0, 0), 0
            self.pid = pid_here(page, command)
        self.page, self.probe = page, state
        self._note("beats", state.beats, now)
        if self._note("main", state.main, now) and self.may_be_in_mpi:
            self._mpi_looks += 1
        self._note("in", state.in_ns, now)
        got_on = self._note("progress", (state.progress, state.waits), now)
        if got_on:
            self.work.begin_rest()
        return got_on

    def _note(self, name: str, value: Any, now: float) -> bool:
        """Keep the value. Has it changed?"""
        if name in self._seen and self._seen[name][0] == value:
            return False
        self._seen[name] = (value, now)
        return True

    def read_names(self) -> None:
        """Of its groups, if there are more."""
        path = self.path + layout.GROUPS_SUFFIX
        if (size := file_size(path)) != self._names_size:
            self._names_size = size
            self.names = parse_groups(read_text(path, layout.GROUPS_BYTES_MAX))

    def sample(self, shim: int | None, node: NodeConnections, now: float) -> None:
        """What it works. shim: the pid of its parent."""
        if self.pid and self.work.is_due(now):
            asked = self.probe.asked if self.probe is not None else 0
            self.work.sample(self.pid, self.trainer_beside_main(), asked, passed_on(shim), node, now)

    @property
    def is_under_way(self) -> bool:
        """Has its program begun to communicate?"""
        if self._mpi_looks > MPI_BEGUN_LOOKS and self.may_be_in_mpi:
            return True
        return self.probe is not None and (self.probe.progress > 0 or self.probe.waits > 0)

    @property
    def may_be_in_mpi(self) -> bool:
        return self.probe is not None and self.probe.mpi and not self.probe.groups

    def call_of_mpi(self, native_stack: Callable[[], str]) -> tuple[str | None, str]:
        """(what the main thread is in, empty if nothing of MPI's, None if nobody could look; the stack if it was asked for). As
        long as the main thread has not come by, it is the same call, and the stack is not asked for again."""
        main, stack = self._seen["main"][0], ""
        if self._mpi_call is None or self._mpi_call[0] != main:
            stack = native_stack()
            self._mpi_call = (main, mpi_call(stack)) if has_main_thread(stack) else None
        return (self._mpi_call[1] if self._mpi_call is not None else None), stack

    def trainer_beside_main(self) -> int:
        """The training thread in our numbering; 0 if it is the main thread, or unknown."""
        if self.pid is None or self.page is None or self.probe is None or not self.probe.trainer:
            return 0
        told = self.probe.trainer
        if self._trainer[0] != told:
            here = self.page.namespace == pid_namespace()
            self._trainer = told, told if here else next((n for n in threads_of(self.pid) if own_number(self.pid, n) == told), 0)
            self.work.forget_trainer()
        return self._trainer[1] if self._trainer[1] != self.pid else 0

    def unheard_waits(self) -> int:
        return self.probe.waits - self._told_waits if self.probe is not None else 0

    def hear_waits(self) -> tuple[Wait, ...]:
        """Those since the last time; the oldest may be lost."""
        if self.probe is None:
            return ()
        new = tuple(wait for wait in self.probe.ring if wait.place >= self._told_waits)
        self._told_waits = self.probe.waits
        return new

    def recorded(self, left_s: float) -> dict[str, Recorded] | None:
        """What torch's recorder has, None if it does not answer."""
        if self.probe is None or not self.probe.serves or self.pid is None or main_thread(self.pid)[0] is ProcessState.STOPPED:
            return None
        answer = self._ask("fr_trace_json", left_s)
        try:
            return parse_recorder(json.loads(answer)) if answer else None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
            return None

    def traceback(self, left_s: float) -> str:
        """The Python stacks of all threads from the rank itself. This needs the interpreter lock."""
        if self.probe is None or not self.probe.serves:
            return ""
        return (self._ask("dump_traceback", left_s) or b"").decode(errors="replace")[:STACK_BYTES]

    def _ask(self, handler: str, left_s: float) -> bytes | None:
        return ask_server(self.path + layout.SOCKET_SUFFIX, handler, max(0.05, min(ASK_S, left_s)))

    def is_worse_than(self, state: ProbeState, page: PageState) -> bool:
        """Of two processes that claim to be the rank, prefer the one with process groups, else the later one."""
        mine = (self.probe is not None and self.probe.groups_seen > 0, self.page.start_ticks if self.page else 0)
        return (state.groups_seen > 0, page.start_ticks) > mine

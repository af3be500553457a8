"""One rank of the node, as its page and its processes show it, and as it is told to the controller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ftslurm.model.collectives import (
    GROUPS_MAX,
    CallDurations,
    CurrentCall,
    EntryTimes,
    GroupView,
    ProcessState,
    RankView,
    WaitTimes,
)
from ftslurm.model.values import replace
from ftslurm.policies.hang.slow import steady_means
from ftslurm.policies.hang.whohangs import MEETINGS, works
from ftslurm.sdk import probe as layout
from ftslurm.sdk.page import PageState, pid_namespace, start_ticks
from ftslurm.wrapper.agent.processes import (
    STACK_BYTES,
    file_size,
    has_main_thread,
    main_thread,
    mpi_call,
    own_number,
    read_proc,
    sleeps_in,
    threads_of,
)
from ftslurm.wrapper.agent.programs import GroupName, ProbeGroup, ProbeState, Wait, group_key, parse_groups, pid_here
from ftslurm.wrapper.agent.recorders import ASK_S, Recorded, ask_server, parse_recorder
from ftslurm.wrapper.agent.work import AskConnections, RankWork, passed_on

# --- A rank as it is told to the controller: its page, its processes and torch's recorder as one view. With it, for the rules on
# slow ranks, how long it waited lately, and when it entered its collectives.

ENTERS_MAX = 400


def wait_times(each: WatchedRank, node: str) -> WaitTimes:
    """Of the waits since the last time."""
    new = each.hear_waits()
    if not new or each.probe is None:
        return WaitTimes(each.rank, node, 0, 0.0, 0.0)
    issued = {group.slot: group for group in each.probe.groups}
    stays: dict[int, dict[int, int]] = {}
    for wait in new:
        if wait.slot in issued and wait.slot is not None:
            latest = issued[wait.slot].issued
            stays.setdefault(wait.slot, {})[latest - (latest - wait.number) % layout.NUMBERS] = wait.stay_us
    return WaitTimes(
        each.rank, node, len(new), *steady_means([(wait.outside_us / 1e6, wait.stay_us / 1e6) for wait in new]),
        tuple(_in_a_row(group_key(issued[slot], each.names), found) for slot, found in stays.items()),
    )  # fmt: skip


def entry_times(each: WatchedRank, node: str, dump: Mapping[str, Recorded]) -> Iterator[EntryTimes]:
    """By torch's recorder."""
    keys = {name.name: name.key for name in each.names.values()}
    for name, told in dump.items():
        row = _in_a_row(keys.get(name, name), told.times_ns)
        if row.stays_us:
            skip = max(0, len(row.stays_us) - ENTERS_MAX)
            yield EntryTimes(each.rank, node, row.key, row.first + skip, row.stays_us[skip:])


def _in_a_row(key: str, found: Mapping[int, int]) -> CallDurations:
    """The last calls without a gap between their numbers."""
    row: list[int] = []
    number = max(found, default=0)
    last = number
    while number in found:
        row.append(found[number])
        number -= 1
    return CallDurations(key, last - len(row) + 1, tuple(reversed(row)))


# The beating thread runs ten times a second if it gets the interpreter lock.
LOCK_HELD_S = 3.0
# A main thread that polls for its data loader returns to Python every 5 s.
MAIN_FRESH_S = 6.0


def view_of(each: WatchedRank, node: str, now: float) -> RankView:
    """As page and kernel have it."""
    process, wchan = main_thread(each.pid) if each.pid else (ProcessState.UNKNOWN, "")
    page, state, work = each.page, each.probe, each.work
    if each.pid and (trainer := each.trainer_beside_main()):
        wchan = sleeps_in(each.pid, trainer)
    if each.pid and page is not None and page.namespace == pid_namespace() and start_ticks(each.pid) != page.start_ticks:
        process = ProcessState.EXITED
    cpu_percent, io_bytes_s = work.rates()
    wakes_s, beside_wakes_s = work.wakes()
    view = RankView(
        each.rank, node, process, wchan, cpu_percent=cpu_percent, io_bytes_s=io_bytes_s, children=work.children,
        idle_s=now - work.worked_at if work.worked_at is not None else None,
        polls_s=work.polling.per_s if work.polling else None, wakes_s=wakes_s, beside_wakes_s=beside_wakes_s,
        pid=each.pid or 0,
    )  # fmt: skip
    if works(view):  # beside the polling
        view = replace(view, polls_s=None)
    if state is None:
        return view
    running = process not in (ProcessState.STOPPED, ProcessState.EXITED, ProcessState.UNKNOWN)
    groups = tuple(_group_view(group, each.names) for group in state.groups)
    gil_held = each.age("beats", now) > LOCK_HELD_S if running else None
    return replace(
        view,
        probed=True,
        polls_s=None if gil_held else view.polls_s,  # it wakes up every 5 ms to try the lock
        left=state.left,
        groups=groups,
        main_fresh=each.age("main", now) < MAIN_FRESH_S if running else None,
        gil_held=gil_held,
        inside=_polls_store(each.work, view, now) or _stay(state, each, now),
        hidden_groups=sum(name.slot < 0 for name in each.names.values()),
        exact=_exact(state, {group.slot: group.entered for group in state.groups}, late=True),
    )


def with_recorder(view: RankView, each: WatchedRank, dump: Mapping[str, Recorded]) -> RankView:
    """The view with the recorder's numbers: the recorder is asked now, and counts collectives only; the page may be as old as
    the last beat.
    """
    state = each.probe
    if state is None:
        return view
    groups, entered, inside = [], {}, view.inside
    for group, slot in zip(view.groups, state.groups, strict=True):
        name = each.names[slot.key].name if slot.key in each.names else ""
        told = dump.get(name)
        if told is not None:
            group = replace(
                group, entered=told.entered, completed=told.completed, started=told.started, operation=told.operation,
                recent=told.recent,
            )  # fmt: skip
            if inside is not None and inside.group == group.key and inside.number:
                # The wrappers do not see collectives that native code issues (DDP's reducer, a monitored barrier).
                inside = replace(inside, number=inside.number + max(0, told.entered - slot.issued))
            if told.peers and inside is None:
                way, peer = told.peers[0]
                whom = group.members[peer] if isinstance(group.members, tuple) and peer < len(group.members) else None
                inside = CurrentCall(way, group.key, 0, 0.0, whom, True)
        entered[slot.slot] = group.entered
        groups.append(group)
    exact = _exact(state, entered, late=False)
    if view.hidden_groups:  # they have no room in the page: the recorder's counts tell what the rank waits in
        groups += _hidden(each.names, dump)
        exact = False
        inside = inside if inside is None or inside.group or inside.point_to_point or inside.operation in MEETINGS else None
    return replace(view, groups=tuple(groups[:GROUPS_MAX]), inside=inside, exact=exact, hidden_groups=0)


def in_mpi(view: RankView, each: WatchedRank, call: str | None, now: float) -> RankView:
    """The view of a rank that uses the CPU inside one MPI call: this is a wait, unless a process or thread beside it works, for
    which others may well wait. call: None if nobody could look.
    """
    if call is None:
        return replace(view, hidden_groups=1)
    cpu_percent, _ = each.work.rates_beside_main()
    beside = replace(view, process=ProcessState.SLEEPING, cpu_percent=cpu_percent)
    if not call or cpu_percent is None or works(beside):
        return view
    return replace(view, inside=CurrentCall(call, "", 0, each.age("main", now)), cpu_percent=cpu_percent)


def _polls_store(work: RankWork, view: RankView, now: float) -> CurrentCall | None:
    """Does the rank only ask a store again and again? Then it waits for another rank to reach that point."""
    if work.polling is None or not work.polling.asks or view.polls_s is None or work.polls_since is None:
        return None
    return CurrentCall("store_poll", "", 0, now - work.polls_since)


def _stay(state: ProbeState, each: WatchedRank, now: float) -> CurrentCall | None:
    """Where the main thread waits."""
    if not state.in_ns:
        return None
    slot = next((group for group in state.groups if group.slot == state.in_slot), None)
    key = group_key(slot, each.names) if slot else ""
    return CurrentCall(state.operation, key, state.number, each.age("in", now), state.peer, state.direct)


def _hidden(names: Mapping[int, GroupName], dump: Mapping[str, Recorded]) -> Iterator[GroupView]:
    """Groups without a slot, as the recorder describes them; if a group is missing there, the rank has entered nothing lately."""
    for name in names.values():
        told = dump.get(name.name)
        if name.slot < 0 and told is not None:
            yield GroupView(name.key, name.members, told.entered, told.completed, told.started, told.operation, told.recent)


def _group_view(group: ProbeGroup, names: Mapping[int, GroupName]) -> GroupView:
    members = names[group.key].members if group.key in names else ()
    completed = None
    if group.recorded is not None and group.completed is not None:
        open_ = max(0, group.recorded - group.completed)
        completed = max(0, group.entered - (min(open_, 1) if group.directs else open_))
    return GroupView(group_key(group, names), members, group.entered, completed)


def _exact(state: ProbeState, entered: Mapping[int, int], late: bool) -> bool:
    """Do the words describe all waits? Only the recorder's count covers collectives that native code issues (DDP's reducer), and
    waits in threads other than the training thread.

    late: that count is as old as the last beat, so it may be behind.
    """
    if state.level < 2 or state.beside:
        return False
    pairs = ((entered.get(group.slot, group.entered), group.issued) for group in state.groups)
    return all(count == issued or (late and count < issued) for count, issued in pairs)


def uses_nccl(view: RankView) -> bool:
    return any(operation.startswith("nccl:") for group in view.groups for operation in (group.operation, *group.recent))


def as_text(view: RankView, kernel: str) -> str:
    groups = "".join(f"\n  group {g.key}: entered {g.entered}, completed {g.completed} {g.operation}" for g in view.groups)
    inside = f"\n  inside {view.inside.operation} for {view.inside.for_s:.1f} s" if view.inside else ""
    stuck = "".join(f"\n  {s.local} -> {s.remote}: {s.trouble}, {s.queued_bytes} bytes" for s in view.sockets if s.trouble)
    return f"rank {view.rank}: {view.process.value}{inside}{groups}{stuck}\n{kernel}"


# --- One rank of the node, as its page and its processes show it.

# If the main thread of an MPI program moved in this many looks, the program is under way. Nothing else shows that for MPI.
MPI_BEGUN_LOOKS = 10


class WatchedRank:
    """rank: its number. task: FTSLURM_PAGE of its task. path: of its page, empty without a probe. names: of its groups, by
    the key that the page has for them."""

    def __init__(self, rank: int, task: str, path: str = "") -> None:
        self.rank = rank
        self.task = task
        self.path = path
        self.pid: int | None = None
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

    def take(self, page: PageState, state: ProbeState, command: int | None, now: float) -> bool:
        """What its page says now. Has it got on? command: pid of its task's."""
        if self.page is None or (self.page.pid, self.page.start_ticks) != (page.pid, page.start_ticks):
            self._seen.clear()
            self.work = RankWork()
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
            self.names = parse_groups(read_proc(path, layout.GROUPS_BYTES_MAX))

    def sample(self, shim: int | None, connections: AskConnections, now: float) -> None:
        """What it works. shim: the pid of its parent."""
        if self.pid and self.work.is_due(now):
            asked = self.probe.asked if self.probe is not None else 0
            self.work.sample(self.pid, self.trainer_beside_main(), asked, passed_on(shim), connections, now)

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

"""A rank as it is told to the controller: its page, its processes and torch's recorder as one view. With it, for the rules
on slow ranks, how long it waited lately, and when it entered its collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

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
from ftslurm.policies.hang.slow import steady_means
from ftslurm.policies.hang.whohangs import MEETINGS, works
from ftslurm.sdk import probe as layout
from ftslurm.sdk.page import pid_namespace, start_ticks
from ftslurm.wrapper.agent.evidence.probe_words import GroupName, ProbeGroup, ProbeState, group_key
from ftslurm.wrapper.agent.evidence.rank import WatchedRank
from ftslurm.wrapper.agent.evidence.recorder import Recorded
from ftslurm.wrapper.agent.evidence.threads import main_thread, sleeps_in
from ftslurm.wrapper.agent.evidence.work import RankWork

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
        inside=_polls_store(each.work, view, now) or _stay(state, process, each, now),
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


def _stay(state: ProbeState, process: ProcessState, each: WatchedRank, now: float) -> CurrentCall | None:
    """Where the main thread waits; or the failed wait that ended the process."""
    if not state.in_ns and not (state.failed and process is ProcessState.EXITED):
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

"""Which rank causes a stall: from the state of every rank at one moment to the rank where it begins, and its class.

The rules, in the order of their use, are functions below. A stalled job is a graph: a rank that is inside a
collective waits for the members that have not entered it. Whoever is waited for and waits for nobody is where it begins;
a list of missing ranks a group, as a recorder's analyser prints it, names all that are held up behind it as well.

| rule | what is found |
|---|---|
| all are stopped | the job is suspended: nobody hangs |
| some are stopped | inside a collective: RankCommHang, outside: RankNonCommHang |
| ranks that are waited for and wait nowhere | RankNonCommHang, with what they do |
| ranks wait where groups are made, or in a store, or poll | RankNonCommHang: those that wait nowhere |
| ranks that are waited for wait where groups are made, or in a store, and nobody is left to come | RankNonCommHang: these |
| ranks have called others (torch.distributed.rpc), and everybody waits | RankNonCommHang: those that do not answer |
| some ended well, the rest is in no collective | ExitHang |
| all entered, some not begun on the device | RankNonCommHang: the device works on something else |
| all entered, one another operation | RankNonCommHang: the odd one out |
| all entered, none completes | RankCommHang: by the stuck connections |
| all are in calls of MPI | the same |
| ranks wait in a circle | RankNonCommHang: issued in different order; point-to-point only: as the line above |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ftslurm.model.collectives import Culprit, CulpritKind, GroupView, Level, ProcessState, RankView, fold_ranks
from ftslurm.model.values import Value, field, replace
from ftslurm.policies.hang.process_activity import IDLE_CPU_PERCENT

# Of the whole process tree. A thread that checks the rendezvous store once a second makes 107 B/s for ever, and a rank
# that waits in a blocking collective 0.2 % (measured); less than this is no work.
BUSY_IO_BYTES_S = 4096.0
# Who waits uses 2 at most (policies/hang/process_activity.py); on a crowded node, who computes may get no more than a few.
BUSY_CPU_PERCENT = 5.0
# Of gloo's: made of sends and receives that no recorder counts, and nobody gets through before all have come.
BARRIER = "monitored_barrier"
CALL = "rpc_sync"
# Where ranks wait for others without a group that would tell for whom. Source: sdk/probe.py.
MEETINGS = ("init_process_group", "new_group", "store_wait", "store_get", "store_poll")
# A call of MPI begins so: for whom it waits nothing shows, either.
MPI = "MPI_"
# As long must a verdict hold before it counts: the state of a job that goes on again is seen half old and half new for a moment.
CONFIRM_S = 1.0
EVIDENCE_MAX = 12


class HangLimits(Value):
    """C4D's. timeout_s: so long a hang is told (C4D_HANG_TIMEOUT). times: after so many it is an error (C4D_HANG_TIMES)."""

    timeout_s: float = 10.0
    times: int = 18


class HeldVerdict(Value):
    """A verdict, and since when it has been the same (seconds of the caller's clock)."""

    finding: Culprit
    since: float


def hold(held: HeldVerdict | None, finding: Culprit | None, now: float) -> HeldVerdict | None:
    """The verdict to keep. Call with every new verdict; finding: None if there is none."""
    if finding is None:
        return None
    return HeldVerdict(finding, held.since if held and held.finding.same(finding) else now)


def judged(
    held: HeldVerdict | None, now: float, stalled_s: float, limits: HangLimits, repeated: Collection[str] = ()
) -> Culprit | None:
    """The verdict with the level it deserves by now; None while it is not confirmed, or the stall is too short to be told.

    stalled_s: since when nothing has moved. repeated: nodes that earlier attempts hung on; a
    single rank that hangs there again counts against its node.
    """
    if held is None or now - held.since < CONFIRM_S or stalled_s < limits.timeout_s:
        return None
    finding = held.finding
    hangs = finding.kind in (CulpritKind.COMM_HANG, CulpritKind.NON_COMM_HANG) and not finding.of_program
    if hangs and len(finding.ranks) == 1 and set(finding.nodes) & set(repeated):
        finding = replace(finding, blamed=finding.nodes)
    # The first verdict counts too: `times` identical ones, `timeout_s` apart.
    seen = 1 + int((now - held.since) / limits.timeout_s)
    grave = finding.kind is CulpritKind.COMM_HANG or finding.blamed
    if grave and finding.level is Level.WARN and seen >= limits.times:
        return replace(finding, level=Level.ERROR)
    return finding


def works(view: RankView) -> bool:
    """Does the rank's process tree read, write or compute, or does a device that may be its own work?"""
    if view.process in (ProcessState.STOPPED, ProcessState.EXITED):
        return False
    if view.process is ProcessState.RUNNING and view.polls_s is None:  # on a crowded node it may hardly get any time
        return True
    return bool(view.device_busy) or (view.io_bytes_s or 0.0) > BUSY_IO_BYTES_S or (view.cpu_percent or 0.0) > BUSY_CPU_PERCENT


def who_hangs(views: Iterable[RankView]) -> Culprit | None:
    """The verdict on a stalled job. views: all ranks of the job, from all nodes."""
    return culprit(JobState.of(views))


def culprit(state: JobState) -> Culprit | None:
    """None if it is unknown."""
    rules = (
        _stopped, _roots, _not_come, _not_served, _in_vain, _left_behind, _not_begun_on_device, _odd_one_out,
        _none_completes, _circle, _all_in_mpi, _nobody_waits,
    )  # fmt: skip
    return next((finding for rule in rules if (finding := rule(state)) is not None), None)


# --- who waits for whom


class Gate(Value):
    """A collective that ranks wait in: number `number` of the group `key`. missing: members that have not entered it.

    number: 0 for what is not counted; operation: its name then.
    """

    key: str
    number: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    operation: str = ""


class JobState(Value):
    """The ranks, their groups side by side, and what they wait in."""

    views: Mapping[int, RankView]
    groups: Mapping[str, Mapping[int, GroupView]] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    peers: Mapping[int, int | None] = field(default_factory=dict)  # rank in a point-to-point wait -> whom it waits for
    calls: Mapping[int, int | None] = field(default_factory=dict)  # rank that has called another one -> whom

    @classmethod
    def of(cls, views: Iterable[RankView]) -> JobState:
        """views: all ranks of the job, from all nodes."""
        by_rank = {view.rank: view for view in sorted(views, key=lambda view: view.rank)}
        groups: dict[str, dict[int, GroupView]] = {}
        for rank, view in by_rank.items():
            for group in view.groups:
                groups.setdefault(group.key, {})[rank] = group
        peers = {
            rank: view.inside.peer
            for rank, view in by_rank.items()
            if view.inside and view.inside.point_to_point and _alive(view) and not _in_barrier(view) and not _in_call(view)
        }
        calls = {rank: stay.peer for rank, view in by_rank.items() if _alive(view) and _in_call(view) and (stay := view.inside)}
        gates = tuple(
            gate for key, members in groups.items()
            for gate in (*_gates(key, members, by_rank, {**peers, **calls}), *_barrier(key, members, by_rank))
        )  # fmt: skip
        return cls(by_rank, groups, gates, peers, calls)

    @property
    def is_busy(self) -> bool:
        """Does a rank work (a checkpoint, an evaluation, a compilation) that may hold up the others? Then the long limit holds.

        That is every rank that is not known to wait in communication itself, whoever is named: they may wait for it in a way
        that nothing shows (a store, a file). What a rank does beside its wait, or by polling in it, holds up nobody.
        """
        return any(map(works, self.free))

    def idle_s(self, stalled_s: float) -> float:
        """Seconds for which no rank that may delay the others has worked, `stalled_s` at most."""
        return min([stalled_s, *(view.idle_s for view in self.free if view.idle_s is not None)])

    @property
    def at_end(self) -> bool:
        """Has a rank destroyed its groups, while no rank waits for another? Whatever the program does then is no hang."""
        return not self.waiting and any(view.left for view in self.views.values())

    @property
    def only_polls(self) -> bool:
        """Is there no group yet, and does no rank wait for one? Then ranks may poll for something outside the job."""
        return not self.groups and not self.waiting

    @property
    def alive(self) -> list[RankView]:
        return [view for view in self.views.values() if _alive(view)]

    @property
    def free(self) -> list[RankView]:
        """Ranks that are not known to wait, and ranks whose other threads serve a caller."""
        held = self.waiting - frozenset(self.calls.values())
        return [view for view in self.alive if view.rank not in held]

    @property
    def waiting(self) -> frozenset[int]:
        inside = frozenset(rank for gate in self.gates for rank in gate.waiting)
        return inside | frozenset(self.peers) | frozenset(self.calls) | self.meeting

    @property
    def meeting(self) -> frozenset[int]:
        """Ranks that wait for others while a group is made, or in a store."""
        return frozenset(rank for rank, view in self.views.items() if _meets(view))

    @property
    def waited_for(self) -> frozenset[int]:
        asked = frozenset(rank for gate in self.gates for rank in gate.missing)
        return asked | frozenset(peer for peer in self.peers.values() if peer is not None)

    def nodes(self, ranks: Iterable[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.views[rank].node for rank in ranks if rank in self.views))

    def operation_of(self, gates: Iterable[Gate]) -> str:
        for gate in gates:
            if gate.operation:
                return gate.operation
            members = self.groups[gate.key]
            told = next((members[rank].operation for rank in gate.waiting if members[rank].operation), "")
            return told or f"collective {gate.number} of group {gate.key}"
        return next((view.inside.operation for view in self.views.values() if view.inside and view.inside.operation), "")


def _gates(
    key: str, members: Mapping[int, GroupView], views: Mapping[int, RankView], peers: Mapping[int, int | None]
) -> Iterator[Gate]:
    """The collectives of one group in which a rank waits."""
    lowest = min(group.entered for group in members.values())
    waiting: dict[int, list[int]] = {}
    for rank, group in members.items():
        view = views[rank]
        number = 0 if rank in peers or _in_barrier(view) or view.left or not _alive(view) else _waits_in(view, group, lowest)
        if number:
            waiting.setdefault(number, []).append(rank)
    if not waiting:
        return
    everyone = _everyone(members)
    behind = sorted(everyone, key=lambda rank: members[rank].entered if rank in members else 0)
    for number, ranks in waiting.items():
        missing = []
        for rank in behind:
            if rank in members and members[rank].entered >= number:
                break
            missing.append(rank)
        yield Gate(key, number, tuple(ranks), tuple(sorted(missing)))


def _everyone(members: Mapping[int, GroupView]) -> set[int]:
    """All members, also those that have not made the group yet or have no probe: those count as having entered nothing."""
    told = {id(group.members): group.members for group in members.values()}  # one value for all, mostly
    return set(members).union(*told.values())


def _meets(view: RankView) -> bool:
    return _alive(view) and view.inside is not None and view.inside.operation.startswith((*MEETINGS, MPI))


def _in_call(view: RankView) -> bool:
    return view.inside is not None and view.inside.operation == CALL


def _in_barrier(view: RankView) -> bool:
    return view.inside is not None and view.inside.operation == BARRIER


def _barrier(key: str, members: Mapping[int, GroupView], views: Mapping[int, RankView]) -> Iterator[Gate]:
    """The monitored barrier of one group in which a rank waits."""
    here = [rank for rank in members if _alive(views[rank]) and (stay := views[rank].inside) and stay.group == key]
    waiting = tuple(rank for rank in here if _in_barrier(views[rank]))
    if waiting:
        yield Gate(key, 0, waiting, tuple(sorted(_everyone(members).difference(waiting))), BARRIER)


def _waits_in(view: RankView, group: GroupView, lowest: int) -> int:
    """The number of the collective of `group` that the rank waits in, 0 if it does not."""
    if view.inside is not None and view.inside.group == group.key and view.inside.number:
        return view.inside.number
    if view.exact:
        return 0
    # Without a count of what completed: what not all have entered cannot be complete.
    completed = group.completed if group.completed is not None else min(group.entered, lowest)
    return completed + 1 if group.entered > completed else 0


def _alive(view: RankView) -> bool:
    return view.process is not ProcessState.EXITED


# --- the rules


def _stopped(state: JobState) -> Culprit | None:
    stopped = [view for view in state.views.values() if view.process is ProcessState.STOPPED]
    if not stopped:
        return None
    ranks = [view.rank for view in stopped]
    if len(stopped) == len(state.alive):
        words = "all processes are stopped by a signal: the job is suspended"
        return _finding(state, CulpritKind.UNKNOWN, ranks, words, level=Level.INFO)
    places = {view.rank: _place_of_stopped(view, state) for view in stopped}
    told = tuple(f"rank {rank} is stopped {_PLACE[place]}" for rank, place in places.items())
    outside = [rank for rank, place in places.items() if place is False]
    if outside:
        found = _finding(state, CulpritKind.NON_COMM_HANG, outside, "stopped by a signal outside communication", evidence=told)
    elif None in places.values():
        words = "stopped by a signal; whether inside communication is unknown"
        found = _finding(state, CulpritKind.UNKNOWN, ranks, words, evidence=told)
    else:
        found = _finding(state, CulpritKind.COMM_HANG, ranks, "stopped by a signal inside communication", evidence=told)
    helps = (f"kill -CONT {view.pid} on {view.node}" for view in stopped[:EVIDENCE_MAX] if view.pid)
    return replace(found, helps="; ".join(helps))


_PLACE = {True: "inside communication", False: "outside communication", None: "somewhere"}


def _place_of_stopped(view: RankView, state: JobState) -> bool | None:
    """Is it inside communication? By its own report, else its stack, else its counters (as old as its last beat)."""
    if view.inside is not None:
        return True
    if view.exact:
        return False
    if view.stack_inside is not None:
        return view.stack_inside
    counted = [group for group in view.groups if group.completed is not None]
    if not counted or any(_outdated(group, state) for group in counted):
        return None
    inside = any(group.entered > (group.completed or 0) for group in counted)
    return None if view.hidden_groups and not inside else inside


def _outdated(mine: GroupView, state: JobState) -> bool:
    """The others have completed what it says it has not entered."""
    others = (group for group in state.groups[mine.key].values() if group is not mine)
    return any(group.completed is not None and group.completed > mine.entered for group in others)


def _roots(state: JobState) -> Culprit | None:
    """Ranks that others wait for and that wait for nobody."""
    waiting = state.waiting
    roots = sorted(rank for rank in state.waited_for - waiting if rank in state.views)
    unseen = sorted(rank for rank in state.waited_for - waiting if rank not in state.views)
    if unseen and not roots:
        words = f"the others wait for rank {fold_ranks(unseen)}, which ftrun knows nothing about"
        return _finding(state, CulpritKind.UNKNOWN, unseen, words, state.gates)
    if not roots:
        return None
    # Of several that wait nowhere, a rank without a probe may wait unseen.
    roots = [rank for rank in roots if state.views[rank].probed] or roots
    # A rank that polls may wait for one that does not.
    roots = [rank for rank in roots if state.views[rank].polls_s is None] or roots
    hidden = [rank for rank in roots if _may_wait(state.views[rank])]
    if hidden:
        may = "may itself wait in a process group that the probe does not watch"
        words = f"the others wait for rank {fold_ranks(hidden)}, which {may}"
        return _finding(state, CulpritKind.UNKNOWN, hidden, words, state.gates)
    held = [gate for gate in state.gates if not set(roots).isdisjoint(gate.missing)]
    views = [state.views[rank] for rank in roots]
    words = _once(f"{'it has destroyed its process groups; ' * view.left}{what_it_does(view)}" for view in views[:EVIDENCE_MAX])
    blamed = [view.node for view in views if view.process is ProcessState.DISK]
    return _finding(state, CulpritKind.NON_COMM_HANG, roots, words, held, _told(state, held), blamed)


def _told(state: JobState, gates: Iterable[Gate]) -> tuple[str, ...]:
    """Of each gate who waits there for whom."""
    return tuple(f"rank {fold_ranks(gate.waiting)} {_held_by(state, gate)}" for gate in gates)


def _held_by(state: JobState, gate: Gate) -> str:
    return f"waits in {state.operation_of([gate])} for rank {fold_ranks(gate.missing)}"


def _once(sentences: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(sentences))


def _doing(views: Sequence[RankView]) -> str:
    return _once(map(what_it_does, views[:EVIDENCE_MAX]))


def _may_wait(view: RankView) -> bool:
    return view.hidden_groups > 0 and view.process not in (ProcessState.STOPPED, ProcessState.EXITED, ProcessState.DISK)


def _not_come(state: JobState) -> Culprit | None:
    """Ranks that wait nowhere, while others wait for somebody to come to where a group is made, or to a store, or poll.

    What is polled for may be nobody's in the job; so those that poll are believed to wait for the others only where they are
    no fewer than these, and every rank has a probe: a driver that polls its workers (Ray) has none beside it.
    """
    free = [view for view in state.free if not view.left and view.rank not in state.waiting]
    poll = [view for view in free if view.polls_s is not None]
    here, absent = sorted(state.meeting), [view for view in free if view.polls_s is None] or poll
    if not here and absent is not poll and len(poll) >= len(absent) and all(view.probed for view in free):
        here = [view.rank for view in poll]
    if not here or not absent:
        return None
    # Of several, one whose place could not be looked at may well wait.
    absent = [view for view in absent if not _may_wait(view)] or absent
    operation = next((stay.operation for rank in here if (stay := state.views[rank].inside)), "a loop that polls")
    words, ranks = _doing(absent), [view.rank for view in absent]
    seen = (f"rank {fold_ranks(here)} waits in {operation}; rank {fold_ranks(ranks)} has not arrived",)
    if any(map(_may_wait, absent)):
        return _finding(state, CulpritKind.UNKNOWN, ranks, words, (), seen, operation=operation)
    blamed = [view.node for view in absent if view.process is ProcessState.DISK]
    return _finding(state, CulpritKind.NON_COMM_HANG, ranks, words, (), seen, blamed, operation=operation)


def _not_served(state: JobState) -> Culprit | None:
    """Ranks that others have called: a thread of theirs is to answer, wherever their own is. Of a chain of calls, its end."""
    called = {rank for rank in state.calls.values() if rank is not None and rank in state.views}
    ends = sorted(called - state.calls.keys()) or sorted(called)
    if not ends:
        return None
    seen = tuple(f"rank {rank} has called rank {peer}" for rank, peer in state.calls.items() if peer in ends)
    words = _once(f"it does not answer a call: {what_it_does(state.views[rank])}" for rank in ends)
    return _finding(state, CulpritKind.NON_COMM_HANG, ends, words, (), seen, operation=CALL)


def _in_vain(state: JobState) -> Culprit | None:
    """Nobody is left to come to where a group is made, or to a store, and what the others wait for are the ranks there."""
    here = sorted(state.meeting & state.waited_for)
    if not here or any(not view.left and view.rank not in state.waiting for view in state.free):
        return None
    operation = next(stay.operation for rank in here if (stay := state.views[rank].inside))
    held = [gate for gate in state.gates if not set(here).isdisjoint(gate.missing)]
    words = "it waits for ranks that cannot arrive any more"
    return _finding(state, CulpritKind.NON_COMM_HANG, here, words, held, _told(state, held), operation=operation)


def what_it_does(view: RankView) -> str:
    """What a rank that waits for no other is doing, in words."""
    if view.process is ProcessState.EXITED:
        return "it has ended"
    if view.process is ProcessState.DISK:
        return f"uninterruptible wait in {view.wchan or 'the kernel'} (storage or driver)"
    if view.polls_s is not None:
        return f"it only polls, {view.polls_s:.0f} times a second"
    cpu_percent = view.cpu_percent or 0.0
    spinning = view.process is ProcessState.RUNNING or cpu_percent > BUSY_CPU_PERCENT
    if view.gil_held:
        return f"native code holds the interpreter lock ({'computing' if spinning else 'asleep'})"
    if view.main_fresh and spinning:
        return "it runs Python code (an endless loop, or its own work)"
    if view.main_fresh and view.children:
        return "it waits for a child process (data loader?)"
    if spinning:
        return "it runs native code" + (f", or a process below it ({view.children})" if view.children else "")
    asleep = "asleep" if cpu_percent <= IDLE_CPU_PERCENT else "mostly asleep"  # what is left of a step, or of looking at it
    asleep += f" in {view.wchan}" if view.wchan not in ("", "0") else ""
    return asleep if view.probed else f"{asleep} (no probe in it)"


def _left_behind(state: JobState) -> Culprit | None:
    left, ended = state.alive, len(state.views) - len(state.alive)
    if not ended or not left or state.waiting:
        return None
    words = f"{ended} of {len(state.views)} ranks have ended, but not these: {_doing(left)}"
    return _finding(state, CulpritKind.EXIT_HANG, [view.rank for view in left], words)


def _full(state: JobState) -> list[Gate]:
    """The collectives that all members have entered, those first that most ranks wait behind."""
    full = (gate for gate in state.gates if not gate.missing)
    asked = state.waited_for
    return sorted(full, key=lambda gate: (-len(asked.intersection(gate.waiting)), -len(gate.waiting)))


def _not_begun_on_device(state: JobState) -> Culprit | None:
    """Every host enqueued the collective, and some devices have not begun it while it runs on others."""
    for gate in _full(state):
        members = state.groups[gate.key]
        begun = {rank: group.started for rank, group in members.items() if group.started is not None}
        late = sorted(rank for rank, started in begun.items() if started < gate.number)
        if late and len(begun) == len(members) and len(late) < len(begun):
            words = "enqueued, but the device has not begun it: it works on something else"
            return _finding(state, CulpritKind.NON_COMM_HANG, late, words, [gate], (), state.nodes(late))
    return None


def _odd_one_out(state: JobState) -> Culprit | None:
    for gate in _full(state):
        if not gate.number:
            continue
        members = state.groups[gate.key]
        # Of those that completed it as well: the root of a broadcast is through at once.
        names = {rank: name for rank, group in members.items() if (name := group.operation_at(gate.number))}
        kinds = Counter(names.values())
        if len(kinds) > 1:
            (usual, most), (_, next_most) = kinds.most_common(2)
            odd = sorted(names) if most == next_most else sorted(rank for rank, name in names.items() if name != usual)
            seen = tuple(f"rank {fold_ranks(r for r, n in names.items() if n == kind)}: {kind}" for kind in kinds)
            words = f"different operations at the same place (number {gate.number} of group {gate.key})"
            return _finding(state, CulpritKind.NON_COMM_HANG, odd, words, [gate], seen, of_program=True)
    return None


def _none_completes(state: JobState) -> Culprit | None:
    full = _full(state)
    if not full:
        return None
    everyone = len(full[0].waiting) == len(state.groups[full[0].key])
    words = "all members entered it, none completes it" if everyone else "all members entered it, these do not complete it"
    return _by_links(state, sorted(full[0].waiting), words, full[:1])


def _by_links(state: JobState, ranks: Sequence[int], words: str, gates: Sequence[Gate]) -> Culprit:
    """A hang inside communication: at the rank with the most stuck connections, or the two ends of one."""
    stuck = [link for link in stuck_links(state.views.values()) if link.trouble != "unread" or len(link.ends) == 2]
    # Unread data may only show that the reader waits for another rank; retransmitted data was lost.
    strong = [link for link in stuck if link.trouble != "unread"] or stuck
    degree = Counter(rank for ends in {link.ends for link in strong} for rank in ends)
    if not degree:
        return _finding(state, CulpritKind.COMM_HANG, ranks, f"{words}; no connection stands out", gates)
    most = max(degree.values())
    named = sorted(rank for rank, count in degree.items() if count == most)
    seen = tuple(map(str, strong))
    if len(named) > 2:
        return _finding(state, CulpritKind.COMM_HANG, named, f"{words}; connections are stuck in many places", gates, seen)
    told = f"{words}; {'the connection between them is' if len(named) == 2 else 'its connections are'} stuck"
    lost = any(link.trouble != "unread" for link in strong)
    return _finding(state, CulpritKind.COMM_HANG, named, told, gates, seen, state.nodes(named) if lost else ())


def _circle(state: JobState) -> Culprit | None:
    ring = _ring(state)
    if not ring:
        return None
    inside = [view.inside for rank in ring if (view := state.views[rank]).inside and rank in state.peers]
    if len(inside) == len(ring):
        found = _by_links(state, sorted(ring), "point-to-point operations that wait for each other", ())
        # Two that both receive, and no connection is stuck: neither has sent. Longer rings post their sends beforehand.
        if found.blamed or len(ring) != 2 or len({stay.operation for stay in inside if stay}) > 1:
            return found
    gates = [gate for gate in state.gates if set(gate.waiting) & set(ring)]
    words = "they wait for each other in a circle: they issued operations in different orders"
    told = tuple(_waits_for(state, rank) for rank in sorted(ring)[:EVIDENCE_MAX])
    return _finding(state, CulpritKind.NON_COMM_HANG, sorted(ring), words, gates, told, of_program=True)


def _waits_for(state: JobState, rank: int) -> str:
    if rank in state.peers:
        peer, inside = state.peers[rank], state.views[rank].inside
        return f"rank {rank} waits in {inside.operation if inside else 'an operation'} for rank {peer}"
    return "; ".join(f"rank {rank} {_held_by(state, gate)}" for gate in state.gates if rank in gate.waiting)


def _ring(state: JobState) -> list[int]:
    """Ranks that wait for each other in a circle; empty if there is none."""
    from graphlib import CycleError, TopologicalSorter

    # From who waits to whom it waits for. A gate, by its place as text, stands between: its ranks are many.
    order: TopologicalSorter[int | str] = TopologicalSorter()
    waiting = {rank for gate in state.gates for rank in gate.waiting}
    for rank in (*state.peers, *sorted(waiting)):
        order.add(rank)
    for rank, peer in state.peers.items():
        if peer is not None:
            order.add(peer, rank)
    for place, gate in enumerate(state.gates):
        order.add(str(place), *gate.waiting)
        for rank in gate.missing:
            order.add(rank, str(place))
    try:
        order.prepare()
    except CycleError as error:
        return [each for each in error.args[1][1:] if isinstance(each, int)]
    return []


def _all_in_mpi(state: JobState) -> Culprit | None:
    """Every rank waits in MPI, and what they wait for does not come: a lost message, or calls that do not match."""
    calls = {view.rank: view.inside.operation for view in state.alive if view.inside and view.inside.operation.startswith(MPI)}
    if not calls or len(calls) < len(state.alive):
        return None
    kinds = tuple(dict.fromkeys(calls.values()))
    words = f"all ranks wait in {', '.join(kinds[:EVIDENCE_MAX])}, and none makes progress"
    return replace(_by_links(state, sorted(calls), words, ()), operation=kinds[0])


def _nobody_waits(state: JobState) -> Culprit | None:
    """All ranks are in their own code, or nothing shows where they are."""
    if state.peers:
        return _by_links(state, sorted(state.peers), "all ranks are inside point-to-point communication", ())
    alive = state.alive
    if not alive:
        return None
    if deep := [view for view in alive if view.process is ProcessState.DISK]:
        words, nodes = _once(map(what_it_does, deep)), [view.node for view in deep]
        return _finding(state, CulpritKind.NON_COMM_HANG, [view.rank for view in deep], words, blamed=nodes)
    if not any(view.probed for view in alive):
        return _finding(state, CulpritKind.UNKNOWN, (), "no rank has a probe, so ftrun cannot tell who waits for whom")
    told = tuple(f"rank {view.rank}: {what_it_does(view)}" for view in alive)
    return _finding(state, CulpritKind.UNKNOWN, (), "no rank is inside a collective", evidence=told)


# --- connections


class StuckConnection(Value):
    """A connection that does not deliver from one rank to another. None: that end belongs to no known rank."""

    sender: int | None
    receiver: int | None
    trouble: str
    queued_bytes: int

    @property
    def ends(self) -> frozenset[int]:
        return frozenset(rank for rank in (self.sender, self.receiver) if rank is not None)

    def __str__(self) -> str:
        ends = f"rank {_or_unknown(self.sender)} to rank {_or_unknown(self.receiver)}"
        return f"connection from {ends}: {self.trouble}, {self.queued_bytes} bytes queued"


def _or_unknown(rank: int | None) -> str:
    return "?" if rank is None else str(rank)


def stuck_links(views: Iterable[RankView]) -> Iterator[StuckConnection]:
    """Every stuck connection with both ends, matched by address. A loopback address counts for its own node only."""
    seen = list(views)
    owner = {_place(view, socket.local): view.rank for view in seen for socket in view.sockets}
    for view in seen:
        for socket in view.sockets:
            peer = owner.get(_place(view, socket.remote))
            if socket.trouble == "unread":
                yield StuckConnection(peer, view.rank, socket.trouble, socket.queued_bytes)
            elif socket.trouble:
                yield StuckConnection(view.rank, peer, socket.trouble, socket.queued_bytes)


def _place(view: RankView, address: str) -> str:
    return f"{view.node} {address}" if address.startswith(("127.", "[::1]")) else address


# --- findings


def _finding(
    state: JobState,
    kind: CulpritKind,
    ranks: Sequence[int],
    cause: str,
    gates: Sequence[Gate] = (),
    evidence: Sequence[str] = (),
    blamed: Iterable[str] = (),
    **more: Any,
) -> Culprit:
    """more: fields of the finding that are not at their defaults."""
    operation = state.operation_of(gates) if kind in (CulpritKind.COMM_HANG, CulpritKind.NON_COMM_HANG) else ""
    told, nodes = tuple(evidence)[:EVIDENCE_MAX], tuple(dict.fromkeys(blamed))
    found = Culprit(kind, tuple(ranks), state.nodes(ranks), operation, cause, Level.WARN, told, nodes)
    return replace(found, **more)

"""What a job's user has left on the node is put on record and cleared away, while Slurm has no other job of that user here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from ftslurm.errors import FtslurmError
from ftslurm.hooks.hook_inputs import JobFacts, Memory, Unfinished, drain
from ftslurm.model.exits import Process
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.text import counted
from ftslurm.model.values import Value, replace
from ftslurm.policies import node as rules
from ftslurm.policies.node import ROOT, LeftoversOf, NodeFinding, NodeHealth, NodeJob, one_line
from ftslurm.slurm.cli_client import SlurmAdmin
from ftslurm.system import processes as procs
from ftslurm.system import remains

MAX_LISTED = 200
SLURM_USERS = "the user is SlurmUser, whose daemons may run here"
USERS_DOING = "some stay: processes here wait for a file system or memory that a user's program serves, or are frozen"
# Between two looks for processes that others of the user's have started meanwhile.
AGAIN_S = 0.2
# Until it is believed that nothing is left: what forks and ends all the time may pass a look by.
LOOKS = 3
# Of jobs, that are held in one go; each takes half a second at the most.
MAX_GROUPS = 40
# For those that were killed to be gone.
REAPED_S = 0.5


class Left(Value):
    """By the job's user on this node, when the job had ended."""

    processes: tuple[Process, ...]
    files: tuple[remains.File, ...]
    segments: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.processes or self.files or self.segments)

    def __str__(self) -> str:
        files = counted(len(self.files), "file")
        if len(self.files) >= remains.MAX_FILES:
            files = f"{len(self.files)} or more files"
        of_memory = counted(len(self.segments), "segment of shared memory", "segments of shared memory")
        return f"{counted(len(self.processes), 'process', 'processes')}, {files} and {of_memory}"


class Case(Value):
    """Whose leftovers, and of which job. untouchable: why nothing of the user may be touched now; empty if it may."""

    job: str
    whose: LeftoversOf
    node: str
    untouchable: Callable[[], str]

    @property
    def user_id(self) -> int:
        return self.whose.user_id


def clear_leftovers(settings: HookSettings, facts: JobFacts, admin: SlurmAdmin) -> str:
    """What came of it. Raises: FtslurmError, OSError where a node that cannot be cleaned could not be drained."""
    if not settings.leftovers or facts.user_id < settings.first_user_id:
        return "leftovers are not looked for"
    deadline = time.monotonic() + settings.leftovers_limit_s
    memory = Memory(settings.state, facts.node)
    whose, left = left_by(facts.user_id, admin)
    if not left:
        forget_unfinished(memory, facts.user_id)
        return "nothing was left"
    case = Case(str(facts.job), whose, facts.node, lambda: _untouchable(admin, facts.node, facts.user_id, facts.job.number))
    # For the Prologs that come after us. Already now: we may be cut off.
    owed = Unfinished(case.user_id, case.job)
    memory.alter(lambda known: replace(known, unfinished=(*known.unfinished, owed)))
    # Only now: slurmctld would be asked by every node of every job that ends.
    if why := case.untouchable():
        return f"{left}, which stay: {why}"
    stuck, why = _clear(settings, memory, case, left, deadline)
    if stuck:
        return _drained(facts, admin, memory, stuck)
    return f"{left} were left and {why or 'are gone'}"


def _clear(settings: HookSettings, memory: Memory, case: Case, left: Left, deadline: float) -> tuple[tuple[Process, ...], str]:
    """Record what is left, and clear it away. Gives processes that could not be ended; else why something stays, or nothing."""
    with suppress(FtslurmError, OSError):  # without a record they are cleared away all the same
        memory.keep_evidence(f"{case.job}.{case.node}.txt", _evidence(case, left))
    stuck, why = _end(settings, case, left.processes, deadline)
    if not stuck and not (why := why or _clear_memory(case, left, deadline)):
        forget_unfinished(memory, case.user_id)
    return stuck, why


def forget_unfinished(memory: Memory, user_id: int) -> None:
    """Nothing of the user's is left any more."""
    memory.alter(lambda known: replace(known, unfinished=tuple(one for one in known.unfinished if one.user_id != user_id)))


def left_by(user_id: int, admin: SlurmAdmin) -> tuple[LeftoversOf, Left]:
    """Slurm is asked who SlurmUser is only where something is left. A user who is logged in here keeps the shared memory."""
    whose = LeftoversOf(user_id)
    processes, left = _look_for(whose)
    if left:
        whose = _with_slurm_user(whose, admin)
        left = rules.leftover_processes(processes, whose)
    if rules.is_logged_in(processes, user_id):
        return whose, Left(left, (), ())
    return whose, Left(left, remains.files_of(user_id), remains.segments_of(user_id))


def _with_slurm_user(whose: LeftoversOf, admin: SlurmAdmin) -> LeftoversOf:
    """Without Slurm's answer nothing is touched (Case.untouchable)."""
    with suppress(FtslurmError):
        if (slurm_user := admin.slurm_user()) is not None:
            return replace(whose, keepers=ROOT | {slurm_user})
    return whose


def _look_for(whose: LeftoversOf) -> tuple[Mapping[int, Process], tuple[Process, ...]]:
    """All processes, and what of the user's is left among them: nothing, if several looks find nothing."""
    for _ in range(LOOKS):
        processes = procs.all_processes()
        if left := rules.leftover_processes(processes, whose):
            break
    return processes, left


def _untouchable(admin: SlurmAdmin, node: str, user_id: int, number: int = 0) -> str:
    """Why nothing of the user may be touched now; empty if it may. number: of the job whose Epilog this is. Without one a job
    that is cleaned up counts too: its Epilog is at it."""
    try:
        if busy := rules.others_of_user([NodeJob(*job) for job in admin.jobs_on(node)], number, user_id):
            return f"job {busy[0].number} of the same user is here"
        return SLURM_USERS if admin.slurm_user() == user_id else ""
    except FtslurmError as error:
        return str(error)


def _end(settings: HookSettings, case: Case, doomed: tuple[Process, ...], deadline: float) -> tuple[tuple[Process, ...], str]:
    """End processes until a look finds none; gives those that cannot be ended, or why others stay.

    Only what was sent SIGKILL and stays in uninterruptible sleep cannot be ended, if no user can have caused that sleep. Any
    other had no time yet, is new, or is held by one who traces it: a user can cause that, and drains no node by it.
    """
    rest_s = max(deadline - time.monotonic(), 0.0)
    procs.end_processes(doomed, min(settings.kill_grace_s, rest_s), 0.0)
    killed: dict[tuple[int, float], float] = {}  # when it was sent SIGKILL for the first time
    new, aborted = True, False
    while True:
        if new and (why := case.untouchable()):  # a job may have begun since
            return (), f"not all are gone: {why}"
        left = _end_at_one_stroke(case.whose) if new else rules.leftover_processes(procs.all_processes(), case.whose)
        now = time.monotonic()
        new = any((one.pid, one.started) not in killed for one in left)
        for one in left:
            killed.setdefault((one.pid, one.started), now)
        if left and not new and not aborted:  # they outlive SIGKILL so far
            remains.abort_fuse(case.user_id, (one.pid for one in left), rules.is_logged_in(procs.all_processes(), case.user_id))
            aborted = True
        had_time = [one for one in left if now - killed[one.pid, one.started] >= settings.kill_wait_s]
        if stuck := procs.stuck_among(had_time):
            return ((), USERS_DOING) if remains.are_users_doing(procs.all_processes()) else (stuck, "")
        if not left and not _look_for(case.whose)[1]:
            return (), ""
        new = new or not left
        if now >= deadline:
            return (), f"{len(left)} processes are still there, of which none is proven to outlive SIGKILL"
        time.sleep(AGAIN_S)


def _end_at_one_stroke(whose: LeftoversOf) -> tuple[Process, ...]:
    """All that is the user's stands still first, so that nothing can fork; then the leftovers are killed, and what is spared
    goes on. Gives those that are there a moment later.

    Nothing is counted before they stand still: on a busy node many that fork all the time make each look a long one.
    """
    stood = procs.stopped_processes()
    procs.signal_all_of(whose.user_id, SIGSTOP)  # where that cannot be done, those are killed that are seen
    _end_in_groups(whose)
    still = procs.all_processes()
    left = rules.leftover_processes(still, whose)
    spared = rules.spared_processes(still, whose)
    # Somebody else in their session may tell them to go on (kill(2), SIGCONT), so not one by one where none is spared.
    if not left or spared or not procs.signal_all_of(whose.user_id, SIGKILL):
        for one in left:
            procs.signal_process(one, SIGKILL)
    # Children first: a shell that finds one stopped would take it for a job that its user has put aside.
    for one in sorted(spared, key=lambda one: (one.started, one.pid), reverse=True):
        if (one.pid, one.started) not in stood:
            procs.signal_process(one, SIGCONT)
    until = time.monotonic() + REAPED_S
    while (left := rules.leftover_processes(procs.all_processes(), whose)) and time.monotonic() < until:
        time.sleep(REAPED_S / 10)
    return left


def _end_in_groups(whose: LeftoversOf) -> None:
    """Kill all in each cgroup of a job that holds nothing but leftovers: frozen, they cannot fork, and no signal wakes them."""
    ended: set[Path] = set()
    tried: set[Path] = set()
    for one in rules.leftover_processes(procs.all_processes(), whose):
        for group in remains.job_groups(one.pid):
            if ended & {group, *group.parents}:
                break
            if group not in tried and len(tried) < MAX_GROUPS and _end_group(group, whose):
                ended.add(group)
            tried.add(group)


def _end_group(group: Path, whose: LeftoversOf) -> bool:
    """Gives whether all in it were killed, as they stood still."""
    with suppress(OSError):
        if not rules.may_stand_still(remains.members(group), procs.all_processes(), whose):
            return False
        with remains.standing_still(group) as still:
            pids, processes = remains.members(group), procs.all_processes()
            if not still or not rules.may_end_all(pids, processes, whose):
                return False
            for pid in pids:
                procs.signal_process(processes[pid], SIGKILL)
            return True
    return False


def _clear_memory(case: Case, left: Left, deadline: float) -> str:
    """Of what the first look found, and of what it had no room for; why something stays, or nothing. A job may have begun, or
    somebody come, meanwhile."""
    files, segments = left.files, left.segments
    while files or segments:
        if why := case.untouchable():
            return f"the shared memory stays: {why}"
        if rules.is_logged_in(procs.all_processes(), case.user_id):
            return "the shared memory stays: the user is logged in"
        kept = len(files) - remains.remove_files(files, case.user_id, deadline)
        kept += len(segments) - remains.remove_segments(segments, case.user_id, deadline)
        if kept:
            return f"{kept} pieces of shared memory could not be removed"
        # One look shows no more of them than that: then there may be others.
        files, segments = remains.files_of(case.user_id) if len(files) >= remains.MAX_FILES else (), ()
    return ""


def _evidence(case: Case, left: Left) -> str:
    head = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} job {case.job} of user {case.user_id} left {left}\n"
    return head + "".join(f"  {line}\n" for line in islice(_lines(left), MAX_LISTED))


def _lines(left: Left) -> Iterator[str]:
    commands = procs.commands_of(one.pid for one in left.processes[:MAX_LISTED])
    for one in left.processes:
        what = one_line(f"({one.name}) {commands.get(one.pid, '')}")
        yield f"process {one.pid} {one.state} {one.started:.0f} s after the boot: {what}"
    for file in left.files:
        yield f"shared memory {one_line(file.name)}"
    for number in left.segments:
        yield f"segment {number}"


def _drained(facts: JobFacts, admin: SlurmAdmin, memory: Memory, stuck: tuple[Process, ...]) -> str:
    """Drain the node: nothing may start while these processes stay. The health check undrains it once they have gone."""
    few = stuck[:MAX_LISTED]
    what = one_line(_outliving(few, str(facts.job)))
    memory.alter(lambda known: replace(known, stuck=(*known.stuck, *few), drained=True))
    return f"{what}: {drain(admin, facts.node, rules.drain_reason(rules.judge([NodeFinding('leftover', NodeHealth.BAD, what)])))}"


def _outliving(stuck: tuple[Process, ...], job: str) -> str:
    return "; ".join(f"process {one.pid} ({one.name}) of job {job} outlives SIGKILL" for one in stuck)


# --- for the Prolog: what an Epilog could not see to its end is tried again, while Slurm has no job of that user on the node

# A job waits for us, and a slurmctld that is well answers at once.
REQUEST_S = 3.0


class Tried(Value):
    """findings: what stays. stuck: processes that outlived SIGKILL."""

    findings: tuple[NodeFinding, ...] = ()
    stuck: tuple[Process, ...] = ()


def try_again(settings: HookSettings, node: str, memory: Memory, owed: tuple[Unfinished, ...], deadline: float) -> Tried:
    """Only a process that outlives SIGKILL is BAD. deadline: of time.monotonic(); what finds no time is the next Prolog's."""
    findings: list[NodeFinding] = []
    stuck: list[Process] = []
    for one in owed:
        if time.monotonic() >= deadline:  # with a lock that stays each would be waited for
            break
        if settings.leftovers and one.user_id >= settings.first_user_id:
            tried = _again(settings, node, memory, one, deadline)
            findings += tried.findings
            stuck += tried.stuck
    return Tried(tuple(findings), tuple(stuck))


def _again(settings: HookSettings, node: str, memory: Memory, one: Unfinished, deadline: float) -> Tried:
    request_s = min(settings.slurm_timeout_s, REQUEST_S)
    admin = SlurmAdmin(request_s)
    whose, left = left_by(one.user_id, admin)
    if not left:
        forget_unfinished(memory, one.user_id)
        return Tried()
    if deadline - time.monotonic() < request_s + settings.kill_grace_s + settings.kill_wait_s:
        return _stays(left, one, "no time was left to clear them away")
    case = Case(one.job, whose, node, lambda: _untouchable(admin, node, one.user_id))
    if why := case.untouchable():
        return _stays(left, one, why)
    ended, why = _clear(settings, memory, case, left, deadline)
    known = {(process.pid, process.started) for process in left.processes}
    stuck = tuple(process for process in ended if (process.pid, process.started) in known)[:MAX_LISTED]
    if stuck:
        return Tried((NodeFinding("leftover", NodeHealth.BAD, _outliving(stuck, one.job)),), stuck)
    if ended or why:  # those that came meanwhile have not had their time
        return _stays(left, one, why or "more came while they were ended")
    return Tried()


def _stays(left: Left, one: Unfinished, why: str) -> Tried:
    return Tried((NodeFinding("leftover", NodeHealth.UNKNOWN, f"{left} of job {one.job} stay: {why}"),))

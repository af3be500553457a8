"""For the Prolog: what an Epilog could not see to its end is tried again, while Slurm has no job of that user on the node."""

from __future__ import annotations

import time

from ftslurm.errors import FtslurmError
from ftslurm.hooks.leftovers import MAX_LISTED, SLURM_USERS, Case, Left, clear, left_by, settled
from ftslurm.hooks.state_file import Memory, Unfinished
from ftslurm.model.exits import Process
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.values import dataclass
from ftslurm.policies.node.health import Finding, NodeHealth
from ftslurm.slurm.admin import SlurmAdmin

# A job waits for us, and a slurmctld that is well answers at once.
REQUEST_S = 3.0


@dataclass(frozen=True, slots=True)
class Tried:
    """findings: what stays. stuck: processes that outlived SIGKILL."""

    findings: tuple[Finding, ...] = ()
    stuck: tuple[Process, ...] = ()


def try_again(settings: HookSettings, node: str, memory: Memory, owed: tuple[Unfinished, ...], deadline: float) -> Tried:
    """Only a process that outlives SIGKILL is BAD. deadline: of time.monotonic(); what finds no time is the next Prolog's."""
    findings: list[Finding] = []
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
        settled(memory, one.user_id)
        return Tried()
    if deadline - time.monotonic() < request_s + settings.kill_grace_s + settings.kill_wait_s:
        return _stays(left, one, "no time was left to clear them away")
    case = Case(one.job, whose, node, lambda: _any_job(admin, node, one.user_id))
    if why := case.untouchable():
        return _stays(left, one, why)
    ended, why = clear(settings, memory, case, left, deadline)
    known = {(process.pid, process.started) for process in left.processes}
    stuck = tuple(process for process in ended if (process.pid, process.started) in known)[:MAX_LISTED]
    if stuck:
        said = "; ".join(f"process {process.pid} ({process.name}) of job {one.job} outlives SIGKILL" for process in stuck)
        return Tried((Finding("leftover", NodeHealth.BAD, said),), stuck)
    if ended or why:  # those that came meanwhile have not had their time
        return _stays(left, one, why or "more came while they were ended")
    return Tried()


def _any_job(admin: SlurmAdmin, node: str, user_id: int) -> str:
    """Why nothing may be touched. A job that is cleaned up counts too: its Epilog is at it."""
    try:
        if numbers := [number for number, owner, _ in admin.jobs_on(node) if owner == user_id]:
            return f"job {numbers[0]} of the same user is here"
        return SLURM_USERS if admin.slurm_user() == user_id else ""
    except FtslurmError as error:
        return str(error)


def _stays(left: Left, one: Unfinished, why: str) -> Tried:
    return Tried((Finding("leftover", NodeHealth.UNKNOWN, f"{left} of job {one.job} stay: {why}"),))

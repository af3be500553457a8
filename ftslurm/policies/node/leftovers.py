"""What a job has left behind on its node, and what of it may be cleared away. Pure.

A user's processes and shared memory are cleared only when Slurm says that no other job of the user is on the node. The
same job again is another one: an Epilog may run twice, and the second time the requeued job may be there already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ftslurm.model.exits import Process
from ftslurm.model.values import dataclass

INIT = 1
ROOT = frozenset({0})
# Slurm's words while a job is cleaned up. Every other is of one that runs, or new to us: SIGNALING and RESIZING run.
ENDING = frozenset({"COMPLETING", "STAGE_OUT"})


@dataclass(frozen=True, slots=True)
class NodeJob:
    """A job that Slurm has on the node. state: Slurm's word (RUNNING, COMPLETING, ...)."""

    number: int
    user_id: int
    state: str


def others_of_user(jobs: Iterable[NodeJob], number: int, user_id: int) -> tuple[NodeJob, ...]:
    """Jobs for whose sake nothing of the user is touched: all but the one whose Epilog this is, while it cleans up."""
    return tuple(job for job in jobs if job.user_id == user_id and not _is_ending(job, number))


def others(jobs: Iterable[NodeJob], number: int) -> tuple[NodeJob, ...]:
    """Anybody's."""
    return tuple(job for job in jobs if not _is_ending(job, number))


def _is_ending(job: NodeJob, number: int) -> bool:
    return job.number == number and job.state in ENDING


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose leftovers are looked for. keepers: users whose processes look after those that they start: root, and SlurmUser once
    it is known."""

    user_id: int
    keepers: frozenset[int] = ROOT


def leftover_processes(processes: Mapping[int, Process], whose: Whose) -> tuple[Process, ...]:
    """The user's that nobody looks after: none of a login or a service, and none that root or SlurmUser has started and still
    waits for. An ordinary user looks after nothing: by a setuid program two users could keep each other's processes alive.

    What escapes from a job becomes a child of init. Below another process of root's are steps (slurmstepd), sessions (sshd,
    su, cron) and what our own scripts do as the user; below one of SlurmUser's what EpilogSlurmctld does by sudo, which
    may leave no process of root's between.
    """
    return tuple(process for process in _of(processes, whose) if not _is_spared(process, processes, whose))


def spared_processes(processes: Mapping[int, Process], whose: Whose) -> tuple[Process, ...]:
    """The user's others."""
    return tuple(process for process in _of(processes, whose) if _is_spared(process, processes, whose))


def may_stand_still(pids: Collection[int], processes: Mapping[int, Process], whose: Whose) -> bool:
    """Are they, as far as they are seen, nothing but what the user has left? pids: 0 is one that cannot be seen."""
    seen = [processes[pid] for pid in pids if pid in processes]
    return 0 not in pids and all(_is_left(one, processes, whose) for one in seen)


def may_end_all(pids: Collection[int], processes: Mapping[int, Process], whose: Whose) -> bool:
    """The same of processes that stand still: then each of them is seen."""
    return may_stand_still(pids, processes, whose) and all(pid in processes for pid in pids)


def _is_left(one: Process, processes: Mapping[int, Process], whose: Whose) -> bool:
    return one.state == "zombie" or (one.user_id == whose.user_id and not _is_spared(one, processes, whose))


def _of(processes: Mapping[int, Process], whose: Whose) -> list[Process]:
    return [process for process in processes.values() if process.user_id == whose.user_id and process.state != "zombie"]


def _is_spared(process: Process, processes: Mapping[int, Process], whose: Whose) -> bool:
    return process.login or process.service or _looked_after(process, processes, whose.keepers)


def is_logged_in(processes: Mapping[int, Process], user_id: int) -> bool:
    """Is the user here in another way than by a job? Whose the shared memory is nobody can tell then."""
    return any(process.login and process.user_id == user_id for process in processes.values())


def _looked_after(process: Process, processes: Mapping[int, Process], keepers: frozenset[int]) -> bool:
    seen: set[int] = set()
    parent = processes.get(process.parent)
    while parent is not None and parent.pid not in seen:
        if parent.user_id in keepers and parent.pid != INIT:
            return True
        seen.add(parent.pid)
        parent = processes.get(parent.parent)
    return False

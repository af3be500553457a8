"""Slurm's Epilog: evidence of what a job left, its processes and shared memory away, chips reset, the site's clean-up.

It may run twice for one job, and late. A user's processes and shared memory are touched only when Slurm says that this
user has no other job here, be it the same one again; without an answer nothing is touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.hooks.chips import reset_idle_chips
from ftslurm.hooks.drains import drain
from ftslurm.hooks.edge import run_hook
from ftslurm.hooks.facts import JobFacts, job_facts
from ftslurm.hooks.look import tool_env
from ftslurm.hooks.memory import Memory
from ftslurm.hooks.owned import cleanup_grace
from ftslurm.model.hook_settings import HookSettings
from ftslurm.model.processes import Process
from ftslurm.policies.health import Finding, NodeHealth, drain_reason, judge, one_line
from ftslurm.policies.leftovers import NodeJob, is_logged_in, leftover_processes, others, others_of_user
from ftslurm.slurm.admin import SlurmAdmin
from ftslurm.system import shared_memory
from ftslurm.system.processes import all_processes, end_processes

MAX_LISTED = 200


@dataclass(frozen=True, slots=True)
class Left:
    """By the job's user on this node, when the job had ended."""

    processes: tuple[Process, ...]
    files: tuple[str, ...]
    segments: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.processes or self.files or self.segments)

    def __str__(self) -> str:
        return f"{len(self.processes)} processes, {len(self.files)} files and {len(self.segments)} segments of shared memory"


def clean(settings: HookSettings, env: Mapping[str, str]) -> tuple[bool, str]:
    """Whatever it finds, the job is not failed for it: it is over. A node that cannot be cleaned is drained."""
    facts = job_facts(env)
    admin = SlurmAdmin(settings.slurm_timeout_s)
    said = [_leftovers(settings, facts, admin)]
    if settings.reset_wait_s and not others(_jobs(admin, facts.node), facts.job.number):
        said += reset_idle_chips(settings, facts.node)
    if settings.cleanup:
        said.append(_site_cleanup(settings, facts, env))
    return True, f"job {facts.job} on {facts.node}: {'; '.join(filter(None, said))}"


def _jobs(admin: SlurmAdmin, node: str) -> tuple[NodeJob, ...]:
    """Raises: SlurmUnavailable, SlurmRefused."""
    return tuple(NodeJob(*job) for job in admin.jobs_on(node))


def _leftovers(settings: HookSettings, facts: JobFacts, admin: SlurmAdmin) -> str:
    if not settings.leftovers or facts.user_id < settings.first_user_id:
        return "leftovers are not looked for"
    left = _left_by(facts.user_id)
    if not left:
        return "nothing was left"
    # Only now: slurmctld would be asked by every node of every job that ends.
    try:
        if busy := others_of_user(_jobs(admin, facts.node), facts.job.number, facts.user_id):
            return f"{left}, which stay: job {busy[0].number} of the same user is here"
    except FtslurmError as error:
        return f"{left}, which stay: {error}"
    memory = Memory(settings.state, facts.node)
    memory.keep_evidence(f"{facts.job}.{facts.node}.txt", _evidence(facts, left))
    stuck = end_processes(left.processes, settings.kill_grace_s, settings.kill_wait_s)
    if stuck:
        return _drained(facts, admin, memory, stuck)
    if left.files or left.segments:
        shared_memory.remove_files(facts.user_id)
        shared_memory.remove_segments(facts.user_id)
    return f"{left} were left and are gone"


def _left_by(user_id: int) -> Left:
    """A user who is logged in here besides keeps the shared memory."""
    processes = all_processes()
    left = leftover_processes(processes, user_id)
    if is_logged_in(processes, user_id):
        return Left(left, (), ())
    return Left(left, shared_memory.files_of(user_id), shared_memory.segments_of(user_id))


def _evidence(facts: JobFacts, left: Left) -> str:
    head = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} job {facts.job} of user {facts.user_id} left {left}\n"
    lines = [f"process {one.pid} {one.state} since {one.started:.0f} {one_line(one.command)}" for one in left.processes]
    lines += [f"shared memory {one_line(name)}" for name in left.files] + [f"segment {number}" for number in left.segments]
    return head + "".join(f"  {line}\n" for line in lines[:MAX_LISTED])


def _drained(facts: JobFacts, admin: SlurmAdmin, memory: Memory, stuck: Sequence[Process]) -> str:
    """Nothing may start anew beside them. The health check undrains the node once they have gone."""
    what = "; ".join(f"process {one.pid} ({one.name}) of job {facts.job} outlives SIGKILL" for one in stuck)
    memory.write(replace(memory.read(), stuck=tuple(stuck), drained=True))
    said = drain(admin, facts.node, drain_reason(judge([Finding("leftover", NodeHealth.BAD, what)])))
    return f"{what}: {said}"


def _site_cleanup(settings: HookSettings, facts: JobFacts, env: Mapping[str, str]) -> str:
    """In a session of its own, so that what is not waited for goes on. Source: ModelArts, fault recovery, grace period."""
    grace_s = cleanup_grace(settings, facts, env)
    config = str(Path(sys.argv[1]))
    argv = [sys.executable, "-I", "-m", "ftslurm.hooks.cleanup", config]
    child_env = {**{name: value for name, value in env.items() if name.startswith("SLURM")}, **tool_env(settings, facts.node)}
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, env=child_env, cwd="/", start_new_session=True)
    try:
        child.wait(None if grace_s < 0 else grace_s)
    except subprocess.TimeoutExpired:
        return f"the site's clean-up goes on in the background after {grace_s:g} s"
    return f"the site's clean-up ended with status {child.returncode}"


def main() -> None:
    run_hook("epilog", os.environ.get("SLURMD_NODENAME", ""), clean)


if __name__ == "__main__":
    main()

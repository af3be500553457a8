"""Slurm's Prolog: is this node fit for a job? If it is proven not to be, the node is drained and the job runs elsewhere.

Slurm drains a node whose Prolog fails, with the reason "Prolog error" unless it is drained already. So it is drained here
first, with a reason that a person can act on. Slurm requeues the job, held unless SchedulerParameters=nohold_on_prolog_fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from ftslurm.errors import FtslurmError
from ftslurm.hooks.hook_inputs import Memory, drain, job_facts, known_now, run_hook
from ftslurm.hooks.leftovers import Tried, try_again
from ftslurm.hooks.node_look import Looked, look_at_node
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.values import replace
from ftslurm.policies.node import NodeHealth, drain_reason, judge
from ftslurm.slurm.cli_client import SlurmAdmin


def check(settings: HookSettings, env: Mapping[str, str]) -> tuple[bool, str]:
    deadline = time.monotonic() + settings.limit_s
    facts = job_facts(env)
    memory, admin = Memory(settings.state, facts.node), SlurmAdmin(settings.slurm_timeout_s)
    known = memory.read()
    looked = look_at_node(settings, facts.node, known_now(admin, facts.node, known))
    verdict = judge(looked.findings)
    if verdict.health is not NodeHealth.BAD and known.unfinished:
        looked = _after(looked, try_again(settings, facts.node, memory, known.unfinished, deadline))
        verdict = judge(looked.findings)
    if verdict.health is not NodeHealth.BAD:
        memory.change(known, looked.remembered)
        return True, f"job {facts.job} may run on {facts.node} ({verdict.health.value}: {verdict.reason})"
    said = _drain(admin, facts.node, drain_reason(verdict, str(facts.job)))
    # Only now: what is remembered of a node that is not drained was taken back.
    with suppress(FtslurmError, OSError):
        memory.change(replace(known, drained=False), replace(looked.remembered, drained=True))
    return False, f"job {facts.job} may not run on {facts.node}: {verdict.reason}; {said}"


def _after(looked: Looked, tried: Tried) -> Looked:
    remembered = replace(looked.remembered, stuck=(*looked.remembered.stuck, *tried.stuck))
    return Looked((*looked.findings, *tried.findings), remembered)


def _drain(admin: SlurmAdmin, node: str, reason: str) -> str:
    """Without an answer Slurm drains it all the same, for our exit status."""
    try:
        return drain(admin, node, reason)
    except FtslurmError as error:
        return f"the reason could not be told to Slurm ({error})"


def main() -> None:
    run_hook("prolog", os.environ.get("SLURMD_NODENAME", ""), check)


if __name__ == "__main__":
    main()

"""Slurm's EpilogSlurmctld: lets a job that is requeued run again soon.

Runs as SlurmUser on the controller's node. Two kinds of jobs concern it, of which both have been requeued:

- A requeue that the job could not finish itself is finished: nodes excluded, start set, released. The ledger is read, and
  Slurm is asked, as the job's owner: whatever stands in it, nothing can be done but what that user may do.
- A job that the Prolog turned away from a bad node need not wait for the 121 s that Slurm adds to each requeue.
  docs/slurm-facts.md: "The 121 seconds", "Prolog, Epilog and TaskProlog".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ftslurm.hooks.hook_inputs import FINISH_LIMIT_S, WATCH_LIMIT_S, JobFacts, ask_owner, job_facts, run_hook
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.policies.node import turned_away
from ftslurm.policies.start_time import elsewhere_in_s
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import JobState
from ftslurm.slurm.parse import node_names
from ftslurm.wrapper.requeue.requeue import slurms_clock, start_when_clean


def _finish(settings: HookSettings, env: Mapping[str, str], later: bool = False) -> tuple[bool, str]:
    """later: there was no slot when slurmctld called, and other jobs wait behind this one."""
    facts = job_facts(env)
    if not settings.finish_requeues or facts.user_id < settings.first_user_id or not facts.restarts:
        return True, f"job {facts.job}: not looked at"
    verb = "finish-at-once" if later else "finish"
    said = start_elsewhere(settings, facts, 0.0 if later else WATCH_LIMIT_S) or ask_owner(verb, facts, FINISH_LIMIT_S)
    return True, f"job {facts.job}: {said or 'nothing to finish'}"


def start_elsewhere(settings: HookSettings, facts: JobFacts, watch_s: float) -> str:
    """For a job that waits, not held, because our Prolog drained a node of it; what was done, or nothing.

    It starts when its nodes are clean. watch_s: for how long that is waited for; 0: not at all, the start is a guess.
    """
    client = SlurmClient(timeout_s=settings.slurm_timeout_s)
    mine = set(node_names(facts.nodes))
    bad = [node.name for node in client.nodes() if node.name in mine and turned_away(node.reason, str(facts.job))]
    if not bad:
        return ""
    view = client.job(facts.job.number)
    if view.state is not JobState.PENDING or view.held:
        return f"turned away from {', '.join(bad)}, and {'held' if view.held else view.state.value}: left alone"
    clock = slurms_clock(client.config())
    if view.completing and watch_s:
        return f"turned away from {', '.join(bad)}: {start_when_clean(client, facts.job.number, watch_s, clock)}"
    in_s = elsewhere_in_s(settings.start_in_s, clean=not view.completing)
    client.start_at(facts.job.number, int(clock() + in_s))
    return f"turned away from {', '.join(bad)}: starts elsewhere in {in_s:g} s"


def main() -> None:
    later = sys.argv[3:] == ["later"]
    run_hook("epilog_slurmctld", "", lambda settings, env: _finish(settings, env, later))


if __name__ == "__main__":
    main()

"""Slurm's EpilogSlurmctld: finishes a requeue that the job could not finish itself, so that it runs again soon.

Runs as SlurmUser on the controller's node, for every job that ends. The ledger is read, and Slurm is asked, as the job's
owner: whatever stands in it, nothing can be done but what that user may do.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.hooks.edge import run_hook
from ftslurm.hooks.facts import job_facts
from ftslurm.hooks.owned import FINISH_TIMEOUT_S, ask_owner
from ftslurm.model.hook_settings import HookSettings


def finish(settings: HookSettings, env: Mapping[str, str]) -> tuple[bool, str]:
    facts = job_facts(env)
    if not settings.finish_requeues or facts.user_id < settings.first_user_id:
        return True, f"job {facts.job}: not looked at"
    said = ask_owner("finish", facts, env, FINISH_TIMEOUT_S + settings.finish_after_s)
    return True, f"job {facts.job}: {said or 'nothing to finish'}"


def main() -> None:
    run_hook("epilog_slurmctld", "", finish)


if __name__ == "__main__":
    main()

"""What root or SlurmUser wants of a job's ledger: asked of a program that runs as the job's owner (hooks/as_owner.py)."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.hooks.hook_inputs import JobFacts
from ftslurm.hooks.install.scripts import LIMITS_S
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.policies.node.health import one_line
from ftslurm.system.owner import PATH, owner_of, run_as

# Of one who finishes a requeue: job, require, exclude, start, job, release, and the one that sees that it is held.
REQUESTS = 7
# For the nodes to be clean, which sets the start (as_owner.py).
WATCH_LIMIT_S = 600.0
# Before the installed script cuts us off: for what we ask ourselves, and to say what came of it.
SPARE_S = 20.0


def finish_timeout_s(settings: HookSettings) -> float:
    wanted_s = settings.finish_after_s + REQUESTS * settings.slurm_timeout_s + WATCH_LIMIT_S
    return min(wanted_s, LIMITS_S["epilog_slurmctld"] - SPARE_S)


def ask_owner(verb: str, facts: JobFacts, timeout_s: float) -> str:
    """The one line that the program printed; empty if it had nothing to say. Raises: UnknownJob, CommandMissing."""
    program = str(Path(sys.argv[2]) / "as_owner")
    argv = [program, verb, str(facts.job.number), str(facts.job), facts.cluster]
    done = run_as(owner_of(facts.user_id), argv, timeout_s, {"PATH": PATH, "LANG": "C.UTF-8"})
    return one_line(done.stdout if done.status is not None else f"{done.stdout} cut off after {timeout_s:g} s")


def cleanup_grace(settings: HookSettings, facts: JobFacts) -> float:
    """Seconds that the job wants a clean-up to be waited for; -1, without end, if nothing is known.

    The ledger is the user's: a clean-up that has not ended when the next job begins is the site's to allow.
    """
    if not settings.cleanup_grace_of_job or facts.user_id < settings.first_user_id:
        return -1.0
    try:
        grace_s = float(ask_owner("grace", facts, settings.slurm_timeout_s))
    except (FtslurmError, ValueError):
        return -1.0
    return grace_s if math.isfinite(grace_s) and grace_s >= 0 else -1.0

"""Slurm's Epilog: evidence of what a job left, its processes and shared memory away, the site's clean-up, chips reset.

It may run twice for one job, and late. A user's processes and shared memory are touched only when Slurm says that this
user has no other job here, be it the same one again; without an answer nothing is touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from ftslurm.hooks.chips import reset_idle_chips
from ftslurm.hooks.guarded import run_hook
from ftslurm.hooks.hook_inputs import JobFacts, job_facts
from ftslurm.hooks.install.scripts import LIMITS_S
from ftslurm.hooks.leftovers import clear_leftovers
from ftslurm.hooks.node_look import tool_env
from ftslurm.hooks.owner_queries import cleanup_grace
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.text import visible
from ftslurm.slurm.admin import SlurmAdmin

# Before the installed script cuts us off, so that what was done can be said.
SPARE_S = 15.0


def clean(settings: HookSettings, env: Mapping[str, str]) -> tuple[bool, str]:
    """Whatever it finds, the job is not failed for it: it is over. A node that cannot be cleaned is drained."""
    deadline = time.monotonic() + LIMITS_S["epilog"] - SPARE_S
    facts = job_facts(env)
    admin = SlurmAdmin(settings.slurm_timeout_s)
    parts: dict[str, Callable[[], str]] = {
        "leftovers": lambda: clear_leftovers(settings, facts, admin),
        "clean-up": lambda: _site_cleanup(settings, facts, env) if settings.cleanup else "",
        # The last: resets take minutes each, and get what the rest has left of the time.
        "chips": lambda: "; ".join(reset_idle_chips(settings, facts, admin, deadline)) if settings.reset_wait_s else "",
    }
    said = [_try(name, part) for name, part in parts.items()]
    return True, f"job {facts.job} on {facts.node}: {'; '.join(filter(None, said))}"


def _try(name: str, part: Callable[[], str]) -> str:
    """What goes wrong in one part keeps no other from being done."""
    try:
        return part()
    except Exception as error:
        print(visible(traceback.format_exc(), lines=True), file=sys.stderr)
        return f"{name}: not done: {error}"


def _site_cleanup(settings: HookSettings, facts: JobFacts, env: Mapping[str, str]) -> str:
    """In a session of its own, so that what is not waited for goes on. Source: ModelArts, fault recovery, grace period."""
    grace_s = cleanup_grace(settings, facts)
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

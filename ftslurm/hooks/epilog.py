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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.devices.probe import choose_probes
from ftslurm.errors import FtslurmError
from ftslurm.hooks.hook_inputs import JobFacts, Memory, cleanup_grace, job_facts, run_hook
from ftslurm.hooks.leftovers import clear_leftovers
from ftslurm.hooks.node_look import tool_env
from ftslurm.hooks.scripts import LIMITS_S
from ftslurm.model.devices import DeviceHealth, DeviceReport, FaultClass
from ftslurm.model.ports import Probe
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.text import visible
from ftslurm.policies.node import NodeJob, one_line, others
from ftslurm.slurm.cli_client import SlurmAdmin
from ftslurm.system.commands import run

# A chip whose fault clears by itself does so while the job's own restart waits for it; here it has had its time.
SELF_HEAL_WAIT_S = 1.0


def reset_idle_chips(settings: HookSettings, facts: JobFacts, admin: SlurmAdmin, deadline: float) -> list[str]:
    """What was done, a sentence a chip. Each probe itself looks again for processes on the chip and its linked ones.

    deadline: of time.monotonic(), for all of them. Slurm is asked before each: where jobs share nodes one may begin meanwhile.
    """
    said = []
    for probe, report, codes in _resettable(settings, facts.node):
        chip = f"{probe.kind} {report.device} with {', '.join(codes)}"
        if why := _why_no_reset(settings, facts, admin, deadline):
            said.append(f"{chip}: not reset: {why}")
            continue
        with suppress(FtslurmError, OSError):  # without a record it is reset all the same
            Memory(settings.state, facts.node).keep_evidence(f"{facts.job}.{facts.node}.txt", _evidence(facts, report))
        healed = probe.heal(report.device, report.codes, True, SELF_HEAL_WAIT_S, settings.reset_wait_s)
        said.append(f"{chip}: {healed.how}")
    return said


def _resettable(settings: HookSettings, node: str) -> Iterator[tuple[Probe, DeviceReport, list[str]]]:
    """Chips with a fault that a reset may mend, and the codes that say so."""
    env = tool_env(settings, node)
    os.environ.update(env)  # the probes' helpers inherit ours
    meaning = fault_lookup((), settings.catalogs, only_roots=True)
    for probe in choose_probes(env, run):
        for report in probe.read(settings.device_timeout_s).reports:
            said_of = {code: meaning(report.kind, code, report.severity).fault_class for code in report.codes}
            codes = [code for code, fault_class in said_of.items() if fault_class is FaultClass.SELF_HEALING]
            if report.health is DeviceHealth.FAULTY and codes:
                yield probe, report, codes


def _why_no_reset(settings: HookSettings, facts: JobFacts, admin: SlurmAdmin, deadline: float) -> str:
    """Why no chip may be reset now, or nothing. One that is begun gets all its time: it is never cut off in the middle."""
    left_s, takes_s = max(deadline - time.monotonic(), 0.0), SELF_HEAL_WAIT_S + settings.reset_wait_s
    if left_s < takes_s:
        return f"it may take {takes_s:.0f} s, and the Epilog has {left_s:.0f} s left"
    try:
        busy = others([NodeJob(*job) for job in admin.jobs_on(facts.node)], facts.job.number)
    except FtslurmError as error:
        return str(error)
    return f"job {busy[0].number} is here" if busy else ""


def _evidence(facts: JobFacts, report: DeviceReport) -> str:
    """A reset takes the codes away."""
    what = one_line(f"{report.kind} {report.device} shows {', '.join(report.codes)} ({report.severity.value}) {report.detail}")
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} before its reset, after job {facts.job}: {what}\n"


# --- slurm's Epilog: evidence of what a job left, its processes and shared memory away, the site's clean-up, chips reset

# Before the installed script cuts us off, so that what was done can be said.
SPARE_S = 15.0


def clean(settings: HookSettings, env: Mapping[str, str]) -> tuple[bool, str]:
    """Clean up after a job. Nothing that is found fails the job, which is over; a node that cannot be cleaned is drained."""
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

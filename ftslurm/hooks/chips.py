"""Resets chips whose fault should have cleared with the job and has not, on a node where nobody computes any more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.devices.probe import choose_probes
from ftslurm.errors import FtslurmError
from ftslurm.hooks.hook_inputs import JobFacts
from ftslurm.hooks.node_look import tool_env
from ftslurm.hooks.state_file import Memory
from ftslurm.model.devices import DeviceHealth, DeviceReport, FaultClass
from ftslurm.model.ports import Probe
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.policies.node.health import one_line
from ftslurm.policies.node.leftovers import NodeJob, others
from ftslurm.slurm.admin import SlurmAdmin
from ftslurm.system.commands import run

# A chip whose fault clears by itself does so while the job's own restart waits for it; here it has had its time.
SELF_HEAL_WAIT_S = 1.0


def reset_idle_chips(settings: HookSettings, facts: JobFacts, admin: SlurmAdmin, deadline: float) -> list[str]:
    """What was done, a sentence a chip. Each probe itself looks again for processes on the chip and its linked ones.

    deadline: of time.monotonic(), for all of them. Slurm is asked before each: where jobs share nodes one may begin meanwhile.
    """
    said = []
    for probe, report, codes in _meant(settings, facts.node):
        chip = f"{probe.kind} {report.device} with {', '.join(codes)}"
        if why := _kept_from(settings, facts, admin, deadline):
            said.append(f"{chip}: not reset: {why}")
            continue
        with suppress(FtslurmError, OSError):  # without a record it is reset all the same
            Memory(settings.state, facts.node).keep_evidence(f"{facts.job}.{facts.node}.txt", _evidence(facts, report))
        healed = probe.heal(report.device, report.codes, True, SELF_HEAL_WAIT_S, settings.reset_wait_s)
        said.append(f"{chip}: {healed.how}")
    return said


def _meant(settings: HookSettings, node: str) -> Iterator[tuple[Probe, DeviceReport, list[str]]]:
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


def _kept_from(settings: HookSettings, facts: JobFacts, admin: SlurmAdmin, deadline: float) -> str:
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

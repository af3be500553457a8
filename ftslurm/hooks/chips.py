"""Resets chips whose fault should have cleared with the job and has not, on a node where nobody computes any more."""

from __future__ import annotations

import os

from ftslurm.devices.probe import choose_probes
from ftslurm.hooks.look import tool_env
from ftslurm.model.devices import DeviceHealth, FaultClass
from ftslurm.model.hook_settings import HookSettings
from ftslurm.system.commands import run
from ftslurm.wrapper.meanings import lazy_meaning

# A chip whose fault clears by itself does so while the job's own restart waits for it; here it has had its time.
SELF_HEAL_WAIT_S = 1.0


def reset_idle_chips(settings: HookSettings, node: str) -> list[str]:
    """What was done, a sentence a chip. Each probe itself looks again for processes on the chip and its linked ones."""
    env = tool_env(settings, node)
    os.environ.update(env)  # the probes' helpers inherit ours
    meaning = lazy_meaning((), settings.catalogs)
    said = []
    for probe in choose_probes(env, run):
        for report in probe.read(settings.device_timeout_s).reports:
            said_of = {code: meaning(report.kind, code, report.severity).fault_class for code in report.codes}
            meant = [code for code, fault_class in said_of.items() if fault_class is FaultClass.SELF_HEALING]
            if report.health is DeviceHealth.FAULTY and meant:
                healed = probe.heal(report.device, report.codes, True, SELF_HEAL_WAIT_S, settings.reset_wait_s)
                said.append(f"{probe.kind} {report.device} with {', '.join(meant)}: {healed.how}")
    return said

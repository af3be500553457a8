"""Which probes a node has. What a probe is, model/ports.py says."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model.ports import Probe
from ftslurm.system.commands import Runner


def choose_probes(env: Mapping[str, str], run: Runner) -> tuple[Probe, ...]:
    """The probes whose tool is on this node; none is a valid answer."""
    from ftslurm.devices.amd.probe import AmdProbe
    from ftslurm.devices.ascend.probe import AscendProbe
    from ftslurm.devices.nvidia.probe import NvidiaProbe

    kinds: tuple[Probe, ...] = (AscendProbe(run, env), NvidiaProbe(run, env), AmdProbe(run, env))
    return tuple(probe for probe in kinds if probe.present())

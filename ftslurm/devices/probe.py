"""One protocol for every kind of accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ftslurm.model.devices import HealResult, ProbeAnswer, Utilisation
from ftslurm.system.commands import Runner


class Probe(Protocol):
    """Reads the health of one kind of device on this node, and says so when it cannot."""

    kind: str

    def present(self) -> bool:
        """Is the tool of this kind here? Cheap: no device is touched."""

    def read(self, timeout_s: float) -> ProbeAnswer:
        """Look at every chip. Never raises for a sick tool: the answer carries the error."""

    def utilisation(self, timeout_s: float) -> tuple[Utilisation, ...]:
        """How busy every device is, within `timeout_s`, named as in `read`. Never raises.

        A device of which the tool tells nothing has None in every field; one that is not listed is left out. An empty
        tuple: no answer (what is wrong is for `read` to say).
        """

    def heal(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        """Wait up to `wait_s` for `codes` to clear, then, if `may_reset`, reset and look again.

        Called only when no process of the job is left on the node. Blocks; the caller bounds it by the two waits.
        """


def choose_probes(env: Mapping[str, str], run: Runner) -> tuple[Probe, ...]:
    """The probes whose tool is on this node; none is a valid answer."""
    from ftslurm.devices.amd.probe import AmdProbe
    from ftslurm.devices.ascend.probe import AscendProbe
    from ftslurm.devices.nvidia.probe import NvidiaProbe

    kinds: tuple[Probe, ...] = (AscendProbe(run, env), NvidiaProbe(run, env), AmdProbe(run, env))
    return tuple(probe for probe in kinds if probe.present())

"""One protocol for every kind of accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ftslurm.model.devices import HealResult, ProbeAnswer
from ftslurm.system.commands import Runner


class Probe(Protocol):
    """Reads the health of one kind of device on this node, and says so when it cannot."""

    kind: str

    def present(self) -> bool:
        """Is the tool of this kind here? Cheap: no device is touched."""

    def read(self, timeout_s: float) -> ProbeAnswer:
        """Look at every chip. Never raises for a sick tool: the answer carries the error."""

    def heal(
        self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float
    ) -> HealResult:
        """Wait up to `wait_s` for `codes` to clear, then, if `may_reset`, reset and look again.

        Called only when no process of the job is left on the node. Blocks; the caller bounds it by the two waits.
        """


def choose_probes(env: Mapping[str, str], run: Runner) -> tuple[Probe, ...]:
    """The probes whose tool is on this node; none is a valid answer."""
    from ftslurm.devices.ascend import AscendProbe

    return tuple(probe for probe in (AscendProbe(run, env),) if probe.present())

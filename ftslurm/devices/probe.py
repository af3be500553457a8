"""Which probes a node has. What a probe is, model/ports.py says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from ftslurm.model.devices import HealResult, ProbeAnswer, Utilisation
from ftslurm.model.ports import Probe
from ftslurm.system.commands import Runner
from ftslurm.system.plugins import DEVICES, load

T = TypeVar("T")


class SafeProbe:
    """A vendor's probe, whose bugs end neither the watch over other kinds nor a job: their trace goes to stderr."""

    def __init__(self, kind: str, probe: Probe) -> None:
        self.kind, self._probe = kind, probe

    def present(self) -> bool:
        return self._probe.present()

    def missing_extra(self) -> str:
        """The extra of ftslurm without which nothing can be read here; empty if nothing is missing."""
        return str(getattr(self._probe, "missing_extra", str)())

    def read(self, timeout_s: float) -> ProbeAnswer:
        return self._safe(
            ProbeAnswer, lambda: self._probe.read(timeout_s),
            lambda why: ProbeAnswer(error=f"the look at the {self.kind} devices failed: {why}"),
        )  # fmt: skip

    def utilisation(self, timeout_s: float) -> tuple[Utilisation, ...]:
        return self._safe(tuple, lambda: self._probe.utilisation(timeout_s), lambda why: ())

    def heal(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        return self._safe(
            HealResult, lambda: self._probe.heal(device, codes, may_reset, wait_s, reset_wait_s),
            lambda why: HealResult(device, None, f"healing failed: {why}"),
        )  # fmt: skip

    def _safe(self, kind: type[T], ask: Callable[[], T], failed: Callable[[str], T]) -> T:
        try:
            answer = ask()
            if not isinstance(answer, kind):
                raise TypeError(f"{type(answer).__name__} is no {kind.__name__}")
            return answer
        except (Exception, SystemExit) as error:
            # As Python itself does it: its module for that takes 3 ms of each agent's start.
            sys.__excepthook__(type(error), error, error.__traceback__)
            return failed(f"{type(error).__name__}: {error}")


def choose_probes(env: Mapping[str, str], run: Runner) -> tuple[SafeProbe, ...]:
    """The probes whose tool is on this node; none is a valid answer."""
    found = []
    for vendor, made in load(DEVICES):
        try:
            probe = SafeProbe(vendor.name, made(run, env))
            if probe.present():
                found.append(probe)
        except (Exception, SystemExit) as error:  # a plugin may raise whatever it likes
            vendor.leave_out(f"{type(error).__name__}: {error}")
    return tuple(found)

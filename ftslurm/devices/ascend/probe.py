"""Ascend NPUs: by the driver's library where it answers, by the text of npu-smi where not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ftslurm.devices.ascend.chip import KIND, Chip, NoAnswer, by_number
from ftslurm.devices.ascend.dcmi import VARIABLE
from ftslurm.devices.ascend.dcmi_driver import NAME, CameAndWent, Driver
from ftslurm.devices.ascend.heal import Healer
from ftslurm.devices.ascend.tool import TOOL, NpuSmi
from ftslurm.model.devices import DeviceHealth, HealResult, ProbeAnswer, Utilisation
from ftslurm.system.commands import Runner

# Of the time for a look, what the library may take; the rest is for the tool.
LIBRARY_SHARE = 0.5
# There is one on every node whose driver is loaded; libraries lie in images for other nodes too.
_DRIVER_LOADED = Path("/dev/davinci_manager")


class AscendProbe:
    """Reads the NPUs of this node and heals them.

    Remembers the chips it has seen: one that is no longer listed is reported as unknown, never passed over.
    run, sleep and clock are arguments so that tests need no chip and no waiting; clock gives seconds, monotonic.
    """

    kind = KIND

    def __init__(
        self,
        run: Runner,
        env: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._tool = NpuSmi(run, env, clock)
        self._driver = Driver(env, clock)
        self._chosen = VARIABLE in env
        self._healer = Healer(self._look_anew, self._tool, self._driver, sleep, clock)
        self._known: frozenset[str] = frozenset()

    def present(self) -> bool:
        return self._tool.present() or (self._driver.present() and (self._chosen or _DRIVER_LOADED.exists()))

    def close(self) -> None:
        """Let go of the devices."""
        self._driver.close()

    def read(self, timeout_s: float) -> ProbeAnswer:
        """All chips within `timeout_s`: one question to the library, or one call of the tool and some more for each chip
        that is not well. A fault that came and went since the last look is shown once, as a code of its chip.

        A chip has one report; several if its codes have different severities, so that each is graded by its own.
        """
        try:
            chips = self._look(self._clock() + timeout_s)
        except NoAnswer as silence:
            return ProbeAnswer(error=str(silence))
        shown = _with_events(chips, self._driver.events())
        return ProbeAnswer(tuple(report for chip in shown for report in chip.reports()))

    def utilisation(self, timeout_s: float) -> tuple[Utilisation, ...]:
        until = self._clock() + timeout_s
        if self._driver.usable():
            try:
                return self._driver.utilisation(self._clock() + LIBRARY_SHARE * timeout_s)
            except NoAnswer:
                pass
        try:
            return self._tool.utilisation(until)
        except NoAnswer:
            return ()

    def heal(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        """As the protocol says.

        On linked servers a reset takes all chips of the node with it. So it is ordered only when there is no process on
        any chip that would be reset; that the job owns them all is for the caller to know, and to say by `may_reset`.
        """
        started = self._clock()
        finding = self._healer.wait(device, codes, wait_s)
        if finding.holds:
            self._driver.forget(device, codes)
            return HealResult(device, True, f"healed by itself after {self._clock() - started:.0f} s")
        if not may_reset:
            return HealResult(device, finding.holds, f"after {wait_s:g} s: {finding.why}")
        if device not in self._known:
            # A wrong name must not cost a whole node its chips.
            return HealResult(device, finding.holds, f"not reset: {finding.why}")
        result = self._healer.reset(device, codes, self._known, reset_wait_s)
        if result.healed:
            self._driver.events()  # chips that go down and come up raise events, which are no news
        return result

    # ---- looking

    def _look(self, until: float, closely_at: str = "", anew: bool = False) -> tuple[Chip, ...]:
        """Every chip that is listed or was. anew: the library is to count them again if some are missing.

        Raises: NoAnswer.
        """
        chips, silence = self._by_library(until)
        way = NAME
        if not chips:
            chips, way = self._by_tool(until, closely_at, silence), f"{TOOL} info"
        listed = {chip.device for chip in chips}
        if anew and self._known - listed:
            self._driver.close()
        return (*chips, *self._missing(listed, way))

    def _look_anew(self, until: float, closely_at: str) -> tuple[Chip, ...]:
        return self._look(until, closely_at, anew=True)

    def _by_library(self, until: float) -> tuple[tuple[Chip, ...], str]:
        """No chips if it does not answer, and why."""
        if not self._driver.usable():
            return (), self._driver.why
        try:
            chips = self._driver.look(self._clock() + LIBRARY_SHARE * (until - self._clock()))
        except NoAnswer as silence:
            return (), str(silence)
        self._known |= {chip.device for chip in chips}
        return _counted(chips), ""

    def _by_tool(self, until: float, closely_at: str, silence: str) -> tuple[Chip, ...]:
        try:
            # A broken chip can spoil its own rows and the exit status; with an earlier full look the rest still tells.
            chips, whole = self._tool.look(until, closely_at, forgiving=bool(self._known))
        except NoAnswer as also:
            raise NoAnswer("; ".join(part for part in (str(also), silence) if part)) from None
        if whole:
            self._known |= {chip.device for chip in chips}
        return chips

    def _missing(self, listed: set[str], way: str) -> list[Chip]:
        detail = f"not listed by {way} any more: {len(listed)} of {len(self._known | listed)} chips are"
        return [Chip(device, DeviceHealth.UNKNOWN, detail=detail) for device in sorted(self._known - listed, key=by_number)]


def _counted(chips: tuple[Chip, ...]) -> tuple[Chip, ...]:
    """The library lists lost chips too: the others tell people how much is left."""
    answer = f"{sum(chip.health is not DeviceHealth.UNKNOWN for chip in chips)} of {len(chips)} chips answer"
    return tuple(
        replace(chip, detail=f"{chip.detail}; {answer}") if chip.health is DeviceHealth.UNKNOWN else chip for chip in chips
    )


def _with_events(chips: tuple[Chip, ...], events: tuple[CameAndWent, ...]) -> list[Chip]:
    """The chips, with the codes of faults that are over; one that is still there shows itself."""
    shown = {chip.device: chip for chip in chips}
    for event in events:
        chip = shown.get(event.device)
        if chip is not None and event.code not in chip.codes:
            shown[event.device] = chip.with_code(event.code, event.severity, event.words)
    return list(shown.values())

"""Ascend NPUs, seen and healed: by the driver's library where it answers, by the text of npu-smi where not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ftslurm.devices.ascend.chip import KIND, Checked, Chip, by_number, unlisted_chip
from ftslurm.devices.ascend.dcmi import VARIABLE
from ftslurm.devices.ascend.dcmi_driver import NAME, CameAndWent, Driver
from ftslurm.devices.ascend.npu_smi import NpuResetAnswer, ResetOutcome
from ftslurm.devices.ascend.tool import TOOL, NpuSmi
from ftslurm.devices.asking import NoAnswer, look_until
from ftslurm.model.devices import DeviceHealth, HealResult, ProbeAnswer, Utilisation
from ftslurm.model.values import Value, replace
from ftslurm.system.commands import Runner

# --- healing an Ascend chip: wait for its codes to go, reset it, and see that everything is back
# Conditions of a reset, and when one counts as done: the vendor's reset commands and what MindCluster waits for (2026).

# Also the last look before a deadline gets the time a healthy tool needs.
LEAST_LOOK_S = 2.0
# A killed process can hold its chips for about 10 s. MindCluster waits 30 s for them before it resets.
PROCESSES_GONE_S = 30.0
# The vendor asks to leave a chip alone for 20 s after a reset. Who grants little time in all gets a part of that.
SETTLE_S = 20.0
SETTLE_SHARE = 0.1

_IN_BAND, _OUT_OF_BAND = "in-band", "out-of-band"
# DCMI's: in service; and of network ports, well or being initialised.
_BOOTED = 16
_USABLE = (0, 6)


class _Planned(Value):
    """One chip's. group: what the reset takes with it. boot, ports: whose boot status and network health is to be right
    afterwards; those of nobody if they could not be asked before."""

    device: str
    codes: tuple[str, ...]
    group: tuple[str, ...]
    boot: tuple[str, ...]
    ports: tuple[str, ...]

    def not_asked(self) -> str:
        left_out = [what for what, of in (("boot status", self.boot), ("network health", self.ports)) if not of]
        return f" (not asked: {', '.join(left_out)})" if left_out else ""


def _reset_failed(device: str, answer: NpuResetAnswer) -> HealResult:
    if answer.outcome is ResetOutcome.REFUSED:
        return HealResult(device, False, f"reset refused: {answer.message}")
    if answer.outcome is ResetOutcome.FAILED:
        return HealResult(device, False, f"reset failed: {answer.message}")
    return HealResult(device, None, f"reset: `{TOOL}` did not say how it went")


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
        self._sleep, self._clock = sleep, clock
        self._tool = NpuSmi(run, env, clock)
        self._driver = Driver(env, clock)
        self._chosen = VARIABLE in env
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
        finding = self._poll(lambda until: self._codes_gone(device, codes, until), wait_s)
        if finding.holds:
            self._driver.forget(device, codes)
            return HealResult(device, True, f"healed by itself after {self._clock() - started:.0f} s")
        if not may_reset:
            return HealResult(device, finding.holds, f"after {wait_s:g} s: {finding.why}")
        if device not in self._known:
            # A wrong name must not cost a whole node its chips.
            return HealResult(device, finding.holds, f"not reset: {finding.why}")
        result = self._reset(device, codes, reset_wait_s)
        if result.healed:
            self._driver.events()  # chips that go down and come up raise events, which are no news
        return result

    def _reset(self, device: str, codes: tuple[str, ...], wait_s: float) -> HealResult:
        """Reset `device`, one of the known chips, and wait until it and all others are back."""
        started, until = self._clock(), self._clock() + wait_s
        group = self._group(device, until)
        idle = self._poll(lambda limit: self._idle(group, limit), min(PROCESSES_GONE_S, wait_s))
        if not idle.holds:
            return HealResult(device, idle.holds, f"not reset: {idle.why}")
        reset = self._planned(device, codes, group, until)
        self._driver.close()
        try:
            answer, way = self._order(device, until)
        except NoAnswer as silence:
            return HealResult(device, None, f"reset: {silence}")
        if answer.outcome is not ResetOutcome.DONE:
            return _reset_failed(device, answer)
        self._sleep(min(SETTLE_S, SETTLE_SHARE * wait_s))
        finding = self._poll(lambda limit: self._all_back(reset, limit), until - self._clock())
        took = f"{self._clock() - started:.0f} s"
        if finding.holds:
            return HealResult(device, True, f"healed by an {way} reset after {took}{reset.not_asked()}")
        return HealResult(device, finding.holds, f"{way} reset done, but after {took}: {finding.why}")

    # ---- conditions

    def _codes_gone(self, device: str, codes: tuple[str, ...], until: float) -> Checked:
        """Are `codes` gone (all of the chip if none is named)? Others may stay, they are not what is to be healed."""
        chip = next((one for one in self._look(until, device, anew=True) if one.device == device), unlisted_chip(device))
        if chip.blind:
            return Checked(None, f"{device}: {chip.blind}")
        left = set(chip.codes).intersection(codes or chip.codes)
        # A faulty chip that names no other code may still have ours.
        explained = chip.health is DeviceHealth.GOOD or bool(chip.codes)
        return Checked(chip.health is not DeviceHealth.UNKNOWN and explained and not left, str(chip))

    def _group(self, device: str, until: float) -> tuple[str, ...]:
        """The chips that are reset with `device`; all of the node where nobody tells."""
        try:
            group = self._driver.group(device, until)
        except NoAnswer:
            group = ()
        return group if device in group else tuple(sorted(self._known, key=by_number))

    def _planned(self, device: str, codes: tuple[str, ...], group: tuple[str, ...], until: float) -> _Planned:
        told, ports = any(self._status("boot", group, until).values()), self._status("network", group, until)
        # The other ports have no address, or another fault.
        usable = tuple(port for port, health in ports.items() if health in _USABLE)
        return _Planned(device, codes, group, group if told else (), usable)

    def _idle(self, group: tuple[str, ...], until: float) -> Checked:
        try:
            return self._driver.idle(group, until)
        except NoAnswer:
            return self._tool.idle(until)

    def _all_back(self, reset: _Planned, until: float) -> Checked:
        """Does every chip of the node answer again, is ours well and rid of its codes, is the group in service, are its
        network ports what they were?"""
        chips = {chip.device: chip for chip in self._look(until, reset.device, anew=True)}
        ours = chips.get(reset.device, unlisted_chip(reset.device))
        for chip in (ours, *chips.values()):
            if chip.health is DeviceHealth.UNKNOWN:
                return Checked(False, str(chip))
        if ours.blind:
            return Checked(None, f"{ours.device}: {ours.blind}")
        if ours.health is not DeviceHealth.GOOD or set(ours.codes).intersection(reset.codes or ours.codes):
            return Checked(False, str(ours))
        for what, words, right, devices in (
            ("boot", "boot status", (_BOOTED,), reset.boot),
            ("network", "network health", _USABLE, reset.ports),
        ):
            told = self._status(what, devices, until) if devices else {}
            if late := [device for device in devices if told.get(device) not in right]:
                return Checked(False, f"{words} of {late[0]} is {told.get(late[0], 'not told')}")
        return Checked(True)

    def _status(self, what: str, devices: tuple[str, ...], until: float) -> dict[str, int | None]:
        """Of `boot` or `network`; empty if the library does not tell: npu-smi has no query for it."""
        try:
            return self._driver.status(what, devices, until)
        except NoAnswer:
            return {}

    # ---- the order

    def _order(self, device: str, until: float) -> tuple[NpuResetAnswer, str]:
        """In-band first; through the BMC (which needs ipmitool) if that fails for another reason than missing rights.

        By npu-smi and not by dcmi_set_device_reset: it also takes the network ports down and up again. Raises: NoAnswer.
        """
        answer = self._tool.order_reset(device, True, until)
        if "only support reset chip 0" in answer.message:  # cards whose two chips are one system
            device = f"{device.split('.')[0]}.0"
            answer = self._tool.order_reset(device, True, until)
        if answer.outcome is not ResetOutcome.FAILED:
            return answer, _IN_BAND
        try:
            second = self._tool.order_reset(device, False, until)
        except NoAnswer as silence:
            raise NoAnswer(f"{answer.message}; then {silence}") from None
        if second.outcome is ResetOutcome.DONE:
            return second, _OUT_OF_BAND
        return NpuResetAnswer(second.outcome, f"{answer.message}; without -m 1: {second.message}"), _OUT_OF_BAND

    def _poll(self, check: Callable[[float], Checked], limit_s: float) -> Checked:
        """`check` each second until it holds or `limit_s` is over; at least once. The last finding counts."""
        until = self._clock() + limit_s
        return look_until(lambda: self._checked(check, until), lambda finding: finding.holds, until, self._clock, self._sleep)

    def _checked(self, check: Callable[[float], Checked], until: float) -> Checked:
        try:
            return check(max(until, self._clock() + LEAST_LOOK_S))
        except NoAnswer as silence:
            return Checked(None, str(silence))

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

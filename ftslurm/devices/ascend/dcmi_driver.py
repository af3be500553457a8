"""Ascend chips by the driver's library, asked in a process of its own (`dcmi.main`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from ftslurm.devices.ascend.chip import KIND, Checked, Chip, severity_by_number
from ftslurm.devices.ascend.dcmi import find_library
from ftslurm.devices.asking import Json, LibraryChild, NoAnswer
from ftslurm.model.devices import DeviceHealth, Severity, Utilisation

T = TypeVar("T")

NAME = "libdcmi.so"
# A library that could not be opened, or hung, is left alone for so long; npu-smi is asked instead.
TRY_AGAIN_S = 60.0
# Started, initialised and asked for 16 chips it takes well below a second.
LIMIT_S = 8.0

# DCMI's assertion of an event.
_CAME, _WAS = 1, 2
_ABSENT = -1


class CameAndWent(NamedTuple):
    """An event that no look may show any more."""

    device: str
    code: str
    severity: Severity
    words: str


class Driver:
    """Each question is one request to the child. Whatever raises, raises NoAnswer; `until` is a time of `clock`.

    Keeps the events the child has heard until they are asked for.
    """

    def __init__(self, env: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._path = find_library(env)
        self._child = LibraryChild(NAME, "ftslurm.devices.ascend.dcmi", env)
        self._clock = clock
        self._rests_until = float("-inf")
        self.why = ""  # it rests
        self._heard: list[CameAndWent] = []
        self._deaf_told = False

    def present(self) -> bool:
        return bool(self._path)

    def usable(self) -> bool:
        """Is there a library, and none that has failed a moment ago?"""
        return self.present() and self._clock() >= self._rests_until

    def close(self) -> None:
        """End the child, and with it all use of the devices; the next question starts another, which knows the chips
        there are then: the library counts them when it is initialised."""
        self._child.close()

    def look(self, until: float) -> tuple[Chip, ...]:
        """Every chip the library knows, with its codes. A library that does not answer, or that knows nothing of any
        chip, rests for a while."""
        answer = self._ask("look", until, or_rest=True)
        chips = self._read(lambda: tuple(_chip(told) for told in answer["chips"]))
        if all(chip.health is DeviceHealth.UNKNOWN for chip in chips):
            self._rest(chips[0].detail if chips else "no chips")
            raise NoAnswer(f"{NAME}: {self.why}")
        if answer.get("deaf") and not self._deaf_told:
            self._deaf_told = True
            _warn(f"no events from {NAME}, faults that come and go between two looks are not seen: {answer['deaf']}")
        return chips

    def events(self) -> tuple[CameAndWent, ...]:
        """What came since the last time they were asked for; each is told once. A fault that is still there is among
        them too."""
        heard, self._heard = tuple(self._heard), []
        return heard

    def forget(self, device: str, codes: Collection[str] = ()) -> None:
        """The events of `codes` on `device` (all, if none is named) are dealt with."""
        self._heard = [one for one in self._heard if one.device != device or (codes and one.code not in codes)]

    def utilisation(self, until: float) -> tuple[Utilisation, ...]:
        answer = self._ask("utilisation", until)
        return self._read(lambda: tuple(
            Utilisation(_device(told), KIND, told["percent"], told["memory_percent"], told["power_w"])
            for told in answer["chips"]
        ))  # fmt: skip

    def group(self, device: str, until: float) -> tuple[str, ...]:
        """The chips that a reset of `device` takes with it."""
        answer = self._ask("group", until, place=_place(device))
        return self._read(lambda: tuple(_device({"place": place}) for place in answer["places"]))

    def idle(self, devices: tuple[str, ...], until: float) -> Checked:
        """Is there no process on any of `devices`?"""
        answer = self._ask("processes", until, places=[_place(device) for device in devices])
        used = self._read(lambda: [(device, pids) for device, pids in zip(devices, answer["pids"], strict=True) if pids])
        if not used:
            return Checked(True)
        (device, pids), others = used[0], sum(len(pids) for _, pids in used) - 1
        return Checked(False, f"process {pids[0]} is still on {device}" + (f" and {others} more" if others else ""))

    def status(self, what: str, devices: tuple[str, ...], until: float) -> dict[str, int | None]:
        """what: `boot` or `network`."""
        answer = self._ask(what, until, places=[_place(device) for device in devices])
        return self._read(lambda: dict(zip(devices, answer["status"], strict=True)))

    def _ask(self, what: str, until: float, or_rest: bool = False, **more: Any) -> Json:
        left_s = min(LIMIT_S, until - self._clock())
        if not self.present() or left_s <= 0:
            raise NoAnswer(f"no time left to ask {NAME}" if self.present() else f"there is no {NAME}")
        try:
            return self._child.ask({"do": what, "library": self._path, **more}, left_s, self._hear)
        except NoAnswer as silence:
            if or_rest:
                self._rest(str(silence))
            raise NoAnswer(f"{NAME}: {silence}") from None

    def _rest(self, why: str) -> None:
        if why != self.why:
            _warn(f"{NAME} is left alone for {TRY_AGAIN_S:.0f} s: {why}")
        self.why = why
        self._rests_until = self._clock() + TRY_AGAIN_S
        self.close()

    def _hear(self, event: Json) -> None:
        if event.get("assertion") in (_CAME, _WAS):
            severity = severity_by_number(int(event["severity"]))
            self._heard.append(CameAndWent(_device(event), str(event["code"]), severity, str(event["words"])[:200]))

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (KeyError, TypeError, ValueError) as error:
            raise NoAnswer(f"{NAME} sent an unreadable answer: {error}") from None


def _warn(message: str) -> None:
    import logging

    logging.getLogger(__name__).warning(message)


def _chip(told: Json) -> Chip:
    device, health = _device(told), told["health"]
    if health is None or health == _ABSENT:
        return Chip(device, DeviceHealth.UNKNOWN, detail=told.get("why") or f"{NAME} knows no such chip any more")
    if health not in range(4):
        return Chip(device, DeviceHealth.UNKNOWN, detail=f"{NAME} calls its health {health}")
    own = {str(code): severity_by_number(severity) for code, severity in told["faults"]}
    codes = {str(code): own.get(code, Severity.UNKNOWN) for code in (*told["codes"], *own)}
    detail = "; ".join(part for part in (told["why"], *map(str, told["words"])) if part)
    good = DeviceHealth.GOOD if health == 0 else DeviceHealth.FAULTY
    return Chip(device, good, severity_by_number(health), codes, detail, "" if codes else told["why"])


def _device(told: Json) -> str:
    card, chip = told["place"]
    return f"{int(card)}.{int(chip)}"


def _place(device: str) -> tuple[int, int]:
    card, chip = device.split(".")
    return int(card), int(chip)

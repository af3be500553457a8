"""The process that asks libdcmi.so, so that a driver that hangs or crashes takes nobody else with it.

Requests: {"do": one of REQUESTS, "library": path, …}. Events that came since the request before are told first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ftslurm.devices.ascend.dcmi import AICORE, ALL_OF_NPU, HBM, MEMORY, PCIE_LINKS, Dcmi, DcmiError, FaultEvent, Place
from ftslurm.devices.gpu.library_child import Json, LibraryError, Tell, serve

T = TypeVar("T")

# A burst of events in the time between two looks; older ones are the first to be lost.
_EVENTS_KEPT = 4096
# Words are for people, and each one is a call.
_CODES_IN_WORDS = 8


class Asked:
    """The library and what it has called in with since."""

    def __init__(self, dcmi: Dcmi) -> None:
        self.dcmi = dcmi
        self.deaf = ""  # why there are no events
        self._events: deque[FaultEvent] = deque(maxlen=_EVENTS_KEPT)
        self._places: dict[int, Place] = {}
        for place in dcmi.chips():
            if (logic := _told(dcmi.logic_id, place)) is not None:
                self._places[logic] = place
        try:
            dcmi.subscribe(self._events.append)
        except DcmiError as error:
            self.deaf = str(error)

    def tell_events(self, tell: Tell) -> None:
        while self._events:
            event = self._events.popleft()
            place = self._places.get(event.logic_id)
            if place is not None:
                tell({
                    "place": place, "code": event.code, "severity": event.severity, "assertion": event.assertion,
                    "words": event.words,
                })  # fmt: skip


def look(asked: Asked, _: Json) -> Json:
    return {"chips": [_chip(asked.dcmi, place) for place in asked.dcmi.chips()], "deaf": asked.deaf}


def _chip(dcmi: Dcmi, place: Place) -> Json:
    try:
        health = dcmi.health(place)
    except DcmiError as error:
        return {"place": place, "health": None, "why": str(error)}
    try:
        codes, why = dcmi.codes(place), ""
    except DcmiError as error:
        codes, why = (), f"its codes cannot be read: {error}"
    faults = (_told(dcmi.faults, place) or ()) if health else ()
    words = [_told(dcmi.words, place, code) for code in codes[:_CODES_IN_WORDS]] if health else []
    return {
        "place": place, "health": health, "why": why, "codes": codes, "words": [text for text in words if text],
        "faults": [(fault.code, fault.severity) for fault in faults],
    }  # fmt: skip


def utilisation(asked: Asked, _: Json) -> Json:
    dcmi = asked.dcmi
    return {"chips": [
        {
            "place": place,
            "percent": _rate(dcmi, place, AICORE, ALL_OF_NPU),
            "memory_percent": _rate(dcmi, place, HBM, MEMORY),
            "power_w": _told(dcmi.power_w, place),
        }
        for place in dcmi.chips()
    ]}  # fmt: skip


def group(asked: Asked, request: Json) -> Json:
    """The chips that a reset of one takes with it: its card where it is linked to others over PCIe only, else all."""
    (card, chip), chips = request["place"], asked.dcmi.chips()
    own = [place for place in chips if place[0] == card]
    others = [place for place in chips if place[0] != card]
    links = {_told(asked.dcmi.link, (card, chip), other) for other in others}
    return {"places": own if links <= PCIE_LINKS else chips}


def processes(asked: Asked, request: Json) -> Json:
    return {"pids": [asked.dcmi.processes(place) for place in request["places"]]}


def boot(asked: Asked, request: Json) -> Json:
    return {"status": [_told(asked.dcmi.boot_status, place) for place in request["places"]]}


def network(asked: Asked, request: Json) -> Json:
    return {"status": [_told(asked.dcmi.network_health, place) for place in request["places"]]}


REQUESTS: dict[str, Callable[[Asked, Json], Json]] = {
    "look": look, "utilisation": utilisation, "group": group, "processes": processes, "boot": boot, "network": network,
}  # fmt: skip


def main() -> None:
    asked: list[Asked] = []

    def handle(request: Json, tell: Tell) -> Json:
        try:
            if not asked:
                asked.append(Asked(Dcmi(request["library"])))
            asked[0].tell_events(tell)
            return REQUESTS[request["do"]](asked[0], request)
        except (DcmiError, OSError) as error:
            raise LibraryError(str(error)) from None

    serve(handle)


def _told(call: Callable[..., T], *arguments: Any) -> T | None:
    """What the library answers, None if it does not."""
    try:
        return call(*arguments)
    except DcmiError:
        return None


def _rate(dcmi: Dcmi, place: Place, *kinds: int) -> int | None:
    """Of the first kind that this chip knows."""
    return next((rate for kind in kinds if (rate := _told(dcmi.rate, place, kind)) is not None), None)

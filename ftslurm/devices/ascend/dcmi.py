"""Ascend chips by the driver's own library, libdcmi.so: ctypes and nothing else.

Atlas A2, A3, 310P and older are asked by card and chip (`dcmi_*`), the 950 generation by one id (`dcmiv2_*`), which is
the card here and its chip 0, as in npu-smi's tables. Any call can block for as long as the driver likes, and a broken
driver can take the process with it: the only caller is a process of its own, whose `main` is here.

Source: the public header dcmi_interface_api.h and the DCMI API references of the three generations (2026).
"""

from __future__ import annotations

import ctypes
import re
from collections import deque
from collections.abc import Callable, Mapping
from ctypes import byref, c_char, c_int, c_ubyte, c_uint, c_ulong, c_ulonglong, c_ushort
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ftslurm.devices.asking import Json, NoAnswer, Tell, serve

# Return codes. Source: "Return Codes" in the DCMI API references (2026). npu-smi passes them on in its texts (`ret is -8020`).
NOT_READY = -8012
OCCUPIED = -8020
NOT_SUPPORTED = -8255

_WORDS = {
    -8001: "wrong parameter",
    -8002: "not permitted",
    -8003: "memory cannot be used",
    -8004: "a checked function failed",
    -8005: "inner error of the driver",
    -8006: "time-out in the driver",
    -8007: "wrong device id",
    -8008: "there is no such device",
    -8009: "the kernel module refused",
    -8010: "a message to the device could not be sent",
    -8011: "no answer from the device",
    NOT_READY: "the device is not ready, it may have dropped off the bus",
    -8013: "not in a container",
    -8014: "a file cannot be used",
    -8015: "the reset failed",
    -8016: "cancelled",
    -8017: "firmware is being upgraded",
    OCCUPIED: "in use by another process or container",
    -8023: "not configured",
    NOT_SUPPORTED: "not supported here",
}
_TOLD = re.compile(r"\bret is (-[0-9]{4})\b")


def words_of(code: int) -> str:
    """`-8020` -> `-8020, in use by another process or container`; a code without words stays alone."""
    return f"{code}, {_WORDS[code]}" if code in _WORDS else str(code)


def with_code_words(text: str) -> str:
    """`text` of npu-smi with the words of the return code it names, if it names one."""
    told = _TOLD.search(text)
    words = _WORDS.get(int(told[1])) if told else None
    return f"{text} ({words})" if words else text


T = TypeVar("T")
Place = tuple[int, int]  # card and chip

# Path of the library, or `off`.
VARIABLE = "FTSLURM_DCMI"
# Where the driver package puts it.
_PLACES = ("/usr/local/dcmi/libdcmi.so", "/usr/local/Ascend/driver/lib64/driver/libdcmi.so")

_MAX_CARDS = 64
_MAX_CODES = 128  # of a chip, also of its events
_MAX_PROCESSES = 32
_MAX_CHIPS_OF_A_CARD = 8  # there are at most 4; a count beyond is no count
_TEXT_BYTES = 256  # shorter buffers get shortened texts

# What is told of a chip as one number, by the names of the older generations. 0 well, 1 minor, 2 major, 3 critical alarm,
# -1 no such chip:
HEALTH = "dcmi_get_device_health"
# 0 not started, 1 BIOS, 2 OS, 3 booted, 16 in service:
BOOT_STATUS = "dcmi_get_device_boot_status"
# Of the chip's own network port: 0 well, 6 being initialised, every other number is a failure. Can block for long when a card has
# dropped off the bus.
NETWORK_HEALTH = "dcmi_get_device_network_health"
POWER = "dcmi_get_device_power_info"  # tenths of a watt
# In percent, of one of the four below. AICORE reads 0 while a profiler is at work.
RATE = "dcmi_get_device_utilization_rate"
AICORE, ALL_OF_NPU = 2, 13
MEMORY, HBM = 1, 6
# Of dcmi_get_topo_info_by_device_id: ways over PCIe, by which a reset does not spread. The other numbers are HCCS, SIO and
# UB, or `unknown`, which older references number 6.
PCIE_LINKS = frozenset({1, 2, 4, 5})


class DcmiError(Exception):
    """A call that failed. code: the library's, NOT_SUPPORTED also where the library lacks the function."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed: {words_of(code)}")
        self.code = code


class _Filter(ctypes.Structure):
    """All zero: every event."""

    _fields_ = (
        ("filter_flag", c_ulonglong), ("event_id", c_uint), ("severity", c_ubyte), ("node_type", c_ubyte),
        ("reserved", c_ubyte * 32),
    )  # fmt: skip


class _Fault(ctypes.Structure):
    _fields_ = (
        ("event_id", c_uint), ("deviceid", c_ushort), ("node_type", c_ubyte), ("node_id", c_ubyte),
        ("sub_node_type", c_ubyte), ("sub_node_id", c_ubyte), ("severity", c_ubyte), ("assertion", c_ubyte),
        ("event_serial_num", c_int), ("notify_serial_num", c_int), ("alarm_raised_time", c_ulonglong),
        ("event_name", c_char * 256), ("additional_info", c_char * 32), ("reserved", c_ubyte * 32),
    )  # fmt: skip


class DcmiEvent(ctypes.Structure):
    """`struct dcmi_event`; its union has one member only."""

    _fields_ = (("type", c_int), ("fault", _Fault))


class _Process(ctypes.Structure):
    _fields_ = (("proc_id", c_int), ("proc_mem_usage", c_ulong))


_Handler = ctypes.CFUNCTYPE(None, ctypes.POINTER(DcmiEvent))
# The driver calls them from a thread of its own until the process ends.
_FOR_EVER: list[Any] = []


def find_library(env: Mapping[str, str]) -> str:
    """Path of libdcmi.so; empty if there is none or FTSLURM_DCMI is `off`."""
    if chosen := env.get(VARIABLE):
        return "" if chosen == "off" else chosen
    return next((place for place in _PLACES if Path(place).exists()), "")


class Dcmi:
    """The library, initialised. Every method raises DcmiError."""

    def __init__(self, path: str) -> None:
        """Raises: OSError if it cannot be loaded, DcmiError if it does not initialise."""
        self._library = ctypes.CDLL(path)
        self._by_one_id = False
        try:
            self._call("dcmi_init")
            self.chips()
        except DcmiError as error:
            if error.code != NOT_SUPPORTED:
                raise
            self._by_one_id = True
            self._call("dcmiv2_init")

    def chips(self) -> tuple[Place, ...]:
        """All chips there were when the library was initialised: it never looks again."""
        count, ids = c_int(), (c_int * _MAX_CARDS)()
        if self._by_one_id:
            self._call("dcmiv2_get_device_list", ids, byref(count), _MAX_CARDS)
        else:
            self._call("dcmi_get_card_list", byref(count), ids, _MAX_CARDS)
        cards = [card for card in ids[: min(max(count.value, 0), _MAX_CARDS)] if card >= 0]
        return tuple((card, chip) for card in cards for chip in range(self._chips_of(card)))

    def logic_id(self, place: Place) -> int:
        if self._by_one_id:
            return place[0]
        found = c_int()
        self._call("dcmi_get_device_logic_id", byref(found), *place)
        return found.value

    def number(self, name: str, place: Place, *more: int) -> int:
        """HEALTH and its kind."""
        found = c_int()
        self._ask(name, place, *more, byref(found))
        return found.value

    def codes(self, place: Place) -> tuple[str, ...]:
        """The codes the chip has now, eight digits each."""
        name = "dcmiv2_get_device_error_code_list" if self._by_one_id else "dcmi_get_device_errorcode_v2"
        count, found = c_int(), (c_uint * _MAX_CODES)()
        self._ask(name, place, byref(count), found, _MAX_CODES)
        return tuple(f"{code:08X}" for code in found[: min(max(count.value, 0), _MAX_CODES)] if code)

    def words(self, place: Place, code: str) -> str:
        """What the driver says of a code, for people."""
        name = "dcmiv2_get_device_error_info" if self._by_one_id else "dcmi_get_device_errorcode_string"
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._ask(name, place, c_uint(int(code, 16)), text, _TEXT_BYTES)
        return text.value.decode(errors="replace")

    def faults(self, place: Place) -> list[Json]:
        """The faults the chip has now, as `_event`. The 950 tells, older chips do not support it."""
        found, count = (DcmiEvent * _MAX_CODES)(), c_int()
        self._ask("dcmi_get_device_current_fault_event", place, found, _MAX_CODES, byref(count))
        return [_event(event.fault) for event in found[: min(max(count.value, 0), _MAX_CODES)]]

    def processes(self, place: Place) -> tuple[int, ...]:
        """The pids that use the chip; in a plain container those of containers only."""
        name = "dcmiv2_get_device_proc_mem_info" if self._by_one_id else "dcmi_get_device_resource_info"
        found, count = (_Process * _MAX_PROCESSES)(), c_int(_MAX_PROCESSES)
        self._ask(name, place, found, byref(count))
        return tuple(process.proc_id for process in found[: min(max(count.value, 0), _MAX_PROCESSES)])

    def link(self, one: Place, other: Place) -> int:
        """How two chips are connected, see PCIE_LINKS."""
        link = c_int()
        if self._by_one_id:
            self._call("dcmiv2_get_topo_info_by_device_id", one[0], other[0], byref(link))
        else:
            self._call("dcmi_get_topo_info_by_device_id", *one, *other, byref(link))
        return link.value

    def subscribe(self, hear: Callable[[tuple[int, Json]], None]) -> None:
        """From now on `hear` gets the events of all chips, each with the logic id, from a thread of the driver. Once a process.

        Not dcmi_get_fault_event, which waits for the events of one chip: the driver queues events for a thread by what
        that thread asked for last, so going round the chips loses those of the others. And a node has 64 such queues
        for all its processes, too few to take one for each chip.
        """
        handler = _Handler(lambda event: hear((event.contents.fault.deviceid, _event(event.contents.fault))))
        _FOR_EVER.append(handler)
        if self._by_one_id:
            self._call("dcmiv2_subscribe_fault_event", -1, _Filter(), handler)
        else:
            self._call("dcmi_subscribe_fault_event", -1, -1, _Filter(), handler)

    def _chips_of(self, card: int) -> int:
        if self._by_one_id:
            return 1
        count, mcu, cpu = c_int(), c_int(), c_int()
        self._call("dcmi_get_device_id_in_card", card, byref(count), byref(mcu), byref(cpu))
        return count.value if 0 <= count.value <= _MAX_CHIPS_OF_A_CARD else 0

    def _ask(self, name: str, place: Place, *more: Any) -> None:
        """A question about one chip. name: that of the older generations; the newer one mostly differs by the prefix."""
        if self._by_one_id:
            self._call("dcmiv2_" + name.removeprefix("dcmi_").removeprefix("dcmiv2_"), place[0], *more)
        else:
            self._call(name, *place, *more)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DcmiError(name, NOT_SUPPORTED) from None
        if code := function(*arguments):
            raise DcmiError(name, code)


def _event(fault: Any) -> Json:
    """severity: 0 hint to 3 critical. assertion: 0 the fault has gone, 1 it has come, 2 it happened and is over."""
    words = fault.event_name.decode(errors="replace")
    return {"code": f"{fault.event_id:08X}", "severity": fault.severity, "assertion": fault.assertion, "words": words}


# ---- the child
# Requests: {"do": one of REQUESTS, "library": path, …}. Events that came since the request before are told first.

# A burst of events in the time between two looks; older ones are the first to be lost.
_EVENTS_KEPT = 4096
# Words are for people, and each one is a call.
_CODES_IN_WORDS = 8


class Asked:
    """The library and what it has called in with since."""

    def __init__(self, dcmi: Dcmi) -> None:
        self.dcmi = dcmi
        self.deaf = ""  # why there are no events
        self._events: deque[tuple[int, Json]] = deque(maxlen=_EVENTS_KEPT)
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
            logic_id, event = self._events.popleft()
            if (place := self._places.get(logic_id)) is not None:
                tell({"place": place, **event})


def look(asked: Asked, _: Json) -> Json:
    return {"chips": [_chip(asked.dcmi, place) for place in asked.dcmi.chips()], "deaf": asked.deaf}


def _chip(dcmi: Dcmi, place: Place) -> Json:
    try:
        health = dcmi.number(HEALTH, place)
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
        "faults": [(fault["code"], fault["severity"]) for fault in faults],
    }  # fmt: skip


def utilisation(asked: Asked, _: Json) -> Json:
    return {"chips": [_use(asked.dcmi, place) for place in asked.dcmi.chips()]}


def _use(dcmi: Dcmi, place: Place) -> Json:
    tenths = _told(dcmi.number, POWER, place)
    return {
        "place": place, "percent": _rate(dcmi, place, AICORE, ALL_OF_NPU), "memory_percent": _rate(dcmi, place, HBM, MEMORY),
        "power_w": None if tenths is None else tenths / 10,
    }  # fmt: skip


def group(asked: Asked, request: Json) -> Json:
    """The chips that a reset of one takes with it: its card where it is linked to others over PCIe only, else all."""
    (card, chip), chips = request["place"], asked.dcmi.chips()
    own = [place for place in chips if place[0] == card]
    others = [place for place in chips if place[0] != card]
    links = {_told(asked.dcmi.link, (card, chip), other) for other in others}
    return {"places": own if links <= PCIE_LINKS else chips}


def processes(asked: Asked, request: Json) -> Json:
    return {"pids": [asked.dcmi.processes(place) for place in request["places"]]}


def _status(name: str, asked: Asked, request: Json) -> Json:
    return {"status": [_told(asked.dcmi.number, name, place) for place in request["places"]]}


REQUESTS: dict[str, Callable[[Asked, Json], Json]] = {
    "look": look, "utilisation": utilisation, "group": group, "processes": processes,
    "boot": partial(_status, BOOT_STATUS), "network": partial(_status, NETWORK_HEALTH),
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
            raise NoAnswer(str(error)) from None

    serve(handle)


def _told(call: Callable[..., T], *arguments: Any) -> T | None:
    """What the library answers, None if it does not."""
    try:
        return call(*arguments)
    except DcmiError:
        return None


def _rate(dcmi: Dcmi, place: Place, *kinds: int) -> int | None:
    """Of the first kind that this chip knows."""
    return next((rate for kind in kinds if (rate := _told(dcmi.number, RATE, place, kind)) is not None), None)

"""The process that asks amdsmi. `library_child` says why it is a process.

It tells what amdsmi answers and judges nothing; `amd_facts` knows what it means. Written for amdsmi 6.3 to 7.0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ftslurm.devices.amd.facts import EVENT_CODES, SAYS_NOTHING
from ftslurm.devices.gpu.library_child import Json, LibraryError, Tell, serve

# amdsmi_status_t
DRIVER_NOT_LOADED, NO_DRIVER = 34, 51
NO_STATUS = -1  # an exception of the Python side
MOST_EVENTS = 1000
EVENTS_AT_ONCE = 10

Handle = Any


class Amdsmi:
    """amdsmi in use; begun anew when a GPU fails, for the library lists its GPUs only at the start."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._smi: Any = None
        self._handles: list[Handle] = []
        self._readers: list[Any] = []

    def handle(self, request: Json, tell: Tell) -> Json:
        if self._smi is None:
            self._open()
        if request["ask"] == "look":
            return {"gpus": self._looks(tell, request["processes"])}
        if request["ask"] == "utilisation":
            return {"gpus": [self._utilisation(*gpu) for gpu in enumerate(self._handles)]}
        if request["ask"] == "reset":
            return {"refused": self._reset(request["bus"])}
        raise LibraryError(f"unknown request {request['ask']!r}")

    def _open(self) -> None:
        try:
            smi = self._load()
        except Exception as error:  # it raises whatever comes of a library that is missing or does not fit
            raise LibraryError(f"amdsmi cannot be imported: {type(error).__name__}: {error}") from None
        try:
            smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
            self._handles = list(smi.amdsmi_get_processor_handles())
        except smi.AmdSmiException as error:
            absent = _status(error) in (DRIVER_NOT_LOADED, NO_DRIVER)
            raise LibraryError(f"amdsmi does not start: {_words(error)}", absent) from None
        self._smi = smi
        self._readers = [reader for handle in self._handles if (reader := self._reader(handle)) is not None]

    def _begin_anew(self) -> None:
        for close in (*(reader.stop for reader in self._readers), self._smi.amdsmi_shut_down):
            try:
                close()
            except self._smi.AmdSmiException:  # it may be the lost GPU's, and goes with the rest
                continue
        self._smi = None
        self._open()

    def _looks(self, tell: Tell, processes: bool) -> list[Json]:
        self._drain(tell)  # first of all: of a lost GPU this may be the last that is heard
        looks = [self._look(*gpu, processes=processes) for gpu in enumerate(self._handles)]
        if any(code not in SAYS_NOTHING for look in looks for code, _ in look["failed"].values()):
            self._begin_anew()
            looks = [self._look(*gpu, processes=processes) for gpu in enumerate(self._handles)]
        return looks

    def _look(self, index: int, handle: Handle, processes: bool) -> Json:
        smi = self._smi
        calls: dict[str, Callable[[], object]] = {
            "bus": lambda: smi.amdsmi_get_gpu_device_bdf(handle),
            "uuid": lambda: smi.amdsmi_get_gpu_device_uuid(handle),
            "asic": lambda: smi.amdsmi_get_gpu_asic_info(handle),
            "uncorrectable": lambda: smi.amdsmi_get_gpu_total_ecc_count(handle)["uncorrectable_count"],
            "bad_pages": lambda: len(smi.amdsmi_get_gpu_bad_page_info(handle)),
            "threshold": lambda: smi.amdsmi_get_gpu_bad_page_threshold(handle),
        }
        if processes:
            # The library is a client of the driver itself.
            calls["processes"] = lambda: [
                process["pid"] for process in smi.amdsmi_get_gpu_process_list(handle) if process["pid"] != os.getpid()
            ]
        told, failed = self._asked(calls)
        asic = told.pop("asic", {})
        told.update({name: asic[key] for name, key in (("name", "market_name"), ("serial", "asic_serial")) if key in asic})
        return {"index": index, "told": told, "failed": failed}

    def _utilisation(self, index: int, handle: Handle) -> Json:
        told, failed = self._asked({
            "bus": lambda: self._smi.amdsmi_get_gpu_device_bdf(handle),
            "activity": lambda: self._smi.amdsmi_get_gpu_activity(handle),
            "power": lambda: self._smi.amdsmi_get_power_info(handle),
        })  # fmt: skip
        return {"index": index, "told": told, "failed": failed}

    def _asked(self, calls: dict[str, Callable[[], Any]]) -> tuple[Json, Json]:
        """What the calls told, and of those that failed the status and the words."""
        told: Json = {}
        failed: Json = {}
        for name, call in calls.items():
            try:
                told[name] = call()
            except self._smi.AmdSmiException as error:
                failed[name] = [_status(error), _words(error)]
            except (AttributeError, KeyError, TypeError, ValueError) as error:  # an answer its own Python cannot read
                failed[name] = [NO_STATUS, f"{type(error).__name__}: {error}"]
        return told, failed

    def _reset(self, bus: str) -> list[object] | None:
        """What stands against it, None if it is done."""
        try:
            for handle in self._handles:
                if self._smi.amdsmi_get_gpu_device_bdf(handle) == bus:
                    self._smi.amdsmi_reset_gpu(handle)
                    return None
        except self._smi.AmdSmiException as error:
            return [_status(error), _words(error)]
        return [NO_STATUS, f"amdsmi lists no GPU {bus}"]

    # ---- events

    def _reader(self, handle: Handle) -> Any:
        """None where the driver tells no events, or not to us."""
        kinds = self._smi.AmdSmiEvtNotificationType
        wanted = [getattr(kinds, name) for name in EVENT_CODES if hasattr(kinds, name)]
        try:
            return self._smi.AmdSmiEventReader(handle, wanted)
        except self._smi.AmdSmiException:
            return None

    def _drain(self, tell: Tell) -> None:
        for reader in self._readers:
            for _ in range(MOST_EVENTS // EVENTS_AT_ONCE):
                try:
                    events = reader.read(0, EVENTS_AT_ONCE)  # called timestamp there, it is the time to wait, in ms
                except self._smi.AmdSmiException:  # no more
                    break
                for event in events:
                    tell({"bus": self._bus(event["processor_handle"]), "event": event["event"], "message": event["message"]})

    def _bus(self, handle: Handle) -> str:
        told, _ = self._asked({"bus": lambda: self._smi.amdsmi_get_gpu_device_bdf(handle)})
        return str(told.get("bus", ""))


def _status(error: Exception) -> int:
    return int(getattr(error, "err_code", None) or NO_STATUS)


def _words(error: Exception) -> str:
    return str(getattr(error, "err_info", None) or error).strip()


def main() -> None:
    serve(Amdsmi(lambda: import_module("amdsmi")).handle)

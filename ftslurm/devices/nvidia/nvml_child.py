"""The process that asks NVML, through nvidia-ml-py (`pynvml`). `library_child` says why it is a process.

It tells what NVML answers and judges nothing; `nvml_facts` knows what it means.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from ftslurm.devices.gpu.library_child import Json, LibraryError, Tell, serve
from ftslurm.devices.nvidia.nvml_facts import EVENTS

# Numbers, not pynvml's names: older releases lack some of them, older drivers answer NOT_SUPPORTED. From nvml.h.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 3, 4, 9, 12, 13
UNCORRECTED, VOLATILE = 1, 0
FIELD_RECOVERY_ACTION, FIELD_VOLATILE_DOUBLE_BIT = 230, 4
VALUE_OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvmlValueType_t
# A GPU that tells Xids without end must not keep us from looking at it.
MOST_EVENTS = 1000

Handle = Any


class Nvml:
    """NVML in use; its event set lives as long as the process."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        self._started = False
        self._events: Any = None  # also where the driver gives no event set
        self._uuids: dict[int, str] = {}
        self._deaf: dict[int, list[object]] = {}  # GPUs that tell no events, and why

    def handle(self, request: Json, tell: Tell) -> Json:
        self._open()
        if request["ask"] == "look":
            self._drain(tell)  # first of all: of a lost GPU this may be the last that is heard
            return {"gpus": [self._look(*gpu, processes=request["processes"]) for gpu in self._gpus()]}
        if request["ask"] == "utilisation":
            return {"gpus": [self._utilisation(*gpu) for gpu in self._gpus()]}
        raise LibraryError(f"unknown request {request['ask']!r}")

    def _open(self) -> None:
        if self._started:
            return
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            absent = error.value in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND)
            raise LibraryError(f"NVML does not start: {error}", absent) from None
        self._started = True
        told: Json = {}
        self._note("events", lambda: self._nvml.nvmlEventSetCreate(), told, {})
        self._events = told.get("events")

    def _gpus(self) -> Iterator[tuple[int, Handle | None, Json]]:
        """Index, handle and what failed, of all that this process may use."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise LibraryError(f"NVML does not count its GPUs: {error}") from None
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            except self._nvml.NVMLError as error:
                if error.value != NO_PERMISSION:  # a GPU of somebody else
                    yield index, None, {"handle": [error.value, str(error)]}
                continue
            yield index, handle, {}

    def _look(self, index: int, handle: Handle | None, failed: Json, processes: bool) -> Json:
        told: Json = {}
        if handle is None:
            return {"index": index, "told": told, "failed": failed}
        nvml = self._nvml
        calls: dict[str, Callable[[], object]] = {
            "uuid": lambda: self._uuid(handle),
            "bus": lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "name": lambda: _text(nvml.nvmlDeviceGetName(handle)),
            "serial": lambda: _text(nvml.nvmlDeviceGetSerial(handle)),
            "recovery": lambda: self._field(handle, FIELD_RECOVERY_ACTION),
            "remap": lambda: nvml.nvmlDeviceGetRemappedRows(handle),
            "uncorrectable": lambda: self._uncorrectable(handle),
        }
        if processes:
            calls["processes"] = lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        for name, call in calls.items():
            self._note(name, call, told, failed)
        self._register(handle)
        if why := self._deaf.get(_address(handle)):
            failed["events"] = why
        return {"index": index, "told": told, "failed": failed}

    def _utilisation(self, index: int, handle: Handle | None, failed: Json) -> Json:
        told: Json = {}
        if handle is not None:
            self._note("uuid", lambda: self._uuid(handle), told, failed)
            self._note("rates", lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle), told, failed)
            self._note("power_mw", lambda: self._nvml.nvmlDeviceGetPowerUsage(handle), told, failed)
        rates = told.pop("rates", None)
        if rates is not None:
            told.update(percent=rates.gpu, memory_percent=rates.memory)
        return {"index": index, "told": told, "failed": failed}

    def _note(self, name: str, call: Callable[[], object], told: Json, failed: Json) -> None:
        try:
            told[name] = call()
        except self._nvml.NVMLError as error:
            failed[name] = [error.value, str(error)]
        except AttributeError as error:  # a pynvml that is older or newer than the call
            failed[name] = [FUNCTION_NOT_FOUND, str(error)]

    def _uuid(self, handle: Handle) -> str:
        """A GPU that has told it once keeps it, however lost it is now."""
        address = _address(handle)
        if address not in self._uuids:
            self._uuids[address] = _text(self._nvml.nvmlDeviceGetUUID(handle))
        return self._uuids[address]

    def _field(self, handle: Handle, number: int) -> int:
        value = self._nvml.nvmlDeviceGetFieldValues(handle, [number])[0]
        if value.nvmlReturn != 0:
            raise self._nvml.NVMLError(value.nvmlReturn)
        return int(getattr(value.value, VALUE_OF_TYPE[value.valueType]))

    def _uncorrectable(self, handle: Handle) -> int:
        """NVML means to drop the call (CUDA 14); the field says the same, on fewer drivers of today."""
        try:
            return int(self._nvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE))
        except AttributeError:
            return self._field(handle, FIELD_VOLATILE_DOUBLE_BIT)
        except self._nvml.NVMLError as error:
            if error.value != FUNCTION_NOT_FOUND:
                raise
            return self._field(handle, FIELD_VOLATILE_DOUBLE_BIT)

    # ---- events

    def _register(self, handle: Handle) -> None:
        """Once a GPU, for what it supports: to ask for more would get nothing at all."""
        address = _address(handle)
        if address in self._deaf:
            return
        failed: Json = {}
        self._note("events", lambda: self._registered(handle), {}, failed)
        self._deaf[address] = failed.get("events", [])

    def _registered(self, handle: Handle) -> None:
        if self._events is None:
            raise self._nvml.NVMLError(NOT_SUPPORTED)
        wanted = self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & EVENTS
        self._nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)

    def _drain(self, tell: Tell) -> None:
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            told: Json = {}
            self._note("event", lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0), told, {})
            event = told.get("event")
            if event is None:  # a timeout: no more; a lost GPU: the look will show it
                return
            self._note("uuid", partial(self._uuid, event.device), told, {})
            tell({"uuid": told.get("uuid", ""), "type": event.eventType, "data": event.eventData})


def _address(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def main() -> None:
    serve(Nvml(import_module("pynvml")).handle)

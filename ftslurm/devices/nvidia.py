"""NVIDIA GPUs: what NVML's answers mean, the probe, and the process that asks NVML through nvidia-ml-py (`pynvml`).

Codes: `XID n`, `RECOVERY n`, ROW-REMAP-PENDING, ROW-REMAP-FAILURE, ECC-UNCORRECTABLE, GPU-LOST. nvidia-smi is for the reset.
Sources: nvml.h as nvidia-ml-py 13.615 carries it (return values, event types, recovery actions); NVIDIA's "XID Errors"
catalogue and "GPU Memory Error Management" for what asks for a reset.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from ftslurm.devices.asking import Json, Library, NoAnswer, Tell, serve
from ftslurm.devices.gpu_looks import ECC_UNCORRECTABLE, GpuFinding, GpuLook, Heard, Need, ResetAnswer, as_number, read_look
from ftslurm.devices.gpu_probe import Facts, GpuProbe, is_library_here
from ftslurm.errors import FtslurmError
from ftslurm.model.devices import Utilisation

KIND = "nvidia"
REMAP_PENDING, REMAP_FAILURE = "ROW-REMAP-PENDING", "ROW-REMAP-FAILURE"

# nvmlReturn_t. Not supported, unknown to this driver or not for this user: says nothing about the GPU.
# INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, VGPU_ECC_NOT_SUPPORTED,
# ARGUMENT_VERSION_MISMATCH, DEPRECATED
SAYS_NOTHING = frozenset({2, 3, 4, 13, 21, 22, 25, 26})
LOST = frozenset({15, 28})  # GPU_IS_LOST, GPU_NOT_FOUND
RESET_REQUIRED = 16

# nvmlEventType*: what is worth registering for. The rest is news of a healthy GPU (clocks, power, corrected errors).
XID, DOUBLE_BIT, RETIREMENT_FAILURE = 0x8, 0x2, 0x800
EVENT_CODES: Mapping[int, str] = {DOUBLE_BIT: ECC_UNCORRECTABLE, RETIREMENT_FAILURE: REMAP_FAILURE}
EVENTS = XID | sum(EVENT_CODES)

# nvmlDeviceGpuRecoveryAction_t -> what it needs, what it may pass by itself, in words. Draining P2P: once all peers are
# idle the driver names another action, or none.
ACTIONS: Mapping[int, tuple[Need, bool, str]] = {
    1: (Need.RESET, False, "a reset of the GPU"),
    2: (Need.REPLACEMENT, False, "a reboot of the node"),
    3: (Need.RESET, True, "an end of all peer-to-peer traffic"),
    4: (Need.RESET, False, "a reset of the GPU once it is idle"),
    5: (Need.TIME, True, "a restart of the IMEX daemon"),
    6: (Need.REPLACEMENT, False, "a reset of the bus"),
    7: (Need.REPLACEMENT, False, "a reboot of the system"),
}
# Xids after which the GPU works again only after a reset, and those after which a reset does not help either. Where the
# cases of one number differ (63, 144 to 150, 154), the driver's recovery action and the remap state tell.
RESET_XIDS = frozenset({46, 48, 62, 74, 95, 109, 110, 119, 120, 136, 140, 155, 156, 158, 169, 171, 172})
REPLACE_XIDS = frozenset({54, 64, 79, 143, 151, 157, 161, 167, 168})


def heard(event: Json) -> Heard:
    """{"uuid", "type", "data"}; data is the number of the Xid, 999 if the driver does not know it."""
    kind, uuid = int(event["type"]), str(event["uuid"])
    if kind == XID:
        return Heard(uuid, f"XID {int(event['data'])}", f"Xid {int(event['data'])}")
    return Heard(uuid, EVENT_CODES[kind], f"{EVENT_CODES[kind]} told")


def look(gpu: Json) -> GpuLook:
    """As `read_look`; status: nvmlReturn_t."""
    told, failed = gpu["told"], gpu["failed"]
    recovery, reset_required = told.get("recovery"), any(code == RESET_REQUIRED for code, _ in failed.values())
    deaf = f"no events: {failed['events'][1]}" if "events" in failed else ""
    conditions = tuple(_conditions(told, recovery, reset_required))
    return read_look(gpu, "uuid", SAYS_NOTHING | {RESET_REQUIRED}, LOST, deaf, conditions=conditions, recovery=recovery)


def _conditions(told: Json, recovery: int | None, reset_required: bool) -> list[str]:
    _, _, pending, failure = told.get("remap", (0, 0, 0, 0))
    codes = [f"RECOVERY {recovery}"] if recovery else ["RECOVERY 1"] if reset_required else []
    return codes + [REMAP_PENDING] * bool(pending) + [REMAP_FAILURE] * bool(failure)


def need(look: GpuLook, codes: tuple[str, ...]) -> GpuFinding:
    """What the GPU needs, by its state first and then by the codes it is to be rid of."""
    device = f"GPU {look.bus or look.index}"
    for finding in (*_needs_of_state(look, device), *_needs_of_codes(look, codes, device)):
        return finding
    return GpuFinding(Need.NOTHING, f"{device} answers and asks for nothing")


def _needs_of_state(look: GpuLook, device: str) -> list[GpuFinding]:
    findings = []
    for code in look.conditions:
        if code.startswith("RECOVERY "):
            number = int(code.removeprefix("RECOVERY "))
            unknown = (Need.TIME, True, f"recovery action {number}, which is not known here")
            remedy, may_pass, words = ACTIONS.get(number, unknown)
            findings.append(GpuFinding(remedy, f"the driver asks for {words} on {device}", may_pass=may_pass))
        elif code == REMAP_PENDING:
            findings.append(GpuFinding(Need.RESET, f"a row remap is pending on {device}, which needs a reset"))
        else:
            findings.append(GpuFinding(Need.REPLACEMENT, f"a row remap has failed on {device}: no spare rows"))
    # The worst counts: who needs another node is not helped by a reset.
    return sorted(findings, key=lambda finding: finding.need is not Need.REPLACEMENT)


def _needs_of_codes(look: GpuLook, codes: tuple[str, ...], device: str) -> list[GpuFinding]:
    xids = {int(code.removeprefix("XID ")) for code in codes if re.fullmatch(r"XID \d{1,9}", code)}
    for number in sorted(xids & REPLACE_XIDS):
        return [GpuFinding(Need.REPLACEMENT, f"no reset helps against Xid {number} on {device}")]
    for number in sorted(xids & RESET_XIDS):
        return [GpuFinding(Need.RESET, f"Xid {number} on {device} needs a reset")]
    # Drivers that name a recovery action know whether the error was contained; of the others nobody knows it.
    if ECC_UNCORRECTABLE in codes and look.recovery is None:
        return [GpuFinding(Need.RESET, f"an uncorrectable memory error on {device} needs a reset")]
    return []


def utilisation(device: str, gpu: Json) -> Utilisation:
    """As `look`; NVML's memory figure is the share of time with traffic, its power comes in milliwatts."""
    told = gpu["told"]
    power = told.get("power_mw")
    return Utilisation(
        device, KIND, as_number(told.get("percent")), as_number(told.get("memory_percent")),
        None if power is None else power / 1000,
    )  # fmt: skip


# ---- nvidia-smi --gpu-reset


def parse_reset(status: int | None, text: str) -> ResetAnswer:
    """How `nvidia-smi --gpu-reset` ended, by its words; status None: the time limit ended it."""
    if status is None:
        return ResetAnswer(None, "reset: nvidia-smi gave no answer in time")
    said = " ".join(line.strip() for line in text.splitlines() if line.strip())[:300] or "no word"
    if status == 0 and "successfully reset" in said.lower():
        return ResetAnswer(True)
    return ResetAnswer(False, f"reset failed (status {status}): {said}")


# ---- the probe

LIBRARY = "libnvidia-ml.so.1"
TOOL = "nvidia-smi"


class NvidiaProbe(GpuProbe):
    """Reads the NVIDIA GPUs of this node and heals them."""

    kind = KIND
    facts = Facts(heard, look, need, utilisation)
    library = "NVML"
    python_module = "pynvml"
    extra = "nvidia"
    child = "ftslurm.devices.nvidia"
    visible = ("CUDA_VISIBLE_DEVICES",)
    # The driver refuses to reset a GPU without the ones it is linked to.
    shares_resets = False

    def present(self) -> bool:
        """NVML makes the device nodes itself where nobody has yet, so the library is a sign of its own."""
        return self.certain() or is_library_here(LIBRARY, self._env)

    def certain(self) -> bool:
        return any(self._dev.glob("nvidia[0-9]*"))

    def order_reset(self, look: GpuLook, timeout_s: float) -> ResetAnswer:
        """By the PCI address, which nvidia-smi takes like a number: numbers shift when a GPU is missing."""
        self._child.close()
        argv = (TOOL, "--gpu-reset", "-i", look.bus or str(look.index))
        try:
            result = self._run(argv, timeout_s, env=dict(self._env))
        except (FtslurmError, OSError) as error:
            return ResetAnswer(False, f"not reset: {error}")
        return parse_reset(result.status, result.stdout + "\n" + result.stderr)


# ---- the child: it tells what NVML answers and judges nothing

# Numbers, not pynvml's names: older releases lack some of them, older drivers answer NOT_SUPPORTED. From nvml.h.
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 3, 4, 9, 12, 13
UNCORRECTED, VOLATILE = 1, 0
FIELD_RECOVERY_ACTION = 230
VALUE_OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvmlValueType_t
# A GPU that tells Xids without end must not keep us from looking at it.
MOST_EVENTS = 1000

Handle = Any


class Nvml(Library):
    """NVML in use; its event set lives as long as the process."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        self._started = False
        self._events: Any = None  # also where the driver gives no event set
        self._uuids: dict[int, str] = {}
        self._deaf: dict[int, list[object]] = {}  # GPUs that tell no events, and why

    def handle(self, request: Json, tell: Tell) -> Json:
        self._open()
        if request["ask"] == "utilisation":
            return {"gpus": [self._utilisation(*gpu) for gpu in self._gpus()]}
        self._drain(tell)  # first of all: of a lost GPU this may be the last that is heard
        return {"gpus": [self._look(*gpu, processes=request["processes"]) for gpu in self._gpus()]}

    def _open(self) -> None:
        if self._started:
            return
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            absent = error.value in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND)
            raise NoAnswer(f"NVML does not start: {error}", absent) from None
        self._started = True
        self._events = self.asked(events=lambda: self._nvml.nvmlEventSetCreate())[0].get("events")

    def _gpus(self) -> Iterator[tuple[int, Handle | None, Json]]:
        """Index, handle and what failed, of all that this process may use."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise NoAnswer(f"NVML does not count its GPUs: {error}") from None
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            except self._nvml.NVMLError as error:
                if error.value != NO_PERMISSION:  # a GPU of somebody else
                    yield index, None, {"handle": [error.value, str(error)]}
                continue
            yield index, handle, {}

    def _look(self, index: int, handle: Handle | None, failed: Json, processes: bool) -> Json:
        if handle is None:
            return {"index": index, "told": {}, "failed": failed}
        nvml = self._nvml
        calls: dict[str, Callable[[], object]] = {
            "uuid": lambda: self._uuid(handle),
            "bus": lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "name": lambda: _text(nvml.nvmlDeviceGetName(handle)),
            "serial": lambda: _text(nvml.nvmlDeviceGetSerial(handle)),
            "recovery": lambda: self._field(handle, FIELD_RECOVERY_ACTION),
            "remap": lambda: nvml.nvmlDeviceGetRemappedRows(handle),
            "uncorrectable": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE),
        }
        if processes:
            calls["processes"] = lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        look = self.gpu(index, **calls)
        self._register(handle)
        if why := self._deaf.get(_address(handle)):
            look["failed"]["events"] = why
        return look

    def _utilisation(self, index: int, handle: Handle | None, failed: Json) -> Json:
        if handle is None:
            return {"index": index, "told": {}, "failed": failed}
        use = self.gpu(
            index,
            uuid=lambda: self._uuid(handle),
            rates=lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle),
            power_mw=lambda: self._nvml.nvmlDeviceGetPowerUsage(handle),
        )
        if (rates := use["told"].pop("rates", None)) is not None:
            use["told"].update(percent=rates.gpu, memory_percent=rates.memory)
        return use

    def failure(self, error: Exception) -> list[object]:
        if isinstance(error, AttributeError):  # a pynvml that is older or newer than the call
            return [FUNCTION_NOT_FOUND, str(error)]
        if not isinstance(error, self._nvml.NVMLError):
            raise error
        return [getattr(error, "value", None), str(error)]

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

    # ---- events

    def _register(self, handle: Handle) -> None:
        """Once a GPU, for what it supports: to ask for more would get nothing at all."""
        address = _address(handle)
        if address in self._deaf:
            return
        self._deaf[address] = self.asked(events=lambda: self._registered(handle))[1].get("events", [])

    def _registered(self, handle: Handle) -> None:
        if self._events is None:
            raise self._nvml.NVMLError(NOT_SUPPORTED)
        wanted = self._nvml.nvmlDeviceGetSupportedEventTypes(handle) & EVENTS
        self._nvml.nvmlDeviceRegisterEvents(handle, wanted, self._events)

    def _drain(self, tell: Tell) -> None:
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            told, _ = self.asked(event=lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0))
            event = told.get("event")
            if event is None:  # a timeout: no more; a lost GPU: the look will show it
                return
            told, _ = self.asked(uuid=partial(self._uuid, event.device))
            tell({"uuid": told.get("uuid", ""), "type": event.eventType, "data": event.eventData})


def _address(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def main() -> None:
    serve(Nvml(import_module("pynvml")).handle)

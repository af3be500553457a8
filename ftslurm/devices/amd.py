"""AMD GPUs: what amdsmi's answers mean, the probe, and the process that asks amdsmi. Written for amdsmi 6.3 to 7.0.

Codes: ECC-UNCORRECTABLE, BAD-PAGES-THRESHOLD, GPU-RESET, RING-HANG, THERMAL, GPU-LOST.
Source: amdsmi 7.0.2, amdsmi_wrapper.py (statuses, event types) and amdsmi_interface.py (answers).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ftslurm.devices.asking import Json, Library, NoAnswer, Tell, serve
from ftslurm.devices.gpu_looks import ECC_UNCORRECTABLE, GpuFinding, GpuLook, Heard, Need, ResetAnswer, as_number, read_look
from ftslurm.devices.gpu_probe import Facts, GpuProbe, is_library_here
from ftslurm.model.devices import Utilisation

KIND = "amd"
BAD_PAGES = "BAD-PAGES-THRESHOLD"

# amdsmi_status_t. Not there on this board, or not for this user: says nothing about the GPU. NOT_SUPPORTED,
# NOT_YET_IMPLEMENTED, NO_PERM, NO_DATA, FILE_NOT_FOUND (one file of sysfs for each feature), SETTING_UNAVAILABLE
SAYS_NOTHING = frozenset({2, 3, 10, 40, 52, 55})
LOST = frozenset({31})  # NOT_FOUND

# Names of AmdSmiEvtNotificationType -> our code. The driver answers a hang with a reset of its own; memory faults are
# told to the process that made them and to root alone (amdkfd/kfd_smi_events.c, kfd_smi_ev_enabled).
EVENT_CODES: Mapping[str, str] = {
    "VMFAULT": "RING-HANG",
    "RING_HANG": "RING-HANG",
    "GPU_PRE_RESET": "GPU-RESET",
    "GPU_POST_RESET": "GPU-RESET",
    "THERMAL_THROTTLE": "THERMAL",
}


def heard(event: Json) -> Heard:
    """{"bus", "event", "message"}"""
    name = str(event["event"])
    return Heard(str(event["bus"]), EVENT_CODES.get(name, ""), f"{name} {event['message']}".strip())


def look(gpu: Json) -> GpuLook:
    """As `read_look`; status: amdsmi_status_t."""
    bad, threshold = (gpu["told"].get(name) for name in ("bad_pages", "threshold"))
    full = bad is not None and threshold is not None and bad >= threshold > 0
    words = f"{bad} bad pages of {threshold} allowed" if full else ""
    return read_look(gpu, "bus", SAYS_NOTHING, LOST, words, conditions=(BAD_PAGES,) if full else ())


def need(look: GpuLook, codes: tuple[str, ...]) -> GpuFinding:
    device = f"GPU {look.bus or look.index}"
    if look.conditions:
        return GpuFinding(Need.REPLACEMENT, f"the bad pages of {device} have reached the board's threshold")
    if ECC_UNCORRECTABLE in codes:
        return GpuFinding(Need.RESET, f"an uncorrectable memory error on {device} needs a reset")
    return GpuFinding(Need.NOTHING, f"{device} answers and asks for nothing")


def utilisation(device: str, gpu: Json) -> Utilisation:
    """As `look`. amdsmi writes N/A for what it does not know; umc_activity is the share of time with memory traffic."""
    told = gpu["told"]
    activity, power = told.get("activity", {}), told.get("power", {})
    # Which of the three a board tells depends on its generation.
    drawn = [as_number(power.get(key)) for key in ("current_socket_power", "average_socket_power", "socket_power")]
    return Utilisation(
        device, KIND, as_number(activity.get("gfx_activity")), as_number(activity.get("umc_activity")),
        next((watts for watts in drawn if watts), None),
    )  # fmt: skip


def read_reset(answer: Json) -> ResetAnswer:
    """{"refused": [amdsmi_status_t, words]} or {"refused": None}"""
    if answer["refused"] is None:
        return ResetAnswer(True)
    code, words = answer["refused"]
    return ResetAnswer(False, f"reset failed (status {code}): {words}")


# ---- the probe

LIBRARY = "libamd_smi.so"


class AmdProbe(GpuProbe):
    """Reads the AMD GPUs of this node and heals them."""

    kind = KIND
    facts = Facts(heard, look, need, utilisation)
    library = "amdsmi"
    python_module = "amdsmi"
    extra = "amd"
    child = "ftslurm.devices.amd"
    visible = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    # GPUs of one XGMI hive: AMD does not promise that a reset of one leaves the others alone.
    shares_resets = True

    def present(self) -> bool:
        """/dev/kfd alone is no sign: the graphics of a desktop processor have it, and nothing could look at them."""
        rocm = self._env.get("ROCM_HOME") or self._env.get("ROCM_PATH") or "/opt/rocm"
        return is_library_here(LIBRARY, self._env, (f"{rocm}/lib",))

    def certain(self) -> bool:
        return (self._dev / "kfd").exists()

    def order_reset(self, look: GpuLook, timeout_s: float) -> ResetAnswer:
        try:
            return read_reset(self._child.ask({"ask": "reset", "bus": look.bus}, timeout_s, lambda heard: None))
        except NoAnswer as silence:
            return ResetAnswer(None, f"reset: {silence}")


# ---- the child: it tells what amdsmi answers and judges nothing

# amdsmi_status_t
DRIVER_NOT_LOADED, NO_DRIVER = 34, 51
NO_STATUS = -1  # an exception of the Python side
MOST_EVENTS = 1000
EVENTS_AT_ONCE = 10

Handle = Any


class Amdsmi(Library):
    """amdsmi in use; begun anew when a GPU fails, for the library lists its GPUs only at the start."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._smi: Any = None
        self._handles: list[Handle] = []
        self._readers: list[Any] = []

    def handle(self, request: Json, tell: Tell) -> Json:
        if self._smi is None:
            self._open()
        if request["ask"] == "utilisation":
            return {"gpus": [self._utilisation(*gpu) for gpu in enumerate(self._handles)]}
        if request["ask"] == "reset":
            return {"refused": self._reset(request["bus"])}
        return {"gpus": self._looks(tell, request["processes"])}

    def _open(self) -> None:
        try:
            smi = self._load()
        except Exception as error:  # it raises whatever comes of a library that is missing or does not fit
            raise NoAnswer(f"amdsmi cannot be imported: {type(error).__name__}: {error}") from None
        try:
            smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
            self._handles = list(smi.amdsmi_get_processor_handles())
        except smi.AmdSmiException as error:
            absent = _status(error) in (DRIVER_NOT_LOADED, NO_DRIVER)
            raise NoAnswer(f"amdsmi does not start: {_said(error)}", absent) from None
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
        look = self.gpu(index, **calls)
        asic = look["told"].pop("asic", {})
        look["told"] |= {name: asic[key] for name, key in (("name", "market_name"), ("serial", "asic_serial")) if key in asic}
        return look

    def _utilisation(self, index: int, handle: Handle) -> Json:
        return self.gpu(
            index,
            bus=lambda: self._smi.amdsmi_get_gpu_device_bdf(handle),
            activity=lambda: self._smi.amdsmi_get_gpu_activity(handle),
            power=lambda: self._smi.amdsmi_get_power_info(handle),
        )

    def failure(self, error: Exception) -> list[object]:
        if isinstance(error, self._smi.AmdSmiException):
            return [_status(error), _said(error)]
        if isinstance(error, (AttributeError, KeyError, TypeError, ValueError)):  # an answer its own Python cannot read
            return [NO_STATUS, f"{type(error).__name__}: {error}"]
        raise error

    def _reset(self, bus: str) -> list[object] | None:
        """What stands against it, None if it is done."""
        try:
            for handle in self._handles:
                if self._smi.amdsmi_get_gpu_device_bdf(handle) == bus:
                    self._smi.amdsmi_reset_gpu(handle)
                    return None
        except self._smi.AmdSmiException as error:
            return self.failure(error)
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
        told, _ = self.asked(bus=lambda: self._smi.amdsmi_get_gpu_device_bdf(handle))
        return str(told.get("bus", ""))


def _status(error: Exception) -> int:
    return int(getattr(error, "err_code", None) or NO_STATUS)


def _said(error: Exception) -> str:
    return str(getattr(error, "err_info", None) or error).strip()


def main() -> None:
    serve(Amdsmi(lambda: import_module("amdsmi")).handle)

"""What amdsmi's answers mean: looks, codes and needs of AMD GPUs. Pure, on what `amd_child` tells.

Codes: ECC-UNCORRECTABLE, BAD-PAGES-THRESHOLD, GPU-RESET, RING-HANG, THERMAL, GPU-LOST.
Source: amdsmi 7.0.2, amdsmi_wrapper.py (statuses, event types) and amdsmi_interface.py (answers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.devices.gpu.library_child import Json
from ftslurm.devices.gpu.looks import ECC_UNCORRECTABLE, Finding, GpuLook, Heard, Need, ResetAnswer, in_words
from ftslurm.model.devices import Utilisation

KIND = "amd"
BAD_PAGES = "BAD-PAGES-THRESHOLD"

# amdsmi_status_t. Not there on this board, or not for this user: says nothing about the GPU. NOT_SUPPORTED,
# NOT_YET_IMPLEMENTED, NO_PERM, NO_DATA, FILE_NOT_FOUND (one file of sysfs for each feature), SETTING_UNAVAILABLE
SAYS_NOTHING = frozenset({2, 3, 10, 40, 52, 55})
LOST = frozenset({31})  # NOT_FOUND
NO_PERM = 10

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
    """{"index", "told": {call: value}, "failed": {call: [amdsmi_status_t, words]}}"""
    told, failed = gpu["told"], gpu["failed"]
    bad, threshold = told.get("bad_pages"), told.get("threshold")
    full = bad is not None and threshold is not None and bad >= threshold > 0
    return GpuLook(
        index=int(gpu["index"]),
        identity=str(told.get("bus", "")),
        bus=str(told.get("bus", "")),
        words=_words(told, f"{bad} bad pages of {threshold} allowed" if full else ""),
        conditions=(BAD_PAGES,) if full else (),
        uncorrectable=told.get("uncorrectable"),
        lost=any(code in LOST for code, _ in failed.values()),
        trouble=in_words((call, words) for call, (code, words) in failed.items() if code not in SAYS_NOTHING),
        processes=tuple(told["processes"]) if "processes" in told else None,
    )


def _words(told: Json, pages: str) -> str:
    serial = f"serial {told['serial']}" if "serial" in told else ""
    return ", ".join(str(part) for part in (told.get("name"), told.get("uuid"), told.get("bus"), serial, pages) if part)


def need(look: GpuLook, codes: tuple[str, ...]) -> Finding:
    device = f"GPU {look.bus or look.index}"
    if look.conditions:
        return Finding(Need.REPLACEMENT, f"the bad pages of {device} have reached the board's threshold")
    if ECC_UNCORRECTABLE in codes:
        return Finding(Need.RESET, f"an uncorrectable memory error on {device} needs a reset")
    return Finding(Need.NOTHING, f"{device} answers and asks for nothing")


def utilisation(device: str, gpu: Json) -> Utilisation:
    """As `look`. amdsmi writes N/A for what it does not know; umc_activity is the share of time with memory traffic."""
    told = gpu["told"]
    activity, power = told.get("activity", {}), told.get("power", {})
    # Which of the three a board tells depends on its generation.
    drawn = [_number(power.get(key)) for key in ("current_socket_power", "average_socket_power", "socket_power")]
    return Utilisation(
        device, KIND, _number(activity.get("gfx_activity")), _number(activity.get("umc_activity")),
        next((watts for watts in drawn if watts), None),
    )  # fmt: skip


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def read_reset(answer: Json) -> ResetAnswer:
    """{"refused": [amdsmi_status_t, words]} or {"refused": None}"""
    if answer["refused"] is None:
        return ResetAnswer(True)
    code, words = answer["refused"]
    if code == NO_PERM:
        return ResetAnswer(False, f"not reset, a reset needs root: {words}")
    return ResetAnswer(False, f"reset failed (status {code}): {words}")

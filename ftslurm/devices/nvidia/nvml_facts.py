"""What NVML's answers mean: looks, codes and needs of NVIDIA GPUs. Pure, on what `nvml_child` tells.

Codes: `XID n`, `RECOVERY n`, ROW-REMAP-PENDING, ROW-REMAP-FAILURE, ECC-UNCORRECTABLE, GPU-LOST.
Sources: nvml.h as nvidia-ml-py 13.615 carries it (return values, event types, recovery actions); NVIDIA's "XID Errors"
catalogue and "GPU Memory Error Management" for what asks for a reset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ftslurm.devices.gpu.library_child import Json
from ftslurm.devices.gpu.looks import ECC_UNCORRECTABLE, Finding, GpuLook, Heard, Need, ResetAnswer, in_words
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
# Each of these comes with an Xid or with a change of state that has its own code.
EVENT_WORDS: Mapping[int, str] = {
    0x400: "memory was retired",
    0x1000: "memory error, contained",
    0x2000: "memory error, not contained",
    0x4000: "GPU unavailable",
    0x8000: "the recovery action has changed",
}
EVENTS = XID | sum(EVENT_CODES) | sum(EVENT_WORDS)

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
    words = EVENT_WORDS.get(kind, f"event {kind:#x}")
    return Heard(uuid, EVENT_CODES.get(kind, ""), words if kind not in EVENT_CODES else f"{EVENT_CODES[kind]} told")


def look(gpu: Json) -> GpuLook:
    """{"index", "told": {call: value}, "failed": {call: [nvmlReturn_t, words]}}"""
    told, failed = gpu["told"], gpu["failed"]
    returns = {int(code) for code, _ in failed.values()}
    recovery = told.get("recovery")
    return GpuLook(
        index=int(gpu["index"]),
        identity=str(told.get("uuid", "")),
        bus=str(told.get("bus", "")),
        words=_words(told, failed),
        conditions=tuple(_conditions(told, recovery, RESET_REQUIRED in returns)),
        uncorrectable=told.get("uncorrectable"),
        recovery=recovery,
        lost=bool(returns & LOST),
        trouble=in_words((call, words) for call, (code, words) in failed.items() if code not in SAYS_NOTHING | {RESET_REQUIRED}),
        processes=tuple(told["processes"]) if "processes" in told else None,
    )


def _words(told: Json, failed: Json) -> str:
    serial = f"serial {told['serial']}" if "serial" in told else ""
    deaf = f"no events: {failed['events'][1]}" if "events" in failed else ""
    return ", ".join(str(part) for part in (told.get("name"), told.get("uuid"), told.get("bus"), serial, deaf) if part)


def _conditions(told: Json, recovery: int | None, reset_required: bool) -> list[str]:
    _, _, pending, failure = told.get("remap", (0, 0, 0, 0))
    codes = [f"RECOVERY {recovery}"] if recovery else ["RECOVERY 1"] if reset_required else []
    return codes + [REMAP_PENDING] * bool(pending) + [REMAP_FAILURE] * bool(failure)


def need(look: GpuLook, codes: tuple[str, ...]) -> Finding:
    """What the GPU needs, by its state first and then by the codes it is to be rid of."""
    device = f"GPU {look.bus or look.index}"
    for finding in (*_needs_of_state(look, device), *_needs_of_codes(look, codes, device)):
        return finding
    return Finding(Need.NOTHING, f"{device} answers and asks for nothing")


def _needs_of_state(look: GpuLook, device: str) -> list[Finding]:
    findings = []
    for code in look.conditions:
        if code.startswith("RECOVERY "):
            number = int(code.removeprefix("RECOVERY "))
            unknown = (Need.TIME, True, f"recovery action {number}, which is not known here")
            remedy, may_pass, words = ACTIONS.get(number, unknown)
            findings.append(Finding(remedy, f"the driver asks for {words} on {device}", may_pass=may_pass))
        elif code == REMAP_PENDING:
            findings.append(Finding(Need.RESET, f"a row remap is pending on {device}, which needs a reset"))
        else:
            findings.append(Finding(Need.REPLACEMENT, f"a row remap has failed on {device}: no spare rows"))
    # The worst counts: who needs another node is not helped by a reset.
    return sorted(findings, key=lambda finding: finding.need is not Need.REPLACEMENT)


def _needs_of_codes(look: GpuLook, codes: tuple[str, ...], device: str) -> list[Finding]:
    xids = {int(code.removeprefix("XID ")) for code in codes if re.fullmatch(r"XID \d{1,9}", code)}
    for number in sorted(xids & REPLACE_XIDS):
        return [Finding(Need.REPLACEMENT, f"no reset helps against Xid {number} on {device}")]
    for number in sorted(xids & RESET_XIDS):
        return [Finding(Need.RESET, f"Xid {number} on {device} needs a reset")]
    # Drivers that name a recovery action know whether the error was contained; of the others nobody knows it.
    if ECC_UNCORRECTABLE in codes and look.recovery is None:
        return [Finding(Need.RESET, f"an uncorrectable memory error on {device} needs a reset")]
    return []


def utilisation(device: str, gpu: Json) -> Utilisation:
    """As `look`; NVML's memory figure is the share of time with traffic, its power comes in milliwatts."""
    told = gpu["told"]
    power = told.get("power_mw")
    return Utilisation(
        device, KIND, _float(told.get("percent")), _float(told.get("memory_percent")),
        None if power is None else power / 1000,
    )  # fmt: skip


def _float(number: Any) -> float | None:
    return None if number is None else float(number)


# ---- nvidia-smi --gpu-reset

_NEEDS_ROOT = ("insufficient permissions", "you are not root", "requires root", "permission denied")
_IN_USE = ("in use by another", "currently in use", "currently being used", "being used by some other process")


def parse_reset(status: int | None, text: str) -> ResetAnswer:
    """How `nvidia-smi --gpu-reset` ended, by its words; status None: the time limit ended it."""
    if status is None:
        return ResetAnswer(None, "reset: nvidia-smi gave no answer in time")
    said = " ".join(line.strip() for line in text.splitlines() if line.strip())[:300] or "no word"
    lower = said.lower()
    if status == 0 and "successfully reset" in lower:
        return ResetAnswer(True)
    if any(words in lower for words in _NEEDS_ROOT):
        return ResetAnswer(False, f"not reset, a reset needs root: {said}")
    if any(words in lower for words in _IN_USE):
        return ResetAnswer(False, f"not reset, something still holds the GPU (monitoring counts too): {said}")
    return ResetAnswer(False, f"reset failed (status {status}): {said}")

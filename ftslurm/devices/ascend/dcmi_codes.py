"""What the driver's library answers instead of a value: its return codes, in words.

Source: "Return Codes" in the DCMI API references (2026). npu-smi passes them on in its texts (`ret is -8020`).
"""

from __future__ import annotations

import re

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


def explained(text: str) -> str:
    """`text` of npu-smi with the words of the return code it names, if it names one."""
    told = _TOLD.search(text)
    words = _WORDS.get(int(told[1])) if told else None
    return f"{text} ({words})" if words else text

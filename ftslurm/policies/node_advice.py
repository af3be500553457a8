"""What a person can do about a node that was left or drained: its reason in, one sentence out. Pure.

A code in the reason is looked up in the catalogues, whose remedy and note say it; where none is named, the kind of proof does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ftslurm.model.devices import Remedy
from ftslurm.model.values import Value

_OF: Mapping[Remedy, str] = {
    Remedy.LOG: "nothing to do: it is only worth knowing",
    Remedy.SUSPECT: "watch it: have it looked at if it comes back",
    Remedy.RESTART: "nothing to do: a restart of the processes is enough; if it comes back, reset the device",
    Remedy.RESET: "reset the device while no job uses it; if it comes back, reboot the node, then replace the device",
    Remedy.AVOID: "reset the device or reboot the node while no job uses it",
    Remedy.REPLACE: "replace the device, if a reboot does not mend it",
    Remedy.FAIL: "other software or firmware is needed on it",
    Remedy.UNKNOWN: "ask the vendor's support, if a reboot does not mend it",
}
# Where the milder one has not lasted.
_HARDER = {Remedy.LOG: Remedy.SUSPECT, Remedy.SUSPECT: Remedy.RESET, Remedy.RESTART: Remedy.RESET, Remedy.RESET: Remedy.REPLACE}
# Of a reason without a code: what stands in it, what to do. The first that fits.
_WITHOUT = (
    (r"\bof \d+ \w+ devices are there", "power-cycle the node; if the device stays away, reseat or replace it"),
    (r"^command: ", "mend what the site's health command complains about"),
    (r"^kernel log: ", "reboot the node; if it comes back, have the hardware inspected"),
    (r"unkillable|uninterruptible|outlived SIGKILL|leftover", "reboot the node: a process on it cannot be killed"),
    (r"slurmd|Slurm says|no answer|silent|unreachable|does not answer", "see whether it is up: power, network, slurmd"),
    (r"health check|health command", "mend what the site's health command complains about"),
)


class KnownCode(Value):
    """A code that is in the catalogues. note: what they say besides, for people."""

    code: str
    remedy: Remedy
    note: str = ""


def advice(reason: str, known: Iterable[KnownCode]) -> str:
    """One sentence; empty where nobody knows better than the reason itself. known: the codes in it; the worst counts."""
    worst = max(known, key=lambda each: tuple(Remedy).index(each.remedy), default=None)
    if worst is not None:
        more = _HARDER.get(worst.remedy, worst.remedy) if "again and again" in reason else worst.remedy
        return worst.note if worst.note and more is worst.remedy else _OF[more]
    bare = reason.removeprefix("ftslurm: ")
    return next((what for pattern, what in _WITHOUT if re.search(pattern, bare)), "")

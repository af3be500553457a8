"""What the kernel of a node has said about it: records of /dev/kmsg in, findings out.

Only what the catalogue blames on the node is proof. Lines in which a user's own text or own disk image can stand are
passed over: to drain a node must not be in a user's power.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftslurm.model.devices import FaultClass, Severity
from ftslurm.model.verdict import Blame
from ftslurm.policies.health import Finding, Meaning, NodeHealth

if TYPE_CHECKING:
    from ftslurm.policies.patterns import PatternBook  # RE2 takes a while to load, and most looks find no new line

# "priority,sequence,time,flags;text"; priority is facility * 8 + level. Source: Documentation/ABI/testing/dev-kmsg.
_RECORD = re.compile(rb"(\d{1,10}),(\d{1,20}),[^;]{1,100};(.*)")
_KERNEL_FACILITY = 0
# audit names files and commands; traps, segfaults and the like name programs; loop devices are files, of users too
# (Apptainer's overlays); fuse and overlay are mounted by anybody.
_OF_USERS = re.compile(rb"^(?:audit|traps|fuse|overlayfs)\b|\bloop\d|segfault at")
_XID = re.compile(r"NVRM: Xid \([^)]{1,64}\)(?: \S+)?: (\d{1,6}),")
_SXID = re.compile(r"SXid \([^)]{1,64}\): (\d{1,6}),")
# More proof than this makes nobody wiser.
MAX_FINDINGS = 3


@dataclass(frozen=True, slots=True)
class KernelLine:
    """sequence: counts all lines since the boot."""

    sequence: int
    text: bytes


def parse(data: bytes, after: int) -> tuple[KernelLine, ...]:
    """The kernel's own lines beyond number `after`; what programs have written there, and continuations, are left out."""
    lines = []
    for raw in data.split(b"\n"):
        found = _RECORD.fullmatch(raw)
        if found and int(found[1]) >> 3 == _KERNEL_FACILITY and int(found[2]) > after:
            lines.append(KernelLine(int(found[2]), found[3]))
    return tuple(lines)


def last_sequence(data: bytes, before: int) -> int:
    """The highest number in `data`, or `before`."""
    return max((int(found[2]) for raw in data.split(b"\n") if (found := _RECORD.fullmatch(raw))), default=before)


def findings(lines: Iterable[KernelLine], book: PatternBook, meaning: Meaning) -> tuple[Finding, ...]:
    """The first lines that convict the node; a conviction stays until the node is booted."""
    found = []
    for line in lines:
        if _OF_USERS.search(line.text):
            continue
        if what := _proof(line.text, book, meaning):
            found.append(Finding("kernel log", NodeHealth.BAD, what, stays=True))
        if len(found) == MAX_FINDINGS:
            break
    return tuple(found) or (Finding("kernel log", NodeHealth.GOOD),)


def _proof(line: bytes, book: PatternBook, meaning: Meaning) -> str:
    text = line.decode(errors="replace")
    for numbered, word in ((_XID, "XID"), (_SXID, "SXID")):
        if found := numbered.search(text):
            said = meaning("nvidia", f"{word} {found[1]}", Severity.UNKNOWN)
            guilty = said.fault_class is FaultClass.ISOLATE and not said.user_induced
            return f"{said.code} ({said.name})" if guilty else ""
    pattern = book.line(line)
    if pattern is None or pattern.where not in ("kernel", "any") or pattern.blame is not Blame.YES:
        return ""
    return f"{pattern.name} [{text.strip()[:80]}]"

"""What the kernel of a node has said about it: records of /dev/kmsg in, findings out.

Only what the catalogue blames on the node is proof, and of that only lines that begin as no user's text can: names of processes,
command lines and options of mounts stand in many lines, and to drain a node must not be in a user's power.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ftslurm.model.devices import FaultClass, Severity
from ftslurm.model.verdict import Blame
from ftslurm.policies.node import Meaning, NodeFinding, NodeHealth

if TYPE_CHECKING:
    from ftslurm.catalogs.patterns import PatternBook

# "priority,sequence,time,flags;text"; priority is facility * 8 + level, flags is "-" for a line that is no piece of another.
# The kernel escapes what is not printable, so a record is one line. Source: Documentation/ABI/testing/dev-kmsg.
_RECORD = re.compile(rb"(\d{1,10}),(\d{1,20}),([^;]{1,100});(.*)")
_WHOLE = re.compile(rb"\d{1,20},-(?:,.*)?")
_KERNEL_FACILITY = 0
_PCI = rb"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
# Disks of the node: loop devices and device mappers may be files of users (Apptainer's overlays).
_DISK = rb"(?:(?:sd|vd|xvd)[a-z]{1,3}\d{0,3}|(?:nvme\d{1,3}n|md|mmcblk)\d{1,3}(?:p\d{1,3})?)"
_READ_OR_WRITE = rb", sector \d+(?! op 0x(?:3|9):)\b"  # a disk may refuse to discard or to write zeroes
# Between the number of a request and its queue newer kernels tell the command: `(c281) opcode 0x1 (I/O Cmd)`.
_NVME_COMMAND = rb"(?: \([^()]{1,40}\)| opcode 0x[0-9a-f]{1,2}){0,3}"
# What a line that convicts begins with, beside what vendors' drivers write (`kernel` in log-patterns.yaml). None of it can be a
# user's: a process may be called what it likes, but only in 15 characters, and then the words of the kernel follow. What a user
# may write into the rest of the line is not looked at.
_DRIVERS = tuple(re.compile(line) for line in (
    rb"(?:mce: |\{\d{1,6}\})?\[Hardware Error\]: .*",
    rb"EDAC MC\d{1,3}: \d{1,9} UE [\w -]{1,60} error on ",
    rb"EXT4-fs error \(device " + _DISK + rb"\)",
    rb"XFS \(" + _DISK + rb"\): (?:Corruption|metadata I/O error)",
    rb"(?:(?:blk_update_request|print_req_error): )?(?:I/O|critical medium) error, dev " + _DISK + _READ_OR_WRITE,
    rb"Buffer I/O error on dev(?:ice)? " + _DISK + rb", logical block \d",
    rb"nvme nvme\d{1,3}: controller is down; will reset",
    rb"nvme nvme\d{1,3}: I/O (?:tag )?\d{1,7}" + _NVME_COMMAND + rb" QID \d{1,5} timeout, reset controller",
    rb"mlx5_core " + _PCI + rb"(?: \w{1,20})?: .*",
    rb"[\w-]{1,40} " + _PCI + rb": AER: (?:Multiple )?Uncorrected \(Fatal\) error",
    rb"[\w-]{1,40} " + _PCI + rb": PCIe Bus Error: severity=Uncorrected \(Fatal\)",
    rb"(?:NMI )?watchdog: Watchdog detected hard LOCKUP on cpu \d",
    rb"Kernel panic - not syncing: ",
    rb"BUG: unable to handle (?:kernel )?(?:page fault|NULL pointer)",
    rb"general protection fault(?:, probably for [a-z -]{1,40}0x[0-9a-f]{1,16})?: [0-9a-f]{4} \[#\d",
))  # fmt: skip
# More proof than this makes nobody wiser.
MAX_FINDINGS = 3


def parse_kernel_log(data: bytes, after: int) -> tuple[bytes, ...]:
    """The kernel's own lines beyond number `after`; what programs have written there, and continuations, are left out."""
    lines = []
    for raw in data.split(b"\n"):
        found = _RECORD.fullmatch(raw)
        if found and int(found[1]) >> 3 == _KERNEL_FACILITY and _WHOLE.fullmatch(found[3]) and int(found[2]) > after:
            lines.append(found[4])
    return tuple(lines)


def last_kernel_line(data: bytes, before: int) -> int:
    """The highest number in `data`, or `before`."""
    return max((int(found[2]) for raw in data.split(b"\n") if (found := _RECORD.fullmatch(raw))), default=before)


def kernel_findings(lines: Iterable[bytes], book: PatternBook, meaning: Meaning) -> tuple[NodeFinding, ...]:
    """The first lines that convict the node; a conviction stays until the node is booted."""
    found = []
    for line in lines:
        if what := _proof(line, book, meaning):
            found.append(NodeFinding("kernel log", NodeHealth.BAD, what, stays=True))
        if len(found) == MAX_FINDINGS:
            break
    return tuple(found) or (NodeFinding("kernel log", NodeHealth.GOOD),)


def _proof(line: bytes, book: PatternBook, meaning: Meaning) -> str:
    of_driver = next((found[0] for driver in (*_DRIVERS, *book.of_drivers) if (found := driver.match(line))), None)
    pattern = book.line(of_driver) if of_driver is not None else None
    if of_driver is None or pattern is None or pattern.where != "kernel":
        return ""
    if code := pattern.code_in(of_driver):
        said = meaning(code.kind, code.words, Severity.UNKNOWN)
        guilty = said.fault_class is FaultClass.ISOLATE and not said.user_induced
        return f"{said.code} ({said.name})" if guilty else ""
    return f"{pattern.name} [{of_driver.decode(errors='replace').strip()[:80]}]" if pattern.blame is Blame.YES else ""

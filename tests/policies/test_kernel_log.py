"""Which lines of the kernel's log speak against a node."""

from __future__ import annotations

import pytest

from ftslurm.policies import kernel_log
from ftslurm.policies.health import NodeHealth, judge
from ftslurm.wrapper.catalogs import load_pattern_book
from ftslurm.wrapper.wiring import lazy_meaning

BOOK = load_pattern_book()
MEANING = lazy_meaning(())


def health(text: str, priority: int = 2) -> NodeHealth:
    lines = kernel_log.parse(f"{priority},7,1,-;{text}\n SUBSYSTEM=pci\n".encode(), -1)
    return judge(kernel_log.findings(lines, BOOK, MEANING)).health


@pytest.mark.parametrize("text", [
    "NVRM: Xid (PCI:0000:18:00): 79, pid=7, name=python, GPU has fallen off the bus.",
    "EXT4-fs error (device sda1): ext4_find_entry:1456: inode #2: comm python: reading directory lblock 0",
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff",
    "blk_update_request: I/O error, dev sda, sector 99",
    "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
    "BUG: unable to handle page fault for address: ffffa0",
    "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT SMP",
    "general protection fault: 0000 [#1] SMP",
])
def test_it_convicts(text: str) -> None:
    assert health(text) is NodeHealth.BAD


@pytest.mark.parametrize("text", [
    "NVRM: Xid (PCI:0000:18:00): 31, pid=7, name=python",
    "NVRM: Xid (PCI:0000:18:00): 13, pid=7, name=EXT4-fs error",
    "NVRM: Xid (PCI:0000:18:00): 99999, what nobody knows",
    "traps: python[7] general protection fault ip:7f1 sp:7ff error:0 in libtorch.so[7f0+1000]",
    "python[7]: segfault at 0 ip 0 sp 0 error 4 in EXT4-fs error",
    "EXT4-fs error (device loop3): ext4_find_entry: an overlay of a user's container",
    "Buffer I/O error on dev loop7, logical block 0",
    'audit: type=1326 auid=1000 exe="/home/eve/EXT4-fs error (device sda1)"',
    "fuse: Remounting filesystem read-only",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC0: 3 CE memory read error",
    "INFO: task python:991 blocked for more than 120 seconds.",
    "Out of memory: Killed process 7 (python)",
])
def test_it_does_not(text: str) -> None:
    assert health(text) is NodeHealth.GOOD


def test_what_a_program_wrote_there_counts_for_nothing() -> None:
    assert health("EXT4-fs error (device sda1): x", priority=14) is NodeHealth.GOOD


def test_each_line_counts_once() -> None:
    data = b"2,5,1,-;EXT4-fs error (device sda1)\nrubbish\n9,9\n2,6,1,-,more;x\n\xff\xfe;\n"
    assert [line.sequence for line in kernel_log.parse(data, -1)] == [5, 6]
    assert kernel_log.last_sequence(data, -1) == 6
    assert kernel_log.parse(data, 6) == () and kernel_log.last_sequence(b"", 6) == 6

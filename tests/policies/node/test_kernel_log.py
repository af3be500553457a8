"""Which lines of the kernel's log speak against a node."""

from __future__ import annotations

import pytest

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.policies.kernel_log import kernel_findings, last_kernel_line, parse_kernel_log
from ftslurm.policies.node import NodeHealth, judge

BOOK = load_pattern_book()
MEANING = fault_lookup(())


def health(text: str, priority: int = 2) -> NodeHealth:
    lines = parse_kernel_log(f"{priority},7,1,-;{text}\n SUBSYSTEM=pci\n".encode(), -1)
    return judge(kernel_findings(lines, BOOK, MEANING)).health


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:18:00): 79, pid=7, name=python, GPU has fallen off the bus.",
        "EXT4-fs error (device sda1): ext4_find_entry:1456: inode #2: comm python: reading directory lblock 0",
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff",
        "blk_update_request: I/O error, dev sda, sector 99",
        "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
        "mce: [Hardware Error]: Uncorrected error in bank 4",
        "{1}[Hardware Error]: event severity: fatal",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 23001, Fatal, Link 30 fault",
        "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x22:0x56:667)",
        "mlx5_core 0000:3b:00.0: poll_health:800:(pid 0): Fatal error 3 detected",
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
        "critical medium error, dev nvme0n1, sector 99 op 0x0:(READ) flags 0x80700",
        "Buffer I/O error on dev sda1, logical block 0, lost async page write",
        "XFS (nvme0n1p2): Corruption of in-memory data detected. Shutting down filesystem",
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1456: inode #2: comm card drop: reading directory lblock 0",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
        "BUG: unable to handle page fault for address: ffffa0",
        "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT SMP",
        "general protection fault: 0000 [#1] SMP",
        "print_req_error: I/O error, dev sdc, sector 1098288304 flags 0",
        "blk_update_request: I/O error, dev nvme0n1, sector 500118016 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0",
        "I/O error, dev nvme0n1, sector 131209936 op 0x0:(READ) flags 0x80700 phys_seg 25 prio class 0",
        "I/O error, dev sda, sector 4217392 op 0x1:(WRITE) flags 0x9800 phys_seg 7 prio class 2",
        "nvme nvme0: I/O 22 QID 3 timeout, reset controller",
        "nvme nvme0: I/O 22 (I/O Cmd) QID 3 timeout, reset controller",
        "nvme nvme0: I/O tag 641 (c281) opcode 0x1 (I/O Cmd) QID 8 timeout, reset controller",
    ],
)
def test_it_convicts(text: str) -> None:
    assert health(text) is NodeHealth.BAD


@pytest.mark.parametrize(
    "text",
    [
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
        "tmpfs: Unknown parameter 'EXT4-fs error (device sda1)'",
        "card drop invoked oom-killer: gfp_mask=0xcc0",
        "Out of memory: Killed process 7 (card drop) total-vm:1kB",
        "INFO: task card drop:991 blocked for more than 120 seconds.",
        "x86/split lock detection: #AC: EXT4-fs error/123 took a split_lock trap at address: 0x1",
        'ptrace attach of "sh -c NVRM: Xid (PCI:0000:18:00): 79, x"[7] was attempted by "gdb"[8]',
        'ptrace attach of "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 23001, x"[7] was attempted by "gdb"[8]',
        "EDAC MC0: 1 UE : page allocation failure: order:0, mode:0x1, nodemask=(null)",
        "nvme nvme0: page allocation failure: order:0",
        "EXT4-fs error (: page allocation failure: order:0",
        "EXT4-fs error (device dm-3): ext4_find_entry: an image",
        "amdgpu 0000:63:00.0: amdgpu: GPU reset begin!",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=2",
        "blk_update_request: I/O error, dev fd0, sector 0",
        "blk_update_request: I/O error, dev sr0, sector 0",
        "blk_update_request: operation not supported error, dev nvme0n1, sector 0 op 0x9:(WRITE_ZEROES) flags 0x800",
        "blk_update_request: I/O error, dev sda, sector 12345 op 0x9:(WRITE_ZEROES) flags 0x800",
        "pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:01:00.0",
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
        "mlx5_core 0000:3b:00.0 eth0: Link up",
        "I/O error, dev loop7, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        "I/O error, dev sda, sector 12345 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 0",
        "critical target error, dev sda, sector 12345 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        "I/O error, dev : page allocation failure: order:0, mode:0x1, nodemask=(null)",
        "nvme nvme0: I/O: page allocation failure: order:0, mode:0x1, nodemask=(null)",
        "nvme nvme0: I/O tag 641 (c281) opcode 0x1 (I/O Cmd) QID 8 timeout, aborting req_op:WRITE(1) size:4096",
        "nvme nvme0: I/O 22 QID 3 timeout, completion polled",
    ],
)
def test_it_does_not(text: str) -> None:
    assert health(text) is NodeHealth.GOOD


def test_what_a_program_wrote_there_counts_for_nothing() -> None:
    assert health("EXT4-fs error (device sda1): x", priority=14) is NodeHealth.GOOD


def test_a_piece_of_a_line_counts_for_nothing() -> None:
    assert parse_kernel_log(b"2,5,1,c;EXT4-fs error (device sda1)\n2,6,1,+;x\n2,7,1,-,caller=T1;x", -1) == (b"x",)


def test_each_line_counts_once() -> None:
    data = b"2,5,1,-;EXT4-fs error (device sda1)\nrubbish\n9,9\n2,6,1,-,more;x\n\xff\xfe;\n"
    assert parse_kernel_log(data, -1) == (b"EXT4-fs error (device sda1)", b"x")
    assert last_kernel_line(data, -1) == 6
    assert parse_kernel_log(data, 6) == () and last_kernel_line(b"", 6) == 6


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # by drivers/nvme/host/pci.c of Linux 5.4, 6.1 and 6.8
        ("nvme nvme0: I/O 22 QID 3 timeout, aborting", "nvme-late"),
        ("nvme nvme0: I/O 22 (I/O Cmd) QID 3 timeout, aborting", "nvme-late"),
        ("nvme nvme0: I/O tag 641 (c281) opcode 0x1 (I/O Cmd) QID 8 timeout, aborting req_op:WRITE(1) size:4096", "nvme-late"),
        ("nvme nvme0: I/O 22 QID 3 timeout, completion polled", "nvme-late"),
        ("nvme nvme0: I/O 22 QID 3 timeout, reset controller", "disk-io-kernel"),
        ("nvme nvme0: I/O tag 641 (c281) opcode 0x1 (I/O Cmd) QID 8 timeout, reset controller", "disk-io-kernel"),
        ("I/O error, dev nvme0n1, sector 131209936 op 0x0:(READ) flags 0x80700 phys_seg 25 prio class 0", "disk-io-kernel"),
        ("print_req_error: I/O error, dev sdc, sector 1098288304 flags 0", "disk-io-kernel"),
        ("Buffer I/O error on device nvme0n1p1, logical block 1066386", "disk-io-kernel"),
        ("blk_update_request: operation not supported error, dev nvme0n1, sector 0 op 0x9:(WRITE_ZEROES) flags 0x800", None),
    ],
)
def test_the_forms_of_several_kernels_are_known(text: str, named: str | None) -> None:
    found = BOOK.line(text.encode())
    assert (found.id if found else None) == named


# A process's name has 15 characters, and those that follow are the kernel's: `name[pid]: ...` of arm64 and most others, `name
# (pid): ...`, `name: ...`; at their end the name of a file, which is a user's as well.
AFTER_A_NAME = (
    "[7]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 translation fault in {}[aaaa+1000]",
    "[7]: unhandled exception: undefined instruction, ESR 0x0, in {}[aaaa+1000]",
    " (7): undefined instruction: pc=0000 in {}",
    ": page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), cpuset={}",
)
FILES = ("x", ": 79,", "): 79,", ") GPU: 79, x", "x): 79, pid=7")
CONVICTING = [text for mark in test_it_convicts.pytestmark for text in mark.args[1]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", [*CONVICTING, "NVRM: Xid (PCI:x): 79,", "nvidia-nvswitch3: SXid (PCI:"])
def test_no_process_called_as_a_line_begins_convicts_the_node(text: str) -> None:
    for name in {text[:length] for length in range(1, 16)}:
        for rest in AFTER_A_NAME:
            for file in FILES:
                assert health(name + rest.format(file)) is not NodeHealth.BAD, name


@pytest.mark.parametrize("text", [
    "NVRM: Xid (PCI:0000:18:00.0): 79, pid=7", "NVRM: Xid (PCI:0009:01:00 GPU-I:01): 79, pid=7", "NVRM: Xid (PCI:0000:0F:00) GPU-I:05: 79, pid=7",
])  # fmt: skip
def test_an_xid_of_any_place_convicts(text: str) -> None:
    assert health(text) is NodeHealth.BAD

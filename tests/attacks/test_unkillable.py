"""A user whose processes not even SIGKILL ends, because they wait for what the user controls: no node is drained for them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.attacks.test_forks import AWAY, HER, tell

# One after the other: what is aborted are all connections of hers on this machine.
pytestmark = pytest.mark.xdist_group("unkillable")

# Mounts FUSE in a user namespace and answers nothing but the first request, so that whatever asks for more waits. asks: what
# is asked, each by a process of its own.
FUSE = """
import ctypes, os, struct, sys, time
device, place = {device!r}, {place!r}
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNS = 0x10000000, 0x20000
user, group = os.getuid(), os.getgid()
assert libc.unshare(NEWUSER | NEWNS) == 0, os.strerror(ctypes.get_errno())
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{user}} 1"), ("gid_map", f"0 {{group}} 1")):
    with open(f"/proc/self/{{name}}", "w") as file:
        file.write(text)
fd = os.open(device, os.O_RDWR)
options = f"fd={{fd}},rootmode=40000,user_id=0,group_id=0".encode()
assert libc.mount(b"x", place.encode(), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
for ask in {asks}:
    if os.fork() == 0:
        ask(place + "/x")
        os._exit(0)
unique = struct.unpack("<IIQ", os.read(fd, 1 << 17)[:16])[2]  # INIT
ready = struct.pack("<IIIIHHIIHHI", 7, 31, 0x20000, 0, 12, 10, 4096, 1, 32, 0, 0).ljust(64, b"\\0")
os.write(fd, struct.pack("<IiQ", 16 + len(ready), 0, unique) + ready)
os.read(fd, 1 << 17)  # a signal would end a request that nobody has read
time.sleep(1000)
"""


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with /dev/fuse as Debian's users find it: open to all."""
    folder = tmp_path_factory.mktemp("fuse", numbered=True)
    for path in (folder, *list(folder.parents)[: len(folder.parents) - 2]):
        path.chmod(0o755)
    (folder / "mount").mkdir(0o777)
    try:
        os.mknod(folder / "fuse", 0o20666, os.stat("/dev/fuse").st_rdev)
        os.chmod(folder / "fuse", 0o666)
    except OSError:
        pytest.skip("this machine has no FUSE")
    yield folder


@pytest.mark.parametrize("asks", ["(os.stat,)", "(os.mkdir, os.mkdir)"], ids=["asks", "holds-a-lock"])
def test_who_waits_in_a_file_system_of_her_own_ends(shared: Path, asks: str) -> None:
    """Of two that make something in one folder the second waits for the lock that the first one holds."""
    program = AWAY + FUSE.format(device=str(shared / "fuse"), place=str(shared / "mount"), asks=asks)
    said = tell(f"her({program!r})\nawait_hers({2 + asks.count(', os')})\nepilog()\nprint(len(all_of_hers()), 'alive')")
    assert " 0 stuck; gone in " in said and said.endswith("\n0 alive\n"), said


def test_where_nothing_can_be_aborted_the_node_is_not_at_fault(shared: Path) -> None:
    program = AWAY + FUSE.format(device=str(shared / "fuse"), place=str(shared / "mount"), asks="(os.stat,)")
    no_control = "from ftslurm.system import remains; real, remains.abort_fuse = remains.abort_fuse, lambda *_: 0"
    said = tell(
        f"{no_control}\nher({program!r})\nawait_hers(2)\nepilog()\nprint(real({HER}, (one.pid for one in all_of_hers()), False), 'aborted')\n"
        "time.sleep(0.5)\nprint(len(all_of_hers()), 'alive')"
    )
    assert " 0 stuck; some stay: " in said and said.endswith("1 aborted\n0 alive\n"), said


def test_nor_for_what_is_frozen_in_a_group_that_is_no_job_s() -> None:
    """As a container's or a service's may be. Of v1, where SIGKILL waits for the thaw."""
    group = Path(f"/sys/fs/cgroup/freezer/ftslurm-test-{os.getpid()}")
    if not group.parent.is_dir():
        pytest.skip("no freezer of cgroups v1 here")
    group.mkdir()
    try:
        enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')"
        freeze = f"open({str(group / 'freezer.state')!r}, 'w').write('FROZEN')"
        program = f"{AWAY}{enter}\nimport time\nos.setgid({HER}); os.setuid({HER}); time.sleep(1000)"
        said = tell(
            f"subprocess.run([sys.executable, '-c', {program!r}], check=True)\nawait_hers(1)\n{freeze}\nepilog()\n{freeze.replace('FROZEN', 'THAWED')}"
        )
        assert " 0 stuck; some stay: " in said, said
    finally:
        (group / "freezer.state").write_text("THAWED")
        deadline = time.monotonic() + 10
        while group.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                group.rmdir()
            time.sleep(0.1)


# Her setuid program in a friend's hands, and a friend's in hers: the parent is the friend's, the child hers.
BELOW_A_FRIEND = f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        child = subprocess.Popen(["sleep", "1001"], user={HER}, group={HER}, extra_groups=[])
        os.setuid({HER} + 1)
        child.wait()
        os._exit(0)
    os._exit(0)
"""


def test_another_user_s_process_looks_after_none_of_hers() -> None:
    said = tell(f"{BELOW_A_FRIEND}\nawait_hers(1)\nepilog()\nprint(len(all_of_hers()), 'alive')")
    assert " 0 stuck; gone in " in said and said.endswith("\n0 alive\n"), said
    assert subprocess.run(["pkill", "-u", str(HER + 1), "-x", "python3.11"], check=False).returncode in (0, 1)

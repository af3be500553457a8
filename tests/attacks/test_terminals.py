"""A user whose programs root runs, and who steers them (ptrace(2)): what she can do from there.

Whoever has root's terminal can type into it (TIOCSTI), and root's shell runs what was typed.
"""

from __future__ import annotations

import os
import pty
import select
import sys
import time

import pytest

from ftslurm.system import owner
from ftslurm.system.commands import Group
from tests.attacks.users import OWNER

TYPES = """
import fcntl, termios, os
try:
    fd = os.open("/dev/tty", os.O_RDWR)
    for char in b"id\\n":
        fcntl.ioctl(fd, termios.TIOCSTI, bytes([char]))
except OSError as error:
    print(error)
print("of", os.getpid() == os.getsid(0), sorted(os.listdir("/proc/self/fd"))[:5])
"""


def _read(group: Group) -> str:
    assert group.has_ended(30.0)
    return group.end().stdout


WAYS = {"read": lambda her, argv: _read(owner.start_as(her, argv, 5000)),
        "done": lambda her, argv: owner.run_as(her, argv, 30.0, {"PATH": owner.PATH}).stdout}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_what_root_runs_as_her_has_no_terminal_of_root_s(way: str) -> None:
    child, terminal = pty.fork()
    if child == 0:
        try:
            said = WAYS[way](owner.Owner(OWNER, OWNER, "nobody", owner.Path("/")), [sys.executable, "-c", TYPES])
            typed = select.select([0], [], [], 1.0)[0]
            os.write(1, f"{said}typed: {os.read(0, 100) if typed else None}\n".encode())  # pytest has print's
        finally:
            os._exit(0)
    shown, until = b"", time.monotonic() + 60
    try:
        while b"typed: " not in shown.rpartition(b"\n")[0] and time.monotonic() < until:
            try:
                shown += os.read(terminal, 4096) if select.select([terminal], [], [], 1.0)[0] else b""
            except OSError:
                break
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    assert b"typed: None" in shown and b"No such device or address" in shown and b"of True" in shown, shown


def test_there_is_no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes another user goes by run_group, which makes a session of its own."""
    names = {
        name for name, value in vars(owner).items() if callable(value) and getattr(value, "__module__", "") == owner.__name__
    }
    assert names == {"Owner", "owner_of", "people", "run_as", "start_as", "user_name", "_modest", "_becoming", "_owners_in"}, (
        names
    )

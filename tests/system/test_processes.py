"""Which processes there are, however odd they make themselves, and their end."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftslurm.system import processes
from ftslurm.system.processes import all_processes, commands_of, end_processes, still_there

WAIT_S = 60.0
EXIT_OF_ONE_THREAD = {"x86_64": 60, "aarch64": 93}


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))
        return running[-1]

    yield start
    for one in running:
        one.kill()
        one.wait()


def test_each_is_seen_with_whose_it_is(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = started("sleep", "1000")
    wait_for(lambda: commands_of([child.pid]) == {child.pid: "sleep 1000"})
    seen = all_processes()
    assert (seen[child.pid].parent, seen[child.pid].user_id, seen[child.pid].name) == (os.getpid(), os.getuid(), "sleep")
    assert seen[os.getpid()].started <= seen[child.pid].started
    assert not seen[child.pid].login or "/user.slice/" in Path("/proc/self/cgroup").read_text()


def test_whose_command_line_is_read_too_late_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ps").write_text("#!/bin/sh\nexec /bin/sleep 1000\n")
    (tmp_path / "ps").chmod(0o755)
    monkeypatch.setattr(processes, "PATH", str(tmp_path))
    monkeypatch.setattr(processes, "COMMANDS_LIMIT_S", 0.2)
    assert commands_of([1]) == {}
    (tmp_path / "ps").unlink()
    assert commands_of([1]) == {}


def test_a_name_with_brackets_and_line_ends_deceives_nobody(
    started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    name = "x) Z 1\nUid: 0 )"
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    child = started(str(program), "1000")
    wait_for(lambda: all_processes()[child.pid].name == name[:15])
    assert all_processes()[child.pid].parent == os.getpid() and all_processes()[child.pid].state != "zombie"


@pytest.mark.skipif(platform.machine() not in EXIT_OF_ONE_THREAD, reason="the number of the system call is not known here")
def test_a_process_whose_main_thread_has_ended_lives_and_is_ended(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = started(
        sys.executable,
        "-c",
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        f"ctypes.CDLL(None).syscall({EXIT_OF_ONE_THREAD[platform.machine()]}, 0)",
    )
    wait_for(lambda: all_processes()[child.pid].state == "without its main thread")
    process = all_processes()[child.pid]
    assert still_there([process]) == (process,)
    assert end_processes([process], 0.0, WAIT_S) == ()


def test_what_heeds_no_sigterm_is_killed_and_a_zombie_has_ended(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = started("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    wait_for(lambda: all_processes()[child.pid].name == "sh")
    process = all_processes()[child.pid]
    assert end_processes([process], 0.2, WAIT_S) == ()
    assert all_processes()[child.pid].state == "zombie"


def test_another_process_of_that_pid_is_not_touched(started: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = started("sleep", "1000")
    now = all_processes()[child.pid]
    earlier = processes.Process(now.pid, now.parent, now.user_id, now.name, now.started - 1)
    assert end_processes([earlier], 1.0, 1.0) == () and child.poll() is None


@pytest.mark.parametrize(
    ("session", "groups", "login"),
    [
        ("3", "0::/user.slice/user-1000.slice/session-3.scope\n", True),
        ("3", "4:memory:/x\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n", True),
        ("3", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", False),
        ("3", "4:memory:/user.slice/x\n1:name=systemd:/system.slice/slurmd.service\n", False),
        ("4294967295", "0::/user.slice/user-1000.slice/session-3.scope\n", False),
    ],
)
def test_a_login_has_a_session_and_its_group(tmp_path: Path, session: str, groups: str, login: bool) -> None:
    (tmp_path / "sessionid").write_text(session)
    (tmp_path / "cgroup").write_text(groups)
    assert processes._is_of_login(tmp_path) is login


def test_only_who_has_ended_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "7"
    place.mkdir()
    (place / "stat").write_text(f"7 (x) S 1 {' '.join(['0'] * 17)} 4200 0\n")
    (place / "status").write_text("Name:\tx\nUid:\t1000\t1000\t1000\t1000\n")
    (tmp_path / "8").mkdir()  # ended while it was looked at
    monkeypatch.setattr(processes, "PROC", tmp_path)
    seen = all_processes()
    assert set(seen) == {7} and seen[7].user_id == 1000

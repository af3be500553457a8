"""A user whose processes fork as they are killed, hide or hold each other, so that a node is called sick or she stays there.

Each in a process namespace of its own, where her number is nobody's: what ends her processes is told to end all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HER, FRIEND = 61234, 61235

# As an Epilog does when Slurm says that she has no other job here. Prints what it says, and how many are alive.
EPILOG = f"""
import os, subprocess, sys, time
from ftslurm.hooks.leftovers import Case, _end
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.policies.node import LeftoversOf, leftover_processes
from ftslurm.system.processes import all_processes

def her(program):
    # It has left whatever has started it, as what escapes from a job does.
    away = "import os, sys\\nif os.fork(): os._exit(0)\\nexec(sys.argv[1])"
    subprocess.run([sys.executable, "-c", away, program], user={HER}, group={HER}, extra_groups=[], start_new_session=True, check=True)

def all_of_hers():
    return [one for one in all_processes().values() if one.user_id == {HER} and one.state != "zombie"]

def await_hers(least, stopped=0):
    # Until so many of hers are there, and so many of them stopped; then they are left to it for a second.
    until = time.monotonic() + 60.0
    while len(found := all_of_hers()) < least or sum(one.state == "stopped" for one in found) < stopped:
        assert time.monotonic() < until, [(one.name, one.state) for one in found]
        time.sleep(0.05)
    time.sleep(1.0)

def epilog(limit_s=15.0):
    asked = []
    case = Case("5", LeftoversOf({HER}), "n1", lambda: asked.append(1) and "")
    left = leftover_processes(all_processes(), LeftoversOf({HER}))
    began = time.monotonic()
    stuck, why = _end(HookSettings(kill_grace_s=0.2, kill_wait_s=1.0), case, left, began + limit_s)
    print(len(left), "were left;", len(stuck), "stuck;", why or "gone", "in", round(time.monotonic() - began, 1), flush=True)
"""

# Forks before a signal can end it, and dies: the number of its process changes all the time.
LINEAGE = """
import os, time
for _ in range({count}):
    if os.fork() == 0:
        while True:
            if os.fork():
                time.sleep({life})
                os._exit(0)
"""
# Each has another one that it traces, and asks the kernel to hold it on its way out.
TRACED = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PTRACE_O_TRACEEXIT = 0x4206, 0x40
for _ in range(20):
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    if os.fork() == 0:
        libc.ptrace(PTRACE_SEIZE, child, None, ctypes.c_void_p(PTRACE_O_TRACEEXIT))
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        time.sleep(1000)
time.sleep(1000)
"""
# Tells all the others to go on, and kills whoever of her number is not of her own.
REVIVES = """
import os, signal, time
for _ in range(8):
    if os.fork() == 0:
        while True:
            for number in (signal.SIGCONT, signal.SIGCHLD):
                try: os.kill(-1, number)
                except OSError: pass
time.sleep(1000)
"""


# The first process of a namespace adopts what is orphaned there, and reaps it.
INIT = """
import os, sys
program = os.fork()
if program == 0:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
while True:
    pid, status = os.wait()
    if pid == program:
        sys.exit(os.waitstatus_to_exitcode(status))
"""


def tell(story: str) -> str:
    program = f"{EPILOG}\n{story}"
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", INIT, program]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(("count", "life"), [(60, 0.0), (60, 0.002), (1, 0.0), (1, 0.001)])
def test_lineages_end_and_drain_nothing(count: int, life: float) -> None:
    said = tell(
        f"her({LINEAGE.format(count=count, life=life)!r})\nawait_hers({min(10, count)})\nepilog()\ntime.sleep(0.5)\nprint(len(all_of_hers()), 'alive')"
    )
    assert " 0 stuck; gone in " in said and said.endswith("\n0 alive\n"), said


def test_those_that_she_traces_end_with_their_tracers() -> None:
    said = tell(f"her({TRACED!r})\nawait_hers(40)\nepilog()\nprint(len(all_of_hers()), 'alive')")
    assert " 0 stuck; gone in " in said and said.endswith("\n0 alive\n"), said


def test_those_that_revive_each_other_end() -> None:
    said = tell(
        f"her({REVIVES!r})\nher({LINEAGE.format(count=20, life=0.001)!r})\nawait_hers(18)\nepilog()\nprint(len(all_of_hers()), 'alive')"
    )
    assert " 0 stuck; gone in " in said and said.endswith("\n0 alive\n"), said


# Somebody else in her session, as after `su` to a friend's account, may tell them to go on whenever they are told to stop.
# group: of a job's, into which they are born.
WITH_A_FRIEND = f"""
def her_with_a_friend(program, group=""):
    if os.fork():
        return
    os.setsid()
    if group:
        with open(group + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    if os.fork() == 0:
        subprocess.run([sys.executable, "-c", program], user={HER}, group={HER}, extra_groups=[])
        os._exit(0)
    if group:
        with open(group + "/../../../cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    for _ in range(4):
        if os.fork() == 0:
            os.setuid({FRIEND})
            while True:
                try: os.kill(-1, 18)
                except OSError: pass
    os._exit(0)
"""
# Children of a process that ended are init's, as what escapes from a job is.
AWAY = """
import os
if os.fork(): os._exit(0)
"""


@pytest.mark.parametrize("count", [1, 40])
def test_a_friend_in_her_session_lets_none_go_on(count: int) -> None:
    program = AWAY + LINEAGE.format(count=count, life=0.0)
    said = tell(
        f"{WITH_A_FRIEND}\nher_with_a_friend({program!r})\nawait_hers({min(10, count)})\nepilog()\ntime.sleep(0.5)\nprint(len(all_of_hers()), 'alive')"
    )
    assert " 0 stuck; gone in " in said and said.endswith("\n0 alive\n"), said


@pytest.fixture(params=["freezer", "unified"])
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of a job, as Slurm makes them; of cgroups v1, and of v2 where the machine has that besides."""
    base = Path("/sys/fs/cgroup", request.param)
    if not (base / "cgroup.procs").exists():
        pytest.skip(f"no {base} here")
    top = base / f"slurm_ftslurm-test-{os.getpid()}"
    made = [top, top / f"uid_{HER}", top / f"uid_{HER}/job_5", top / f"uid_{HER}/job_5/step_0"]
    for folder in made:
        folder.mkdir()
    yield made[-1]
    deadline = time.monotonic() + 10
    for folder in reversed(made):
        while folder.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                folder.rmdir()


def test_in_a_job_s_group_none_goes_on_though_she_is_logged_in(group: Path) -> None:
    """So that nothing can be ended by her number alone."""
    program = AWAY + LINEAGE.format(count=60, life=0.0)
    said = tell(
        f"{WITH_A_FRIEND}\n{SPARED}\nher_with_a_friend({program!r}, {str(group)!r})\nawait_hers(13, stopped=1)\nepilog(25.0)\ntime.sleep(0.5)\n"
        "print(sorted((one.name, one.state == 'stopped') for one in all_of_hers()))"
    )
    assert " 0 stuck; gone in " in said and said.splitlines()[-1].count("(") == 3, said


def test_who_stood_still_in_a_group_with_others_goes_on(group: Path) -> None:
    """A group that holds somebody else's process is not ended: that one lives, hers end."""
    enter = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    program = f"{enter}os.setgid({HER}); os.setuid({HER})\n{AWAY}{LINEAGE.format(count=20, life=0.001)}"
    other = f"{enter}os.setuid({FRIEND}); os.execlp('sleep', 'sleep', '1003')"
    said = tell(
        f"other = subprocess.Popen([sys.executable, '-c', {other!r}])\n"
        f"subprocess.run([sys.executable, '-c', {program!r}], check=True)\n"
        "await_hers(10)\nepilog()\ntime.sleep(0.5)\nprint(len(all_of_hers()), other.poll(), all_processes()[other.pid].state)\nother.kill()"
    )
    assert " 0 stuck; gone in " in said and said.endswith("\n0 None sleeping\n"), said


# What root has started for her and waits for, as sshd and cron do: of it one stands still, as she has told it to.
SPARED = f"""
login = subprocess.Popen([sys.executable, "-c", '''
import os, subprocess, sys, time
session = subprocess.Popen([sys.executable, "-c", "import subprocess, time; subprocess.Popen(['sleep', '1001']); time.sleep(1000)"], user={HER}, group={HER}, extra_groups=[])
halted = subprocess.Popen(["sleep", "1002"], user={HER}, group={HER}, extra_groups=[])
time.sleep(0.7)
os.kill(halted.pid, 19)
session.wait()
'''])
"""


def test_what_root_looks_after_goes_on_and_what_stood_stands() -> None:
    said = tell(
        f"{SPARED}\nher({LINEAGE.format(count=20, life=0.001)!r})\nawait_hers(13, stopped=1)\nepilog()\ntime.sleep(0.5)\n"
        "print(sorted((one.name, one.state == 'stopped') for one in all_of_hers()))"
    )
    assert " 0 stuck; gone in " in said, said
    shown = said.splitlines()[-1]
    assert shown.count("('sleep', True)") == 1 and shown.count("False") == 2 and shown.count("(") == 3, said

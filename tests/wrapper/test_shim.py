"""The real shim, as a process, with real commands under it and a small controller above it."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftslurm.model import messages as wire
from ftslurm.wrapper.shim import ending as survivors
from ftslurm.wrapper.shim import hello as ports
from ftslurm.wrapper.shim import processes
from ftslurm.wrapper.shim.command import Command
from ftslurm.wrapper.shim.connection import Channel, connect
from ftslurm.wrapper.shim.messages import SignedConnection
from ftslurm.wrapper.shim.pages import page_folder
from ftslurm.wrapper.shim.session import REDIAL_S, REFUSED_S
from tests.wrapper.shim_controller import SOON_S, Shim, as_in_a_terminal, is_gone, until

pytestmark = pytest.mark.timeout(60)

SLEEP = "exec sleep 1000"


class Shims:
    """Makes shims; all are ended with the test. tail: bytes that they keep of each output stream."""

    def __init__(self, tail: int) -> None:
        self.made: list[Shim] = []
        self._tail = tail

    def __call__(self, script: str = SLEEP, **how: Any) -> Shim:
        return self.run("sh", "-c", script, **how)

    def run(self, *command: str, **how: Any) -> Shim:
        self.made.append(Shim(command, **{"tail": self._tail} | how))
        return self.made[-1]


@pytest.fixture(params=[0, 65536], ids=["direct", "pumped"])
def shims(request: pytest.FixtureRequest) -> Iterator[Shims]:
    """Every test runs twice: nothing that it looks at depends on what stands between the command and its output."""
    made = Shims(request.param)
    yield made
    for shim in made.made:
        shim.close()


# --- coming up


def test_a_shim_introduces_its_task(shims: Shims) -> None:
    shim = shims(rank=4)
    assert {name: shim.hello[name] for name in ("rank", "node", "slot", "local", "expected", "step", "address", "pid")} == {
        "rank": 4,
        "node": "n2",
        "slot": 1,
        "local": 2,
        "expected": 5,
        "step": "7.3",
        "address": "127.0.0.1",
        "pid": shim.process.pid,
    }


@pytest.mark.parametrize(("place", "task", "rank", "expected"), [
    ("8/2-3", 0, 2, 8), ("8/2-3", 1, 3, 8), ("8/0-1,6-7", 2, 6, 8), ("1/0", 0, 0, 1), ("10000/9999", 0, 9999, 10000),
])  # fmt: skip
def test_a_shim_of_one_of_several_sruns_knows_its_rank_among_all(
    shims: Shims, place: str, task: int, rank: int, expected: int
) -> None:
    shim = shims("echo $SLURM_PROCID", rank=task, place=place)
    assert (shim.hello["rank"], shim.hello["expected"]) == (rank, expected)
    assert bool(shim.hello["free_port"]) is (rank == 0), "the port of the rendezvous is rank 0's to find"


def test_rank_0_brings_a_port_that_is_free(shims: Shims) -> None:
    first, other = shims(rank=0), shims(rank=1)
    assert other.hello["free_port"] == 0
    with socket.create_server(("", first.hello["free_port"])):
        pass


def test_nothing_starts_before_it_is_told_to(shims: Shims, tmp_path: Path) -> None:
    shim = shims(f"echo ran > {tmp_path}/marker; echo ran")
    shim.stop()
    shim.hear("stopped")
    assert not (tmp_path / "marker").exists()
    shim.start()
    assert shim.words() == ["ran"] and (tmp_path / "marker").exists()


# --- ends


@pytest.mark.parametrize("code", [0, 1, 42, 128, 255])
def test_an_exit_code_is_reported_and_the_shim_ends_with_it(shims: Shims, code: int) -> None:
    shim = shims(f"exit {code}")
    shim.start()
    told = shim.hear("exited")
    assert (told["attempt"], told["code"], told["signal"]) == (1, code, 0) and abs(told["at"] - time.time()) < SOON_S
    assert shim.end(code) == code


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGUSR1, signal.SIGPIPE]
)
def test_a_signal_is_reported_and_the_shim_ends_by_it(shims: Shims, number: signal.Signals) -> None:
    shim = shims(f"kill -{number.value} $$")
    shim.start()
    told = shim.hear("exited")
    assert (told["code"], told["signal"]) == (0, number)
    ended = shim.end(128 + number)
    assert ended in (-number, 128 + number), "srun reports both alike"


def test_what_the_program_said_last_comes_with_its_exit(shims: Shims) -> None:
    shim = shims(
        "head -c 20000 /dev/zero | tr '\\0' x > $FTSLURM_PAGE.notes; echo >> $FTSLURM_PAGE.notes; echo last >> $FTSLURM_PAGE.notes"
    )
    shim.start()
    assert shim.hear("exited")["notes"] == [20001, "last\n"]


def test_a_shim_whose_command_was_stopped_ends_as_it_is_told(shims: Shims) -> None:
    shim = shims()
    shim.start()
    shim.stop()
    shim.hear("exited")
    shim.hear("stopped")
    assert shim.end(7) == 7


def test_a_program_that_obeys_sigterm_ends_with_its_own_status(shims: Shims) -> None:
    shim = shims("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done")
    shim.start()
    shim.words()
    shim.stop()
    told = shim.hear("exited")
    assert (told["code"], told["signal"]) == (3, 0)
    assert shim.hear("stopped")["left"] == []


def test_a_rank_that_has_ended_does_not_wait_for_what_it_left_behind(shims: Shims) -> None:
    shim = shims("sleep 1000 & echo $!; exit 5")
    shim.start()
    left = shim.pid()
    assert shim.hear("exited")["code"] == 5
    assert not is_gone(left)
    shim.stop()
    assert shim.hear("stopped")["left"] == [] and is_gone(left)


def test_what_a_rank_left_behind_ends_with_the_step(shims: Shims) -> None:
    shim = shims("trap '' TERM; sleep 1000 & echo $!; exit 0")
    shim.start()
    left = shim.pid()
    shim.hear("exited")
    assert shim.end(0) == 0 and is_gone(left)


def test_a_command_that_still_runs_ends_with_the_step(shims: Shims) -> None:
    shim = shims("trap '' TERM; echo $$; while :; do sleep 0.01; done")
    shim.start()
    pid = shim.pid()
    shim.end(9)
    assert is_gone(pid)


# --- stopping


def test_every_process_of_a_tree_is_ended_and_none_is_left(shims: Shims) -> None:
    shim = shims("sleep 1000 & echo $!; sh -c 'sleep 1000 & echo $!; sleep 1000' & echo $!; wait")
    shim.start()
    pids = [shim.pid() for _ in range(3)]
    shim.stop()
    shim.hear("exited")
    assert shim.hear("stopped") == {"t": "stopped", "attempt": 1, "left": [], "free_port": pytest.approx(32768, abs=32768)}
    assert all(map(is_gone, pids))


DAEMON = """
import os, sys, signal
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    print(os.getpid(), flush=True)
    for fd in range(3):
        os.close(fd)
    signal.pause()
print("started", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("deaf", ["deaf", "hears"])
def test_a_daemon_that_forked_twice_and_left_the_session_is_ended_too(shims: Shims, deaf: str) -> None:
    shim = shims.run(sys.executable, "-I", "-S", "-c", DAEMON, deaf)
    shim.start()
    lines = sorted((shim.words()[0], shim.words()[0]))
    daemon = int(lines[0])
    assert lines[1] == "started" and os.getsid(daemon) != os.getsid(shim.process.pid)
    shim.stop(grace_s=0.1 if deaf == "deaf" else SOON_S)
    shim.hear("exited")
    assert shim.hear("stopped")["left"] == [] and is_gone(daemon)
    assert shim.end(0) == 0


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_and_not_before(shims: Shims) -> None:
    shim = shims("trap '' TERM; sleep 1000 & echo $!; echo $$; while :; do sleep 0.01; done")
    shim.start()
    pids = [shim.pid(), shim.pid()]
    began = time.monotonic()
    shim.stop(grace_s=0.3)
    assert shim.hear("exited")["signal"] == signal.SIGKILL
    assert shim.hear("stopped")["left"] == []
    assert 0.3 <= time.monotonic() - began < SOON_S / 2
    assert all(map(is_gone, pids))


def test_a_second_stop_can_cut_the_grace_short(shims: Shims) -> None:
    shim = shims("trap '' TERM; echo $$; while :; do sleep 0.01; done")
    shim.start()
    shim.pid()
    shim.stop(grace_s=1000)
    shim.stop(grace_s=0)
    assert shim.hear("exited")["signal"] == signal.SIGKILL
    shim.hear("stopped")


def test_a_program_that_stands_still_is_ended_as_well(shims: Shims) -> None:
    shim = shims("echo $$; kill -STOP $$; sleep 1000")
    shim.start()
    pid = shim.pid()
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the command to stand still")
    shim.stop()
    assert shim.hear("exited")["signal"] == signal.SIGTERM
    shim.hear("stopped")


def test_children_that_come_while_their_parents_are_killed_are_ended_too(shims: Shims) -> None:
    """Deaf ones, in sessions of their own, that go on forking."""
    script = "trap '' TERM; echo $$; for i in 1 2 3 4; do setsid sh -c 'while :; do sleep 0.002; done' & done; wait"
    shim = shims(script)
    shim.start()
    shim.pid()
    until(lambda: len(processes.descendants(shim.process.pid)) >= 5, "the children")
    shim.stop(grace_s=0.05)
    shim.hear("exited")
    assert shim.hear("stopped")["left"] == []
    assert processes.descendants(shim.process.pid) == []


def test_orphans_that_end_by_themselves_leave_no_zombies(shims: Shims) -> None:
    shim = shims("for i in 1 2 3; do (sh -c 'exit 0' &); done; echo done; " + SLEEP)
    shim.start()
    shim.words()
    until(lambda: len(processes.descendants(shim.process.pid)) == 1, "the orphans to be taken in")


def test_stopping_what_never_ran_is_answered_too(shims: Shims) -> None:
    shim = shims()
    shim.stop(attempt=0)
    assert shim.hear("stopped") == {"t": "stopped", "attempt": 0, "left": [], "free_port": pytest.approx(32768, abs=32768)}


def test_a_stranger_s_process_group_that_got_the_number_of_an_ended_command_is_left_alone() -> None:
    """A rank may be done for hours before it is stopped with the others, and numbers come round again."""
    ended = subprocess.run(
        ["sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 & echo $!"], capture_output=True, text=True, timeout=120
    )
    stranger = int(ended.stdout)
    try:
        until(lambda: os.getpgid(stranger) == stranger, "the stranger to lead a group of its own")
        command = Command(None)
        command.pid, command.status = stranger, 0
        command.stop(0.0, 0.0, 1.0)
        command.press(1.0)
        time.sleep(0.05)  # for a signal that was sent to arrive
        assert not is_gone(stranger)
    finally:
        os.kill(stranger, signal.SIGKILL)


# --- again


def test_the_command_runs_again_with_what_changed(shims: Shims) -> None:
    shim = shims('echo "$MA_PROC_START_CNT $OLD $SLURM_PROCID"; exit 3', env={"OLD": "kept"})
    for attempt in (1, 2, 3):
        shim.start(attempt, MA_PROC_START_CNT=str(attempt))
        assert shim.words() == [str(attempt), "kept", "0"]
        assert shim.hear("exited")["attempt"] == attempt
        shim.stop(attempt)
        assert shim.hear("stopped")["attempt"] == attempt
    assert shim.end(3) == 3


def test_the_environment_of_one_attempt_is_not_that_of_the_next(shims: Shims) -> None:
    shim = shims('echo "[$MASTER_PORT]"')
    for attempt, env, printed in ((1, {"MASTER_PORT": "1"}, "[1]"), (2, {}, "[]")):
        shim.start(attempt, **env)
        assert shim.words() == [printed]
        shim.hear("exited")
        shim.stop(attempt)
        shim.hear("stopped")


def test_a_rank_may_be_told_another_command(shims: Shims) -> None:
    shim = shims("echo wrong")
    shim.start(argv=["echo", "another", "one two"])
    assert shim.words() == ["another", "one", "two"]


def test_what_stood_in_shared_memory_stands_there_again(shims: Shims, tmp_path: Path) -> None:
    shim = shims(f"cat {tmp_path}/shm 2>/dev/null || echo nothing; echo something > {tmp_path}/shm")
    for attempt, printed in ((1, "nothing"), (2, "something")):
        shim.start(attempt)
        assert shim.words() == [printed]
        shim.hear("exited")
        shim.stop(attempt)
        shim.hear("stopped")


# --- commands that cannot be executed


def test_a_command_that_is_not_there(shims: Shims) -> None:
    for command in ("/nonexistent/train", "no-such-command-anywhere"):
        shim = shims.run(command)
        answer = shim.start()
        assert (answer["t"], answer["status"]) == ("unstartable", errno.ENOENT)
        assert command in answer["why"] and "No such file" in answer["why"]
        shim.stop()
        assert shim.hear("stopped")["left"] == []
        assert shim.end(2) == 2


def test_stopping_a_command_that_could_not_start_is_no_signal_from_outside(shims: Shims) -> None:
    """The child that failed to become the command may still live when the SIGTERM of the stop comes."""
    shim = shims.run("/nonexistent/train")
    for attempt in range(100):
        assert shim.start(attempt)["t"] == "unstartable"
        shim.stop(attempt)
        assert shim.hear("stopped")["left"] == []


def test_a_command_that_is_not_executable(shims: Shims, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n")
    for command in (script, tmp_path):
        answer = shims.run(str(command)).start()
        assert (answer["t"], answer["status"]) == ("unstartable", errno.EACCES) and "Permission denied" in answer["why"]


def test_an_argument_that_no_kernel_takes(shims: Shims) -> None:
    answer = shims().start(argv=["echo", "x" * 300_000])
    assert (answer["t"], answer["status"]) == ("unstartable", errno.E2BIG) and "too long" in answer["why"]


def test_a_command_with_a_name_that_no_kernel_takes(shims: Shims) -> None:
    """A script in place of its path, say; the controller takes no message that is longer than it says."""
    for name in ("x" * 5000, f"/{'x' * 100_000}"):
        answer = shims.run(name).start()
        wire.shim_report(0, {**answer, "n": 1})
        assert answer["t"] == "unstartable" and answer["why"].startswith(name[:100]) and "too long" in answer["why"]


def test_after_a_command_that_could_not_start_another_try_may(shims: Shims, tmp_path: Path) -> None:
    script = tmp_path / "late"
    shim = shims.run(str(script))
    assert shim.start(1)["t"] == "unstartable"
    shim.stop(1)
    shim.hear("stopped")
    script.write_text("#!/bin/sh\necho here\n")
    script.chmod(0o755)
    assert shim.start(2)["t"] == "started" and shim.words() == ["here"]


# --- what the command gets


def as_it_would_be(script: str) -> str:
    return subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, preexec_fn=as_in_a_terminal
    ).stdout


def test_the_way_to_the_controller_is_hidden_from_the_command(shims: Shims) -> None:
    shim = shims("env; cat /proc/$$/environ; tr '\\0' ' ' < /proc/$PPID/cmdline")
    for attempt in (1, 2):
        shim.start(attempt)
        shim.hear("exited")
        shim.stop(attempt)
        shim.hear("stopped")
    shim.end(0)
    printed = shim.rest()
    assert "SLURM_PROCID=0" in printed
    assert "FTSLURM_CHANNEL" not in printed and shim.secret.hex() not in printed and "FTSLURM_LOCAL" not in printed


@pytest.mark.parametrize(
    "script", ["grep -E '^Sig(Blk|Ign)' /proc/self/status", "ls /proc/self/fd | wc -l", "ulimit -a", "umask", "pwd"]
)
def test_the_command_finds_the_world_as_it_would_without_a_shim(shims: Shims, script: str) -> None:
    shim = shims(script, stderr=subprocess.PIPE)
    shim.start()
    shim.hear("exited")
    shim.end(0)
    assert shim.rest() == as_it_would_be(script)


def test_signals_that_were_ignored_stay_ignored(shims: Shims) -> None:
    shim = shims("kill -HUP $$; echo alive", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    shim.start()
    assert shim.words() == ["alive"]


def test_input_reaches_the_command(shims: Shims) -> None:
    shim = shims.run("cat", stdin=subprocess.PIPE)
    shim.start()
    assert shim.process.stdin is not None
    shim.process.stdin.write(b"hello there\n")
    shim.process.stdin.close()
    assert shim.words() == ["hello", "there"]
    assert shim.hear("exited")["code"] == 0


def test_an_input_file_of_its_own_is_read_from_its_beginning_by_each_start(shims: Shims, tmp_path: Path) -> None:
    """The first start finds it where whoever opened it has come to."""
    (tmp_path / "in").write_text("first second\n")
    with (tmp_path / "in").open("rb", buffering=0) as file:
        file.seek(len("first "))
        shim = shims.run("cat", stdin=file)
        shim.start()
        assert shim.words() == ["second"] and shim.hear("exited")["code"] == 0
        shim.stop()
        assert shim.hear("stopped")["left"] == []
        shim.start(2)
        assert shim.words() == ["first", "second"]


def test_a_command_that_closes_its_output_is_watched_all_the_same(shims: Shims, tmp_path: Path) -> None:
    shim = shims(f"exec 0<&- 1>&- 2>&-; touch {tmp_path}/closed; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; exit 6")
    shim.start()
    until((tmp_path / "closed").exists, "the command to close its output")
    (tmp_path / "go").touch()
    assert shim.hear("exited")["code"] == 6
    assert shim.end(6) == 6


def test_a_shim_whose_own_output_is_closed_works(shims: Shims) -> None:
    closed = {"stdin": None, "stdout": None, "stderr": None, "preexec_fn": lambda: [os.close(fd) for fd in range(3)]}
    shim = shims("exit 4", **closed)
    shim.start()
    assert shim.hear("exited")["code"] == 4
    assert shim.end(4) == 4


def test_a_command_line_of_a_megabyte(shims: Shims) -> None:
    words = ["x" * 1000] * 1000
    shim = shims.run("sh", "-c", "echo $# ${#1}; exit 0", "sh", *words)
    shim.start()
    assert shim.words() == ["1000", "1000"]


def test_an_environment_of_a_megabyte(shims: Shims) -> None:
    shim = shims("env | grep -c ^BIG", env={f"BIG{number}": "y" * 1000 for number in range(1000)})
    shim.start(BIGGER="z")
    assert shim.words() == ["1001"]


def test_bytes_in_no_encoding_pass_through(shims: Shims) -> None:
    shim = shims.run(
        "sh", "-c", 'printf %s "$1$V" | od -An -tx1', "sh", os.fsdecode(b"\xff\xfe"), env={"V": os.fsdecode(b"\xe9")}
    )
    shim.start()
    assert shim.words() == ["ff", "fe", "e9"]


# --- signals


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_to_the_command_and_told(shims: Shims, number: signal.Signals) -> None:
    shim = shims(f"trap 'echo got' {number.value}; echo ready; while :; do sleep 0.01; done")
    shim.start()
    shim.words()
    shim.process.send_signal(number)
    assert shim.words() == ["got"]
    assert shim.hear("signal") == {"t": "signal", "number": number}


def test_a_signal_that_kills_the_command_is_told_before_its_end(shims: Shims) -> None:
    shim = shims()
    shim.start()
    shim.process.send_signal(signal.SIGTERM)
    assert shim.hear("signal")["number"] == signal.SIGTERM
    assert shim.hear("exited")["signal"] == signal.SIGTERM


def test_a_signal_from_the_controller_goes_to_the_command_alone(shims: Shims) -> None:
    shim = shims("trap 'echo got' USR2; echo ready; while :; do sleep 0.01; done")
    shim.start()
    shim.words()
    shim.say(t="signal", number=int(signal.SIGUSR2))
    assert shim.words() == ["got"]
    shim.stop()
    shim.hear("exited")


def test_where_slurm_signals_every_process_itself_nothing_comes_twice(shims: Shims) -> None:
    shim = shims("trap 'echo got' USR1; echo ready; while :; do sleep 0.01; done")
    shim.alone = False
    shim.start()
    shim.words()
    shim.process.send_signal(signal.SIGUSR1)
    assert shim.hear("signal")["number"] == signal.SIGUSR1
    shim.stop()
    shim.hear("exited")
    shim.end(0)
    assert "got" not in shim.rest()


def test_a_signal_before_the_command_runs_ends_nobody(shims: Shims) -> None:
    shim = shims("echo ran")
    shim.process.send_signal(signal.SIGTERM)
    assert shim.hear("signal")["number"] == signal.SIGTERM
    shim.start()
    assert shim.words() == ["ran"]


# --- what a killed command leaves in shared memory


def test_what_a_stopped_command_has_left_in_shared_memory_is_removed_and_nothing_else(shims: Shims) -> None:
    """Not of a process that lives, nor of before the start, nor what the program itself may want to find again."""
    mark = f"ftslurm-test-{os.getpid()}"
    kept = {f"nccl-held-{mark}", f"nccl-old-{mark}", f"torch_ckpt-{mark}", f"torch_{os.getpid()}_{mark}"}
    # No process has such a number: pid_max is 4,194,304 at most.
    names = {name: Path(f"/dev/shm/{name}") for name in (f"nccl-{mark}", f"torch_4194305_{mark}", *kept)}
    left, old = list(names.values()), names[f"nccl-old-{mark}"]
    try:
        old.touch()
        while time.time() <= old.stat().st_ctime + 0.05:
            time.sleep(0.01)
        made = " ".join(str(path) for path in left if path != old)
        shim = shims(f"touch {made}; echo made; exec sleep 1000")
        shim.start()
        assert shim.words() == ["made"]
        with names[f"nccl-held-{mark}"].open():
            shim.stop()
            shim.hear("exited")
            assert shim.hear("stopped")["left"] == []
        assert {name for name, path in names.items() if path.exists()} == kept
    finally:
        for path in left:
            path.unlink(missing_ok=True)


# --- a controller that goes or goes mad


def vanished(shim: Shim, *pids: int) -> None:
    assert shim.process.wait(SOON_S) not in (0, 1)
    assert all(map(is_gone, pids))


def test_without_a_controller_the_rank_ends(shims: Shims) -> None:
    shim = shims("sleep 1000 & echo $!; echo $$; wait")
    shim.start()
    pids = shim.pid(), shim.pid()
    shim.hang_up()
    vanished(shim, *pids)


def test_when_slurm_ends_the_job_a_controller_that_went_with_it_is_not_waited_for(shims: Shims) -> None:
    """Slurm kills ftrun, which waits for its ranks, as soon as the batch script has ended."""
    shim = shims("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    shim.start()
    assert shim.words() == ["ready"]
    shim.process.send_signal(signal.SIGTERM)
    shim.hear("signal")
    shim.hang_up()
    shim.process.wait(REFUSED_S)


def test_nor_is_it_where_slurm_asks_while_it_is_called_again(shims: Shims) -> None:
    """The script ended while ftrun ran in the background."""
    shim = shims("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    shim.start()
    assert shim.words() == ["ready"]
    shim.hang_up()
    time.sleep(0.5)  # into the first try
    shim.process.send_signal(signal.SIGTERM)
    shim.process.wait(REDIAL_S - 0.5)


def test_a_rank_that_slurm_has_asked_to_end_is_not_asked_again(shims: Shims) -> None:
    script = "trap 'echo asked; n=0; while [ $n -lt 30 ]; do sleep 0.1; n=$((n+1)); done; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    shim = shims(script)
    shim.start()
    assert shim.words() == ["ready"]
    shim.process.send_signal(signal.SIGTERM)
    assert shim.words() == ["asked"]
    shim.hang_up()
    assert shim.words() == ["saved"]
    shim.process.wait(SOON_S)


@pytest.mark.parametrize("alone", [True, False])
def test_what_a_rank_leaves_that_slurm_asked_to_end_is_asked_in_turn(shims: Shims, alone: bool) -> None:
    """Slurm's SIGTERM goes to tasks: to the shell, not to what it waits for."""
    shim = shims("sleep 300 & echo $!; wait", grace_s=200.0)
    shim.start()
    pid = shim.pid()
    shim.process.send_signal(signal.SIGTERM)
    shim.hear("signal")
    if alone:
        shim.hang_up()
    else:
        shim.say(t="stop", attempt=1, grace_s=200.0, kill_wait_s=SOON_S, asked=True)
        shim.hear("exited")
        shim.hear("stopped")
        shim.say(t="end", status=143)
    vanished(shim, pid)


def test_without_a_controller_a_rank_has_the_grace_that_was_set(shims: Shims) -> None:
    shim = shims("trap '' TERM; echo $$; while :; do sleep 0.1; done", grace_s=0.5)
    shim.start()
    pid = shim.pid()
    shim.process.send_signal(signal.SIGTERM)
    shim.hear("signal")
    shim.hang_up()
    vanished(shim, pid)


def test_without_a_controller_the_shim_waits_for_the_rank_to_end_and_does_nothing_else(shims: Shims) -> None:
    shim = shims("trap 'echo asked' TERM; while :; do sleep 0.1; done")
    shim.start()
    shim.hang_up()
    assert shim.words() == ["asked"]
    time.sleep(REDIAL_S + 0.5)  # a last try may be under way
    before_s = cpu_s(shim)
    time.sleep(1.0)  # nothing is to happen that could be awaited
    assert cpu_s(shim) - before_s < 0.3


def cpu_s(shim: Shim) -> float:
    """Of it alone; it reaps what ends below it."""
    words = Path(f"/proc/{shim.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_without_a_controller_a_rank_that_never_started_ends(shims: Shims, tmp_path: Path) -> None:
    shim = shims(f"touch {tmp_path}/marker")
    shim.hang_up()
    vanished(shim)
    assert not (tmp_path / "marker").exists()


def test_a_rank_that_has_ended_well_before_the_controller_went_is_no_failure_of_its_own(shims: Shims) -> None:
    shim = shims("exit 9")
    shim.start()
    shim.hear("exited")
    shim.hang_up()
    assert shim.process.wait(SOON_S) == 9


@pytest.mark.parametrize(
    "said",
    [{"t": "dance"}, {"t": "stop"}, {"t": "start", "attempt": 2, "env": ["x"]}, {"t": "welcome"}, {"t": "beat", "a": 99}],
)
def test_a_controller_that_cannot_be_understood_is_none_and_the_rank_ends(shims: Shims, said: dict[str, Any]) -> None:
    shim = shims("echo $$; " + SLEEP, stderr=subprocess.PIPE)
    shim.start()
    pid = shim.pid()
    shim.say(**said)
    vanished(shim, pid)
    assert shim.process.stderr is not None and b"rank 0" in shim.process.stderr.read()


@pytest.mark.parametrize("said", ["garbage", "replayed"])
def test_a_word_that_is_not_the_controller_s_is_not_obeyed_and_ends_the_connection_alone(shims: Shims, said: str) -> None:
    shim = shims("trap 'echo usr1' USR1; echo $$; while :; do sleep 0.05; done")
    shim.start()
    shim.pid()
    signal_it = {"t": "signal", "number": int(signal.SIGUSR1)}
    if said == "garbage":
        shim.sock.sendall(b"0" * 32 + b' {"t":"stop"}\n')
    else:  # the first one may be heard or not before the connection ends; it is said again if not
        line = shim.link.pack(shim.talk.say(signal_it))
        shim.sock.sendall(line + line)
    shim.again()
    if said == "garbage":
        shim.say(**signal_it)
    assert shim.words() == ["usr1"]
    shim.stop()
    assert shim.hear("exited")["signal"] == signal.SIGTERM
    shim.hear("stopped")
    shim.end(0)
    assert shim.rest() == "", "and only once"


def test_the_command_does_not_outlive_a_shim_that_was_killed(shims: Shims) -> None:
    shim = shims("echo $$; " + SLEEP)
    shim.start()
    pid = shim.pid()
    shim.process.kill()
    shim.process.wait(SOON_S)
    until(lambda: is_gone(pid), "the command to end with its shim")


def orphaned(shims: Shims) -> tuple[Shim, int]:
    """A shim that was killed, and what the command had started."""
    shim = shims("sleep 1000 & echo $!; wait")
    command = shim.start(1)["pid"]
    left = shim.pid()
    shim.process.kill()
    shim.process.wait(SOON_S)
    until(lambda: is_gone(command), "the command to end with its shim, which leaves an orphan")
    assert not is_gone(left)
    return shim, left


def page_of(pid: int) -> str:
    return next(word.decode() for word in processes.environ_of(pid) if word.startswith(b"FTSLURM_PAGE="))


def test_what_outlived_its_shim_is_ended_before_the_next_step_starts_anything(shims: Shims) -> None:
    """Where Slurm tells the processes of a job by their parents, nobody else ends it."""
    dead, left = orphaned(shims)
    shim = shims("echo $$; " + SLEEP, secret=dead.secret, launch=2, env={"SLURM_STEP_ID": "4"}, stderr=subprocess.PIPE)
    assert shim.start(2)["t"] == "started" and is_gone(left)
    shim.end(0)
    assert shim.process.stderr is not None and f"({left})".encode() in shim.process.stderr.read()


@pytest.mark.parametrize(
    ("variables", "how"),
    [
        ({}, {"secret": b"another ftrun of this job"}),
        ({}, {"launch": 1}),
        ({"SLURM_STEP_ID": "3"}, {}),
        ({"SLURM_JOB_ID": "8"}, {}),
        ({"SLURMD_NODENAME": "n1"}, {}),
    ],
)
def test_nothing_else_is_ended_for_that(shims: Shims, variables: dict[str, str], how: dict[str, Any]) -> None:
    """A rank may have submitted a job, which has all its variables."""
    dead, left = orphaned(shims)
    shim = shims(**{"secret": dead.secret, "launch": 2, "env": {"SLURM_STEP_ID": "4", **variables}} | how)
    assert shim.start(2)["t"] == "started" and not is_gone(left)


def test_what_runs_beside_it_in_the_same_attempt_is_not_of_an_older_one(shims: Shims) -> None:
    """Its step may have parts in several jobs."""
    _, left = orphaned(shims)
    env = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n2", "FTSLURM_PAGE": "/dev/shm/ftslurm.0.7.4.mark/1.2"}
    theirs = page_of(left).partition("=")[2]
    assert survivors.left_before(theirs, env) == [] and not is_gone(left)
    family = theirs.rpartition("/")[0].rpartition(".")[2].partition("-")[0]
    folder = f"/dev/shm/ftslurm.{os.getuid()}.7.4.{family}-0123456789ab"
    assert survivors.left_before(f"{folder}/1.1", env) == []
    assert survivors.left_before(f"{folder}/1.2", env) == [left]


def test_a_process_that_is_just_being_loaded_has_an_environment_all_the_same() -> None:
    """execve(2) over and over, thousands of times a second."""
    again = '[ $1 -gt 0 ] && exec sh -c "$0" "$0" $(($1 - 1)); exec sleep 100'
    with subprocess.Popen(["sh", "-c", again, again, "1000"], env={"MARK": "here", "PATH": os.environ["PATH"]}) as process:
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sleep"):
                assert b"MARK=here" in processes.environ_of(process.pid)
        finally:
            process.kill()
    assert processes.environ_of(process.pid) == []


# --- the folder of the pages, between users


def test_who_sees_the_folder_of_one_step_cannot_tell_the_name_of_the_next(shims: Shims) -> None:
    pages = []
    for step in ("3", "4"):
        shim = shims("echo $FTSLURM_PAGE", secret=b"of the same ftrun", env={"SLURM_STEP_ID": step})
        shim.start()
        pages.append(shim.words()[0].rpartition("/")[0])
        shim.hear("exited")
        shim.end(0)
    one, other = (page.rpartition(".")[2].partition("-") for page in pages)
    assert one[0] == other[0] and one[2] != other[2] and len(one[2]) == 12


@pytest.mark.parametrize(("lay", "said"), [
    (lambda path: path.mkdir(mode=0o777), "is open to others"),
    (lambda path: path.touch(), "is not a folder"),
    (lambda path: path.symlink_to("/tmp"), "is not a folder"),
    pytest.param(
        lambda path: (path.mkdir(mode=0o700), os.chown(path, 65534, 65534)), "belongs to user 65534",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay another's folder"),
    ),
])  # fmt: skip
def test_a_squatted_folder_is_said_and_the_command_runs(shims: Shims, lay: Callable[[Path], Any], said: str) -> None:
    shim = shims("echo ${FTSLURM_PAGE-none}", env={"SLURM_LOCALID": "0"}, stderr=subprocess.PIPE)
    folder = Path(page_folder("7.3", Channel(shim.env["FTSLURM_CHANNEL"])))
    before = os.umask(0)
    try:
        lay(folder)
        shim.start()
        assert shim.words() == ["none"]
        shim.hear("exited")
        shim.end(0)
        assert (
            shim.process.stderr is not None
            and f"{folder} {said}: ftrun cannot see heartbeats" in shim.process.stderr.read().decode()
        )
    finally:
        os.umask(before)
        folder.rmdir() if folder.is_dir() and not folder.is_symlink() else folder.unlink(missing_ok=True)


# --- the way there


def test_who_cannot_prove_itself_is_not_taken_for_the_controller() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SOON_S)
        channel = Channel(f"1:{server.getsockname()[1]}:{'00' * 32}:127.0.0.1")
        pid = os.fork()
        if pid == 0:
            try:
                peer, _ = server.accept()
                peer.sendall(b"FTS1 " + b"0" * 32 + b"\n")
                peer.recv(1000)
                peer.sendall(b"0" * 64 + b"\n")
                peer.recv(1000)
            finally:
                os._exit(0)
        with pytest.raises(OSError):
            connect(channel, {}, 0.3)
        os.waitpid(pid, 0)


def test_nobody_there_is_an_error_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(OSError, match=f"port {port}"):
        connect(Channel(f"1:{port}:{'00' * 32}:127.0.0.1"), {}, 0.3)
    assert time.monotonic() - began < SOON_S


def test_the_first_address_that_answers_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = SignedConnection(bytes(32), server=True)
        channel = Channel(f"1:{server.getsockname()[1]}:{'00' * 32}:127.0.0.9,no-such-host.invalid,127.0.0.1")
        server.settimeout(SOON_S)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                sock, _ = connect(channel, {}, SOON_S)
                status = int(sock.getpeername()[0] != "127.0.0.1")
            finally:
                os._exit(status)
        peer, _ = server.accept()
        with peer:
            peer.settimeout(SOON_S)
            while not link.ready:
                peer.sendall(link.outbox)
                link.outbox.clear()
                link.feed(peer.recv(4096))
            peer.sendall(link.outbox)
            assert os.waitpid(pid, 0)[1] == 0


def test_a_shim_without_a_way_to_the_controller_says_so_and_starts_nothing(tmp_path: Path) -> None:
    argv = [*shim_argv(), "touch", str(tmp_path / "marker")]
    for env in ({}, {"FTSLURM_CHANNEL": "nonsense"}):
        done = subprocess.run(
            argv, env={"PATH": "/usr/bin:/bin", "SLURM_PROCID": "3", **env}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 71 and "rank 3" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "marker").exists()


def shim_argv() -> list[str]:
    from ftslurm.launchers.python import own_python

    return list(own_python().shim_argv(()))


def test_a_port_for_the_rendezvous_is_none_that_a_connection_gets() -> None:
    """The same job and start get the same, another start another; what is bound, by either family, is passed over."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    first, again, other = (ports.free_port(of) for of in ("7.0.1.0", "7.0.1.0", "7.0.1.1"))
    assert first == again != other and not low <= first <= high
    with socket.create_server(("127.0.0.1", first)):
        assert ports.free_port("7.0.1.0") not in (0, first)
    assert ports.free_port("7.0.1.0") == first


@pytest.mark.parametrize(("connections", "least", "most"), [((1024, 60999), 61000, 65535), ((15000, 60999), 10000, 14999)])
def test_a_port_where_the_site_gives_connections_another_range(
    monkeypatch: pytest.MonkeyPatch, connections: tuple[int, int], least: int, most: int
) -> None:
    monkeypatch.setattr(ports, "_ports_of_connections", lambda: connections)
    assert all(least <= ports.free_port(f"7.0.1.{number}") <= most for number in range(50))


def test_where_all_ports_are_those_of_connections_any_is_better_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ports_of_connections", lambda: (1024, 65535))
    assert ports.free_port("7.0.1.0") > 0

"""The real shim on a lease, and over connections that break: ranks end when they must, not before, and tell it once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from ftslurm.wrapper.shim.connection import Channel
from ftslurm.wrapper.shim.lease import GUARD_S, PAUSE_S, Guard
from ftslurm.wrapper.shim.messages import SignedConnection
from ftslurm.wrapper.shim.session import Session
from tests.wrapper.shim_controller import SOON_S, Message, Shim, is_gone, until

pytestmark = pytest.mark.timeout(90)

LEASE_S = 3.0
# Writes down all the time that it runs, and its number.
RECORDS = 'echo $$; while :; do echo $EPOCHREALTIME >>"$RECORDS"; sleep 0.01; done'


class Stage:
    """Shims whose ranks write records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Shim] = []

    def __call__(self, script: str = RECORDS, lease_s: float = LEASE_S, **how: object) -> Shim:
        env = {"RECORDS": str(self.folder / "records"), **how.pop("env", {})}  # type: ignore[dict-item]
        self.made.append(Shim(("bash", "-c", script), env=env, lease_s=lease_s, **how))  # type: ignore[arg-type]
        return self.made[-1]

    @property
    def last(self) -> float:
        """When the rank ran for the last time, Unix seconds."""
        return float((self.folder / "records").read_text().splitlines()[-1])

    def has_run(self) -> bool:
        records = self.folder / "records"
        return records.exists() and records.stat().st_size > 0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    for shim in made.made:
        shim.close()


def answer_for(shim: Shim, seconds: float) -> None:
    """Hear, and so answer beats, for this long."""
    deadline = time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        shim.sock.settimeout(left_s)
        try:
            data = shim.sock.recv(65536)
        except TimeoutError:
            break
        assert data, "the shim hung up"
        assert [message for message in shim.link.feed(data) if shim._is_news(message)] == []
    shim.sock.settimeout(SOON_S)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(map(is_stopped, pids)), "the processes to stand still")


def test_a_rank_whose_lease_is_renewed_outlives_it(stage: Stage) -> None:
    shim = stage()
    shim.start()
    pid = shim.pid()
    answer_for(shim, 2.5 * LEASE_S)
    assert not is_gone(pid)
    shim.stop()
    assert shim.hear("exited")["signal"] == signal.SIGTERM


def test_a_rank_that_is_cut_off_ends_with_its_lease_and_not_before(stage: Stage) -> None:
    shim = stage()
    began = time.monotonic()  # before the lease does, which counts from the greeting
    shim.start()
    pid = shim.pid()
    shim.answers = False
    until(lambda: is_gone(pid), "the rank to end", LEASE_S + SOON_S)
    assert time.monotonic() - began > LEASE_S - 1.0, "the greeting took far less than a second"
    assert shim.process.wait(SOON_S) != 0


def test_what_ignores_sigterm_and_what_left_its_group_ends_with_the_lease_as_well(stage: Stage) -> None:
    shim = stage(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' & echo $$; while :; do sleep 0.1; done"
    )
    shim.start()
    pids = shim.pid(), shim.pid()
    shim.answers = False
    until(lambda: all(map(is_gone, pids)), "all of them to end", LEASE_S + SOON_S)


def test_the_kernel_keeps_the_lease_of_a_shim_that_stands_still(stage: Stage) -> None:
    """Its rank is not stopped, and nobody in user space is there to end it, or what it has started."""
    shim = stage("setsid sh -c 'echo $$; while :; do sleep 0.1; done' & echo $$; while :; do sleep 0.1; done")
    shim.start()
    pids = shim.pid(), shim.pid()
    began = time.monotonic()
    stop(shim.process.pid)
    until(lambda: all(map(is_gone, pids)), "the rank to end", LEASE_S + GUARD_S + SOON_S)
    assert time.monotonic() - began > LEASE_S / 2, "the lease was renewed at most a beat ago"
    assert shim.process.wait(SOON_S) != 0


@pytest.mark.parametrize(("where", "there"), [(None, True), ("librt.so.1", True), ("nowhere", False)])
def test_the_timers_for_that_are_found_wherever_the_libc_keeps_them(where: str | None, there: bool) -> None:
    """Before glibc 2.34 they are in a library of their own."""

    class Timers:
        set: ClassVar[list[int]] = []

        def timer_create(self, *_: object) -> int:
            return 0

        def timer_settime(self, _: object, flags: int, *__: object) -> None:
            self.set.append(flags)

    def load(name: str | None) -> object:
        if name == where:
            return Timers()
        if name is not None:
            raise OSError(f"{name}: no such file")
        return object()

    guard = Guard(load)
    guard.set(1.0)
    assert guard.there is there and Timers.set == ([1, 1] if there else [])


@pytest.mark.parametrize("local", ["0", "1"])
def test_a_node_without_such_timers_is_told_once(stage: Stage, local: str) -> None:
    shim = stage("exit 0", without="timer_library", env={"SLURM_LOCALID": local}, stderr=subprocess.PIPE)
    shim.start()
    shim.hear("exited")
    shim.end(0)
    assert shim.process.stderr is not None
    assert (b"has no timer_create" in shim.process.stderr.read()) == (local == "0")


def test_frozen_as_a_whole_beyond_the_lease_a_rank_never_runs_again(stage: Stage) -> None:
    shim = stage()
    shim.start()
    pid = shim.pid()
    until(stage.has_run, "a first record")
    stop(pid, shim.process.pid)
    frozen_at = time.time()
    assert shim.process.wait(LEASE_S + GUARD_S + SOON_S) != 0, "woken by the kernel alone"
    until(lambda: is_gone(pid), "the rank to end")
    assert stage.last <= frozen_at, "not for a moment"


def test_an_order_that_waited_for_a_shim_that_stood_still_is_not_obeyed(stage: Stage) -> None:
    shim = stage("echo ran")
    stop(shim.process.pid)
    shim.say(t="start", attempt=1, env={}, argv=None, tail=0)
    time.sleep(LEASE_S + GUARD_S + 0.5)  # nothing is to happen that could be awaited
    os.kill(shim.process.pid, signal.SIGCONT)
    assert shim.process.wait(SOON_S) != 0
    assert shim.rest() == ""


# --- a suspended job: Slurm says so with SIGTSTP, stops everything, and lets it go on with SIGCONT


class Pauses(Shim):
    """Its controller promises to wait for it. asked: how many beats have asked for that since they were last counted."""

    promises, asked = True, 0

    def _is_news(self, message: Message) -> bool:
        if message["t"] != "beat" or not self.answers:
            return super()._is_news(message)
        self.asked += "pause" in message
        self._send({"t": "beat", "k": message["k"], "a": self.talk.heard, "paused": self.promises and "pause" in message})
        return False

    def suspend(self, *pids: int) -> None:
        os.kill(self.process.pid, signal.SIGTSTP)
        until(lambda: self._has_asked() or not self.answers, "the shim to ask for it")
        stop(*pids, self.process.pid)

    def _has_asked(self) -> bool:
        answer_for(self, 0.2)
        return self.asked > 0

    def resume(self, *pids: int) -> None:
        for pid in (*pids, self.process.pid):
            os.kill(pid, signal.SIGCONT)


def suspended(stage: Stage, **how: object) -> tuple[Pauses, int]:
    shim = Pauses(("bash", "-c", RECORDS), env={"RECORDS": str(stage.folder / "records")}, lease_s=LEASE_S)
    stage.made.append(shim)
    for name, value in how.items():
        setattr(shim, name, value)
    shim.start()
    pid = shim.pid()
    until(stage.has_run, "a first record")
    shim.suspend(pid)
    return shim, pid


def test_a_suspended_rank_outlives_its_lease_and_runs_again_once_the_controller_has_answered(stage: Stage) -> None:
    shim, pid = suspended(stage)
    time.sleep(LEASE_S + GUARD_S + 1.0)  # nothing is to happen that could be awaited
    assert is_stopped(pid) and is_stopped(shim.process.pid)
    shim.resume(pid)
    until(lambda: not is_stopped(shim.process.pid), "the shim to run")
    until(lambda: is_stopped(pid), "the rank to be held")
    time.sleep(0.3)
    last = stage.last
    assert is_stopped(pid), "nobody has answered yet"
    answer_for(shim, 0.5)
    assert not is_stopped(pid)
    answer_for(shim, 2 * LEASE_S)
    assert stage.last > last + LEASE_S, "it is on its lease again"
    shim.answers = False
    until(lambda: is_gone(pid), "the rank to end with it", LEASE_S + SOON_S)


def test_a_suspension_shorter_than_the_lease_holds_nothing_up(stage: Stage) -> None:
    shim, pid = suspended(stage)
    shim.resume(pid)
    resumed_at = time.time()
    until(lambda: stage.last > resumed_at + 0.2, "the rank to run, with nobody asked")
    answer_for(shim, 2 * LEASE_S)
    assert not is_gone(pid)


def test_a_suspended_rank_without_which_the_job_has_gone_on_never_runs_for_long(stage: Stage) -> None:
    shim, pid = suspended(stage)
    time.sleep(LEASE_S + GUARD_S)
    resumed_at = time.time()
    shim.resume(pid)
    until(lambda: is_stopped(pid), "the rank to be held")
    assert stage.last < resumed_at + 0.5
    held_at = stage.last
    shim._send({"t": "refused"})
    until(lambda: is_gone(pid), "the rank to end")
    assert stage.last == held_at
    assert shim.process.wait(SOON_S) != 0


def test_held_and_never_answered_it_ends_after_another_lease_without_having_run(stage: Stage) -> None:
    shim, pid = suspended(stage)
    time.sleep(LEASE_S + GUARD_S)
    shim.resume(pid)
    until(lambda: is_stopped(pid), "the rank to be held")
    held_at = stage.last
    until(lambda: is_gone(pid), "the rank to end", 2 * LEASE_S + SOON_S)
    assert stage.last == held_at


@pytest.mark.parametrize("how", [{"promises": False}, {"answers": False}], ids=["refused", "unheard"])
def test_without_the_promise_the_lease_is_kept_however_the_shim_was_stopped(stage: Stage, how: dict[str, object]) -> None:
    shim, pid = suspended(stage, **how)
    assert shim.process.wait(LEASE_S + GUARD_S + SOON_S) != 0
    until(lambda: is_gone(pid), "the rank to end")


def test_nobody_was_silent_while_all_was_stopped(stage: Stage) -> None:
    shim = Pauses(("bash", "-c", RECORDS), env={"RECORDS": str(stage.folder / "records")}, lease_s=60.0, tail=65536)
    stage.made.append(shim)
    shim.start()
    pid = shim.pid()
    shim.say(t="silence", after_s=3.0)
    answer_for(shim, 0.5)
    shim.suspend(pid)
    time.sleep(4.0)
    shim.resume(pid)
    answer_for(shim, 1.5)  # and nothing is told
    assert shim.hear("silent")["for"] >= 3.0


def test_announced_and_not_stopped_the_lease_is_soon_a_lease_again(stage: Stage) -> None:
    shim = Pauses(("bash", "-c", RECORDS), env={"RECORDS": str(stage.folder / "records")}, lease_s=LEASE_S)
    stage.made.append(shim)
    shim.start()
    pid = shim.pid()
    os.kill(shim.process.pid, signal.SIGTSTP)
    answer_for(shim, PAUSE_S + 1.0)
    shim.asked = 0
    answer_for(shim, LEASE_S)
    assert shim.asked == 0
    shim.answers = False
    until(lambda: is_gone(pid), "the rank to end", LEASE_S + SOON_S)


@pytest.mark.parametrize("word", [{"t": "refused"}, {"t": "beat", "k": 0, "a": 1, "let_go": True}])
def test_a_rank_without_which_the_job_has_gone_on_ends_at_once(stage: Stage, word: dict[str, object]) -> None:
    """As when a virtual machine was paused, whose clocks know nothing of it."""
    shim = stage(lease_s=3600.0)
    shim.start()
    pid = shim.pid()
    shim._send(word)
    until(lambda: is_gone(pid), "the rank to end")
    assert shim.process.wait(SOON_S) != 0


def test_the_end_counts_though_it_is_read_together_with_the_answer_to_a_beat_after_it(stage: Stage) -> None:
    """As on a crowded node: that beat's answer ends the lease, and the rank would seem to have run beside another one."""
    shim = stage("echo $$; exec sleep 60", lease_s=60.0, stderr=-1)
    shim.start()
    shim.pid()
    end, answer = shim.talk.say({"t": "end", "status": 3}), {"t": "beat", "k": 0, "a": shim.talk.heard, "let_go": True}
    shim.sock.sendall(shim.link.pack(end) + shim.link.pack(answer))
    assert shim.process.wait(SOON_S) == 3
    assert shim.process.stderr is not None and shim.process.stderr.read() == b""


def test_a_break_is_not_noticed_by_the_rank_and_everything_is_told_once(stage: Stage) -> None:
    shim = stage("echo $$; read word; exit 7", lease_s=60.0, stdin=-1)
    assert shim.process.stdin is not None
    shim.start()
    shim.pid()
    for _ in range(3):
        shim.again()
    shim.process.stdin.write(b"go\n")
    shim.process.stdin.flush()
    assert shim.hear("exited")["code"] == 7
    shim.again()
    shim.stop()
    assert shim.hear("stopped")["left"] == [], "and not `exited` once more"
    assert shim.end(7) == 7


def test_what_happens_while_there_is_no_connection_is_told_afterwards(stage: Stage) -> None:
    shim = stage("echo $$; read word; exit 7", lease_s=60.0, stdin=-1)
    assert shim.process.stdin is not None
    shim.start()
    pid = shim.pid()
    shim.sock.close()
    shim.process.stdin.write(b"go\n")
    shim.process.stdin.flush()
    until(lambda: is_gone(pid), "the rank to end")
    shim.again()
    assert shim.hear("exited")["code"] == 7


def test_an_order_said_while_there_is_no_connection_is_carried_out_once(stage: Stage) -> None:
    shim = stage("trap 'echo usr1' USR1; echo $$; while :; do sleep 0.05; done", lease_s=60.0)
    shim.start()
    shim.pid()
    shim.sock.close()
    shim.talk.say({"t": "signal", "number": int(signal.SIGUSR1)})
    shim.again()
    assert shim.words() == ["usr1"]
    shim.again()
    shim.stop()
    shim.hear("exited")
    shim.hear("stopped")
    shim.end(0)
    assert shim.rest() == ""


def test_a_connection_over_which_no_answer_comes_is_given_up_for_a_new_one(stage: Stage) -> None:
    """As when a firewall forgets it: TCP would go on trying for minutes."""
    shim = stage(lease_s=20.0)
    shim.start()
    pid = shim.pid()
    shim.answers = False
    shim.again()
    shim.answers = True
    answer_for(shim, 1.0)
    assert not is_gone(pid)
    shim.stop()
    shim.hear("exited")


def test_an_answer_that_renews_nothing_counts_for_whoever_may_take_over() -> None:
    """The controller has heard that it arrived, and may renew the leases of other nodes for that."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Session(
            Channel(f"1:1/1:{'ab' * 32}:127.0.0.1"), {}, ours, SignedConnection(b"x" * 32, server=False), {"t": "hello"}
        )
        line._welcomed({"t": "welcome", "a": 0, "lease_s": 60.0, "beat_s": 5.0})
        began, ends = line.lease.answered, line.lease.until
        line._asked = {1: began + 100.0, 2: began + 200.0}
        line._is_new({"t": "beat", "a": 0, "k": 1, "cut_off": True})
        assert (line.lease.answered, line.lease.until) == (began + 100.0, max(ends, began + 100.0))
        line._is_new({"t": "beat", "a": 0, "k": 2})
        assert (line.lease.answered, line.lease.until) == (began + 200.0, began + 260.0)
        line.close()

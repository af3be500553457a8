"""The shim of one rank: its loop, and where it starts."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

from ftslurm.wrapper.shim.command import NAME_MAX, PR_SET_CHILD_SUBREAPER, Command, for_the_whole
from ftslurm.wrapper.shim.connection import CHANNEL_VARIABLE, Channel, NobodyAnswers, connect
from ftslurm.wrapper.shim.drill import Drill
from ftslurm.wrapper.shim.ending import RankEnding, clear_shared_memory, end_left_before
from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, signal, socket
from ftslurm.wrapper.shim.hello import free_port, hello_message
from ftslurm.wrapper.shim.lease import Guard, boot_s
from ftslurm.wrapper.shim.messages import LinkError, Message, SignedConnection
from ftslurm.wrapper.shim.output import DELIVER_S, SETTLE_STEP_S, Output, Silence, complain, make_output_folder, open_streams
from ftslurm.wrapper.shim.pages import PAGE_VARIABLE, SAVE_LOOK_S, Pages
from ftslurm.wrapper.shim.processes import ANNOUNCING, FORWARDED, RESCAN_S, catch_signals, end_as
from ftslurm.wrapper.shim.session import ORPHAN_KILL_WAIT_S, Session
from ftslurm.wrapper.shim.warm import HEAD_START_S, Spare

if TYPE_CHECKING:
    from collections.abc import Mapping

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"  # where programs under torch's `record` write how they failed
OWN_FAILURE = 71  # EX_OSERR: the shim itself could not do its work
LEFT_WAIT_S = 3.0  # for what an older attempt left, after SIGKILL; no beat is sent meanwhile


class Shim:
    """One loop over the connection, the signals and the clock."""

    def __init__(
        self, argv: list[str], env: dict[str, str], channel: Channel, sock: socket.socket, link: SignedConnection, wakeup: int,
        output: Output,
    ) -> None:  # fmt: skip
        self._argv = argv
        self._env = env
        self._wakeup = wakeup
        self._passes_on = False  # Slurm signals us alone, and not the command as well
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become subreaper (Linux 3.4 or later is needed)")
        self._guard = Guard()
        if not self._guard.there and env.get("SLURM_LOCALID", "0") == "0":  # once a node
            complain(f"ftslurm: {socket.gethostname()} has no timer_create: ranks whose shim is stopped outlive their lease")
        self._guarded = 0.0  # the end of the lease that the kernel knows, 0 for none
        self._command = Command(self._libc)
        self._drill = Drill(self._command)
        self._output = output
        self._silence = Silence(output)
        number = int(env.get("SLURM_PROCID", "0"))
        self._rank = channel.ranks[number] if channel.ranks is not None else number
        self._launch = channel.launch
        self._total = channel.total or int(env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or "1")
        self._pages = Pages(env, self._rank, channel)
        self._alone_here = False  # nothing is left of earlier steps
        self._ending = RankEnding(self._command, output)
        self._spare = Spare(self._command, output, self._ending.discount, tells=env.get("SLURM_LOCALID", "0") == "0")
        self._began = 0.0  # when the command first started, Unix seconds
        self._own_status: int | None = None  # of a command that ended by itself
        self._end: int | None = None  # the controller has let us go, with this status
        self._held = False  # what we watch over stands still until the controller has answered
        self._orphan = False
        greeting = hello_message(env, self._rank, self._total, self._launch, sock.getsockname()[0], self._free_port())
        self._line = Session(channel, env, sock, link, greeting)

    def run(self) -> int:
        """The status to end with: 128+n means by signal n."""
        poll = self._line.poll
        poll.register(self._wakeup, select.POLLIN)
        while True:
            # Poll again after a timeout: it may have passed while we were suspended, and SIGCONT came as that ended.
            ready = poll.poll(self._wait_ms(time.monotonic())) or poll.poll(0)
            self._keep_lease()  # before anything else: we may have stood still, and what waits to be read is old
            for fd, _ in ready:
                if fd == self._wakeup:
                    self._signalled(os.read(self._wakeup, 512))
                elif not self._orphan:
                    self._listen()
            if self._turn():
                self._spare.drop()
                self._pages.clear()
                return self._last_status()

    def _wait_ms(self, now: float) -> float | None:
        settle_s = SETTLE_STEP_S if self._ending.untold else None
        line_s = self._line.wakes_in(boot_s())
        moments = (self._command.wakes_in(now), self._drill.wakes_in(now), self._silence.wakes_in(now), settle_s,
                   self._spare.wakes_in(now), SAVE_LOOK_S if self._ending.saves.waits else None,
                   line_s if line_s < 1e6 else None)  # fmt: skip
        return min((moment * 1000 for moment in moments if moment is not None), default=None)

    def _keep_lease(self) -> None:
        """The lease has run out: nothing of ours may run any more, since it may run elsewhere."""
        if self._line.lease.paused and boot_s() >= self._line.lease.until:
            self._resumed()
        if not self._orphan and self._line.lease.over(boot_s()):
            self._command.kill(time.monotonic(), ORPHAN_KILL_WAIT_S)
            if self._end is None:
                complain(f"ftslurm: rank {self._rank}: {self._line.lease.why}; its remaining processes were killed")
            self._alone()

    def _turn(self) -> bool:
        """Look at the children and the connection; True when all is done."""
        nothing_left = self._command.reap()
        now = time.monotonic()
        self._spare.turn(now)
        self._line.turn(boot_s())
        if self._line.gone and not self._orphan:
            self._orphaned()
        self._watch_over(nothing_left)
        if self._ending.untold and self._ending.settled(now):
            self._report_exit()
        if self._held:
            self._hold()
        else:
            self._drill.press(now)
        if (silent_s := self._silence.news(now)) is not None:
            self._say({"t": "silent", "for": silent_s})
        self._ending.ask()
        if self._command.stopping:
            if nothing_left:
                if not self._ending.untold:
                    self._stopped([])
            elif not self._command.press(now):
                self._stopped(self._command.below())
        return not self._command.stopping and (self._end is not None or self._orphan)

    def _watch_over(self, nothing_left: bool) -> None:
        """Let the kernel know the end of the lease, until there is nothing to end and nothing will start."""
        done = self._line.lease.paused or (nothing_left and (self._orphan or self._end is not None))
        until = 0.0 if done or self._line.lease.until == float("inf") else self._line.lease.until
        if until != self._guarded:
            self._guarded = until
            self._guard.set(until)

    # --- from the controller

    def _listen(self) -> None:
        try:
            for message in self._line.listen():
                # The welcome may have told so; or a beat's answer, which is read together with the `end` said before it.
                if self._line.lease.over(boot_s()) and message["t"] != "end":
                    continue
                self._told(message)
        except (LinkError, KeyError, TypeError, ValueError) as error:
            complain(f"ftslurm: rank {self._rank}: cannot understand ftrun: {error}")
            self._orphaned()

    def _told(self, message: Message) -> None:
        what = message["t"]
        if what == "start":
            self._passes_on = bool(message.get("alone"))
            self._start(int(message["attempt"]), message.get("argv") or self._argv, message["env"], message)
            self._silence.watch(0.0 if self._ending.told else float(message.get("silence_s") or 0))
        elif what == "stop":
            self._drill.over()
            self._silence.watch(0.0)
            self._ending.stop(message, time.monotonic())
        elif what == "silence":
            if not self._ending.told:
                self._silence.watch(float(message["after_s"]), time.monotonic())
        elif what == "words":
            if not self._ending.told:
                self._say({"t": "words", "attempt": self._command.attempt, "tail": self._output.words()})
        elif what == "signal":
            self._command.signal(int(message["number"]), bool(message.get("group")))
        elif what == "drill":
            self._drill.told(message, time.monotonic())
        elif what == "end":
            self._drill.over()
            self._end = int(message["status"])
            if message.get("forget"):
                self._own_status = None
            # As Slurm does when a step ends: what the command left behind is killed, not asked.
            self._command.stop(time.monotonic(), 0.0, ORPHAN_KILL_WAIT_S)
        else:
            raise ValueError(f"unknown message {what!r}")

    def _start(self, attempt: int, argv: list[str], env: dict[str, str], message: Message) -> None:
        """message: tail: bytes to keep of each output stream; 0: nothing stands between the command and ours. inject: for
        PYTHONPATH. logs: files of the rank's own, see Output.lay; `folder`, if any, is the one that they are in. warm: see
        Spare.watch."""
        inject = str(message.get("inject") or "")
        self._own_status, self._began = None, self._began or time.time()
        env = for_the_whole({**self._env, **self._pages.variables(attempt), **env}, self._env)
        self._ending.begin(env.get(PAGE_VARIABLE, ""))
        if inject and os.path.isdir(inject):
            env["PYTHONPATH"] = f"{inject}:{env['PYTHONPATH']}" if env.get("PYTHONPATH") else inject
        if left := self._end_left_before(env):
            status, why = OWN_FAILURE, f"processes {', '.join(map(str, left))} of an earlier attempt outlived SIGKILL"[:NAME_MAX]
        else:
            status, why = self._start_with(attempt, argv, env, message)
        if why:
            self._ending.tell()
            self._own_status = status
            self._say({"t": "unstartable", "attempt": attempt, "status": status, "why": why})
        else:
            self._say({"t": "started", "attempt": attempt, "pid": self._command.pid})

    def _start_with(self, attempt: int, argv: list[str], env: dict[str, str], message: Message) -> tuple[int, str]:
        """Status and reason of what cannot be started, else 0 and nothing."""
        tail, logs = int(message.get("tail") or 0), message.get("logs") or {}
        plan = argv, (tail > 0, *sorted(logs))
        try:
            if logs.get("folder"):
                make_output_folder(logs["folder"])
                env[ERROR_FILE_VARIABLE] = f"{logs['folder']}/error.json"
            self._spare.offer(plan, env)
            there = tuple(self._spare.streams)
            ends = self._output.lay(tail, logs, self._spare.streams)
            if there and self._output.piped != there:  # no thread could be started for a pump
                self._spare.drop()
                there, ends = (), self._output.lay(tail, logs)
        except OSError as error:
            self._spare.drop()
            return OWN_FAILURE, f"its output cannot be written to {error.filename}: {error.strerror}"[:NAME_MAX]
        if there:
            self._command.take(attempt)  # which rewinds the input, before it reads that
            self._spare.go(HEAD_START_S if self._rank and env.get("MASTER_PORT") else 0.0)
        self._spare.watch(message.get("warm") or {}, plan, env, time.monotonic())
        return (0, "") if there else self._command.start(attempt, argv, env, ends)

    def _end_left_before(self, env: Mapping[str, str]) -> list[int]:
        """What a shim of an earlier step, which was killed, has left of its rank. Gives those that outlive it."""
        if self._launch < 2 or self._alone_here or PAGE_VARIABLE not in env:
            return []
        ended, left = end_left_before(env[PAGE_VARIABLE], env, LEFT_WAIT_S)
        if ended:
            pids = ", ".join(map(str, sorted(ended)))[:NAME_MAX]
            complain(f"ftslurm: rank {self._rank}: killed processes that an earlier attempt left behind ({pids})")
        self._alone_here = not left
        return left

    def _orphaned(self) -> None:
        """No controller, no supervision: end what runs, so that nothing runs beside a later attempt.

        The grace ends with the lease, which the kernel goes on watching.
        """
        left_s = 0.0 if self._held else self._line.lease.until - boot_s()
        asked = self._line.ending(boot_s())  # by Slurm; a second SIGTERM might disturb who writes a checkpoint
        self._ending.half_asked = asked
        self._command.stop(time.monotonic(), max(0.0, min(self._line.grace_s, left_s)), ORPHAN_KILL_WAIT_S, asked)
        self._alone()

    def _alone(self) -> None:
        self._orphan = True
        self._spare.drop()
        self._line.close()
        self._drill.over()

    # --- to the controller

    def _say(self, message: Message) -> None:
        if not self._orphan:
            self._line.say(message)

    def _free_port(self) -> int:
        """For the next start: another one than for the last, which may still be in TIME_WAIT, or taken by somebody else."""
        if self._rank:
            return 0
        job, step = self._env.get("SLURM_JOB_ID", ""), self._env.get("SLURM_STEP_ID", "")  # the same outside of Slurm
        return free_port(f"{job}.{step}.{os.getpid()}.{self._command.attempt}")

    def _report_exit(self) -> None:
        self._ending.tell()
        self._drill.over()
        self._silence.watch(0.0)
        if not self._ending.asked:
            self._own_status = self._ending.status
        if self._ending.killed_by in FORWARDED and not self._ending.asked:
            # Slurm signals the command and the shim one after the other: what killed the one is told before its end.
            time.sleep(RESCAN_S)
            self._signalled(self._pending())
        self._say(self._ending.message())

    def _pending(self) -> bytes:
        ready, _, _ = select.select([self._wakeup], [], [], 0)
        return os.read(self._wakeup, 512) if ready else b""

    def _stopped(self, left: list[int]) -> None:
        if self._ending.untold:  # its own process is gone, but others cannot be killed
            self._report_exit()
        self._command.stopping = False
        if self._began and not left:
            clear_shared_memory(self._began)
        said: Message = {"t": "stopped", "attempt": self._command.attempt, "left": left, "free_port": self._free_port()}
        self._say({**said, **self._ending.saves.told()})

    # --- signals

    def _resumed(self) -> None:
        """What we watch over was let go on with us, and is stopped at once where it may not run."""
        self._line.resume(boot_s())
        self._silence.since = time.monotonic()
        self._held = self._held or self._line.lease.held
        if self._held:
            self._hold()

    def _hold(self) -> None:
        """Until the controller has answered, or the end has come."""
        if self._command.stopping or self._orphan:
            self._held = False
        elif self._line.lease.held:
            self._command.freeze()  # again: who was being forked is found now
        else:
            self._held = False
            self._command.thaw()

    def _signalled(self, numbers: bytes) -> None:
        for number in dict.fromkeys(numbers):
            if number == signal.SIGTSTP:
                self._line.pause(boot_s())
            elif number == signal.SIGCONT:
                self._resumed()
            elif number == signal.SIGTERM:
                self._line.asked_to_end(boot_s())
            if number in ANNOUNCING and self._passes_on and not self._held:
                self._command.signal(number)
            if number in FORWARDED:
                if self._passes_on:
                    self._command.signal(number)
                self._say({"t": "signal", "number": number})

    def _last_status(self) -> int:
        if self._own_status:
            return self._own_status
        return self._end if self._end is not None else 128 + signal.SIGTERM


CONNECT_TIMEOUT_S = 30.0
MARK = "FTSLURM_CALLED"  # see system/commands.py
SET_ASIDE = ("FTSLURM_LD_PRELOAD", "FTSLURM_LD_AUDIT")  # see launchers/python.py


def main() -> None:
    argv = sys.argv[1:]
    env = dict(os.environ)
    # Slurm gives every task pipes of its own; the local launcher, if it need not label, its own to all.
    output = Output(open_streams(), shared=bool(env.get("FTSLURM_LOCAL")))
    if argv[:1] == ["--"]:
        argv = argv[1:]
    wakeup = catch_signals()
    rank = env.get("SLURM_PROCID", "?")
    try:
        channel = Channel(env.pop(CHANNEL_VARIABLE))
        env.pop(MARK, None)
        for name in [name for name in env if name.startswith(SET_ASIDE)]:
            env[name.removeprefix("FTSLURM_")] = env.pop(name)
        sock, link = connect(channel, env, CONNECT_TIMEOUT_S)
        env.pop("FTSLURM_LOCAL", None)
        status = Shim(argv, env, channel, sock, link, wakeup, output).run()
    except (IndexError, KeyError, OSError, ValueError) as error:
        firewall = " (a firewall between the nodes? FTRUN_NODES_PORTS and FTRUN_NODES_ADDRESS say what it lets through)"
        why = f"{error}{firewall if isinstance(error, NobodyAnswers) else ''}"
        complain(f"ftslurm: rank {rank} on {socket.gethostname()} cannot reach ftrun, so its command was not started: {why}")
        os._exit(OWN_FAILURE)
    output.deliver(DELIVER_S)
    end_as(status)

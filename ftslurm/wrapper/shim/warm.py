"""A spare process beside the rank that has imported what the rank did, and becomes the next one. sdk/warm.py is its other half.

It is the rank's own command, started once more: Python comes to that module before the program's first line, and waits there.
So it has the parent, the group, the flags and the limits of a cold start; what it gets at the end is its environment.
"""

from __future__ import annotations

import os
import select
import time

from ftslurm.wrapper.shim.command import Command, find_program
from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, signal, socket
from ftslurm.wrapper.shim.output import Output, complain
from ftslurm.wrapper.shim.pages import PAGE_VARIABLE
from ftslurm.wrapper.shim.processes import lines_of, memory_left, send_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

# What a spare has in common with the rank that it becomes: its argv, and the shape of its output.
Plan: TypeAlias = "tuple[list[str], tuple[object, ...]]"
WARM_VARIABLE = "FTSLURM_WARM"
SPARE_LOOK_S = 10.0  # between two looks at a spare and at the memory that is left
LEAST_LEFT = 0.05  # of memory, below which a spare is given up
ANSWER_S = 2.0  # for a spare to take what it is given: it looks at a dozen folders
# Of rank 0 before the other warm ranks: who calls its port before it listens waits 0.25 to 0.75 s (torch's TCPStore).
HEAD_START_S = 0.1
READY, TAKEN = "ready\n", "taken\n"
START_MORE_S = 0.05  # of CPU time, beside twice what the rank took, until a spare has come to wait
# They prepare their process and execute the rest of their words in it, so that they may run twice; so does a shell with `-c` and
# one command without any of UNCLEAR.
PREFIXES = frozenset(("chrt", "env", "exec", "ionice", "nice", "numactl", "prlimit", "setpriv", "stdbuf", "taskset"))
SHELLS, SHELL_FLAGS, UNCLEAR = frozenset(("bash", "dash", "sh", "zsh")), ("-c", "-lc"), frozenset(";&|<>()`\n*?[!")
LAUNCHERS = frozenset(
    ("accelerate", "accelerate.commands.launch", "deepspeed", "torch.distributed.launch", "torch.distributed.run", "torchrun")
)


class Spare:
    """At most one at a time, begun once for each start of the rank."""

    def __init__(self, command: Command, output: Output, discount: Callable[[], None], tells: bool) -> None:
        """discount: call it when the kernel may have killed a spare for memory, which is no kill of the rank. tells: why not."""
        self._tells = tells
        self._told: set[str] = set()
        self._discount = discount
        self._command = command
        self._output = output
        self._plan: Plan = ([], ())
        self._env: dict[str, str] = {}
        self._given: dict[str, str] = {}  # of the spare, but for what it is told
        self._after_s, self._memory, self._packages = 0.0, 0, ""  # 0 s: none is asked for
        self._look_at = 0.0  # monotonic, 0: nothing is to be done
        self._sock: socket.socket | None = None
        self.streams: dict[int, int] = {}  # our ends of its stdout and stderr
        self._said = ""

    def watch(self, asked: Mapping[str, Any], plan: Plan, env: dict[str, str], now: float) -> None:
        """The rank is being started. asked: a spare may begin `after_s` after its last import of `packages`, and take `memory`
        bytes."""
        self._after_s = float(asked["after_s"]) if asked else 0.0
        self._look_at = now + self._after_s if asked else 0.0
        self._plan, self._env = plan, dict(env)
        if asked:
            self._memory, self._packages = int(asked["memory"]), str(asked["packages"])
            env[WARM_VARIABLE] = f"{os.getpid()}:{self._packages}"

    def wakes_in(self, now: float) -> float | None:
        return max(0.0, self._look_at - now) if self._look_at else None

    def turn(self, now: float) -> None:
        """Begin it when it is time, give it up when it must."""
        if self._sock is not None and not self._command.beside:
            self._said = "" if self._said == READY else self._said
            self._hear(0.0)
            if os.WIFSIGNALED(self._command.beside_status):
                self._discount()
                self._said = f"signal {os.WTERMSIG(self._command.beside_status)} ended the spare process (9: memory was short)"
            self._give_up(self._said.strip())
        if not self._look_at or now < self._look_at:
            return
        if self._sock is None:
            if self._command.status is not None or self._command.stopping or self._command.beside:
                self._look_at = 0.0
            elif (rests_s := self._imports_rest_s()) < self._after_s:
                self._look_at = now + self._after_s - rests_s
            else:
                self._look_at = 0.0 if self._cannot() else now + SPARE_LOOK_S
                if self._look_at:
                    self._begin()
            return
        self._look_at = now + SPARE_LOOK_S
        self._hear(0.0)
        why = self._why_not()
        if not why and memory_left() < LEAST_LEFT:
            why = "memory is short"
        if why:
            self._give_up(why)

    def offer(self, plan: Plan, env: Mapping[str, str]) -> None:
        """Let it, if there is one, take the place of the next rank, up to `go`; or end it."""
        self._look_at = 0.0
        if self._sock is None:
            if self._after_s:
                self._give_up(self._cannot() or f"the rank has not run for {self._after_s:g} s (warm.after) since its imports")
            return
        self._hear(0.0)
        why = self._why_not()
        if not why:
            why = "the command has changed" if plan != self._plan else self._ask(env)
        if why:
            self._give_up(why)
        elif name := _launcher(_ran(lines_of(self._notes))):
            self._tell("import in part again", f"the processes that {name} starts have no spare")
        elif (last := lines_of(self._notes)[-1:]) and last[0].startswith("."):
            self._tell("import in part again", last[0][1:])

    def _give_up(self, why: str) -> None:
        self.drop()
        self._after_s = 0.0
        self._tell("import again", why)

    def _tell(self, what: str, why: str) -> None:
        """Once for each reason, by one rank a node."""
        if self._tells and why not in self._told:
            complain(f"ftslurm: {socket.gethostname()}: restarts {what} in spite of --ft-warm: {why}")
        self._told.add(why)

    def _ask(self, env: Mapping[str, str]) -> str:
        """Why it cannot take `env`."""
        assert self._sock is not None
        if self._said != READY:
            return "the spare process was still importing"
        changed = [name for name in sorted({*env, *self._given}) if env.get(name) != self._given.get(name)]
        before = self._words_before(lines_of(self._notes)) or ()
        if named := next((name for name in changed if any(name in word for word in before)), ""):
            return f"the command names {named}, which has changed"
        self._said = ""
        try:
            words = (f"{name}={env[name]}" if name in env else name for name in changed)
            self._sock.sendall(b"".join(os.fsencode(word) + b"\0" for word in words) + b"\0")
            self._hear(ANSWER_S)
        except OSError:
            pass
        return "" if self._said == TAKEN else self._said.strip() or "the spare process did not answer"

    def go(self, after_s: float) -> None:
        """It is the rank now."""
        assert self._sock is not None
        time.sleep(after_s)
        try:
            self._sock.send(b"+")
        except OSError:
            pass  # it has just been killed: so has the rank, then
        self._sock.close()
        self._sock, self.streams = None, {}

    def drop(self) -> None:
        """End it. It may be found dead later (`Command.reap`)."""
        self._look_at = 0.0
        if self._sock is None:
            return
        if self._command.beside:
            send_signal(self._command.beside, signal.SIGKILL)
        self._sock.close()
        for end in self.streams.values():
            os.close(end)
        self._sock, self.streams = None, {}

    def _imports_rest_s(self) -> float:
        """Since the rank's last note; -1 while it has noted its start alone, or imports."""
        try:
            lines = lines_of(self._notes)
            return -1.0 if len(lines) < 2 or lines[-1] == ">" else max(0.0, time.time() - os.stat(self._notes).st_mtime)
        except OSError:
            return -1.0

    def _words_before(self, lines: list[str]) -> list[str] | None:
        try:
            return _before(ran, self._plan[0], self._env.get("PATH", os.defpath)) if (ran := _ran(lines)) else None
        except OSError:
            return None

    @property
    def _notes(self) -> str:
        """The file that sdk/warm.py keeps."""
        return f"{self._env.get(PAGE_VARIABLE, '').rpartition('.')[0]}.warm"

    def _cannot(self) -> str:
        """Why the rank has no spare. Its program would run twice where its interpreter does not come to the place of one."""
        lines, inject = lines_of(self._notes), self._env.get("PYTHONPATH", "").partition(":")[0]
        if os.isatty(0):
            return "the command rules its terminal"
        if not (self._output.piped and PAGE_VARIABLE in self._env and os.access(f"{inject}/sitecustomize.py", os.R_OK)):
            return "logs.tail_bytes or sdk.inject is switched off"
        if not os.path.exists("/proc/thread-self/children"):  # by which the end of all but a spare is proven
            return "this kernel does not list children"
        if self._words_before(lines) is None:
            return "the command is not Python itself, or is Python with -I, -E or -S, or before 3.10"
        return f"the program imports none of {self._packages} (warm.packages)" if len(lines) < 2 else ""

    def _begin(self) -> None:
        page, _, attempt = self._env[PAGE_VARIABLE].rpartition(".")
        fds = self._output.piped
        ms = float(lines_of(self._notes)[0].partition(" ")[0])  # of CPU time, that the rank took to come to sdk/warm.py
        self._sock, theirs = socket.socketpair()
        self._sock.settimeout(ANSWER_S)
        os.set_inheritable(theirs.fileno(), True)
        pipes = {fd: os.pipe() for fd in fds}
        self.streams, self._said = {fd: ours for fd, (ours, _) in pipes.items()}, ""
        ends = [(end, fd) for fd, (_, end) in pipes.items()] + ([(pipes[1][1], 2)] if fds == (1,) else [])
        waits = f"{os.getpid()}:{self._packages}:{theirs.fileno()}:{self._memory}:{self._command.pid}"
        self._given = {**self._env, PAGE_VARIABLE: f"{page}.{int(attempt) + 1}"}
        env = {**self._given, WARM_VARIABLE: waits}
        self._command.start_beside(self._plan[0], env, ends, 2 * ms / 1000 + START_MORE_S)
        theirs.close()
        if not self._command.beside:
            self.drop()

    def _hear(self, limit_s: float) -> None:
        """The next line that it says, if it comes in time; a word of ours where it has ended."""
        assert self._sock is not None
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        while not self._said.endswith("\n") and poll.poll(limit_s * 1000):
            data = self._sock.recv(4096)
            self._said += data.decode(errors="replace") if data else "the spare process has ended\n"

    def _why_not(self) -> str:
        if self._said not in ("", READY):
            return self._said.strip()
        poll = select.poll()
        for end in self.streams.values():
            poll.register(end, select.POLLIN)
        return "something is printed before the program begins" if poll.poll(0) else ""


def _ran(lines: list[str]) -> list[str]:
    """The argv of the Python that keeps these notes."""
    try:
        return [os.fsdecode(word) for word in bytes.fromhex(lines[0].partition(" ")[2]).split(b"\0")]
    except (IndexError, ValueError):
        return []


def _before(ran: list[str], argv: list[str], path: str) -> list[str] | None:
    """The words of `argv` that do nothing but execute `ran`; None if they may do more."""
    script = find_program(argv[0], path)  # it may begin with its interpreter
    if ran == argv or (ran[-len(argv) :] == [script, *argv[1:]] and _is_pythons(script)):
        return []
    if argv[0].rpartition("/")[2] in SHELLS and argv[1:2] and argv[1] in SHELL_FLAGS:
        words = argv[2].split() if argv[2:] and not UNCLEAR.intersection(argv[2]) else []
        return argv[2:3] if ran[0] in words and all(map(_executes, words[: words.index(ran[0])])) else None
    before = argv[: -len(ran)]
    return before if argv == before + ran and all(map(_executes, before)) else None


def _executes(word: str) -> bool:
    """Is it the name of a prefix, or an option, a number or a variable of one?"""
    name, equals, _ = word.partition("=")
    return word.rpartition("/")[2] in PREFIXES or word[:1] == "-" or word[:1].isdigit() or bool(equals and name.isidentifier())


def _launcher(ran: list[str]) -> str:
    """The name of the module or script that Python runs, where that is one of LAUNCHERS."""
    words = [word for word in ran[1:] if word[:1] != "-"]
    name = (words or [""])[0].rpartition("/")[2]
    return name if name in LAUNCHERS else ""


def _is_pythons(script: str) -> bool:
    with open(script, "rb") as file:
        first = file.readline(256)
    return first.startswith(b"#!") and b"python" in first

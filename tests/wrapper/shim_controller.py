"""A controller for one shim, as small as can be: it listens, proves itself, and says and hears messages."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftslurm.launchers.python import own_python
from ftslurm.wrapper.shim.connection import CHANNEL_VARIABLE, Channel
from ftslurm.wrapper.shim.messages import SignedConnection
from ftslurm.wrapper.shim.pages import page_folder
from ftslurm.wrapper.shim.session import ReliableStream

REPOSITORY = Path(__file__).parents[2]
SOON_S = 60.0  # far above anything that is waited for, also where others compute
Message = Mapping[str, Any]


def until(ready: Callable[[], bool], what: str, limit_s: float = SOON_S) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    """A zombie has gone, too: who should have reaped it is not there any more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def as_in_a_terminal() -> None:
    """For preexec_fn: what runs in the background of a script ignores SIGINT, and so would everything below it."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Shim:
    """One real shim with its command. `words` reads what the command prints; all its processes end with the test."""

    def __init__(
        self, command: Sequence[str], rank: int = 0, env: Mapping[str, str] | None = None, tail: int = 0,
        lease_s: float = 0.0, place: str = "", secret: bytes = b"", launch: int = 0, without: str = "", grace_s: float = 20.0,
        **how: Any,
    ) -> None:  # fmt: skip
        """tail: bytes that it keeps of each output stream, in every attempt. lease_s: 0: it has none, and sends no beats. place: of its srun's ranks among all, as Channel reads it. secret: of the ftrun. launch: of its steps, which this is. without: a function of its module that finds nothing."""
        self.tail = tail
        self.alone = True  # as with proctrack/cgroup: signals come to the shim, which passes them on
        self.secret = secret or secrets.token_bytes(32)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SOON_S)
        version = f"2:{place}" if place else "1"
        channel = f"{version}:{self._listener.getsockname()[1]}/{launch}:{self.secret.hex()}:127.0.0.1"
        self.env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            CHANNEL_VARIABLE: channel,
            "FTSLURM_LOCAL": "1",
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": "1",
            "SLURM_LOCALID": "2",
            "SLURM_NTASKS": "5",
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "3",
            "SLURMD_NODENAME": "n2",
        } | dict(env or {})
        argv = own_python().shim_argv(tuple(command))
        if without:
            argv = tuple(word.replace("main()", f"import _shim; _shim.{without} = lambda *_: None; main()") for word in argv)
        self.process = subprocess.Popen(
            argv, env=self.env, **({"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, "preexec_fn": as_in_a_terminal} | how)
        )
        self.lease_s, self.grace_s = lease_s, grace_s
        self.answers = True
        self.talk = ReliableStream()
        self._heard: list[Message] = []
        self._text = b""
        self._pids: list[int] = []
        self._accept()

    def _accept(self) -> None:
        self.sock, _ = self._listener.accept()
        self.sock.settimeout(SOON_S)
        self.link = SignedConnection(self.secret, server=True)
        self._greet()
        self.hello = self.hear("hello")
        self.talk.has(self.hello["a"])
        self.welcome()

    def _greet(self) -> None:
        while not self.link.ready:
            self.sock.sendall(self.link.outbox)
            self.link.outbox.clear()
            self._heard += self.link.feed(self.sock.recv(4096))  # nothing but greetings, or the first message
        self.sock.sendall(self.link.outbox)
        self.link.outbox.clear()

    # --- saying

    def welcome(self) -> None:
        self._send(
            {"t": "welcome", "a": self.talk.heard, "lease_s": self.lease_s, "beat_s": self.lease_s / 5, "grace_s": self.grace_s}
        )
        for message in self.talk.kept:
            self._send(message)

    def say(self, **message: Any) -> None:
        self._send(self.talk.say(message))

    def _send(self, message: Message) -> None:
        self.sock.sendall(self.link.pack(dict(message)))

    def start(self, attempt: int = 1, argv: Sequence[str] | None = None, **env: str) -> Message:
        """Gives the answer: `started` or `unstartable`."""
        self.say(t="start", attempt=attempt, env=env, argv=list(argv) if argv else None, tail=self.tail, alone=self.alone)
        answer = self.hear("started", "unstartable")
        self._pids += [answer["pid"]] if "pid" in answer else []
        return answer

    def stop(self, attempt: int = 1, grace_s: float = SOON_S, kill_wait_s: float = SOON_S) -> None:
        self.say(t="stop", attempt=attempt, grace_s=grace_s, kill_wait_s=kill_wait_s)

    def end(self, status: int) -> int:
        """Let it go; gives how the shim's process ended, as Popen has it."""
        self.say(t="end", status=status)
        return self.process.wait(SOON_S)

    def hang_up(self) -> None:
        """As a controller that has ended: nobody listens any more."""
        self._listener.close()
        self.sock.close()

    # --- hearing

    def hear(self, *kinds: str) -> Message:
        """The next message, which must be of one of `kinds`."""
        while not self._heard:
            data = self.sock.recv(65536)
            assert data, f"the shim hung up instead of saying {kinds}"
            self._heard += [message for message in self.link.feed(data) if self._is_news(message)]
        message = {name: value for name, value in self._heard.pop(0).items() if name != "n"}
        assert message["t"] in kinds, f"{message} was heard instead of {kinds}"
        return message

    def _is_news(self, message: Message) -> bool:
        """Beats are answered while they are to be."""
        if message["t"] == "beat":
            if self.answers:
                self._send({"t": "beat", "k": message["k"], "a": self.talk.heard})
            return False
        return message["t"] == "hello" or self.talk.hear(dict(message))

    def again(self) -> None:
        """Take the next connection, as the same controller."""
        self.sock.close()
        self._accept()

    def words(self) -> list[str]:
        """The next line that the command prints."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self._text:
            ready, _, _ = select.select([fd], [], [], SOON_S)
            data = os.read(fd, 65536) if ready else b""
            assert data, f"no line was printed, only {self._text!r}"
            self._text += data
        line, _, self._text = self._text.partition(b"\n")
        return line.decode().split()

    def pid(self) -> int:
        """The next line, which is the number of a process; it is ended after the test in any case."""
        (word,) = self.words()
        self._pids.append(int(word))
        return int(word)

    def rest(self) -> str:
        """All that is printed until nobody holds the output any more."""
        assert self.process.stdout is not None
        text, self._text = self._text + self.process.stdout.read(), b""
        return text.decode()

    def close(self) -> None:
        for pid in (self.process.pid, *self._pids):
            try:
                if pid != self.process.pid or self.process.poll() is None:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(SOON_S)
        for end in (self.process.stdout, self.process.stderr, self.process.stdin, self.sock, self._listener):
            if end is not None:
                end.close()
        step = f"{self.env['SLURM_JOB_ID']}.{self.env['SLURM_STEP_ID']}"
        shutil.rmtree(page_folder(step, Channel(self.env[CHANNEL_VARIABLE])), ignore_errors=True)

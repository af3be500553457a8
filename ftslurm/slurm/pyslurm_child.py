"""pyslurm in a process of its own.

Three reasons. pyslurm never gives up Python's global lock, so while slurmctld does not answer, for up to twice its
MessageTimeout, no thread of the process runs: neither heartbeats nor a timer that could bound the call. Slurm's library
ends the process it lives in when it finds no slurm.conf. And the SIGTERM that comes with a requeue must not end
whoever is about to exclude nodes and release the job: the child ignores it.

The child takes pickled requests on stdin, gives pickled answers on stdout, and ends with its stdin.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from ftslurm.errors import CommandMissing, FtslurmError, SlurmUnavailable
from ftslurm.slurm.client import JobView, NodeView
from ftslurm.slurm.complaints import CONTROLLER_HINT
from ftslurm.slurm.retries import NoAnswer

# Importing pyslurm takes some tenths of a second on a busy file system, and nothing of Slurm is asked yet.
START_LIMIT_S = 20.0
# The child gives up by itself after the time limit; beyond it lies what only a kill ends.
GRACE_S = 2.0
READY, NO_PYSLURM = "ready", "no pyslurm"
IMPORT_HINT = "does `python -c 'import pyslurm'` work here? Else use the command line client"


class ChildSlurmClient:
    """SlurmClient that hands each request to the child, and ends a child that does not answer in time.

    The child is started by the first request, and anew when it is gone. timeout_s: for one request. env: of the child.
    """

    def __init__(self, timeout_s: float = 60.0, argv: Sequence[str] = (), env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        self._timeout_s = timeout_s
        self._argv = argv or child_argv(timeout_s)
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def job(self, number: int) -> JobView:
        view: JobView = self._ask("job", number)
        return view

    def nodes(self) -> tuple[NodeView, ...]:
        views: tuple[NodeView, ...] = self._ask("nodes")
        return views

    def config(self) -> dict[str, str]:
        config: dict[str, str] = self._ask("config")
        return config

    def requeue_held(self, number: int) -> None:
        self._ask("requeue_held", number)

    def requeue(self, number: int) -> None:
        self._ask("requeue", number)

    def exclude(self, number: int, nodes: Iterable[str]) -> None:
        self._ask("exclude", number, tuple(nodes))

    def require(self, number: int, nodes: Iterable[str]) -> None:
        self._ask("require", number, tuple(nodes))

    def start_at(self, number: int, unix_s: int | None) -> None:
        self._ask("start_at", number, unix_s)

    def release(self, number: int) -> None:
        self._ask("release", number)

    def allow_requeue(self, number: int) -> None:
        self._ask("allow_requeue", number)

    def takes_changes(self, number: int, within_s: float) -> bool:
        takes: bool = self._ask("takes_changes", number, within_s)
        return takes

    def signal_steps(self, number: int, name: str) -> None:
        self._ask("signal_steps", number, name)

    def keep_nodes(self, number: int, nodes: Iterable[str]) -> None:
        self._ask("keep_nodes", number, tuple(nodes))

    def cancel(self, number: int) -> None:
        self._ask("cancel", number)

    def start(self) -> None:
        """Bring the child up.

        Raises: CommandMissing when it finds no pyslurm that it can use, SlurmUnavailable when it does not come up.
        """
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the child; the next request would start another."""
        with self._lock:
            self._end()

    def _ask(self, request: str, *arguments: object) -> Any:
        with self._lock:
            child = self._running()
            try:
                write(child.requests, (request, arguments))
                answer = read(child.answers, self._timeout_s + GRACE_S)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._end()
                why = str(error) or "its process is gone"
                raise NoAnswer(f"pyslurm gave no answer to `{request}`: {why}", CONTROLLER_HINT) from None
        if isinstance(answer, FtslurmError):
            raise answer
        return answer

    def _running(self) -> _Child:
        if self._child is None or self._child.process.poll() is not None:
            self._end()
            self._child = _Child.start(self._argv, self._env)
            self._greet(self._child)
        return self._child

    def _greet(self, child: _Child) -> None:
        try:
            word = read(child.answers, START_LIMIT_S)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._end()
            raise SlurmUnavailable(f"pyslurm did not come up: {str(error) or 'its process ended'}", IMPORT_HINT) from None
        if word != READY:
            self._end()
            raise CommandMissing(f"pyslurm cannot be used by {sys.executable}", IMPORT_HINT)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]
    requests: IO[bytes]
    answers: IO[bytes]

    @staticmethod
    def start(argv: Sequence[str], env: Mapping[str, str]) -> _Child:
        process = subprocess.Popen(argv, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        return _Child(process, process.stdin, process.stdout)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        with suppress(OSError):  # a request that nobody read may still lie in the buffer
            self.requests.close()
        self.answers.close()


def child_argv(timeout_s: float) -> tuple[str, ...]:
    """This Python, this module path; `python -m` would look into the current folder first, be it anybody's."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main({timeout_s!r})"
    return (sys.executable, "-c", program)


def write(pipe: IO[bytes], value: object) -> None:
    """One message: its length in eight bytes, and the pickle."""
    data = pickle.dumps(value)
    pipe.write(len(data).to_bytes(8, "big") + data)
    pipe.flush()


def read(pipe: IO[bytes], limit_s: float | None) -> Any:
    """The next message; limit_s: None waits for ever.

    Raises: TimeoutError after `limit_s` seconds, EOFError when the writer is gone.
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    size = int.from_bytes(_read_exactly(pipe, 8, deadline), "big")
    return pickle.loads(_read_exactly(pipe, size, deadline))  # noqa: S301 - parent and child are one program


def _read_exactly(pipe: IO[bytes], size: int, deadline: float | None) -> bytes:
    data = b""
    while len(data) < size:
        left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if not select.select([pipe], [], [], left_s)[0]:
            raise TimeoutError("the time limit is over")
        chunk = os.read(pipe.fileno(), size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def serve(client: Any, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    while True:
        try:
            name, arguments = read(requests, None)
        except EOFError:
            return
        try:
            answer = getattr(client, name)(*arguments)
        except FtslurmError as error:
            answer = error
        write(answers, answer)


def main(timeout_s: float) -> None:
    """The child: what it prints, and what Slurm's library prints, must not get between the answers."""
    from ftslurm.slurm.cli_client import CliSlurmClient
    from ftslurm.slurm.pyslurm_client import PyslurmSlurmClient, load_pyslurm

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pyslurm = load_pyslurm()
    write(answers, READY if pyslurm else NO_PYSLURM)
    if pyslurm:
        client = PyslurmSlurmClient(pyslurm, CliSlurmClient(timeout_s=timeout_s), timeout_s)
        serve(client, sys.stdin.buffer, answers)

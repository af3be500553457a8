"""A vendor's library (NVML, amdsmi, libdcmi) in a process of its own: both ends of the pipe.

Four reasons. A call about a lost GPU may never return: a process can be ended then, a thread cannot. A library that
crashes takes the child with it and nobody else. LD_LIBRARY_PATH is read when a process starts, and only then. And
whoever has the library open counts as a user of the GPUs and keeps them from being reset: with the child, that ends.

The child takes one JSON object a line on stdin, gives one or several a line on stdout (what it hears while it looks,
then the answer), and ends with its stdin.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, TypeVar

Json = dict[str, Any]
Tell = Callable[[Json], None]
T = TypeVar("T")

# A process that SIGKILL does not end in this time waits in the kernel for the device, and may do so for ever.
KILL_WAIT_S = 1.0


class NoAnswer(Exception):
    """Tool, driver or library is missing, fails, hangs or sends an unreadable answer; the text says which.

    absent: no such devices."""

    def __init__(self, why: str, absent: bool = False) -> None:
        super().__init__(why)
        self.absent = absent


class LibraryChild:
    """Hands each request to the child, and ends a child that does not answer in time.

    The child is started by the first request, and anew when it is gone. name: the library's, for people.
    module: the child runs `main` of it. env: the child's.
    """

    def __init__(self, name: str, module: str, env: Mapping[str, str]) -> None:
        self._name = name
        self._module = module
        self._env = env
        self._child: _Child | None = None
        self._stuck: subprocess.Popen[bytes] | None = None

    def ask(self, request: Json, timeout_s: float, hear: Tell) -> Json:
        """The answer. `hear` gets what the child heard, also when the answer fails to come.

        Raises: NoAnswer.
        """
        child = self._running()
        try:
            return child.ask(request, time.monotonic() + timeout_s, hear)
        except TimeoutError:
            self.close()
            raise NoAnswer(f"{self._name} gave no answer within {timeout_s:.3g} s") from None
        except (OSError, EOFError):
            self.close()
            status = child.process.returncode
            raise NoAnswer(f"the process that asks {self._name} has ended (status {status})") from None
        except (ValueError, TypeError, KeyError):
            self.close()
            raise NoAnswer(f"the process that asks {self._name} sent an unreadable answer") from None

    def close(self) -> None:
        """End the child, and with it all use of the devices; the next request would start another."""
        child, self._child = self._child, None
        if child is not None and not child.end():
            self._stuck = child.process

    def _running(self) -> _Child:
        if self._stuck is not None and self._stuck.poll() is None:
            # Another one would hang beside it.
            raise NoAnswer(f"an earlier call of {self._name} still hangs in the driver (process {self._stuck.pid})")
        self._stuck = None
        if self._child is None:
            self._child = _Child.start(self._module, self._env)
        return self._child


# The ranks come first.
NICE = 5


class _Child:
    def __init__(self, process: subprocess.Popen[bytes], requests: IO[bytes], answers: IO[bytes]) -> None:
        self.process = process
        self._requests = requests
        self._answers = answers
        self._unread = b""

    @staticmethod
    def start(module: str, env: Mapping[str, str]) -> _Child:
        # This Python, this module path, nothing of the user's: `python -m` would look into the current folder first.
        program = f"import os, sys; os.nice({NICE}); sys.path[:] = {sys.path!r}; from {module} import main; main()"
        try:
            process = subprocess.Popen(
                (sys.executable, "-I", "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env=dict(env),
            )  # fmt: skip
        except OSError as error:
            raise NoAnswer(f"no process can be started: {error}") from None
        assert process.stdin is not None and process.stdout is not None
        return _Child(process, process.stdin, process.stdout)

    def ask(self, request: Json, deadline: float, hear: Tell) -> Json:
        self._requests.write(json.dumps(request).encode() + b"\n")
        self._requests.flush()
        while True:
            message = json.loads(self._line(deadline))
            if "heard" in message:
                hear(message["heard"])
            elif "error" in message:
                raise NoAnswer(str(message["error"]), absent=message["absent"] is True)
            else:
                answer: Json = message["answer"]
                return answer

    def end(self) -> bool:
        """Kill it. False: it hangs where no signal reaches it."""
        self.process.kill()
        for pipe in (self._requests, self._answers):
            with suppress(OSError):  # a request that nobody read may still lie in the buffer
                pipe.close()
        try:
            self.process.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._unread:
            if not select.select([self._answers], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                raise TimeoutError
            chunk = os.read(self._answers.fileno(), 65536)
            if not chunk:
                raise EOFError
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line


# ---- waiting

# The vendors' own watchers look once a second while they wait for a device.
LOOK_AGAIN_S = 1.0


def look_until(
    look: Callable[[], T], enough: Callable[[T], object], until: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> T:
    """`look` each second until it gives `enough` or `until` of `clock` is over; at least once. The last one counts."""
    while True:
        found, left_s = look(), until - clock()
        if enough(found) or left_s <= 0:
            return found
        sleep(min(LOOK_AGAIN_S, left_s))


# ---- the child's side


class Library(ABC):
    """A vendor's library in use."""

    @abstractmethod
    def failure(self, error: Exception) -> list[object]:
        """Status and words of a call that failed. Raises the error if the library does not raise such ones."""

    def asked(self, **calls: Callable[[], Any]) -> tuple[Json, Json]:
        """What the calls told, and of those that failed the status and the words."""
        told: Json = {}
        failed: Json = {}
        for name, call in calls.items():
            try:
                told[name] = call()
            except Exception as error:
                failed[name] = self.failure(error)
        return told, failed

    def gpu(self, index: int, **calls: Callable[[], Any]) -> Json:
        """For `read_look`."""
        told, failed = self.asked(**calls)
        return {"index": index, "told": told, "failed": failed}


def serve(handle: Callable[[Json, Tell], Json]) -> None:
    """Answer requests until there are no more. What the library prints must not get between the answers."""
    # Signals to the job are for its ranks; the child ends with its stdin.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(message: Json) -> None:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()

    for line in sys.stdin.buffer:
        try:
            say({"answer": handle(json.loads(line), lambda heard: say({"heard": heard}))})
        except NoAnswer as error:
            say({"error": str(error), "absent": error.absent})
        except Exception as error:  # whatever a foreign module raises is its answer, and the next request is another
            say({"error": f"{type(error).__name__}: {error}", "absent": False})

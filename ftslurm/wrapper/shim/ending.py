"""How the command of an attempt is stopped, how it ended, and what is left of it: processes, files in /dev/shm."""

from __future__ import annotations

import os
import time

from ftslurm.wrapper.shim.command import Command
from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, signal
from ftslurm.wrapper.shim.messages import Message
from ftslurm.wrapper.shim.output import SETTLE_S, Output
from ftslurm.wrapper.shim.pages import PAGE_VARIABLE, Saves, last_notes
from ftslurm.wrapper.shim.processes import RESCAN_S, environ_of, oom_kills, send_signal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


# --- Processes of an older attempt whose shim was killed: they are found by their environment, and ended.


def left_before(page: str, env: Mapping[str, str]) -> list[int]:
    """Processes on this node of an older attempt of the same ftrun, in another of its steps: their shim was killed. Where
    Slurm tells the processes of a job by their parents (proctrack/linuxproc), nobody else ends them.

    page, env: of the command to come. A job that they have submitted has all their variables, but for the job's number.
    """
    same = {os.fsencode(f"{name}={env[name]}") for name in ("SLURM_JOB_ID", "SLURMD_NODENAME") if name in env}
    found, mark = [], f"{PAGE_VARIABLE}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        words = environ_of(int(name))
        pages = [os.fsdecode(word[len(mark) :]) for word in words if word.startswith(mark)]
        if len(same) == 2 and same <= set(words) and any(_is_older(other, page) for other in pages):
            found.append(int(name))
    return found


def _is_older(page: str, than: str) -> bool:
    """Of the same ftrun, and of another step."""
    (folder, _, place), (ours, _, our_place) = page.rpartition("/"), than.rpartition("/")
    number, our_number = place.rpartition(".")[2], our_place.rpartition(".")[2]
    if folder == ours or _family(folder) != _family(ours):
        return False
    return number.isdigit() and our_number.isdigit() and int(number) < int(our_number)


def _family(folder: str) -> str:
    return folder.rpartition(".")[2].partition("-")[0]


def end_left_before(page: str, env: Mapping[str, str], limit_s: float) -> tuple[set[int], list[int]]:
    """Kill what is left of older attempts; gives all that was found, and those that outlive it."""
    found, deadline = set(), time.monotonic() + limit_s
    while (left := left_before(page, env)) and time.monotonic() < deadline:
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        found.update(left)
        time.sleep(RESCAN_S)
    return found, left


# --- Files in /dev/shm that killed ranks have left: libraries unlink theirs only at an end of their own. Each start leaves more.

SHARED_MEMORY = "/dev/shm"  # noqa: S108
# NCCL's segments, torch's tensors (torch_PID_..., by its strategy file_system), PSM's and CUDA's. Others may be meant
# to outlive a restart.
OF_LIBRARIES = ("nccl-", *(f"torch_{digit}" for digit in range(1, 10)), "psm2_", "psm3_", "cuda-ipc", "cuda.shm.")
LOOK_S = 2
# The kernel dates files by its last tick: what a rank makes at once looks older than its start. Source: CONFIG_HZ, 100 at least.
TICK_S = 0.01


def clear_shared_memory(began: float) -> None:
    """Remove what has changed there since `began` (Unix seconds), is ours, and no process has any more. None of this rank runs.

    A child does it, which does not outlive LOOK_S: a look at the memory of a stuck process may itself get stuck.
    """
    left = _left_since(began)
    if not left:
        return
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LOOK_S)
            for path in left - _held():
                os.unlink(path)
        finally:
            os._exit(0)
    deadline = time.monotonic() + LOOK_S + 1
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        time.sleep(RESCAN_S)


def _left_since(began: float) -> set[str]:
    found = set()
    try:
        for name in os.listdir(SHARED_MEMORY):
            if name.startswith(OF_LIBRARIES):
                info = os.lstat(f"{SHARED_MEMORY}/{name}")
                mine = info.st_mode & 0o170000 == 0o100000 and info.st_uid == os.getuid() and info.st_ctime >= began - TICK_S
                if mine and not _maker_lives(name):
                    found.add(f"{SHARED_MEMORY}/{name}")
    except OSError:
        pass  # there is none, or somebody else has just removed one: then the next stop finds the rest
    return found


def _maker_lives(name: str) -> bool:
    """torch closes a tensor's file before another process opens it, and names it for the process that made it."""
    kind, _, rest = name.partition("_")
    return kind == "torch" and os.path.exists(f"/proc/{rest.partition('_')[0]}")


def _held() -> set[str]:
    """Files there that a process of ours has mapped or open. Raises: PermissionError for one that does not let us look."""
    found: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if pid == "1" or os.stat(f"/proc/{pid}").st_uid != os.getuid():  # init has none, and may be closed even to its user
                continue
            found.update(os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
            with open(f"/proc/{pid}/maps", errors="replace") as maps:
                found.update(line.rstrip("\n")[line.find("/") :] for line in maps if SHARED_MEMORY in line)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found


# --- How the command of an attempt is stopped; and how it ended: reported once, with its last words.


class RankEnding:
    """From one start of the command to the report of its end."""

    def __init__(self, command: Command, output: Output) -> None:
        self._command = command
        self._output = output
        self.told = True  # the controller knows, or nothing has begun
        self.asked = False  # to stop, before it ended
        self._at = 0.0  # Unix seconds
        self._tell_by = 0.0  # it is told then at the latest
        self._page = ""  # of the command
        self._oom_kills: int | None = None  # before the attempt
        self.saves = Saves()
        # Slurm has sent its SIGTERM to the command alone: proctrack/cgroup signals tasks. What that leaves is not asked.
        self.half_asked = False

    def begin(self, page: str) -> None:
        """A start. page: of the command, empty for none."""
        self.told, self._tell_by = False, 0.0
        self._page, self._oom_kills, self.saves, self.half_asked = page, oom_kills(), Saves(), False

    def stop(self, message: Message, now: float) -> None:
        """As the controller asks; a checkpoint that is being written may end first, where the message has `saves`."""
        self._command.attempt, asked = int(message["attempt"]), bool(message.get("asked"))
        self.half_asked = asked
        if not self._command.stopping:
            asked |= self.saves.stop(self._page, bool(message.get("saves")))
        self._command.stop(now, float(message["grace_s"]), float(message["kill_wait_s"]), asked)

    def ask(self) -> None:
        """Send the SIGTERM that waited for a checkpoint, once that has ended; and to what the command left, once it has."""
        saved = self.saves.turn(self._command.stopping)
        left = self.half_asked and self._command.stopping and self._command.status is not None
        if saved or (left and not self.saves.waits):
            self.half_asked = False
            self._command.ask(signal.SIGTERM)

    def discount(self) -> None:
        """What the kernel has just killed was no process of the command."""
        kills = oom_kills()
        if self._oom_kills is not None and kills is not None and kills > self._oom_kills:
            self._oom_kills += 1

    def tell(self) -> None:
        """The controller is being told."""
        self.told = True

    @property
    def untold(self) -> bool:
        """Has the command ended, and is that not reported yet?"""
        return self._command.status is not None and not self.told

    @property
    def killed_by(self) -> int:
        """The signal that ended it, 0 for none."""
        status = self._command.status or 0
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    @property
    def status(self) -> int:
        """As a shell has it: 128+n means by signal n."""
        return 128 + self.killed_by if self.killed_by else os.WEXITSTATUS(self._command.status or 0)

    def settled(self, now: float) -> bool:
        """Have its last words been read, or is the time for that over? A command that succeeded needs none."""
        if not self._tell_by:
            self._at, self.asked, self._tell_by = time.time(), self._command.stopping, now + SETTLE_S
        return not self._command.status or now >= self._tell_by or self._output.caught_up()

    def message(self) -> Message:
        """For the controller."""
        killed_by = self.killed_by
        said: dict[str, Any] = {"t": "exited", "attempt": self._command.attempt, "signal": killed_by, "at": self._at}
        said["code"] = 0 if killed_by else self.status
        if notes := last_notes(self._page):
            said["notes"] = notes
        if self._command.status:
            said["asked"] = self.asked
            if words := self._output.words():
                said["tail"] = words
            kills = oom_kills()
            if self._oom_kills is not None and kills is not None:
                said["oom"] = kills > self._oom_kills
        return said

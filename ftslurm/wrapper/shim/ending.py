"""How the command of an attempt is stopped; and how it ended: reported once, with its last words."""

from __future__ import annotations

import os
import time

from ftslurm.wrapper.shim.command import Command
from ftslurm.wrapper.shim.fast_stdlib import signal
from ftslurm.wrapper.shim.memory import oom_kills
from ftslurm.wrapper.shim.output.output import SETTLE_S, Output
from ftslurm.wrapper.shim.pages import last_notes
from ftslurm.wrapper.shim.protocol.messages import Message
from ftslurm.wrapper.shim.saving import Saves


class Ending:
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

    def begin(self, page: str) -> None:
        """A start. page: of the command, empty for none."""
        self.told, self._tell_by = False, 0.0
        self._page, self._oom_kills, self.saves = page, oom_kills(), Saves()

    def stop(self, message: Message, now: float) -> None:
        """As the controller asks; a checkpoint that is being written may end first, where the message has `saves`."""
        self._command.attempt, asked = int(message["attempt"]), bool(message.get("asked"))
        if not self._command.stopping:
            asked |= self.saves.stop(self._page, bool(message.get("saves")))
        self._command.stop(now, float(message["grace_s"]), float(message["kill_wait_s"]), asked)

    def ask(self) -> None:
        """Send the SIGTERM that waited for a checkpoint, once that has ended."""
        if self.saves.turn(self._command.stopping):
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
        code = 0 if killed_by else self.status
        said: Message = {"t": "exited", "attempt": self._command.attempt, "code": code, "signal": killed_by, "at": self._at}
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

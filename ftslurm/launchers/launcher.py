"""What starts tasks: srun in an allocation, local processes elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ftslurm.model.exits import ExitStatus


class StepHandle(Protocol):
    """A step under way: one process of the launcher's (srun, or the local one)."""

    pid: int

    def ended(self) -> ExitStatus | None:
        """How the launcher's process ended, None while it runs. Never blocks."""

    def signal(self, number: int) -> None:
        """Hand a signal to the launcher, which passes it to every task."""

    def kill(self) -> None:
        """Ask for the end of every task, now; `ended` tells when it has come."""

    def wait(self, timeout_s: float) -> bool:
        """Has the launcher's process ended within `timeout_s`? Blocks as long."""

    def abandon(self) -> None:
        """End the launcher's own process if it still runs, and wait for it."""


class Launcher(Protocol):
    """Renders and starts steps. The argv methods are pure: a dry run prints them."""

    def step_argv(self) -> tuple[str, ...]:
        """The command that brings up one shim a task, with the user's own options."""

    def watch_argv(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """The command that brings up one agent on each of `nodes`."""

    def launch(self, channel: str) -> StepHandle:
        """Start the step. channel: for the shims, by environment. Raises: CommandMissing, LaunchFailed."""

    def watch(self, nodes: Sequence[str], channel: str) -> StepHandle:
        """Start the agents."""

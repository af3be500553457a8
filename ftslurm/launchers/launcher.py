"""The interface that starts tasks: srun in an allocation, local processes elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ftslurm.model.exits import ExitStatus
from ftslurm.model.layout import Layout
from ftslurm.model.shares import Share


class StepHandle(Protocol):
    """A running step: one process of the launcher (srun, or the local one)."""

    pid: int

    def ended(self) -> ExitStatus | None:
        """How the launcher process ended, None while it runs. Never blocks."""

    def ranks_ended(self) -> frozenset[int]:
        """For a step with one process per job: the ranks of processes that ended while others still run."""

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

    def step_argvs(self, layout: Layout | None = None) -> tuple[tuple[str, ...], ...]:
        """The commands that bring up one shim a task, with the user's own options: one, and one more for each donor job.

        layout: where the ranks run, None where the options alone say it. Raises: UsageError.
        """

    def watch_argv(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """The command that brings up one agent on each of `nodes`."""

    def launch(
        self, channel: str, layout: Layout | None = None, overlap: bool = False, shares: Sequence[Share] = ()
    ) -> StepHandle:
        """Start the step. channel: for the shims, by environment. overlap: whatever other steps hold the nodes. shares: by slot,
        what the ranks there are to have.

        Raises: CommandMissing, LaunchFailed, UsageError.
        """

    def watch(self, nodes: Sequence[str], channel: str, lent: Mapping[str, int]) -> StepHandle:
        """Start the agents. lent: node -> the donor job that it belongs to."""

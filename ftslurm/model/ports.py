"""The protocols between those who decide or carry out and the parts that act: what implements one keeps to every word of it.

Nothing is loaded for a port: hooks need one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ftslurm.model import events as ev
    from ftslurm.model.decisions import Start
    from ftslurm.model.devices import HealResult, ProbeAnswer, Utilisation
    from ftslurm.model.exits import ExitStatus
    from ftslurm.model.job import Layout, Share
    from ftslurm.model.nodes import Near


class Scheduler(Protocol):
    """The provider of the allocation: Slurm, or the local pool."""

    def ask(self, without: Sequence[str] = ()) -> ev.SlurmAnswered:
        """The state of job and nodes; and whether the job fits `without` these. Never raises; may take as long as the client's
        time limit."""

    def probe(self, node: str, limit_s: float) -> ev.NodeProbed:
        """By another way than our own connections: can the node run anything? Never raises."""

    def check(self, node: str, lender: int, limit_s: float) -> ev.NodeChecked:
        """Is it fit for ranks? lender: the donor job that it belongs to, 0 for our own. Never raises."""

    def borrow(
        self, slot: int, exclude: Sequence[str], wait_s: float, submitted: Callable[[int, str], object], near: Near
    ) -> ev.NodeBorrowed:
        """One node more, by a donor job. submitted: is told its number at once; and again, with its node, if that boots for long.
        Never raises.
        """

    def show(self, text: str) -> None:
        """Where Slurm shows the job, if it may be. Never raises."""

    def end_loans(self, jobs: Sequence[int]) -> ev.LoansEnded:
        """End these donor jobs, however long that takes, until `call_off`. Never raises."""

    def call_off(self) -> None:
        """End every donor job that is still there or awaited: nobody will use it. Never raises."""

    def steps(self) -> ev.StepsListed:
        """The steps of the job that hold its nodes. Never raises."""

    def release(self, nodes: Sequence[str]) -> ev.NodesReleased:
        """Give nodes of the allocation back. Never raises."""

    def clean_up(self, nodes: Sequence[str], argv: Sequence[str], limit_s: float) -> str:
        """Run `argv` once on each node; gives what went wrong, empty for nothing. Never raises."""

    def requeue(self, exclude: Sequence[str], start: Start, allow_first: bool) -> ev.RequeueEnded:
        """Requeue the job, by the decision that is open in its ledger. Never raises."""


class StepHandle(Protocol):
    """A running step: one process of the launcher (srun, or the local one)."""

    pid: int

    def ended(self) -> ExitStatus | None:
        """How the launcher process ended, None while it runs. Never blocks."""

    def ranks_ended(self) -> frozenset[int]:
        """For a step with one process per job: the ranks of processes that ended while others still run."""

    def words(self) -> str:
        """What the launcher, or who else writes there, has printed as an error since it began; empty if we cannot read it."""

    def kill(self) -> None:
        """Ask for the end of every task, now; `ended` tells when it has come."""

    def wait(self, timeout_s: float) -> bool:
        """Has the launcher's process ended within `timeout_s`? Blocks as long."""

    def abandon(self, silently: bool = False) -> None:
        """End the launcher's own process if it still runs, and wait for it. silently: without a word to Slurm about the step."""


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


class Probe(Protocol):
    """Reads the health of one kind of device on this node, and says so when it cannot."""

    kind: str

    def present(self) -> bool:
        """Is the tool of this kind here? Cheap: no device is touched."""

    def read(self, timeout_s: float) -> ProbeAnswer:
        """Look at every chip. Never raises for a sick tool: the answer carries the error."""

    def utilisation(self, timeout_s: float) -> tuple[Utilisation, ...]:
        """How busy every device is, within `timeout_s`, named as in `read`. Never raises.

        A device of which the tool tells nothing has None in every field; one that is not listed is left out. An empty
        tuple: no answer (what is wrong is for `read` to say).
        """

    def heal(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        """Wait up to `wait_s` for `codes` to clear, then, if `may_reset`, reset and look again.

        Called only when no process of the job is left on the node. Blocks; the caller bounds it by the two waits.
        """

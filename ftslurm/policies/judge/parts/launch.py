"""A starting step: which steps exist, for whom it waits, and how many launches failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ftslurm.model.events import Now


class StepLaunch:
    """step: its name, from rank 0's shim. steps: node -> the step there. overlap: is it launched beside ended steps that Slurm
    still remembers? in_vain: launches that failed because of Slurm itself.
    """

    def __init__(self) -> None:
        self.step = ""
        self.steps: dict[str, str] = {}
        self.own: set[str] = set()  # all our steps so far
        self.overlap = False
        self.in_vain = 0
        self.failed = False  # did the step fail to start?
        self.undelivered = ""  # of such a step, what went wrong between srun and the nodes
        self.run_began_at = 0.0  # monotonic seconds
        self.asked_at = 0.0  # monotonic seconds, when the last step was asked for
        self._launched_at = 0.0  # the same in Unix seconds, of a step whose ranks have not been started yet
        self.others_unlisted = False  # does Slurm list no step of a killed ftrun?
        self.others_hold: frozenset[str] = frozenset()  # steps of such an ftrun, if Slurm lists no other
        self.look_in_s = 0.0  # seconds between two probes of nodes that have not called
        self.absent: dict[str, int] = {}  # such a node -> how often its slurmd did not answer, in a row
        self.stragglers: frozenset[str] = frozenset()  # such nodes that live and are being checked
        self.unfit: dict[str, str] = {}  # of them, node -> what the check found
        self.ended: dict[str, str] = {}  # node -> why its tasks ended before they called, as srun said

    def begin_run(self, at: float, overlap: bool) -> None:
        self.run_began_at, self.overlap = at, overlap

    def begin(self, now: Now, look_in_s: float) -> None:
        self.steps, self.absent, self.unfit, self.ended, self.stragglers = {}, {}, {}, {}, frozenset()
        self.asked_at, self._launched_at = now.mono, now.unix
        self.look_in_s, self.failed, self.undelivered = look_in_s, False, ""

    def arrive(self, node: str, step: str, first: bool) -> None:
        self.steps[node] = step
        self.own.add(step)
        if first or not self.step:
            self.step = step

    def start_ranks(self) -> float:
        """The ranks are started. Gives when the step was launched, Unix seconds; 0 if an earlier step continues."""
        at, self._launched_at, self.in_vain = self._launched_at, 0.0, 0
        return at

    def fail(self, undelivered: str = "") -> None:
        self.failed, self.undelivered = True, undelivered

    def again(self) -> None:
        """The step is launched again, or the search for its nodes begins again."""
        self.in_vain += 1

    def beside(self) -> None:
        self.overlap = True

    def others_listed(self, steps: frozenset[str] | None) -> None:
        """The listed steps of a killed ftrun; None: others' steps are listed as well."""
        self.others_hold = steps or frozenset()

    def no_others_listed(self, none: bool = True) -> None:
        self.others_unlisted = none

    def look_less(self, silence_s: float, most_s: float) -> float:
        """Probe less and less often, except unreachable nodes: images may load, other steps may run."""
        self.look_in_s = silence_s if self.absent else min(2 * self.look_in_s, most_s)
        return self.look_in_s

    def is_absent(self, node: str) -> int:
        """The node did not answer. Gives how often in a row."""
        self.absent[node] = self.absent.get(node, 0) + 1
        return self.absent[node]

    def is_there(self, node: str) -> None:
        self.absent.pop(node, None)

    def look_at_stragglers(self, nodes: Iterable[str]) -> None:
        self.stragglers = frozenset(nodes)

    def seen(self, node: str, unfit: str) -> None:
        """A node without tasks was checked. unfit: what was found, empty if it is healthy."""
        self.stragglers -= {node}
        if unfit:
            self.unfit[node] = unfit

    def tasks_ended(self, nodes: Iterable[str], why: str) -> None:
        self.ended.update(dict.fromkeys(nodes, why))

    def own_step(self, lent: Collection[str]) -> str:
        """The part of the step that runs in our own job; if all nodes are lent, the part of rank 0."""
        return next((step for node, step in self.steps.items() if node not in lent), self.step)

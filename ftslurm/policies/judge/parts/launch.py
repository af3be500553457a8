"""The step as it comes up: which steps there are, whom it is waited for, and how often it was launched in vain."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class StepLaunch:
    """step: its name, as rank 0's shim says it; steps: node -> the step there. overlap: is it launched beside others, of which
    nothing is left but what Slurm remembers? in_vain: launches that Slurm's absence kept from coming up."""

    def __init__(self) -> None:
        self.step = ""
        self.steps: dict[str, str] = {}
        self.own: set[str] = set()  # all steps that there were
        self.overlap = False
        self.in_vain = 0
        self.failed = False  # did the step not come up?
        self.run_began_at = 0.0  # monotonic seconds
        self.launched_at = 0.0  # Unix seconds, of a step whose ranks have not been started yet
        self.others_unlisted = False  # does Slurm list no step of an ftrun that was killed?
        self.others_hold: frozenset[str] = frozenset()  # steps of such an ftrun, where Slurm lists no other
        self.look_in_s = 0.0  # from one look at nodes that nothing has come from to the next
        self.absent: dict[str, int] = {}  # such a node -> how often its slurmd did not answer, in a row
        self.stragglers: frozenset[str] = frozenset()  # such nodes, though they live, that are being looked at
        self.unfit: dict[str, str] = {}  # of them, what was found

    def begin_run(self, at: float, overlap: bool) -> None:
        self.run_began_at, self.overlap = at, overlap

    def begin(self, at: float, look_in_s: float) -> None:
        """at: Unix seconds."""
        self.steps, self.absent, self.unfit, self.stragglers = {}, {}, {}, frozenset()
        self.launched_at, self.look_in_s, self.failed = at, look_in_s, False

    def arrive(self, node: str, step: str, first: bool) -> None:
        self.steps[node] = step
        self.own.add(step)
        if first or not self.step:
            self.step = step

    def start_ranks(self) -> float:
        """Gives when the step was launched, Unix seconds; 0 where one of before goes on."""
        at, self.launched_at, self.in_vain = self.launched_at, 0.0, 0
        return at

    def fail(self) -> None:
        self.failed = True

    def again(self) -> None:
        """It is launched once more, or the search for its nodes begins anew."""
        self.in_vain += 1

    def beside(self) -> None:
        self.overlap = True

    def others_listed(self, steps: frozenset[str] | None) -> None:
        """Of an ftrun that was killed, as Slurm lists them; None: with those of somebody else."""
        self.others_hold = steps or frozenset()

    def no_others_listed(self, none: bool = True) -> None:
        self.others_unlisted = none

    def look_less(self, silence_s: float, most_s: float) -> float:
        """Less and less often, but for nodes that were out of reach: images are loaded, other steps waited for."""
        self.look_in_s = silence_s if self.absent else min(2 * self.look_in_s, most_s)
        return self.look_in_s

    def is_absent(self, node: str) -> int:
        """Gives how often in a row."""
        self.absent[node] = self.absent.get(node, 0) + 1
        return self.absent[node]

    def is_there(self, node: str) -> None:
        self.absent.pop(node, None)

    def look_at_stragglers(self, nodes: Iterable[str]) -> None:
        self.stragglers = frozenset(nodes)

    def seen(self, node: str, unfit: str) -> None:
        """A straggler was looked at. unfit: what was found, empty if it is well."""
        self.stragglers -= {node}
        if unfit:
            self.unfit[node] = unfit

    def own_step(self, lent: Collection[str]) -> str:
        """Of the part that runs in our own job; where all is lent, of rank 0."""
        return next((step for node, step in self.steps.items() if node not in lent), self.step)

"""The agents: which node has one, which is awaited, and how often one was lost. Times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ftslurm.model.decisions import DrillDevice

# An agent that has not called after this never will (srun and the start of Python take a second or two); the most of it.
AGENT_COMES_S, AGENT_MAX_S = 60.0, 640.0
# One that has gone is started anew after this, and after twice as long each time.
AGENT_AGAIN_S = 10.0


class AgentRoster:
    """kinds: node -> kinds of devices there, None until its agent has arrived. guards: nodes without ranks that have one all the
    same, in case our own node dies."""

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[str, ...] | None] = {}
        self.guards: frozenset[str] = frozenset()
        self._due: dict[str, float] = {}  # until when an agent should call; none once it has
        self._came: dict[str, float] = {}
        self._lost: dict[str, int] = {}  # how many of a node
        self._orders: dict[str, list[DrillDevice]] = {}  # what an agent is told when it has come up

    def here(self, node: str) -> bool:
        return self.kinds.get(node) is not None

    @property
    def arrived(self) -> frozenset[str]:
        """Nodes whose agent has called, or is not waited for any more."""
        return frozenset(self.kinds.keys() - self._due.keys())

    def may_tell(self, gone: Collection[str], looked: Collection[str]) -> bool:
        """Is there a node whose devices could still tell something? An agent that has not arrived yet may. gone: nodes that are
        lost. looked: those whose devices were looked at."""
        return any(
            node not in gone and (kinds is None or (bool(kinds) and node not in looked)) for node, kinds in self.kinds.items()
        )

    def expect(self, nodes: Iterable[str], guards: Iterable[str], relieved: Iterable[str], now: float) -> None:
        """Agents are brought up on `nodes` and on `guards`. relieved: guards no more."""
        self.guards = (self.guards | {*guards}) - {*relieved}
        for node in nodes:
            self.kinds[node] = None
            self._due[node] = now + self._doubled(AGENT_COMES_S, node)

    def arrive(self, node: str, kinds: tuple[str, ...] | None, now: float) -> bool:
        """False where nobody waits for it: it was asked for, and its node has been left since."""
        if node in self.guards:
            self._came[node] = now
            return True
        if node not in self.kinds:
            return False
        self.kinds[node] = kinds
        self._due.pop(node, None)
        self._came[node] = now
        return True

    def lose(self, node: str, now: float) -> float:
        """Gives when another one is to be started."""
        self.kinds.pop(node, None)
        self.guards -= {node}
        self._due.pop(node, None)
        if now - self._came.pop(node, now) > AGENT_MAX_S:
            self._lost.pop(node, None)  # one that stayed: what went before is of no account
        again = now + self._doubled(AGENT_AGAIN_S, node)
        self._lost[node] = self._lost.get(node, 0) + 1
        return again

    def give_up_late(self, nodes: Collection[str], now: float) -> None:
        """Those of `nodes` that should have called by now: they have died before they could."""
        for node in [node for node, due in self._due.items() if due <= now and node in nodes]:
            del self._due[node]
            self.kinds.pop(node, None)
            self._lost[node] = self._lost.get(node, 0) + 1

    def next_due(self, nodes: Collection[str]) -> float | None:
        return min((due for node, due in self._due.items() if node in nodes), default=None)

    def forget(self, nodes: Collection[str]) -> None:
        self.kinds = {node: kinds for node, kinds in self.kinds.items() if node not in nodes}
        self._due = {node: due for node, due in self._due.items() if node not in nodes}
        self.guards -= {*nodes}

    def wait_no_more(self) -> None:
        """For what devices the nodes have."""
        self.kinds = {node: kinds or () for node, kinds in self.kinds.items()}

    def order_later(self, order: DrillDevice) -> None:
        """When the agent has come up."""
        self._orders.setdefault(order.node, []).append(order)

    def take_orders(self, node: str) -> list[DrillDevice]:
        return self._orders.pop(node, [])

    def _doubled(self, first_s: float, node: str) -> float:
        """More with every agent that was lost there: slurmctld may be away for long, and a node on which none stays shall not
        be kept busy with it."""
        return min(AGENT_MAX_S, first_s * 2.0 ** min(self._lost.get(node, 0), 16))

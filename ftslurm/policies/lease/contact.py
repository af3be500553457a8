"""Who was heard of last, and when: what follows from silence and from connections that broke. Seconds are monotonic.

A broken connection says nothing yet: whoever lives calls again. Nor does silence of one: a node is silent when none of
its shims and agents is heard.
"""

from __future__ import annotations

from collections.abc import Hashable

from ftslurm.model.events import AgentLost, Hangup, NodeHeard, NodeLate, NodeSilent, ShimLost
from ftslurm.model.values import dataclass

# From a break to calling the shim dead, where its node is heard of. A shim that lives calls within a second.
RETURN_S = 5.0
SOON_S = 1.0

# Of the time after which a node is silent. Its shims and its agent beat three times in it.
LATE = 0.6

News = ShimLost | AgentLost | NodeLate | NodeSilent | NodeHeard


@dataclass(slots=True)
class _Party:
    """owner: rank or node name. broke_at: of its connection, None while there is one. brief: it does not come back."""

    owner: int | str
    node: str
    heard_at: float
    broke_at: float | None = None
    why: str = ""
    hangup: Hangup = Hangup.NONE
    brief: bool = False


class NodeContact:
    """`due` at `wakes_at`, when everything that has come in was read."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._parties: dict[Hashable, _Party] = {}
        self._heard: dict[str, float] = {}  # node -> when any of its parties was heard
        self._late: set[str] = set()
        self._silent: set[str] = set()
        self._next: float | None = None

    @property
    def wakes_at(self) -> float | None:
        return self._next

    def record_connection(self, owner: int | str, node: str, now: float) -> list[News]:
        """For the first time, or again over another connection."""
        self._parties[owner] = _Party(owner, node, now)
        self._wake(now + LATE * self._silence_s)
        return self.record_message(owner, now)

    def record_message(self, owner: int | str, now: float) -> list[News]:
        party = self._parties.get(owner)
        if party is None:
            return []
        party.heard_at = self._heard[party.node] = now
        self._late.discard(party.node)
        if party.node not in self._silent:
            return []
        self._silent.discard(party.node)
        self._wake(now + LATE * self._silence_s)
        return [NodeHeard(party.node)]

    def record_loss(self, owner: int | str, why: str, now: float, hangup: Hangup = Hangup.CLOSED) -> None:
        party = self._parties.get(owner)
        if party is not None and party.broke_at is None:
            party.broke_at, party.why, party.hangup = now, why, hangup
            self._wake(now if party.brief else now + RETURN_S)

    def no_return(self, owners: set[int | str], now: float) -> None:
        """Their step has ended: who is not connected any more has gone with it."""
        for owner in owners & self._parties.keys():
            self._parties[owner].brief = True
        self._wake(now)

    def forget(self, owner: int | str) -> None:
        self._parties.pop(owner, None)

    def excuse(self, now: float) -> None:
        """We were not there ourselves (stopped, or without CPU): all silence begins anew, and what was due until now is not."""
        self._heard = dict.fromkeys(self._heard, now)
        self._late.clear()
        if self._next is not None:
            self._next = max(self._next, now + SOON_S)

    def ages(self, now: float) -> dict[str, float]:
        """node -> seconds since any of its parties was heard, of nodes that have one."""
        return {party.node: now - self._heard[party.node] for party in self._parties.values()}

    def due(self, now: float) -> list[News]:
        """What is known by now."""
        found: list[News] = []
        self._next = None
        nodes = {party.node for party in self._parties.values()}
        for node in sorted(nodes - self._silent):
            silent_s = now - self._heard[node]
            if silent_s >= self._silence_s:
                self._silent.add(node)
                found.append(NodeSilent(node, silent_s))
                continue
            if silent_s >= LATE * self._silence_s and node not in self._late:
                self._late.add(node)
                found.append(NodeLate(node))
            self._wake(self._heard[node] + (1.0 if node in self._late else LATE) * self._silence_s)
        for party in list(self._parties.values()):
            if party.broke_at is not None:
                found += self._broken(party, now)
        return found

    def _broken(self, party: _Party, now: float) -> list[News]:
        assert party.broke_at is not None
        node_lives = self._heard[party.node] > party.broke_at
        wait_s = 0.0 if party.brief else RETURN_S if node_lives or isinstance(party.owner, str) else self._silence_s
        if now - party.broke_at < wait_s:
            self._wake(min(party.broke_at + wait_s, now + SOON_S))
            return []
        del self._parties[party.owner]
        if isinstance(party.owner, str):
            return [AgentLost(party.owner, party.why)]
        return [ShimLost(party.owner, party.why, party.hangup)]

    def _wake(self, at: float) -> None:
        self._next = at if self._next is None else min(self._next, at)

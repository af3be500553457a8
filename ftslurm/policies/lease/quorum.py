"""May a controller go on renewing leases? Not when it may be the one who is cut off.

A controller that is cut off from the others still reaches the ranks on its own node, and would keep them alive for ever,
beside what a successor starts on the other side. So it renews, for all alike, only while it has lately been in touch with
more than half of the nodes where it has shims or agents, or with slurmctld, without which nobody can requeue the job.

In touch with a node at a time is who sent it something then that has arrived: the acknowledgement proves it. What was
only read says nothing, it may have waited in a socket for as long as the controller stood still.

How long that takes, S being `nodes.silence`, L the lease and M its margin: the last answer that a node got counts for its
lease from when it was asked for, and it asks anew after S at the latest. So a controller is in touch for S after the time
from which that node counts, renews for S more, and what it renewed then ends after L: within L + 2 S. A successor waits
for that, and M (take_over.py). Seconds are monotonic.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import field

from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass

# Of the time after which it is cut off: then slurmctld is asked. Beats come three times in it, so one may be late.
ASK_SHARE = 0.8
# Where slurmctld's word is all that counts, as most nodes are silent: earlier, so that its next word comes before the last ends.
ASK_AGAIN_SHARE = 0.5


def longest_s(settings: Settings) -> float:
    """After a node has had its last answer, no rank of that controller runs any more anywhere; with the margin."""
    return settings.lease.time_s + 2 * settings.nodes.silence_s + settings.lease.margin_s


@dataclass(slots=True)
class LeaseQuorum:
    """limit_s: out of touch for longer, and the controller is cut off."""

    limit_s: float
    _nodes: dict[str, float] = field(default_factory=dict)  # node -> when it was last proven to be in touch
    _answered: dict[Hashable, dict[int, float]] = field(default_factory=dict)  # caller -> beat -> when it was answered
    _slurm_at: float = float("-inf")
    _asked_at: float = float("-inf")
    _unanswered_since: float | None = None  # the first question to slurmctld since its last answer
    # When we were last in touch, as it was counted last. Times only grow: until a node is taken off, the truth is this or later.
    _at_least: float = float("-inf")

    def new_step(self, agents: Collection[str]) -> None:
        """Its nodes may be others. agents: nodes whose agents stay; their conversations go on."""
        self._at_least = float("-inf")
        self._nodes = {node: at for node, at in self._nodes.items() if node in agents}
        self._answered = {caller: beats for caller, beats in self._answered.items() if caller in agents}

    def forget(self, node: str) -> None:
        """It has neither shims nor an agent of ours any more, and nobody is there who could succeed us."""
        self._at_least = float("-inf")
        self._nodes.pop(node, None)
        self._answered.pop(node, None)

    def record_greeting(self, caller: Hashable, node: str, now: float) -> None:
        """It has proven that it heard us: the greeting is a question and its answer."""
        self._nodes[node] = max(now, self._nodes.get(node, now))
        self._answered[caller] = {}

    def record_beat(self, caller: Hashable, node: str, number: int, has: int, now: float) -> None:
        """A beat that is about to be answered. has: the last one whose answer has arrived there."""
        beats = self._answered.get(caller)
        if beats is None or node not in self._nodes:
            return
        if has in beats:
            self._nodes[node] = max(self._nodes[node], beats[has])
        self._answered[caller] = {at: when for at, when in beats.items() if at > has} | {number: now}

    def slurm(self, now: float) -> None:
        """slurmctld has said that the job runs."""
        self._slurm_at, self._unanswered_since = now, None

    def cut_off(self, now: float) -> bool:
        """A single node has nobody on another side who could start it anew."""
        if len(self._nodes) < 2 or now - self._at_least <= self.limit_s:
            return False
        return now - self._last() > self.limit_s

    def slurm_is_silent(self, now: float) -> bool:
        """It was asked, and has had the time to answer since. Before that nobody can say that we are out of touch with it."""
        return self._unanswered_since is not None and now - self._unanswered_since > (1 - ASK_SHARE) * self.limit_s

    def asks(self, now: float) -> bool:
        """Is slurmctld to be asked, lest we be cut off? Not again before it had the time to answer."""
        if len(self._nodes) < 2 or now - self._at_least < ASK_AGAIN_SHARE * self.limit_s:
            return False
        if now - self._asked_at < (1 - ASK_SHARE) * self.limit_s:
            return False
        last = self._last()
        if now - last < (ASK_AGAIN_SHARE if self._slurm_at == last else ASK_SHARE) * self.limit_s:
            return False
        self._asked_at = now
        if self._unanswered_since is None:
            self._unanswered_since = now
        return True

    def _last(self) -> float:
        """When we were last in touch with the majority, or with slurmctld. It looks at every node: not for each beat."""
        latest = sorted(self._nodes.values(), reverse=True)
        self._at_least = max(latest[len(latest) // 2], self._slurm_at)
        return self._at_least

"""Silent nodes: silence is no proof of death, so ftrun probes them by another way, and waits at most until the leases of their
ranks have run out.
"""

from __future__ import annotations

from collections.abc import Collection

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.launching import ABSENT_MOST, AT_A_TIME
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.settling import Settling
from ftslurm.policies.judge.state import IDLE_LOOK
from ftslurm.policies.ladder.ladder import Cause
from ftslurm.policies.ladder.situation import Trouble

# Used while ranks run or wait for devices to heal, perhaps minutes: nothing else would detect that a node is dead.
_WATCHED = (Phase.RUNNING, Phase.HEALING)
# A slurmd that restarts is away for a moment.
PROBE_AGAIN_S = 5.0


class Nodes(Settling):
    def _node_silent(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        """A node became silent while ranks run, stop, or wait for devices: probe it by another way."""
        self._fence.fall_silent([event.node], now.mono - event.silent_s)
        if event.node not in self._step_nodes():
            return []
        if self.phase in _WATCHED:
            self._watch_silence(now)
        return [*self._probe([event.node], now), *self._tell_silence(event, now), *self._look_ahead(now)]

    def _tell_silence(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        """Tell people once, however many nodes follow."""
        if Timer.LEASES not in self._timers or self._told.what:
            return []
        wait_s = self._timers.at(Timer.LEASES) - now.mono
        asked = "asking Slurm and the node's slurmd" if Capability.PROBE in self.facts.can else "it may come back"
        ends = f"its ranks end by themselves in {wait_s:.0f} s"
        said = f"no message from {event.node} for {event.silent_s:.0f} s: {asked}; {ends}"
        return self._wait_for(f"a message from {event.node}, or the end of its lease", wait_s, now, said)

    def _heard_again(self, node: str, now: Now) -> list[Decision]:
        if not self._told.what or self._silent_here() or self.phase is not Phase.RUNNING:
            return []
        over = self._note(rec.Waiting(now.unix, self._attempt.number, ""))
        return [over, Say(f"{node} answers again"), *self._wait_over(self._attempt.number)]

    def _node_late(self, event: ev.NodeLate, now: Now) -> list[Decision]:
        return self._look_ahead(now) if event.node in self._step_nodes() else []

    def _silent_meanwhile(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        self._fence.fall_silent([event.node], now.mono - event.silent_s)
        return []

    def _node_heard(self, event: ev.NodeHeard, now: Now) -> list[Decision]:
        self._fence.hear(event.node)
        undecided = self.phase is Phase.SETTLING and not self._attempt.closing.written
        if self.phase in _WATCHED or undecided:
            self._attempt.nodes.find(event.node)
        if self.phase in _WATCHED:
            self._watch_silence(now)
        return self._heard_again(event.node, now)

    def _cut_off(self, _: ev.CutOff, now: Now) -> list[Decision]:
        return [Say("lost contact with most nodes and with slurmctld; ftrun renews no lease until one of them answers")]

    def _in_touch(self, _: ev.InTouch, now: Now) -> list[Decision]:
        return [Say("contact is back; ftrun renews leases again")]

    def _rank_paused(self, event: ev.RankPaused, now: Now) -> list[Decision]:
        (self._fence.paused.add if event.paused else self._fence.paused.discard)(event.rank)
        return []

    def _node_probed(self, event: ev.NodeProbed, now: Now) -> list[Decision]:
        """A node is dead if it is silent and a probe cannot reach it either; if only some of its ranks are lost, two probes must
        fail.
        """
        if self._fence.answer(event.node):
            self._timers.stop(Timer.PROBE)
        if event.alive is False and self._in_doubt(event.node):
            self._attempt.nodes.doubt(event.node)
            self._timers.set(Timer.PROBE_AGAIN, now.mono + PROBE_AGAIN_S)
        elif event.alive is False and (event.node in self._fence.silent or self._lost_on(event.node)):
            self._attempt.nodes.lose(event.node, event.what)
            for rank in self._ranks_on(event.node):
                self._attempt.lose(rank, f"{event.node} is lost: {event.what}")
        if self.phase in _WATCHED:
            self._watch_silence(now)
        if self.phase is not Phase.RUNNING:
            return [*self._healing_settled(now), *self._settled(now)]
        if event.node in self._attempt.nodes.gone:
            since = self._fence.silent.get(event.node)
            for_s = f" for {now.mono - since:.0f} s" if since is not None else ""
            what = f"no message from {event.node}{for_s}, and {event.what}"
            return self._into_trouble(Trouble(Cause.LOST, what, 1, self._silent_since([event.node], now)), now)
        return self._idle_probed(event, now)

    # --- nodes of the job without ranks: they send nothing, and without --no-kill the job ends when one dies

    def _idle_due(self, now: Now) -> list[Decision]:
        self._timers.set(Timer.IDLE, now.mono + IDLE_LOOK * self.settings.silence_s)
        return self._probe(self._free.ask_idle(self._idle(), AT_A_TIME, now.mono), now)

    def _idle_probed(self, event: ev.NodeProbed, now: Now) -> list[Decision]:
        """A node without ranks that is twice unreachable must leave the job before Slurm notices. Once may be a slurmd that
        restarts.
        """
        node = event.node
        if event.alive is not False or node not in self._idle():
            self._free.idle_lives(node)
            return []
        if self._free.idle_absent(node) < ABSENT_MOST:
            return []
        known = node in self._kept_out(now)
        noted = [] if known else [self._note(rec.NodeRefused(now.unix, node, event.what))]
        return [*noted, Say(f"excluded {node} (no rank runs there): {event.what}"), *self._release([node])]

    # --- what follows from silence

    def _lost_on(self, node: str) -> bool:
        return any(rank in self._attempt.lost for rank in self._ranks_on(node))

    def _in_doubt(self, node: str) -> bool:
        """Is one rank of the node lost, another one alive, and was the node probed only once?"""
        heard = node not in self._fence.silent and not self._attempt.lost.keys() >= set(self._ranks_on(node))
        return heard and self._lost_on(node) and node not in self._attempt.nodes.doubted

    def _probe_again(self, now: Now) -> list[Decision]:
        return self._probe(sorted(self._attempt.nodes.doubted), now)

    def _probe_overdue(self, now: Now) -> list[Decision]:
        """The probe did not answer: there is no second proof."""
        self._fence.ask_anew()
        if self.phase in _WATCHED:
            self._watch_silence(now)
        return [*self._healing_settled(now), *self._settled(now)]

    def _silence_goes_on(self, now: Now) -> list[Decision]:
        return self._probe(self._silent_here(), now)

    def _leases_over(self, now: Now) -> list[Decision]:
        """The leases have run out: whatever happened there, ranks that were unreachable that long have ended by themselves."""
        over = [node for node in self._silent_here() if self._fence.over_at(node, self.settings) <= now.mono]
        asked, over = self._stopped_with_the_job(over, now)
        if asked or not over:
            return asked
        for node in over:
            for rank in self._ranks_on(node):
                self._attempt.lose(rank, f"{node} was silent longer than its lease")
        if self.phase is Phase.HEALING:
            return []  # decided when that has ended
        what = f"{fold_nodes(over)} was silent longer than its lease ({self.settings.lease_s:g} s), so its ranks have ended"
        return self._into_trouble(Trouble(Cause.LOST, what, 1, self._silent_since(over, now)), now)

    def _silent_since(self, nodes: Collection[str], now: Now) -> float:
        """When the first of the nodes was last heard, Unix seconds; 0 if none is silent."""
        silent = [self._fence.silent[node] for node in nodes if node in self._fence.silent]
        return now.unix - (now.mono - min(silent)) if silent else 0.0

    def _stopped_with_the_job(self, over: list[str], now: Now) -> tuple[list[Decision], list[str]]:
        """Nodes whose ranks announced that they would be suspended are silent while Slurm calls the job suspended; ftrun sees
        that if it is not suspended itself (salloc). Gives the question to Slurm, or the rest of `over` after the answer.
        """
        paused = [node for node in over if self._fence.paused & set(self._ranks_on(node))]
        since = min((self._fence.silent[node] for node in paused), default=now.mono)
        if not paused or Capability.ASK not in self.facts.can:
            return [], over
        if self._slurm.runs and self._slurm.at >= since:
            return [], over
        self._fence.fall_silent(paused, now.mono)
        self._watch_silence(now)
        return ([] if Timer.ASK in self._timers else [self._ask_slurm(now)]), [node for node in over if node not in paused]

"""Silent nodes: silence is no proof of death, so ftrun probes them by another way, and waits at most until the leases of their
ranks have run out.
"""

from __future__ import annotations

from collections.abc import Collection

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold_nodes as fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.replacing import Replacing
from ftslurm.policies.judge.state import ABSENT_MOST, AT_A_TIME, IDLE_LOOK, Run
from ftslurm.policies.judge.then import Answer, Settled
from ftslurm.policies.ladder import Cause
from ftslurm.policies.situation import Trouble

# Used while ranks run or wait for devices to heal, perhaps minutes: nothing else would detect that a node is dead.
_WATCHED = (Phase.RUNNING, Phase.HEALING)
# A slurmd that restarts is away for a moment.
PROBE_AGAIN_S = 5.0


class Nodes:
    def __init__(self, run: Run, replacing: Replacing) -> None:
        self.run, self.replacing = run, replacing

    def on_node_silent(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        """A node became silent while ranks run, stop, or wait for devices: probe it by another way."""
        self.run.fence.fall_silent([event.node], now.mono - event.silent_s)
        if event.node not in self.run.step_nodes():
            return []
        if self.run.phase in _WATCHED:
            self.run.watch_silence(now)
        return [*self.run.probe([event.node], now), *self._tell_silence(event, now), *self.run.look_ahead(now)]

    def _tell_silence(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        """Tell people once, however many nodes follow."""
        if Timer.LEASES not in self.run.timers or self.run.told.what:
            return []
        wait_s = self.run.timers.at(Timer.LEASES) - now.mono
        asked = "asking Slurm and the node's slurmd" if Capability.PROBE in self.run.facts.can else "it may come back"
        ends = f"its ranks end by themselves in {wait_s:.0f} s"
        said = f"no message from {event.node} for {event.silent_s:.0f} s: {asked}; {ends}"
        return self.run.wait_for(f"a message from {event.node}, or the end of its lease", wait_s, now, said)

    def _tell_return(self, node: str, now: Now) -> list[Decision]:
        if not self.run.told.what or self.run.silent_nodes() or self.run.phase is not Phase.RUNNING:
            return []
        over = self.run.note(rec.Waiting(now.unix, self.run.attempt.number, ""))
        return [over, Say(f"{node} answers again"), *self.run.told.show_running(self.run.attempt.number)]

    def on_node_late(self, event: ev.NodeLate, now: Now) -> list[Decision]:
        return self.run.look_ahead(now) if event.node in self.run.step_nodes() else []

    def note_silence(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        self.run.fence.fall_silent([event.node], now.mono - event.silent_s)
        return []

    def on_node_heard(self, event: ev.NodeHeard, now: Now) -> list[Decision]:
        self.run.fence.hear(event.node)
        undecided = self.run.phase is Phase.SETTLING and not self.run.attempt.closing.written
        if self.run.phase in _WATCHED or undecided:
            self.run.attempt.nodes.find(event.node)
        if self.run.phase in _WATCHED:
            self.run.watch_silence(now)
        return self._tell_return(event.node, now)

    def on_cut_off(self, _: ev.CutOff, now: Now) -> list[Decision]:
        return [Say("lost contact with most nodes and with slurmctld; ftrun renews no lease until one of them answers")]

    def on_in_touch(self, _: ev.InTouch, now: Now) -> list[Decision]:
        return [Say("contact is back; ftrun renews leases again")]

    def on_rank_paused(self, event: ev.RankPaused, now: Now) -> list[Decision]:
        (self.run.fence.paused.add if event.paused else self.run.fence.paused.discard)(event.rank)
        return []

    def on_node_probed(self, event: ev.NodeProbed, now: Now) -> Answer:
        """A node is dead if it is silent and a probe cannot reach it either; if only some of its ranks are lost, two probes must
        fail.
        """
        if self.run.fence.answer(event.node):
            self.run.timers.stop(Timer.PROBE)
        if event.alive is False and self._in_doubt(event.node):
            self.run.attempt.nodes.doubt(event.node)
            self.run.timers.set(Timer.PROBE_AGAIN, now.mono + PROBE_AGAIN_S)
        elif event.alive is False and (event.node in self.run.fence.silent or self._lost_on(event.node)):
            self.run.attempt.nodes.lose(event.node, event.what)
            for rank in self.run.ranks_on(event.node):
                self.run.attempt.lose(rank, f"{event.node} is lost: {event.what}")
        if self.run.phase in _WATCHED:
            self.run.watch_silence(now)
        if self.run.phase is not Phase.RUNNING:
            return [Settled()]
        if event.node in self.run.attempt.nodes.gone:
            since = self.run.fence.silent.get(event.node)
            for_s = f" for {now.mono - since:.0f} s" if since is not None else ""
            what = f"no message from {event.node}{for_s}, and {event.what}"
            return [Trouble(Cause.LOST, what, 1, self._silent_since([event.node], now))]
        return self._on_idle_probed(event, now)

    # --- nodes of the job without ranks: they send nothing, and without --no-kill the job ends when one dies

    def probe_idle(self, now: Now) -> list[Decision]:
        self.run.timers.set(Timer.IDLE, now.mono + IDLE_LOOK * self.run.settings.nodes.silence_s)
        return self.run.probe(self.run.free.ask_idle(self.run.idle_nodes(), AT_A_TIME, now.mono), now)

    def _on_idle_probed(self, event: ev.NodeProbed, now: Now) -> list[Decision]:
        """A node without ranks that is twice unreachable must leave the job before Slurm notices. Once may be a slurmd that
        restarts.
        """
        node = event.node
        if event.alive is not False or node not in self.run.idle_nodes():
            self.run.free.idle_lives(node)
            return []
        if self.run.free.idle_absent(node) < ABSENT_MOST:
            return []
        known = node in self.run.kept_out(now)
        noted = [] if known else [self.run.note(rec.NodeRefused(now.unix, node, event.what))]
        return [*noted, Say(f"excluded {node} (no rank runs there): {event.what}"), *self.replacing.release([node])]

    # --- what follows from silence

    def _lost_on(self, node: str) -> bool:
        return any(rank in self.run.attempt.lost for rank in self.run.ranks_on(node))

    def _in_doubt(self, node: str) -> bool:
        """Is one rank of the node lost, another one alive, and was the node probed only once?"""
        heard = node not in self.run.fence.silent and not self.run.attempt.lost.keys() >= set(self.run.ranks_on(node))
        return heard and self._lost_on(node) and node not in self.run.attempt.nodes.doubted

    def probe_again(self, now: Now) -> list[Decision]:
        return self.run.probe(sorted(self.run.attempt.nodes.doubted), now)

    def on_probe_overdue(self, now: Now) -> Answer:
        """The probe did not answer: there is no second proof."""
        self.run.fence.ask_anew()
        if self.run.phase in _WATCHED:
            self.run.watch_silence(now)
        return [Settled()]

    def probe_silent(self, now: Now) -> list[Decision]:
        return self.run.probe(self.run.silent_nodes(), now)

    def on_leases_over(self, now: Now) -> Answer:
        """The leases have run out: whatever happened there, ranks that were unreachable that long have ended by themselves."""
        over = [node for node in self.run.silent_nodes() if self.run.fence.over_at(node, self.run.settings.lease) <= now.mono]
        asked, over = self._stopped_with_the_job(over, now)
        if asked or not over:
            return asked
        for node in over:
            for rank in self.run.ranks_on(node):
                self.run.attempt.lose(rank, f"{node} was silent longer than its lease")
        if self.run.phase is Phase.HEALING:
            return []  # decided when that has ended
        what = (
            f"{fold_nodes(over)} was silent longer than its lease ({self.run.settings.lease.time_s:g} s), so its ranks have ended"
        )
        return [Trouble(Cause.LOST, what, 1, self._silent_since(over, now))]

    def _silent_since(self, nodes: Collection[str], now: Now) -> float:
        """When the first of the nodes was last heard, Unix seconds; 0 if none is silent."""
        silent = [self.run.fence.silent[node] for node in nodes if node in self.run.fence.silent]
        return now.unix - (now.mono - min(silent)) if silent else 0.0

    def _stopped_with_the_job(self, over: list[str], now: Now) -> tuple[list[Decision], list[str]]:
        """Nodes whose ranks announced that they would be suspended are silent while Slurm calls the job suspended; ftrun sees
        that if it is not suspended itself (salloc). Gives the question to Slurm, or the rest of `over` after the answer.
        """
        paused = [node for node in over if self.run.fence.paused & set(self.run.ranks_on(node))]
        since = min((self.run.fence.silent[node] for node in paused), default=now.mono)
        if not paused or Capability.ASK not in self.run.facts.can:
            return [], over
        if self.run.slurm.runs and self.run.slurm.at >= since:
            return [], over
        self.run.fence.fall_silent(paused, now.mono)
        self.run.watch_silence(now)
        return ([] if Timer.ASK in self.run.timers else [self.run.ask_slurm(now)]), [node for node in over if node not in paused]

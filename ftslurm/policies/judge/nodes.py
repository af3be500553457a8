"""Silent nodes: silence is no proof of death, so ftrun probes them by another way, and waits at most until the leases of their
ranks have run out.
"""

from __future__ import annotations

from collections.abc import Collection

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge import replacing
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import ABSENT_MOST, AT_A_TIME, IDLE_LOOK, Run
from ftslurm.policies.judge.then import Answer, Settled
from ftslurm.policies.ladder import Cause
from ftslurm.policies.situation import Trouble

# Used while ranks run or wait for devices to heal, perhaps minutes: nothing else would detect that a node is dead.
_WATCHED = (Phase.RUNNING, Phase.HEALING)
# A slurmd that restarts is away for a moment.
PROBE_AGAIN_S = 5.0


def on_node_silent(run: Run, event: ev.NodeSilent, now: Now) -> list[Decision]:
    """A node became silent while ranks run, stop, or wait for devices: probe it by another way."""
    run.fence.fall_silent([event.node], now.mono - event.silent_s)
    if event.node not in run.step_nodes():
        return []
    if run.phase in _WATCHED:
        run.watch_silence(now)
    return [*run.probe([event.node], now), *_tell_silence(run, event, now), *run.look_ahead(now)]


def _tell_silence(run: Run, event: ev.NodeSilent, now: Now) -> list[Decision]:
    """Tell people once, however many nodes follow."""
    if Timer.LEASES not in run.timers or run.told.what:
        return []
    wait_s = run.timers.at(Timer.LEASES) - now.mono
    asked = "asking Slurm and the node's slurmd" if Capability.PROBE in run.facts.can else "it may come back"
    ends = f"its ranks end by themselves in {wait_s:.0f} s"
    said = f"no message from {event.node} for {event.silent_s:.0f} s: {asked}; {ends}"
    return run.wait_for(f"a message from {event.node}, or the end of its lease", wait_s, now, said)


def _tell_return(run: Run, node: str, now: Now) -> list[Decision]:
    if not run.told.what or run.silent_nodes() or run.phase is not Phase.RUNNING:
        return []
    over = run.note(rec.Waiting(now.unix, run.attempt.number, ""))
    return [over, Say(f"{node} answers again"), *run.told.show_on(run.attempt.number)]


def note_silence(run: Run, event: ev.NodeSilent, now: Now) -> Answer:
    run.fence.fall_silent([event.node], now.mono - event.silent_s)
    return [Settled()]


def on_node_heard(run: Run, event: ev.NodeHeard, now: Now) -> list[Decision]:
    run.fence.hear(event.node)
    undecided = run.phase is Phase.SETTLING and not run.attempt.closing.written
    if run.phase in _WATCHED or undecided:
        run.attempt.nodes.find(event.node)
    if run.phase in _WATCHED:
        run.watch_silence(now)
    return _tell_return(run, event.node, now)


def on_cut_off(run: Run, _: ev.CutOff, now: Now) -> list[Decision]:
    return [Say("lost contact with most nodes and with slurmctld; ftrun renews no lease until one of them answers")]


def on_in_touch(run: Run, _: ev.InTouch, now: Now) -> list[Decision]:
    return [Say("contact is back; ftrun renews leases again")]


def on_rank_paused(run: Run, event: ev.RankPaused, now: Now) -> list[Decision]:
    (run.fence.paused.add if event.paused else run.fence.paused.discard)(event.rank)
    return []


def on_node_probed(run: Run, event: ev.NodeProbed, now: Now) -> Answer:
    """A node is dead if it is silent and a probe cannot reach it either; if only some of its ranks are lost, two probes must
    fail.
    """
    if run.fence.answer(event.node):
        run.timers.stop(Timer.PROBE)
    if event.alive is False and _in_doubt(run, event.node):
        run.attempt.nodes.doubted.add(event.node)
        run.timers.set(Timer.PROBE_AGAIN, now.mono + PROBE_AGAIN_S)
    elif event.alive is False and (event.node in run.fence.silent or _lost_on(run, event.node)):
        run.attempt.nodes.lose(event.node, event.what)
        for rank in run.ranks_on(event.node):
            run.attempt.lose(rank, f"{event.node} is lost: {event.what}")
    if run.phase in _WATCHED:
        run.watch_silence(now)
    if run.phase is not Phase.RUNNING:
        return [Settled()]
    if event.node in run.attempt.nodes.gone:
        since = run.fence.silent.get(event.node)
        for_s = f" for {now.mono - since:.0f} s" if since is not None else ""
        what = f"no message from {event.node}{for_s}, and {event.what}"
        return [Trouble(Cause.LOST, what, 1, _silent_since(run, [event.node], now))]
    return _on_idle_probed(run, event, now)


# --- nodes of the job without ranks: they send nothing, and without --no-kill the job ends when one dies


def probe_idle(run: Run, now: Now) -> list[Decision]:
    run.timers.set(Timer.IDLE, now.mono + IDLE_LOOK * run.settings.nodes.silence_s)
    return run.probe(run.free.ask_idle(run.idle_nodes(), AT_A_TIME, now.mono), now)


def _on_idle_probed(run: Run, event: ev.NodeProbed, now: Now) -> list[Decision]:
    """A node without ranks that is twice unreachable must leave the job before Slurm notices. Once may be a slurmd that
    restarts.
    """
    node = event.node
    if event.alive is not False or node not in run.idle_nodes():
        run.free.unreachable.pop(node, None)
        return []
    if run.free.unreachable.again(node) < ABSENT_MOST:
        return []
    known = node in run.kept_out(now)
    noted = [] if known else [run.note(rec.NodeRefused(now.unix, node, event.what))]
    return [*noted, Say(f"excluded {node} (no rank runs there): {event.what}"), *replacing.release(run, [node])]


# --- what follows from silence


def _lost_on(run: Run, node: str) -> bool:
    return any(rank in run.attempt.lost for rank in run.ranks_on(node))


def _in_doubt(run: Run, node: str) -> bool:
    """Is one rank of the node lost, another one alive, and was the node probed only once?"""
    heard = node not in run.fence.silent and not run.attempt.lost.keys() >= set(run.ranks_on(node))
    return heard and _lost_on(run, node) and node not in run.attempt.nodes.doubted


def probe_again(run: Run, now: Now) -> list[Decision]:
    return run.probe(sorted(run.attempt.nodes.doubted), now)


def on_probe_overdue(run: Run, now: Now) -> Answer:
    """The probe did not answer: there is no second proof."""
    run.fence.ask_anew()
    if run.phase in _WATCHED:
        run.watch_silence(now)
    return [Settled()]


def probe_silent(run: Run, now: Now) -> list[Decision]:
    return run.probe(run.silent_nodes(), now)


def on_leases_over(run: Run, now: Now) -> Answer:
    """The leases have run out: ranks that were unreachable for that long have ended by themselves."""
    over = [node for node in run.silent_nodes() if run.fence.over_at(node, run.settings.lease) <= now.mono]
    asked, over = _stopped_with_the_job(run, over, now)
    if asked or not over:
        return asked
    for node in over:
        for rank in run.ranks_on(node):
            run.attempt.lose(rank, f"{node} was silent longer than its lease")
    if run.phase is Phase.HEALING:
        return []  # decided when that has ended
    what = f"{fold_nodes(over)} was silent longer than its lease ({run.settings.lease.time_s:g} s), so its ranks have ended"
    return [Trouble(Cause.LOST, what, 1, _silent_since(run, over, now))]


def _silent_since(run: Run, nodes: Collection[str], now: Now) -> float:
    """When the first of the nodes was last heard, Unix seconds; 0 if none is silent."""
    silent = [run.fence.silent[node] for node in nodes if node in run.fence.silent]
    return now.unix - (now.mono - min(silent)) if silent else 0.0


def _stopped_with_the_job(run: Run, over: list[str], now: Now) -> tuple[list[Decision], list[str]]:
    """Nodes whose ranks announced that they would be suspended are silent while Slurm calls the job suspended; ftrun sees
    that if it is not suspended itself (salloc). Gives the question to Slurm, or the rest of `over` after the answer.
    """
    paused = [node for node in over if run.fence.paused & set(run.ranks_on(node))]
    since = min((run.fence.silent[node] for node in paused), default=now.mono)
    if not paused or Capability.ASK not in run.facts.can:
        return [], over
    if run.slurm.runs and run.slurm.at >= since:
        return [], over
    run.fence.fall_silent(paused, now.mono)
    run.watch_silence(now)
    return (run.ask_slurm_unless_asked(now)), [node for node in over if node not in paused]

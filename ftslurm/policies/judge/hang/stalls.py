"""Stalled ranks, and ranks slower than the others, both by the ranks' collectives: when all nodes are asked what their ranks do,
and what follows from the answers.
"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import Finding, Kind, Level
from ftslurm.model.decisions import CompareRanks, Decision, KeepEvidence, Say, TakeEvidence
from ftslurm.model.events import Now
from ftslurm.model.folds.streaks import with_pause
from ftslurm.model.folds.summary import stuck_words
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.hang.stall_watch import Opinion, levels_from
from ftslurm.policies.judge.hang.hang_signs import Hangs
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import LATER_S, Run
from ftslurm.policies.judge.then import Answer


class Stalls:
    def __init__(self, run: Run, hangs: Hangs) -> None:
        self.run, self.hangs = run, hangs

    def on_stall_seen(self, event: ev.StallSeen, now: Now) -> list[Decision]:
        pause = self.run.hangs.still.seen(event, now.mono)
        if pause is None:
            return self.look_closer(now)
        told = rec.Paused(now.unix, self.run.attempt.number, pause.seconds, pause.busy)
        shown = self.run.told.show_running(self.run.attempt.number) if pause.told else []
        over = self.hangs.end_hang("its ranks make progress in their collectives again", now, "stall")
        self.run.timers.stop(Timer.EXAMINE)
        known = self.run.history.hangs.busy_pauses if pause.busy else self.run.history.hangs.quiet_pauses
        kept = pause.told or with_pause(known, pause.seconds) != known
        return [*over, *([self.run.note(told)] if kept else []), *shown]

    def look_closer(self, now: Now) -> list[Decision]:
        """Ask all nodes at once which rank hangs. If ranks have ended, the exit hang handles it; after a signal, Slurm's answer
        does.
        """
        if (
            Timer.EXAMINE in self.run.timers
            or Timer.EVIDENCE in self.run.timers
            or self._not_now(now)
            or not self._stalled_s(now)
        ):
            return []
        self.run.hangs.still.ask()
        self.run.attempt.hang.look_again()
        self.run.timers.set(Timer.EVIDENCE, now.mono + self.run.settings.hang.evidence_time_s)
        return [TakeEvidence(self.run.settings.hang.evidence_time_s)]

    def _not_now(self, now: Now) -> bool:
        """Is there a reason other than a hang for ranks that make no progress?"""
        if self.run.under_signal(now):
            self.run.timers.set(Timer.EXAMINE, now.mono + LATER_S)
            return True
        return bool(self.run.hangs.hung or self.run.attempt.exits)

    def _stalled_s(self, now: Now) -> float:
        return self.run.hangs.still.stalled_s(self.run.step_nodes(), len(self.run.tasks), now.mono)

    def _judge_stall(self, now: Now) -> Answer:
        """All nodes have reported what their ranks do."""
        stalled_s = self._stalled_s(now)
        if not stalled_s or self._not_now(now):
            return []
        o = self.run.hangs.still.opinion(stalled_s, self.run.history, now.mono)
        if o.act and self.hangs.answers(o.finding, now, o.doubt):
            return self._report(o, stalled_s, now)
        self.run.timers.set(Timer.EXAMINE, now.mono + o.again_s)
        if o.act and self._wants_slurm(o.finding, now):
            return [self.run.ask_slurm(now)]
        if o.act and not self.run.hangs.still.left_alone:
            self.run.hangs.still.leave_alone()
            return self._report(o, stalled_s, now)
        if not o.tell or o.finding is None:
            return []
        keep = [KeepEvidence(self.run.attempt.number, node, text) for node, text in self.run.attempt.hang.evidence.items()]
        seen = replace(self.hangs.culprit_record(o.finding, now), since=now.unix - o.idle_s, limit_s=o.limit_s)
        return [self.run.note(seen), *self._said_of(o.finding, o.what), *keep, *self._show_stuck(seen)]

    def _show_stuck(self, seen: rec.CulpritSeen) -> list[Decision]:
        number = self.run.attempt.number
        if not (seen.limit_s and seen.ranks):
            return self.run.told.show_running(number)
        what = stuck_words(seen.ranks, seen.nodes, seen.cause)
        if not self.run.told.tell(what):
            return []
        return self.run.told.show(number, f"{what}, a hang if it lasts", seen.since + seen.limit_s)

    def _report(self, o: Opinion, stalled_s: float, now: Now) -> Answer:
        evidence = o.finding.evidence if o.finding else ()
        return self.hangs.report("stall", o.what, evidence, now, o.finding, still_s=stalled_s, doubt=o.doubt)

    def _wants_slurm(self, found: Finding | None, now: Now) -> bool:
        """Could the ladder have an answer once Slurm reports the state of job and nodes?"""
        convicted = found is not None and found.level is Level.ERROR and found.blamed
        may_ask = Capability.ASK in self.run.facts.can and Timer.ASK not in self.run.timers
        return bool(convicted and may_ask and not self.run.heard_lately(now))

    def _said_of(self, finding: Finding, what: str = "") -> list[Decision]:
        if not levels_from(self.run.settings.hang.c4d_level)[finding.level]:
            return []
        if finding.kind is Kind.UNKNOWN and not finding.ranks:  # nobody can act on it; the history keeps it
            return []
        return [Say(f"{finding.level.value}: {finding}{f' ({what})' if what else ''}")]

    def on_evidence_taken(self, event: ev.EvidenceTaken, now: Now) -> Answer:
        self.run.attempt.hang.take(event.node, event.text, event.views)
        there = self.run.watched_nodes()
        if Timer.HINTS in self.run.timers:
            kept = KeepEvidence(self.run.attempt.number, event.node, event.text)
            return [kept, *self.hangs.ask_hints_when_known(now)]
        if self.run.hangs.hung is None:
            if not self.run.hangs.still.examined(event.node, event.views, there) or Timer.EVIDENCE not in self.run.timers:
                return []
            self.run.timers.stop(Timer.EVIDENCE)
            return self._judge_stall(now) if self.run.phase is Phase.RUNNING else []
        keep: list[Decision] = [KeepEvidence(self.run.attempt.number, event.node, event.text)]
        if Timer.EVIDENCE not in self.run.timers or not self.run.hangs.watch.looked_at(event.node, there):
            return keep
        return [*keep, *self.hangs.begin_trouble(self.run.hangs.hung, now)]

    def on_evidence_overdue(self, now: Now) -> Answer:
        """Some nodes did not answer in time. Half of the ranks do not tell who hangs, but a hang that was noticed is handled
        without it.
        """
        if self.run.hangs.hung is None:
            self.run.timers.set(Timer.EXAMINE, now.mono + self.run.settings.hang.c4d_timeout_s)
            return []
        return [self.run.hangs.hung]

    # --- ranks slower than the others

    def compare_ranks(self, now: Now) -> list[Decision]:
        self.run.timers.set(Timer.COMPARE, now.mono + self.run.settings.hang.compare_s)
        self.run.hangs.slow.ask()
        return [CompareRanks()] if not (self.run.under_signal(now) or self.run.hangs.hung or self.run.attempt.exits) else []

    def on_ranks_compared(self, event: ev.RanksCompared, now: Now) -> list[Decision]:
        finding = self.run.hangs.slow.seen(event, self.run.watched_nodes(), len(self.run.tasks))
        return [self.run.note(self.hangs.culprit_record(finding, now)), *self._said_of(finding)] if finding else []

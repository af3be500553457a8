"""Stalled ranks, and ranks slower than the others, both by the ranks' collectives: when all nodes are asked what their ranks do,
and what follows from the answers.
"""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import Finding, Kind, Level
from ftslurm.model.decisions import CompareRanks, Decision, KeepEvidence, Say, TakeEvidence
from ftslurm.model.events import Now
from ftslurm.model.pauses import with_pause
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.hang.stall_watch import levels_from
from ftslurm.policies.judge.hang_signs import Hangs
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import LATER_S


class Stalls(Hangs):
    def _stall_seen(self, event: ev.StallSeen, now: Now) -> list[Decision]:
        pause = self._hangs.still.seen(event, now.mono)
        if pause is None:
            return self._look_closer(now)
        told = rec.Paused(now.unix, self._attempt.number, pause.seconds, pause.busy)
        over = self._hang_over("its ranks make progress in their collectives again", now, "stall")
        self._timers.stop(Timer.EXAMINE)
        known = self.history.hangs.busy_pauses if pause.busy else self.history.hangs.quiet_pauses
        return [*over, *([self._note(told)] if with_pause(known, pause.seconds) != known else [])]

    def _look_closer(self, now: Now) -> list[Decision]:
        """Ask all nodes at once which rank hangs. If ranks have ended, the exit hang handles it; after a signal, Slurm's answer
        does.
        """
        if Timer.EXAMINE in self._timers or Timer.EVIDENCE in self._timers or self._not_now(now) or not self._stalled_s(now):
            return []
        self._hangs.still.ask()
        self._attempt.hang.look_again()
        self._timers.set(Timer.EVIDENCE, now.mono + self.settings.hang_evidence_s)
        return [TakeEvidence(self.settings.hang_evidence_s)]

    def _not_now(self, now: Now) -> bool:
        """Is there a reason other than a hang for ranks that make no progress?"""
        if self._under_signal(now):
            self._timers.set(Timer.EXAMINE, now.mono + LATER_S)
            return True
        return bool(self._hangs.hung or self._attempt.exits)

    def _stalled_s(self, now: Now) -> float:
        return self._hangs.still.stalled_s(self._step_nodes(), len(self._tasks), now.mono)

    def _looked_closer(self, now: Now) -> list[Decision]:
        """All nodes have reported what their ranks do."""
        stalled_s = self._stalled_s(now)
        if not stalled_s or self._not_now(now):
            return []
        o = self._hangs.still.opinion(stalled_s, self.history, now.mono)
        if o.act and self._answerable(o.finding, now):
            return self._hang("stall", o.what, o.finding.evidence if o.finding else (), now, o.finding, still_s=stalled_s)
        self._timers.set(Timer.EXAMINE, now.mono + o.again_s)
        if o.act and self._wants_slurm(o.finding, now):
            return [self._ask_slurm(now)]
        if o.act and not self._hangs.still.left_alone:
            self._hangs.still.leave_alone()
            return self._hang("stall", o.what, o.finding.evidence if o.finding else (), now, o.finding, still_s=stalled_s)
        if not o.tell or o.finding is None:
            return []
        keep = [KeepEvidence(self._attempt.number, node, text) for node, text in self._attempt.hang.evidence.items()]
        return [self._note(self._culprit(o.finding, now)), *self._said_of(o.finding, o.what), *keep]

    def _answerable(self, found: Finding | None, now: Now) -> bool:
        """Does the ladder have an answer? If hang restarts are off, only a restart without the nodes to blame is one."""
        return self.settings.hang_restart or self._without(found, now)

    def _wants_slurm(self, found: Finding | None, now: Now) -> bool:
        """Could the ladder have an answer once Slurm reports the state of job and nodes?"""
        convicted = found is not None and found.level is Level.ERROR and found.blamed
        may_ask = Capability.ASK in self.facts.can and Timer.ASK not in self._timers
        return bool(convicted and may_ask and not self._heard_lately(now))

    def _said_of(self, finding: Finding, what: str = "") -> list[Decision]:
        if not levels_from(self.settings.hang_c4d_level)[finding.level]:
            return []
        if finding.kind is Kind.UNKNOWN and not finding.ranks:  # nobody can act on it; the history keeps it
            return []
        return [Say(f"{finding.level.value}: {finding}{f' ({what})' if what else ''}")]

    def _evidence_taken(self, event: ev.EvidenceTaken, now: Now) -> list[Decision]:
        self._attempt.hang.take(event.node, event.text, event.views)
        there = self._watching()
        if Timer.HINTS in self._timers:
            kept = KeepEvidence(self._attempt.number, event.node, event.text)
            return [kept, *self._hints_known(now)]
        if self._hangs.hung is None:
            if not self._hangs.still.examined(event.node, event.views, there) or Timer.EVIDENCE not in self._timers:
                return []
            self._timers.stop(Timer.EVIDENCE)
            return self._looked_closer(now) if self.phase is Phase.RUNNING else []
        keep: list[Decision] = [KeepEvidence(self._attempt.number, event.node, event.text)]
        if Timer.EVIDENCE not in self._timers or not self._hangs.watch.looked_at(event.node, there):
            return keep
        return [*keep, *self._into_hang(self._hangs.hung, now)]

    def _evidence_overdue(self, now: Now) -> list[Decision]:
        """Some nodes did not answer in time. Half of the ranks do not tell who hangs, but a hang that was noticed is handled
        without it.
        """
        if self._hangs.hung is None:
            self._timers.set(Timer.EXAMINE, now.mono + self.settings.hang_c4d_timeout_s)
            return []
        return self._into_trouble(self._hangs.hung, now)

    # --- ranks slower than the others

    def _compare(self, now: Now) -> list[Decision]:
        self._timers.set(Timer.COMPARE, now.mono + self.settings.hang_compare_s)
        self._hangs.slow.ask()
        return [CompareRanks()] if not (self._under_signal(now) or self._hangs.hung or self._attempt.exits) else []

    def _compared(self, event: ev.RanksCompared, now: Now) -> list[Decision]:
        finding = self._hangs.slow.seen(event, self._watching(), len(self._tasks))
        return [self._note(self._culprit(finding, now)), *self._said_of(finding)] if finding else []

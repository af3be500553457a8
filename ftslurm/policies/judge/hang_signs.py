"""Hangs by signs outside the ranks: no I/O and idle devices, no output, a missed beat, ranks that do not exit with the others.
The program may set each interval itself. Also: what follows from any hang.
"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import Finding, Kind, Level
from ftslurm.model.decisions import AskWords, Decision, KeepEvidence, SampleUse, Say, ShowCard, TakeEvidence
from ftslurm.model.events import Now
from ftslurm.model.folds.history import HANG
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.timers import Timer
from ftslurm.policies.diagnose.contrast import Contrast, contrast
from ftslurm.policies.hang.stall_watch import as_seconds
from ftslurm.policies.hang.whohangs import who_hangs
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.settling import Settling
from ftslurm.policies.judge.state import LATER_S, MARGIN_S
from ftslurm.policies.ladder.ladder import Cause, choose
from ftslurm.policies.ladder.situation import Trouble


class Hangs(Settling):
    def _quiet_seen(self, event: ev.QuietSeen, now: Now) -> list[Decision]:
        """All nodes have had no I/O for long enough: ask whether the devices (or CPUs) are busy."""
        if event.quiet_s <= 0 and (over := self._hang_over(f"processes on {event.node} do IO again", now, "io")):
            self._hangs.watch.quiet(event, self._step_nodes())
            return over
        if self._held(now) or self._hangs.hung:
            return []
        if not self._hangs.watch.quiet(event, self._step_nodes()):
            self._timers.stop(Timer.USE)
            return []
        if Timer.USE in self._timers:
            return []
        self._timers.set(Timer.USE, now.mono + self.settings.hang_sample_s + MARGIN_S)
        return [SampleUse(self.settings.hang_sample_s)]

    def _use_sampled(self, event: ev.UseSampled, now: Now) -> list[Decision]:
        if Timer.USE not in self._timers or self._hangs.hung or not self._hangs.watch.sampled(event, self._step_nodes()):
            return []
        return self._use_known(now)

    def _use_known(self, now: Now) -> list[Decision]:
        self._timers.stop(Timer.USE)
        hang = self._hangs.watch_anew().verdict(self._step_nodes())
        # Not every device is idle, or some are unknown: the agents report again after the same time without I/O.
        return self._hang("io", hang.what, hang.evidence, now, still_s=hang.still_s) if hang else self._watch_all_ranks()

    def _rank_silent(self, event: ev.RankSilent, now: Now) -> list[Decision]:
        over = self._hang_over(f"rank {event.rank} prints again", now, "silence") if event.silent_s <= 0 else []
        if self._held(now) or self._hangs.hung or not self.settings.hang_silence:
            return over
        running = self._attempt.ranks - self._attempt.exits.keys()
        if not self._hangs.watch.silent(event, running):
            return over
        what = f"no rank has printed anything for {round(self._hangs.watch.silent_s, 1):g} s"
        return self._hang("silence", what, (), now, still_s=self._hangs.watch.silent_s)

    def _beat_overdue(self, event: ev.BeatOverdue, now: Now) -> list[Decision]:
        """A beat is overdue, judged as ft_launcher's rank monitor does. The program asked to be watched, so no further proof is
        needed.
        """
        if not event.why:
            return self._hang_over(f"rank {event.rank} is no longer overdue", now, "beat")
        if self._held(now) or self._hangs.hung or event.rank in self._attempt.exits:
            return []
        what = f"rank {event.rank} on {self._tasks[event.rank].node}: {event.why}"
        if self.settings.mode == "min-healthy":
            return self._rank_failed(event.rank, Trouble(Cause.HANG, f"hang: {what}", 1), now)
        return self._hang("beat", what, (), now, ranks=(event.rank,))

    def _rank_failed(self, rank: int, trouble: Trouble, now: Now) -> list[Decision]:
        """Handle a failed rank (in judge/ranks): the hang may concern one rank only."""
        raise NotImplementedError

    def _held(self, now: Now) -> bool:
        """Can a signal explain what looks like a hang? Agents report a hang once, so all watch again after the signal."""
        if self._under_signal(now):
            self._timers.set_first(Timer.HOLD, now.mono + LATER_S)
            return True
        return False

    def _hold_due(self, now: Now) -> list[Decision]:
        if self._held(now):
            return []
        self._hangs.watch_anew()
        self._timers.stop(Timer.USE)
        return [*self._watch_all_ranks(), self._intervals()]

    def _exit_overdue(self, now: Now) -> list[Decision]:
        if self._hangs.hung:
            return []
        if self._under_signal(now):
            self._timers.set(Timer.EXIT, now.mono + LATER_S)
            return []
        left = sorted(self._attempt.ranks - self._attempt.exits.keys())
        ranks = ", ".join(map(str, left[:8])) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
        ended_s = now.mono - self._hangs.first_end if self._hangs.first_end is not None else 0.0
        ended = f"{count} ranks have" if (count := len(self._attempt.exits)) != 1 else "1 rank has"
        still = f"ranks {ranks} still run" if len(left) > 1 else f"rank {ranks} still runs"
        what = f"{ended} exited; {still} after {ended_s:.0f} s"
        return self._hang("exit", what, (), now, ranks=tuple(left), still_s=ended_s)

    # --- what the program says: it knows best how long it will be silent

    def _program_said(self, event: ev.ProgramSaid, now: Now) -> list[Decision]:
        """Handle a message of the program: print text for people; remember its request to the ladder for the next failure, unless
        that request has been used already.
        """
        if not self._hangs.hears(event.rank, event.attempt, event.place):
            return []
        text, current = " ".join(event.words), self._is_current(event)
        if event.what == "probe":
            return self._lacks_probe(event, current, now)
        if current:
            self._attempt.program.said.append((event.rank, event.what, event.words))
        note = self._note(rec.ProgramSaid(now.unix, event.attempt, event.rank, event.what, text))
        if current and event.what == "limits":
            self._hangs.keep_limits(event.words)
            return [note, *self._asked_for_restarts("calculated timeouts")]
        if current and event.what == "setting" and event.words[:1] == ("job_exit_hang_interval",):
            return [note, *self._set_exit_interval(event.words[-1], now)]
        if event.what == "message":
            return [note, Say(f"rank {event.rank}: {text}")]
        return [note]

    def _set_exit_interval(self, word: str, now: Now) -> list[Decision]:
        """Set the exit interval by AIMaster's `reset_config`: seconds, or -1 for off."""
        seconds = as_seconds(word)
        if seconds is not None:
            self._hangs.wait_for_last(None if seconds < 0 else seconds)
            self._await_last_end(now)
        return self._asked_for_restarts("job_exit_hang_interval") if seconds is not None and seconds > 0 else []

    def _lacks_probe(self, event: ev.ProgramSaid, current: bool, now: Now) -> list[Decision]:
        """An agent reports that nobody can see the progress of its ranks' collectives. One rank stands for all."""
        known = any(what == "probe" for _, what, _ in self._attempt.program.said)
        if not current or known or not self.settings.inject:
            return []
        self._attempt.program.said.append((event.rank, event.what, event.words))
        why = " ".join(event.words)
        note = self._note(rec.ProgramSaid(now.unix, event.attempt, event.rank, event.what, why))
        then = "ftrun detects a hang only by I/O (hang.detect_time) and cannot name the hung rank"
        told = f"rank {event.rank} has no probe: {why}; {then}"
        return [note, Say(told)]

    def _asked_for_restarts(self, what: str) -> list[Decision]:
        """Does the job want a restart for this hang? Whoever sets a limit (by option or in the program) wants it, unless
        hang-restart is off.
        """
        if self.settings.hang_restart or not self.settings.hang_restart_asked:
            return []
        self.settings = replace(self.settings, hang_restart=True)
        return [Say(f"the program has set limits of its own ({what}): ftrun now restarts the job when it hangs")]

    def _progressed(self, event: ev.Progressed, now: Now) -> list[Decision]:
        program, before = self._attempt.program, self._attempt.program.step
        program.count(event.beats, event.saved)
        if event.step <= before:
            return []
        program.step = event.step
        self._hangs.still.lives(now.mono)
        over = self._hang_over(f"the program has come to step {event.step}", now)
        further = event.step > self.history.progress.furthest >= before
        if self.phase is not Phase.RUNNING or not (further or not before):
            return over
        return [self._note(rec.StepReached(now.unix, self._attempt.number, event.step, further)), *over]

    def _hang_over(self, what: str, now: Now, sign: str = "") -> list[Decision]:
        """Close a hang that was left alone and that `sign` reported. sign: empty for any."""
        standing = self._attempt.hang.standing
        if not standing or sign not in ("", standing):
            return []
        self._attempt.hang.standing = ""
        return [
            self._note(rec.HangEnded(now.unix, self._attempt.number, standing, what)),
            Say(f"the job makes progress again: {what}"),
        ]

    def _ranks_alive(self, event: ev.RanksAlive, now: Now) -> list[Decision]:
        """The answer of nodes at the beginning of trouble: ranks that worked until then are not those that others waited for."""
        signs = {rank: (now.unix - ago_s, what) for rank, (ago_s, what) in event.signs.items() if rank in self._attempt.ranks}
        self._attempt.alive.update(signs)
        return []

    def _stage_set(self, event: ev.StageSet, now: Now) -> list[Decision]:
        before = self._intervals()
        if event.seconds is None:
            self._attempt.program.stages.pop(event.rank, None)
        else:
            self._attempt.program.stages[event.rank] = event.seconds
        asked: list[Decision] = []
        if event.seconds is not None and event.seconds > 0 and (said := self._asked_for_restarts("hang interval")):
            words = f"{event.seconds:g} s"
            asked = [self._note(rec.ProgramSaid(now.unix, self._attempt.number, event.rank, "interval", words)), *said]
        if self._intervals() == before:
            return asked
        self._hangs.watch_anew()
        self._timers.stop(Timer.USE)
        return [*asked, self._intervals()]

    # --- what a hang leads to

    def _hang(
        self, kind: str, what: str, evidence: tuple[str, ...], now: Now, found: Finding | None = None,
        ranks: tuple[int, ...] = (), still_s: float = 0.0,
    ) -> list[Decision]:  # fmt: skip
        """Record and print the hang. If a rung handles it, look at what the ranks do before they are stopped.

        found: the finding, if the ranks were examined. ranks: the hung ranks, if known without a finding. still_s: how long
        nothing has moved, seconds; 0: unknown.
        """
        since = now.unix - still_s if still_s else 0.0
        told = rec.HangSeen(now.unix, self._attempt.number, kind, what, evidence, str(found or ""), since=since)
        seen = self._note(self._hang_seen(told, found, ranks))
        self._attempt.hang.at = now.unix
        if not (self.settings.hang_restart or self._without(found, now)):
            self._attempt.hang.standing = kind
            return [seen, *self._advise_on_hang(now)]
        self._attempt.hang.blamed, cleared = self._held_against(found, now)
        seen_of = self._reinstate(HANG, cleared, now) if cleared is not None else []
        trouble = Trouble(Cause.HANG, f"hang: {what}", 1, since)
        if found is not None:
            self._hangs.hangs(trouble)
            keep = [KeepEvidence(self._attempt.number, node, text) for node, text in self._attempt.hang.evidence.items()]
            return [seen, *seen_of, *keep, *self._into_hang(trouble, now, found)]
        self._hangs.hangs(trouble)
        if not self._watching():
            return [seen, *self._into_trouble(trouble, now)]
        self._timers.set(Timer.EVIDENCE, now.mono + self.settings.hang_evidence_s)
        return [seen, TakeEvidence(self.settings.hang_evidence_s)]

    def _advise_on_hang(self, now: Now) -> list[Decision]:
        """The card of a hang that is left alone, once the ranks' output and activity are known; they show common reasons."""
        if Capability.ADVISE not in self.facts.can or self._attempt.hang.advised or Timer.HINTS in self._timers:
            return [ShowCard()]
        self._timers.set(Timer.HINTS, now.mono + self.settings.hang_evidence_s)
        self._attempt.hang.words.clear()
        taken = self._attempt.hang.evidence.keys() >= set(self._watching()) and bool(self._attempt.hang.views)
        return [AskWords(), *([] if taken else [TakeEvidence(self.settings.hang_evidence_s)]), *self._hints_known(now)]

    def _rank_words(self, event: ev.RankWords, now: Now) -> list[Decision]:
        if Timer.HINTS not in self._timers or not self._attempt.belongs(event.rank, event.attempt):
            return []
        self._attempt.hang.words[event.rank] = event.output
        return self._hints_known(now)

    def _hints_known(self, now: Now) -> list[Decision]:
        """Continue once every running rank and every node has answered."""
        running = self._attempt.ranks - self._attempt.exits.keys() - self._attempt.lost.keys()
        nodes = set(self._watching())
        known = running <= self._attempt.hang.words.keys() and nodes <= self._attempt.hang.evidence.keys()
        if Timer.HINTS not in self._timers or not known:
            return []
        return self._hints_due(now)

    def _hints_due(self, now: Now) -> list[Decision]:
        self._timers.stop(Timer.HINTS)
        if self.phase is not Phase.RUNNING:
            return []
        asked = self._ask_hints(now)
        self._attempt.hang.words.clear()  # for a thousand ranks this may be a hundred megabytes
        return asked or [ShowCard()]

    def _hang_seen(self, seen: rec.HangSeen, found: Finding | None, ranks: tuple[int, ...]) -> rec.HangSeen:
        """The record of a hang, with the hung ranks, for programs that read the ledger."""
        if found is not None:
            return replace(
                seen, ranks=found.ranks, nodes=found.nodes, hang_class=found.kind.value, level=found.level.value,
                operation=found.operation, cause=found.cause, blamed=found.blamed,
            )  # fmt: skip
        nodes = tuple(dict.fromkeys(self._tasks[rank].node for rank in ranks if rank in self._tasks))
        return replace(seen, ranks=ranks, nodes=nodes)

    def _without(self, found: Finding | None, now: Now) -> bool:
        """Can the job continue without the nodes that the finding blames?"""
        hung, _ = self._held_against(found, now)
        if not hung:
            return False
        attempt = replace(self._attempt, hang=replace(self._attempt.hang, blamed=hung))
        rung = choose(self._situation(Trouble(Cause.HANG, str(found), 1), now, attempt)).rung
        return rung in (Rung.NODE_REPLACEMENT, Rung.SHRINK, Rung.ISOLATED_REQUEUE)

    def _held_against(self, found: Finding | None, now: Now) -> tuple[dict[str, str], Contrast | None]:
        """Gives node -> reason, for an Error; and the contrast that blames the program instead: the same rank has hung on another
        node.
        """
        if found is None or found.level is not Level.ERROR or not found.blamed:
            return {}, None
        ranks = dict.fromkeys(found.ranks, found.nodes[0]) if len(found.nodes) == 1 else {}
        cleared = contrast(HANG, ranks, self.history, now.unix - self.settings.same_code_window_s)
        return ({}, cleared) if cleared is not None else ({node: str(found) for node in found.blamed}, None)

    def _into_hang(self, trouble: Trouble, now: Now, found: Finding | None = None) -> list[Decision]:
        """Begin trouble for a hang, with the rank that caused it, if the finding tells."""
        found = found or who_hangs(view for views in self._attempt.hang.views.values() for view in views)
        if found is None or found.kind is Kind.UNKNOWN:
            return self._into_trouble(trouble, now)
        trouble = replace(trouble, what=f"{trouble.what}; {found}")
        return [self._note(self._culprit(found, now)), *self._into_trouble(trouble, now)]

    def _culprit(self, found: Finding, now: Now) -> rec.CulpritSeen:
        return rec.CulpritSeen(
            now.unix, self._attempt.number, found.kind.value, found.level.value, found.ranks, found.nodes, found.operation,
            found.cause, found.evidence, found.blamed,
        )  # fmt: skip

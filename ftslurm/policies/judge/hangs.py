"""Hangs by signs outside the ranks: no I/O and idle devices, no output, a missed beat, ranks that do not exit with the others.
The program may set each interval itself. Also: what follows from any hang.
"""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import Culprit, CulpritKind, Level
from ftslurm.model.decisions import AskWords, CompareRanks, Decision, KeepEvidence, SampleUse, Say, ShowCard, TakeEvidence
from ftslurm.model.events import Now
from ftslurm.model.folds.history import HANG
from ftslurm.model.folds.past import with_pause
from ftslurm.model.folds.summary import stuck_words
from ftslurm.model.rungs import LEAVES, Capability
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.hang.stall_watch import NOBODY, Opinion, as_seconds, levels_from
from ftslurm.policies.hang.whohangs import who_hangs
from ftslurm.policies.judge.causes import Causes
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import LATER_S, MARGIN_S, Run
from ftslurm.policies.judge.then import Answer, ThenFail
from ftslurm.policies.ladder import Cause, choose
from ftslurm.policies.situation import Trouble
from ftslurm.policies.weigh import Contrast, contrast


class Hangs:
    def __init__(self, run: Run, causes: Causes) -> None:
        self.run, self.causes = run, causes

    def on_quiet_seen(self, event: ev.QuietSeen, now: Now) -> list[Decision]:
        """All nodes have had no I/O for long enough: ask whether the devices (or CPUs) are busy."""
        if event.quiet_s <= 0 and (over := self.end_hang(f"processes on {event.node} do IO again", now, "io")):
            self.run.hangs.watch.quiet(event, self.run.step_nodes())
            return over
        if self._hold(now) or self.run.hangs.hung:
            return []
        if not self.run.hangs.watch.quiet(event, self.run.step_nodes()):
            self.run.timers.stop(Timer.USE)
            return []
        if Timer.USE in self.run.timers:
            return []
        self.run.timers.set(Timer.USE, now.mono + self.run.settings.hang.sample_time_s + MARGIN_S)
        return [SampleUse(self.run.settings.hang.sample_time_s)]

    def on_use_sampled(self, event: ev.UseSampled, now: Now) -> Answer:
        if (
            Timer.USE not in self.run.timers
            or self.run.hangs.hung
            or not self.run.hangs.watch.sampled(event, self.run.step_nodes())
        ):
            return []
        return self.judge_use(now)

    def judge_use(self, now: Now) -> Answer:
        self.run.timers.stop(Timer.USE)
        hang = self.run.hangs.watch_anew().verdict(self.run.step_nodes())
        # Not every device is idle, or some are unknown: the agents report again after the same time without I/O.
        return self.report("io", hang.what, hang.evidence, now, still_s=hang.still_s) if hang else self.run.watch_all_ranks()

    def on_rank_silent(self, event: ev.RankSilent, now: Now) -> Answer:
        over = self.end_hang(f"rank {event.rank} prints again", now, "silence") if event.silent_s <= 0 else []
        if self._hold(now) or self.run.hangs.hung or not self.run.settings.hang.log_silence:
            return over
        running = self.run.attempt.ranks - self.run.attempt.exits.keys()
        if not self.run.hangs.watch.silent(event, running):
            return over
        what = f"no rank has printed anything for {round(self.run.hangs.watch.silent_s, 1):g} s"
        return self.report("silence", what, (), now, still_s=self.run.hangs.watch.silent_s)

    def on_beat_overdue(self, event: ev.BeatOverdue, now: Now) -> Answer:
        """A beat is overdue, judged as ft_launcher's rank monitor does. The program asked to be watched, so no further proof is
        needed.
        """
        if not event.why:
            return self.end_hang(f"rank {event.rank} is no longer overdue", now, "beat")
        if self._hold(now) or self.run.hangs.hung or event.rank in self.run.attempt.exits:
            return []
        what = f"rank {event.rank} on {self.run.tasks[event.rank].node}: {event.why}"
        if self.run.settings.mode == "min-healthy":
            return [ThenFail(event.rank, Trouble(Cause.HANG, f"hang: {what}", 1))]
        return self.report("beat", what, (), now, ranks=(event.rank,), doubt="")

    def _hold(self, now: Now) -> bool:
        """Can a signal explain what looks like a hang? Agents report a hang once, so all watch again after the signal."""
        if self.run.under_signal(now):
            self.run.timers.set_first(Timer.HOLD, now.mono + LATER_S)
            return True
        return False

    def on_hold_due(self, now: Now) -> list[Decision]:
        if self._hold(now):
            return []
        self.run.hangs.watch_anew()
        self.run.timers.stop(Timer.USE)
        return [*self.run.watch_all_ranks(), self.run.intervals()]

    def on_exit_overdue(self, now: Now) -> Answer:
        if self.run.hangs.hung:
            return []
        if self.run.under_signal(now):
            self.run.timers.set(Timer.EXIT, now.mono + LATER_S)
            return []
        left = sorted(self.run.attempt.ranks - self.run.attempt.exits.keys())
        ranks = ", ".join(map(str, left[:8])) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
        ended_s = now.mono - self.run.hangs.first_end if self.run.hangs.first_end is not None else 0.0
        ended = f"{count} ranks have" if (count := len(self.run.attempt.exits)) != 1 else "1 rank has"
        still = f"ranks {ranks} still run" if len(left) > 1 else f"rank {ranks} still runs"
        what = f"{ended} exited; {still} after {ended_s:.0f} s"
        return self.report("exit", what, (), now, ranks=tuple(left), still_s=ended_s)

    # --- what the program says: it knows best how long it will be silent

    def on_program_said(self, event: ev.ProgramSaid, now: Now) -> list[Decision]:
        """Handle a message of the program: print text for people; remember its request to the ladder for the next failure, unless
        that request has been used already.
        """
        if not self.run.hangs.hears(event.rank, event.attempt, event.place):
            return []
        text, current = " ".join(event.words), self.run.is_current(event)
        if event.what == "probe":
            return self._note_lack_of_probe(event, current, now)
        if current:
            self.run.attempt.program.said.append((event.rank, event.what, event.words))
        note = self.run.note(rec.ProgramSaid(now.unix, event.attempt, event.rank, event.what, text))
        if current and event.what == "limits":
            self.run.hangs.keep_limits(event.words)
            return [note, *self._restart_from_now_on("calculated timeouts")]
        if current and event.what == "setting" and event.words[:1] == ("job_exit_hang_interval",):
            return [note, *self._set_exit_interval(event.words[-1], now)]
        if event.what == "message":
            return [note, Say(f"rank {event.rank}: {text}")]
        return [note]

    def _set_exit_interval(self, word: str, now: Now) -> list[Decision]:
        """Set the exit interval by AIMaster's `reset_config`: seconds, or -1 for off."""
        seconds = as_seconds(word)
        if seconds is not None:
            self.run.hangs.wait_for_last(None if seconds < 0 else seconds)
            self.run.await_last_end(now)
        return self._restart_from_now_on("job_exit_hang_interval") if seconds is not None and seconds > 0 else []

    def _note_lack_of_probe(self, event: ev.ProgramSaid, current: bool, now: Now) -> list[Decision]:
        """An agent reports that nobody can see the progress of its ranks' collectives. One rank stands for all."""
        known = any(what == "probe" for _, what, _ in self.run.attempt.program.said)
        if not current or known or not self.run.settings.sdk.inject:
            return []
        self.run.attempt.program.said.append((event.rank, event.what, event.words))
        why = " ".join(event.words)
        note = self.run.note(rec.ProgramSaid(now.unix, event.attempt, event.rank, event.what, why))
        then = "ftrun detects a hang only by I/O (hang.detect_time) and cannot name the hung rank"
        told = f"rank {event.rank} has no probe: {why}; {then}"
        return [note, Say(told)]

    def _restart_from_now_on(self, what: str) -> list[Decision]:
        """Does the job want a restart for this hang? Whoever sets a limit (by option or in the program) wants it, unless
        hang-restart is off.
        """
        if self.run.settings.hang_restart.enabled is not None:
            return []
        self.run.restart_on_hangs()
        return [Say(f"the program has set limits of its own ({what}): ftrun now restarts the job when it hangs")]

    def on_progressed(self, event: ev.Progressed, now: Now) -> list[Decision]:
        program, before = self.run.attempt.program, self.run.attempt.program.step
        program.count(event.beats, event.saved, event.saving_s)
        if event.step <= before:
            return []
        program.step = event.step
        self.run.hangs.still.lives(now.mono)
        over = self.end_hang(f"the program has come to step {event.step}", now)
        further = event.step > self.run.history.progress.furthest >= before
        if self.run.phase is not Phase.RUNNING or not (further or not before):
            return over
        return [*_step_reached(self.run, event.step, not before, further, now), *over]

    def end_hang(self, what: str, now: Now, sign: str = "") -> list[Decision]:
        """Close a hang that was left alone and that `sign` reported. sign: empty for any."""
        standing = self.run.attempt.hang.standing
        if not standing or sign not in ("", standing):
            return []
        self.run.attempt.hang.standing = ""
        return [
            self.run.note(rec.HangEnded(now.unix, self.run.attempt.number, standing, what)),
            Say(f"the job makes progress again: {what}"),
            *self.run.told.show_running(self.run.attempt.number),
        ]

    def on_ranks_alive(self, event: ev.RanksAlive, now: Now) -> list[Decision]:
        """The answer of nodes at the beginning of trouble: ranks that worked until then are not those that others waited for."""
        signs = {rank: (now.unix - ago_s, what) for rank, (ago_s, what) in event.signs.items() if rank in self.run.attempt.ranks}
        self.run.attempt.alive.update(signs)
        return []

    def on_stage_set(self, event: ev.StageSet, now: Now) -> list[Decision]:
        before = self.run.intervals()
        if event.seconds is None:
            self.run.attempt.program.stages.pop(event.rank, None)
        else:
            self.run.attempt.program.stages[event.rank] = event.seconds
        asked: list[Decision] = []
        if event.seconds is not None and event.seconds > 0 and (said := self._restart_from_now_on("hang interval")):
            words = f"{event.seconds:g} s"
            asked = [self.run.note(rec.ProgramSaid(now.unix, self.run.attempt.number, event.rank, "interval", words)), *said]
        if self.run.intervals() == before:
            return asked
        self.run.hangs.watch_anew()
        self.run.timers.stop(Timer.USE)
        return [*asked, self.run.intervals()]

    # --- what a hang leads to

    def report(
        self, kind: str, what: str, evidence: tuple[str, ...], now: Now, found: Culprit | None = None,
        ranks: tuple[int, ...] = (), still_s: float = 0.0, doubt: str = NOBODY,
    ) -> Answer:  # fmt: skip
        """Record and print the hang. If a rung handles it, look at what the ranks do before they are stopped.

        found: the finding, if the ranks were examined. ranks: the hung ranks, if known without a finding. still_s: how long
        nothing has moved, seconds; 0: unknown. doubt: why it is no proof; empty: a rank is named from within.
        """
        since = now.unix - still_s if still_s else 0.0
        told = rec.HangSeen(now.unix, self.run.attempt.number, kind, what, evidence, str(found or ""), since=since)
        left = "" if self.answers(found, now, doubt) else _why_left(self.run, doubt)
        seen = self.run.note(replace(self._hang_record(told, found, ranks), left=left))
        self.run.attempt.hang.at = now.unix
        self.run.attempt.hang.proven = not doubt and _has_progressed(self.run)
        if left:
            self.run.attempt.hang.standing = kind
            return [seen, *self.run.told.show(self.run.attempt.number, f"seems to hang: {what}"), *self._advise_on_hang(now)]
        self.run.attempt.hang.blamed, cleared = self.held_against(found, now)
        seen_of = self.causes.reinstate(HANG, cleared, now) if cleared is not None else []
        trouble = Trouble(Cause.HANG, f"hang: {what}", 1, since)
        if found is not None:
            self.run.hangs.hangs(trouble)
            keep = [KeepEvidence(self.run.attempt.number, node, text) for node, text in self.run.attempt.hang.evidence.items()]
            return [seen, *seen_of, *keep, *self.begin_trouble(trouble, now, found)]
        self.run.hangs.hangs(trouble)
        if not self.run.watched_nodes():
            return [seen, trouble]
        self.run.timers.set(Timer.EVIDENCE, now.mono + self.run.settings.hang.evidence_time_s)
        return [seen, TakeEvidence(self.run.settings.hang.evidence_time_s)]

    def _advise_on_hang(self, now: Now) -> list[Decision]:
        """The card of a hang that is left alone, once the ranks' output and activity are known; they show common reasons."""
        if Capability.ADVISE not in self.run.facts.can or self.run.attempt.hang.advised or Timer.HINTS in self.run.timers:
            return [ShowCard()]
        self.run.timers.set(Timer.HINTS, now.mono + self.run.settings.hang.evidence_time_s)
        self.run.attempt.hang.words.clear()
        taken = self.run.attempt.hang.evidence.keys() >= set(self.run.watched_nodes()) and bool(self.run.attempt.hang.views)
        return [
            AskWords(),
            *([] if taken else [TakeEvidence(self.run.settings.hang.evidence_time_s)]),
            *self.ask_hints_when_known(now),
        ]

    def on_rank_words(self, event: ev.RankWords, now: Now) -> list[Decision]:
        if Timer.HINTS not in self.run.timers or not self.run.attempt.belongs(event.rank, event.attempt):
            return []
        self.run.attempt.hang.words[event.rank] = event.output
        return self.ask_hints_when_known(now)

    def ask_hints_when_known(self, now: Now) -> list[Decision]:
        """Continue once every running rank and every node has answered."""
        running = self.run.attempt.ranks - self.run.attempt.exits.keys() - self.run.attempt.lost.keys()
        nodes = set(self.run.watched_nodes())
        known = running <= self.run.attempt.hang.words.keys() and nodes <= self.run.attempt.hang.evidence.keys()
        if Timer.HINTS not in self.run.timers or not known:
            return []
        return self.on_hints_due(now)

    def on_hints_due(self, now: Now) -> list[Decision]:
        self.run.timers.stop(Timer.HINTS)
        if self.run.phase is not Phase.RUNNING:
            return []
        asked = self.causes.ask_hints(now)
        self.run.attempt.hang.words.clear()  # for a thousand ranks this may be a hundred megabytes
        return asked or [ShowCard()]

    def _hang_record(self, seen: rec.HangSeen, found: Culprit | None, ranks: tuple[int, ...]) -> rec.HangSeen:
        """The record of a hang, with the hung ranks, for programs that read the ledger."""
        if found is not None:
            return replace(
                seen, ranks=found.ranks, nodes=found.nodes, hang_class=found.kind.value, level=found.level.value,
                operation=found.operation, cause=found.cause, blamed=found.blamed, helps=found.helps,
            )  # fmt: skip
        nodes = tuple(dict.fromkeys(self.run.tasks[rank].node for rank in ranks if rank in self.run.tasks))
        return replace(seen, ranks=ranks, nodes=nodes)

    def answers(self, found: Culprit | None, now: Now, doubt: str) -> bool:
        """Does the ladder have an answer? Without hang restarts, only a restart without the nodes to blame is one."""
        wanted = self.run.settings.hang_restart.enabled
        return (not doubt and _has_progressed(self.run) if wanted is None else wanted) or self.can_leave(found, now)

    def can_leave(self, found: Culprit | None, now: Now) -> bool:
        """Can the job continue without the nodes that the finding blames?"""
        hung, _ = self.held_against(found, now)
        if not hung:
            return False
        attempt = replace(self.run.attempt, hang=replace(self.run.attempt.hang, blamed=hung))
        rung = choose(self.run.situation(Trouble(Cause.HANG, str(found), 1), now, attempt)).rung
        return rung in LEAVES

    def held_against(self, found: Culprit | None, now: Now) -> tuple[dict[str, str], Contrast | None]:
        """Gives node -> reason, for an Error; and the contrast that blames the program instead: the same rank has hung on another
        node.
        """
        if found is None or found.level is not Level.ERROR or not found.blamed:
            return {}, None
        ranks = dict.fromkeys(found.ranks, found.nodes[0]) if len(found.nodes) == 1 else {}
        cleared = contrast(HANG, ranks, self.run.history, now.unix - self.run.settings.in_place_restart.same_code_window_s)
        return ({}, cleared) if cleared is not None else ({node: str(found) for node in found.blamed}, None)

    def begin_trouble(self, trouble: Trouble, now: Now, found: Culprit | None = None) -> Answer:
        """Begin trouble for a hang, with the rank that caused it, if the finding tells."""
        found = found or who_hangs(view for views in self.run.attempt.hang.views.values() for view in views)
        if found is None or found.kind is CulpritKind.UNKNOWN:
            return [trouble]
        trouble = replace(trouble, what=f"{trouble.what}; {found}")
        return [self.run.note(self.culprit_record(found, now)), trouble]

    def culprit_record(self, found: Culprit, now: Now) -> rec.CulpritSeen:
        return rec.CulpritSeen(
            now.unix, self.run.attempt.number, found.kind.value, found.level.value, found.ranks, found.nodes, found.operation,
            found.cause, found.evidence, found.blamed, helps=found.helps,
        )  # fmt: skip


def _has_progressed(run: Run) -> bool:
    """Has the job ever done what it is for? One that never got through its start would hang there again."""
    known, program = run.history, run.attempt.program
    before = known.progress.furthest or known.progress.most_beats or known.hangs.in_a_row or known.hangs.quiet_pauses
    return bool(before or program.step or program.beats or run.hangs.still.begun)


def _why_left(run: Run, doubt: str) -> str:
    if run.settings.hang_restart.enabled is False:
        return "hang-restart is switched off"
    return doubt or "the job has made no progress yet that a restart could bring back"


def _step_reached(run: Run, step: int, first: bool, further: bool, now: Now) -> list[Decision]:
    """Record it. Training that begins anew is asked for its checkpoint, once in a job. first: of this attempt."""
    progress = run.history.progress
    anew = first and not progress.began_anew and progress.begins_anew(run.facts.step_key, step)
    come = f"the program began again at step {step}, and the attempt before had come to step {progress.last_step}"
    asked = [Say(f"{come}: does it load its checkpoint? (docs/reentrant.md)")] if anew and run.settings.tips else []
    return [run.note(rec.StepReached(now.unix, run.attempt.number, step, further)), *asked]


# --- Stalled and slow ranks, both by the collectives of the ranks: when all nodes are asked what their ranks do,
# and what follows from the answers


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

    def _wants_slurm(self, found: Culprit | None, now: Now) -> bool:
        """Could the ladder have an answer once Slurm reports the state of job and nodes?"""
        convicted = found is not None and found.level is Level.ERROR and found.blamed
        may_ask = Capability.ASK in self.run.facts.can and Timer.ASK not in self.run.timers
        return bool(convicted and may_ask and not self.run.heard_lately(now))

    def _said_of(self, finding: Culprit, what: str = "") -> list[Decision]:
        if not levels_from(self.run.settings.hang.c4d_level)[finding.level]:
            return []
        if finding.kind is CulpritKind.UNKNOWN and not finding.ranks:  # nobody can act on it; the history keeps it
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

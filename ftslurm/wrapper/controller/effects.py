"""Carries decisions out, one method a kind. Decides nothing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from ftslurm.errors import StateError
from ftslurm.launchers.launcher import Launcher, StepHandle
from ftslurm.model import decisions as do
from ftslurm.model.events import (
    DonorSubmitted,
    IterationRead,
    LoansEnded,
    NodeBorrowed,
    NodeChecked,
    NodeProbed,
    NodesReleased,
    RequeueEnded,
    SlurmAnswered,
    StepsListed,
)
from ftslurm.model.folds.summary import MAY_GO_ON
from ftslurm.model.messages import wire
from ftslurm.model.record import Finished, Record
from ftslurm.model.text import visible
from ftslurm.system.clock import Clock
from ftslurm.wrapper.controller.diagnosis import Diagnosis
from ftslurm.wrapper.controller.display import Display, wait_text
from ftslurm.wrapper.controller.signals import Signals
from ftslurm.wrapper.controller.sources import Sources
from ftslurm.wrapper.telling.notices import Silent
from ftslurm.wrapper.wire.channel import for_launch

if TYPE_CHECKING:
    from ftslurm.report.card import LastCard
    from ftslurm.wrapper.telling.cycles import Cycles

# The job's own clean-up, where no shorter wait was asked for.
CLEANUP_LIMIT_S = 600.0
# For the output of this scheduling to be copied: some MB, from and to a file system that may be slow.
KEEP_OUTPUT_S = 20.0
# For what the job's comment says to be taken by Slurm, before the job is given back.
SHOW_WAIT_S = 2.0
# For agents and their srun to end after the farewell; then they are ended.
AGENTS_END_WAIT_S = 2.0
# Before each line of ours among the ranks' own.
SPEAKER = "ftrun: "


class Scheduler(Protocol):
    """Who gave the allocation: Slurm, or the local pool."""

    def ask(self) -> SlurmAnswered:
        """How job and nodes stand. Never raises; may take as long as the client's time limit."""

    def probe(self, node: str, limit_s: float) -> NodeProbed:
        """By another way than our own connections: can the node run anything? Never raises."""

    def check(self, node: str, lender: int, limit_s: float) -> NodeChecked:
        """Is it fit for ranks? lender: the donor job that it belongs to, 0 for our own. Never raises."""

    def borrow(self, slot: int, exclude: Sequence[str], wait_s: float, submitted: Callable[[int], object]) -> NodeBorrowed:
        """One node more, by a donor job. submitted: is told its number at once. Never raises."""

    def show(self, text: str) -> None:
        """Where Slurm shows the job, if it may be. Never raises."""

    def end_loans(self, jobs: Sequence[int]) -> LoansEnded:
        """End these donor jobs, however long that takes, until `call_off`. Never raises."""

    def call_off(self) -> None:
        """End every donor job that is still there or awaited: nobody will use it. Never raises."""

    def steps(self) -> StepsListed:
        """Those of the job that hold its nodes. Never raises."""

    def release(self, nodes: Sequence[str]) -> NodesReleased:
        """Give nodes of the allocation back. Never raises."""

    def clean_up(self, nodes: Sequence[str], argv: Sequence[str], limit_s: float) -> str:
        """Run `argv` once on each node; gives what went wrong, empty for nothing. Never raises."""

    def requeue(self, decision: str, exclude: Sequence[str], start: do.Start, allow_first: bool) -> RequeueEnded:
        """Give the job back. Never raises."""


class Effects:
    """`carry_out` is the only way in."""

    def __init__(
        self, sources: Sources, launcher: Launcher, scheduler: Scheduler, signals: Signals, clock: Clock,
        channel: Callable[[], str], verbose: bool = False, err: TextIO | None = None,
        programs: Callable[[int], Mapping[int, tuple[str, ...]]] = lambda tasks: {},
        diagnosis: Diagnosis | None = None, left: Callable[[do.TellOthers], None] = lambda told: None,
        tail_bytes: int = 0, silence_s: float = 0.0, beat_limits: Mapping[str, Any] | None = None, inject: str = "",
        keep: Callable[[int, str, str], Any] = lambda attempt, node, text: None, past: Sequence[Record] = (),
        keep_output: Callable[[], None] = lambda: None, banner_streams: Mapping[str, str] | None = None,
        notices: Silent | None = None, notices_wait_s: float = 0.0,
        rank_logs: Callable[[int, tuple[int, int], int, int], dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        """rank_logs: of a rank, its slot and local rank, the size of the step and the cycle: files of its own, for its shim.
        past: what the ledger held when this ftrun began; what is written since it sees itself. notices: for the people who
        follow the job; notices_wait_s: for the last of them, when the job is over. at_end (to be set): is called then, with
        whether the job goes on elsewhere. cycles (to be set): writes them down."""
        self._sources = sources
        self._launcher = launcher
        self._scheduler = scheduler
        self._signals = signals
        self._clock = clock
        self._channel = channel
        self._verbose = verbose
        self._err = err or sys.stderr
        self._programs = programs
        self._diagnosis = diagnosis
        self._left = left
        self._keep = keep
        self._records = list(past)
        self._last_card: LastCard | None = None
        self._keep_output = keep_output
        self._banner_streams = banner_streams or {}
        self._rank_logs = rank_logs
        self._tail_bytes = tail_bytes
        self._silence_s = silence_s
        self._beat_limits = beat_limits or {}
        self._inject = inject
        self._display = Display(lambda text: scheduler.show(text))
        self._step: StepHandle | None = None
        self._agents: list[StepHandle] = []
        self._notices = notices or Silent()
        self._notices_wait_s = notices_wait_s
        self._goes_on = False
        self.at_end: Callable[[bool], None] = lambda goes_on: None
        self.cycles: Cycles | None = None

    @property
    def records(self) -> Sequence[Record]:
        return self._records

    def carry_out(self, decision: do.Decision) -> None:
        """Raises: FtslurmError where a step cannot even be started."""
        _METHODS[type(decision)](self, decision)

    # --- the step

    def _launch(self, decision: do.LaunchStep) -> None:
        channel = for_launch(self._channel(), self._sources.new_step())
        self._step = self._sources.step = self._launcher.launch(channel, decision.layout, decision.overlap, decision.shares)

    def _start(self, decision: do.StartRanks) -> None:
        programs = self._programs(len(self._sources.shims))
        size = len(self._sources.shims)
        for rank, peer in [item for item in self._sources.shims.items() if item[0] in decision.env]:
            argv = programs.get(rank)
            logs = self._rank_logs(rank, peer.place, size, decision.cycle) if self._rank_logs else None
            peer.send(
                wire.start_message(
                    decision.attempt,
                    decision.env[rank],
                    argv,
                    self._tail_bytes,
                    self._silence_s,
                    self._inject,
                    f"ftrun: {decision.banner}" if decision.banner else "",
                    self._banner_streams,
                    logs,
                )
            )

    def _stop(self, decision: do.StopRanks) -> None:
        message = wire.stop_message(decision.attempt, decision.grace_s, decision.kill_wait_s, decision.asked)
        self._to_shims(message, decision.ranks)

    def _signal(self, decision: do.SignalRanks) -> None:
        """Not by the launcher: srun ends a step by SIGKILL when it gets a SIGTERM (seen on 22.05)."""
        self._to_shims({"t": "signal", "number": decision.number}, decision.ranks)

    def _end_step(self, decision: do.EndStep) -> None:
        self._to_shims({"t": "end", "status": decision.status, "forget": decision.forget})
        self._sources.farewell()

    def _kill_step(self, _: do.KillStep) -> None:
        self._sources.farewell()
        if self._step is not None:
            self._step.kill()

    def _abandon_step(self, _: do.AbandonStep) -> None:
        if self._step is not None:
            self._step.abandon()

    def _to_shims(self, message: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
        for rank, peer in list(self._sources.shims.items()):
            if ranks is None or rank in ranks:
                peer.send(message)

    # --- life

    def _watch_ranks(self, d: do.WatchRanks) -> None:
        limits = dict(self._beat_limits)
        if d.limits:
            from ftslurm.model.settings.ft_config import with_calculated

            limits = with_calculated(limits, d.limits)
        for node, ranks in d.ranks.items():
            if node in self._sources.agents:
                self._sources.agents[node].send(
                    {
                        "t": "watch",
                        "ranks": [list(rank) for rank in ranks],
                        "quiet_s": d.quiet_s,
                        "step": d.steps.get(node, ""),
                        "limits": limits,
                        "stall_s": d.stall_s,
                    }
                )

    def _sample_use(self, d: do.SampleUse) -> None:
        self._to_agents({"t": "use", "window_s": d.window_s})

    def _take_evidence(self, d: do.TakeEvidence) -> None:
        self._to_agents({"t": "evidence", "limit_s": d.limit_s})

    def _ask_words(self, _: do.AskWords) -> None:
        self._to_shims({"t": "words"})

    def _compare_ranks(self, _: do.CompareRanks) -> None:
        self._to_agents({"t": "compare"})

    def _set_intervals(self, d: do.SetIntervals) -> None:
        self._to_shims({"t": "silence", "after_s": d.silence_s})
        self._to_agents({"t": "quiet", "after_s": d.quiet_s})

    def _to_agents(self, message: Mapping[str, Any]) -> None:
        for peer in list(self._sources.agents.values()):
            peer.send(message)

    def _keep_evidence(self, d: do.KeepEvidence) -> None:
        if d.text:
            try:
                self._keep(d.attempt, d.node, d.text)
            except StateError as error:
                self.say(str(error))

    # --- drills

    def _drill_ranks(self, d: do.DrillRanks) -> None:
        self._to_shims(wire.drill_message(d.what, d.status, d.signal, d.share), d.ranks)

    def _drill_device(self, d: do.DrillDevice) -> None:
        if d.node in self._sources.agents:
            report = {"device": d.device, "code": d.code, "severity": d.severity, "kind": d.kind, "heals": d.heals}
            self._sources.agents[d.node].send({"t": "drill", **report})

    def _answer_drill(self, d: do.AnswerDrill) -> None:
        peer = self._sources.askers.pop(d.asker, None)
        if peer is not None:
            peer.send({"t": "drilled", "ok": d.ok, "text": d.text})

    def _watch_checkpoints(self, d: do.WatchCheckpoints) -> None:
        self._sources.watch_checkpoints(d.patterns, d.settle_s)

    def _read_iteration(self, d: do.ReadIteration) -> None:
        from ftslurm.wrapper.controller.checkpoints import iteration_in  # rarely asked for

        self._sources.background(lambda: IterationRead(d.attempt, iteration_in(d.path)))

    # --- nodes and devices

    def _watch(self, decision: do.WatchNodes) -> None:
        if self._diagnosis is not None:
            self._diagnosis.prepare()  # the job has come up and there is time: what a failure will need is loaded beside it
        agents = self._launcher.watch(decision.nodes, self._channel(), decision.lent)
        self._agents.append(agents)
        self._sources.agents_come(decision.nodes, agents)

    def _dismiss_agents(self, decision: do.DismissAgents) -> None:
        self._sources.dismiss_agents(decision.nodes)

    def _look(self, _: do.LookAtDevices) -> None:
        for peer in list(self._sources.agents.values()):
            peer.send({"t": "look"})

    def _heal(self, decision: do.HealDevices) -> None:
        for node, devices in decision.devices.items():
            if node in self._sources.agents:
                self._sources.agents[node].send(
                    {
                        "t": "heal",
                        "devices": [[device, list(codes)] for device, codes in devices],
                        "may_reset": decision.may_reset,
                        "wait_s": decision.wait_s,
                        "reset_wait_s": decision.reset_wait_s,
                    }
                )

    # --- Slurm

    def _ask(self, _: do.AskSlurm) -> None:
        self._sources.background(self._scheduler.ask)

    def _probe(self, decision: do.ProbeNodes) -> None:
        for node in decision.nodes:
            self._sources.background(partial(self._scheduler.probe, node, decision.limit_s))

    def _check_node(self, d: do.CheckNode) -> None:
        self._sources.background(partial(self._scheduler.check, d.node, d.lender, d.limit_s))

    def _borrow(self, d: do.BorrowNode) -> None:
        def submitted(job: int) -> None:
            self._sources.put(DonorSubmitted(d.slot, job))

        self._sources.background(partial(self._scheduler.borrow, d.slot, d.exclude, d.wait_s, submitted))

    def _end_loans(self, d: do.EndLoans) -> None:
        """Beside the loop, which has beats to answer while slurmctld is away. Before a requeue, which needs those nodes, and
        before ftrun ends `call_off` is waited for."""
        self._sources.background(partial(self._scheduler.end_loans, d.jobs))

    def _list_steps(self, _: do.ListSteps) -> None:
        self._sources.background(self._scheduler.steps)

    def _release(self, d: do.ReleaseNodes) -> None:
        """After it a Slurm 22.05 without slurmdbd takes no change of the job, nor of its comment."""

        def release() -> NodesReleased:
            self._display.settle(SHOW_WAIT_S)
            return self._scheduler.release(d.nodes)

        self._sources.background(release)

    def _requeue(self, decision: do.Requeue) -> None:
        """Slurm's SIGTERM comes with the requeue itself; ignored from before, by us and what we start."""
        self._signals.ignore_end()
        self.end_agents()
        self._scheduler.call_off()
        self._sources.background(partial(self._give_back, decision))

    def _give_back(self, d: do.Requeue) -> RequeueEnded:
        self._display.settle(SHOW_WAIT_S)  # the requeue's SIGTERM would end it
        self._save_output()
        if d.clean_up is not None and (said := self._clean_up(d.clean_up)):
            self.say(said)
        return self._scheduler.requeue(d.decision, d.exclude, d.start, d.allow_first)

    def _clean_up(self, d: do.CleanUp) -> str:
        """What people should know of it. What is not waited for goes on until Slurm ends the job's processes."""
        said: list[str] = []
        clean = partial(self._scheduler.clean_up, d.nodes, d.argv, CLEANUP_LIMIT_S)
        work = threading.Thread(target=lambda: said.append(clean()), daemon=True)
        work.start()
        work.join(None if d.wait_s < 0 else d.wait_s)
        return said[0] if said else f"the clean-up has not ended after {d.wait_s:g} s; ftrun no longer waits for it"

    # --- what is behind a failure: inside RE2 (C++) a thread that an interpreter cuts off aborts the process

    def _diagnose(self, asked: do.Diagnose) -> None:
        if self._diagnosis is not None:
            self._sources.background_to_the_end(partial(self._diagnosis.diagnose, asked))

    def _advise(self, asked: do.Advise) -> None:
        if self._diagnosis is not None:
            self._sources.background_to_the_end(partial(self._diagnosis.advise, asked))

    # --- people

    def _tell_others(self, decision: do.TellOthers) -> None:
        try:
            self._left(decision)
        except StateError as error:
            self.say(f"{error}; later jobs will not know which nodes this job abandoned")

    def _save_output(self, _: do.KeepOutput | None = None) -> None:
        """A file system that hangs does not keep the job from being given back."""

        def save() -> None:
            try:
                self._keep_output()
            except StateError as error:
                self.say(f"{error}; the next start of the script may overwrite its output")

        work = threading.Thread(target=save, daemon=True)
        work.start()
        work.join(KEEP_OUTPUT_S)

    def _show_wait(self, d: do.ShowWait) -> None:
        self._display.show(wait_text(d))

    def _say(self, decision: do.Say) -> None:
        if self._verbose or not decision.quiet:
            self.say(decision.text)

    def _show_card(self, decision: do.ShowCard) -> None:
        from ftslurm.report.card import LastCard, lines

        self._last_card = self._last_card or LastCard()
        card = self._last_card.of(self._records)
        if card is not None and not card.rung:
            self._notices.hang(card)  # of a decision they have its record
        if card is not None and (self._verbose or not decision.quiet):
            self.say(*lines(card, self._width()))

    def _width(self) -> int | None:
        """Of the terminal, less what stands before each line; None for a file or a pipe."""
        try:
            return os.get_terminal_size(self._err.fileno()).columns - len(SPEAKER)
        except (OSError, ValueError):
            return None

    def say(self, *texts: str) -> None:
        """A line each on stderr, all at once; a reader that has gone away ends nothing."""
        try:
            print("\n".join(f"{SPEAKER}{visible(text)}" for text in texts), file=self._err, flush=True)
        except OSError:
            pass

    def _remember(self, decision: do.Remember) -> None:
        """The ledger has it already, if it takes anything; for the cards."""
        self._records.append(decision.record)
        self._notices.record(decision.record, self._records)
        if self.cycles is not None:
            self.cycles.record(decision.record, self._records)
        if isinstance(decision.record, Finished):
            self._goes_on = decision.record.what in MAY_GO_ON

    def _nothing(self, _: do.Decision) -> None:
        """Finish is the loop's."""

    # --- the end

    def end_agents(self) -> None:
        """Their connections close, they end, their srun ends; what takes longer is ended."""
        self._sources.dismiss_agents()
        wait_for_end(self._agents, self._clock)
        self._agents = []

    def close(self) -> None:
        self._sources.dismiss_agents()
        self._sources.server.close()
        self.end_agents()
        self._scheduler.call_off()
        if self._step is not None:
            self._step.abandon()
        # A job that goes on is not held up: what has not gone out by then its next ftrun sends.
        self._notices.end(0.0 if self._goes_on else self._notices_wait_s)
        if self.cycles is not None:
            self.cycles.end()
        self.at_end(self._goes_on)


def wait_for_end(handles: Sequence[StepHandle], clock: Clock) -> None:
    """Up to AGENTS_END_WAIT_S for all of them, then without asking."""
    deadline = clock.mono() + AGENTS_END_WAIT_S
    for handle in handles:
        if not handle.wait(max(0.0, deadline - clock.mono())):
            handle.kill()
            if not handle.wait(1.0):
                handle.abandon()


_METHODS: Mapping[type, Callable[[Effects, Any], None]] = {
    do.WatchRanks: Effects._watch_ranks,
    do.SampleUse: Effects._sample_use,
    do.TakeEvidence: Effects._take_evidence,
    do.AskWords: Effects._ask_words,
    do.CompareRanks: Effects._compare_ranks,
    do.SetIntervals: Effects._set_intervals,
    do.KeepEvidence: Effects._keep_evidence,
    do.DrillRanks: Effects._drill_ranks,
    do.DrillDevice: Effects._drill_device,
    do.AnswerDrill: Effects._answer_drill,
    do.WatchCheckpoints: Effects._watch_checkpoints,
    do.ReadIteration: Effects._read_iteration,
    do.TellOthers: Effects._tell_others,
    do.Remember: Effects._remember,
    do.ShowCard: Effects._show_card,
    do.Finish: Effects._nothing,
    do.LaunchStep: Effects._launch,
    do.WatchNodes: Effects._watch,
    do.StartRanks: Effects._start,
    do.StopRanks: Effects._stop,
    do.SignalRanks: Effects._signal,
    do.LookAtDevices: Effects._look,
    do.AskSlurm: Effects._ask,
    do.ListSteps: Effects._list_steps,
    do.ProbeNodes: Effects._probe,
    do.HealDevices: Effects._heal,
    do.EndStep: Effects._end_step,
    do.KillStep: Effects._kill_step,
    do.AbandonStep: Effects._abandon_step,
    do.CheckNode: Effects._check_node,
    do.BorrowNode: Effects._borrow,
    do.EndLoans: Effects._end_loans,
    do.ReleaseNodes: Effects._release,
    do.DismissAgents: Effects._dismiss_agents,
    do.Requeue: Effects._requeue,
    do.Diagnose: Effects._diagnose,
    do.Advise: Effects._advise,
    do.Say: Effects._say,
    do.ShowWait: Effects._show_wait,
    do.KeepOutput: Effects._save_output,
}

"""Carries decisions out, one method a kind. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ftslurm.errors import StateError
from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model.ports import Launcher, Scheduler, StepHandle
from ftslurm.model.values import Value, field
from ftslurm.system.clock import Clock
from ftslurm.system.meanwhile import Meanwhile
from ftslurm.wrapper.controller.diagnosis import Diagnosis
from ftslurm.wrapper.controller.orders import ORDERS, RankSetup
from ftslurm.wrapper.controller.people import Display, People, phase_text
from ftslurm.wrapper.controller.sources import SignalPipe, Sources

# The job's own clean-up, where no shorter wait was asked for.
CLEANUP_LIMIT_S = 600.0
# For the output of this scheduling to be copied: some MB, from and to a file system that may be slow.
KEEP_OUTPUT_S = 20.0
# For what the job's comment says to be taken by Slurm, before the job is given back.
SHOW_WAIT_S = 2.0
# For agents and their srun to end after the farewell; then they are ended.
AGENTS_END_WAIT_S = 2.0


class Effects(Value, frozen=False):
    """`carry_out` is the only way in."""

    sources: Sources
    launcher: Launcher
    scheduler: Scheduler
    signals: SignalPipe
    clock: Clock
    channel: Callable[[int], str]  # for the shims of a launch of the step, counted from 1, or for agents (0)
    diagnosis: Diagnosis
    display: Display
    people: People = field(default_factory=People)
    setup: RankSetup = field(default_factory=RankSetup)
    left: Callable[[do.TellOthers], None] = lambda told: None
    keep: Callable[[int, str, str], object] = lambda attempt, node, text: None
    keep_output: Callable[[], None] = lambda: None
    _step: StepHandle | None = None
    _agents: list[StepHandle] = field(default_factory=list)
    _silently: bool = False

    def carry_out(self, decision: do.Decision) -> None:
        """Raises: FtslurmError where a step cannot even be started."""
        if order := ORDERS.get(type(decision)):
            order(self.sources.callers, self.setup, decision)
        else:
            _METHODS[type(decision)](self, decision)

    # --- the step

    def _launch(self, decision: do.LaunchStep) -> None:
        channel = self.channel(self.sources.new_step())
        self._step = self.launcher.launch(channel, decision.layout, decision.overlap, decision.shares)
        self.sources.callers.launched(self._step)
        self.sources.watch_words()

    def _kill_step(self, _: do.KillStep) -> None:
        self.sources.callers.farewell()
        if self._step is not None:
            self._step.kill()

    def _abandon_step(self, decision: do.AbandonStep) -> None:
        self._silently |= decision.silently
        if self._step is not None:
            self._step.abandon(self._silently)

    def _keep_evidence(self, d: do.KeepEvidence) -> None:
        if d.text:
            try:
                self.keep(d.attempt, d.node, d.text)
            except StateError as error:
                self.people.say(str(error))

    def _read_iteration(self, d: do.ReadIteration) -> None:
        from ftslurm.wrapper.controller.checkpoints import iteration_in  # rarely asked for

        self.sources.background(lambda: ev.IterationRead(d.attempt, iteration_in(d.path)))

    # --- nodes and devices

    def _watch(self, decision: do.WatchNodes) -> None:
        self.diagnosis.prepare(decision.prepare_in_s)
        self.people.prepare()
        agents = self.launcher.watch(decision.nodes, self.channel(0), decision.lent)
        self._agents.append(agents)
        self.sources.callers.agents_come(decision.nodes, agents)

    # --- Slurm

    def _beside(self, work: Callable[..., ev.Event], *given: Any) -> None:
        self.sources.background(partial(work, *given))

    def _probe(self, decision: do.ProbeNodes) -> None:
        for node in decision.nodes:
            self._beside(self.scheduler.probe, node, decision.limit_s)

    def _borrow(self, d: do.BorrowNode) -> None:
        def submitted(job: int, boots: str) -> None:
            self.sources.put(ev.DonorSubmitted(d.slot, job, boots))

        self._beside(self.scheduler.borrow, d.slot, d.exclude, d.wait_s, submitted, d.near)

    def _release(self, d: do.ReleaseNodes) -> None:
        """After it a Slurm 22.05 without slurmdbd takes no change of the job, nor of its comment."""

        def release() -> ev.NodesReleased:
            self.display.settle(SHOW_WAIT_S)
            return self.scheduler.release(d.nodes)

        self.sources.background(release)

    def _requeue(self, decision: do.Requeue) -> None:
        """Slurm's SIGTERM comes with the requeue itself; ignored from before, by us and what we start."""
        self.signals.ignore_end()
        self.end_agents()
        self.scheduler.call_off()
        self._beside(self._give_back, decision)

    def _give_back(self, d: do.Requeue) -> ev.RequeueEnded:
        self.display.settle(SHOW_WAIT_S)  # the requeue's SIGTERM would end it
        self._save_output()
        if d.clean_up is not None and (said := self._clean_up(d.clean_up)):
            self.people.say(said)
        return self.scheduler.requeue(d.exclude, d.start, d.allow_first)

    def _clean_up(self, d: do.CleanUp) -> str:
        """What people should know of it. What is not waited for goes on until Slurm ends the job's processes."""
        work = Meanwhile(partial(self.scheduler.clean_up, d.nodes, d.argv, CLEANUP_LIMIT_S))
        if work.has_ended(None if d.wait_s < 0 else d.wait_s):
            return work.answer()
        return f"the clean-up has not ended after {d.wait_s:g} s; ftrun no longer waits for it"

    # --- people

    def _tell_others(self, decision: do.TellOthers) -> None:
        try:
            self.left(decision)
        except StateError as error:
            self.people.say(f"{error}; later jobs will not know which nodes this job excluded")

    def _save_output(self, _: do.KeepOutput | None = None) -> None:
        """A file system that hangs does not keep the job from being given back."""

        def save() -> None:
            try:
                self.keep_output()
            except StateError as error:
                self.people.say(f"{error}; the next start of the script may overwrite its output")

        Meanwhile(save).has_ended(KEEP_OUTPUT_S)

    # --- the end

    def end_agents(self) -> None:
        """Their connections close, they end, their srun ends; what takes longer is ended."""
        self.sources.callers.dismiss_agents()
        wait_for_end(self._agents, self.clock, self._silently)
        self._agents = []

    def close(self) -> None:
        self.diagnosis.close()
        self.display.settle(SHOW_WAIT_S)
        self.sources.callers.dismiss_agents()
        self.sources.server.close()
        self.end_agents()
        self.scheduler.call_off()
        if self._step is not None:
            self._step.abandon(self._silently)
        self.people.end()


def wait_for_end(handles: Sequence[StepHandle], clock: Clock, silently: bool = False) -> None:
    """Up to AGENTS_END_WAIT_S for all of them, then without asking. silently: Slurm hears nothing of it."""
    deadline = clock.mono() + AGENTS_END_WAIT_S
    for handle in handles:
        if not handle.wait(max(0.0, deadline - clock.mono())):
            if not silently:
                handle.kill()
            if silently or not handle.wait(1.0):
                handle.abandon(silently)


_METHODS: Mapping[type, Callable[[Effects, Any], None]] = {
    do.KeepEvidence: Effects._keep_evidence,
    do.WatchCheckpoints: lambda effects, d: effects.sources.watch_checkpoints(d.patterns, d.settle_s),
    do.ReadIteration: Effects._read_iteration,
    do.TellOthers: Effects._tell_others,
    do.Remember: lambda effects, told: effects.people.remember(told),
    do.ShowCard: lambda effects, told: effects.people.show_card(told),
    do.Finish: lambda effects, _: None,  # it is the loop's
    do.LaunchStep: Effects._launch,
    do.WatchNodes: Effects._watch,
    do.AskSlurm: lambda effects, d: effects._beside(effects.scheduler.ask, d.without),
    do.ListSteps: lambda effects, _: effects._beside(effects.scheduler.steps),
    do.ProbeNodes: Effects._probe,
    do.KillStep: Effects._kill_step,
    do.AbandonStep: Effects._abandon_step,
    do.CheckNode: lambda effects, d: effects._beside(effects.scheduler.check, d.node, d.lender, d.limit_s),
    do.BorrowNode: Effects._borrow,
    # Beside the loop, which has beats to answer while slurmctld is away. Before a requeue, which needs those nodes, and before
    # ftrun ends `call_off` is waited for.
    do.EndLoans: lambda effects, d: effects._beside(effects.scheduler.end_loans, d.jobs),
    do.ReleaseNodes: Effects._release,
    do.DismissAgents: lambda effects, d: effects.sources.callers.dismiss_agents(d.nodes),
    do.Requeue: Effects._requeue,
    # What is behind a failure: inside RE2 (C++) a thread that an interpreter cuts off aborts the process.
    do.Diagnose: lambda effects, asked: effects.sources.background_to_the_end(partial(effects.diagnosis.diagnose, asked)),
    do.Advise: lambda effects, asked: effects.sources.background_to_the_end(partial(effects.diagnosis.advise, asked)),
    do.Say: lambda effects, told: effects.people.tell(told),
    do.ShowPhase: lambda effects, d: effects.display.show(phase_text(d)),
    do.KeepOutput: Effects._save_output,
}

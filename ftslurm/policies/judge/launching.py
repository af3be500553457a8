"""From the first event until ranks run: the records of the run, the arrival of tasks, and a step that does not start."""

from __future__ import annotations

from collections.abc import Collection

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import CheckNode, Decision, ListSteps, Say
from ftslurm.model.events import Now
from ftslurm.model.exits import signal_name, undelivered
from ftslurm.model.job import Task
from ftslurm.model.nodes import fold_nodes as fold_nodes
from ftslurm.model.rungs import Budget, Capability
from ftslurm.model.settings.tree import Settings, as_policy, most_crash_restarts
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.judge.ending import Ending
from ftslurm.policies.judge.outside import Meaning, read_at_begin
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.replacing import Replacing
from ftslurm.policies.judge.starting import Starting
from ftslurm.policies.judge.state import ABSENT_MOST, AT_A_TIME, MARGIN_S, SIGINT, SIGTERM, Run
from ftslurm.policies.judge.step import AGENT_COMES_S, LAUNCHES_AGAIN
from ftslurm.policies.judge.then import Afterwards, Answer, ThenAfterWarning, ThenFinish, ThenLaunch, ThenLauncherStays
from ftslurm.policies.ladder import Cause
from ftslurm.policies.lease import longest_s
from ftslurm.policies.situation import Trouble

# --- Ranks of an earlier ftrun that may still run: nothing starts before their leases are over, or Slurm forgets their steps

# Seconds between two looks at Slurm's list of steps, while steps of a killed ftrun end.
LOOK_AGAIN_S = 1.0


def beside(steps: Collection[str]) -> Say:
    held = ", ".join(sorted(steps))
    return Say(f"Slurm still holds the nodes for {held}, which has ended; launching beside it (--overlap)")


class EarlierSteps:
    def __init__(self, run: Run, replacing: Replacing) -> None:
        self.run, self.replacing = run, replacing

    def await_others(self, now: Now) -> list[Decision]:
        """Wait for ranks of an earlier ftrun: Slurm requeued the job away from a node that could not confirm that its ranks have
        ended, or the ftrun before this one was killed. With --overlap or --exact, srun would start beside them.
        """
        self.run.enter(Phase.LAUNCHING)
        self.run.timers.only({Timer.OTHERS: now.mono + longest_s(self.run.settings)})
        # The step of a killed ftrun ends with it, so Slurm's first answer is most often the last.
        return self._look(now) if self._slurm_knows_of_others else self._tell(now)

    def _tell(self, now: Now) -> list[Decision]:
        wait_s = longest_s(self.run.settings)
        nodes_of: dict[str, set[str]] = {}
        for node, why in self.run.facts.earlier.unproven.items():
            nodes_of.setdefault(why, set()).add(node)
        where = "; ".join(sorted(f"{fold_nodes(nodes)}: {why}" for why, nodes in nodes_of.items()))
        sooner = ", or for Slurm to list no step of theirs" if self._slurm_knows_of_others else ""
        said = f"waiting up to {wait_s:g} s for the leases of an earlier ftrun's ranks to expire{sooner} ({where})"
        nodes = fold_nodes(self.run.facts.earlier.unproven)
        return self.run.wait_for(f"the leases of ranks on {nodes}", wait_s, now, said)

    @property
    def _slurm_knows_of_others(self) -> bool:
        """Does slurmctld know of the other steps? It forgets a step when each of its nodes has confirmed the end, or is down. It
        does not tell this for the part in a donor job.
        """
        f = self.run.facts
        lists = {Capability.ASK, Capability.STEPS} <= f.can
        return (
            lists
            and bool(f.earlier.steps_over)
            and f.earlier.unproven.keys() == f.earlier.killed
            and f.earlier.killed <= set(f.nodes)
        )

    def look_for_others(self, now: Now) -> list[Decision]:
        """Look once more, and say why."""
        return [*self._tell(now), *self._look(now)] if Timer.OTHERS in self.run.timers else []

    def _look(self, now: Now) -> list[Decision]:
        self.run.timers.set(Timer.LOOK_FOR_OTHERS, now.mono + LOOK_AGAIN_S)
        return [ListSteps()]

    def on_steps_listed(self, event: ev.StepsListed, now: Now) -> list[Decision]:
        """The listed steps have arrived: if none is left, a node that is down could still not confirm anything."""
        if not self._slurm_knows_of_others or event.steps is None:
            return []
        self.run.launch.others_listed(event.steps if event.steps <= self.run.facts.earlier.steps_over else None)
        if event.steps & self.run.facts.earlier.steps_over or Timer.ASK in self.run.timers:
            return []
        self.run.launch.no_others_listed()
        return [self.run.ask_slurm(now)]

    def on_slurm_answered(self, event: ev.SlurmAnswered, now: Now) -> Answer:
        self.run.take_answer(event, now)
        unlisted = self.run.launch.others_unlisted
        self.run.launch.no_others_listed(False)
        if (
            Timer.OTHERS not in self.run.timers
            or not unlisted
            or event.error
            or self.run.facts.earlier.killed & dict(event.bad_nodes).keys()
        ):
            return []
        self.run.timers.stop(Timer.OTHERS)
        return self.replacing.first_launch(now)

    def on_leases_over(self, now: Now) -> Answer:
        """Every lease has run out. A step that Slurm still lists is on a node that could not confirm its end."""
        if not self.run.launch.others_hold:
            return self.replacing.first_launch(now)
        self.run.launch.beside()
        return [beside(self.run.launch.others_hold), *self.replacing.first_launch(now)]


# --- the launch

LONGEST_LOOK_S = 600.0
# How long the last srun of several waits for its step before the job is requeued; a busy slurmctld grants one within seconds.
NEVER_GRANTED_S = 180.0


class Launching:
    def __init__(self, run: Run, ending: Ending, starting: Starting, replacing: Replacing, earlier_steps: EarlierSteps) -> None:
        self.run, self.ending, self.starting, self.replacing, self.earlier_steps = run, ending, starting, replacing, earlier_steps

    def on_begun(self, _: ev.Begun, now: Now) -> Answer:
        f, me, st = self.run.facts, self.run.facts.process, self.run.settings
        self.run.launch.begin_run(now.mono, f.earlier.beside)
        began = rec.RunBegan(
            now.unix, f.run, f.job, f.cluster, f.schedule, f.step_key, f.command, fold_nodes(f.nodes), f.start_time,
            f.name, f.launcher, me.version, me.host, me.pid, budgets(st), f.number, st.requeue.cleanup_grace_s,
            f.batch_node, me.pid_space, len({*f.nodes, *f.granted}), me.started, f.submit_time, f.output.log, f.output.labels,
            as_policy(st),
        )  # fmt: skip
        last = self.run.history.last_run
        forgotten = self.run.history.slots.lent.values() if last is not None and f.schedule > last.schedule else ()
        loans = self.run.loans.end([*forgotten, *f.earlier.loans_left])  # the ftrun that borrowed them could not end them
        known = {node: why for node, why in f.remembered.items() if node in f.nodes}
        warned = [Say(f"node {node} is suspect: {why} (`ftslurm nodes`)") for node, why in sorted(known.items())]
        before = [self.run.note(record) for record in f.earlier.cut_short]
        output = [self.run.note(replace(f.output.files, at=now.unix, run=f.run))] if f.output.files is not None else []
        begun: list[Decision] = [
            *before,
            self.run.note(began, vital=True),
            *([self.run.note(rec.SettingsFrom(now.unix, f.run, f.places))] if f.places else []),
            *([self.run.note(rec.CallRead(now.unix, f.run, me.call.reading.value, me.call.words))] if me.call.why else []),
            *output,
            *self.run.told.show_start(self.starting.next_number()),
            *warned,
            *read_at_begin(self.run.settings.progress, self.run.history, self.run.facts),
        ]
        return [
            *loans,
            *begun,
            *(self.earlier_steps.await_others(now) if f.earlier.unproven else self.replacing.first_launch(now)),
        ]

    def on_task_arrived(self, event: ev.TaskArrived, now: Now) -> Answer:
        task = self._in_its_slot(event.task)
        self.run.arrive(task)
        self.run.launch.arrive(task.node, event.step, first=task.rank == 0)
        if len(self.run.tasks) < event.expected:
            return self._give_up_ended(now) or self._await_stragglers(now)
        if astray := self._astray():
            return self._give_up_places(astray, now)
        if self.run.places.layout is not None:
            self.run.places.choose(
                replace(self.run.places.layout, slots=tuple(self.run.tasks[rank].slot for rank in sorted(self.run.tasks)))
            )
        return self.starting.start(now)

    def on_rank_claimed_twice(self, event: ev.RankClaimedTwice, now: Now) -> Answer:
        """The step would be waited for without end. Seen on 22.05, where runc gets the batch script's environment."""
        what = f"two tasks say that they are rank {event.rank}, as Slurm has told them (22.05 does, with --container)"
        return self._give_up_places(what, now)

    def _in_its_slot(self, task: Task) -> Task:
        """The task with its slot: srun numbers the nodes of a step in the cluster's order, whatever their slots."""
        if self.run.places.layout is None or task.node not in self.run.places.layout.nodes:
            return task
        return replace(task, slot=self.run.places.layout.nodes.index(task.node))

    def _astray(self) -> str:
        """The tasks that are not on their intended node; empty if none."""
        if self.run.places.layout is None:
            return ""
        for rank, task in sorted(self.run.tasks.items()):
            meant = self.run.places.layout.node_of(rank) if rank < len(self.run.places.layout.slots) else ""
            if task.node not in self.run.places.layout.nodes or (meant and meant != task.node):
                return f"rank {rank} was placed on {task.node} instead of {meant or fold_nodes(self.run.places.layout.nodes)}"
        return ""

    def _give_up_places(self, what: str, now: Now) -> Answer:
        """Tasks are on wrong nodes; nothing has been started yet."""
        attempt = self.run.new_attempt()
        attempt.none_begun()
        attempt.search.fail(what)
        return self._cannot_start(what, now)

    # --- a node that dies while the step starts: srun waits for it, two minutes and more

    def look_for_nodes(self, now: Now) -> list[Decision]:
        """Probe the nodes that have not called; a live node may take its time. Agents start meanwhile: only they would notice
        that the batch node has died.
        """
        self.run.timers.set(
            Timer.SLOW_LAUNCH, now.mono + self.run.launch.look_less(self.run.settings.nodes.silence_s, LONGEST_LOOK_S)
        )
        came = {task.node for task in self.run.tasks.values()}
        probed = self.run.probe([node for node in self._planned() if node not in came][:AT_A_TIME], now)
        nobody_came = Capability.STEPS in self.run.facts.can and not self.run.tasks
        told = self.run.wait_for(self._who_comes(came), 0.0, now)
        return [
            *probed,
            *told,
            *self.run.watch(now, self._planned()),
            *([ListSteps()] if nobody_came else []),
        ]

    def _who_comes(self, came: Collection[str]) -> str:
        missing = [node for node in self._planned() if node not in came]
        return f"the step to come up on {fold_nodes(missing)}" if missing and came else "the step to come up"

    def on_steps_listed(self, event: ev.StepsListed, now: Now) -> Answer:
        """The listed steps have arrived: srun waits until slurmctld reports that a conflicting step has ended, however long that
        takes.
        """
        if Timer.OTHERS in self.run.timers:
            return self.earlier_steps.on_steps_listed(event, now)
        if event.steps is None or self.run.tasks:
            return []
        if not event.steps or self.run.launch.overlap:  # our step may run beside others
            return self._ask_for_a_step_again(now)
        theirs = event.steps - self.run.launch.own  # our own steps had all ended before this launch
        leases_over = now.mono - self.run.launch.run_began_at >= longest_s(self.run.settings)
        if not theirs <= self.run.facts.earlier.steps_over or (theirs and not leases_over):
            return []  # ftrun waits for another's step, as srun does
        self.run.launch.beside()
        return [beside(event.steps), *self.ending.kill_step(Afterwards(ThenLaunch(), ThenLauncherStays()), now)]

    def _ask_for_a_step_again(self, now: Now) -> Answer:
        """Launch again: no step blocks the nodes, but ours has not started. A slurmctld that had just returned refused it, and
        srun asks again only when a step ends (on 22.05 a second srun got its step at once).
        """
        if self.run.launch.in_vain >= LAUNCHES_AGAIN:
            return self._give_up_grant(now)
        self.run.launch.again()
        said = Say("srun waits although no other step holds the nodes; starting it again")
        return [said, *self.ending.kill_step(Afterwards(ThenLaunch(), ThenLauncherStays()), now)]

    def _give_up_grant(self, now: Now) -> Answer:
        """Give up a step that Slurm never starts, where a requeue can help; elsewhere wait as srun does. Seen on 22.05: a backup
        slurmctld that took over from a killed one while the job was cleaned up."""
        waited_s = now.mono - self.run.launch.asked_at
        if Capability.REQUEUE not in self.run.facts.can or waited_s < NEVER_GRANTED_S:
            return []
        what = f"Slurm has not started the step for {waited_s:.0f} s, although no step stands in its way"
        self.run.new_attempt().cannot_stay(what)
        return [Trouble(Cause.LOST, what, 1)]

    def give_up_launcher(self, now: Now) -> Answer:
        """The launcher did not end: nothing may be launched beside it."""
        what = "srun waits for nodes, and could not be ended"
        self.run.new_attempt().step_end.cannot_end(what)
        return self._cannot_start(what, now)

    def _cannot_start(self, what: str, now: Now) -> Answer:
        """The step does not start here. A command that has run before may run elsewhere."""
        self.run.attempt.cannot_stay(what)
        return [Trouble(Cause.LOST if self.run.attempt.number else Cause.LAUNCH, what, 1)]

    # --- a live node on which no task starts

    def _await_stragglers(self, now: Now) -> list[Decision]:
        self.run.launch.look_at_stragglers(())
        if self.run.settings.nodes.straggler_wait_s and Capability.ASK in self.run.facts.can:
            self.run.timers.set(Timer.STRAGGLERS, now.mono + self.run.settings.nodes.straggler_wait_s)
        return []

    def on_stragglers_overdue(self, now: Now) -> Answer:
        """srun continues with the tasks that run. Check the nodes where tasks are missing."""
        came = {task.node for task in self.run.tasks.values()}
        self.run.launch.look_at_stragglers([node for node in self._planned() if node not in came][:AT_A_TIME])
        stragglers = self.run.launch.stragglers
        if not stragglers:
            return self.give_up_stragglers(now)
        self.run.timers.set(Timer.STRAGGLERS_KNOWN, now.mono + self.run.settings.nodes.check_timeout_s + MARGIN_S + AGENT_COMES_S)
        lent = self.run.places.lent
        said = Say(f"no task of the step has come up on {fold_nodes(stragglers)}; checking it")
        return [
            said,
            *(CheckNode(node, lent.get(node, 0), self.run.settings.nodes.check_timeout_s) for node in sorted(stragglers)),
        ]

    def on_node_checked(self, event: ev.NodeChecked, now: Now) -> Answer:
        """The check of such a node: a node that cannot run our check cannot run a rank either, so it counts as bad."""
        if event.node not in self.run.launch.stragglers:
            return self.replacing.on_spare_checked(event, now)
        self.run.launch.seen(event.node, "" if event.good is True else event.why or "it could not be checked")
        return [] if self.run.launch.stragglers else self.give_up_stragglers(now)

    def on_tasks_ended(self, event: ev.TasksEnded, now: Now) -> Answer:
        """Before they called: a container did not start there. The contrast is waited for: other nodes may fare no better."""
        came = {task.node for task in self.run.tasks.values()}
        self.run.launch.tasks_ended([node for node in event.nodes if node not in came], event.why)
        return self._give_up_ended(now)

    def _give_up_ended(self, now: Now) -> Answer:
        """Where all nodes but those have come up. Where none has, srun ends."""
        if not (ended := self.run.launch.ended):
            return []
        came = {task.node for task in self.run.tasks.values()}
        failed = {node: self._ended_early(node) for node in self._planned() if node not in came and node in ended}
        if not (came and failed) or not came | failed.keys() >= {*self._planned()}:
            return []
        what = f"the tasks on {fold_nodes(failed)} ended before the program began: {next(iter(failed.values()))}"
        return self._give_up_nodes(what, failed, now)

    def _ended_early(self, node: str) -> str:
        return self.run.launch.ended[node] or "srun does not say why"

    def give_up_stragglers(self, now: Now) -> Answer:
        came = {task.node for task in self.run.tasks.values()}
        missing = [node for node in self._planned() if node not in came]
        where = f" on {fold_nodes(missing)}" if missing else ""
        what = f"no task of the step came up{where} within {self.run.settings.nodes.straggler_wait_s:g} s of the others"
        against = {node: f"no task came up there, and {why}" for node, why in self.run.launch.unfit.items() if node in missing}
        against |= {node: self._ended_early(node) for node in missing if node in self.run.launch.ended}
        return self._give_up_nodes(what, against, now)

    def _planned(self) -> tuple[str, ...]:
        return self.run.places.planned(self.run.facts)

    def _give_up_nodes(self, what: str, against: dict[str, str], now: Now) -> Answer:
        attempt = self.run.new_attempt()
        attempt.none_begun()
        attempt.hang.blamed = against
        attempt.cannot_stay(what)
        return [Trouble(Cause.LOST, what, 1)]

    def on_node_probed(self, event: ev.NodeProbed, now: Now) -> Answer:
        if self.run.fence.answer(event.node):
            self.run.timers.stop(Timer.PROBE)
        came = event.node in {task.node for task in self.run.tasks.values()}
        if event.alive is not False or came or event.node not in self._planned():  # the probe began before this launch
            self.run.launch.is_there(event.node)
            return []
        if self.run.launch.is_absent(event.node) < ABSENT_MOST:
            return []
        self.run.new_attempt().nodes.lose(event.node, event.what)
        what = f"no task of the step came up on {event.node}, and {event.what}"
        return [Trouble(Cause.LOST, what, 1)]

    def launch_again(self, now: Now) -> list[Decision]:
        return self.starting.launch_step(now)

    def on_step_ended(self, event: ev.StepEnded, now: Now) -> Answer:
        """srun gave up before all tasks were there, and has printed why. A node may be the reason."""
        self.run.new_attempt()
        why = next(filter(None, self.run.launch.ended.values()), "")
        what = f"the step did not come up: {why or f'its launcher {event.status}'}"
        self.run.attempt.lose_step(what)
        self.run.launch.fail(undelivered(event.status) if Capability.ASK in self.run.facts.can else "")
        cause = Cause.LOST if self.run.attempt.number or self.run.launch.undelivered else Cause.LAUNCH
        return [Trouble(cause, what, event.status.shell or 1)]

    def on_part_ended(self, event: ev.PartEnded, now: Now) -> Answer:
        """The donor job has ended, or its node cannot run a step; the other part would wait for these ranks forever."""
        self.run.new_attempt()
        ranks = ", ".join(map(str, event.ranks))
        what = f"the step did not come up: the launcher of rank{'s' if len(event.ranks) > 1 else ''} {ranks} ended"
        return self._cannot_start(what, now)

    def on_shim_lost(self, event: ev.ShimLost, now: Now) -> Answer:
        """A shim connected and closed before the start: the step or its node is going down. A shim that never connected is of the
        previous step.
        """
        if event.rank not in self.run.tasks:
            return []
        self.run.new_attempt()
        self.run.attempt.lose(event.rank, event.why)
        what = f"the shim of rank {event.rank} was lost before the start: {event.why}"
        return [Trouble(Cause.LOST, what, 1)]

    def on_signal(self, event: ev.SignalSeen, now: Now) -> Answer:
        """A signal before the ranks start. Before the first start ftrun's own signal ends the job. Later, or where a warning is
        to requeue the job, it may be a warning (slurmctld is up to a minute early with those of --signal), which is passed on
        to ranks that start in time.
        """
        own_term, requeues = event.rank is None and event.number == SIGTERM, self.run.signal.asks_for_requeue(event.number)
        ends = own_term and not (self.run.attempt.number or requeues)
        if not (event.rank is None and event.number == SIGINT) and not ends:
            return self._keep_warning(event, own_term or requeues, now)
        what, status = f"ended by {signal_name(event.number)} while the step was starting", 128 + event.number
        if self.run.timers.any_of(Timer.LAUNCH_AGAIN, Timer.OTHERS):  # no launcher runs
            return [ThenFinish(what, status)]
        return self.ending.kill_step(Afterwards(ThenFinish(what, status)), now)

    def _keep_warning(self, event: ev.SignalSeen, ends: bool, now: Now) -> list[Decision]:
        """Remember a warning for ranks to come. ends: seconds until the job ends if they do not come in time."""
        if not self.run.signal.announces(event.number):
            return []
        self.run.signal.keep(event)
        if not ends or Timer.LAUNCH in self.run.timers:
            return []
        self.run.signal.take(event.number, now.mono)
        self.run.timers.set(Timer.LAUNCH, now.mono + self.run.settings.warning.grace_s)
        return [self.run.ask_slurm(now)] if Capability.ASK in self.run.facts.can else []

    def on_launch_overdue(self, now: Now) -> list[Decision]:
        """A warning came, and the ranks that should hear it did not start in time."""
        self.run.signal.means(Meaning.WARNING)
        what = f"the step did not come up after {signal_name(self.run.signal.number)}"
        trouble = Trouble(Cause.WARNING, what, 128 + self.run.signal.number)
        return self.ending.kill_step(Afterwards(ThenAfterWarning(trouble)), now)


def budgets(settings: Settings) -> dict[str, int]:
    """Budget name -> limit; the names are those of `Decided.cost`. The budget of all restarts exists only if they are counted
    together.
    """
    limits = {
        Budget.MAX_RESTARTS: settings.max_restarts,
        Budget.CRASH_RESTARTS: most_crash_restarts(settings),
        Budget.NODE_REPLACEMENTS: settings.node_replacement.budget,
    }
    together = {Budget.JOB_RESTARTS: settings.max_job_restarts} if settings.max_job_restarts >= 0 else {}
    return {budget.value: limit for budget, limit in (together | limits).items()}

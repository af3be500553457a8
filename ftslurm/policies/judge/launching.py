"""From the first event until ranks run: the records of the run, the arrival of tasks, and a step that does not start."""

from __future__ import annotations

from collections.abc import Collection

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import CheckNode, Decision, ListSteps, Say
from ftslurm.model.events import Now
from ftslurm.model.exits import signal_name, undelivered
from ftslurm.model.job import Task
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.rungs import Budget, Capability
from ftslurm.model.settings.tree import Settings, as_policy, most_crash_restarts
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.judge import ending, replacing, starting
from ftslurm.policies.judge.outside import Meaning, read_at_begin
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import ABSENT_MOST, AT_A_TIME, MARGIN_S, SIGINT, SIGTERM, Run
from ftslurm.policies.judge.step import AGENT_COMES_S, LAUNCHES_AGAIN
from ftslurm.policies.judge.then import Answer, ThenAfterWarning, ThenFinish, ThenLaunch
from ftslurm.policies.ladder import Cause
from ftslurm.policies.lease import longest_s
from ftslurm.policies.situation import Trouble

# --- Ranks of an earlier ftrun that may still run: nothing starts before their leases are over, or Slurm forgets their steps

# Seconds between two looks at Slurm's list of steps, while steps of a killed ftrun end.
LOOK_AGAIN_S = 1.0


def say_beside(steps: Collection[str]) -> Say:
    held = ", ".join(sorted(steps))
    return Say(f"Slurm still holds the nodes for {held}, which has ended; launching beside it (--overlap)")


def await_others(run: Run, now: Now) -> list[Decision]:
    """Wait for ranks of an earlier ftrun: Slurm requeued the job away from a node that could not confirm that its ranks have
    ended, or the ftrun before this one was killed. With --overlap or --exact, srun would start beside them.
    """
    run.enter(Phase.LAUNCHING)
    run.timers.only({Timer.OTHERS: now.mono + longest_s(run.settings)})
    # The step of a killed ftrun ends with it, so Slurm's first answer is most often the last.
    return _look(run, now) if _slurm_knows_of_others(run) else _tell(run, now)


def _tell(run: Run, now: Now) -> list[Decision]:
    wait_s = longest_s(run.settings)
    nodes_of: dict[str, set[str]] = {}
    for node, why in run.facts.earlier.unproven.items():
        nodes_of.setdefault(why, set()).add(node)
    where = "; ".join(sorted(f"{fold_nodes(nodes)}: {why}" for why, nodes in nodes_of.items()))
    sooner = ", or for Slurm to list no step of theirs" if _slurm_knows_of_others(run) else ""
    said = f"waiting up to {wait_s:g} s for the leases of an earlier ftrun's ranks to expire{sooner} ({where})"
    nodes = fold_nodes(run.facts.earlier.unproven)
    return run.wait_for(f"the leases of ranks on {nodes}", wait_s, now, said)


def _slurm_knows_of_others(run: Run) -> bool:
    """Does slurmctld know of the other steps? It forgets a step when each of its nodes has confirmed the end, or is down. It
    does not tell this for the part in a donor job.
    """
    f = run.facts
    lists = {Capability.ASK, Capability.STEPS} <= f.can
    return (
        lists
        and bool(f.earlier.steps_over)
        and f.earlier.unproven.keys() == f.earlier.killed
        and f.earlier.killed <= set(f.nodes)
    )


def look_for_others(run: Run, now: Now) -> list[Decision]:
    """Look once more, and say why."""
    return [*_tell(run, now), *_look(run, now)] if Timer.OTHERS in run.timers else []


def _look(run: Run, now: Now) -> list[Decision]:
    run.timers.set(Timer.LOOK_FOR_OTHERS, now.mono + LOOK_AGAIN_S)
    return [ListSteps()]


def on_earlier_steps_listed(run: Run, event: ev.StepsListed, now: Now) -> list[Decision]:
    """The listed steps have arrived: if none is left, a node that is down could still not confirm anything."""
    if not _slurm_knows_of_others(run) or event.steps is None:
        return []
    theirs = event.steps <= run.facts.earlier.steps_over
    run.launch.others_hold = event.steps if theirs else frozenset()
    if event.steps & run.facts.earlier.steps_over or Timer.ASK in run.timers:
        return []
    run.launch.others_unlisted = True
    return [run.ask_slurm(now)]


def on_slurm_answered(run: Run, event: ev.SlurmAnswered, now: Now) -> Answer:
    run.take_answer(event, now)
    unlisted, run.launch.others_unlisted = run.launch.others_unlisted, False
    if Timer.OTHERS not in run.timers or not unlisted or event.error or run.facts.earlier.killed & dict(event.bad_nodes).keys():
        return []
    run.timers.stop(Timer.OTHERS)
    return replacing.first_launch(run, now)


def on_leases_over(run: Run, now: Now) -> Answer:
    """Every lease has run out. A step that Slurm still lists is on a node that could not confirm its end."""
    if not run.launch.others_hold:
        return replacing.first_launch(run, now)
    run.launch.overlap = True
    return [say_beside(run.launch.others_hold), *replacing.first_launch(run, now)]


# --- the launch

LONGEST_LOOK_S = 600.0
# How long the last srun of several waits for its step before the job is requeued; a busy slurmctld grants one within seconds.
NEVER_GRANTED_S = 180.0


def on_begun(run: Run, _: ev.Begun, now: Now) -> Answer:
    f, me, st = run.facts, run.facts.process, run.settings
    run.launch.run_began_at, run.launch.overlap = now.mono, f.earlier.beside
    began = rec.RunBegan(
        now.unix, f.run, f.job, f.cluster, f.schedule, f.step_key, f.command, fold_nodes(f.nodes), f.start_time,
        f.name, f.launcher, me.version, me.host, me.pid, budgets(st), f.number, st.requeue.cleanup_grace_s,
        f.batch_node, me.pid_space, len({*f.nodes, *f.granted}), me.started, f.submit_time, f.output.log, f.output.labels,
        as_policy(st),
    )  # fmt: skip
    last = run.history.last_run
    forgotten = run.history.slots.lent.values() if last is not None and f.schedule > last.schedule else ()
    loans = run.loans.end([*forgotten, *f.earlier.loans_left])  # the ftrun that borrowed them could not end them
    known = {node: why for node, why in f.remembered.items() if node in f.nodes}
    warned = [Say(f"node {node} is suspect: {why} (`ftslurm nodes`)") for node, why in sorted(known.items())]
    before = [run.note(record) for record in f.earlier.cut_short]
    output = [run.note(replace(f.output.files, at=now.unix, run=f.run))] if f.output.files is not None else []
    begun: list[Decision] = [
        *before,
        run.note(began, vital=True),
        *([run.note(rec.SettingsFrom(now.unix, f.run, f.places))] if f.places else []),
        *([run.note(rec.CallRead(now.unix, f.run, me.call.reading.value, me.call.words))] if me.call.why else []),
        *output,
        *run.told.show_on(starting.next_number(run), "starting"),
        *warned,
        *read_at_begin(run.settings.progress, run.history, run.facts),
    ]
    return [*loans, *begun, *(await_others(run, now) if f.earlier.unproven else replacing.first_launch(run, now))]


def on_task_arrived(run: Run, event: ev.TaskArrived, now: Now) -> Answer:
    task = _in_its_slot(run, event.task)
    run.arrive(task)
    run.launch.arrive(task.node, event.step, first=task.rank == 0)
    if len(run.tasks) < event.expected:
        return _give_up_ended(run) or _await_stragglers(run, now)
    if astray := _astray(run):
        return _give_up_places(run, astray)
    if run.places.layout is not None:
        run.places.choose(replace(run.places.layout, slots=tuple(run.tasks[rank].slot for rank in sorted(run.tasks))))
    return starting.start(run, now)


def on_rank_claimed_twice(run: Run, event: ev.RankClaimedTwice, now: Now) -> Answer:
    """The step would be waited for without end. Seen on 22.05, where runc gets the batch script's environment."""
    what = f"two tasks say that they are rank {event.rank}, as Slurm has told them (22.05 does, with --container)"
    return _give_up_places(run, what)


def _in_its_slot(run: Run, task: Task) -> Task:
    """The task with its slot: srun numbers the nodes of a step in the cluster's order, and not by their slots."""
    if run.places.layout is None or task.node not in run.places.layout.nodes:
        return task
    return replace(task, slot=run.places.layout.nodes.index(task.node))


def _astray(run: Run) -> str:
    """The tasks that are not on their intended node; empty if none."""
    if run.places.layout is None:
        return ""
    for rank, task in sorted(run.tasks.items()):
        meant = run.places.layout.node_of(rank) if rank < len(run.places.layout.slots) else ""
        if task.node not in run.places.layout.nodes or (meant and meant != task.node):
            return f"rank {rank} was placed on {task.node} instead of {meant or fold_nodes(run.places.layout.nodes)}"
    return ""


def _give_up_places(run: Run, what: str) -> Answer:
    """Tasks are on wrong nodes; nothing has been started yet."""
    attempt = run.new_attempt()
    attempt.none_begun()
    attempt.search.fail(what)
    return _cannot_start(run, what)


# --- a node that dies while the step starts: srun waits for it, two minutes and more


def look_for_nodes(run: Run, now: Now) -> list[Decision]:
    """Probe the nodes that have not called; a live node may take its time. Agents start meanwhile: only they would notice
    that the batch node has died.
    """
    run.timers.set(Timer.SLOW_LAUNCH, now.mono + run.launch.look_less(run.settings.nodes.silence_s, LONGEST_LOOK_S))
    came = {task.node for task in run.tasks.values()}
    probed = run.probe([node for node in _planned(run) if node not in came][:AT_A_TIME], now)
    nobody_came = Capability.STEPS in run.facts.can and not run.tasks
    told = run.wait_for(_who_comes(run, came), 0.0, now)
    return [*probed, *told, *run.watch(now, _planned(run)), *([ListSteps()] if nobody_came else [])]


def _who_comes(run: Run, came: Collection[str]) -> str:
    missing = [node for node in _planned(run) if node not in came]
    return f"the step to come up on {fold_nodes(missing)}" if missing and came else "the step to come up"


def on_steps_listed(run: Run, event: ev.StepsListed, now: Now) -> Answer:
    """The listed steps have arrived: srun waits until slurmctld reports that a conflicting step has ended, however long that
    takes.
    """
    if Timer.OTHERS in run.timers:
        return on_earlier_steps_listed(run, event, now)
    if event.steps is None or run.tasks:
        return []
    if not event.steps or run.launch.overlap:  # our step may run beside others
        return _ask_for_a_step_again(run, now)
    theirs = event.steps - run.launch.own  # our own steps had all ended before this launch
    leases_over = now.mono - run.launch.run_began_at >= longest_s(run.settings)
    if not theirs <= run.facts.earlier.steps_over or (theirs and not leases_over):
        return []  # ftrun waits for another's step, as srun does
    run.launch.overlap = True
    return [say_beside(event.steps), *ending.kill_step(run, ThenLaunch(again=True), now)]


def _ask_for_a_step_again(run: Run, now: Now) -> Answer:
    """Launch again: no step blocks the nodes, but ours has not started. A slurmctld that had just returned refused it, and
    srun asks again only when a step ends (on 22.05 a second srun got its step at once).
    """
    if run.launch.in_vain >= LAUNCHES_AGAIN:
        return _give_up_grant(run, now)
    run.launch.again()
    said = Say("srun waits although no other step holds the nodes; starting it again")
    return [said, *ending.kill_step(run, ThenLaunch(again=True), now)]


def _give_up_grant(run: Run, now: Now) -> Answer:
    """Give up a step that Slurm never starts, where a requeue can help; elsewhere wait as srun does. Seen on 22.05: a backup
    slurmctld that took over from a killed one while the job was cleaned up."""
    waited_s = now.mono - run.launch.asked_at
    if Capability.REQUEUE not in run.facts.can or waited_s < NEVER_GRANTED_S:
        return []
    what = f"Slurm has not started the step for {waited_s:.0f} s, although no step stands in its way"
    run.new_attempt().cannot_stay(what)
    return [Trouble(Cause.LOST, what, 1)]


def give_up_launcher(run: Run, now: Now) -> Answer:
    """The launcher did not end: nothing may be launched beside it."""
    what = "srun waits for nodes, and could not be ended"
    run.new_attempt().step_end.cannot_end(what)
    return _cannot_start(run, what)


def _cannot_start(run: Run, what: str) -> Answer:
    """The step does not start here. A command that has run before may run elsewhere."""
    run.attempt.cannot_stay(what)
    return [Trouble(Cause.LOST if run.attempt.number else Cause.LAUNCH, what, 1)]


# --- a live node on which no task starts


def _await_stragglers(run: Run, now: Now) -> list[Decision]:
    run.launch.stragglers = frozenset()
    if run.settings.nodes.straggler_wait_s and Capability.ASK in run.facts.can:
        run.timers.set(Timer.STRAGGLERS, now.mono + run.settings.nodes.straggler_wait_s)
    return []


def on_stragglers_overdue(run: Run, now: Now) -> Answer:
    """srun continues with the tasks that run. Check the nodes where tasks are missing."""
    came = {task.node for task in run.tasks.values()}
    run.launch.stragglers = frozenset([node for node in _planned(run) if node not in came][:AT_A_TIME])
    stragglers = run.launch.stragglers
    if not stragglers:
        return give_up_stragglers(run, now)
    run.timers.set(Timer.STRAGGLERS_KNOWN, now.mono + run.settings.nodes.check_timeout_s + MARGIN_S + AGENT_COMES_S)
    lent = run.places.lent
    said = Say(f"no task of the step has come up on {fold_nodes(stragglers)}; checking it")
    return [said, *(CheckNode(node, lent.get(node, 0), run.settings.nodes.check_timeout_s) for node in sorted(stragglers))]


def on_node_checked(run: Run, event: ev.NodeChecked, now: Now) -> Answer:
    """The check of such a node: a node that cannot run our check cannot run a rank either, so it counts as bad."""
    if event.node not in run.launch.stragglers:
        return replacing.on_spare_checked(run, event, now)
    run.launch.seen(event.node, "" if event.good is True else event.why or "it could not be checked")
    return [] if run.launch.stragglers else give_up_stragglers(run, now)


def on_tasks_ended(run: Run, event: ev.TasksEnded, now: Now) -> Answer:
    """Before they called: a container did not start there. The contrast is waited for: other nodes may fare no better."""
    came = {task.node for task in run.tasks.values()}
    run.launch.tasks_ended([node for node in event.nodes if node not in came], event.why)
    return _give_up_ended(run)


def _give_up_ended(run: Run) -> Answer:
    """Where all nodes but those have come up. Where none has, srun ends."""
    if not (ended := run.launch.ended):
        return []
    came = {task.node for task in run.tasks.values()}
    failed = {node: _ended_early(run, node) for node in _planned(run) if node not in came and node in ended}
    if not (came and failed) or not came | failed.keys() >= {*_planned(run)}:
        return []
    what = f"the tasks on {fold_nodes(failed)} ended before the program began: {next(iter(failed.values()))}"
    return _give_up_nodes(run, what, failed)


def _ended_early(run: Run, node: str) -> str:
    return run.launch.ended[node] or "srun does not say why"


def give_up_stragglers(run: Run, now: Now) -> Answer:
    came = {task.node for task in run.tasks.values()}
    missing = [node for node in _planned(run) if node not in came]
    where = f" on {fold_nodes(missing)}" if missing else ""
    what = f"no task of the step came up{where} within {run.settings.nodes.straggler_wait_s:g} s of the others"
    against = {node: f"no task came up there, and {why}" for node, why in run.launch.unfit.items() if node in missing}
    against |= {node: _ended_early(run, node) for node in missing if node in run.launch.ended}
    return _give_up_nodes(run, what, against)


def _planned(run: Run) -> tuple[str, ...]:
    return run.places.planned(run.facts)


def _give_up_nodes(run: Run, what: str, against: dict[str, str]) -> Answer:
    attempt = run.new_attempt()
    attempt.none_begun()
    attempt.hang.blamed = against
    attempt.cannot_stay(what)
    return [Trouble(Cause.LOST, what, 1)]


def on_node_probed(run: Run, event: ev.NodeProbed, now: Now) -> Answer:
    if run.fence.answer(event.node):
        run.timers.stop(Timer.PROBE)
    came = event.node in {task.node for task in run.tasks.values()}
    if event.alive is not False or came or event.node not in _planned(run):  # the probe began before this launch
        run.launch.absent.pop(event.node, None)
        return []
    if run.launch.absent.again(event.node) < ABSENT_MOST:
        return []
    run.new_attempt().nodes.lose(event.node, event.what)
    what = f"no task of the step came up on {event.node}, and {event.what}"
    return [Trouble(Cause.LOST, what, 1)]


def on_step_ended(run: Run, event: ev.StepEnded, now: Now) -> Answer:
    """srun gave up before all tasks were there, and has printed why. A node may be the reason."""
    run.new_attempt()
    why = next(filter(None, run.launch.ended.values()), "")
    what = f"the step did not come up: {why or f'its launcher {event.status}'}"
    run.attempt.lose_step(what)
    run.launch.fail(undelivered(event.status) if Capability.ASK in run.facts.can else "")
    cause = Cause.LOST if run.attempt.number or run.launch.undelivered else Cause.LAUNCH
    return [Trouble(cause, what, event.status.shell or 1)]


def on_part_ended(run: Run, event: ev.PartEnded, now: Now) -> Answer:
    """The donor job has ended, or its node cannot run a step; the other part would wait for these ranks forever."""
    run.new_attempt()
    ranks = ", ".join(map(str, event.ranks))
    what = f"the step did not come up: the launcher of rank{'s' if len(event.ranks) > 1 else ''} {ranks} ended"
    return _cannot_start(run, what)


def on_shim_lost(run: Run, event: ev.ShimLost, now: Now) -> Answer:
    """A shim connected and closed before the start: the step or its node is going down. A shim that never connected is of the
    previous step.
    """
    if event.rank not in run.tasks:
        return []
    run.new_attempt()
    run.attempt.lose(event.rank, event.why)
    what = f"the shim of rank {event.rank} was lost before the start: {event.why}"
    return [Trouble(Cause.LOST, what, 1, hung_up=event.hangup is ev.Hangup.CLOSED)]


def on_signal(run: Run, event: ev.SignalSeen, now: Now) -> Answer:
    """A signal before the ranks start. Before the first start ftrun's own signal ends the job. Later, or where a warning is
    to requeue the job, it may be a warning (slurmctld is up to a minute early with those of --signal), which is passed on
    to ranks that start in time.
    """
    if event.rank is None and event.number == SIGINT:
        return ending.interrupt(run, now)
    own_term, requeues = event.rank is None and event.number == SIGTERM, run.signal.asks_for_requeue(event.number)
    if not own_term or run.attempt.number or requeues:
        return _keep_warning(run, event, own_term or requeues, now)
    what = f"ended by {signal_name(event.number)} while the step was starting"
    return ending.break_off_launch(run, ThenFinish(what, 128 + event.number), now)


def _keep_warning(run: Run, event: ev.SignalSeen, ends: bool, now: Now) -> list[Decision]:
    """Remember a warning for ranks to come. ends: seconds until the job ends if they do not come in time."""
    if not run.signal.announces(event.number):
        return []
    run.signal.keep(event)
    if not ends or Timer.LAUNCH in run.timers:
        return []
    run.signal.take(event.number, now.mono)
    run.timers.set(Timer.LAUNCH, now.mono + run.settings.warning.grace_s)
    return [run.ask_slurm(now)] if Capability.ASK in run.facts.can else []


def on_launch_overdue(run: Run, now: Now) -> list[Decision]:
    """A warning came, and the ranks that should hear it did not start in time."""
    run.signal.means(Meaning.WARNING)
    what = f"the step did not come up after {signal_name(run.signal.number)}"
    trouble = Trouble(Cause.WARNING, what, 128 + run.signal.number)
    return ending.kill_step(run, ThenAfterWarning(trouble), now)


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

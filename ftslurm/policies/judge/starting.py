"""Starts ranks: launches a step, begins an attempt with all its ranks, or starts one rank again alone. Each rank gets the
environment that tells it which start this is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, LaunchStep, Say, StartRanks
from ftslurm.model.events import Now
from ftslurm.model.folds.history import counters, restarts
from ftslurm.model.job import Share, fold_shares
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.settings.tree import most_crash_restarts
from ftslurm.model.timers import Timer
from ftslurm.policies.environment import counters_env, moved_in, nvrx_env, placed_env, restart_env, torch_env, whole_env
from ftslurm.policies.judge.outside import Meaning, look_at_limit_in_s
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import IDLE_LOOK, Run
from ftslurm.policies.judge.then import Answer, ThenSignal

_FT_CONFIG = "FTSLURM_FT_CONFIG"  # as in model/settings/ft_config.py
_EVERY_SECTION = "every_section"  # as in sdk/nvrx_config.py
# A shorter job needs no agents and does not pay for them; trouble starts them at once. A step of one rank is often one of many.
WATCH_AFTER_S, WATCH_ONE_AFTER_S = 1.0, 4.0
UNDER_WAY_S = 60.0  # a step that ends before has no use for commands to look at it
# Length of the reason, in characters: the banner is one line.
WHY_MOST = 160


def launch_step(run: Run, now: Now) -> list[Decision]:
    run.enter(Phase.LAUNCHING)
    run.forget_tasks()
    run.alone.stop()
    run.launch.begin(now, run.settings.nodes.silence_s)
    run.told.what = ""
    run.timers.only({Timer.SLOW_LAUNCH: now.mono + run.launch.look_in_s} if Capability.PROBE in run.facts.can else {})
    run.new_attempt(tasks=())
    run.fence.paused.clear()  # the next shims are of another step
    return [LaunchStep(run.places.layout, run.launch.overlap, run.shares())]


def start(run: Run, now: Now) -> Answer:
    """Start the ranks. The attempt is recorded first: a number that was used is never used again."""
    f = run.facts
    number = next_number(run)
    starts = counters(run.history, f.schedule, f.step_key).starts + 1
    run.enter(Phase.RUNNING)
    run.places.start(run.tasks, f.granted or f.nodes)
    run.new_attempt(number, started=True)
    if run.settings.rendezvous == "torch" and "MASTER_PORT" not in run.facts.env.user:
        run.attempt.port = run.tasks[0].free_port
    run.fence.let_go_at = None
    told = _to_be_told(run, now)
    run.slurm.forget()
    run.signal.begin_attempt()
    run.hangs.begin_attempt(run.settings.hang, number)
    run.alone.begin_attempt()
    all_here = run.agents.arrived >= set(run.step_nodes())
    watch_after_s = WATCH_AFTER_S if len(run.tasks) > 1 else WATCH_ONE_AFTER_S
    run.timers.only({} if all_here else {Timer.WATCH: now.mono + watch_after_s})
    if (limit_in_s := look_at_limit_in_s(run.settings, f, now)) is not None:
        run.timers.set(Timer.LIMIT, now.mono + limit_in_s)
    if run.idle_nodes():
        run.timers.set(Timer.IDLE, now.mono + IDLE_LOOK * run.settings.nodes.silence_s)
    if run.watches_stalls and len(run.tasks) > 1 and run.settings.hang.compare_s:
        run.timers.set(Timer.COMPARE, now.mono + run.settings.hang.compare_s)
    if Capability.ASK in f.can and not run.history.attempts and run.settings.tips:
        run.timers.set(Timer.COMMANDS, now.mono + UNDER_WAY_S)
    launched = run.launch.start_ranks()
    begun = rec.AttemptBegan(
        now.unix, f.run, number, f.schedule, f.step_key, starts, fold_nodes(run.step_nodes()), len(run.tasks),
        run.launch.step, *fold_shares(run.shares() or _shares_told(run)), launched or now.unix,
    )  # fmt: skip
    noted = run.note(begun)
    banner = _banner(run, number, fold_nodes(run.step_nodes()))
    said = [Say(words) for words in (banner, *_moved(run)) if words]
    started: list[Decision] = [noted, *said, _start_ranks(run, _env(run, now)), *run.watch_all_ranks()]
    started += _ask_after_silent(run, now)
    started += run.told.show_on(number)
    return [*started, *told]


def tell_commands(run: Run, now: Now) -> list[Decision]:
    """Once in a job: where people look, and which rungs that are on it cannot use."""
    job = run.facts.job
    look = f"job {job}: `ftslurm status {job}`, `ftslurm watch {job}`, `ftslurm logs -f {job}`"
    return [Say(words) for words in (look, *_lacks(run))]


def _lacks(run: Run) -> Iterator[str]:
    f, s = run.facts, run.settings
    if f.why_not.requeue:
        yield f"job {f.job} cannot be requeued: {f.why_not.requeue}; what a restart in place does not cure ends it"
    borrows = "" if s.nodes.spares else f.why_not.donor if s.nodes.donor else "no spare node is held, and nodes.donor is off"
    for rung, on, why in (
        (Rung.NODE_REPLACEMENT, s.node_replacement.enabled, f.why_not.swap or borrows),
        (Rung.SHRINK, s.shrink.enabled and bool(s.nodes.min), f.why_not.swap),
    ):
        if on and why:
            yield f"job {f.job} cannot use {rung.value}: {why}"


def next_number(run: Run) -> int:
    return max(run.history.attempts, run.attempt.number) + 1


def _shares_told(run: Run) -> tuple[Share, ...]:
    """The shares that the present tasks were given; empty if their slots are not those of a whole step."""
    by_slot = {task.slot: task.share for task in run.tasks.values()}
    return tuple(by_slot[slot] for slot in sorted(by_slot)) if sorted(by_slot) == [*range(len(by_slot))] else ()


def _to_be_told(run: Run, now: Now) -> list[ThenSignal]:
    """A signal that came while no ranks ran, or a warning that still holds (the ranks that heard it have ended)."""
    signal, kept = run.signal, run.signal.take_kept()
    if kept is not None:
        return [ThenSignal(ev.SignalSeen(kept.number, again=kept.rank is not None), now.mono)]
    holds = signal.meaning is Meaning.WARNING and run.signal_explains(now)
    return [ThenSignal(ev.SignalSeen(signal.number, again=True), signal.at)] if holds else []


def _ask_after_silent(run: Run, now: Now) -> list[Decision]:
    """Probe nodes that fell silent while no rank ran: their silence is not reported again."""
    run.watch_silence(now)
    run.fence.ask_anew()
    asked = run.probe(run.silent_nodes(), now)
    if asked:  # leases may have run out already, and a second proof is stronger
        run.timers.set(Timer.LEASES, max(run.timers.at(Timer.LEASES), run.timers.at(Timer.PROBE)))
    return asked


def start_alone(run: Run, rank: int, now: Now) -> list[Decision]:
    f = run.facts
    number = next_number(run)
    starts = counters(run.history, f.schedule, f.step_key, run.tasks[rank].slot, rank).starts + 1
    begun = run.note(rec.RankBegan(now.unix, f.run, number, f.schedule, f.step_key, rank, starts))
    node, before = run.tasks[rank].node, run.intervals()
    run.attempt.again(rank, number)
    run.hangs.watch.begun(rank, node)
    watched = run.watch_ranks([node])  # its page has another name now
    changed = [run.intervals()] if run.intervals() != before else []
    said = Say(f"attempt {number} on {node}, rank {rank} alone")
    return [begun, said, _start_ranks(run, {rank: _env(run, now)[rank]}), *watched, *changed]


def _start_ranks(run: Run, env: dict[int, dict[str, str]]) -> StartRanks:
    """Start the ranks of the attempt that has just been recorded."""
    return StartRanks(run.history.attempts, env, restarts(run.history, run.facts.step_key))


def _banner(run: Run, number: int, nodes: str) -> str:
    """The line that separates the output of an attempt from earlier ones; empty for a first start."""
    rung, cause = run.last_remedy
    if number < 2 or not rung:
        return ""
    decided = run.decided or run.history.last_decision
    why = f": {decided.why[:WHY_MOST]}" if decided is not None and decided.rung == rung else f" ({cause})"
    return f"attempt {number} on {nodes}{_of_step(run, number)}, after {rung}{why}"


def _of_step(run: Run, number: int) -> str:
    """Which of this command's it is, where the numbers of other commands of the job lie between."""
    own = restarts(run.history, run.facts.step_key) + 1
    return f" ({own} of this command)" if own != number else ""


def _meet_at(run: Run) -> dict[str, str]:
    """Of the user's variables, those that name a node which is out: with the one in its place."""
    moved, theirs = run.places.moved(run.tasks), run.facts.env.meet_at
    return {name: new for name, value in theirs.items() if (new := moved_in(value, moved)) != value}


def _moved(run: Run) -> Iterator[str]:
    """What people should know of it: a command line is not ours to change."""
    for name, new in _meet_at(run).items():
        yield f"{name} is {new} for the ranks: {run.facts.env.meet_at[name]} is out"
    for old, new in run.places.moved(run.tasks).items():
        if moved_in(run.facts.command, {old: new}) != run.facts.command:
            yield f"the command names {old}, which is out ({new} has its place): let it use a variable, such as $MASTER_ADDR"


def _env(run: Run, now: Now) -> dict[int, dict[str, str]]:
    """rank -> its environment for the start that has just been recorded."""
    shared = restart_env(*run.last_remedy, fold_nodes(run.kept_out(now)))
    f, past = run.facts, run.history
    again = restarts(past, f.step_key)
    shared |= {**f.env.sdk, **_meet_at(run), "FTSLURM_STEP_ATTEMPT": str(again + 1)}
    if run.hangs.calculated:
        from ftslurm.model.settings.ft_config import with_calculated

        given = shared.get(_FT_CONFIG)
        # Without a configuration each section is taken as it comes, before and after.
        config = json.loads(given) if given else {_EVERY_SECTION: True}
        shared[_FT_CONFIG] = json.dumps(with_calculated(config, run.hangs.calculated), separators=(",", ":"))
    own = {
        rank: shared | counters_env(counters(past, f.schedule, f.step_key, task.slot, rank)) for rank, task in run.tasks.items()
    }
    if run.places.layout is not None:
        step = run.launch.own_step(run.places.lent)
        placed = placed_env(run.tasks, run.places.layout, run.facts.env.slurm, run.facts.number, step)
        own = {rank: own[rank] | placed[rank] for rank in own}
    st, users = run.settings, run.facts.env.user
    if "nvrx" in st.sdk.provide:
        nvrx = nvrx_env(run.tasks, users)
        own = {rank: own[rank] | nvrx[rank] for rank in own}
    torch = st.rendezvous == "torch"
    if not torch and run.places.layout is None:
        return own
    most = st.max_job_restarts if st.max_job_restarts >= 0 else most_crash_restarts(st)
    job = f"{f.cluster}-{f.job}"
    per_rank = torch_env(run.tasks, run.tasks[0].address, users, job, again, most)
    return {rank: own[rank] | (per_rank[rank] if torch else whole_env(per_rank[rank])) for rank in run.tasks}


def on_watch_due(run: Run, now: Now) -> list[Decision]:
    """An agent should have arrived. It may have died before it could call, and nobody else reports that."""
    mine = set(run.step_nodes())
    run.agents.give_up_late(mine, now.mono)
    asked = run.watch(now)
    run.timers.follow(Timer.WATCH, run.agents.next_due(mine))
    return asked

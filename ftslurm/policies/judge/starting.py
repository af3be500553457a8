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
from ftslurm.model.nodes import fold_nodes as fold_nodes
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


class Starting:
    def __init__(self, run: Run) -> None:
        self.run = run

    def launch_step(self, now: Now) -> list[Decision]:
        self.run.enter(Phase.LAUNCHING)
        self.run.forget_tasks()
        self.run.alone.stop()
        self.run.launch.begin(now, self.run.settings.nodes.silence_s)
        self.run.told.forget()
        self.run.timers.only(
            {Timer.SLOW_LAUNCH: now.mono + self.run.launch.look_in_s} if Capability.PROBE in self.run.facts.can else {}
        )
        self.run.new_attempt(tasks=())
        self.run.fence.paused.clear()  # the next shims are of another step
        return [LaunchStep(self.run.places.layout, self.run.launch.overlap, self.run.shares())]

    def start(self, now: Now) -> Answer:
        """Start the ranks. The attempt is recorded first: a number that was used is never used again."""
        f = self.run.facts
        number = self.next_number()
        starts = counters(self.run.history, f.schedule, f.step_key).starts + 1
        self.run.enter(Phase.RUNNING)
        self.run.places.start(self.run.tasks, f.granted or f.nodes)
        self.run.new_attempt(number, started=True)
        if self.run.settings.rendezvous == "torch" and "MASTER_PORT" not in self.run.facts.env.user:
            self.run.attempt.port = self.run.tasks[0].free_port
        self.run.fence.let_go_at = None
        told = self._to_be_told(now)
        self.run.slurm.forget()
        self.run.signal.begin_attempt()
        self.run.hangs.begin_attempt(self.run.settings.hang, number)
        self.run.alone.begin_attempt()
        all_here = self.run.agents.arrived >= set(self.run.step_nodes())
        self.run.timers.only({} if all_here else {Timer.WATCH: now.mono + self._watch_after_s()})
        if (limit_in_s := look_at_limit_in_s(self.run.settings, f, now)) is not None:
            self.run.timers.set(Timer.LIMIT, now.mono + limit_in_s)
        if self.run.idle_nodes():
            self.run.timers.set(Timer.IDLE, now.mono + IDLE_LOOK * self.run.settings.nodes.silence_s)
        if self.run.watches_stalls and len(self.run.tasks) > 1 and self.run.settings.hang.compare_s:
            self.run.timers.set(Timer.COMPARE, now.mono + self.run.settings.hang.compare_s)
        if Capability.ASK in f.can and not self.run.history.attempts and self.run.settings.tips:
            self.run.timers.set(Timer.COMMANDS, now.mono + UNDER_WAY_S)
        launched = self.run.launch.start_ranks()
        begun = rec.AttemptBegan(
            now.unix, f.run, number, f.schedule, f.step_key, starts, fold_nodes(self.run.step_nodes()), len(self.run.tasks),
            self.run.launch.step, *fold_shares(self.run.shares() or self._shares_told()), launched or now.unix,
        )  # fmt: skip
        noted = self.run.note(begun)
        banner = self._banner(number, fold_nodes(self.run.step_nodes()))
        said = [Say(words) for words in (banner, *self._moved()) if words]
        started: list[Decision] = [noted, *said, self._start_ranks(self._env(now)), *self.run.watch_all_ranks()]
        started += self._ask_after_silent(now)
        started += self.run.told.show_running(number)
        return [*started, *told]

    def tell_commands(self, now: Now) -> list[Decision]:
        """Once in a job: where people look, and which rungs that are on it cannot use."""
        job = self.run.facts.job
        look = f"job {job}: `ftslurm status {job}`, `ftslurm watch {job}`, `ftslurm logs -f {job}`"
        return [Say(words) for words in (look, *self._lacks())]

    def _lacks(self) -> Iterator[str]:
        f, s = self.run.facts, self.run.settings
        if f.why_not.requeue:
            yield f"job {f.job} cannot be requeued: {f.why_not.requeue}; what a restart in place does not cure ends it"
        borrows = "" if s.nodes.spares else f.why_not.donor if s.nodes.donor else "no spare node is held, and nodes.donor is off"
        for rung, on, why in (
            (Rung.NODE_REPLACEMENT, s.node_replacement.enabled, f.why_not.swap or borrows),
            (Rung.SHRINK, s.shrink.enabled and bool(s.nodes.min), f.why_not.swap),
        ):
            if on and why:
                yield f"job {f.job} cannot use {rung.value}: {why}"

    def _watch_after_s(self) -> float:
        return WATCH_AFTER_S if len(self.run.tasks) > 1 else WATCH_ONE_AFTER_S

    def next_number(self) -> int:
        return max(self.run.history.attempts, self.run.attempt.number) + 1

    def _shares_told(self) -> tuple[Share, ...]:
        """The shares that the present tasks were given; empty if their slots are not those of a whole step."""
        by_slot = {task.slot: task.share for task in self.run.tasks.values()}
        return tuple(by_slot[slot] for slot in sorted(by_slot)) if sorted(by_slot) == [*range(len(by_slot))] else ()

    def _to_be_told(self, now: Now) -> list[ThenSignal]:
        """A signal that came while no ranks ran, or a warning that still holds (the ranks that heard it have ended)."""
        signal, kept = self.run.signal, self.run.signal.take_kept()
        if kept is not None:
            return [ThenSignal(ev.SignalSeen(kept.number, again=kept.rank is not None), now.mono)]
        holds = signal.meaning is Meaning.WARNING and self.run.signal_explains(now)
        return [ThenSignal(ev.SignalSeen(signal.number, again=True), signal.at)] if holds else []

    def _ask_after_silent(self, now: Now) -> list[Decision]:
        """Probe nodes that fell silent while no rank ran: their silence is not reported again."""
        self.run.watch_silence(now)
        self.run.fence.ask_anew()
        asked = self.run.probe(self.run.silent_nodes(), now)
        if asked:  # leases may have run out already, and a second proof is stronger
            self.run.timers.set(Timer.LEASES, max(self.run.timers.at(Timer.LEASES), self.run.timers.at(Timer.PROBE)))
        return asked

    def start_alone(self, rank: int, now: Now) -> list[Decision]:
        f = self.run.facts
        number = self.next_number()
        starts = counters(self.run.history, f.schedule, f.step_key, self.run.tasks[rank].slot, rank).starts + 1
        begun = self.run.note(rec.RankBegan(now.unix, f.run, number, f.schedule, f.step_key, rank, starts))
        node, before = self.run.tasks[rank].node, self.run.intervals()
        self.run.attempt.again(rank, number)
        self.run.hangs.watch.begun(rank, node)
        watched = self.run.watch_ranks([node])  # its page has another name now
        changed = [self.run.intervals()] if self.run.intervals() != before else []
        said = Say(f"attempt {number} on {node}, rank {rank} alone")
        return [begun, said, self._start_ranks({rank: self._env(now)[rank]}), *watched, *changed]

    def _start_ranks(self, env: dict[int, dict[str, str]]) -> StartRanks:
        """Start the ranks of the attempt that has just been recorded."""
        return StartRanks(self.run.history.attempts, env, restarts(self.run.history, self.run.facts.step_key))

    def _banner(self, number: int, nodes: str) -> str:
        """The line that separates the output of an attempt from earlier ones; empty for a first start."""
        rung, cause = self.run.last_remedy
        if number < 2 or not rung:
            return ""
        decided = self.run.decided or self.run.history.last_decision
        why = f": {decided.why[:WHY_MOST]}" if decided is not None and decided.rung == rung else f" ({cause})"
        return f"attempt {number} on {nodes}{self._of_step(number)}, after {rung}{why}"

    def _of_step(self, number: int) -> str:
        """Which of this command's it is, where the numbers of other commands of the job lie between."""
        own = restarts(self.run.history, self.run.facts.step_key) + 1
        return f" ({own} of this command)" if own != number else ""

    def _meet_at(self) -> dict[str, str]:
        """Of the user's variables, those that name a node which is out: with the one in its place."""
        moved, theirs = self.run.places.moved(self.run.tasks), self.run.facts.env.meet_at
        return {name: new for name, value in theirs.items() if (new := moved_in(value, moved)) != value}

    def _moved(self) -> Iterator[str]:
        """What people should know of it: a command line is not ours to change."""
        for name, new in self._meet_at().items():
            yield f"{name} is {new} for the ranks: {self.run.facts.env.meet_at[name]} is out"
        for old, new in self.run.places.moved(self.run.tasks).items():
            if moved_in(self.run.facts.command, {old: new}) != self.run.facts.command:
                yield f"the command names {old}, which is out ({new} has its place): let it use a variable, such as $MASTER_ADDR"

    def _env(self, now: Now) -> dict[int, dict[str, str]]:
        """rank -> its environment for the start that has just been recorded."""
        shared = restart_env(*self.run.last_remedy, fold_nodes(self.run.kept_out(now)))
        f, past = self.run.facts, self.run.history
        again = restarts(past, f.step_key)
        shared |= {**f.env.sdk, **self._meet_at(), "FTSLURM_STEP_ATTEMPT": str(again + 1)}
        if self.run.hangs.calculated:
            from ftslurm.model.settings.ft_config import with_calculated

            given = shared.get(_FT_CONFIG)
            # Without a configuration each section is taken as it comes, before and after.
            config = json.loads(given) if given else {_EVERY_SECTION: True}
            shared[_FT_CONFIG] = json.dumps(with_calculated(config, self.run.hangs.calculated), separators=(",", ":"))
        own = {
            rank: shared | counters_env(counters(past, f.schedule, f.step_key, task.slot, rank))
            for rank, task in self.run.tasks.items()
        }
        if self.run.places.layout is not None:
            step = self.run.launch.own_step(self.run.places.lent)
            placed = placed_env(self.run.tasks, self.run.places.layout, self.run.facts.env.slurm, self.run.facts.number, step)
            own = {rank: own[rank] | placed[rank] for rank in own}
        st, users = self.run.settings, self.run.facts.env.user
        if "nvrx" in st.sdk.provide:
            nvrx = nvrx_env(self.run.tasks, users)
            own = {rank: own[rank] | nvrx[rank] for rank in own}
        torch = st.rendezvous == "torch"
        if not torch and self.run.places.layout is None:
            return own
        most = st.max_job_restarts if st.max_job_restarts >= 0 else most_crash_restarts(st)
        run = f"{f.cluster}-{f.job}"
        per_rank = torch_env(self.run.tasks, self.run.tasks[0].address, users, run, again, most)
        return {rank: own[rank] | (per_rank[rank] if torch else whole_env(per_rank[rank])) for rank in self.run.tasks}

    def on_watch_due(self, now: Now) -> list[Decision]:
        """An agent should have arrived. It may have died before it could call, and nobody else reports that."""
        mine = set(self.run.step_nodes())
        self.run.agents.give_up_late(mine, now.mono)
        asked = self.run.watch(now)
        if (due := self.run.agents.next_due(mine)) is not None:
            self.run.timers.set(Timer.WATCH, due)
        return asked

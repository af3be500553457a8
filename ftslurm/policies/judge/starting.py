"""Starts ranks: launches a step, begins an attempt with all its ranks, or starts one rank again alone. Each rank gets the
environment that tells it which start this is.
"""

from __future__ import annotations

import json

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, LaunchStep, Say, StartRanks
from ftslurm.model.events import Now
from ftslurm.model.folds.counters import counters, restarts
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.shares import Share, fold_shares
from ftslurm.model.timers import Timer
from ftslurm.policies.environment import counters_env, nvrx_env, placed_env, restart_env, torch_env
from ftslurm.policies.judge.ending import Ending
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import IDLE_LOOK
from ftslurm.policies.ladder.situation import Trouble

_FT_CONFIG = "FTSLURM_FT_CONFIG"  # as in model/settings/ft_config.py
# A shorter job needs no agents and does not pay for them; trouble starts them at once.
WATCH_AFTER_S = 1.0
# Length of the reason, in characters: the banner is one line.
WHY_MOST = 160


class Starting(Ending):
    def _launch_step(self, now: Now) -> list[Decision]:
        self._enter(Phase.LAUNCHING)
        self._tasks = {}
        self._alone.stop()
        self._launch.begin(now.unix, self.settings.silence_s)
        self._told.forget()
        self._timers.only({Timer.SLOW_LAUNCH: now.mono + self._launch.look_in_s} if Capability.PROBE in self.facts.can else {})
        self._anew(tasks=())
        self._fence.paused.clear()  # the next shims are of another step
        return [LaunchStep(self._places.layout, self._launch.overlap, self._shares())]

    def _start(self, now: Now) -> list[Decision]:
        """Start the ranks. The attempt is recorded first: a number that was used is never used again."""
        f = self.facts
        number = self._next_number()
        starts = counters(self.history, f.schedule, f.step_key).starts + 1
        self._enter(Phase.RUNNING)
        self._places.start(self._tasks)
        self._anew(number, started=True)
        if self.settings.rendezvous == "torch" and "MASTER_PORT" not in self.facts.env.user:
            self._attempt.port = self._tasks[0].free_port
        self._fence.let_go_at = None
        told = self._to_be_told(now)
        self._slurm.forget()
        self._signal.begin_attempt()
        self._hangs.begin_attempt(self.settings, number)
        self._alone.begin_attempt()
        all_here = self._agents.arrived >= set(self._step_nodes())
        self._timers.only({} if all_here else {Timer.WATCH: now.mono + WATCH_AFTER_S})
        if self._idle():
            self._timers.set(Timer.IDLE, now.mono + IDLE_LOOK * self.settings.silence_s)
        if self._watches_stalls and len(self._tasks) > 1 and self.settings.hang_compare_s:
            self._timers.set(Timer.COMPARE, now.mono + self.settings.hang_compare_s)
        launched = self._launch.start_ranks()
        begun = rec.AttemptBegan(
            now.unix, f.run, number, f.schedule, f.step_key, starts, fold_nodes(self._step_nodes()),
            len(self._tasks), self._launch.step, *fold_shares(self._shares() or self._shares_told()), launched or now.unix,
        )  # fmt: skip
        banner = self._banner(number, fold_nodes(self._step_nodes()))
        said = [Say(banner)] if banner else []
        noted = self._note(begun)
        started: list[Decision] = [noted, *said, self._start_ranks(self._env(now), banner), *self._watch_all_ranks()]
        started += self._ask_after_silent(now)
        started += self._wait_over(number)
        if told:
            number, since = told
            started += self._signalled(ev.SignalSeen(number), now)
            self._signal.take(self._signal.number, since)
        return started

    def _next_number(self) -> int:
        return max(self.history.attempts, self._attempt.number) + 1

    def _shares_told(self) -> tuple[Share, ...]:
        """The shares that the present tasks were given; empty if their slots are not those of a whole step."""
        by_slot = {task.slot: task.share for task in self._tasks.values()}
        return tuple(by_slot[slot] for slot in sorted(by_slot)) if sorted(by_slot) == [*range(len(by_slot))] else ()

    def _to_be_told(self, now: Now) -> tuple[int, float] | None:
        """A signal that came while no ranks ran, or a warning that still holds (the ranks that heard it have ended), and since
        when.
        """
        kept = self._signal.take_kept()
        if kept is not None:
            return kept.number, now.mono
        return (self._signal.number, self._signal.at) if self._signal.meaning == "warning" and self._explained(now) else None

    def _ask_after_silent(self, now: Now) -> list[Decision]:
        """Probe nodes that fell silent while no rank ran: their silence is not reported again."""
        self._watch_silence(now)
        self._fence.ask_anew()
        asked = self._probe(self._silent_here(), now)
        if asked:  # leases may have run out already, and a second proof is stronger
            self._timers.set(Timer.LEASES, max(self._timers.at(Timer.LEASES), self._timers.at(Timer.PROBE)))
        return asked

    def _start_alone(self, rank: int, now: Now) -> list[Decision]:
        f = self.facts
        number = self._next_number()
        starts = counters(self.history, f.schedule, f.step_key, self._tasks[rank].slot, rank).starts + 1
        begun = self._note(rec.RankBegan(now.unix, f.run, number, f.schedule, f.step_key, rank, starts))
        node, before = self._tasks[rank].node, self._intervals()
        self._attempt.again(rank, number)
        self._hangs.watch.begun(rank, node)
        watched = self._watch_ranks([node])  # its page has another name now
        changed = [self._intervals()] if self._intervals() != before else []
        start = self._start_ranks({rank: self._env(now)[rank]}, f"attempt {number} on {node}, rank {rank} alone")
        return [begun, start, *watched, *changed]

    def _start_ranks(self, env: dict[int, dict[str, str]], banner: str) -> StartRanks:
        """Start the ranks of the attempt that has just been recorded."""
        return StartRanks(self.history.attempts, env, banner, restarts(self.history, self.facts.step_key))

    def _banner(self, number: int, nodes: str) -> str:
        """The line that separates the output of an attempt from earlier ones; empty for a first start."""
        rung, cause = (self._decided.rung, self._decided.cause) if self._decided else self.history.requeues.scheduled_by
        if number < 2 or not rung:
            return ""
        decided = self._decided or self.history.last_decision
        why = f": {decided.why[:WHY_MOST]}" if decided is not None and decided.rung == rung else f" ({cause})"
        return f"attempt {number} on {nodes}, after {rung}{why}"

    def _env(self, now: Now) -> dict[int, dict[str, str]]:
        """rank -> its environment for the start that has just been recorded."""
        # What another ftrun of the script did is not among this one's starts.
        last = (self._decided.rung, self._decided.cause) if self._decided else self.history.requeues.scheduled_by
        shared = restart_env(*last, fold_nodes(self._kept_out(now)))
        shared |= self.facts.env.sdk
        if self._hangs.calculated and _FT_CONFIG in shared:  # without a configuration each section is taken as it comes
            from ftslurm.model.settings.ft_config import with_calculated

            config = with_calculated(json.loads(shared[_FT_CONFIG]), self._hangs.calculated)
            shared[_FT_CONFIG] = json.dumps(config, separators=(",", ":"))
        f, past = self.facts, self.history
        own = {
            rank: shared | counters_env(counters(past, f.schedule, f.step_key, task.slot, rank))
            for rank, task in self._tasks.items()
        }
        if self._places.layout is not None:
            step = self._launch.own_step(self._places.lent)
            placed = placed_env(self._tasks, self._places.layout, self.facts.env.slurm, self.facts.number, step)
            own = {rank: own[rank] | placed[rank] for rank in own}
        st, users = self.settings, self.facts.env.user
        if "nvrx" in st.provide:
            nvrx = nvrx_env(self._tasks, users)
            own = {rank: own[rank] | nvrx[rank] for rank in own}
        if st.rendezvous != "torch":
            return own
        most = st.max_job_restarts if st.max_job_restarts >= 0 else st.crash_restarts
        run, again = f"{self.facts.cluster}-{self.facts.job}", restarts(past, f.step_key)
        per_rank = torch_env(self._tasks, self._tasks[0].address, users, run, again, most)
        return {rank: own[rank] | per_rank[rank] for rank in self._tasks}

    def _watch_due(self, now: Now) -> list[Decision]:
        """An agent should have arrived. It may have died before it could call, and nobody else reports that."""
        mine = set(self._step_nodes())
        self._agents.give_up_late(mine, now.mono)
        asked = self._watch(now)
        if (due := self._agents.next_due(mine)) is not None:
            self._timers.set(Timer.WATCH, due)
        return asked

    def _into_trouble(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Begin trouble (implemented in judge/settling)."""
        raise NotImplementedError

    def _settled(self, now: Now) -> list[Decision]:
        """Decide (implemented in judge/settling): a rung that could not be carried out leads back to a decision."""
        raise NotImplementedError

    def _signalled(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """Handle a signal (implemented in judge/signals): a start passes on a signal that came while no ranks ran."""
        raise NotImplementedError

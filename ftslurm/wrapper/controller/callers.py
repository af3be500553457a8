"""Who is in touch with ftrun: shims by rank, agents by node; who was let go, who is lost, and whether ftrun itself is cut off.
What they report is in sources.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ftslurm.errors import WireError
from ftslurm.model import events as ev
from ftslurm.model import messages as wire
from ftslurm.model.exits import cancelled_steps
from ftslurm.model.ports import StepHandle
from ftslurm.model.settings.tree import BEATS
from ftslurm.model.values import Value
from ftslurm.policies.lease import LeaseQuorum, NodeContact
from ftslurm.policies.node import NodeClock
from ftslurm.system.clock import Clock
from ftslurm.wrapper.shim.messages import LinkError
from ftslurm.wrapper.shim.session import ReliableStream
from ftslurm.wrapper.wire import Message, Peer

# --- One shim or agent as the controller knows it: its session, over one connection after the other.

# Messages kept for an absent caller; one that misses more does not come back.
MAX_KEPT = 10_000


class CallerLimits(Value):
    """See the settings; seconds."""

    lease_s: float = 60.0
    silence_s: float = 15.0
    grace_s: float = 20.0


class Caller:
    """owner: rank or node name. let_go: its messages are ignored, and its lease is not renewed. paused: it will be suspended with
    the whole job, and its lease is guaranteed until it is heard again. place: of a rank, its slot and local rank.
    """

    def __init__(self, owner: int | str, node: str, talk: str, limits: CallerLimits) -> None:
        self.owner = owner
        self.node = node
        self.let_go = self.paused = False
        self.place = (0, 0)
        self.clock = NodeClock()
        self.talk = talk
        self._talk = ReliableStream()
        self._limits = limits
        self._peer: Peer | None = None

    @property
    def connected(self) -> bool:
        return self._peer is not None

    def use(self, peer: Peer, heard: Any, cut_off: bool = False) -> Peer | None:
        """Continue over `peer`; gives the previous connection, if it is not known to be broken. cut_off: no lease is renewed.

        Raises: WireError.
        """
        before, self._peer, self.paused = self._peer, peer, False
        self._has(heard)
        limits = self._limits
        times = {"lease_s": limits.lease_s, "beat_s": min(limits.lease_s, limits.silence_s) / BEATS, "grace_s": limits.grace_s}
        peer.send({"t": "welcome", "a": self._talk.heard, **times, **self._word(cut_off)})
        for message in self._talk.kept:
            peer.send(message)
        return before

    def left(self, peer: Peer) -> bool:
        """The connection broke. False if it had been replaced."""
        if peer is not self._peer:
            return False
        self._peer = None
        return True

    def send(self, message: Message) -> None:
        """Send the message. It arrives sooner or later, unless the other side has ended."""
        numbered = self._talk.say(message)
        if len(self._talk.kept) > MAX_KEPT:
            self.close("too much waits for it")
        elif self._peer is not None:
            self._peer.send(numbered)

    def answer(self, beat: Message, cut_off: bool) -> None:
        """Which renews the lease unless we are cut off. Raises: WireError."""
        self._has(beat.get("a"))
        if type(beat.get("k")) is not int:
            raise WireError(f"{self.owner}: a beat without a number")
        self.paused = beat.get("pause") is True and not self.let_go
        if self._peer is not None:
            promise = {"paused": True} if self.paused and not cut_off else {}
            self._peer.send({"t": "beat", "k": beat["k"], "a": self._talk.heard, **self._word(cut_off), **promise})

    def hear(self, message: Message) -> bool:
        """Is it a valid, new message? Raises: WireError."""
        try:
            return self._talk.hear(message)
        except LinkError as error:
            raise WireError(f"{self.owner}: {error}") from None

    def close(self, why: str) -> None:
        if self._peer is not None:
            self._peer.drop(why)

    def _word(self, cut_off: bool) -> dict[str, bool]:
        if self.let_go:
            return {"let_go": True}
        return {"cut_off": True} if cut_off else {}

    def _has(self, number: Any) -> None:
        try:
            self._talk.has(number)
        except LinkError as error:
            raise WireError(f"{self.owner}: {error}") from None


class Callers:
    """shims: rank -> its caller. agents: node -> its caller.
    runs: does slurmctld say that the job runs? It may take long. handover_plan: what an agent of that node is told for the case
    that we die."""

    def __init__(
        self, clock: Clock, limits: CallerLimits, runs: Callable[[], bool] = lambda: True,
        handover_plan: Callable[[str], Message | None] = lambda node: None,
    ) -> None:  # fmt: skip
        self.shims: dict[int, Caller] = {}
        self.agents: dict[str, Caller] = {}
        self.runs, self.handover_plan = runs, handover_plan
        self.contact = NodeContact(limits.silence_s)
        self._clock, self._limits = clock, limits
        self._leaving: dict[int, Caller] = {}  # shims that were let go and are still there
        self._quorum = LeaseQuorum(limits.silence_s)
        self._cut_off = False  # no lease is renewed
        self._alone = False  # and that was said
        self._launch = 0  # how often a step was launched
        self._size = 0  # tasks of the step, 0 until the first has said it
        self._step: StepHandle | None = None
        self._coming: dict[str, StepHandle] = {}  # node -> the step that brings its agent, until it has called
        self.beats = 0, 0.0  # so far, and when the last came (Unix seconds, 0: none yet)

    def heard_s(self) -> dict[str, float]:
        """node -> seconds since anything of it was heard."""
        return self.contact.ages(self._clock.mono())

    @property
    def awaits_tasks(self) -> bool:
        """Was a step launched of which not all tasks have called?"""
        return self._step is not None and not (self._size and len(self.shims) >= self._size)

    def words_of_start(self) -> str:
        """What srun has said of a step that comes up; empty once it has, or where our stderr is no file."""
        return self._step.words() if self._step is not None and self.awaits_tasks else ""

    # --- steps and agents that are launched and let go

    def launched(self, step: StepHandle) -> None:
        """The step whose shims will call."""
        self._step = step

    def farewell(self) -> None:
        """Ignore what the shims say from now on, and let their leases run out. That they close their connections still counts."""
        for caller in self.shims.values():
            caller.let_go = True
        self._leaving.update(self.shims)
        self.shims = {}

    def new_step(self) -> int:
        """Ignore the shims of the step before from now on. Gives the number of the next launch, from 1."""
        self._launch += 1
        for caller in (*self.shims.values(), *self._leaving.values()):
            caller.let_go = True
            self.contact.forget(caller.owner)
        self.shims, self._leaving, self._size = {}, {}, 0
        self._quorum.new_step(self.agents.keys())
        return self._launch

    def agents_come(self, nodes: Iterable[str], step: StepHandle) -> None:
        """An agent of each of `nodes` is on its way, by `step`."""
        self._coming.update(dict.fromkeys(nodes, step))

    def dismiss_agents(self, nodes: Sequence[str] | None = None) -> None:
        """Dismiss the agents of `nodes`, None for all."""
        self._coming = {node: step for node, step in self._coming.items() if nodes is not None and node not in nodes}
        for caller in [caller for node, caller in self.agents.items() if nodes is None or node in nodes]:
            caller.let_go = True
            caller.send({"t": "bye"})
            self.contact.forget(caller.owner)
            caller.close("nothing is left to do for it")
            del self.agents[caller.node]
            if all(shim.node != caller.node for shim in self.shims.values()):
                self._quorum.forget(caller.node)

    def child_ended(self) -> list[ev.Event]:
        """A child has ended. It may be a launcher: of the step, of a part of it, or of agents."""
        found = self._never_came()
        now = self._clock.mono()
        if self._step is not None and (status := self._step.ended()) is not None:
            cancelled = cancelled_steps(self._step.words())
            self._step = None
            self.contact.no_return({*self.shims, *self._leaving}, now)
            return [*found, ev.StepEnded(status, cancelled)]
        if self._step is not None and (ranks := self._step.ranks_ended()):
            self.contact.no_return(set(ranks), now)
            if absent := ranks - self.shims.keys() - self._leaving.keys():
                return [*found, ev.PartEnded(tuple(sorted(absent)))]
        return found

    def _never_came(self) -> list[ev.Event]:
        """The agents whose launcher has ended before they called, for example because slurmctld was away."""
        ends = {node: status for node, step in self._coming.items() if (status := step.ended()) is not None}
        for node in ends:
            del self._coming[node]
        return [ev.AgentLost(node, f"its launcher {status}") for node, status in ends.items()]

    # --- who calls, and who is lost

    def introduce(self, peer: Peer, message: Message) -> Sequence[ev.Event]:
        """The first message over a connection. Raises: WireError."""
        return (*self._touched(self._clock.mono()), *self._introduced(peer, wire.read_hello(message)))

    def hear(self, caller: Caller, message: Message) -> tuple[bool, Sequence[ev.Event]]:
        """Gives whether it is a new report, and the events that its arrival causes. Raises: WireError."""
        heard = self.contact.record_message(caller.owner, self._clock.mono()) if self._is_known(caller) else ()
        if message.get("t") != "beat":
            return caller.hear(message) and not caller.let_go, heard
        before, heard = caller.paused, (*heard, *self._beat(caller, message))
        caller.answer(message, self._cut_off)
        return False, (*heard, *self._paused(caller, before))

    def not_understood(self, caller: Caller, why: str) -> None:
        """End the conversation: the caller would say the same again over another connection."""
        now = self._clock.mono()
        self.contact.record_loss(caller.owner, why, now)
        self.contact.no_return({caller.owner}, now)
        caller.let_go = True

    def disconnected(self, peer: Peer, why: str, hangup: ev.Hangup) -> Sequence[ev.Event]:
        """A connection broke. Who does not call again is lost; NodeContact says when."""
        caller: Caller = peer.owner
        if not (caller.left(peer) and self._is_known(caller)):
            return ()
        self.contact.record_loss(caller.owner, why, self._clock.mono(), hangup)
        left = hangup is not ev.Hangup.NONE and isinstance(caller.owner, int) and self._leaving.get(caller.owner) is caller
        return (ev.ShimLeft(caller.owner),) if left and isinstance(caller.owner, int) else ()

    def overdue(self, now: float) -> Sequence[ev.Event]:
        """Who has been silent for too long; those that are lost are callers no more."""
        news = self.contact.due(now)
        for event in news:
            if isinstance(event, ev.ShimLost):
                (self._leaving if event.rank in self._leaving else self.shims).pop(event.rank, None)
            elif isinstance(event, ev.AgentLost):
                self.agents.pop(event.node, None)
        return news

    def _introduced(self, peer: Peer, hello: wire.ShimHello | wire.AgentHello) -> Sequence[ev.Event]:
        if isinstance(hello, wire.AgentHello):
            new, news = self._connected(self.agents, hello.node, hello.node, peer, hello)
            plan = self.handover_plan(hello.node) if new else None
            if plan is not None:
                self.agents[hello.node].send(plan)
            self._coming.pop(hello.node, None)
            return (*news, ev.AgentArrived(hello.node, hello.kinds)) if new else news
        rank = hello.task.rank
        leaving = self._leaving.get(rank)
        if leaving is not None and leaving.talk == hello.talk:
            return self._connected(self._leaving, rank, hello.task.node, peer, hello)[1]
        if hello.launch != self._launch:  # its launcher was given up before it called
            raise WireError(f"{rank} belongs to a step that was given up")
        if self._size not in (0, hello.expected):
            raise WireError(f"rank {rank} says that the step has {hello.expected} tasks, and the others say {self._size}")
        if rank in self.shims and self.shims[rank].talk != hello.talk and self.awaits_tasks:
            return (ev.RankClaimedTwice(rank),)
        before = rank in self.shims and self.shims[rank].paused
        new, news = self._connected(self.shims, rank, hello.task.node, peer, hello)
        self._leaving.pop(rank, None)
        self._size, self.shims[rank].place = hello.expected, (hello.task.slot, hello.task.local_rank)
        came = (*news, *self._paused(self.shims[rank], before))
        return (*came, ev.TaskArrived(hello.task, hello.expected, hello.step)) if new else came

    def _connected(
        self, callers: dict[Any, Caller], owner: Any, node: str, peer: Peer, hello: wire.ShimHello | wire.AgentHello
    ) -> tuple[bool, Sequence[ev.Event]]:
        """Gives whether the caller is new (we do not know it by another connection), and the events that its arrival causes.

        Raises: WireError.
        """
        caller = callers.get(owner)
        new = caller is None
        if caller is None:
            if hello.has:
                raise WireError(f"{owner} goes on with a conversation that has ended")
            caller = callers[owner] = Caller(owner, node, hello.talk, self._limits)
        elif caller.talk != hello.talk:
            raise WireError(f"a second connection for {owner}")
        elif caller.let_go and callers is not self._leaving:
            raise WireError(f"{owner} could not be understood and is lost")
        peer.belong_to(caller)
        both = self._clock.now()
        now = both.mono
        if hello.clock is not None:
            caller.clock.record(hello.clock, both.unix - (now - peer.since), both.unix)
        news = self.contact.record_connection(owner, node, now)
        before = caller.use(peer, hello.has, self._cut_off)  # which may find that it has gone again
        self._quorum.record_greeting(owner, node, now)
        if before is not None:
            before.drop("it has called again")
        return new, news

    def _is_known(self, caller: Caller) -> bool:
        """Has nobody taken its place, such as the shim of the same rank in a later step?"""
        owner: Any = caller.owner
        return caller is self.shims.get(owner) or caller in (self._leaving.get(owner), self.agents.get(owner))

    def _beat(self, caller: Caller, message: Message) -> Sequence[ev.Event]:
        """Before the beat is answered, find out whether we ourselves are cut off: then we may renew no lease."""
        now = self._clock.mono()
        self.beats = self.beats[0] + 1, self._clock.now().unix
        number, has = message.get("k"), message.get("r", 0)
        if type(number) is int and type(has) is int:
            self._quorum.record_beat(caller.owner, caller.node, number, has, now)
            if (theirs := wire.sender_clock(message)) is not None:
                caller.clock.record_beat(number, has, theirs, self.beats[1])
        if self._quorum.asks(now):
            threading.Thread(target=self._ask_whether_it_runs, daemon=True).start()
        return self._touched(now)

    def _touched(self, now: float) -> Sequence[ev.Event]:
        """Called before each answer: what was found for the nodes of one step does not hold for those of the next."""
        self._cut_off = self._quorum.cut_off(now)
        alone = self._cut_off and (self._alone or self._quorum.slurm_is_silent(now))
        if alone == self._alone:
            return ()
        self._alone = alone
        return (ev.CutOff(),) if alone else (ev.InTouch(),)

    def _ask_whether_it_runs(self) -> None:
        if self.runs():
            self._quorum.slurm(self._clock.mono())

    def _paused(self, caller: Caller, before: bool) -> Sequence[ev.Event]:
        """The caller begins to pause, or ends it. An agent guards nothing that needs the promise."""
        if caller.paused == before or not isinstance(caller.owner, int):
            return ()
        return (ev.RankPaused(caller.owner, caller.paused),)

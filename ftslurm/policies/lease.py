"""What may still run on a node that cannot be reached: who was heard of last, the fence, the quorum, what earlier ftruns left."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from ftslurm.model.events import AgentLost, Hangup, NodeHeard, NodeSilent, ShimLost
from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.job import Task
from ftslurm.model.nodes import expand
from ftslurm.model.record import AttemptBegan, CarriedOut, Decided, Finished, NodeLent, Record, RunBegan
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.settings.features import LeaseSettings
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import Value, field
from ftslurm.policies.attempt import Attempt

# --- Who was heard of last, and when: what follows from silence and from connections that broke. Seconds are monotonic.
#
# A broken connection says nothing yet: whoever lives calls again. Nor does silence of one: a node is silent when none of
# its shims and agents is heard

# From a break to calling the shim dead, where its node is heard of. A shim that lives calls within a second; where thousands
# broke at once, one after the other: then from the last that came back, and no longer than a silent node is waited for.
RETURN_S = 5.0
SOON_S = 1.0

News = ShimLost | AgentLost | NodeSilent | NodeHeard


class _Party(Value, frozen=False):
    """owner: rank or node name. broke_at: of its connection, None while there is one. brief: it does not come back."""

    owner: int | str
    node: str
    heard_at: float
    broke_at: float | None = None
    why: str = ""
    hangup: Hangup = Hangup.NONE
    brief: bool = False


class NodeContact:
    """`due` at `wakes_at`, when everything that has come in was read."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._parties: dict[Hashable, _Party] = {}
        self._heard: dict[str, float] = {}  # node -> when any of its parties was heard
        self._silent: set[str] = set()
        self._returned_at = -math.inf  # when the last one called that had called before
        self._next: float | None = None

    @property
    def wakes_at(self) -> float | None:
        return self._next

    def record_connection(self, owner: int | str, node: str, now: float) -> list[News]:
        """For the first time, or again over another connection."""
        if owner in self._parties:
            self._returned_at = now
        self._parties[owner] = _Party(owner, node, now)
        self._wake(now + self._silence_s)
        return self.record_message(owner, now)

    def record_message(self, owner: int | str, now: float) -> list[News]:
        party = self._parties.get(owner)
        if party is None:
            return []
        party.heard_at = self._heard[party.node] = now
        if party.node not in self._silent:
            return []
        self._silent.discard(party.node)
        self._wake(now + self._silence_s)
        return [NodeHeard(party.node)]

    def record_loss(self, owner: int | str, why: str, now: float, hangup: Hangup = Hangup.CLOSED) -> None:
        party = self._parties.get(owner)
        if party is not None and party.broke_at is None:
            party.broke_at, party.why, party.hangup = now, why, hangup
            self._wake(now if party.brief else now + RETURN_S)

    def no_return(self, owners: set[int | str], now: float) -> None:
        """Their step has ended: who is not connected any more has gone with it."""
        for owner in owners & self._parties.keys():
            self._parties[owner].brief = True
        self._wake(now)

    def forget(self, owner: int | str) -> None:
        self._parties.pop(owner, None)

    def excuse(self, now: float) -> None:
        """We were not there ourselves (stopped, or without CPU): all silence begins anew, and what was due until now is not."""
        self._heard = dict.fromkeys(self._heard, now)
        if self._next is not None:
            self._next = max(self._next, now + SOON_S)

    def ages(self, now: float) -> dict[str, float]:
        """node -> seconds since any of its parties was heard, of nodes that have one."""
        return {party.node: now - self._heard[party.node] for party in self._parties.values()}

    def due(self, now: float) -> list[News]:
        """What is known by now."""
        found: list[News] = []
        self._next = None
        nodes = {party.node for party in self._parties.values()}
        for node in sorted(nodes - self._silent):
            silent_s = now - self._heard[node]
            if silent_s >= self._silence_s:
                self._silent.add(node)
                found.append(NodeSilent(node, silent_s))
                continue
            self._wake(self._heard[node] + self._silence_s)
        for party in list(self._parties.values()):
            if party.broke_at is not None:
                found += self._broken(party, now)
        return found

    def _broken(self, party: _Party, now: float) -> list[News]:
        assert party.broke_at is not None
        node_lives = self._heard[party.node] > party.broke_at or isinstance(party.owner, str)
        return_s = max(RETURN_S, min(self._returned_at - party.broke_at + RETURN_S, self._silence_s))
        wait_s = 0.0 if party.brief else return_s if node_lives else self._silence_s
        if now - party.broke_at < wait_s:
            self._wake(min(party.broke_at + wait_s, now + SOON_S))
            return []
        del self._parties[party.owner]
        if isinstance(party.owner, str):
            return [AgentLost(party.owner, party.why)]
        return [ShimLost(party.owner, party.why, party.hangup)]

    def _wake(self, at: float) -> None:
        self._next = at if self._next is None else min(self._next, at)


# --- What may still run where nobody can see it, and until when its lease lets it.
#
# A rank's end is proven by its shim (nothing is left); or by its step: the launcher has ended and the shim has hung up; or
# its shim has hung up, by no reset, which a firewall may send, and its node answers by no way any more. What is left below a
# shim that was killed is ended by Slurm, or by the shims of the next step there before they start anything. Whatever is not
# proven ends at the latest when its lease does, which was last renewed when its node was last heard


class Fence(Value, frozen=False):
    """silent: node -> monotonic seconds when it was last heard. let_go_at: since when no lease has been renewed, None while
    they are. paused: ranks that were stopped with the whole job, and whose leases do not run out before they are heard of
    again: their end is proven by their step alone. asked: nodes that are being looked at by another way."""

    silent: dict[str, float] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    let_go_at: float | None = None
    asked: set[str] = field(default_factory=set)

    def fall_silent(self, nodes: Iterable[str], at: float) -> None:
        """at: when they were heard last, monotonic seconds."""
        self.silent.update(dict.fromkeys(nodes, at))

    def hear(self, node: str) -> None:
        """It is heard of again, or none of ours any more."""
        self.silent.pop(node, None)

    def ask(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Those that are not being looked at already: they are now."""
        new = tuple(node for node in nodes if node not in self.asked)
        self.asked.update(new)
        return new

    def answer(self, node: str) -> bool:
        """Has every one that was looked at answered now?"""
        self.asked.discard(node)
        return not self.asked

    def ask_anew(self) -> None:
        """Answers that are still to come are not waited for."""
        self.asked.clear()

    def over_at(self, node: str, lease: LeaseSettings) -> float:
        """When the leases of a silent node have run out, with the margin; monotonic seconds."""
        return self.silent[node] + lease.time_s + lease.margin_s

    def unproven(self, attempt: Attempt, tasks: Mapping[int, Task], lease: LeaseSettings, now: float) -> dict[int, float]:
        """rank -> monotonic seconds until which it may run, infinite if nobody knows; only those that still may."""
        shims, free = attempt.shims, attempt.stopped - attempt.left.keys()
        if attempt.step_end.ended:
            free |= shims.closed
        free |= {rank for rank in shims.closed - shims.reset if rank in tasks and tasks[rank].node in attempt.nodes.gone}
        base = now if self.let_go_at is None else self.let_go_at
        wait_s = lease.time_s + lease.margin_s
        until = {rank: self.silent.get(tasks[rank].node, base) + wait_s for rank in attempt.started - free if rank in tasks}
        until.update(dict.fromkeys(self.paused & until.keys(), math.inf))
        return {rank: at for rank, at in until.items() if at > now}


# --- May a controller go on renewing leases? Not when it may be the one who is cut off.
#
# A controller that is cut off from the others still reaches the ranks on its own node, and would keep them alive for ever,
# beside what a successor starts on the other side. So it renews, for all alike, only while it has lately been in touch with
# more than half of the nodes where it has shims or agents, or with slurmctld, without which nobody can requeue the job.
#
# In touch with a node at a time is who sent it something then that has arrived: the acknowledgement proves it. What was
# only read says nothing, it may have waited in a socket for as long as the controller stood still.
#
# How long that takes, S being `nodes.silence`, L the lease and M its margin: the last answer that a node got counts for its
# lease from when it was asked for, and it asks anew after S at the latest. So a controller is in touch for S after the time
# from which that node counts, renews for S more, and what it renewed then ends after L: within L + 2 S. A successor waits
# for that, and M (take_over.py). Seconds are monotonic

# Of the time after which it is cut off: then slurmctld is asked. Beats come three times in it, so one may be late.
ASK_SHARE = 0.8
# Where slurmctld's word is all that counts, as most nodes are silent: earlier, so that its next word comes before the last ends.
ASK_AGAIN_SHARE = 0.5


def longest_s(settings: Settings) -> float:
    """After a node has had its last answer, no rank of that controller runs any more anywhere; with the margin."""
    return settings.lease.time_s + 2 * settings.nodes.silence_s + settings.lease.margin_s


class LeaseQuorum(Value, frozen=False):
    """limit_s: out of touch for longer, and the controller is cut off."""

    limit_s: float
    _nodes: dict[str, float] = field(default_factory=dict)  # node -> when it was last proven to be in touch
    _answered: dict[Hashable, dict[int, float]] = field(default_factory=dict)  # caller -> beat -> when it was answered
    _slurm_at: float = float("-inf")
    _asked_at: float = float("-inf")
    _unanswered_since: float | None = None  # the first question to slurmctld since its last answer
    # When we were last in touch, as it was counted last. Times only grow: until a node is taken off, the truth is this or later.
    _at_least: float = float("-inf")

    def new_step(self, agents: Collection[str]) -> None:
        """Its nodes may be others. agents: nodes whose agents stay; their conversations go on."""
        self._at_least = float("-inf")
        self._nodes = {node: at for node, at in self._nodes.items() if node in agents}
        self._answered = {caller: beats for caller, beats in self._answered.items() if caller in agents}

    def forget(self, node: str) -> None:
        """It has neither shims nor an agent of ours any more, and nobody is there who could succeed us."""
        self._at_least = float("-inf")
        self._nodes.pop(node, None)
        self._answered.pop(node, None)

    def record_greeting(self, caller: Hashable, node: str, now: float) -> None:
        """It has proven that it heard us: the greeting is a question and its answer."""
        self._nodes[node] = max(now, self._nodes.get(node, now))
        self._answered[caller] = {}

    def record_beat(self, caller: Hashable, node: str, number: int, has: int, now: float) -> None:
        """A beat that is about to be answered. has: the last one whose answer has arrived there."""
        beats = self._answered.get(caller)
        if beats is None or node not in self._nodes:
            return
        if has in beats:
            self._nodes[node] = max(self._nodes[node], beats[has])
        self._answered[caller] = {at: when for at, when in beats.items() if at > has} | {number: now}

    def slurm(self, now: float) -> None:
        """slurmctld has said that the job runs."""
        self._slurm_at, self._unanswered_since = now, None
        self._at_least = max(self._at_least, now)

    def cut_off(self, now: float) -> bool:
        """A single node has nobody on another side who could start it anew."""
        if len(self._nodes) < 2 or now - self._at_least <= self.limit_s:
            return False
        return now - self._last() > self.limit_s

    def slurm_is_silent(self, now: float) -> bool:
        """It was asked, and has had the time to answer since. Before that nobody can say that we are out of touch with it."""
        return self._unanswered_since is not None and now - self._unanswered_since > (1 - ASK_SHARE) * self.limit_s

    def asks(self, now: float) -> bool:
        """Is slurmctld to be asked, lest we be cut off? Not again before it had the time to answer."""
        if len(self._nodes) < 2 or self._is_early(self._at_least, now):
            return False
        if now - self._asked_at < (1 - ASK_SHARE) * self.limit_s or self._is_early(self._last(), now):
            return False
        self._asked_at = now
        if self._unanswered_since is None:
            self._unanswered_since = now
        return True

    def _is_early(self, last: float, now: float) -> bool:
        """Need slurmctld not be asked yet, if we were last in touch then?"""
        return now - last < (ASK_AGAIN_SHARE if self._slurm_at == last else ASK_SHARE) * self.limit_s

    def _last(self) -> float:
        """When we were last in touch with the majority, or with slurmctld. It looks at every node: not for each beat."""
        latest = sorted(self._nodes.values(), reverse=True)
        self._at_least = max(latest[len(latest) // 2], self._slurm_at)
        return self._at_least


# --- What earlier ftruns of the job left: ranks that may still run, steps that are over, donor jobs that nobody has ended.
#
# The ledger is folded once. Whatever no record and no fact proves to have ended may still run, until its lease ends


class Predecessor(Value, frozen=False):
    """One ftrun of the job."""

    began: RunBegan | None = None
    gone: bool = False  # does its process not run any more, as far as this node can tell?
    attempts: list[AttemptBegan] = field(default_factory=list)
    loans: list[int] = field(default_factory=list)  # donor jobs
    gave_back: bool = False  # was a requeue that it decided carried out?
    finished: Finished | None = None

    @property
    def died(self) -> bool:
        """It ended, and did not live to say so."""
        return self.gone and self.finished is None

    def in_scheduling(self, schedule: int) -> bool:
        return self.began is not None and self.began.schedule == schedule

    def nodes(self) -> frozenset[str]:
        """Of its last attempt: before it began that one, it had waited for its own ranks."""
        return frozenset(expand(self.attempts[-1].nodes)) if self.attempts else frozenset()


class Predecessors(Value):
    """As ftrun finds them when it begins in scheduling `schedule` of the job, which began at `start_time` (Unix seconds; 0: not
    known). runs: run -> that ftrun, the earliest first. attempts: of all of them, in the order of the ledger.
    """

    schedule: int
    start_time: int
    runs: Mapping[str, Predecessor]
    attempts: tuple[AttemptBegan, ...]

    def unproven(
        self, settings: Settings, now: float, down: Mapping[str, str] | None
    ) -> tuple[Mapping[str, str], frozenset[str]]:
        """(node -> why ranks of an earlier ftrun may still run there, those of them of which nothing is known but that their
        ftrun was killed). now: Unix seconds. down: of the nodes that were never seen to end (`not_cleaned_up`), those that
        Slurm takes for dead, and its words: it lets a job run again only when the others have cleaned up; None: no answer.
        """
        unclean = dict.fromkeys(self.not_cleaned_up(), "slurmctld does not answer") if down is None else down
        known = {
            **dict.fromkeys(self.awaited(settings, now), "silent when the ftrun before this one ended"),
            **unclean,
            **dict.fromkeys(self.forgotten(), "slurmctld has forgotten them"),
        }
        killed = self.killed()
        return {**dict.fromkeys(killed, "the ftrun before this one was killed"), **known}, killed - known.keys()

    def not_cleaned_up(self) -> frozenset[str]:
        """Nodes on which an earlier scheduling started ranks and its ftrun never said how that ended: somebody else requeued the
        job. Where Slurm could not clean up either, they may still run.

        Whoever requeues the job for ftrun has waited for them before. ftrun itself seldom lives to say so after that: Slurm kills
        all of a batch step as soon as its script has ended (proctrack/cgroup)."""
        last = {attempt.run: attempt for attempt in self.attempts if attempt.schedule < self.schedule}
        unsaid = (attempt for run, attempt in last.items() if self.runs[run].finished is None and not self.runs[run].gave_back)
        return frozenset(node for attempt in unsaid for node in expand(attempt.nodes))

    def awaited(self, settings: Settings, now: float) -> frozenset[str]:
        """Nodes whose leases may not have run out: an earlier ftrun of this scheduling ended and did not wait for them, since it
        started nothing after them. Whoever comes after it in the script does. now: Unix seconds."""
        wait_s = settings.lease.time_s + settings.lease.margin_s
        ends = (one.finished for one in self.runs.values() if one.in_scheduling(self.schedule))
        return frozenset(node for end in ends if end is not None and now < end.at + wait_s for node in end.unproven)

    def killed(self) -> frozenset[str]:
        """Nodes on which ranks of an earlier ftrun of this scheduling may still run: it died without a word. Who began an attempt
        of the same command after it has waited for them."""
        last = {attempt.step_key: attempt for attempt in self.attempts if attempt.schedule == self.schedule}
        dead = {run for run, one in self.runs.items() if one.in_scheduling(self.schedule) and one.died}
        return frozenset(node for attempt in last.values() if attempt.run in dead for node in expand(attempt.nodes))

    def forgotten(self) -> frozenset[str]:
        """Nodes of ftruns of a scheduling that Slurm counts like this one, or later, and which began at another time: slurmctld
        went back to an older state, and may have seen no clean-up of theirs."""
        lost = (one for one in self.runs.values() if self._is_of_another_time(one.began) and one.finished is None)
        return frozenset().union(*(one.nodes() for one in lost))

    def _is_of_another_time(self, began: RunBegan | None) -> bool:
        if began is None or not began.start_time or not self.start_time:
            return False
        return began.schedule > self.schedule or (began.schedule == self.schedule and began.start_time != self.start_time)

    def steps_over(self) -> frozenset[str]:
        """Steps of earlier ftruns in this scheduling that have ended, or died.

        Slurm may hold the nodes for one for ever: where it was ended while its node or slurmctld was down, nobody tells it.
        """
        over = {run for run, one in self.runs.items() if one.gone or one.finished is not None}
        steps = {attempt.step for attempt in self.attempts if attempt.schedule == self.schedule and attempt.run in over}
        return frozenset(steps - {""})

    def loans(self) -> tuple[int, ...]:
        """Donor jobs of ftruns that died and could not end them."""
        return tuple(job for one in self.runs.values() if one.died for job in one.loans)

    def died_alone(self) -> bool:
        """Has an ftrun of this scheduling died without a word, and none lives beside? Then a donor job that nobody has written
        down is nobody's: it was submitted, and waited for."""
        open_ = [one for one in self.runs.values() if one.in_scheduling(self.schedule) and one.finished is None]
        return bool(open_) and all(one.gone for one in open_)


def is_gone(told: RunBegan | JobSummary, host: str, pid_space: str, started: int | None) -> bool:
    """Has the ftrun that `told` names ended? Nobody knows of one on another machine, or in another container.

    host, pid_space: where we are. started: when the process of that number here started, in kernel ticks; None: there is none.
    Numbers are given anew: a process that started at another time is another one, where the ledger has the time (not 0).
    """
    if (told.host, told.pid_space) != (host, pid_space):
        return False
    return started is None or told.started not in (0, started)


def predecessors(
    records: Iterable[Record], schedule: int, start_time: int = 0, gone: Callable[[RunBegan], bool] = lambda began: False
) -> Predecessors:
    """gone: does the process of that ftrun not run any more, as far as this node can tell?"""
    runs: dict[str, Predecessor] = {}
    attempts: list[AttemptBegan] = []
    requeues: set[str] = set()
    for record in records:
        match record:
            case RunBegan():
                one = runs.setdefault(record.run, Predecessor())
                one.began, one.gone = record, gone(record)
            case AttemptBegan():
                attempts.append(record)
                runs.setdefault(record.run, Predecessor()).attempts.append(record)
            case NodeLent():
                runs.setdefault(record.run, Predecessor()).loans.append(record.job)
            case Decided() if record.rung in REQUEUES:
                requeues.add(record.id)
            case CarriedOut() if record.ok and record.id in requeues:
                runs.setdefault(record.id.partition("-")[0], Predecessor()).gave_back = True
            case Finished():
                runs.setdefault(record.run, Predecessor()).finished = record
    return Predecessors(schedule, start_time, runs, tuple(attempts))

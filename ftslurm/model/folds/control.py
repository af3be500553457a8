"""What the owner of a job has asked for while it runs (`ftslurm control`), folded from the ledger. Pure.

A request is a record that whoever asks writes into the ledger. The ftrun of the job takes or refuses it there, and writes down
when it has carried it out. What is in force (excluded nodes, held rungs, no more restarts) follows from the order in which
requests were taken, less those that were undone; so it survives a requeue, and a standby controller that takes over knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from ftslurm.model.nodes import fold_nodes
from ftslurm.model.record import CheckpointSeen, RequestAnswered, RequestDone, Requested
from ftslurm.model.rungs import RUNG_NAMES, Rung
from ftslurm.model.values import Value, field, replace

STOP, RESTART, REQUEUE, EXCLUDE, REINSTATE = "stop", "restart", "requeue", "exclude", "reinstate"
HOLD, RELEASE, NO_RESTARTS, ALLOW_RESTARTS, UNDO = "hold", "release", "no-restarts", "allow-restarts", "undo"
DRILL = "drill"
# These end ranks, and may wait for a checkpoint.
ACTS = frozenset({STOP, RESTART, REQUEUE, EXCLUDE})
# These hold from when they are taken, and nothing has to be done for them.
STANDS = frozenset({REINSTATE, HOLD, RELEASE, NO_RESTARTS, ALLOW_RESTARTS, UNDO})
# What can be held: every remedy of the ladder, and the requeue that answers a warning of Slurm's.
HOLDABLE = (*(name for name in RUNG_NAMES if name != Rung.FAIL), Rung.ON_WARNING.value)
ROOT = "root"
# As the program says that one is complete (record.ProgramSaid).
CHECKPOINT = "checkpoint"


def utc(at: float) -> str:
    """Where nobody knows whose local time would be meant."""
    from datetime import datetime, timezone  # a start of ftrun does without

    try:
        return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "?"


class State(str, Enum):
    """Of a request."""

    OPEN = "open"  # nobody has taken it yet
    TAKEN = "taken"
    REFUSED = "refused"
    DONE = "done"
    UNDONE = "undone"


class Request(Value):
    """A request of the owner of the job, and what came of it."""

    asked: Requested
    state: State = State.OPEN
    text: str = ""  # the answer, and what came of it
    order: int = 0  # when it was taken, among all that were
    run: str = ""  # run, attempt, node: of the ftrun that answered
    attempt: int = 0
    node: str = ""
    answered_at: float = 0.0  # answered_at, done_at: Unix seconds, 0: not yet
    done_at: float = 0.0
    seen: int = 0  # checkpoints that counted
    # of the nodes that it excludes or reinstates, what was known of those that were isolated then
    before: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.asked.number

    @property
    def waits(self) -> bool:
        """For a checkpoint or a moment, before it is carried out?"""
        return self.asked.verb in ACTS and bool(self.asked.checkpoints or self.asked.until)

    @property
    def in_force(self) -> bool:
        return self.state in (State.TAKEN, State.DONE)

    @property
    def who(self) -> str:
        """The owner is the only one beside root."""
        return ROOT if self.asked.by == ROOT else "you"


class Control(Value):
    """requests: number -> request, in the order they were asked."""

    requests: Mapping[int, Request] = field(default_factory=dict)

    def get(self, number: int) -> Request | None:
        return self.requests.get(number)

    def of(self, *states: State) -> tuple[Request, ...]:
        return tuple(request for request in self.requests.values() if request.state in states)

    @property
    def to_come(self) -> tuple[Request, ...]:
        """Taken, and not carried out yet."""
        return tuple(request for request in self.of(State.TAKEN) if request.asked.verb in ACTS)

    @property
    def stopping(self) -> Request | None:
        """One to stop the job at once that nobody has carried out: whoever goes on with the job starts nothing."""
        stops = (each for each in self.of(State.OPEN, State.TAKEN) if each.asked.verb == STOP and not each.waits)
        return next(stops, None)

    @property
    def held(self) -> dict[str, Request]:
        """rung -> the request that holds it."""
        held: dict[str, Request] = {}
        for request in self._taken():
            if request.asked.verb == HOLD:
                held[request.asked.rung] = request
            elif request.asked.verb == RELEASE:
                held.pop(request.asked.rung, None)
        return held

    @property
    def no_restarts(self) -> Request | None:
        """The request by which the next failure ends the job, if one is in force."""
        last = None
        for request in self._taken():
            if request.asked.verb in (NO_RESTARTS, ALLOW_RESTARTS):
                last = request
        return last if last is not None and last.asked.verb == NO_RESTARTS else None

    @property
    def excluded(self) -> frozenset[str]:
        """Nodes that a request excludes: for as long as the job lives, whatever its settings say of other nodes."""
        nodes: set[str] = set()
        for request in self._taken():
            if request.asked.verb == REINSTATE:
                nodes.difference_update(request.asked.nodes)
            elif request.asked.verb in (EXCLUDE, REQUEUE):
                nodes.update(request.asked.nodes)
        return frozenset(nodes)

    def undoable(self) -> Request | None:
        """The last one that `undo` would undo."""
        return next((each for each in reversed(tuple(self.requests.values())) if not_undoable(each) == ""), None)

    def why_held(self, rung: str, moment: Callable[[float], str] = utc) -> str:
        """Why the ladder passes `rung` over; empty if nobody asked for that. moment: writes Unix seconds for people."""
        if rung == Rung.FAIL:
            return ""
        if stop := self.stopping:
            return f"{stop.who} asked to stop the job (request {stop.number})"
        if ban := self.no_restarts:
            return f"{ban.who} asked for no more restarts, since {moment(ban.asked.at)} (request {ban.number})"
        if hold := self.held.get(rung):
            return f"held by {hold.who} since {moment(hold.asked.at)} (request {hold.number})"
        return ""

    def _taken(self) -> Iterable[Request]:
        return sorted((each for each in self.requests.values() if each.in_force), key=lambda each: each.order)

    # --- the fold

    def asked(self, asked: Requested) -> Control:
        """One that is undone before anybody took it is void."""
        known = dict(self.requests)
        known.setdefault(asked.number, Request(asked))
        target = known.get(asked.target) if asked.verb == UNDO else None
        if target is not None and target.state is State.OPEN:
            known[target.number] = replace(target, state=State.UNDONE, text=f"undone by request {asked.number}")
        return Control(known)

    def answered(self, answer: RequestAnswered, isolated: Mapping[str, tuple[str, float]]) -> Control:
        """isolated: as it was before the answer. The second ftrun of two that answers changes nothing."""
        request = self.requests.get(answer.number)
        if request is None or request.in_force:
            return self
        before = {node: isolated[node] for node in request.asked.nodes if node in isolated}
        order = 1 + max((each.order for each in self.requests.values()), default=0)
        state = State.TAKEN if answer.ok else State.REFUSED
        if answer.ok and request.asked.verb not in ACTS:
            state = State.DONE
        known = {
            **self.requests,
            answer.number: replace(
                request, state=state, text=answer.text, order=order, run=answer.run, attempt=answer.attempt, node=answer.node,
                answered_at=answer.at, before=before, done_at=answer.at if state is State.DONE else 0.0,
            ),
        }  # fmt: skip
        target = known.get(request.asked.target) if request.asked.verb == UNDO and answer.ok else None
        if target is not None and target.state is not State.REFUSED:
            known[target.number] = replace(target, state=State.UNDONE, text=f"undone by request {answer.number}")
        return Control(known)

    def done(self, done: RequestDone) -> Control:
        request = self.requests.get(done.number)
        if request is None or request.state is not State.TAKEN:
            return self
        now = replace(request, state=State.DONE if done.ok else State.REFUSED, text=done.text, done_at=done.at)
        return Control({**self.requests, done.number: now})

    def checkpoint(self, seen: CheckpointSeen) -> Control:
        request = self.requests.get(seen.request)
        if request is None:
            return self
        return Control({**self.requests, seen.request: replace(request, seen=request.seen + 1)})


def not_undoable(request: Request) -> str:
    """Why it cannot be undone; empty if it can."""
    if request.asked.verb == UNDO:
        return f"request {request.number} undoes another one: ask again for what it has undone"
    if request.state in (State.UNDONE, State.REFUSED):
        return f"request {request.number} is {request.state.value} already"
    if request.state is State.DONE and request.asked.verb in (STOP, RESTART, REQUEUE, DRILL):
        return f"request {request.number} ({request.asked.verb}) has been carried out"
    return ""


def request_in_words(asked: Requested, moment: Callable[[float], str] = utc) -> str:
    """What it asks for. moment: writes Unix seconds for people."""
    nodes = fold_nodes(asked.nodes) if asked.nodes else ""
    what = {
        STOP: "stop the job",
        RESTART: "restart the ranks in place",
        REQUEUE: f"requeue the job{f' without {nodes}' if nodes else ''}",
        EXCLUDE: f"exclude {nodes}{' from the next start on' if asked.later else ''}",
        REINSTATE: f"reinstate {nodes}",
        HOLD: f"hold {asked.rung}",
        RELEASE: f"release {asked.rung}",
        NO_RESTARTS: "no more restarts",
        ALLOW_RESTARTS: "allow restarts again",
        UNDO: f"undo request {asked.target}",
        DRILL: f"drill: {asked.drill.fault} on {asked.drill.target}" if asked.drill else DRILL,
    }.get(asked.verb, asked.verb)
    when = []
    if asked.checkpoints:
        number = "the next checkpoint" if asked.checkpoints == 1 else f"{asked.checkpoints} checkpoints"
        after = f" from {moment(asked.after)} on" if asked.after else ""
        when.append(f"after {number}{after}")
    if asked.until:
        when.append(f"at {moment(asked.until)}{' at the latest' if asked.checkpoints else ''}")
    return " ".join((what, ", ".join(when))).strip()

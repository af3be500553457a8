"""Where a job's time went: every second between its first record and its last belongs to one part. Pure: records in, values out.

What is called productive is what Kokolis et al. call so (Revisiting Reliability in Large-Scale Machine Learning Research
Clusters, 2024): time in which ranks ran, less their start and less what had been done before. Their ETTR counts the first wait
in the queue as well; this one begins with the first ftrun, since the first wait is not ours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from ftslurm.model import record as rec
from ftslurm.model.job import unfold_counts
from ftslurm.model.nodes import count_nodes
from ftslurm.model.outcome import outcome_of
from ftslurm.model.rungs import Rung
from ftslurm.model.values import Value, replace

# An end that nobody lived to write down came at most so long before Slurm had requeued the job: twice SlurmdTimeout
# (slurm.conf(5): 300 s unless the site changed it), within which slurmctld takes a dead node for down.
UNSEEN_S = 600.0


class Part(Enum):
    TRAINING = "training"  # work that had not been done before
    REDONE = "redone work"  # from the first step of an attempt to the first that is new
    NOTICING = "noticing"  # from the fault to the moment at which ftrun knew of it
    STOPPING = "stopping"  # until no process of the attempt was left; at the end of a job, until its step was gone
    DECIDING = "deciding"  # from there to the decision: devices and Slurm are asked
    WAITING = "healing or waiting"  # for a device, a node, a lease, the queue
    STARTING = "starting"  # the script, the step, and the program until its first step, where it tells its steps
    NEW_OR_REDONE = "new or redone work"  # ranks ran; the program tells no steps, so nobody knows which
    UNKNOWN = "not known"  # nobody lived to write down when the ranks ended
    OUTSIDE = "outside ftrun"  # the batch script did something else


LOST = (Part.NOTICING, Part.DECIDING, Part.STOPPING, Part.WAITING, Part.STARTING, Part.REDONE)
UNSURE = (Part.NEW_OR_REDONE, Part.UNKNOWN)
_RAN = frozenset({Part.TRAINING, Part.REDONE, Part.NEW_OR_REDONE})


class Stretch(Value):
    """One part, from begin to end (Unix seconds). attempt: 0 before the first. outage: place of the one that it is owed to, in
    Spent.outages; -1: none. gpus: of the attempt, -1: not known.
    """

    begin: float
    end: float
    part: Part
    attempt: int = 0
    outage: int = -1
    gpus: int = -1
    nodes: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Outage(Value):
    """Why the ranks did not go on."""

    at: float  # when ftrun knew
    attempt: int
    cause: str
    what: str
    began: float = 0.0  # the fault itself, 0: not known
    decided: tuple[rec.Decided, ...] = ()  # every decision about it (id), the last one counts
    verdict: rec.Diagnosed | None = None
    back: float = 0.0  # when ranks ran again, 0: never
    by_others: bool = False  # nothing had failed: a signal, a preemption, a requeue or the end by somebody's will
    drill: bool = False  # on purpose
    unseen: bool = False  # nobody was there to see it
    gpus: int = -1  # gpus, nodes: of the attempt; gpus -1: not known
    nodes: int = 0

    @property
    def failed(self) -> bool:
        """Is it a failure, of which one wants to know how often it comes? Not what somebody wanted, or what the next start of the
        step made good."""
        return not (self.by_others or self.drill) and bool(self.decided or self.unseen)

    @property
    def rung(self) -> str:
        return self.decided[-1].rung if self.decided else ""


class Ratio(Value):
    """A share of time that is known within bounds only; they are equal where all is known."""

    low: float
    high: float


class Spent(Value):
    """stretches: without gaps, in order. began, ended: of the first and the last. misfits: records whose times fit no order.

    tells_steps: has the program ever said how far it is? rank_restarts: of single ranks, while the others went on.
    """

    stretches: tuple[Stretch, ...] = ()
    outages: tuple[Outage, ...] = ()
    misfits: int = 0
    tells_steps: bool = False
    rank_restarts: int = 0

    @property
    def began(self) -> float:
        return self.stretches[0].begin if self.stretches else 0.0

    @property
    def ended(self) -> float:
        return self.stretches[-1].end if self.stretches else 0.0

    @property
    def whole_s(self) -> float:
        return self.ended - self.began

    @property
    def parts(self) -> Mapping[Part, float]:
        """Seconds of each part, also of those that did not occur; they add up to `whole_s`."""
        return seconds_of(self.stretches)

    @property
    def ettr(self) -> Ratio | None:
        """Effective training time ratio: productive time of all, less what the script did without ftrun. None: no time."""
        return ettr(self.parts)

    def by_outage(self) -> list[list[Stretch]]:
        """What is owed to each."""
        found: list[list[Stretch]] = [[] for _ in self.outages]
        for stretch in self.stretches:
            if stretch.outage >= 0:
                found[stretch.outage].append(stretch)
        return found


def seconds_of(stretches: Iterable[Stretch]) -> dict[Part, float]:
    found = dict.fromkeys(Part, 0.0)
    for stretch in stretches:
        found[stretch.part] += stretch.seconds
    return found


def ettr(parts: Mapping[Part, float]) -> Ratio | None:
    whole = sum(parts.values()) - parts.get(Part.OUTSIDE, 0.0)
    if whole <= 0:
        return None
    least, unsure = parts.get(Part.TRAINING, 0.0), sum(parts.get(part, 0.0) for part in UNSURE)
    return Ratio(min(1.0, least / whole), min(1.0, (least + unsure) / whole))


def spent(records: Sequence[rec.Record], now: float, over: bool) -> Spent:
    """now: Unix seconds. over: nothing of the job can follow any more, so its last record is its end."""
    times, misfits = in_order([min(record.at, now) for record in records])
    walk = _Walk(records)
    for record, at in zip(records, times, strict=True):
        walk.see(record, at)
    if times:
        walk.close(times[-1] if over else max(now, times[-1]))
    alone = sum(isinstance(record, rec.Decided) and record.rung == Rung.RANK_RESTART for record in records)
    return Spent(tuple(walk.found), tuple(walk.outages), misfits, walk.tells_steps, alone)


def in_order(times: Sequence[float]) -> tuple[list[float], int]:
    """The same, never falling, and how many do not fit: a damaged line, a clock that was set. Such a record is taken to be as old
    as the one before it.

    What fits is the longest sequence that does not fall; a time without a value (0) never does.
    """
    ends: list[int] = []  # place of the last time of the best sequence of each length
    before: dict[int, int] = {}  # place -> of the time before it in the best sequence that it ends
    for place, time in enumerate(times):
        if time > 0:
            length = bisect_right(ends, time, key=times.__getitem__)
            before[place] = ends[length - 1] if length else -1
            ends[length : length + 1] = [place]
    kept: set[int] = set()
    last = ends[-1] if ends else -1
    while last >= 0:
        kept.add(last)
        last = before[last]
    now, fitted = times[min(kept)] if kept else 0.0, []
    for place, time in enumerate(times):
        now = time if place in kept else now
        fitted.append(now)
    return fitted, len(times) - len(kept)


class _Walk:
    """Goes through a ledger once. `part` has gone on since `at`."""

    def __init__(self, records: Sequence[rec.Record]) -> None:
        self.found: list[Stretch] = []
        self.outages: list[Outage] = []
        self.at = 0.0
        self.part = Part.STARTING
        self.attempt: rec.AttemptBegan | None = None
        self.run: rec.RunBegan | None = None
        self.gpus, self.nodes = -1, 0
        self.finished = False
        self.outage = -1  # what the time now is owed to
        self.open = False  # does it wait for its answer?
        self.hung_since = 0.0  # the ranks seem to hang, and nobody does anything about it
        self.program = 0.0  # of this step, seconds that ranks ran
        self.seen_keys: set[str] = set()
        self._with_steps = {record.attempt for record in records if isinstance(record, rec.StepReached)}
        self._keys_with_steps: set[str] = set()
        self._alone = _of_one_rank(records)
        self._learned = _learned_later(records)
        self.tells_steps = bool(self._with_steps)
        self._ends = {record.attempt: record for record in records if isinstance(record, rec.AttemptEnded)}
        self._furthest = 0
        self._to_redo = 0.0  # seconds of work that may have been done before
        self._unseen: rec.TroubleSeen | None = None  # how the ftrun before ended, as the next one has found out

    # --- time

    def close(self, until: float) -> None:
        """What has gone on lasts until then."""
        hung = self.part in _RAN and self.hung_since
        if hung:
            self._add(min(max(self.hung_since, self.at), until), self.part)
        self._add(until, Part.UNKNOWN if hung else self.part)

    def _add(self, until: float, part: Part) -> None:
        until = max(until, self.at)
        if part is Part.NEW_OR_REDONE:  # no faster than before, a restart redoes at most what had been done
            known = min(until, self.at + max(0.0, self._to_redo))
            self._put(known, part)
            if until > known:
                self.outage, part = -1, Part.TRAINING
        self._put(until, part)

    def _put(self, until: float, part: Part) -> None:
        if until > self.at:
            attempt = self.attempt.attempt if self.attempt else 0
            owed = -1 if part in (Part.TRAINING, Part.OUTSIDE) else self.outage
            self.found.append(Stretch(self.at, until, part, attempt, owed, self.gpus, self.nodes))
            if part in (Part.TRAINING, Part.NEW_OR_REDONE):
                self.program += until - self.at
                self._to_redo -= until - self.at
            self.at = until

    def _turn(self, at: float, part: Part) -> None:
        self.close(at)
        self.part = part
        self.hung_since = 0.0

    # --- records

    def see(self, record: rec.Record, at: float) -> None:
        if not self.at:
            self.at = at
        if id(record) in self._learned:
            self._unseen = record if isinstance(record, rec.TroubleSeen) else self._unseen
            return
        match record:
            case rec.RunBegan():
                self._run_began(record, at)
            case rec.AttemptBegan():
                self._attempt_began(record, at)
            case rec.StepReached():
                self._step_reached(record, at)
            case rec.TroubleSeen():
                self._trouble_seen(record, at)
            case rec.HangSeen() if record.since and self.part in _RAN:
                self.hung_since = min(max(record.since, self.at), at)
            case rec.HangEnded() if self.part in _RAN and self.hung_since:
                self._turn(at, self.part)  # it was none, or is over: nobody knows which
            case rec.Paused() if self.part in _RAN and self.hung_since:
                self._went_on(record, at)
            case rec.AttemptEnded():
                self._attempt_ended(record, at)
            case rec.Diagnosed() if self._answering:
                self._change(verdict=record, drill=self.outages[self.outage].drill or record.drill)
            case rec.Decided() if record.rung != Rung.RANK_RESTART:
                self._decided(record, at)
            case rec.CarriedOut(ok=False) if self._answering and self.part is Part.WAITING:
                self._turn(at, Part.DECIDING)
            case rec.Waiting() if record.what and self.part is Part.STARTING and self.attempt is None:
                self._turn(at, Part.WAITING)
            case rec.Finished():
                self._finished(record, at)
            case _:
                pass

    @property
    def _answering(self) -> bool:
        return self.open and self.outage >= 0

    def _change(self, **values: object) -> None:
        self.outages[self.outage] = replace(self.outages[self.outage], **values)  # type: ignore[arg-type]

    def _begin_outage(self, outage: Outage) -> None:
        self.outage, self.open = len(self.outages), True
        self.outages.append(replace(outage, gpus=self.gpus, nodes=self.nodes))

    def _run_began(self, run: rec.RunBegan, at: float) -> None:
        last, unseen = self.run, self._unseen
        self.run, self._unseen = run, None
        again = last is not None and run.schedule > last.schedule
        granted = float(run.start_time) if run.start_time and self.at < run.start_time < at else at
        if last is None:
            self._turn(at, Part.STARTING)
        elif self.finished and not again:
            self._turn(at, Part.STARTING)
            self.outage, self.open = -1, False
        else:
            if self.part in _RAN:  # nobody lived to write the end down
                self._cut_short(run, at, granted, unseen, again)
            elif not self.finished and again and self.part is not Part.WAITING:
                self._turn(self.at, Part.WAITING)
            self._turn(granted if again else at, Part.STARTING)
        self.attempt, self.finished = None, False

    def _cut_short(self, run: rec.RunBegan, at: float, granted: float, unseen: rec.TroubleSeen | None, again: bool) -> None:
        clean = float(run.submit_time) if again and self.at < run.submit_time < granted else granted
        self.close(max(self.at, clean - UNSEEN_S))
        cause = unseen.cause if unseen else "outside" if again else "lost"
        what = unseen.words if unseen else "requeued by Slurm or by somebody" if again else "its ftrun was killed"
        attempt = self.attempt.attempt if self.attempt else 0
        self._begin_outage(Outage(clean, attempt, cause, what, by_others=cause == "outside", unseen=True))
        self.part = Part.UNKNOWN
        self._turn(clean, Part.WAITING)

    def _attempt_began(self, begun: rec.AttemptBegan, at: float) -> None:
        if self.part in _RAN and self.attempt is not None:  # the record of its end is missing
            self._begin_outage(Outage(at, self.attempt.attempt, "lost", "its end was not recorded", unseen=True))
            self.close(max(self.at, at - UNSEEN_S))
            self.part = Part.UNKNOWN
        launched = min(max(begun.launched, self.at), at) if begun.launched else 0.0
        if launched and (self.part is not Part.STARTING or self.attempt is not None):
            self._turn(launched, Part.STARTING)
        self.close(at)
        first = begun.step_key not in self.seen_keys
        if first:
            self.program, self._furthest = 0.0, 0
            self.seen_keys.add(begun.step_key)
        self.attempt, self.nodes = begun, count_nodes(begun.nodes)
        self.gpus = sum(unfold_counts(begun.gpus)) if begun.gpus else -1
        self.hung_since = 0.0
        if self.outage >= 0 and self.open:
            self._change(back=at)
        self.open = False
        self._to_redo = self.program
        self.part = self._as_it_begins(begun, first)

    def _as_it_begins(self, begun: rec.AttemptBegan, first: bool) -> Part:
        if begun.attempt in self._with_steps or (begun.step_key in self._keys_with_steps and begun.launched):
            return Part.STARTING  # until its first step
        if first or not self.program:
            self.outage = -1
            return Part.TRAINING
        ended = self._ends.get(begun.attempt)
        if ended is not None and 0 < ended.step <= self._furthest:
            return Part.REDONE
        return Part.NEW_OR_REDONE

    def _step_reached(self, reached: rec.StepReached, at: float) -> None:
        if self.attempt is None or reached.attempt != self.attempt.attempt or self.part not in (Part.STARTING, *_RAN):
            return
        self._keys_with_steps.add(self.attempt.step_key)
        if not reached.further and self.part is Part.STARTING:
            self._turn(at, Part.REDONE)
        elif reached.further:
            self._turn(at, Part.TRAINING)
            self.outage = -1

    def _trouble_seen(self, seen: rec.TroubleSeen, at: float) -> None:
        if id(seen) in self._alone:
            return
        if self._answering and self.part in (Part.STOPPING, Part.DECIDING):
            return  # one thing leads to another
        began = seen.since or self.hung_since
        since = min(max(began, self.at), at) if began else at
        self.hung_since = 0.0
        self.close(since)
        by_others = seen.cause == "warning"
        self._begin_outage(Outage(at, seen.attempt, seen.cause, seen.words, began, by_others=by_others, drill=bool(seen.drill)))
        self.part = Part.NOTICING
        self._turn(at, Part.STOPPING)

    def _went_on(self, pause: rec.Paused, at: float) -> None:
        """It hung, and nobody had to do anything."""
        since = min(max(at - pause.seconds, self.at), at)
        part, owed, self.hung_since = self.part, self.outage, 0.0
        self.close(since)
        self.outage = -1
        self.part = Part.WAITING
        self._turn(at, part)
        self.outage = owed

    def _attempt_ended(self, ended: rec.AttemptEnded, at: float) -> None:
        self._furthest = max(self._furthest, ended.step)
        if self._answering:
            stopped = min(max(ended.stopped, self.at), at) if ended.stopped else at
            if self.part is Part.STOPPING:
                self._turn(stopped, Part.DECIDING)
        elif self.part in (Part.STARTING, *_RAN) and self.attempt is not None and ended.attempt == self.attempt.attempt:
            self._turn(at, Part.STOPPING)  # all is done
            self.outage = -1

    def _decided(self, decided: rec.Decided, at: float) -> None:
        if not self._answering:
            self._begin_outage(Outage(at, decided.attempt, decided.cause, decided.why, by_others=decided.cause == "warning"))
        self._change(decided=(*self.outages[self.outage].decided, decided))
        if self.part in _RAN:
            self._turn(at, Part.DECIDING)
        self._turn(at, Part.STOPPING if decided.rung == Rung.FAIL else Part.WAITING)

    def _finished(self, finished: rec.Finished, at: float) -> None:
        outcome = outcome_of(finished)
        if self._answering and outcome.by_others:
            self._change(by_others=True)
        goes_on = outcome.goes_on
        if goes_on and self.part in _RAN:
            self._begin_outage(Outage(at, self.attempt.attempt if self.attempt else 0, "outside", finished.what, by_others=True))
        self.finished = True
        self._turn(at, Part.WAITING if goes_on else Part.OUTSIDE)


def _of_one_rank(records: Sequence[rec.Record]) -> frozenset[int]:
    """Troubles (by id()) that only one rank of an async job had: the ladder started that one again, and no attempt ended."""
    found: set[int] = set()
    others = [each for each in records if isinstance(each, rec.Decided | rec.AttemptEnded | rec.AttemptBegan)]
    answer = others[-1] if others else None  # at the end: that the ladder gives again
    for record in reversed(records):
        if isinstance(record, rec.Decided | rec.AttemptEnded | rec.AttemptBegan):
            answer = record
        elif isinstance(record, rec.TroubleSeen) and isinstance(answer, rec.Decided) and answer.rung == Rung.RANK_RESTART:
            found.add(id(record))
    return frozenset(found)


def _learned_later(records: Sequence[rec.Record]) -> frozenset[int]:
    """Records (by id()) that an ftrun wrote of the one before it: right before its own first, and in the same moment."""
    found: set[int] = set()
    next_run: rec.RunBegan | None = None
    for record in reversed(records):
        if isinstance(record, rec.RunBegan):
            next_run = record
        elif next_run is not None and isinstance(record, rec.TroubleSeen | rec.AttemptEnded) and record.at == next_run.at:
            found.add(id(record))
        else:
            next_run = None
    return frozenset(found)

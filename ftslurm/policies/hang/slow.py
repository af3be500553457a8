"""Which ranks are slow? Ranks are compared with each other, and the job with its own past.

Both rules need no clocks that agree. A rank that is slow outside communication makes all others wait, so it waits least
itself. A collective takes as long as for whom came last, who waits for nobody: the shortest stay of any member is the
transfer. Where the host does not wait (collectives issued by native code), the moments at which the ranks enter serve,
and those need clocks within about a millisecond of each other; of transfers they tell nothing, so slow links need L2.

Not seen: a link that is slow from the first step, and what is equally slow everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from ftslurm.model.averages import fmean, median
from ftslurm.model.collectives import Culprit, CulpritKind, EntryTimes, Level, WaitTimes, fold_ranks
from ftslurm.model.events import RanksCompared
from ftslurm.model.values import Value, field, replace

# The numbers of the rules; measured on jobs of 2 to 4 ranks over TCP.
WAITS = 60  # in a window, of each rank
RATIO = 1.3  # time outside communication, to the others' median
STEP_SHARE = 0.10  # and as much of a step at least
WINDOWS = 3  # in which it must be the same rank
WARM_WINDOWS, BASELINE_WINDOWS = 2, 5
TRANSFER_RATIO, TRANSFER_SIGMAS = 1.25, 4.0  # to the job's own past
TRANSFER_SHARE = 0.03  # of a step at least
TRANSFER_WINDOWS = 4
LINK_RATIO = 1.25  # busy time per MB sent, to the others' median
PAUSE_RATIO = 2.0


class Window(Value):
    """Some steps of a job. outside_s, inside_s: rank -> mean seconds before and in a wait. transfer_s: mean shortest stay.

    sent_mb, busy_ms: rank -> MB that its sockets have sent so far, and for how long they were busy.
    """

    outside_s: Mapping[int, float]
    inside_s: Mapping[int, float]
    transfer_s: float | None
    sent_mb: Mapping[int, float] = field(default_factory=dict)
    busy_ms: Mapping[int, float] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        return median(self.outside_s[rank] + self.inside_s[rank] for rank in self.outside_s)


class Baseline(Value):
    transfer_s: float
    spread_s: float
    sent_mb: Mapping[int, float]
    busy_ms: Mapping[int, float]


class SlowMemory(Value):
    """What the last windows showed."""

    seen: int = 0
    slow: tuple[frozenset[int], ...] = ()
    transfers: tuple[float, ...] = ()
    baseline: Baseline | None = None
    over: int = 0


def window(waits: Iterable[WaitTimes]) -> Window | None:
    """The waits of all ranks as one window; None if a rank has too few of them."""
    by_rank = {each.rank: each for each in waits}
    if len(by_rank) < 2 or any(each.count < WAITS for each in by_rank.values()):
        return None
    return Window(
        {rank: each.outside_s for rank, each in by_rank.items()},
        {rank: each.inside_s for rank, each in by_rank.items()},
        _transfer_s(by_rank.values()),
        {rank: each.sent_mb for rank, each in by_rank.items() if each.sent_mb is not None},
        {rank: each.busy_ms for rank, each in by_rank.items() if each.busy_ms is not None},
        {rank: each.node for rank, each in by_rank.items()},
    )


def _transfer_s(waits: Iterable[WaitTimes]) -> float | None:
    """The mean shortest stay, in seconds, over collectives that every rank of the group has reported."""
    stays: dict[str, list[dict[int, int]]] = {}
    for each in waits:
        for told in each.stays:
            stays.setdefault(told.key, []).append(dict(enumerate(told.stays_us, told.first)))
    shortest = []
    for members in stays.values():
        if len(members) > 1:
            common = set(members[0]).intersection(*members[1:])
            shortest += [min(stays[number] for stays in members) for number in common]
    return fmean(shortest) / 1e6 if shortest else None


def see(memory: SlowMemory, seen: Window) -> tuple[SlowMemory, Culprit | None]:
    """The finding after one more window, if any. Call with every window, in order."""
    memory = replace(memory, seen=memory.seen + 1)
    memory, finding = _outside(memory, seen)
    if finding:
        return memory, finding
    return _transfer(memory, seen)


def _outside(memory: SlowMemory, seen: Window) -> tuple[SlowMemory, Culprit | None]:
    """RankNonCommSlow: the same ranks stay longer outside communication than the others, window after window."""
    slow = frozenset(rank for rank in seen.outside_s if _stands_out(rank, seen))
    memory = replace(memory, slow=(*memory.slow, slow)[-WINDOWS:])
    lasting = frozenset.intersection(*memory.slow)
    if len(memory.slow) < WINDOWS or not lasting:
        return memory, None
    usual = median(seen.outside_s.values())
    told = ", ".join(f"rank {rank} {seen.outside_s[rank] * 1e3:.1f} ms" for rank in sorted(lasting)[:8])
    cause = f"spends longer outside communication than the others: {told}; median {usual * 1e3:.1f} ms"
    return memory, _finding(CulpritKind.NON_COMM_SLOW, lasting, seen.nodes, cause)


def _stands_out(rank: int, seen: Window) -> bool:
    # Of the time that passes, which is the same for all: one may wait more often in a step than another.
    shares = {each: outside / max(outside + seen.inside_s[each], 1e-9) for each, outside in seen.outside_s.items()}
    others = median(share for other, share in shares.items() if other != rank)
    return shares[rank] > RATIO * others and shares[rank] - others > STEP_SHARE


def _transfer(memory: SlowMemory, seen: Window) -> tuple[SlowMemory, Culprit | None]:
    """RankCommSlow: transfers take longer than they did, and one sender is busier for what it sends than the others."""
    if seen.transfer_s is None or memory.seen <= WARM_WINDOWS:
        return memory, None
    if memory.baseline is None:
        return _learn(memory, seen, seen.transfer_s), None
    usual = memory.baseline
    limit_s = max(TRANSFER_RATIO * usual.transfer_s, usual.transfer_s + TRANSFER_SIGMAS * usual.spread_s)
    slower = seen.transfer_s > limit_s and seen.transfer_s - usual.transfer_s > TRANSFER_SHARE * seen.step_s
    memory = replace(memory, over=memory.over + 1 if slower else 0)
    if memory.over < TRANSFER_WINDOWS:
        return memory, None
    cause = f"a transfer takes {seen.transfer_s * 1e3:.2f} ms, {usual.transfer_s * 1e3:.2f} ms before"
    costs = _cost_per_mb(usual, seen)
    worst = max(costs, key=lambda rank: costs[rank], default=None)
    told = tuple(f"rank {rank}: {cost:.2f} ms busy per MB sent" for rank, cost in sorted(costs.items()))
    if worst is None or len(costs) < 2 or costs[worst] <= LINK_RATIO * median(c for r, c in costs.items() if r != worst):
        return replace(memory, over=0), _finding(CulpritKind.COMM_SLOW, (), seen.nodes, f"{cause}; no link stands out", told)
    return memory, _finding(CulpritKind.COMM_SLOW, (worst,), seen.nodes, cause, told)


def _learn(memory: SlowMemory, seen: Window, transfer_s: float) -> SlowMemory:
    transfers = (*memory.transfers, transfer_s)
    if len(transfers) < BASELINE_WINDOWS:
        return replace(memory, transfers=transfers)
    middle = median(transfers)
    # The median of deviations, as a standard deviation; a quiet job has hardly any, so 4 % at least.
    spread = max(1.4826 * median(abs(each - middle) for each in transfers), 0.04 * middle)
    return replace(memory, transfers=(), baseline=Baseline(middle, spread, seen.sent_mb, seen.busy_ms))


def _cost_per_mb(usual: Baseline, seen: Window) -> dict[int, float]:
    """Rank -> milliseconds that its sockets were busy for each MB since the baseline."""
    found = {}
    for rank in seen.sent_mb.keys() & seen.busy_ms.keys() & usual.sent_mb.keys() & usual.busy_ms.keys():
        sent = seen.sent_mb[rank] - usual.sent_mb[rank]
        if sent > 0.1:
            found[rank] = (seen.busy_ms[rank] - usual.busy_ms[rank]) / sent
    return found


def see_enters(memory: SlowMemory, enters: Iterable[EntryTimes]) -> tuple[SlowMemory, Culprit | None]:
    """RankNonCommSlow from the moments at which the ranks entered; call every few seconds with all of them."""
    together = between_enters(enters)
    return see(memory, together) if together is not None else (memory, None)


def between_enters(enters: Iterable[EntryTimes]) -> Window | None:
    """The enters of all groups side by side, as a window; None if a rank has too few of them to tell.

    A rank is outside from the moment at which the last member has come to what it entered before, in whatever group that was,
    to its next enter. So in a job without collectives of all ranks (tensor and data parallel groups) nobody is taken for
    slow who had to wait in one group and came late to the next.
    """
    told = [each for each in enters if each.times_ns]
    nodes = {each.rank: each.node for each in told}
    arrived = _last_arrivals(told)
    since = _common_start(told)
    found: dict[int, tuple[float, float]] = {}
    for rank in nodes:
        mine = sorted(
            (at, each.key, number) for each in told if each.rank == rank
            for number, at in enumerate(each.times_ns, each.first) if at >= since
        )  # fmt: skip
        spans = _spans(mine, arrived)
        if len(spans) < WAITS:
            return None
        found[rank] = steady_means(spans)
    if len(found) < 2:
        return None
    outside_s, inside_s = ({rank: both[place] for rank, both in found.items()} for place in (0, 1))
    return Window(outside_s, inside_s, None, nodes=nodes)


def _last_arrivals(told: Sequence[EntryTimes]) -> dict[tuple[str, int], int]:
    """(group, number) -> when the last of the ranks that tell of the group entered it; only of what all of them have entered."""
    groups: dict[str, list[EntryTimes]] = {}
    for each in told:
        groups.setdefault(each.key, []).append(each)
    found = {}
    for key, members in groups.items():
        first = max(each.first for each in members)
        end = min(each.first + len(each.times_ns) for each in members)
        for number in range(first, end if len(members) > 1 else first):
            found[key, number] = max(each.times_ns[number - each.first] for each in members)
    return found


def _common_start(told: Sequence[EntryTimes]) -> int:
    """From when on every rank tells of all its groups; of a group with few collectives nothing was cut off."""
    return max((each.times_ns[0] for each in told if len(each.times_ns) >= WAITS), default=0)


def _spans(mine: Sequence[tuple[int, str, int]], arrived: Mapping[tuple[str, int], int]) -> list[tuple[float, float]]:
    """Seconds (outside, inside) between each enter of a rank and its next."""
    spans: list[tuple[float, float]] = []
    latest: dict[str, int] = {}  # group -> when the last member came to what this rank entered there
    for (at, key, number), (next_at, _, _) in pairwise(mine):
        latest[key] = arrived.get((key, number), 0)
        if not latest[key]:  # not known how long it waited
            continue
        gap = next_at - at
        free = min(gap, max(0, next_at - max(latest.values())))
        spans.append((free / 1e9, (gap - free) / 1e9))
    return spans


def steady_means(spans: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The means of (outside, inside) without rare pauses: a garbage collection or a busy machine takes single steps of whomever,
    and of all others the time that they wait for it; a slow rank is so in each step.

    Left out is what takes twice as long as three in four of the steps do. Steps are the spans that are not much shorter than the
    longest but for some few; what lies between the collectives of one step is none.
    """
    falling = sorted((outside + inside for outside, inside in spans), reverse=True)
    if len(falling) >= 4:
        usual = falling[max(3, len(falling) // 20 - 3)]
        steps = sum(span > usual / 4 for span in falling)
        longest = PAUSE_RATIO * falling[max(1, steps // 4)]
        spans = [(outside, inside) for outside, inside in spans if outside + inside <= longest]
    return (fmean(outside for outside, _ in spans), fmean(inside for _, inside in spans)) if spans else (0.0, 0.0)


class SlowWatch(Value, frozen=False):
    """Joins what the agents tell when they are asked; a round is judged when all of them have answered."""

    memory: SlowMemory = field(default_factory=SlowMemory)
    _told: Culprit | None = None
    _answers: dict[str, RanksCompared] = field(default_factory=dict)

    def ask(self) -> None:
        """Begin a round."""
        self._answers.clear()

    def seen(self, answer: RanksCompared, nodes: Collection[str], ranks: int) -> Culprit | None:
        """A finding that is new and names a rank. ranks: how many there are."""
        self._answers[answer.node] = answer
        if not set(nodes) <= self._answers.keys():
            return None
        waits = [each for told in self._answers.values() for each in told.waits]
        enters = [each for told in self._answers.values() for each in told.enters]
        self._answers.clear()
        finding = None
        if len(waits) >= ranks:
            together = window(waits)
            if together is not None:
                self.memory, finding = see(self.memory, together)
        elif len({each.rank for each in enters}) >= ranks:
            self.memory, finding = see_enters(self.memory, enters)
        if finding is None or not finding.ranks or finding.same(self._told):
            return None
        self._told = finding
        return finding


def _finding(
    kind: CulpritKind, ranks: Iterable[int], nodes: Mapping[int, str], cause: str, evidence: tuple[str, ...] = ()
) -> Culprit:
    named = tuple(sorted(ranks))
    where = tuple(dict.fromkeys(nodes[rank] for rank in named if rank in nodes))
    return Culprit(kind, named, where, "", cause, Level.INFO, evidence or (f"rank {fold_ranks(named)}",) if named else evidence)

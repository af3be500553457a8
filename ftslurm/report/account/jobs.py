"""Many jobs as one report tells them: what failed most and where, how much of the time was training, how far apart failures
come, what the remedies saved. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, lgamma, log
from statistics import median

from ftslurm.model.values import Value, field
from ftslurm.report.account.job import Failure, JobAccount, NodeEvent, Saved
from ftslurm.report.account.parts import Part, Ratio, Stretch, ettr

LEVEL = 0.95
METHOD = (
    "exact Poisson interval (Garwood 1936): for n failures in the time T it goes from 2T/q to 2T/p, where q and p are quantiles "
    "of chi-square with 2n+2 and 2n degrees of freedom; failures are taken to come independently, at one rate while ranks run"
)


class Mtbf(Value):
    """count: failures in `exposure_s`. mean_s: 0 failures give none. low_s, high_s: of the interval; None: no end."""

    count: int
    exposure_s: float
    mean_s: float | None
    low_s: float
    high_s: float | None
    level: float = LEVEL


def mtbf(count: int, exposure_s: float, level: float = LEVEL) -> Mtbf:
    """The time of observation ends by itself and not with a failure."""
    tail = (1 - level) / 2
    most = _mean_with(count, tail)
    least = _mean_with(count - 1, 1 - tail) if count else 0.0
    high_s = exposure_s / least if least else None
    return Mtbf(count, exposure_s, exposure_s / count if count else None, exposure_s / most, high_s, level)


def _mean_with(count: int, share: float) -> float:
    """The mean of the Poisson distribution of which `share` lies at `count` and below."""
    low, high = 0.0, 2.0 * count + 20.0
    for _ in range(80):
        middle = (low + high) / 2
        at_most = sum(exp(k * log(middle) - middle - lgamma(k + 1)) for k in range(count + 1))
        low, high = (middle, high) if at_most > share else (low, middle)
    return (low + high) / 2


# --- many jobs as one report tells them: what failed most and where, how much of the time was training, how far apart failures

DAY_S = 86400.0
# More than a year of days are shown by the week, more than seven years by the month; a bar needs some width.
_BINS_MOST = 400
_RAN = frozenset({Part.TRAINING, Part.REDONE, Part.NEW_OR_REDONE})
_OF_NODES = frozenset({"device", "node"})


class FailureKind(Value):
    """Failures of one name."""

    name: str
    error_class: str
    count: int
    jobs: tuple[str, ...]
    nodes: tuple[str, ...]
    lost_s: float
    lost_gpu_s: float  # of jobs whose GPUs are known
    rungs: Mapping[str, int]  # how often each answered
    example: str
    last_at: float


class NodeLine(Value):
    """failures: that the node was to blame for. faults: of its devices. excluded, reinstated: how often. why: the last word."""

    node: str
    failures: int
    faults: int
    excluded: int
    reinstated: int
    jobs: tuple[str, ...]
    why: str
    last_at: float


class RungLine(Value):
    """A rung: how often it was taken, how often ranks ran again after it, and the median of the time until then."""

    rung: str
    taken: int
    back: int
    median_s: float | None


class Bin(Value):
    """From at on (Unix seconds). parts: seconds, each weighted as in JobsAccount.parts."""

    at: float
    width_s: float
    parts: Mapping[Part, float]
    failures: int


class JobsAccount(Value):
    """What all jobs of a time have used and lost."""

    began: float  # began, ended: of the period, Unix seconds
    ended: float
    jobs: tuple[JobAccount, ...]
    unit: str  # of parts and lost: `GPU` where the GPUs of every job are known, else `node`
    parts: Mapping[Part, float]  # seconds times those
    goodput: Ratio | None  # productive of all
    failures: int
    drills: int
    interruptions: int
    kinds: tuple[FailureKind, ...]
    nodes: tuple[NodeLine, ...]
    rungs: tuple[RungLine, ...]
    # by_job, by_node, by_gpu: MTBF per job, per node, per GPU; the latter two of failures that a node or a device is behind.
    # ran_s: seconds that ranks ran.
    by_job: Mtbf
    by_node: Mtbf
    by_gpu: Mtbf | None
    saved: Saved
    bins: tuple[Bin, ...] = ()
    states: Mapping[str, int] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()


def jobs_account(jobs: Sequence[JobAccount], began: float, ended: float, passed_over: Iterable[str] = ()) -> JobsAccount:
    """jobs: from `began` on only (job.since). passed_over: ledgers that could not be read, and why."""
    ran = [stretch for job in jobs for stretch in job.spent.stretches if stretch.part in _RAN]
    gpus_known = bool(ran) and all(stretch.gpus > 0 for stretch in ran)
    weight: Callable[[JobAccount, Stretch], float] = _by_gpu if gpus_known else _by_node
    parts = dict.fromkeys(Part, 0.0)
    for job in jobs:
        for stretch in job.spent.stretches:
            parts[stretch.part] += stretch.seconds * weight(job, stretch)
    every = [(job, one) for job in jobs for one in job.failures]
    failed = [(job, one) for job, one in every if one.outage.failed]
    of_nodes = sum(_is_nodes(job, one) for job, one in failed)
    node_s = sum(stretch.seconds * max(1, stretch.nodes) for stretch in ran)
    return JobsAccount(
        began, ended, tuple(sorted(jobs, key=lambda job: -job.lost_s)), "GPU" if gpus_known else "node", parts, ettr(parts),
        len(failed), sum(one.outage.drill for _, one in every), sum(one.outage.by_others for _, one in every),
        _kinds(failed), _nodes(jobs, failed), _rungs(every),
        mtbf(len(failed), sum(stretch.seconds for stretch in ran)), mtbf(of_nodes, node_s),
        mtbf(of_nodes, sum(stretch.seconds * stretch.gpus for stretch in ran)) if gpus_known else None,
        Saved(
            sum(job.saved.outages for job in jobs), sum(job.saved.seconds for job in jobs), sum(job.saved.gpu_s for job in jobs),
        ),
        _bins(jobs, failed, began, ended, weight), Counter(job.summary.state for job in jobs), tuple(passed_over),
    )  # fmt: skip


def _by_gpu(job: JobAccount, stretch: Stretch) -> float:
    """A start that nobody lived to see has none yet: those that the job had at last."""
    return float(stretch.gpus if stretch.gpus > 0 else max(job.gpus, 0))


def _by_node(job: JobAccount, stretch: Stretch) -> float:
    return float(stretch.nodes or max((one.nodes for one in job.spent.stretches), default=1) or 1)


def _is_nodes(job: JobAccount, one: Failure) -> bool:
    """Is a node or a device behind it, as far as the job has learned since? A node that was reinstated is not to blame."""
    return one.outage.cause in _OF_NODES or bool(set(one.nodes) - job.reinstated.keys())


def _kinds(failed: Sequence[tuple[JobAccount, Failure]]) -> tuple[FailureKind, ...]:
    groups: dict[tuple[str, str], list[tuple[JobAccount, Failure]]] = {}
    for job, one in failed:
        groups.setdefault((one.name, one.error_class), []).append((job, one))
    found = [
        FailureKind(
            name, error_class, len(group), _sorted(job.summary.job for job, _ in group),
            _sorted(node for _, one in group for node in one.nodes),
            sum(one.lost_s for _, one in group), sum(one.lost_s * max(0, one.outage.gpus) for _, one in group),
            Counter(one.remedy for _, one in group), group[-1][1].outage.what,
            max(one.outage.at for _, one in group),
        )
        for (name, error_class), group in groups.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda kind: (-kind.count, -kind.lost_s, kind.name)))


def _sorted(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words), key=lambda word: (len(word), word)))


def _nodes(jobs: Sequence[JobAccount], failed: Sequence[tuple[JobAccount, Failure]]) -> tuple[NodeLine, ...]:
    blamed = [(job, NodeEvent(one.outage.at, node, "blamed", one.outage.what)) for job, one in failed for node in one.nodes]
    events: dict[str, list[tuple[str, NodeEvent]]] = {}
    for whose, event in (*blamed, *((job, event) for job in jobs for event in job.events if event.what != "lent")):
        events.setdefault(event.node, []).append((whose.summary.job, event))
    lines = []
    for node, mine in events.items():
        count, last = Counter(event.what for _, event in mine), max((event for _, event in mine), key=lambda event: event.at)
        excluded, concerned = count["excluded"] + count["refused"], _sorted(job for job, _ in mine)
        lines.append(NodeLine(node, count["blamed"], count["fault"], excluded, count["reinstated"], concerned, last.why, last.at))
    return tuple(sorted(lines, key=lambda line: (-line.failures, -line.excluded, -line.faults, line.node)))


def _rungs(every: Sequence[tuple[JobAccount, Failure]]) -> tuple[RungLine, ...]:
    taken: dict[str, list[Failure]] = {}
    for _, one in every:
        if one.outage.rung:
            taken.setdefault(one.outage.rung, []).append(one)
    found = []
    for rung, group in taken.items():
        down = [one.outage.back - one.outage.at for one in group if one.outage.back]
        found.append(RungLine(rung, len(group), len(down), median(down) if down else None))
    return tuple(sorted(found, key=lambda line: (-line.taken, line.rung)))


def _bins(
    jobs: Sequence[JobAccount], failed: Sequence[tuple[JobAccount, Failure]], began: float, ended: float,
    weight: Callable[[JobAccount, Stretch], float],
) -> tuple[Bin, ...]:  # fmt: skip
    """By the hour up to two days, else by the day, else in as many as can be drawn."""
    began = max(began, min((job.began for job in jobs), default=began))
    if ended <= began:
        return ()
    width = 3600.0 if ended - began <= 2 * DAY_S else DAY_S
    width *= max(1, -(-int((ended - began) / width) // _BINS_MOST))
    first = began // width * width
    count = int((ended - first) // width) + 1

    def place_of(at: float) -> int:
        return min(max(int((at - first) // width), 0), count - 1)

    parts = [dict.fromkeys(Part, 0.0) for _ in range(count)]
    for job in jobs:
        for stretch in job.spent.stretches:
            for place in range(place_of(stretch.begin), place_of(stretch.end) + 1):
                begin = first + place * width
                seconds = min(stretch.end, begin + width) - max(stretch.begin, begin)
                parts[place][stretch.part] += max(0.0, seconds) * weight(job, stretch)
    failures = Counter(place_of(one.outage.at) for _, one in failed)
    return tuple(Bin(first + place * width, width, each, failures[place]) for place, each in enumerate(parts))

"""Intervals between two signs of progress, as training jobs have them: steady, with checkpoints, and messy."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ftslurm.model.folds.past import usual_interval_s, with_pause
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.hang.stall_watch import PauseLimits, Stall, StallLimits, judge_pause

KINDS = ("steady", "ckpt", "messy")
TOLD_S = Settings().hang.c4d_timeout_s  # shorter pauses no agent tells of
Interval = tuple[float, bool]  # seconds; do the ranks that hold the others up show work?


def intervals(rng: random.Random, hours: float, kind: str) -> Iterator[Interval]:
    """Steps of 1 to 5 s with 3 % noise, 1 % slow ones. ckpt: and checkpoints (median 25 s, spread twofold). messy: some of
    them much longer, evaluations, drift, and silent stalls of the storage with a heavy tail."""
    usual = math.exp(rng.gauss(math.log(2.0), 0.5))
    checkpoint_every, checkpoint_s = rng.randrange(200, 800), math.exp(rng.gauss(math.log(25), 0.7))
    evaluate_every, evaluate_s = checkpoint_every * rng.randrange(2, 5), math.exp(rng.gauss(math.log(60), 0.6))
    passed, drift, step = 0.0, 1.0, 0
    first = [(usual * rng.uniform(3, 20), True) for _ in range(3)]  # autotuning, allocator, graph capture
    while passed < hours * 3600:
        step += 1
        length = usual * drift * math.exp(rng.gauss(0, 0.03))
        if rng.random() < 0.01:
            length *= rng.uniform(1.3, 3.0)
        if kind == "messy":
            if rng.random() < 0.0008:
                length += rng.paretovariate(1.8) * 8
            if rng.random() < 0.00005:
                drift = min(max(drift * rng.uniform(0.9, 1.25), 0.7), 2.5)
        found = [*first, (length, False)]
        if kind != "steady" and step % checkpoint_every == 0:
            pause = checkpoint_s * math.exp(rng.gauss(0, 0.25))
            if kind == "messy" and rng.random() < 0.05:
                pause *= rng.uniform(2, 6)
            found.append((pause, True))
        if kind == "messy" and step % evaluate_every == 0:
            found.append((evaluate_s * math.exp(rng.gauss(0, 0.3)), True))
        first = []
        for interval in found:
            passed += interval[0]
            yield interval


@dataclass
class Outcome:
    """alarms: of a job in which nothing hung. limits_s: after which a silent hang would be found, at random moments."""

    hours: float
    alarms: int
    limits_s: list[float]


def follow(found: Iterable[Interval], limits: StallLimits, rng: random.Random) -> Outcome:
    """As agents and judge do it: each interval is judged by what was learned before, the agents tell the usual interval of an
    attempt, and of pauses those that they told of. A false alarm restarts the job; how long its pause was nobody sees then."""
    learned, first, passed, alarms, quiet_s = PauseLimits(), list[float](), 0.0, 0, []
    act_s: dict[bool, float] = {}
    known: PauseLimits | None = None
    for length, busy in found:
        if learned is not known:
            act_s = {each: judge_pause(learned, 0.0, each, True, limits).act_s for each in (True, False)}
            known = learned
        passed += length
        if passed > 1800 and rng.random() < length / 3600:
            quiet_s.append(act_s[False])
        if length >= act_s[busy]:
            assert judge_pause(learned, length, busy, True, limits).stall is Stall.ACT
            alarms += 1  # there was progress since the last, so there is one in a row
            learned, first = replace(learned, usual_s=None, false_alarms=1), []
            continue
        if learned.usual_s is None:
            first.append(length)
            if (usual_s := usual_interval_s(first)) is not None:
                learned = replace(learned, usual_s=usual_s)
        if length >= TOLD_S:
            pauses = with_pause(learned.busy if busy else learned.quiet, length)
            learned = replace(learned, busy=pauses) if busy else replace(learned, quiet=pauses)
    return Outcome(passed / 3600, alarms, quiet_s)

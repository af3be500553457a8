"""The same seed gives the same campaign, and every kind of fault and job comes up in it."""

from __future__ import annotations

import itertools

from tests.chaos.faults import KINDS, TABLE, drawn
from tests.chaos.plan import SHAPES, jobs

EVERY = [(kind.name, kind.weight, kind.only) for kind in TABLE]


def test_a_seed_tells_all() -> None:
    first, again, other = (list(itertools.islice(jobs(seed, EVERY), 30)) for seed in (7, 7, 8))
    assert first == again != other


def test_every_kind_comes_up_in_two_hundred_faults_and_every_shape_in_forty_jobs() -> None:
    """But those that are drawn by name only."""
    for seed in range(5):
        plans = list(itertools.islice(jobs(seed, EVERY), 40))
        names = [strike.kind for plan in plans for strike in plan.strikes]
        assert {kind.name for kind in TABLE if kind.weight} == {*names[:280]}
        assert {plan.shape for plan in plans} == {shape.name for shape in SHAPES}


def test_faults_of_some_jobs_strike_no_others() -> None:
    special = {kind.name for kind in TABLE if kind.only}
    allowed = {shape.name: {*shape.extra, *shape.fixed} for shape in SHAPES}
    for plan in itertools.islice(jobs(3, EVERY), 60):
        assert {strike.kind for strike in plan.strikes} & special <= allowed[plan.shape]


def test_what_is_drawn_is_in_the_table() -> None:
    assert {name for name, _, _ in drawn()} <= KINDS.keys()

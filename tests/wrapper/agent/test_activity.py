"""Looking for life on one node, on a clock and processes that are only data."""

from __future__ import annotations

from typing import Any

from ftslurm.model.devices import Utilisation
from ftslurm.wrapper.agent.activity import FIRST_S, ActivityWatch


class World:
    """io, cpu: rank -> so far. Pids of shims are 1000 + rank."""

    def __init__(self, *ranks: int) -> None:
        self.now = 0.0
        self.io = dict.fromkeys(ranks, 0)
        self.cpu = dict.fromkeys(ranks, 0.0)
        self.percent: float | None = None
        self.kind = "test"

    def below(self, pid: int) -> tuple[dict[tuple[int, float], int], float]:
        rank = pid - 1000
        return {(pid, 1.0): self.io[rank]}, self.cpu[rank]

    def utilisation(self, timeout_s: float) -> tuple[Utilisation, ...]:
        return (Utilisation("0", "test", self.percent, None, None),)

    def run(self, life: ActivityWatch, seconds: float) -> list[dict[str, Any]]:
        """Wake it whenever it asks to be."""
        told: list[dict[str, Any]] = []
        until = self.now + seconds
        while (at := life.wakes_at) is not None and at <= until:
            self.now = max(self.now, at)
            told += life.turn(self.now)
        self.now = until
        return told


def watching(world: World, quiet_s: float = 60.0, probes: Any = ()) -> ActivityWatch:
    life = ActivityWatch(probes, world.below)
    life.watch([(rank, 1000 + rank) for rank in world.io], quiet_s, world.now)
    return life


def test_nothing_is_looked_at_before_it_is_asked_for() -> None:
    assert ActivityWatch((), World(0).below).wakes_at is None


def test_the_first_look_leaves_the_processor_to_the_ranks_that_start() -> None:
    assert watching(World(0)).wakes_at == FIRST_S


def test_quiet_is_told_once_and_life_once_again() -> None:
    world = World(0, 1)
    life = watching(world)
    assert not world.run(life, 59)
    (told,) = world.run(life, 30)
    assert told["t"] == "quiet" and 60 <= told["quiet_s"] <= 64 and "2 ranks" in told["what"]
    assert not world.run(life, 600)
    world.io[1] += 1 << 20
    assert [one["quiet_s"] for one in world.run(life, 10)] == [0.0]


def test_it_knows_which_rank_did_io_and_when() -> None:
    world = World(0, 1)
    life = watching(world)
    world.run(life, 20)
    assert not life.did_io()
    world.io[1] += 1 << 20
    at = world.now
    world.run(life, 40)
    assert life.did_io().keys() == {1} and at <= life.did_io()[1] <= at + 10


def test_a_look_now_and_then_is_enough_for_half_an_hour() -> None:
    world = World(0)
    life = watching(world, 1800.0)
    looks = 0
    while life.wakes_at is not None and life.wakes_at < 600:
        life.turn(life.wakes_at)
        looks += 1
    assert looks <= 61


def test_the_use_of_devices_is_sampled_and_judged() -> None:
    world = World(0)
    life = watching(world, probes=(world,))
    world.percent = 100.0
    life.sample_use(20.0, world.now)
    (told,) = [one for one in world.run(life, 25) if one["t"] == "use"]
    assert told["unchanged"] is True and "100 %" in told["what"]


def test_without_devices_the_cpu_time_is() -> None:
    world = World(0, 1)
    life = watching(world)
    life.sample_use(20.0, world.now)
    (told,) = [one for one in world.run(life, 25) if one["t"] == "use"]
    assert told["unchanged"] is True and "CPU" in told["what"]


def test_a_new_attempt_begins_anew() -> None:
    world = World(0)
    life = watching(world)
    world.run(life, 59)
    life.watch([(0, 1000)], 60.0, world.now)
    assert not world.run(life, 59)

"""Asking on while slurmctld is away, on a clock that jumps."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ftslurm.errors import SlurmRefused
from ftslurm.slurm.retries import TELL_AGAIN_S, NoAnswerYet, Retries


@dataclass
class World:
    """slurmctld answers from `back_at` on; a question takes `takes_s`."""

    back_at: float
    takes_s: float = 10.0
    now: float = 1000.0
    told: list[str] = field(default_factory=list)
    asked: int = 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def question(self) -> str:
        self.asked += 1
        self.now += self.takes_s
        if self.now < 1000.0 + self.back_at:
            raise NoAnswerYet("slurmctld is away")
        return "there"

    def ask(self, limit_s: float) -> str:
        return Retries(limit_s, lambda: self.now, self.sleep).ask(lambda left_s: self.question(), self.told.append)


def test_one_that_answers_is_not_waited_for() -> None:
    world = World(back_at=0.0)
    assert (world.ask(60.0), world.asked, world.told) == ("there", 1, [])


def test_one_that_comes_back_has_been_waited_for_and_that_was_said_now_and_then() -> None:
    world = World(back_at=1500.0)
    assert world.ask(3600.0) == "there"
    assert world.told[0] == "slurmctld is away. ftrun waits up to 60 min (slurm.patience)"
    assert len(world.told) == 1 + 1500 // TELL_AGAIN_S
    assert world.now - 1000.0 < 1500.0 + 2 * world.takes_s + 5.0


@pytest.mark.parametrize(("limit_s", "asked"), [(60.0, 6), (0.0, 1)])
def test_patience_has_an_end(limit_s: float, asked: int) -> None:
    world = World(back_at=1e9)
    with pytest.raises(NoAnswerYet):
        world.ask(limit_s)
    assert world.asked == asked and world.now - 1000.0 <= limit_s + 2 * world.takes_s


def test_a_no_is_an_answer() -> None:
    def refused(left_s: float) -> str:
        raise SlurmRefused("no")

    with pytest.raises(SlurmRefused):
        Retries(60.0, lambda: 0.0, lambda s: None).ask(refused)

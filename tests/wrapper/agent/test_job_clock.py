"""The clock of a node's ranks, with a clock that is only a number."""

from __future__ import annotations

import pytest

from ftslurm.wrapper.agent.stalls import AWAY_S, JobClock


class Machine:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("slice_s", [AWAY_S + 1.5, 25.0, 30.0, 86400.0])
def test_it_stops_while_the_job_is_stopped_for_any_time_and_any_number_of_times(slice_s: float) -> None:
    machine = Machine()
    clock, ran_s = JobClock(machine), 0.0
    for _ in range(5):
        for _ in range(20):
            assert not clock.expect(1.0)
            machine.now, ran_s = machine.now + 1.0, ran_s + 1.0
        assert clock() == 1000.0 + ran_s
        clock.expect(1.0)
        machine.now += slice_s
        assert clock.expect(0.1), "whoever asks first"
        ran_s += 1.0
        assert clock() == 1000.0 + ran_s


def test_who_asks_between_may_be_another_thread() -> None:
    machine = Machine()
    clock = JobClock(machine)
    clock.expect(0.0)
    machine.now += 100.0
    assert clock() == 1000.0 and clock() == 1000.0
    assert clock.expect(1.0) and not clock.expect(1.0)


def test_a_late_agent_was_not_stopped_and_one_that_waits_for_any_time_knows_nothing() -> None:
    machine = Machine()
    clock = JobClock(machine)
    clock.expect(5.0)
    machine.now += 5.0 + AWAY_S
    assert clock() == machine.now and not clock.expect(None)
    machine.now += 500.0
    assert clock() == machine.now and not clock.expect(0.0)

"""What an agent tells of its ranks to people who watch: from real pages, with a clock of our own."""

from __future__ import annotations

import time
from pathlib import Path

from ftslurm.model.collectives import CurrentCall, GroupView, RankView
from ftslurm.model.devices import DeviceHealth, DeviceReport, Utilisation
from ftslurm.model.messages import LiveReported, agent_report
from ftslurm.model.settings.ft_config import BeatLimits
from ftslurm.sdk.page import Page, claim
from ftslurm.wrapper.agent.live import Glance
from ftslurm.wrapper.agent.pages import PageWatch, Task
from tests.wrapper.test_agent import folder as folder

Usage = tuple[dict[tuple[int, float], int], float]


class Below:
    """Processes that use one core and write a kilobyte a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self, pid: int) -> Usage:
        return {(pid, 1.0): int(1024 * self.now)}, self.now


def page(folder: Path, name: str, rank: int | None) -> Page:
    found = claim(str(folder / name), 1, rank)
    assert found is not None
    return found


def test_nobody_is_told_anything_before_somebody_watches() -> None:
    glance = Glance(None)
    assert glance.wakes_at is None and glance.turn(1.0, (), (), ()) == []


def test_steps_beats_and_work_of_each_rank(folder: Path) -> None:
    below = Below()
    glance = Glance(None, below)
    pages = PageWatch()
    pages.watch([Task(3, f"{folder}/3.1", 1, 77), Task(4, f"{folder}/4.1", 1, 78)], BeatLimits(), time.monotonic())
    mine = page(folder, "3.1", 3)
    glance.want(30.0, 2.0, time.monotonic())

    def told() -> LiveReported:
        now = glance.wakes_at
        assert now is not None
        pages.turn(now)
        (message,) = glance.turn(now, pages.ranks.values(), (VIEW,), ())
        return agent_report(message)

    VIEW = RankView(
        3,
        "n1",
        groups=(GroupView("a", (), 40), GroupView("b", (), 2)),
        inside=CurrentCall("allreduce", "a", 40, 1.5),
        probed=True,
    )
    mine.begin()
    mine.beat()
    mine.step(10)
    first = told().ranks
    assert [(one.rank, one.step, one.beats, one.steps_per_s) for one in first] == [(3, 10, 1, None), (4, None, None, None)]
    assert (first[0].collectives, first[0].inside, first[0].inside_s) == (42, "allreduce", 1.5)
    mine.words[16] += 4  # steps
    mine.words[17] = 14
    mine.open("forward")
    below.now += 2.0
    second = told().ranks[0]
    assert (second.step, second.steps_per_s, second.sections) == (14, 2.0, ("forward",))
    assert (second.cores, second.io_bytes_s) == (1.0, 1024.0)
    pages.watch([Task(3, f"{folder}/3.2", 2, 77)], BeatLimits(), 0.0)  # the next start
    assert told().ranks[0].step is None


def test_ranks_below_one_task_are_rows_of_their_own(folder: Path) -> None:
    glance = Glance(None, Below())
    pages, now = PageWatch(), time.monotonic()
    pages.watch([Task(0, f"{folder}/0.1", 1, 77)], BeatLimits(), now)
    for number in (0, 1):
        mine = page(folder, f"0.1.{number}" if number else "0.1", number)
        mine.begin()
        mine.step(5 + number)
    pages.turn(now)
    glance.want(30.0, 2.0, now)
    (message,) = glance.turn(now, pages.ranks.values(), (), ())
    assert [(one.rank, one.task, one.step, one.cores) for one in agent_report(message).ranks] == [
        (0, 0, 5, None),
        (1, 0, 6, None),
    ]


def test_devices_are_asked_seldom_and_only_while_it_is_wanted() -> None:
    asked = []

    def use() -> list[Utilisation]:
        asked.append(1)
        return [Utilisation("0", "gpu", 97.0, 50.0, 300.0)]

    glance = Glance(use, Below())
    reports = (DeviceReport("0", "gpu", DeviceHealth.GOOD), DeviceReport("1", "gpu", DeviceHealth.FAULTY, codes=("79",)))
    glance.want(5.0, 1.0, 100.0)
    devices = [agent_report(glance.turn(100.0 + second, (), (), reports)[0]).devices for second in range(5)][-1]
    assert [(one.device, one.health, one.percent) for one in devices] == [("0", "good", 97.0), ("1", "faulty", None)]
    assert len(asked) == 2
    assert glance.turn(105.0, (), (), reports) == [] and glance.wakes_at is None

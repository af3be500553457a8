"""What an agent tells of its ranks' collectives, from a node that is only data."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ftslurm.model.collectives import CurrentCall, GroupView, ProcessState, RankView
from ftslurm.wrapper.agent import stalls as module
from ftslurm.wrapper.agent.pages import Task
from ftslurm.wrapper.agent.stalls import StallReports
from ftslurm.wrapper.shim.processes import descendants

VIEW = RankView(0, "n1", groups=(GroupView("0#1", (0, 1), 1, 0),), probed=True)


class Node:
    """In place of NodeWatch; one for all."""

    progress_at = 0.0
    begun = False
    views: tuple[RankView, ...] = (VIEW,)
    lacking: ClassVar[dict[int, str]] = {}
    polls: ClassVar[list[float]] = []
    in_c: ClassVar[list[float]] = []

    def __init__(self, name: str, clock: object = None, use: object = None) -> None:
        self.asked: list[str] = []

    def watch(self, *task: object, **more: object) -> None:
        pass

    def look(self) -> tuple[RankView, ...]:
        return self.views

    def polls_for_s(self, now: float) -> list[float]:
        return self.polls

    def in_c_for_s(self, now: float) -> list[float]:
        return self.in_c

    def without_probe(self) -> dict[int, str]:
        return self.lacking

    def waits(self) -> tuple[()]:
        self.asked.append("waits")
        return ()

    def enters(self) -> tuple[()]:
        self.asked.append("enters")
        return ()


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> StallReports:
    monkeypatch.setattr(module, "NodeWatch", Node)
    made = StallReports("n1")
    made.watch([Task(0, "7.0/0.1", 1, 1)], 10.0, 0.0)
    return made


def turns(stalls: StallReports, start: float, end: float, every_s: float = 0.0, **told: Any) -> list[dict[str, Any]]:
    """every_s: between two signs of progress; 0: there is none."""
    found, now, node = [], start, stalls.node
    while now < end:
        now = end if stalls.wakes_at is None else max(now, stalls.wakes_at)
        if every_s and now - node.progress_at >= every_s:
            node.progress_at, node.begun = now, True
        found += stalls.turn(now, **told)
    return found


def test_the_first_look_leaves_the_processor_to_the_ranks_that_start(stalls: StallReports) -> None:
    assert stalls.wakes_at == module.LOOK_S


def test_a_rank_without_a_probe_is_told_once(stalls: StallReports) -> None:
    stalls.node.lacking = {0: "started with -I", 7: "not watched here"}  # type: ignore[attr-defined]
    told = [message for message in turns(stalls, 0, 700, every_s=1.0) if message["t"] == "said"]
    assert told == [{"t": "said", "rank": 0, "attempt": 1, "what": "probe", "words": ["started with -I"]}]


def test_a_rank_with_a_group_is_told_once_and_progress_costs_no_word(stalls: StallReports) -> None:
    (first,) = turns(stalls, 0, 60, every_s=1.0)
    assert (first["t"], first["probed"], first["stalled_s"]) == ("stall", 1, 0.0)


def test_a_stall_is_told_once_and_its_end_with_its_length(stalls: StallReports) -> None:
    turns(stalls, 0, 90, every_s=2.0)
    (told,) = turns(stalls, 90, 230)
    assert 10 <= told["stalled_s"] <= 12 and told["begun"] and told["usual_s"] == pytest.approx(2.0, abs=0.5)
    (over,) = turns(stalls, 230, 250, every_s=1.0)
    assert over["stalled_s"] == 0.0 and over["paused_s"] == pytest.approx(140, abs=4)


def test_ranks_without_a_probe_or_a_group_do_not_stall(stalls: StallReports) -> None:
    stalls.node.views = (RankView(0, "n1", probed=True), RankView(1, "n1"))  # type: ignore[attr-defined]
    assert not turns(stalls, 0, 100)


def test_ranks_that_poll_before_there_is_a_group_are_told(stalls: StallReports) -> None:
    stalls.node.polls = [30.0, 12.0]  # type: ignore[attr-defined]
    stalls.node.views = (RankView(0, "n1", probed=True),)  # type: ignore[attr-defined]
    (told,) = turns(stalls, 0, 5)
    assert (told["probed"], told["stalled_s"], told["meets_s"]) == (0, 0.0, 12.0)
    stalls.node.views = (VIEW,)  # type: ignore[attr-defined]
    assert all(each["meets_s"] == 0.0 for each in turns(stalls, 5, 10)), "then there is one, and its counters tell"


def test_the_length_of_a_pause_without_counters_is_told_once_the_program_is_under_way(stalls: StallReports) -> None:
    """As of a program of MPI."""
    stalls.node.views = (RankView(0, "n1", probed=True),)  # type: ignore[attr-defined]
    for begun, length_s in ((False, 0.0), (True, 60.0)):
        stalls.node.begun = begun
        stalls.node.in_c = [60.0]  # type: ignore[attr-defined]
        now = 100.0 * begun
        (told,) = turns(stalls, now, now + 5)
        assert (told["meets_s"], told["begun"]) == (60.0, begun)
        stalls.node.in_c = []  # type: ignore[attr-defined]
        (over,) = turns(stalls, now + 5, now + 10)
        assert (over["meets_s"], over["paused_s"]) == (0.0, length_s)


def test_ranks_that_have_given_up_their_groups_are_told(stalls: StallReports) -> None:
    stalls.node.views = (RankView(0, "n1", probed=True, left=True), VIEW)  # type: ignore[attr-defined]
    (told,) = turns(stalls, 0, 5)
    assert (told["probed"], told["left"]) == (2, 1)


def test_ranks_that_wait_for_others_to_start_are_told_without_any_group(stalls: StallReports) -> None:
    """Since the last of them came; and when they wait no more."""
    waits = (RankView(0, "n1", probed=True, inside=CurrentCall("init_process_group", "", 0, 30.0)),)
    stalls.node.views = (*waits, replace(waits[0], rank=1, inside=CurrentCall("init_process_group", "", 0, 9.0)))  # type: ignore[attr-defined]
    assert not turns(stalls, 0, 5)
    stalls.node.views = (*waits, replace(waits[0], rank=1, inside=CurrentCall("init_process_group", "", 0, 12.0)))  # type: ignore[attr-defined]
    (told,) = turns(stalls, 5, 10)
    assert (told["probed"], told["meets_s"], told["stalled_s"]) == (0, 12.0, 0.0)
    stalls.node.views = (VIEW,)  # type: ignore[attr-defined]
    stalls.node.progress_at = 10.0
    (told,) = turns(stalls, 10, 12)
    assert (told["probed"], told["meets_s"]) == (1, 0.0)


def test_another_stage_is_told_while_it_lasts(stalls: StallReports) -> None:
    turns(stalls, 0, 20)
    (told,) = turns(stalls, 20, 40, stage_s=-1.0)
    assert told["stage_s"] == -1.0 and told["stalled_s"] > 10


def test_after_a_suspension_a_stall_is_told_again(stalls: StallReports) -> None:
    """Whoever heard of it has counted on meanwhile."""
    assert len(turns(stalls, 0, 15)) == 2 and not turns(stalls, 15, 20)
    stalls.tell_again = True
    assert [told["stalled_s"] for told in turns(stalls, 20, 25)] == [pytest.approx(20, abs=1.5)]


def test_being_told_the_same_again_is_no_new_start(stalls: StallReports) -> None:
    node = stalls.node
    stalls.watch([Task(0, "7.0/0.1", 1, 1)], 10.0, 50.0)
    assert stalls.node is node
    stalls.watch([Task(0, "7.0/0.2", 2, 1)], 10.0, 50.0)
    assert stalls.node is not node


def test_not_asked_for_means_no_looks_but_evidence_all_the_same(stalls: StallReports) -> None:
    stalls.watch([Task(0, "7.0/0.1", 1, 1)], 0.0, 0.0)
    assert stalls.wakes_at is None


def test_waits_where_the_wrappers_see_all_and_enters_elsewhere(stalls: StallReports) -> None:
    assert stalls.compare()["t"] == "compared" and stalls.node.asked == ["enters"]  # type: ignore[attr-defined]
    stalls.node.views = (RankView(0, "n1", probed=True, exact=True),)  # type: ignore[attr-defined]
    stalls.compare()
    assert stalls.node.asked == ["enters", "waits"]  # type: ignore[attr-defined]


def test_a_command_that_begins_after_its_shim_was_named_is_found(tmp_path: Path) -> None:
    """A second start is told to agents and shims at once, and an agent is quicker than a fork."""
    shim = subprocess.Popen(["sh", "-c", "read go; sleep 60 & wait"], stdin=subprocess.PIPE, text=True)
    try:
        made = StallReports("n1")
        made.watch([Task(0, f"{tmp_path}/0.2", 2, shim.pid)], 10.0, time.monotonic())
        assert [view.process for view in made.node.look()] == [ProcessState.UNKNOWN]
        assert shim.stdin is not None
        shim.stdin.write("\n")
        shim.stdin.flush()
        until = time.monotonic() + 30.0
        while [view.process for view in made.node.look()] != [ProcessState.SLEEPING]:
            assert time.monotonic() < until, "it was never found"
            time.sleep(0.05)
        assert "pid" in made.node.examine(1.0).text
    finally:
        for pid in descendants(shim.pid):
            os.kill(pid, signal.SIGKILL)
        shim.kill()
        shim.wait()

"""A node that is silent, looked at by another way; Slurm and the slurmds are data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import private_folder
from ftslurm.model import record as rec
from ftslurm.model.decisions import Start
from ftslurm.model.settings.tree import Settings, with_values
from ftslurm.policies.judge.ending import GATHERS_S
from ftslurm.slurm.client import JobState, NodeState, NodeView
from ftslurm.system.commands import CommandResult
from ftslurm.wrapper.controller.scheduler import KEEPERS_MOST, SlurmScheduler
from ftslurm.wrapper.requeue.requeue import AS_IT_IS, LOOK_AGAIN_STEPS_S, RESEND_S, SlurmOutage, steps_here
from tests.fakes.slurm import FakeSlurm

LIMIT_S = 30.0


class Slurm:
    """nodes: name -> (port of its slurmd, Slurm's word for it)."""

    def __init__(self, nodes: dict[str, tuple[int, NodeState]]) -> None:
        self.views = tuple(
            NodeView(name, state, "IDLE", "", frozenset(), "127.0.0.1", port) for name, (port, state) in nodes.items()
        )

    def nodes(self) -> Sequence[NodeView]:
        return self.views


def probe(slurm: Slurm, node: str, monkeypatch: pytest.MonkeyPatch, alive: frozenset[int]) -> tuple[bool | None, str]:
    """alive: ports that answer."""
    asked: list[int] = []

    def answers(address: str, port: int, limit_s: float) -> tuple[bool | None, str]:
        asked.append(port)
        return port in alive, f"port {port} {'answers' if port in alive else 'cannot be reached'}"

    monkeypatch.setattr("ftslurm.wrapper.controller.scheduler.slurmd_answers", answers)
    anything = cast(Any, None)
    scheduler = SlurmScheduler(
        cast(Any, slurm), 1, 0, {"SLURMD_NODENAME": "n1"}, anything, anything, anything, nodes=("n1", "n2", "n3"),
    )  # fmt: skip
    found = scheduler.probe(node, LIMIT_S)
    assert len(asked) <= 4, "no storm of connections"
    return found.alive, found.what


def cluster(states: dict[str, NodeState] | None = None) -> Slurm:
    return Slurm({f"n{n}": (n, (states or {}).get(f"n{n}", NodeState.GOOD)) for n in range(1, 9)})


def test_a_node_that_does_not_answer_while_others_do_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    alive, what = probe(cluster(), "n2", monkeypatch, frozenset({4}))
    assert alive is False and "port 2 cannot be reached" in what


def test_where_no_other_node_answers_either_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own network may be the one that is broken; that we reach ourselves proves nothing."""
    alive, what = probe(cluster(), "n2", monkeypatch, frozenset({1}))
    assert alive is None and "nor does any other node answer" in what


def test_slurm_s_own_word_against_a_node_needs_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(cluster({"n2": NodeState.BAD}), "n2", monkeypatch, frozenset())[0] is False


def test_where_slurm_calls_no_other_node_well_the_node_s_own_silence_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {f"n{n}": NodeState.BAD for n in range(3, 9)}
    assert probe(cluster(bad), "n2", monkeypatch, frozenset())[0] is False


def test_a_node_that_answers_is_alive_whatever_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(cluster(), "n2", monkeypatch, frozenset({2}))[0] is True


# ---- a requeue


class Requeue:
    """A job on n1 to n3 whose ftrun, on n1, gives it back; steps of ours do not come up, and leave the job as `before` does."""

    def __init__(self, folder: Path, env: dict[str, str], proctrack: str = "proctrack/cgroup") -> None:
        self.slurm = FakeSlurm([f"n{n}" for n in range(1, 8)], clean_up_s=60.0)
        self.slurm.settings["ProctrackType"] = proctrack
        self.number = self.slurm.submit(3)
        journal = Journal(private_folder(folder / "state/jobs") / "c.1.jsonl")
        journal.append(
            [
                rec.RunBegan(1.0, "r1", "1", "c", 0, "k", "train", "n[1-3]"),
                rec.Decided(3.0, "r1-2", 2, "isolated-requeue", "device", "broken", exclude=("n2",)),
            ]
        )
        self.journal = journal
        self.places: list[str] = []
        self.slept: list[float] = []
        self.refused = "srun: error: Unable to create step"
        self.listed: list[str] = []
        python = cast(Any, type("Python", (), {"module_argv": lambda self, *words: words})())
        self.scheduler = SlurmScheduler(
            cast(Any, self.slurm),
            self.number,
            0,
            {"SLURMD_NODENAME": "n1", **env},
            python,
            self.run,
            with_values(Settings(), {"slurm.timeout": 1.0}),
            self.slept.append,
            nodes=("n1", "n2", "n3"),
            ledger=journal.path,
        )

    def run(self, argv: Sequence[str], timeout_s: float, **_: Any) -> CommandResult:
        if argv[0] == "squeue":
            return CommandResult(tuple(argv), 0, self.listed.pop(0), "")
        self.places += [word.partition("=")[2] for word in argv if word.startswith("--nodelist=")]
        return CommandResult(tuple(argv), 1, "", self.refused)

    def give_back(self, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr("ftslurm.wrapper.requeue.finish.SlurmClient", lambda timeout_s: self.slurm)
        ended = self.scheduler.requeue(["n2"], Start(4.0), False)
        told = [record for record in self.journal.read().records if isinstance(record, rec.CarriedOut)]
        assert ended.ok and len(told) == ended.recorded, "once: by who has done it, or else by the judge"
        return ended.why


def test_where_no_step_comes_up_a_job_is_requeued_plainly_rather_than_left_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm ends ftrun with the script: between the hold and the release there would be nobody."""
    job = Requeue(tmp_path, {"SLURM_TASK_PID": "1"})
    assert job.give_back(monkeypatch).startswith(AS_IT_IS)
    view = job.slurm.job(job.number)
    assert (view.state, view.held) == (JobState.PENDING, False)
    assert len(job.places) == KEEPERS_MOST and job.places[:2] == ["n3", "n1"], "not on the batch node first, nor on the bad one"
    assert not job.slept


def test_a_slurmctld_that_has_just_come_up_has_time_to_learn_what_nodes_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what srun said last stands in the ledger, where a requeue is a plain one after all."""
    job = Requeue(tmp_path, {"SLURM_TASK_PID": "1"})
    job.refused = "srun: error: Unable to create step for job 1: Memory required by task is not available"
    assert job.refused in job.give_back(monkeypatch)
    assert job.slept == [GATHERS_S] * (KEEPERS_MOST - 1)


@pytest.mark.parametrize(
    ("env", "proctrack"), [({"SLURM_TASK_PID": str(os.getpid())}, "proctrack/cgroup"), ({}, "proctrack/linuxproc")]
)
def test_an_ftrun_that_outlives_the_script_follows_the_whole_recipe_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], proctrack: str
) -> None:
    job = Requeue(tmp_path, env, proctrack)
    assert "without n2" in job.give_back(monkeypatch)
    assert job.slurm.job(job.number).excluded == {"n2"}


# ---- a batch node whose clock is wrong


@pytest.mark.parametrize("lead_s", [-90, 0, 90])
def test_the_moments_that_slurm_names_are_told_by_our_own_clock(tmp_path: Path, lead_s: int) -> None:
    """With a clock that was 90 s early or late, ranks that were warned a minute before the time limit had a second to write a
    checkpoint, or more than there was. lead_s: of slurmctld's clock."""
    job = Requeue(tmp_path, {})
    now = int(time.time())
    slurms_now = now + lead_s
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(slurms_now - 600))
    job.slurm.config = lambda: {"AS_OF": str(slurms_now), "BOOT_TIME": at}  # type: ignore[method-assign]
    view = replace(job.slurm.job(job.number), end_time=slurms_now + 60)
    job.slurm.job = lambda number: view  # type: ignore[method-assign]
    told = job.scheduler.ask()
    assert abs(told.end_time - (now + 60)) <= 2 and abs(told.up_since - (now - 600)) <= 2


# ---- slurmctld was away, and may not have heard of steps that have ended


class Times:
    def __init__(self) -> None:
        self.now = 1000.0

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def waits_s(
    times: Times, outage: SlurmOutage, listed: Callable[[], Collection[str] | None], ended: Callable[[], Collection[str]] = tuple
) -> float:
    began = times.now
    outage.await_steps(ended, listed, times.pause)
    return times.now - began


@pytest.mark.parametrize("took_s", [0.0, 1.9])
def test_where_slurmctld_was_there_no_step_is_asked_for(took_s: float) -> None:
    times = Times()
    outage = SlurmOutage(times.clock, times.clock)
    outage.note(times.now - took_s, True, up_since=100)
    assert waits_s(times, outage, lambda: pytest.fail("asked"), lambda: pytest.fail("asked")) == 0.0


@pytest.mark.parametrize("how", ["no answer", "late", "just up"])
def test_a_step_that_slurmctld_missed_the_end_of_is_waited_for(how: str) -> None:
    times = Times()
    outage = SlurmOutage(times.clock, times.clock)
    asked = times.now - (12.0 if how == "late" else 0.0)
    outage.note(asked, how != "no answer", up_since=int(times.now) - 8 if how == "just up" else 0)
    ends = times.now + 40.0
    assert 40.0 <= waits_s(times, outage, lambda: ["7.0"] if times.now < ends else []) < 42.0
    assert waits_s(times, outage, lambda: ["7.0"]) == 0.0, "once for each time that slurmctld was away"


def test_a_slow_answer_shows_no_outage_so_only_a_slurmstepd_that_is_seen_to_wait_counts() -> None:
    times = Times()
    outage = SlurmOutage(times.clock, times.clock)
    outage.note(times.now - 5.0, True)
    assert waits_s(times, outage, lambda: pytest.fail("asked")) == 0.0
    outage.note(times.now - 5.0, True)
    ends = times.now + 40.0
    ended = waits_s(times, outage, lambda: pytest.fail("asked"), lambda: ["7.0"] if times.now < ends else [])
    assert 40.0 <= ended < 42.0


def test_a_step_of_which_nobody_knows_is_waited_for_no_longer_than_a_message_may_be_late() -> None:
    times = Times()
    outage = SlurmOutage(times.clock, times.clock)
    outage.note(times.now, False)
    times.now += 10.0
    assert waits_s(times, outage, lambda: None) == pytest.approx(RESEND_S - 10.0, abs=1.0)
    times.now += RESEND_S
    outage.note(times.now, False)
    times.now += RESEND_S
    assert waits_s(times, outage, lambda: ["7.0"]) == 0.0


def test_a_requeue_behind_an_outage_begins_when_the_steps_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its ranks: of others, such as a monitor that the script has started, nobody knows that they end."""
    job = Requeue(tmp_path, {"SLURM_TASK_PID": "1"})
    ours, others = f"{job.number}.0", f"{job.number}.2 monitor\n"
    Journal(job.scheduler.ledger).append([rec.AttemptBegan(2.0, "r1", 1, 0, "k", 1, "n[1-3]", 3, ours)])
    job.listed = [f"{ours} train\n1.1 ftslurm-agent\n{others}", f"{ours} train\n{others}", f"1.1 ftslurm-agent\n{others}"]
    job.scheduler.outage.note(0.0, False)
    job.give_back(monkeypatch)
    assert job.slept == [LOOK_AGAIN_STEPS_S, LOOK_AGAIN_STEPS_S] and not job.listed


def test_a_slurmstepd_that_still_waits_is_found_on_its_node(tmp_path: Path) -> None:
    for pid, words in enumerate(
        (b"slurmstepd: [7.0]\0", b"slurmstepd: [7.batch]\0", b"slurmstepd: [71.2]", b"sh\0slurmstepd: [7.3]")
    ):
        (tmp_path / str(pid + 10)).mkdir()
        (tmp_path / str(pid + 10) / "cmdline").write_bytes(words)
    (tmp_path / "20").mkdir()
    seen = steps_here(7, tmp_path, lambda: {11, 12})
    assert (seen.ended, seen.running) == ({"7.0"}, frozenset())
    seen = steps_here(7, tmp_path, lambda: {10})
    assert (seen.ended, seen.running) == (frozenset(), {"7.0"})
    stranger = os.geteuid() + 1
    assert steps_here(7, tmp_path, lambda: {11, 12}, [stranger]).ended == frozenset(), "anybody may call a process so"

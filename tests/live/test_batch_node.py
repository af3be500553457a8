"""The batch node dies, or only ftrun on it: who goes on, and that nothing runs twice or is left, on a real cluster."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Cluster, booted, new_stage
from tests.live.overlap import BEAT, MAKE_PIPE, RANK, beats, overlaps
from tests.live.stories import Plan, Story, admin, kill

pytestmark = pytest.mark.live

LEASE_S, SILENCE_S, MARGIN_S = 16.0, 4.0, 3.0
QUICK_LEASE = (
    f"--ft-set lease.time={LEASE_S:g}s --ft-set nodes.silence={SILENCE_S:g}s --ft-set lease.margin={MARGIN_S:g}s"
    " --ft-set nodes.probe_timeout=5s"
)
LONGEST_S = LEASE_S + 2 * SILENCE_S + MARGIN_S
TURN_S = 30.0
BUSY_S = 60.0  # more than all else, on a machine that others use as well
SPARE = "--ft-spares 1"
# Writes until it is told that it is enough, or that attempt's turn is over.
BEATS = {"beat.sh": BEAT + "exit 0\n"}


@contextmanager
def told_on(
    nodes: int, path: tuple[Path, ...], name: str, ft: str = "", /, options: Sequence[str] = (), **plan: Any
) -> Iterator[tuple[Cluster, Story]]:
    """A job on three nodes whose ranks write, with its agents in place; on a cluster of its own. options: of the cluster."""
    how = {"nodes": 3, "rank": MAKE_PIPE + RANK, "files": BEATS, **plan}
    with booted(nodes=nodes, options=options) as own, new_stage(own, path) as stage:
        told = stage.tell(Plan(ft=f"{QUICK_LEASE} {ft}", **how), name)
        told.wait_for(lambda: beating(told, 1), "all ranks to write", BUSY_S)
        told.wait_for(lambda: sum(map(connected, ours(told, "wrapper.agent"))) == how["nodes"], "the agents to call", BUSY_S)
        time.sleep(SILENCE_S)  # there is no sign of it that ftrun has answered
        yield own, told


def beating(told: Story, attempt: int) -> bool:
    ranks = told.plan.nodes - told.plan.ft.count(SPARE)
    return {beat.rank for beat in beats(told.folder) if beat.attempt == attempt} == set(range(ranks))


def ours(told: Story, *marks: str) -> dict[int, str]:
    """What runs of us and has one of `marks` in its command; no srun."""
    return {
        pid: words
        for pid, words in told.processes().items()
        if any(mark in words for mark in marks) and not words.split()[0].endswith("srun")
    }


def connected(pid: int) -> bool:
    """Has it called ftrun?"""
    try:
        return any(os.readlink(entry).startswith("socket:") for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def ftrun_of(told: Story) -> int:
    (pid,) = ours(told, "/ftrun ")
    return pid


def records(told: Story, *kinds: str) -> list[dict[str, Any]]:
    lines = [line for path in (told.folder / "state/jobs").glob("*.jsonl") for line in path.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    return [record for record in found if record["kind"] in kinds]


def down(own: Cluster, *nodes: str) -> None:
    """Slurm finds out by itself only after SlurmdTimeout, 300 s."""
    own.answer(["scontrol", "update", f"NodeName={','.join(nodes)}", "State=DOWN", "Reason=dead"], user=admin())


def runs_again(told: Story, attempt: int = 2) -> bool:
    """The clean-up took longer than `requeue.start_in`, so Slurm adds 121 s, unless asked afterwards."""
    told.hurry()
    return beating(told, attempt)


def goes_on_and_ends(told: Story) -> None:
    """In attempt 2, and nothing of attempt 1 ran beside it."""
    told.wait_for(lambda: runs_again(told), "attempt 2 to write", 90.0 + BUSY_S)
    told.allow("enough")
    told.ended("COMPLETED", 60.0 + BUSY_S)
    assert overlaps(beats(told.folder)) == []


def requeued(told: Story) -> None:
    """Slurm takes no changes of a job between noticing a dead node and the end of its clean-up (22.05 without slurmdbd)."""
    told.wait_for(lambda: records(told, "CarriedOut"), "the requeue to be done", BUSY_S)


# --- the whole node


@pytest.mark.timeout(500)
@pytest.mark.slurms
def test_with_no_kill_the_first_of_the_others_requeues_without_the_dead_batch_node(job_path: tuple[Path, ...]) -> None:
    with told_on(4, job_path, "no-kill", sbatch=("--no-kill",)) as (own, told):
        own.tool("node-crash", "n1")
        died_at = time.time()
        told.wait_for(lambda: records(told, "Decided"), "one to take over", LONGEST_S + BUSY_S)
        (decided,) = records(told, "Decided")
        assert decided["at"] >= died_at + LONGEST_S - SILENCE_S, "a lease that ftrun renewed a beat before might last"
        assert (decided["rung"], decided["cause"], decided["cost"]) == ("isolated-requeue", "node", "max_restarts")
        assert list(decided["isolate"]) == decided["exclude"] == ["n1"] and "decided on n2" in decided["why"]
        requeued(told)
        down(own, "n1")
        goes_on_and_ends(told)
        assert told.counters() == [(1, 1, 1), (2, 1, 2)]
        assert {start.rung for start in told.of_attempt(2).values()} == {"isolated-requeue"}
        assert {start.node for start in told.of_attempt(2).values()} == {"n2", "n3", "n4"}
        assert len(records(told, "Decided")) == 1 and [done["ok"] for done in records(told, "CarriedOut")] == [True]
        assert "the batch node n1 is dead" in told.ftslurm("history", str(told.id))
        assert told.job()["Restarts"] == "1"


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_spare_takes_over_where_all_ranks_are_on_the_batch_node(job_path: tuple[Path, ...]) -> None:
    with told_on(3, job_path, "spare", SPARE, nodes=2, sbatch=("--no-kill",)) as (own, told):
        own.tool("node-crash", "n1")
        told.wait_for(lambda: records(told, "Decided"), "one to take over", LONGEST_S + BUSY_S)
        (decided,) = records(told, "Decided")
        assert decided["exclude"] == ["n1"] and "decided on n2" in decided["why"]
        requeued(told)
        down(own, "n1")
        goes_on_and_ends(told)
        assert told.attempts() == {1: {(1, 1, 1)}, 2: {(2, 1, 2)}} and told.job()["Restarts"] == "1"


@pytest.mark.timeout(500)
@pytest.mark.parametrize("sbatch", [("--no-kill",), pytest.param((), marks=pytest.mark.long)], ids=["no-kill", "plain"])
def test_a_batch_node_that_is_back_soon_without_its_script_is_as_good_as_dead(
    sbatch: tuple[str, ...], job_path: tuple[Path, ...]
) -> None:
    """Slurm leaves the job running with nothing in it: its node is well."""
    with told_on(4, job_path, "back-soon", sbatch=sbatch) as (own, told):
        own.tool("node-crash", "n1")
        died_at = time.time()
        own.tool("node-up", "n1")
        told.wait_for(lambda: records(told, "Decided"), "one to take over", LONGEST_S + BUSY_S)
        (decided,) = records(told, "Decided")
        assert decided["at"] >= died_at + LONGEST_S - SILENCE_S, "a lease that ftrun renewed a beat before might last"
        assert (decided["rung"], decided["cause"], decided["cost"]) == ("isolated-requeue", "node", "max_restarts")
        assert decided["exclude"] == ["n1"] and "decided on n2" in decided["why"] and "answers" in decided["why"]
        requeued(told)
        goes_on_and_ends(told)
        assert {start.node for start in told.of_attempt(2).values()} == {"n2", "n3", "n4"}
        assert told.counters() == [(1, 1, 1), (2, 1, 2)] and told.job()["Restarts"] == "1"
        assert [done["ok"] for done in records(told, "CarriedOut")] == [True]


WAITS_FIRST = """
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] && { srun sleep 1000 & sleep 3; }
%RUN%
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_batch_node_that_dies_while_the_step_waits_is_noticed_too(job_path: tuple[Path, ...]) -> None:
    with booted(nodes=4) as own, new_stage(own, job_path) as stage:
        told = stage.tell(
            Plan(nodes=3, rank=MAKE_PIPE + RANK, files=BEATS, ft=QUICK_LEASE, script=WAITS_FIRST, sbatch=("--no-kill",)), "waits"
        )
        told.wait_for(lambda: sum(map(connected, ours(told, "wrapper.agent"))) == 3, "the agents to call", BUSY_S)
        time.sleep(SILENCE_S)  # there is no sign of it that ftrun has answered
        assert told.starts() == []
        own.tool("node-crash", "n1")
        told.wait_for(lambda: records(told, "Decided"), "one to take over", LONGEST_S + BUSY_S)
        requeued(told)
        down(own, "n1")
        told.wait_for(lambda: runs_again(told, 1), "attempt 1 to write", 90.0 + BUSY_S)
        assert told.counters() == [(2, 1, 1)]
        assert {(start.rung, start.cause) for start in told.starts()} == {("isolated-requeue", "node")}
        own.cancel(told.id)


@pytest.mark.long
@pytest.mark.timeout(500)
def test_when_the_first_of_the_others_is_dead_as_well_the_next_one_does_it(job_path: tuple[Path, ...]) -> None:
    with told_on(5, job_path, "two-dead", sbatch=("--no-kill",)) as (own, told):
        own.tool("node-crash", "n1")
        own.tool("node-crash", "n2")
        died_at = time.time()
        told.wait_for(lambda: records(told, "Decided"), "one to take over", LONGEST_S + TURN_S + BUSY_S)
        requeued(told)
        down(own, "n1", "n2")
        (decided,) = records(told, "Decided")
        assert decided["at"] >= died_at + LONGEST_S + TURN_S - SILENCE_S and "decided on n3" in decided["why"]
        goes_on_and_ends(told)
        assert {start.node for start in told.of_attempt(2).values()} == {"n3", "n4", "n5"}
        assert told.counters() == [(1, 1, 1), (2, 1, 2)]


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_batch_node_that_freezes_and_comes_back_runs_nothing_and_decides_nothing(job_path: tuple[Path, ...]) -> None:
    """What it can do is Slurm's: its old srun cancels its step, which has the same number as that of the new scheduling."""
    with told_on(4, job_path, "frozen", sbatch=("--no-kill",)) as (own, told):
        own.tool("node-freeze", "n1")
        frozen_at = time.time()
        try:
            told.wait_for(lambda: records(told, "Decided"), "one to take over", LONGEST_S + BUSY_S)
            (decided,) = records(told, "Decided")
            requeued(told)
            down(own, "n1")
            told.wait_for(lambda: runs_again(told), "attempt 2 to write", 90.0 + BUSY_S)
        finally:
            own.tool("node-thaw", "n1")
        told.wait_for(lambda: not first(told), "what was frozen to be gone", BUSY_S)
        told.allow("enough")
        told.ended("COMPLETED", 60.0 + BUSY_S)
        seen = beats(told.folder)
        assert overlaps(seen) == []
        assert max(beat.time for beat in seen if (beat.node, beat.attempt) == ("n1", 1)) <= frozen_at, "not for a moment"
        assert told.counters()[:2] == [(1, 1, 1), (2, 1, 2)]
        assert [record["id"] for record in records(told, "Decided") if record["id"].startswith(first_run(told))] == [
            decided["id"]
        ]


def first_run(told: Story) -> str:
    return records(told, "RunBegan")[0]["run"]


def first(told: Story) -> dict[int, str]:
    """What is left of the first scheduling."""
    return {pid: words for pid, words in told.processes().items() if scheduling(pid) == 0}


def scheduling(pid: int) -> int:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return -1
    return next((int(word[20:]) for word in variables if word.startswith(b"SLURM_RESTART_COUNT=")), 0)


@pytest.mark.long
@pytest.mark.timeout(500)
def test_where_no_rung_is_left_the_job_ends_and_does_not_wait_for_its_time_limit(job_path: tuple[Path, ...]) -> None:
    off = "--ft-set rungs.isolated-requeue.enabled=false"
    with told_on(4, job_path, "no-rung", off, sbatch=("--no-kill",)) as (own, told):
        own.tool("node-crash", "n1")
        down(own, "n1")  # before Slurm has noticed, nobody can know that it leaves the job alone
        told.ended("CANCELLED", LONGEST_S + 60.0 + BUSY_S)
        (decided,) = records(told, "Decided")
        assert decided["rung"] == "fail" and "cost" not in decided and ["isolated-requeue", "switched off"] in decided["passed"]
        history = told.ftslurm("history", "-v", str(told.id))
        assert "the batch node n1 is dead" in history and "isolated-requeue: switched off" in history
        told.wait_nothing_left(BUSY_S)


@pytest.mark.timeout(500)
def test_without_no_kill_slurm_requeues_and_the_next_scheduling_says_why(job_path: tuple[Path, ...]) -> None:
    with told_on(4, job_path, "slurms-own") as (own, told):
        own.tool("node-crash", "n1")
        down(own, "n1")
        goes_on_and_ends(told)
        assert told.counters() == [(1, 1, 1), (2, 1, 2)] and told.job()["Restarts"] == "1"
        assert records(told, "Decided") == [], "nobody has decided anything, and no budget is spent"
        assert {(start.rung, start.cause) for start in told.of_attempt(2).values()} == {("requeue-by-slurm", "node")}
        first, second = (began["at"] for began in records(told, "AttemptBegan"))
        assert second - first >= LONGEST_S, "the ranks on the dead node were waited for"
        history = told.ftslurm("history", str(told.id))
        assert "the batch node n1 died (Slurm says DOWN" in history and "and Slurm requeued the job" in history, history
        assert set(told.json("status", str(told.id))["left"]["max_restarts"]) == {8}


@pytest.mark.long
@pytest.mark.timeout(500)
def test_where_slurm_was_faster_and_has_cut_the_node_out_the_job_is_requeued_as_well(job_path: tuple[Path, ...]) -> None:
    with told_on(4, job_path, "cut-out", sbatch=("--no-kill",)) as (own, told):
        own.tool("node-crash", "n1")
        down(own, "n1")
        told.wait_for(lambda: records(told, "Decided"), "one to take over", LONGEST_S + BUSY_S)
        goes_on_and_ends(told)
        assert {start.node for start in told.of_attempt(2).values()} == {"n2", "n3", "n4"}
        assert told.counters() == [(1, 1, 1), (2, 1, 2)] and len(records(told, "Decided")) == 1


# --- a batch node behind a cable that is pulled


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make nodes that are apart")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("nodes", "ft"), [(3, ""), pytest.param(2, SPARE, marks=pytest.mark.long)], ids=["ranks-elsewhere", "spare-alone"]
)
def test_a_batch_node_that_is_cut_off_ends_its_own_rank_and_never_comes_between(
    nodes: int, ft: str, job_path: tuple[Path, ...]
) -> None:
    """Its ftrun goes on on the wrong side of the cut, and comes back when the job has long run elsewhere."""
    with told_on(4, job_path, "apart", ft, nodes=nodes, sbatch=("--no-kill",)) as (own, told):
        own.tool("node-cut", "n1")
        cut_at = time.time()
        told.wait_for(lambda: records(told, "Decided"), "one to take over", LONGEST_S + BUSY_S)
        taken = [record for record in records(told, "Decided") if "decided on n2" in record["why"]]
        assert taken and taken[0]["at"] >= cut_at + LONGEST_S - SILENCE_S
        assert max(beat.time for beat in beats(told.folder) if beat.attempt == 1) < taken[0]["at"]
        requeued(told)
        down(own, "n1")
        told.wait_for(lambda: runs_again(told), "attempt 2 to write", 90.0 + BUSY_S)
        own.tool("node-mend", "n1")
        told.wait_for(lambda: not first(told), "what was cut off to be gone", 60.0 + BUSY_S)
        told.allow("enough")
        told.ended("COMPLETED", 60.0 + BUSY_S)
        assert overlaps(beats(told.folder)) == []
        assert (told.attempts()[1], told.attempts()[2]) == ({(1, 1, 1)}, {(2, 1, 2)})
        assert [record["id"] for record in records(told, "Decided") if record["id"].startswith(first_run(told))] == [
            taken[0]["id"]
        ]
        assert "renews no lease" in told.output()


# --- ftrun alone

SLEEPS_ON = """
%RUN%
echo "ftrun ended with $?" >>"$STORY/script"
until [ -e "$STORY/enough" ]; do sleep 0.2; done
"""


@pytest.mark.timeout(300)
def test_ftrun_that_is_killed_leaves_nothing_and_its_script_goes_on(job_path: tuple[Path, ...]) -> None:
    """As the kernel does it when memory runs out. What the script does then is its own business."""
    with told_on(3, job_path, "killed", sbatch=("--no-kill",), script=SLEEPS_ON) as (_, told):
        kill(ftrun_of(told), signal.SIGKILL)
        killed_at = time.time()
        told.wait_for(lambda: not any("ftslurm-agent" in words for words in told.processes().values()), "the agents' srun to go")
        told.wait_for(lambda: not left_of_us(told), f"all to be gone, left: {left_of_us(told)}", LEASE_S + 30.0 + BUSY_S)
        told.wait_for(lambda: (told.folder / "script").exists(), "the script to go on")
        while time.time() < killed_at + LONGEST_S + 2 * SILENCE_S:  # when a successor would act at the latest
            assert told.job()["JobState"] == "RUNNING" and not left_of_us(told)
            time.sleep(1.0)
        assert records(told, "Decided") == []
        told.allow("enough")
        assert told.ended("COMPLETED")["Restarts"] == "0"
        assert (told.folder / "script").read_text() == "ftrun ended with 137\n"


def left_of_us(told: Story) -> dict[int, str]:
    """Ranks, shims, agents, keepers and the sruns behind them."""
    marks = ("wrapper", "shim", "beat.sh", "rank.sh", "srun", "keeper")
    return {pid: words for pid, words in told.processes().items() if any(mark in words for mark in marks)}


@pytest.mark.timeout(400)
def test_ftrun_called_again_does_not_wait_for_a_step_that_only_slurm_remembers(job_path: tuple[Path, ...]) -> None:
    """Killed together with a node that comes back at once: nobody is left to tell slurmctld that its part has ended."""
    with told_on(3, job_path, "held", script="%RUN%\n%RUN%") as (own, told):
        own.tool("node-crash", "n3")
        kill(ftrun_of(told), signal.SIGKILL)
        own.tool("node-up", "n3")
        told.wait_for(lambda: beating(told, 2), "attempt 2 to write", 3 * LONGEST_S + BUSY_S)
        assert "Slurm still holds the nodes for" in told.output()
        told.allow("enough")
        told.ended("COMPLETED", 60.0 + BUSY_S)
        assert overlaps(beats(told.folder)) == []
        assert told.counters() == [(1, 1, 1), (1, 2, 2)]


HELD_UP = """
srun sleep 1000 & other=$!
sleep 3
%RUN%
echo "ftrun ended with $?" >>"$STORY/script"
until [ -e "$STORY/enough" ]; do sleep 0.2; done
kill $other
wait
exit 0
"""


@pytest.mark.timeout(300)
def test_ftrun_that_is_killed_while_its_step_waits_leaves_no_srun_that_waits_on(job_path: tuple[Path, ...]) -> None:
    """It would bring up the step later, for nobody, and keep a next ftrun from its nodes."""
    with booted(nodes=2) as own, new_stage(own, job_path) as stage:
        told = stage.tell(Plan(nodes=2, rank="exit 0", script=HELD_UP), "held-up")
        told.wait_for(lambda: waits_for_a_step(told), "srun to be there", BUSY_S)
        kill(ftrun_of(told), signal.SIGKILL)
        told.wait_for(lambda: not waits_for_a_step(told), "srun to be gone", 10.0)
        told.wait_for(lambda: (told.folder / "script").exists(), "the script to go on")
        told.allow("enough")
        told.ended("COMPLETED", BUSY_S)
        assert told.starts() == []


def waits_for_a_step(told: Story) -> bool:
    # One that is just coming or going has no words.
    return any(words.partition(" ")[0].endswith("srun") and "shim" in words for words in told.processes().values())


@pytest.mark.timeout(300)
def test_ftrun_that_stands_still_for_less_than_a_lease_loses_nothing(job_path: tuple[Path, ...]) -> None:
    with told_on(3, job_path, "stopped", sbatch=("--no-kill",)) as (_, told):
        pid = ftrun_of(told)
        kill(pid, signal.SIGSTOP)
        time.sleep(LEASE_S / 2)
        kill(pid, signal.SIGCONT)
        goes_on = time.time() + LEASE_S + SILENCE_S
        told.wait_for(
            lambda: all(last(told, rank) > goes_on for rank in range(3)), "the ranks to outlive their lease", LEASE_S + BUSY_S
        )
        assert told.counters() == [(1, 1, 1)] and records(told, "TroubleSeen", "Decided") == []
        assert len(ours(told, "wrapper.agent")) == 3


def last(told: Story, rank: int) -> float:
    return max(beat.time for beat in beats(told.folder) if beat.rank == rank)


@pytest.mark.timeout(400)
def test_ftrun_that_stands_still_for_longer_loses_its_ranks_and_starts_them_again(job_path: tuple[Path, ...]) -> None:
    """Nobody takes over from a controller whose node lives."""
    with told_on(3, job_path, "stopped-long", sbatch=("--no-kill",)) as (_, told):
        pid = ftrun_of(told)
        kill(pid, signal.SIGSTOP)
        try:
            told.wait_for(
                lambda: not ours(told, "beat.sh", "_shim import", "wrapper.agent"), "ranks and agents to end", LONGEST_S + BUSY_S
            )
            assert told.job()["Restarts"] == "0" and records(told, "Decided") == []
        finally:
            kill(pid, signal.SIGCONT)
        goes_on_and_ends(told)
        assert len(records(told, "Decided")) == 1
        told.wait_nothing_left(BUSY_S)

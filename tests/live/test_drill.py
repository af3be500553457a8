"""Faults injected on purpose into running jobs, and the remedy each class of them gets, on a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftslurm.errors import RequestRefused, UnknownJob
from tests.live.conftest import new_stage
from tests.live.stories import BY_DEFAULT, Plan, Story, nodes_in, story

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.live

# The first run of the command waits to be hit, later ones end well.
ONCE = '[ "$MA_SCHEDULE_CNT.$MA_PROC_START_CNT" = 1.1 ] || exit 0; exec sleep 300'


def drill(told: Story, *words: str) -> str:
    """The order, given as a user gives it, while every rank runs."""
    told.wait_started()
    kind, *rest = words
    return told.ftslurm("drill", kind, str(told.id), *rest)


def last_attempt(told: Story) -> dict[str, object]:
    return told.json("history", str(told.id))["attempts"][0]  # type: ignore[no-any-return]


@story(nodes=2, tasks=2, rank='say $(tr "\\0" "\\n" </proc/$PPID/environ | grep ^FTSLURM_CHANNEL=)\n' + ONCE)
def test_a_device_fault_that_heals_is_answered_in_place(told: Story) -> None:
    node = told.wait_started()[2].node
    assert "80E01801 on device 0.0" in drill(told, "device-fault", "--node", node, "--device", "0.0", "--code", "80E01801")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    first = last_attempt(told)
    assert any("DRILL device-fault" in note for note in first["notes"])  # type: ignore[union-attr]
    assert [remedy["decided"]["rung"] for remedy in first["remedies"]] == ["in-place-restart"]  # type: ignore[union-attr]
    assert "drill: device-fault" in told.output()
    sent = (told.folder / "said").read_text().splitlines()
    assert len(sent) == 8 and all(":munge." in line for line in sent), "srun was given the secret itself, and sends it as it is"


@story(nodes=2, rank=ONCE)
def test_a_device_fault_that_stays_isolates_the_node(told: Story) -> None:
    node = told.wait_started()[1].node
    drill(told, "device-fault", "--node", node, "--device", "0.0", "--code", "80E01801", "--stays")
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", node)
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert not told.ftslurm("nodes"), "a drill is not held against a node"


@pytest.mark.long
@story(nodes=2, rank=ONCE)
def test_a_lost_gpu_isolates_the_node(told: Story) -> None:
    node = told.wait_started()[0].node
    drill(told, "device-fault", "--node", node, "--device", "3", "--code", "XID 79")
    assert told.ended("COMPLETED")["ExcNodeList"] == node


@story(nodes=2, tasks=2, rank=ONCE)
def test_a_crash_with_a_status_is_requeued(told: Story) -> None:
    drill(told, "rank-crash", "--rank", "3", "--status", "7")
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    (verdict,) = last_attempt(told)["verdicts"]  # type: ignore[misc]
    assert verdict["drill"] and verdict["signature"] == "exit 7"


@pytest.mark.long
@story(rank=ONCE, ft="--ft-max-restarts 1 --ft-set retry.policy=Never")
def test_a_crash_by_a_signal_ends_the_job_as_the_signal_would(told: Story) -> None:
    drill(told, "rank-crash", "--rank", "0", "--signal", "SEGV")
    job = told.ended("FAILED")
    assert job["ExitCode"] == "139:0" or job["ExitCode"].endswith(":11"), job["ExitCode"]
    assert "SIGSEGV" in told.output() and "retry.policy is Never" in told.output()


@story(nodes=3, rank=ONCE)
def test_a_lost_node_is_left_out(told: Story) -> None:
    node = told.wait_started()[1].node
    drill(told, "lost-node", "--node", node)
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", node)
    assert node not in nodes_in(told.cluster, job["NodeList"])


# They begin when their test does, not to compute until it comes to its turn.
TICK = "await go; trap 'exit 0' TERM; for i in $(seq 3000); do echo . >>$STORY/tick.$SLURM_PROCID; sleep 0.05; done"


@story(tasks=2, rank=TICK)
def test_a_hung_rank_stands_still_until_the_drill_ends(told: Story) -> None:
    told.wait_started()
    told.allow("go")
    ticks = told.folder / "tick.1"
    told.wait_for(ticks.exists, "the rank to tick")
    drill(told, "hang", "--rank", "1")
    before, other = ticks.stat().st_size, (told.folder / "tick.0").stat().st_size
    told.wait_for(lambda: (told.folder / "tick.0").stat().st_size > other + 10, "the other rank to go on")
    assert ticks.stat().st_size <= before + 2
    drill(told, "end", "--rank", "1")
    told.wait_for(lambda: ticks.stat().st_size > before + 10, "the rank to go on")
    told.cluster.cancel(told.id)
    told.ended("CANCELLED")
    told.wait_nothing_left()


@pytest.mark.long
@story(tasks=2, rank=TICK.replace("exit 0", "touch $STORY/asked.$SLURM_PROCID; exit 0"))
def test_a_hung_rank_does_not_hold_up_the_end_of_the_others(told: Story) -> None:
    told.wait_started()
    told.allow("go")
    told.wait_for((told.folder / "tick.0").exists, "the rank to tick")
    drill(told, "hang", "--rank", "0")
    drill(told, "rank-crash", "--rank", "1", "--status", "9")
    told.wait_started(attempt=2, timeout_s=120.0)
    assert (told.folder / "asked.0").exists(), "it was woken to end, and nobody had to wait for the SIGKILL"
    told.cluster.cancel(told.id)
    told.ended("CANCELLED")
    told.wait_nothing_left()


@story(tasks=2, rank="await go; while :; do echo . >>$STORY/tick.$SLURM_PROCID; done")
def test_a_slow_rank_is_slow(told: Story) -> None:
    told.wait_started()
    told.allow("go")
    told.wait_for((told.folder / "tick.1").exists, "the rank to tick")
    drill(told, "slow-rank", "--rank", "1", "--share", "0.1")
    ticks = [told.folder / "tick.0", told.folder / "tick.1"]
    began = [tick.stat().st_size for tick in ticks]
    told.wait_for(lambda: ticks[0].stat().st_size > began[0] + 20000, "the fast rank to go far")
    gone = [tick.stat().st_size - at for tick, at in zip(ticks, began, strict=True)]
    assert gone[1] < gone[0] / 2, gone
    told.cluster.cancel(told.id)
    told.ended("CANCELLED")


@story(rank="exec sleep 300")
def test_a_drill_that_hits_nobody_is_refused_in_one_sentence(told: Story) -> None:
    told.wait_started()
    done = told.cluster.run(["ftslurm", "drill", "hang", str(told.id), "--rank", "7"], env=told.env)
    assert done.returncode == RequestRefused.exit_status and "there is no rank 7" in done.stderr and not done.stdout
    done = told.cluster.run(["ftslurm", "drill", "hang", "999999", "--rank", "0"], env=told.env)
    assert done.returncode == UnknownJob.exit_status
    told.cluster.cancel(told.id)
    told.ended("CANCELLED")
    done = told.cluster.run(["ftslurm", "drill", "hang", str(told.id), "--rank", "0"], env=told.env)
    assert done.returncode != 0 and len(done.stderr.splitlines()) == 1, done.stderr


# --- what the ranks said

PYTHON = 'exec /usr/bin/python3 "$STORY/train.py"'


@story(nodes=2, tasks=2, rank=PYTHON, files={"train.py": "import no_such_module\n"})
def test_an_import_error_everywhere_fails_at_once_with_the_line(told: Story) -> None:
    told.ended("FAILED")
    (verdict,) = last_attempt(told)["verdicts"]  # type: ignore[misc]
    assert (verdict["error_class"], verdict["signature"]) == ("user-code", "py-import")
    assert "No module named 'no_such_module'" in told.output()
    assert len(told.attempts()) <= 2, "at most one confirming try, where the others were stopped before they said so"


ECC = """
import os, sys, time
if os.environ["MA_SCHEDULE_CNT"] == "1":
    if os.environ["SLURM_PROCID"] == "1":
        time.sleep(1)
        print("RuntimeError: CUDA error: uncorrectable ECC error encountered", file=sys.stderr, flush=True)
        sys.exit(1)
    time.sleep(100)
"""


@pytest.mark.long
@story(nodes=2, rank=PYTHON, files={"train.py": ECC})
def test_a_line_that_convicts_its_node_takes_the_node_out(told: Story) -> None:
    node = told.wait_started()[1].node
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", node)
    assert {start.cause for start in told.of_attempt(2).values()} == {"hardware"}
    assert told.ftslurm("nodes") == "", "what one job's ranks print is nothing to others"


ALWAYS_ECC = """
import os, sys, time
if os.environ["SLURM_PROCID"] == "1":
    time.sleep(1)
    print("RuntimeError: CUDA error: uncorrectable ECC error encountered", file=sys.stderr, flush=True)
    sys.exit(1)
time.sleep(100)
"""


@pytest.mark.long
@story(nodes=2, rank=PYTHON, files={"train.py": ALWAYS_ECC})
def test_what_comes_with_its_rank_to_another_node_gives_the_first_node_back(told: Story) -> None:
    """By words alone the first node is left; the error comes along, and Slurm keeps the job off that node no more."""
    job = told.ended("FAILED")
    first, second = (told.of_attempt(number)[1].node for number in (1, 2))
    assert first != second and (job["Restarts"], job["ExcNodeList"]) == ("2", "(null)")
    assert f"it is the program; {first} is reinstated" in told.output()
    assert {start.excluded for start in told.of_attempt(3).values()} == {""}
    assert any(f"{first} is not to blame" in line for line in told.ftslurm("history", "-v", str(told.id)).splitlines())


FLAKY = '[ $MA_SCHEDULE_CNT.$MA_PROC_START_CNT = 1.1 ] || exit 0; together; echo "my own hiccup" >&2; exit 1'


@pytest.mark.long
@story(rank=FLAKY, ft="--ft-set retry.policy=ExitCodeAndErrorMsg --ft-set retry.keywords=hiccup")
def test_a_keyword_of_one_s_own_makes_an_error_worth_another_try(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "1"


@story(rank=FLAKY, ft='--ft-aimaster "--enable-job-restart=True --fault-tolerant-policy=OnFailure"', env=BY_DEFAULT)
def test_aimaster_s_flags_restart_the_job_in_place(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]


# --- async jobs

WORKER = "[ $SLURM_PROCID.$MA_PROC_START_CNT = 2.1 ] && { together; exit 5; }; until [ -e $STORY/done ]; do sleep 0.3; done"


@story(nodes=2, tasks=2, rank=WORKER, ft="--ft-mode async")
def test_only_the_failed_rank_of_an_async_job_starts_again(told: Story) -> None:
    first = told.wait_started()
    told.wait_for(lambda: len(told.starts()) == 5, "rank 2 to start again")
    again = told.starts()[-1]
    assert (again.rank, again.counters) == (2, (1, 2, 2)) and again.node == first[2].node
    assert len(told.alive(first[rank] for rank in (0, 1, 3))) == 3, "the others were not touched"
    told.allow("done")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert len(told.starts()) == 5


@pytest.mark.long
@story(
    nodes=2,
    rank="[ $SLURM_PROCID = 1 ] && { [ $MA_PROC_START_CNT = 1 ] && together; exit 4; }; exec sleep 100",
    ft='--ft-aimaster "--job-execution-mode=Async --fault-tolerant-policy=OnFailure --max-num-of-same-error=2"',
    env=BY_DEFAULT,
)
def test_an_instance_that_fails_with_the_same_error_too_often_ends_an_async_job(told: Story) -> None:
    job = told.ended("FAILED")
    assert job["ExitCode"] == "4:0"
    assert [start.rank for start in told.starts()].count(1) == 3 and "3 times on rank 1" in told.output()


# --- the memory of nodes


def test_a_node_that_two_jobs_left_is_suspect_to_the_third(
    boot_cluster: Callable[..., AbstractContextManager[Cluster]], job_path: tuple[Path, ...]
) -> None:
    """For a fact. The third job fails without a word there and is requeued; as another node is free, it goes there. Slurm fills
    nodes from the first."""
    with boot_cluster(nodes=2) as own, new_stage(own, job_path) as stage:
        shared = {"FTSLURM_STATE_DIR": f"{stage.home}/shared-state"}
        broken = Plan(rank="[ $MA_SCHEDULE_CNT = 1 ] || exit 0; fault 0.0 80E18402; exec sleep 100", env=shared)
        for number in (1, 2):
            told = stage.tell(broken, f"broken-{number}")
            assert told.ended("COMPLETED")["ExcNodeList"] == "n1"
            told.cluster.answer(["npu-sim", "clear", "--node", "n1"], env=told.env)
        third = stage.tell(Plan(rank="[ $MA_SCHEDULE_CNT = 1 ] && exit 3; exit 0", env=shared), "third")
        assert third.ended("COMPLETED")["ExcNodeList"] == "n1"
        assert "node n1 is suspect" in third.output() and "is requeued without n1" in third.output()
        # An administrator's walk: one command to the cause and to what mends it, one to let the node in again.
        cause = third.ftslurm("nodes")
        assert "suspect" in cause and "80E18402" in cause and "replace the device" in cause, cause
        assert len(third.json("nodes")[0]["jobs"]) == 2
        third.ftslurm("nodes", "--clear", "n1")
        assert third.ftslurm("nodes") == ""

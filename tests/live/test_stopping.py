"""The end that people and Slurm ask for: scancel, Ctrl-C, a killed ftrun, and the warning ahead of a time limit."""

from __future__ import annotations

import signal
import time

import pytest

from tests.live.stories import Plan, Stage, Story, kill, story, terminal
from tests.machine import slowness

pytestmark = pytest.mark.live

AT_ONCE_S = 15.0  # on a quiet machine, with processes that obey; below every grace (20 s), KillWait (30 s) and requeue (120 s)
FOR_EVER = "exec sleep 600"
BATCH_PID = 'echo $$ >"$STORY/ftrun.pid"; exec %RUN%'


def ftrun_pid(told: Story) -> int:
    return told.pids()[told.job()["BatchHost"], int((told.folder / "ftrun.pid").read_text())]


def ends_at_once(told: Story, state: str) -> dict[str, str]:
    began = time.monotonic()
    try:
        job = told.ended(state)
        told.wait_nothing_left()
        assert time.monotonic() - began < AT_ONCE_S * slowness()
    except AssertionError as error:
        raise AssertionError(f"{error}\n--- processes\n{told.processes()}") from None
    assert job["Restarts"] == "0"
    return job


@pytest.mark.flat
@pytest.mark.slurms
@story(nodes=4, tasks=2, ft="--ft-set warning.requeue=true", rank=FOR_EVER)
def test_scancel_ends_everything_at_once(told: Story) -> None:
    """Also where a requeue on warnings is asked for: this is no warning."""
    told.wait_started()
    told.cluster.answer(["scancel", str(told.id)])
    ends_at_once(told, "CANCELLED")
    assert set(told.attempts()) == {1}


@story(
    tasks=2,
    ft="--ft-set stop.grace=20s",
    rank="""
trap 'say term' TERM
say ready
until grep -q "^$SLURM_PROCID .* term" "$STORY/said"; do sleep 0.3; done
sleep 1
say checkpoint
""",
)
def test_scancel_leaves_ranks_the_time_for_a_checkpoint_and_asks_them_once(told: Story) -> None:
    """As under srun: a handler that is interrupted by a second SIGTERM would leave half a checkpoint."""
    told.wait_for(lambda: len(told.said()) == 2, "both ranks to be ready")
    told.cluster.answer(["scancel", str(told.id)])
    ends_at_once(told, "CANCELLED")
    for rank in (0, 1):
        assert [words for who, _, _, words in told.said() if who == rank] == ["ready", "term", "checkpoint"]


@story(tasks=2, rank="trap '' TERM\nsetsid sh -c 'trap \"\" TERM; sleep 600' &\nwhile :; do sleep 0.3; done")
def test_scancel_ends_those_that_do_not_obey_within_the_grace(told: Story) -> None:
    """Slurm itself would wait KillWait, 30 s, and never find what left the session."""
    told.wait_started()
    told.cluster.answer(["scancel", str(told.id)])
    ends_at_once(told, "CANCELLED")


@story(
    nodes=2,
    rank="[ $SLURM_PROCID.$MA_PROC_START_CNT = 0.1 ] && fault 0.0 80C98008 --reset slow:30\nexec sleep 600",
    ft="--ft-set rungs.in-place-restart.reset_wait=60s",
)
def test_scancel_while_a_device_heals_ends_everything_at_once(told: Story) -> None:
    told.wait_started()
    told.wait_for(lambda: "is restarted in place" in told.output(), "healing to begin")
    told.cluster.answer(["scancel", str(told.id)])
    ends_at_once(told, "CANCELLED")


@story(script="exec %RUN%", rank="[ $MA_SCHEDULE_CNT = 1 ] && exit 3\nexec sleep 600", ft="--ft-set requeue.start_in=60s")
def test_scancel_while_the_job_waits_for_its_requeue(told: Story) -> None:
    told.wait_for(
        lambda: (job := told.job())["JobState"] == "PENDING" and job["Restarts"] == "1" and job["Priority"] != "0", "the requeue"
    )
    told.cluster.answer(["scancel", str(told.id)])
    told.ended("CANCELLED", timeout_s=AT_ONCE_S)
    told.wait_nothing_left()
    assert set(told.attempts()) == {1}


@pytest.mark.slurms
@story(tasks=2, script=BATCH_PID, rank=FOR_EVER)
def test_sigint_to_ftrun_ends_the_step_at_once(told: Story) -> None:
    told.wait_started()
    kill(ftrun_pid(told), signal.SIGINT)
    assert ends_at_once(told, "FAILED")["ExitCode"] == "130:0"


@pytest.mark.slurms
@story(tasks=2, script=BATCH_PID, rank=FOR_EVER)
def test_sigterm_to_ftrun_reaches_the_ranks_and_ends_the_job(told: Story) -> None:
    told.wait_started()
    kill(ftrun_pid(told), signal.SIGTERM)
    assert ends_at_once(told, "FAILED")["ExitCode"] == "143:0"


@pytest.mark.flat
@pytest.mark.slurms
@pytest.mark.flat
@pytest.mark.slurms
@story(
    nodes=2,
    tasks=2,
    script='(echo $BASHPID >"$STORY/ftrun.pid"; exec %RUN%)\nftrun true',
    rank="trap '' TERM\nsetsid sh -c 'sleep 600' &\nwhile :; do sleep 0.3; done",
)
def test_a_killed_ftrun_leaves_nothing_behind_and_nobody_waits_for_it(told: Story) -> None:
    """As under srun, whose step is killed with it: also ranks that ignore SIGTERM."""
    told.wait_started()
    kill(ftrun_pid(told), signal.SIGKILL)
    ends_at_once(told, "COMPLETED")


@pytest.mark.parametrize("rank", [
    pytest.param(FOR_EVER, marks=pytest.mark.long, id="obeys"),
    pytest.param("trap '' TERM INT\nwhile :; do sleep 0.3; done", id="ignores"),
])  # fmt: skip
def test_ctrl_c_in_salloc_ends_everything(stage: Stage, rank: str) -> None:
    """One press is enough, where srun's own first one only reports."""
    told = stage.prepare(Plan(nodes=2, tasks=2, rank=rank), "ctrl-c")
    with terminal(told, told.salloc_argv("ftrun", "sh", f"{told.folder}/rank.sh")) as shell:
        told.wait_started()
        shell.write("\x03")
        assert shell.wait(AT_ONCE_S) == 130, shell.seen
    told.wait_nothing_left(3.0)
    assert set(told.attempts()) == {1}


# ---- a warning ahead of the end

CHECKPOINT = """
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
trap 'say checkpoint; exit 0' TERM
say ready
while :; do sleep 0.3; done
"""
REQUEUE = "--ft-set warning.requeue=true"
# Slurm looks at time limits every 30 s or so (PERIODIC_TIMEOUT in its controller), and ends the job at 60 to 90 s.
LIMIT_TIMEOUT_S = 100.0


def warned(told: Story, *how: str) -> None:
    ranks = told.plan.nodes * told.plan.tasks
    told.wait_for(lambda: [words for *_, words in told.said()].count("ready") == ranks, "all ranks to be ready")
    told.cluster.answer(["scancel", "--signal=TERM", *how, str(told.id)])


def checkpoints(told: Story) -> list[int]:
    return sorted(rank for rank, attempt, _, words in told.said() if (attempt, words) == (1, "checkpoint"))


@story(nodes=2, tasks=2, rank=CHECKPOINT)
def test_a_warning_reaches_the_ranks_and_requeues_nothing_by_itself(told: Story) -> None:
    warned(told)
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert checkpoints(told) == [0, 1, 2, 3]
    assert set(told.attempts()) == {1}


@pytest.mark.slurms
@story(nodes=2, tasks=2, ft=REQUEUE, rank=CHECKPOINT)
def test_a_warning_requeues_where_asked_for_and_costs_nothing(told: Story) -> None:
    warned(told)
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", "(null)")
    assert checkpoints(told) == [0, 1, 2, 3]
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert {start.rung for start in told.of_attempt(2).values()} == {"requeue-on-warning"}
    status = told.json("status", str(told.id))
    assert status["left"]["max_restarts"] == [8, 8]
    assert status["unconditional_in_a_row"] == 0


@pytest.mark.slurms
@story(tasks=2, ft=REQUEUE, script="exec %RUN%", rank=CHECKPOINT)
def test_so_does_a_warning_to_the_batch_script_alone(told: Story) -> None:
    """As `#SBATCH --signal=B:TERM@…` sends it; a script that waits for ftrun would hear it only afterwards."""
    warned(told, "--batch")
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert checkpoints(told) == [0, 1]
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert told.json("status", str(told.id))["left"]["max_restarts"] == [8, 8]


@story(tasks=2, ft=REQUEUE, script="exec %RUN%", rank=CHECKPOINT)
def test_so_does_one_to_everything_at_once(told: Story) -> None:
    """It reaches srun as well, which then ends the step at once: whether there was time for a checkpoint is chance."""
    warned(told, "--full")
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]


@story(
    tasks=2,
    ft=f"{REQUEUE} --ft-set warning.grace=3s",
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
trap 'say checkpoint' TERM
say ready
while :; do sleep 0.3; done
""",
)
def test_ranks_that_go_on_after_the_warning_are_ended_after_its_grace(told: Story) -> None:
    warned(told)
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]


@pytest.mark.long
@story(
    ft=f"{REQUEUE} --ft-set warning.signals=USR1",
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
trap 'say checkpoint; exit 0' USR1
say ready
while :; do sleep 0.3; done
""",
)
def test_another_signal_may_be_the_warning(told: Story) -> None:
    told.wait_for(lambda: [words for *_, words in told.said()] == ["ready"], "the rank to be ready")
    told.cluster.answer(["scancel", "--signal=USR1", str(told.id)])
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert checkpoints(told) == [0]


# Slurm warns 0 to 30 s earlier than asked (PERIODIC_TIMEOUT): half a minute after a start at the soonest. By then the second
# attempt, which is warned like the first, has come up and ended on a busy machine as well.
@story(early=True, tasks=2, ft=REQUEUE, sbatch=("--time=2", "--signal=TERM@60"), rank=CHECKPOINT)
def test_the_time_limit_s_own_warning_requeues(told: Story) -> None:
    job = told.ended("COMPLETED", timeout_s=LIMIT_TIMEOUT_S)
    assert job["Restarts"] == "1"
    assert checkpoints(told) == [0, 1]
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]


@pytest.mark.long
@story(early=True, tasks=2, ft=REQUEUE, script="exec %RUN%", sbatch=("--time=2", "--signal=B:TERM@60"), rank=CHECKPOINT)
def test_and_so_does_the_one_to_the_batch_script(told: Story) -> None:
    job = told.ended("COMPLETED", timeout_s=LIMIT_TIMEOUT_S)
    assert job["Restarts"] == "1"
    assert checkpoints(told) == [0, 1]
    assert told.json("status", str(told.id))["left"]["max_restarts"] == [8, 8]


@pytest.mark.slurms
@story(early=True, nodes=2, ft="--ft-resume-at-limit=90s", sbatch=("--time=2",), rank=CHECKPOINT)
def test_by_one_word_ftrun_warns_the_ranks_itself_and_requeues_before_the_limit(told: Story) -> None:
    job = told.ended("COMPLETED", timeout_s=LIMIT_TIMEOUT_S)
    assert job["Restarts"] == "1"
    assert checkpoints(told) == [0, 1]
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert told.json("status", str(told.id))["left"]["max_restarts"] == [8, 8]


@story(early=True, tasks=2, sbatch=("--time=1",), rank=FOR_EVER)
def test_without_a_warning_the_time_limit_ends_the_job(told: Story) -> None:
    job = told.ended("TIMEOUT", timeout_s=LIMIT_TIMEOUT_S)
    assert job["Restarts"] == "0"
    told.wait_nothing_left()
    assert set(told.attempts()) == {1}
    assert "to go on by itself: ftrun --ft-resume-at-limit" in told.output()
    for verb in ("status", "history", "explain"):
        assert "timeout: to go on by itself" in told.ftslurm(verb, str(told.id)), verb

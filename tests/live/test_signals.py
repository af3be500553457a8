"""Ranks that do not go quietly: nothing of an old attempt runs beside a new one, and signals arrive once."""

from __future__ import annotations

import pytest

from tests.live.stories import Story, admin, story

pytestmark = pytest.mark.live

ONE_FAULT = "[ $SLURM_PROCID.$MA_PROC_START_CNT = 0.1 ] && fault 0.0 80C98008\n"


def beats(told: Story) -> dict[int, list[float]]:
    """Attempt to the times of the lines that say `beat`, whoever wrote them."""
    found: dict[int, list[float]] = {}
    for _, attempt, at, words in told.said():
        if words.startswith("beat"):
            found.setdefault(attempt, []).append(at)
    return found


def nothing_of_the_first_after_the_second_began(told: Story) -> None:
    first = told.of_attempt(1)
    second_began = min(start.time for start in told.of_attempt(2).values())
    heard = beats(told).get(1, [])
    assert len(heard) > 3, f"nothing to tell from\n{told.describe()}"
    assert max(heard) < second_began
    assert not told.alive(first.values())


@pytest.mark.slurms
@story(
    tasks=2,
    rank=ONE_FAULT
    + """
[ $MA_PROC_START_CNT = 1 ] || { sleep 1; exit 0; }
trap 'say beat on TERM' TERM
while :; do say beat; sleep 0.1; done
""",
)
def test_a_rank_that_ignores_sigterm_is_killed_before_the_next_attempt(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    nothing_of_the_first_after_the_second_began(told)
    assert [words for *_, words in told.said() if "TERM" in words], "it was killed without having been asked"


# The daemon's double fork: a child that leaves session and process group, whose parent has gone. It closes what it has.
DAEMON = """
cat >"$STORY/daemon.$SLURM_PROCID.$FTSLURM_ATTEMPT" <<END
%TRAP%
echo \\$\\$ >"$STORY/daemon-pid.$SLURM_PROCID.$FTSLURM_ATTEMPT"
while :; do echo "$SLURM_PROCID $FTSLURM_ATTEMPT \\$(date +%s.%N) beat" >>"$STORY/said"; sleep 0.1; done
END
(setsid sh -c 'setsid sh "$0" </dev/null >/dev/null 2>&1 & exit 0' "$STORY/daemon.$SLURM_PROCID.$FTSLURM_ATTEMPT" &)
"""


def daemons(told: Story) -> dict[int, str]:
    """Those that run, by the script that they were given."""
    assert list(told.folder.glob("daemon-pid.*")), f"no daemon ran\n{told.describe()}"
    return {pid: words for pid, words in told.processes().items() if f"{told.folder}/daemon." in words}


@pytest.mark.long
@story(tasks=2, rank=DAEMON.replace("%TRAP%", "") + ONE_FAULT + "[ $MA_PROC_START_CNT = 1 ] && exec sleep 100; sleep 1; exit 0")
def test_a_daemon_of_the_old_attempt_is_gone_before_the_new_one_starts(told: Story) -> None:
    told.ended("COMPLETED")
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    nothing_of_the_first_after_the_second_began(told)
    assert not daemons(told)


@story(
    rank=DAEMON.replace("%TRAP%", "trap '' TERM HUP INT")
    + ONE_FAULT
    + "[ $MA_PROC_START_CNT = 1 ] && exec sleep 100; sleep 1; exit 0"
)
def test_so_is_one_that_ignores_every_signal_it_can(told: Story) -> None:
    told.ended("COMPLETED")
    nothing_of_the_first_after_the_second_began(told)
    assert not daemons(told)


@story(
    rank=DAEMON.replace("%TRAP%", "trap '' TERM HUP INT")
    + """
[ $MA_PROC_START_CNT = 1 ] || exit 0
until [ "$(grep -c beat "$STORY/said")" -gt 3 ]; do sleep 0.3; done
exit 1
""",
    ft="--ft-set rungs.in-place-restart.crash_restarts=1",
)
def test_a_daemon_that_outlives_its_crashed_rank_is_ended_as_well(told: Story) -> None:
    told.ended("COMPLETED")
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    nothing_of_the_first_after_the_second_began(told)


@story(rank=DAEMON.replace("%TRAP%", "trap '' TERM HUP INT") + 'until [ -e "$STORY/daemon-pid.0.1" ]; do sleep 0.3; done; exit 0')
def test_a_daemon_left_by_a_program_that_ended_well_holds_nothing_up(told: Story) -> None:
    told.ended("COMPLETED")
    assert not daemons(told)
    assert told.output() == ""


@story(
    tasks=2,
    rank=ONE_FAULT
    + """
exec </dev/null >&- 2>&-
[ $MA_PROC_START_CNT = 1 ] || exit 0
exec sleep 100
""",
)
def test_a_rank_that_closes_its_output_is_supervised_all_the_same(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]


@story(
    tasks=2,
    ft="--ft-set stop.grace=20s",
    rank="""
[ $MA_PROC_START_CNT = 1 ] || exit 0
trap 'say checkpoint; exit 0' TERM
[ $SLURM_PROCID = 0 ] && fault 0.0 80C98008
while :; do sleep 0.3; done
""",
)
def test_ranks_that_obey_sigterm_have_the_time_for_a_checkpoint_and_no_more_is_waited(told: Story) -> None:
    told.ended("COMPLETED")
    saved = {rank: at for rank, attempt, at, words in told.said() if words == "checkpoint"}
    assert sorted(saved) == [0, 1]
    second_began = min(start.time for start in told.of_attempt(2).values())
    assert max(saved.values()) < second_began < max(saved.values()) + 15.0  # self-healing and reset, not the grace


NO_REQUEUE = {"FTRUN_UNCONDITIONAL_REQUEUE_ENABLED": "false"}


@pytest.mark.slurms
@story(env=NO_REQUEUE, tasks=2, rank="together; [ $SLURM_PROCID = 1 ] && { ulimit -c 0; kill -SEGV $$; }; exec sleep 100")
def test_a_segmentation_fault_fails_with_139(told: Story) -> None:
    assert told.ended("FAILED")["ExitCode"] == "139:0"
    assert "killed by SIGSEGV" in told.output()


@pytest.mark.long
@pytest.mark.slurms
@story(env=NO_REQUEUE, tasks=2, rank="together; [ $SLURM_PROCID = 1 ] && kill -KILL $$; exec sleep 100")
def test_a_killed_rank_fails_with_137(told: Story) -> None:
    assert told.ended("FAILED")["ExitCode"] == "137:0"
    assert "killed by SIGKILL" in told.output()


@story(rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0; kill -KILL $$")
def test_a_killed_rank_is_a_crash_and_requeued(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "1"


# The shim is the parent of the rank's command.
@pytest.mark.slurms
@story(
    tasks=2,
    rank="""
[ $MA_SCHEDULE_CNT = 2 ] && exit 0
together
[ $SLURM_PROCID = 1 ] && kill -KILL $PPID
while :; do say beat; sleep 0.1; done
""",
)
def test_a_shim_that_is_killed_takes_its_rank_along_and_the_job_is_requeued(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    second_began = min(start.time for start in told.of_attempt(2).values())
    assert max(beats(told).get(1, [0.0])) < second_began
    assert not told.alive(told.of_attempt(1).values())


@story(
    tasks=2,
    ft="--ft-restart-via step",
    rank="""
if [ $MA_PROC_START_CNT.$MA_SCHEDULE_CNT != 1.1 ]; then
    grep -q "^State:[^Z]*$" /proc/$(cat "$STORY/left")/status || say alone
    exit 0
fi
sleep 100 & [ $SLURM_PROCID = 0 ] || { echo $! >"$STORY/left"; fault 0.0 80C98008; kill -KILL $PPID; }
exec sleep 100
""",
)
def test_a_shim_that_is_killed_beside_a_fault_leaves_a_new_step_as_the_remedy(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.attempts() == {1: {(1, 1, 1)}, 2: {(1, 2, 2)}}
    assert len({start.step for start in told.starts()}) == 2
    alone = [(attempt, words) for _, attempt, _, words in told.said()]
    assert alone == [(2, "alone")] * 2, "nothing is left of what the ranks had started"


@pytest.mark.slurms
@story(
    tasks=2,
    rank="""
trap 'say usr1' USR1
trap 'say usr2' USR2
say ready
until [ -e "$STORY/end" ]; do sleep 0.3; done
""",
)
def test_user_signals_arrive_once_and_end_nothing(told: Story) -> None:
    """Slurm signals the whole process tree or the task alone, by the site's proctrack; the shim passes on what is due."""
    told.wait_for(lambda: len([words for *_, words in told.said() if words == "ready"]) == 2, "both ranks to be ready")
    told.cluster.answer(["scancel", "--signal=USR1", str(told.id)])
    told.wait_for(lambda: [words for *_, words in told.said()].count("usr1") == 2, "SIGUSR1 in both ranks")
    told.cluster.answer(["scancel", "--signal=USR2", f"{told.id}.0"])
    told.wait_for(lambda: [words for *_, words in told.said()].count("usr2") == 2, "SIGUSR2 in both ranks")
    told.allow("end")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert sorted(words for *_, words in told.said()) == ["ready", "ready", "usr1", "usr1", "usr2", "usr2"]


# Whoever is asked to end starts another one in a session of its own; only who is killed does not.
HYDRA = (
    """
[ $MA_PROC_START_CNT = 1 ] || { sleep 1; exit 0; }
cat >"$STORY/head" <<'END'
trap 'setsid sh "$0" & setsid sh "$0" & exit 0' TERM HUP INT
while :; do echo "$SLURM_PROCID $FTSLURM_ATTEMPT $(date +%s.%N) beat" >>"$STORY/said"; sleep 0.2; done
END
setsid sh "$STORY/head" &
"""
    + ONE_FAULT
    + "while :; do sleep 0.3; done"
)


@story(rank=HYDRA)
def test_processes_that_multiply_when_asked_to_end_are_all_ended(told: Story) -> None:
    told.ended("COMPLETED")
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    nothing_of_the_first_after_the_second_began(told)
    told.wait_nothing_left(1.0)


@story(
    tasks=2,
    rank="""
[ $MA_PROC_START_CNT = 1 ] || exit 0
trap 'say obeyed; exit 0' TERM
[ $SLURM_PROCID = 1 ] && kill -STOP $$
"""
    + ONE_FAULT
    + "while :; do sleep 0.3; done",
    ft="--ft-set stop.grace=20s",
)
def test_a_stopped_rank_hears_sigterm_too(told: Story) -> None:
    told.ended("COMPLETED")
    assert sorted(rank for rank, _, _, words in told.said() if words == "obeyed") == [0, 1]


@pytest.mark.long
@pytest.mark.slurms
@story(tasks=2, rank='say ready; until [ -e "$STORY/end" ]; do sleep 0.3; done')
def test_suspend_and_resume_are_no_failure(told: Story) -> None:
    told.wait_for(lambda: len(told.said()) == 2, "both ranks to be ready")
    told.cluster.answer(["scontrol", "suspend", str(told.id)], user=admin())
    assert told.cluster.wait_for_state(told.id, "SUSPENDED")
    told.cluster.answer(["scontrol", "resume", str(told.id)], user=admin())
    assert told.cluster.wait_for_state(told.id, "RUNNING")
    told.allow("end")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]

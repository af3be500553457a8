"""Requeues, on a real cluster: the job runs again soon, elsewhere where it has to, and goes on with the right counters.

Every script here is as a user writes it: no trap for the SIGTERM that comes with a requeue.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.stories import NOTED, Story, admin, nodes_in, story

pytestmark = [pytest.mark.live, pytest.mark.slurms]

# From the last line of one scheduling to the first of the next. Slurm's own requeue takes 121 s and more; ours 5 s,
# and 40 s where twenty jobs at once share two busy cores.
# Slurm's own delay is 121 s, and added where a clean-up takes longer than the job was told to wait: as it may on a busy machine.
SOON_S = 110.0
SOON = "--ft-set requeue.start_in=40s"


def gap_s(told: Story) -> float:
    """Seconds between the last start of the first scheduling and the first start of the second."""
    starts = told.starts()
    before = max(start.time for start in starts if start.schedule == "1")
    return min(start.time for start in starts if start.schedule == "2") - before


@story(
    nodes=4,
    tasks=2,
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 5 ] && { fault 0.0 80C98008 --reset refused; say sick $SLURMD_NODENAME; }
exec sleep 100
""",
    ft=SOON,
    script=NOTED,
)
def test_healing_refused_requeues_without_that_node(told: Story) -> None:
    job = told.ended("COMPLETED")
    (sick,) = {words.split()[1] for *_, words in told.said()}
    assert (job["Restarts"], job["ExcNodeList"], job["ExitCode"]) == ("1", sick, "0:0")
    assert sick not in nodes_in(told.cluster, job["NodeList"])
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    first, second = told.of_attempt(1), told.of_attempt(2)
    assert sick in {start.node for start in first.values()}
    assert sick not in {start.node for start in second.values()}
    assert {(start.rung, start.cause, start.excluded) for start in second.values()} == {("isolated-requeue", "device", sick)}
    assert told.batch()[-2:] == [("before", 2, 1, 2), ("after", 2, 1, 2)]
    assert gap_s(told) < SOON_S


@story(
    nodes=2,
    tasks=2,
    rank="""
    shown() { squeue -h -j $SLURM_JOB_ID -o %k | grep -q 'attempt 2 runs'; }
    [ $MA_SCHEDULE_CNT$SLURM_PROCID = 20 ] && until shown; do sleep 0.2; done
    [ $MA_SCHEDULE_CNT = 2 ] && exit 0
    together; [ $SLURM_PROCID = 2 ] && exit 17; exec sleep 100
    """,
    ft=SOON,
)
def test_a_crash_is_requeued_and_runs_again_soon_and_squeue_shows_it(told: Story) -> None:
    job = told.ended("COMPLETED")
    assert not job.get("Comment"), "the end empties it"
    (ledger,) = (told.folder / "state/jobs").glob("*.jsonl")
    assert ledger.read_text().count('"kind":"CarriedOut"') == 1, "recorded by the requeue's step alone"
    assert (job["Restarts"], job["ExcNodeList"], job["ExitCode"]) == ("1", "(null)", "0:0")
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert {(start.rung, start.cause) for start in told.of_attempt(2).values()} == {("unconditional-requeue", "crash")}
    assert gap_s(told) < SOON_S


@story(
    script="""
umask 077; mkdir -p "$FTSLURM_STATE_DIR"; echo "me: [$STORY/tell]" > "$FTSLURM_STATE_DIR/notify.yaml"
printf '#!/bin/sh\ncat >>"%s"\n' "$STORY/told" > "$STORY/tell"; chmod 700 "$STORY/tell"
exec %RUN%
""",
    rank="[ $MA_SCHEDULE_CNT = 2 ] || exit 17",
    ft=SOON,
)
def test_a_script_that_execs_ftrun_is_requeued_as_well_and_people_are_told_once(told: Story) -> None:
    job = told.ended("COMPLETED")
    assert job["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert gap_s(told) < SOON_S
    assert (told.folder / "told").read_text().count(f"job {told.id} is requeued") == 1


@pytest.mark.long
@story(
    script='set -e\n%RUN% | tee "$STORY/piped"\ntouch "$STORY/after"',
    rank="echo $MA_SCHEDULE_CNT; [ $MA_SCHEDULE_CNT = 2 ] || exit 17",
)
def test_ftrun_in_a_pipe_is_requeued_as_well(told: Story) -> None:
    """Nothing but the job's end may depend on what the script makes of ftrun's exit status."""
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert (told.folder / "piped").read_text() == "2\n"
    assert (told.folder / "after").exists()


@story(
    nodes=2,
    sbatch=("--exclude=n6",),
    rank="""
case $MA_SCHEDULE_CNT in
1) [ $SLURM_PROCID = 1 ] && { fault 0.0 80E18402; say sick $SLURMD_NODENAME; }; exec sleep 100;;
2) together; [ $SLURM_PROCID = 0 ] && exit 5; exec sleep 100;;
esac
""",
)
def test_exclusions_last_over_later_requeues_and_keep_the_users_own(told: Story) -> None:
    job = told.ended("COMPLETED")
    (sick,) = {words.split()[1] for *_, words in told.said()}
    assert job["Restarts"] == "2"
    assert nodes_in(told.cluster, job["ExcNodeList"]) == {sick, "n6"}
    assert not {sick, "n6"} & {start.node for start in told.starts() if start.schedule != "1"}
    assert told.counters() == [(1, 1, 1), (2, 1, 2), (3, 1, 3)]
    assert {start.excluded for start in told.of_attempt(3).values()} == {sick}


@story(
    nodes=2,
    sbatch=("--nodelist=n[5-6]",),
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 1 ] && fault 0.0 80E18402
exec sleep 100
""",
)
def test_a_sick_node_that_the_job_asks_for_by_name_is_asked_for_no_more(told: Story) -> None:
    """Slurm would let it wait for that node for ever: BadConstraints."""
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ReqNodeList"], job["ExcNodeList"]) == ("1", "n5", "n6")
    assert {"n5"} < {start.node for start in told.of_attempt(2).values()}
    assert "n6 taken off its --nodelist" in told.ftslurm("history", "-v", str(told.id))


@story(sbatch=("--array=3-4",), rank="[ $SLURM_ARRAY_TASK_ID.$MA_SCHEDULE_CNT = 3.1 ] && exit 6; exit 0")
def test_tasks_of_an_array_have_counters_and_ledgers_of_their_own(told: Story) -> None:
    crashed, smooth = (told.ended("COMPLETED", number=f"{told.id}_{task}") for task in (3, 4))
    assert (crashed["Restarts"], smooth["Restarts"]) == ("1", "0")
    assert sorted((start.job, *start.counters) for start in told.starts()) == [("3", 1, 1, 1), ("3", 2, 1, 2), ("4", 1, 1, 1)]
    ledgers = [path.name for path in (told.folder / "state/jobs").glob("*.jsonl")]
    assert sorted(name.partition(".")[2] for name in ledgers) == [f"{told.id}_3.jsonl", f"{told.id}_4.jsonl"]
    assert [told.json("status", f"{told.id}_{task}")["schedule_count"] for task in (3, 4)] == [2, 1]


@story(sbatch=("--no-requeue",), rank="exit 7")
def test_a_job_submitted_with_no_requeue_fails_with_the_reason(told: Story) -> None:
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("0", "7:0")
    assert "may not be requeued (submit with `sbatch --requeue`)" in told.output()


@pytest.mark.long
@story(sbatch=("--no-requeue",), ft="--ft-set requeue.even_if_no_requeue=true", rank="[ $MA_SCHEDULE_CNT = 2 ] || exit 7")
def test_a_job_submitted_with_no_requeue_is_requeued_where_the_policy_says_so(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]


# Stands before the true scontrol: the first that would exclude or release ends its keeper and ftrun with SIGKILL, as the
# death of both nodes would.
DEADLY_SCONTROL = """#!/bin/sh
case "$*" in *ExcNodeList=*|release*|*StartTime=*)
    if mkdir "$STORY/killed" 2>/dev/null; then kill -9 $(cat "$STORY/ftrun.pid") $PPID; exit 1; fi;;
esac
exec /usr/bin/scontrol "$@"
"""


@story(
    nodes=2,
    files={"bin-scontrol": DEADLY_SCONTROL},
    script="""
mkdir -p "$STORY/bin" && cp "$STORY/bin-scontrol" "$STORY/bin/scontrol" && chmod +x "$STORY/bin/scontrol"
PATH=$STORY/bin:$PATH sh -c 'echo $$ >"$STORY/ftrun.pid"; exec ftrun sh "$STORY/rank.sh"'
""",
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 1 ] && { fault 0.0 80E18402; say sick $SLURMD_NODENAME; }
exec sleep 100
""",
)
def test_a_requeue_cut_in_half_is_finished_from_outside(told: Story) -> None:
    waits = told.wait_for(
        lambda: (job := told.job())["JobState"] == "PENDING" and job["Restarts"] == "1" and job, "the job to wait again", 60.0
    )
    (sick,) = {words.split()[1] for *_, words in told.said()}
    assert waits["ExcNodeList"] == "(null)" and waits["Priority"] != "0", "it runs again even if nobody does anything"
    told.wait_nothing_left()
    assert told.json("status", str(told.id))["requeue_open"] is True
    answer = told.ftslurm("requeue", "--finish", str(told.id))
    assert answer.startswith(f"job {told.id}: requeued without {sick}")
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", sick)
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert told.ftslurm("requeue", "--finish", str(told.id)) == f"job {told.id}: no requeue is open; nothing to do"


@story(rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0; say ready; await go; exit 4")
def test_an_operators_priority_survives(told: Story) -> None:
    """Hold and release would make Slurm compute it anew."""
    told.wait_for(lambda: bool(told.said()), "the rank to run")
    told.cluster.answer(["scontrol", "update", f"JobId={told.id}", "Priority=4242"], user=admin())
    told.allow("go")
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["Priority"]) == ("1", "4242")


# As above, but it is the keeper alone that is killed, at its first request.
DEADLY_FOR_THE_KEEPER = """#!/bin/sh
case "$(tr '\\\\0' ' ' </proc/$PPID/cmdline)" in *ftslurm.wrapper.requeue.finish*)
    if mkdir "$STORY/killed" 2>/dev/null; then kill -9 $PPID; exit 1; fi;;
esac
exec /usr/bin/scontrol "$@"
"""


@story(
    files={"bin-scontrol": DEADLY_FOR_THE_KEEPER},
    script="""
mkdir -p "$STORY/bin" && cp "$STORY/bin-scontrol" "$STORY/bin/scontrol" && chmod +x "$STORY/bin/scontrol"
PATH=$STORY/bin:$PATH %RUN%
""",
    rank="[ $MA_SCHEDULE_CNT = 1 ] || exit 0; exit 4",
)
def test_ftrun_requeues_by_itself_when_its_keeper_dies(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert (told.folder / "killed").exists()
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]


@pytest.mark.long
@story(tasks=2, rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0; exec sleep 100")
def test_an_operator_s_requeue_counts_as_a_scheduling_and_costs_nothing(told: Story) -> None:
    told.wait_started()
    told.cluster.answer(["scontrol", "requeue", str(told.id)])

    def starts_now() -> bool:
        """Slurm's own delay is 121 s from the end of the clean-up; after that, another start is taken at its word."""
        told.hurry()
        return bool(told.of_attempt(2))

    told.wait_for(starts_now, "the job to run again", 30.0)
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert told.json("status", str(told.id))["left"]["max_restarts"] == [8, 8]


@story(
    tasks=2,
    script="""
ftrun -n1 --exact sh "$STORY/rank.sh" one &
ftrun -n1 --exact sh "$STORY/rank.sh" two
wait
""",
    rank="""
say $1
[ $MA_SCHEDULE_CNT = 2 ] && exit 0
[ $1 = one ] && exec sleep 100
until grep -q one "$STORY/said"; do sleep 0.1; done
exit 3
""",
)
def test_of_two_ftruns_at_once_the_one_that_fails_requeues_the_job_once(told: Story) -> None:
    job = told.ended("COMPLETED")
    assert job["Restarts"] == "1"
    assert sorted(words for *_, words in told.said()) == ["one", "one", "two", "two"]
    assert {start.schedule for start in told.starts()} == {"1", "2"}
    assert {start.starts for start in told.starts()} == {"1"}
    assert told.json("status", str(told.id))["left"]["max_restarts"] == [7, 8]


@pytest.mark.long
@story(rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0; await renamed; exit 3")
def test_a_job_that_was_renamed_meanwhile_is_still_the_same(told: Story) -> None:
    told.wait_started()
    told.cluster.answer(["scontrol", "update", f"JobId={told.id}", "JobName=renamed"])
    told.allow("renamed")
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]


@story(rank="exit 0")
def test_a_job_number_given_out_again_is_a_new_job(told: Story) -> None:
    """Slurm begins anew after 2^26 jobs or a lost state folder; here the ledger of an older job is laid in its way."""
    told.ended("COMPLETED")
    (ledger,) = (told.folder / "state/jobs").glob("*.jsonl")
    older = [json.loads(line) for line in ledger.read_text().splitlines()]
    for record in older:
        if record["kind"] == "RunBegan":
            record.update(start_time=record.get("start_time", 0) - 100_000, at=record["at"] - 100_000)
    again = copy_of(told, [json.dumps(record) for record in older], ledger.name)
    assert again == "1 1 1"


def copy_of(told: Story, older: list[str], name: str) -> str:
    """The counters that ftrun gives the first rank of a job whose number has the ledger `older`, changed to that number."""
    script = """#!/bin/bash
mkdir -p -m 700 "$STORY/again/jobs"
sed "s/\\"job\\":\\"%OLD%\\"/\\"job\\":\\"$SLURM_JOB_ID\\"/" "$STORY/older" | sed "s/ //g" >"$STORY/again/jobs/${SLURM_CLUSTER_NAME}.$SLURM_JOB_ID.jsonl"
chmod 600 "$STORY/again/jobs/"*
FTSLURM_STATE_DIR=$STORY/again ftrun sh -c 'echo $MA_SCHEDULE_CNT $MA_PROC_START_CNT $FTSLURM_ATTEMPT' >"$STORY/again.out"
""".replace("%OLD%", str(told.id))
    (told.folder / "older").write_text("\n".join(older).replace('": ', '":') + "\n")
    number = told.cluster.submit(script, "--time=5", "--job-name=script.sh", "--output=/dev/null", cwd=told.folder, env=told.env)
    told.cluster.wait_for_state(number, "COMPLETED", timeout_s=40.0)
    return Path(told.folder / "again.out").read_text().strip()


CLEAN = """
echo here >>"$STORY/cleaned.$SLURMD_NODENAME"
[ -z "$1" ] || sleep "$1" || exit 9 # Slurm may end it before it ends us
touch "$STORY/clean.$SLURMD_NODENAME"
echo "unmounting failed" >&2
exit 3
"""
FAILS_ONCE = "[ $MA_SCHEDULE_CNT = 2 ] && exit 0; together; [ $SLURM_PROCID = 1 ] && exit 17; exec sleep 100"


@story(nodes=2, rank=FAILS_ONCE, files={"clean.sh": CLEAN}, ft='--ft-set "requeue.cleanup=sh,$STORY/clean.sh"')
def test_the_job_s_own_clean_up_runs_once_on_each_node_before_a_requeue(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "1"
    nodes = {start.node for start in told.of_attempt(1).values()}
    assert {path.name for path in told.folder.glob("cleaned.*")} == {f"cleaned.{node}" for node in nodes}
    assert all(len(path.read_text().splitlines()) == 1 for path in told.folder.glob("cleaned.*"))
    assert "the clean-up ended with status 3" in told.output() and "unmounting failed" in told.output()


@story(
    nodes=2,
    rank=FAILS_ONCE,
    files={"clean.sh": CLEAN},
    env={"MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": "1"},
    ft=f'{SOON} --ft-set "requeue.cleanup=sh,$STORY/clean.sh,300"',
)
def test_a_clean_up_that_takes_long_holds_the_requeue_up_for_its_grace_only(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert len(list(told.folder.glob("cleaned.*"))) == 2 and not list(told.folder.glob("clean.n*"))
    assert "the clean-up has not ended after 1 s; ftrun no longer waits for it" in told.output()
    assert gap_s(told) < SOON_S

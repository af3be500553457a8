"""The ledger, and what `ftslurm` tells from it: it agrees with what the ranks said themselves."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.live.stories import Story, story

pytestmark = pytest.mark.live

EVENTFUL = """
case $MA_SCHEDULE_CNT.$MA_PROC_START_CNT in
1.1) [ $SLURM_PROCID = 1 ] && fault 0.0 80C98008; exec sleep 100;;
1.2) [ $SLURM_PROCID = 1 ] && { fault 1.0 80E18402; say sick $SLURMD_NODENAME; }; exec sleep 100;;
2.1) together; [ $SLURM_PROCID = 0 ] && exit 3; exec sleep 100;;
esac
"""


def sick_node(told: Story) -> str:
    (sick,) = {words.split()[1] for *_, words in told.said()}
    return sick


@story(
    nodes=2,
    tasks=2,
    rank="echo this is attempt $FTSLURM_ATTEMPT" + EVENTFUL.replace("$SLURM_PROCID = 1", "$SLURM_PROCID = 3"),
    sbatch=("--open-mode=truncate",),
)
def test_status_and_history_agree_with_the_ranks(told: Story) -> None:
    told.ended("COMPLETED")
    assert told.counters() == [(1, 1, 1), (1, 2, 2), (2, 1, 3), (3, 1, 4)]
    sick = sick_node(told)

    status = told.json("status", str(told.id))
    assert (status["job"], status["attempt"], status["schedule_count"], status["start_count"]) == (str(told.id), 4, 3, 1)
    assert status["card"]["log"] == str(told.folder / "output")
    assert list(status["excluded"]) == [sick] and "80E18402" in status["excluded"][sick]
    assert status["left"]["max_restarts"] == [6, 8]
    assert (status["unconditional_in_a_row"], status["requeue_open"], status["damaged"]) == (1, False, 0)
    assert status["state"] == "completed"
    assert (status["rung"], status["cause"]) == ("unconditional-requeue", "crash")

    history = told.json("history", str(told.id))
    assert history["job"] == status
    for view in history["attempts"]:
        began, ended = view["began"], view["ended"]
        starts = told.of_attempt(began["attempt"])
        assert {(began["schedule"] + 1, began["starts"], began["attempt"])} == {start.counters for start in starts.values()}
        assert nodes(told, began["nodes"]) == {start.node for start in starts.values()}
        assert began["tasks"] == len(starts) == 4
        assert {began["step"]} == {start.step for start in starts.values()}
        assert began["at"] <= min(start.time for start in starts.values()) < ended["at"]
        assert sum(ended["exits"].values()) == 4
    remedies = [[remedy["decided"]["rung"] for remedy in view["remedies"]] for view in history["attempts"]]
    assert remedies == [["in-place-restart"], ["isolated-requeue"], ["unconditional-requeue"], []]
    assert all(remedy["done"][-1]["ok"] for view in history["attempts"] for remedy in view["remedies"])
    isolating = history["attempts"][1]["remedies"][0]["decided"]
    assert (list(isolating["isolate"]), isolating["exclude"], isolating["cost"]) == ([sick], [sick], "max_restarts")
    assert [rung for rung, _ in isolating["passed"]][:1] == ["in-place-restart"]
    assert history["attempts"][0]["faults"][0]["code"] == "80C98008"

    for words in (told.ftslurm("status", str(told.id)), told.ftslurm("history", str(told.id))):
        assert (sick in words and "max_restarts" in words) or "unconditional-requeue" in words
    assert f"{told.id}" in told.ftslurm("status")  # one line for every job there is a ledger of
    (line,) = told.json("status")
    same = ("job", "cluster", "command", "attempt", "schedule_count", "nodes", "rung", "cause", "at", "requeue_open")
    assert {name: line[name] for name in same} == {name: status[name] for name in same}
    assert (line["state"], line["over"]) == ("completed", True)
    for attempt in (1, 2, 3, 4):  # two requeues have begun the file anew since
        lines = told.ftslurm("logs", str(told.id), "--attempt", str(attempt)).splitlines()
        assert [line for line in lines if line.startswith("this is")] == [f"this is attempt {attempt}"] * 4
    assert "this is attempt 1" not in (told.folder / "output").read_text()


def nodes(told: Story, folded: str) -> set[str]:
    return set(told.cluster.answer(["scontrol", "show", "hostnames", folded]).split())


@story(script='%RUN%\nftslurm status --json >"$STORY/inside.json"\nftslurm status >"$STORY/inside.txt"', rank="exit 0")
def test_status_in_the_script_means_this_job(told: Story) -> None:
    told.ended("COMPLETED")
    inside = json.loads((told.folder / "inside.json").read_text())
    assert (inside["job"], inside["attempt"]) == (str(told.id), 1)
    assert str(told.id) in (told.folder / "inside.txt").read_text()


@story(rank="await end")
def test_status_of_a_job_that_runs(told: Story) -> None:
    started = told.wait_started()
    status = told.json("status", str(told.id))
    assert (status["state"], status["attempt"], status["nodes"]) == ("running", 1, started[0].node)
    told.allow("end")
    told.ended("COMPLETED")


@story(script="umask 000\n%RUN%", rank="exit 0")
def test_the_ledger_is_closed_to_others_whatever_the_umask(told: Story) -> None:
    told.ended("COMPLETED")
    folder = told.folder / "state"
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE((folder / "jobs").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder / "jobs").glob("*.jsonl")} == {0o600}


@story(
    script="""
mkdir -p "$STORY/home"
unset FTSLURM_STATE_DIR
HOME=$STORY/home ftrun true || exit
HOME=$STORY/home ftslurm status --json >"$STORY/inside.json"
"""
)
def test_without_a_state_folder_the_home_is_taken(told: Story) -> None:
    told.ended("COMPLETED")
    (ledger,) = (told.folder / "home/.ftslurm/jobs").glob("*.jsonl")
    assert ledger.name.endswith(f".{told.id}.jsonl")
    assert json.loads((told.folder / "inside.json").read_text())["job"] == str(told.id)


# Rank 0 tears the last line of its own ledger off, as a power cut would, before it fails.
TORN = """
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
ledger=$(ls "$STORY"/state/jobs/*.jsonl)
printf '{"v":1,"kind":"AttemptBeg' >>"$ledger"
exit 3
"""


@story(rank=TORN)
def test_a_torn_line_is_forgiven(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    status = told.json("status", str(told.id))
    assert (status["attempt"], status["schedule_count"], status["damaged"]) == (2, 2, 1)
    lines = ledger(told).read_text().splitlines()
    assert sum(not is_json(line) for line in lines) == 1


def ledger(told: Story) -> Path:
    (path,) = (told.folder / "state/jobs").glob("*.jsonl")
    return path


def is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@story(
    tasks=2,
    script="""
ftrun -n1 --exact sh "$STORY/rank.sh" one &
ftrun -n1 --exact sh "$STORY/rank.sh" two &
wait
""",
    rank="say $1; sleep 1",
)
def test_two_ftruns_at_once_share_the_ledger(told: Story) -> None:
    told.ended("COMPLETED")
    assert sorted(words for *_, words in told.said()) == ["one", "two"]
    assert all(is_json(line) for line in ledger(told).read_text().splitlines())
    status = told.json("status", str(told.id))
    assert (status["damaged"], status["schedule_count"], status["attempt"]) == (0, 1, 2)
    assert sorted(start.counters for start in told.starts()) == [(1, 1, 1), (1, 1, 2)]


@story(rank="exit 0")
def test_a_job_without_a_ledger_is_said_to_have_none(told: Story) -> None:
    told.ended("COMPLETED")
    for command in (["status", "999999"], ["history", "999999"], ["requeue", "--finish", "999999"]):
        done = told.cluster.run(["ftslurm", *command], env=told.env)
        assert done.returncode == 66
        (line,) = done.stderr.splitlines()
        assert "no ledger of job 999999" in line and str(told.folder) in line
    assert told.ftslurm("requeue", "--finish", str(told.id)) == f"job {told.id}: no requeue is open; nothing to do"

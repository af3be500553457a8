"""slurmctld is away: what needs it waits, what does not goes on, and nothing is given up that its return mends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.conftest import Cluster, booted, new_stage
from tests.live.stories import Plan, Stage, Story

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

# One question at a time is given up soon, so that it is patience that waits and not a single request.
QUICKLY = "--ft-set slurm.timeout=3s"
WAITS_S = 90.0


@pytest.fixture(scope="module")
def own_stage(job_path: tuple[Path, ...]) -> Iterator[Stage]:
    with booted(nodes=3) as own, new_stage(own, job_path) as stage:
        yield stage


@contextmanager
def killed(own: Cluster) -> Iterator[None]:
    """It has ended, and is started again."""
    own.tool("ctld-stop")
    try:
        yield
    finally:
        own.tool("ctld-start")


@contextmanager
def stopped(own: Cluster) -> Iterator[None]:
    """It is there and answers nobody, as on a machine that swaps."""
    pid = int((own.folder / "run/slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def says(told: Story, words: str, timeout_s: float = WAITS_S) -> None:
    told.wait_for(lambda: words in told.output(), f"`{words}` on stderr", timeout_s)


@pytest.mark.parametrize("away", [pytest.param(killed, marks=pytest.mark.slurms), pytest.param(stopped, marks=pytest.mark.long)])
def test_a_node_to_be_replaced_waits_for_slurmctld_and_nothing_dearer_is_done_meanwhile(own_stage: Stage, away: object) -> None:
    plan = Plan(
        nodes=2,
        sbatch=("--nodes=3",),
        ft=f"{QUICKLY} --ft-spares 1",
        rank="""
if [ $MA_PROC_START_CNT$MA_SCHEDULE_CNT = 11 ]; then await away; [ $SLURM_PROCID = 1 ] && fault 0.0 80E18402; exec sleep 100; fi
await back
""",
    )
    told = own_stage.tell(plan, "replaces")
    told.wait_started()
    told.wait_for(lambda: len(agents(told)) == 2, "the agents")
    with away(own_stage.cluster):  # type: ignore[operator]
        told.allow("away")
        says(told, "(slurm.patience) to decide what to do")
    told.wait_started(attempt=2, timeout_s=WAITS_S)
    told.allow("back")
    assert told.ended("COMPLETED", WAITS_S)["Restarts"] == "0"
    attempts = told.json("history", str(told.id))["attempts"]
    assert [remedy["decided"]["rung"] for attempt in attempts for remedy in attempt["remedies"]] == ["node-replacement"]
    assert left(told) == 8


def left(told: Story) -> int:
    return int(told.json("status", str(told.id))["left"]["max_restarts"][0])


def agents(told: Story) -> list[str]:
    """Themselves: their srun has their words on its command line, and waits for slurmctld."""
    return [line for line in told.processes().values() if "ftslurm.wrapper.agent.agent" in line and not line.startswith("srun ")]


@pytest.mark.slurms
@pytest.mark.parametrize("away", [killed, pytest.param(stopped, marks=pytest.mark.long)])
def test_a_device_that_heals_needs_no_slurmctld(own_stage: Stage, away: object) -> None:
    plan = Plan(
        nodes=2,
        rank="""
if [ $MA_PROC_START_CNT = 1 ]; then await away; [ $SLURM_PROCID = 1 ] && fault 0.0 80C98008; exec sleep 100; fi
await back
""",
    )
    told = own_stage.tell(plan, "heals")
    told.wait_started()
    told.wait_for(lambda: len(agents(told)) == 2, "the agents")
    with away(own_stage.cluster):  # type: ignore[operator]
        told.allow("away")
        assert {start.starts for start in told.wait_started(attempt=2, timeout_s=WAITS_S).values()} == {"2"}
    told.allow("back")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]


@pytest.mark.parametrize("away", [pytest.param(killed, marks=pytest.mark.long), stopped])
def test_a_requeue_waits_for_slurmctld_and_says_so(own_stage: Stage, away: object) -> None:
    plan = Plan(
        nodes=2,
        rank="[ $MA_SCHEDULE_CNT = 1 ] || exit 0\nawait away\n[ $SLURM_PROCID = 1 ] && exit 3\nexec sleep 100",
        ft=QUICKLY,
    )
    told = own_stage.tell(plan, "waits")
    told.wait_started()
    with away(own_stage.cluster):  # type: ignore[operator]
        told.allow("away")
        says(told, "Slurm does not answer: ")
        assert "(slurm.patience) to decide what to do" in told.output()
        if away is killed:  # the walk of who is on call: one command to the cause, and the cure stands there
            cause = told.ftslurm("status", str(told.id))
            assert "waiting for slurmctld, to decide what to do, until" in cause and "systemctl start slurmctld" in cause, cause
        time.sleep(8.0)  # more than one question
        assert told.output().count("ftrun waits up to") == 1
    assert told.ended("COMPLETED", WAITS_S)["Restarts"] == "1"
    assert "Slurm answers again, after " in told.output()
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert left(told) == 7


@pytest.mark.slurms
def test_slurmctld_that_goes_away_between_decision_and_requeue_is_waited_for(own_stage: Stage) -> None:
    """The ledger has the decision, which is paid for once."""
    plan = Plan(
        nodes=2,
        ft=QUICKLY,
        script="""
mkdir -p "$STORY/bin"; cp "$STORY/scontrol" "$STORY/bin/scontrol"; chmod +x "$STORY/bin/scontrol"
PATH=$STORY/bin:$PATH %RUN%
""",
        rank="[ $MA_SCHEDULE_CNT = 1 ] || exit 0\nawait away\nexit 3",
        files={
            "scontrol": """#!/bin/sh
if grep -q '"kind":"Decided"' "$STORY"/state/jobs/*.jsonl && [ ! -e "$STORY/back" ]; then
    touch "$STORY/asked"; echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1
fi
exec /usr/bin/scontrol "$@"
"""
        },
    )
    told = own_stage.tell(plan, "between")
    told.wait_started()
    told.allow("away")
    told.wait_for(lambda: (told.folder / "asked").exists(), "the requeue to be tried", WAITS_S)
    with killed(own_stage.cluster):
        says(told, "(slurm.patience) to requeue the job")
        assert told.json("status", str(told.id))["requeue_open"] is True
    told.allow("back")
    assert told.ended("COMPLETED", WAITS_S)["Restarts"] == "1"
    assert left(told) == 7


def test_patience_has_an_end(own_stage: Stage) -> None:
    plan = Plan(rank="await away\nexit 3", ft=f"{QUICKLY} --ft-set slurm.patience=5s")
    told = own_stage.tell(plan, "impatient")
    told.wait_started()
    with killed(own_stage.cluster):
        told.allow("away")
        says(told, "nothing more: Slurm did not say how the job stands")
        told.wait_nothing_left(WAITS_S)  # srun of 26.05 does not end before it has told slurmctld, unless it is killed
    assert told.ended("FAILED")["ExitCode"] == "3:0"


@pytest.mark.parametrize("away", [killed, pytest.param(stopped, marks=pytest.mark.long)])
def test_ftrun_begins_while_slurmctld_is_away(own_stage: Stage, away: object) -> None:
    plan = Plan(
        nodes=2,
        rank="exit 0",
        ft=QUICKLY,
        script='touch "$STORY/there"; await() { until [ -e "$STORY/$1" ]; do sleep 0.1; done; }\nawait away\n%RUN%',
    )
    told = own_stage.tell(plan, "begins")
    told.wait_for(lambda: (told.folder / "there").exists(), "the script to run")
    with away(own_stage.cluster):  # type: ignore[operator]
        told.allow("away")
        says(told, "ftrun waits up to ")
    assert told.ended("COMPLETED", WAITS_S)["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]


def test_a_step_that_slurm_s_absence_kept_from_coming_up_is_started_again(own_stage: Stage) -> None:
    """slurmctld goes between ftrun's question and its srun, which gives up after some ten seconds."""
    plan = Plan(
        nodes=2,
        rank="exit 0",
        ft=QUICKLY,
        script="""
mkdir -p "$STORY/bin"; cp "$STORY/srun" "$STORY/bin/srun"; chmod +x "$STORY/bin/srun"
PATH=$STORY/bin:$PATH %RUN%
""",
        files={
            "srun": '#!/bin/sh\ntouch "$STORY/starting"; until [ -e "$STORY/away" ]; do sleep 0.1; done\nexec /usr/bin/srun "$@"\n'
        },
    )
    told = own_stage.tell(plan, "between-step")
    told.wait_for(lambda: (told.folder / "starting").exists(), "the step to be started")
    with killed(own_stage.cluster):
        told.allow("away")
        says(told, "Unable to contact slurm controller")
        says(told, "(slurm.patience) to decide what to do")
    assert told.ended("COMPLETED", WAITS_S)["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]
    assert left(told) == 8


@pytest.mark.parametrize("away", [pytest.param(killed, marks=pytest.mark.long), stopped])
def test_a_job_that_ends_well_while_slurmctld_is_away_is_completed_when_it_is_back(own_stage: Stage, away: object) -> None:
    told = own_stage.tell(
        Plan(nodes=2, rank="await away\nexit 0", script="%RUN%; status=$?; touch $STORY/after; exit $status"), "ends"
    )
    told.wait_started()
    with away(own_stage.cluster):  # type: ignore[operator]
        told.allow("away")
        told.wait_for((told.folder / "after").exists, "ftrun to end", WAITS_S)
    assert told.ended("COMPLETED", WAITS_S)["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]

"""ftrun as `srun`, first on PATH: how it gets below a launcher that knows nothing of it. It never starts itself."""

from __future__ import annotations

import pytest

from tests.live.stories import Plan, Stage, Story

pytestmark = [pytest.mark.live, pytest.mark.slurms]

# Makes $STORY/bin/srun out of ftrun and puts it first on PATH; then the job as its launcher would write it.
LINK = 'ln -s "$(command -v ftrun)" bin/srun'
COPY = 'cp "$(command -v ftrun)" bin/srun'
WRAPPER = """printf '#!/bin/sh\\nexec ftrun "$@"\\n' >bin/srun; chmod +x bin/srun"""
PATIENT_WRAPPER = """printf '#!/bin/sh\\nftrun --ft-max-restarts 2 "$@"\\nexit $?\\n' >bin/srun; chmod +x bin/srun"""
WAYS = {"link": LINK, "copy": COPY, "wrapper": WRAPPER, "wrapper-that-stays": PATIENT_WRAPPER}


def ways(*each_time: str) -> pytest.MarkDecorator:
    """All, of which those are not mere repetition."""
    return pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in each_time else pytest.mark.long) for way in WAYS])


def script(way: str, then: str = 'srun -N2 -n4 sh "$STORY/rank.sh"') -> str:
    return f'cd "$STORY"; mkdir bin; {way}; PATH=$STORY/bin:$PATH\n{then}\n'


def controllers(told: Story) -> list[str]:
    """The command lines of all that is ftrun itself: Python, and no shell that a wrapper left around Slurm's own srun."""
    python = [words for words in told.processes().values() if "/python" in words.split()[0]]
    return [words for words in python if "/bin/ftrun" in words or "/bin/srun" in words]


def agents(told: Story) -> list[str]:
    return [words for words in told.processes().values() if "/python" in words.split()[0] and "wrapper.agent" in words]


@ways("link", "wrapper-that-stays")
def test_the_job_runs_with_few_processes_and_nothing_outlives_scancel(stage: Stage, way: str) -> None:
    told = stage.tell(Plan(rank="exec sleep 100", nodes=2, tasks=2, script=script(WAYS[way])), way)
    told.wait_started()
    told.wait_for(lambda: len(agents(told)) == 2, "the agents, so that all is there that ftrun starts")
    # A shim and a program a rank, an agent a node, two sruns in two processes each, the script, ftrun, and the wrapper.
    # Between its fork and its exec a command that one of them starts has its words: looked at until none does.
    told.wait_for(lambda: len(controllers(told)) == 1 and len(told.processes()) <= 24, "these, and no others")
    assert told.of_attempt(1).keys() == {0, 1, 2, 3}
    stage.cluster.cancel(told.id)
    told.ended("CANCELLED")
    told.wait_nothing_left()


@ways("wrapper")
def test_a_crash_is_answered_as_under_ftrun_by_its_own_name(stage: Stage, way: str) -> None:
    told = stage.tell(
        Plan(
            rank='[ $MA_PROC_START_CNT = 1 ] || { echo "well ${FTSLURM_CALLED-unmarked}"; exit 0; }; fault 0.0 80C98008; exec sleep 60',
            script=script(WAYS[way], 'srun -n1 sh "$STORY/rank.sh"'),
        ),
        f"crash-{way}",
    )
    told.ended("COMPLETED")
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert "well unmarked" in told.output()


def test_two_in_one_script_and_one_in_a_rank_go_on_working(stage: Stage) -> None:
    told = stage.tell(
        Plan(
            nodes=2,
            rank="exit 0",
            script=script(
                WRAPPER,
                """
        srun -N1 -n1 echo first; ftrun -N1 -n1 echo second
        ftrun -N1 -n1 --overlap sh -c 'echo outer $SLURM_STEP_ID; srun -N1 -n1 --overlap sh -c "echo inner"; ftrun -n1 -N1 --overlap echo by-name'
    """,
            ),
        ),
        "nested",
    )
    told.ended("COMPLETED")
    assert [line.split()[0] for line in told.output().splitlines()] == ["first", "second", "outer", "inner", "by-name"], (
        told.output()
    )


def test_with_no_other_srun_it_is_refused_in_one_sentence(stage: Stage) -> None:
    told = stage.tell(
        Plan(
            script=script(
                WRAPPER,
                """
        ln -s "$(command -v scontrol)" bin/
        FTRUN_SLURM_BIN=$STORY/bin ftrun -n1 true; echo by-folder $?
    """,
            )
        ),
        "refused",
    )
    told.ended("COMPLETED")
    assert "by-folder 78" in told.output(), told.output()
    assert "`srun` is ftrun itself" in told.output()


def test_the_folder_of_slurms_commands_can_be_named(stage: Stage) -> None:
    """Where nothing of Slurm is on PATH: by a policy, which reaches agents and the step of a requeue as well."""
    told = stage.tell(
        Plan(
            rank="[ $MA_SCHEDULE_CNT = 1 ] || exit 0; exit 5",
            files={"policy.yaml": "slurm: {bin: /usr/bin}\n"},
            script='ftrun=$(command -v ftrun); mkdir -p $STORY/empty; ln -sf "$(command -v sh)" $STORY/empty/sh\n'
            'PATH=$STORY/empty "$ftrun" --ft-policy $STORY/policy.yaml $(command -v sh) $STORY/rank.sh\n',
        ),
        "folder",
    )
    told.wait_for(lambda: told.job()["Restarts"] == "1", "the requeue")
    assert "is not on PATH" not in told.output()

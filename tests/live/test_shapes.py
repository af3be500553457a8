"""Jobs of many shapes: the steps that ftrun starts beside the user's (agents, keeper) come up in every one of them."""

from __future__ import annotations

import pytest

from tests.live.stories import END_TIMEOUT_S, PLAIN, Plan, Story, story

pytestmark = pytest.mark.live

# A restart in place, which needs the agents, then a requeue, which needs the keeper.
BOTH = """
case $MA_SCHEDULE_CNT.$MA_PROC_START_CNT in
1.1) [ $SLURM_PROCID = 1 ] && fault 0.0 80C98008; exec sleep 100;;
1.2) together; [ $SLURM_PROCID = 1 ] && exit 3; exec sleep 100;;
esac
"""
BOTH_COUNTERS = [(1, 1, 1), (1, 2, 2), (2, 1, 3)]

SHAPES: dict[str, Plan] = {
    "exclusive": Plan(nodes=2, tasks=2, sbatch=("--exclusive",)),
    "all-cpus": Plan(nodes=1, tasks=8),
    "cpus-per-task": Plan(nodes=2, tasks=2, sbatch=("--cpus-per-task=3",), ft="--cpus-per-task=3"),
    # Counted, and no more than that: ftrun itself runs in the batch step.
    "memory": Plan(nodes=2, tasks=1, sbatch=("--mem-per-cpu=200M",), ft="--mem-per-cpu=200M"),
    "uneven": Plan(nodes=1, tasks=3, sbatch=("--nodes=2", "--ntasks=3", "--ntasks-per-node=2")),
    "cyclic": Plan(nodes=2, tasks=2, sbatch=("--distribution=cyclic",)),
    "export-none": Plan(nodes=1, tasks=2, sbatch=("--export=NONE",), ft="--export=ALL"),  # srun, too, would export nothing
    "odd-name": Plan(nodes=1, tasks=2, sbatch=("--job-name=it's a JobState=FAILED Restarts=7 $(id)",)),
    "odd-folder": Plan(nodes=1, tasks=2, env={"FTSLURM_STATE_DIR": "%STORY%/state of 'mine' $(id) \" é"}),
    "user-variables": Plan(
        nodes=1, tasks=2, script="export SLURM_LABELIO=1 SLURM_WAIT=1 SLURM_KILL_BAD_EXIT=1 SLURM_STDINMODE=none\n" + PLAIN
    ),
    "closed-stdin": Plan(nodes=1, tasks=2, script=PLAIN.replace("%RUN%", "%RUN% <&-")),
    "heterogeneous-step": Plan(nodes=3, tasks=1, script='ftrun -N1 -n1 sh "$STORY/rank.sh" a : -N2 -n2 sh "$STORY/rank.sh" b c'),
    "multi-prog": Plan(
        nodes=1,
        tasks=2,
        script='ftrun --multi-prog "$STORY/programs"',
        files={"programs": "0 sh rank.sh first %t\n1 sh rank.sh second %t\n"},
    ),
    "step-in-part": Plan(
        nodes=2, tasks=1, sbatch=("--nodes=4",), ft="-N2 -n2 --nodelist=$(scontrol show hostnames | tail -2 | paste -sd,)"
    ),
    "a-step-beside": Plan(
        nodes=2,
        tasks=1,
        sbatch=("--ntasks-per-node=2",),
        ft="-n2 --exact",
        script="srun -n2 --exact sleep 100 &\n" + PLAIN.replace("exit $status", "kill %1\nexit $status"),
    ),
    "no-requeue-options": Plan(nodes=2, tasks=1, ft="--kill-on-bad-exit=1 --wait=1 --no-kill"),
}


# Those in which ftrun's own steps have come up in another way than the user's; all others are repetition.
HANDFUL = ("exclusive", "memory", "uneven", "user-variables", "heterogeneous-step", "multi-prog", "a-step-beside")


def shape(name: str) -> object:
    told = story(**{**vars_of(SHAPES[name]), "rank": BOTH})
    return pytest.param(name, id=name, marks=[told] if name in HANDFUL else [told, pytest.mark.long])


def vars_of(plan: Plan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in ("nodes", "tasks", "ft", "script", "sbatch", "env", "files")}


@pytest.mark.parametrize("name", [shape(name) for name in SHAPES])
def test_restarts_in_place_and_requeues(told: Story, name: str) -> None:
    job = told.ended("COMPLETED", 2 * END_TIMEOUT_S)  # of so many jobs at once one is the last
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", "(null)")
    ranks = 3 if name == "uneven" else told.plan.nodes * told.plan.tasks
    assert {attempt: len(told.of_attempt(attempt)) for attempt in (1, 2, 3)} == {1: ranks, 2: ranks, 3: ranks}
    assert [told.attempts()[attempt] for attempt in (1, 2, 3)] == [{each} for each in BOTH_COUNTERS]

"""`ft_launcher` in an allocation, started as its users start it: one on each node, by srun."""

from __future__ import annotations

import pytest

from tests.live.stories import BY_DEFAULT, Story, story

pytestmark = pytest.mark.live

LAUNCH = (
    "ft_launcher --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=2 --rdzv-endpoint=$(hostname):29500 --max-restarts=1 --no-python"
)
PROGRESS = "--max-restarts=9 --ft-max-no-progress-cycles=2 --ft-checkpoint-iteration-file=$STORY/latest"
TWICE = f"""
srun -N2 -n2 --ntasks-per-node=1 {LAUNCH} sh "$STORY/rank.sh"
echo by srun $?
{LAUNCH} sh -c 'exit 7'
echo by the script $?
echo 5 > "$STORY/latest"
{LAUNCH.replace("--max-restarts=1", PROGRESS)} sh -c 'exit 7'
echo by progress $?
{LAUNCH.replace(" --no-python", " --tee 1 --log-dir $STORY/logs --no-python")} sh -c 'echo rank $RANK; trap "exit 0" TERM; touch "$STORY/up.$RANK"; while :; do sleep 0.1; done' &
launcher=$!
until [ -e "$STORY/up.0" -a -e "$STORY/up.1" -a -e "$STORY/up.2" -a -e "$STORY/up.3" ]; do sleep 0.1; done
kill -TERM $launcher
wait $launcher
echo by a signal $?
(cd $STORY/logs && echo files $(cat *.0/attempt_0/?/stdout.log *.1/attempt_0/?/stdout.log | tr ' ' '_' | sort))
"""
FAILS_ONCE = """
together
[ "$RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_WORLD_SIZE" = "$SLURM_PROCID 4 2 2" ] || exit 8
[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
[ $RANK = 3 ] && exit 7
exec sleep 100
"""


@story(nodes=2, tasks=2, script=TWICE, rank=FAILS_ONCE, env=BY_DEFAULT)
def test_the_launchers_of_all_nodes_are_one_job_with_ft_launcher_s_statuses(told: Story) -> None:
    """The second one fails with 1 whatever its ranks ended with, the third gets a SIGTERM that they obey, and the scheduler is left
    alone."""
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    first, second = told.of_attempt(1), told.of_attempt(2)
    assert {rank: start.node for rank, start in second.items()} == {rank: start.node for rank, start in first.items()}
    assert len({start.node for start in first.values()}) == 2
    assert "by srun 0" in told.output() and "by the script 1" in told.output()
    assert "by progress 93" in told.output()
    assert told.output().count("is restarted in place") == 3, "each launcher has its own restarts"
    assert "by a signal 0" in told.output()
    assert "files rank_0 rank_1 rank_2 rank_3" in told.output(), "each node's ranks have files in a folder of their own"
    assert "[default1]:rank 3" in told.output()
    assert "the ranks of this node are started by the ft_launcher of task 0" in told.output()

"""What a step that takes another's place asks for; that Slurm grants it, and what the ranks have then, is in tests/live."""

from __future__ import annotations

import shlex

import pytest

from ftslurm.launchers.placement import step_parts
from ftslurm.launchers.python import Python
from ftslurm.launchers.srun import SrunLauncher
from ftslurm.launchers.srun_options import Component, same_share
from ftslurm.model.job import Layout, Share
from ftslurm.model.text import megabytes

FOUR = (Share(4, 2), Share(4, 2))
BY_CPU = {"SLURM_MEM_PER_CPU": "1024"}


def asked(options: str, env: dict[str, str], shares: tuple[Share, ...] = FOUR, lent: bool = False) -> str:
    return shlex.join(same_share(shlex.split(options), env, shares, lent))


@pytest.mark.parametrize(
    ("options", "env", "own", "lent"),
    [
        ("", BY_CPU, "--mem=4096", "--mem=4096"),
        ("--mem-per-cpu=1G", {}, "--mem=4096", "--mem=4096"),
        ("--mem-per-cpu=300", BY_CPU, "--mem=1200", "--mem=1200"),
        ("--mem=500", BY_CPU, "--mem=500", "--mem=500"),  # by node: Slurm shares it, and it is said already
        ("--mem-per-gpu=500", BY_CPU, "--mem-per-gpu=500", "--mem-per-gpu=500"),
        ("", {"SLURM_MEM_PER_NODE": "3000"}, "", "--mem=3000"),  # a donor's srun does not see our environment
        ("", {"SLURM_MEM_PER_GPU": "500"}, "", "--mem=1000"),
        ("", {}, "", ""),
        ("--mem-per-cpu=much", {}, "--mem-per-cpu=much", "--mem-per-cpu=much"),
    ],
)
def test_memory_is_asked_for_by_node_where_slurm_would_count_it_twice(
    options: str, env: dict[str, str], own: str, lent: str
) -> None:
    assert asked(options, env) == own
    assert asked(options, env, lent=True) == lent


def test_where_nobody_knows_what_it_had_the_user_s_words_on_gpus_stay() -> None:
    assert asked("--mem-per-cpu=300 --gpus=4", BY_CPU, ()) == "--gpus=4 --mem=0"  # memory by CPU Slurm would refuse
    assert asked("--mem-per-cpu=300 --gpus=4", BY_CPU, (Share(),)) == "--mem-per-cpu=300 --gpus=4"


@pytest.mark.parametrize(
    ("options", "env", "then"),
    [
        ("--exclusive", {}, "--exact"),
        ("--exclusive --exact", {}, "--exact"),
        ("", {"SLURM_EXCLUSIVE": ""}, "--exact"),
        ("--overlap -c2", {}, "-c2"),
    ],
)
def test_a_step_that_had_its_cpus_for_itself_takes_no_more_of_them(options: str, env: dict[str, str], then: str) -> None:
    assert asked(options, env) == then


@pytest.mark.parametrize(
    ("options", "env", "own", "lent"),
    [
        ("--gpus=8", {}, "--gpus=4", "--gpus=4"),
        ("-G a100:8", {}, "--gpus=a100:4", "--gpus=a100:4"),
        ("", {"SLURM_GPUS": "8"}, "--gpus=4", ""),
        ("--gpus=4", {}, "--gpus=4", "--gpus=4"),
        ("--gpus-per-task=1", {"SLURM_GPUS": "4"}, "--gpus-per-task=1", "--gpus-per-task=1"),
        ("--gpus=a100:4,h100:4", {}, "--gpus=a100:4,h100:4", "--gpus=a100:4,h100:4"),
    ],
)
def test_gpus_of_the_whole_step_become_those_of_its_nodes(options: str, env: dict[str, str], own: str, lent: str) -> None:
    assert (asked(options, env), asked(options, env, lent=True)) == (own, lent)


@pytest.mark.parametrize(
    ("text", "mb"),
    [
        ("2G", 2048),
        ("1500", 1500),
        ("1500M", 1500),
        ("1T", 1048576),
        ("1025K", 2),
        ("2gb", 2048),
        ("", 0),
        ("-1", 0),
        ("1.50G", 1536),
    ],
)
def test_megabytes_as_slurm_writes_them(text: str, mb: int) -> None:
    assert megabytes(text) == mb


MOVED = Layout(("n1", "n4", "n3"), (0, 0, 1, 1, 2, 2), chosen=True)
UNEVEN = (Share(4), Share(2), Share(4))


def test_a_placed_step_asks_for_what_its_slots_had() -> None:
    (part,) = step_parts(["--exclusive"], BY_CPU, MOVED, 4, 3, [Share(4)] * 3)
    assert shlex.join(part.options) == (
        "--exact --mem=4096 --ntasks=6 --distribution=arbitrary --nodelist=n1,n1,n4,n4,n3,n3 --overlap"
    )
    (unknown,) = step_parts([], BY_CPU, MOVED, 4, 3, [Share(4)] * 2)
    assert "--mem=0" in unknown.options, "known of another step than this one"


def test_nodes_with_different_numbers_of_cpus_have_an_srun_each() -> None:
    many, few = step_parts([], BY_CPU, MOVED, 4, 3, UNEVEN)
    assert (many.job, many.place, few.job, few.place) == (0, "6/0-1,4-5", 0, "6/2-3")
    assert "--mem=4096 --ntasks=4 --distribution=arbitrary --nodelist=n1,n1,n3,n3" in shlex.join(many.options)
    assert "--mem=2048 --ntasks=2 --distribution=arbitrary --nodelist=n4,n4" in shlex.join(few.options)
    assert "--input=none" not in many.options and "--input=none" in few.options
    for options, env in ([], {"SLURM_MEM_PER_NODE": "4096"}), (["--mpi=pmix"], BY_CPU):
        assert len(step_parts(options, env, MOVED, 4, 3, UNEVEN)) == 1


def test_a_lent_node_gives_what_the_dead_one_gave() -> None:
    lent = Layout(("n1", "m9"), (0, 0, 1, 1), {"m9": 77}, chosen=True)
    own, foreign = step_parts(["--gpus=4"], {"SLURM_MEM_PER_NODE": "3000"}, lent, 2, 2, FOUR)
    assert "--mem" not in shlex.join(own.options) and "--gpus=2" in own.options
    assert {"--mem=3000", "--gpus=2", "--jobid=77"} <= set(foreign.options)


def rendered(options: str, shares: tuple[Share, ...], layout: Layout | None, env: dict[str, str]) -> list[str]:
    """As it is launched beside a step that Slurm still lists."""
    launcher = SrunLauncher(
        (Component(tuple(shlex.split(options)), ("true",)),), env, Python(("/py",), "/lib"), granted=2, width=2
    )
    return [shlex.join(argv) for argv, _ in launcher._overlapping(shares)._rendered(layout, shares)]


@pytest.mark.parametrize("layout", [None, Layout(("n1", "n2"))])
def test_a_step_beside_one_of_a_killed_ftrun_asks_for_the_same(layout: Layout | None) -> None:
    (argv,) = rendered("--exclusive -n4", FOUR, layout, BY_CPU)
    assert "--overlap" in argv and "--mem=4096" in argv and "--exact" in argv and "--exclusive" not in argv


@pytest.mark.parametrize(
    ("options", "env", "told"),
    [
        ("", BY_CPU, "--mem=0"),
        ("--mem-per-cpu=1G --label", {}, "--label --mem=0"),
        ("--mem=500", BY_CPU, "--mem=500"),
        ("", {}, ""),
    ],
)
def test_where_nobody_knows_how_many_cpus_it_had_memory_by_cpu_is_all_of_the_job_s(
    options: str, env: dict[str, str], told: str
) -> None:
    assert asked(options, env, ()) == told

"""What srun is told where the nodes of a step are ours to choose: layouts in, options out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import UsageError
from ftslurm.launchers.placement import (
    StepPart,
    mpi_default,
    step_parts,
    step_width,
    why_not_over_two_jobs,
    why_not_placed,
    width,
)
from ftslurm.launchers.python import Python
from ftslurm.launchers.srun import CHANNEL_VARIABLE, SrunLauncher, abroad_env, placed_channel
from ftslurm.launchers.srun_options import Component
from ftslurm.model.collectives import unfold_ranks
from ftslurm.model.job import Layout
from ftslurm.model.text import fold_numbers
from ftslurm.wrapper.shim.connection import Channel
from tests.settings import settings_with

FIRST = Layout(("n1", "n2", "n3"))
MOVED = Layout(("n1", "n4", "n3"), (0, 0, 1, 1, 2, 2))
LENT = Layout(("n1", "m9"), (0, 0, 1, 1), {"m9": 77})


def told(options: str, layout: Layout, env: Mapping[str, str] | None = None, granted: int = 4, width: int = 3) -> list[StepPart]:
    asked = {"SLURM_NTASKS_PER_NODE": "2"} if env is None else env
    return list(step_parts(shlex.split(options), asked, layout, granted, width))


def only(options: str, layout: Layout, env: Mapping[str, str] | None = None, granted: int = 4, width: int = 3) -> str:
    (part,) = told(options, layout, env, granted, width)
    assert (part.job, part.place) == (0, "")
    return shlex.join(part.options)


# --- the first step, on nodes that leave spares free


@pytest.mark.parametrize(
    ("options", "env", "tasks"),
    [
        ("", {"SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "8"}, 6),
        ("", {"SLURM_NTASKS_PER_NODE": "2(x4)"}, 6),
        ("", {"SLURM_NTASKS": "8"}, 6),  # 2 on each of the 4 nodes that were granted
        ("", {}, 3),
        ("--ntasks-per-node=3", {"SLURM_NTASKS_PER_NODE": "2"}, 9),
        ("--tasks-per-node 3", {}, 9),
    ],
)
def test_as_many_tasks_on_each_node_as_were_asked_for(options: str, env: dict[str, str], tasks: int) -> None:
    assert f"--nodes=3 --nodelist=n1,n2,n3 --ntasks={tasks}" in only(options, FIRST, env)


def test_the_gpus_that_the_script_asked_for_are_those_of_spares_too() -> None:
    """Of four nodes, of which the step has three."""
    assert "--gpus=6" in only("-n3", FIRST, {"SLURM_GPUS": "8"}).split()
    assert "--gpus=a100:6" in only("-n3", FIRST, {"SLURM_GPUS": "a100:8"}).split()
    with pytest.raises(UsageError, match="cannot tell how many the others have"):
        only("-n3", FIRST, {"SLURM_GPUS": "7"})
    assert "--gpus=" not in only("-n3", FIRST, {"SLURM_GPUS": "7"}, width=4), "no spares: a node has left since"
    assert only("-n3 --gpus=5", FIRST, {"SLURM_GPUS": "8"}).count("--gpus=") == 1


def test_tasks_that_do_not_come_out_even_are_not_guessed() -> None:
    with pytest.raises(UsageError, match="6 tasks for 4 nodes"):
        told("", FIRST, {"SLURM_NTASKS": "6"})
    assert only("-n6", FIRST, {"SLURM_NTASKS": "7"}) == "-n6 --nodes=3 --nodelist=n1,n2,n3"


@pytest.mark.parametrize(
    "where", ["-N3", "-N 3", "--nodes=3", "-w n1,n2", "--nodelist n1", "-x n9", "-r1", "-F hosts", "--contiguous"]
)
def test_the_users_words_on_nodes_give_way_and_all_else_stays(where: str) -> None:
    kept = only(f"-l {where} -c 4 --gpus-per-task=1 -m cyclic --mpi=pmix -o out.%t", FIRST, {"SLURM_NTASKS_PER_NODE": "1"})
    assert kept == "-l -c 4 --gpus-per-task=1 -m cyclic --mpi=pmix -o out.%t --nodes=3 --nodelist=n1,n2,n3 --ntasks=3"


@pytest.mark.parametrize(
    ("options", "env", "granted", "width", "tasks"),
    [
        ("-N3 -n6", {}, 3, 3, 4),
        ("-n6", {"SLURM_NTASKS": "8"}, 4, 3, 4),  # a spare
        ("-n6", {}, 3, 0, 4),  # -N2-3
        ("-n7", {}, 3, 3, 4),  # 3, 2 and 2: who has lost the third is not known any more
        ("", {"SLURM_NTASKS": "7"}, 3, 3, 4),
        ("", {"SLURM_NTASKS": "9"}, 3, 3, 6),
        ("", {"SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "6"}, 3, 3, 4),
        ("--ntasks-per-node=3", {}, 3, 3, 6),
    ],
)
def test_a_step_of_fewer_nodes_has_fewer_tasks(options: str, env: dict[str, str], granted: int, width: int, tasks: int) -> None:
    kept = shlex.join(part for part in shlex.split(options) if part.startswith("--ntasks-per"))
    expected = f"--nodes=2 --nodelist=n1,n3 --ntasks={tasks}"
    assert only(options, FIRST.without([1]), env, granted, width) == f"{kept} {expected}".strip()
    names = "n1," * (tasks // 2) + ",".join(["m9"] * (tasks // 2))
    swapped = only(options, FIRST.without([1]).filled({1: "m9"}, {}), env, granted, width)
    assert f"--ntasks={tasks} --distribution=arbitrary --nodelist={names}" in swapped


def test_tasks_that_do_not_come_out_even_stay_as_they_are_on_all_their_nodes() -> None:
    assert "--ntasks=7 " in only("", FIRST.filled({1: "m9"}, {}), {"SLURM_NTASKS": "7"}, granted=3)


# --- a step again, every rank in its slot


def test_each_rank_is_named_its_node() -> None:
    assert only("", MOVED) == "--ntasks=6 --distribution=arbitrary --nodelist=n1,n1,n4,n4,n3,n3 --overlap"
    cyclic = Layout(("n1", "n4"), (0, 1, 0, 1))
    assert "--nodelist=n1,n4,n1,n4" in only("", cyclic)


@pytest.mark.parametrize(
    "gone",
    ["-n6", "--ntasks 6", "-m cyclic", "--distribution=block:block", "--exclusive", "--overlap", "--jobid=5", "-N3", "-x n1"],
)
def test_what_says_it_otherwise_gives_way(gone: str) -> None:
    assert only(f"-u {gone} --exact", MOVED) == f"-u --exact {only('', MOVED)}"


def test_where_no_step_ever_ran_the_ranks_are_laid_out_in_blocks() -> None:
    replaced = FIRST.filled({1: "n4"}, {})
    assert "--nodelist=n1,n1,n4,n4,n3,n3" in only("", replaced)
    assert "--nodelist=n1,n1,n1,n4,n4,n3,n3" in only("-n7", replaced)
    assert only("", FIRST) != only("", replaced)


# --- over two jobs


def test_one_srun_a_job_and_each_knows_its_ranks() -> None:
    ours, theirs = told("-u", LENT)
    assert shlex.join(ours.options) == "-u --ntasks=2 --distribution=arbitrary --nodelist=n1,n1 --overlap"
    assert shlex.join(theirs.options) == (
        "-u --ntasks=2 --distribution=arbitrary --nodelist=m9,m9 --overlap --jobid=77 --input=none"
    )
    assert (ours.job, ours.place, theirs.job, theirs.place) == (0, "4/0-1", 77, "4/2-3")


def test_where_all_is_lent_the_one_srun_still_has_its_place() -> None:
    (part,) = told("-i none", Layout(("m9",), (0, 0), {"m9": 77}))
    assert (part.job, part.place) == (77, "2/0-1") and "--input=none" not in part.options


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranks_fold_and_unfold(ranks: set[int]) -> None:
    ordered = sorted(ranks)
    folded = fold_numbers(ordered)
    assert unfold_ranks(folded) == tuple(ordered)
    channel = Channel(placed_channel("1:4711:00ff:10.0.0.1,10.0.0.2", f"400/{folded}"))
    assert (channel.total, channel.ranks) == (400, ordered)
    assert (channel.port, channel.secret, channel.addresses) == (4711, b"\x00\xff", ["10.0.0.1", "10.0.0.2"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", ""),
        ("-o out.%j -e err", "--output=out.%j"),
        ("-o out -e err.%t", "--error=err.%t"),
        ("-i in.%n", "--input=in.%n"),
        ("-o 0", "--output=0 means one task"),
        ("-o none -e out.%N -i all", ""),
        ("-l", "--label"),
        ("--mpi=pmix", "--mpi"),
        ("--mpi=none", ""),
        ("--pty", "--pty"),
    ],
)
def test_what_a_step_over_two_jobs_cannot_do(options: str, said: str) -> None:
    why = why_not_over_two_jobs(shlex.split(options), {})
    assert said in why and bool(why) is bool(said)


@pytest.mark.parametrize(
    ("options", "env", "default", "said"),
    [
        ("", {"SLURM_MPI_TYPE": "pmix"}, "", "SLURM_MPI_TYPE"),
        ("", {"SLURM_MPI_TYPE": "none"}, "pmix", ""),
        ("--mpi=none", {"SLURM_MPI_TYPE": "pmix"}, "pmix", ""),
        ("--mpi=pmi2", {"SLURM_MPI_TYPE": "none"}, "", "--mpi"),
        ("", {}, "pmix", "MpiDefault"),
        ("", {}, "none", ""),
        ("", {"SLURM_LABELIO": "1"}, "", "--label"),
        ("", {"SLURM_STDOUTMODE": "out.%t"}, "", "--output=out.%t"),
        ("-o out", {"SLURM_STDOUTMODE": "out.%t"}, "", ""),
    ],
)
def test_nor_where_the_environment_asks_for_it(options: str, env: dict[str, str], default: str, said: str) -> None:
    why = why_not_over_two_jobs(shlex.split(options), env, default)
    assert said in why and bool(why) is bool(said)


# --- how wide


@pytest.mark.parametrize(
    ("options", "granted", "spares", "nodes"),
    [
        ("", 4, 0, 4), ("", 4, 1, 3), ("-N2", 4, 1, 2), ("-N2", 4, 0, 2), ("--nodes=3", 4, 1, 3),
        ("-N2-4", 4, 1, 0),
        ("-N5", 4, 0, 0), ("-n1", 4, 0, 1), ("-n1", 4, 1, 1), ("-N4 -n2", 4, 0, 2), ("-n32", 4, 1, 3),
    ],
)  # fmt: skip
def test_as_many_nodes_as_the_step_shall_have(options: str, granted: int, spares: int, nodes: int) -> None:
    assert width(shlex.split(options), granted, spares) == nodes


@pytest.mark.parametrize(("options", "granted", "spares"), [("", 2, 2), ("-N2", 2, 1), ("-N5", 4, 1)])
def test_more_spares_than_there_are_is_said_at_once(options: str, granted: int, spares: int) -> None:
    with pytest.raises(UsageError, match=f"the allocation has {granted}"):
        width(shlex.split(options), granted, spares)


@pytest.mark.parametrize("options", ["-w n1", "--nodelist=n[1-2]", "-x n3", "-r 1", "-F hosts"])
def test_nodes_that_are_named_beside_spares_are_not_passed_over_in_silence(options: str) -> None:
    with pytest.raises(UsageError, match="cannot be used with spare nodes"):
        width(shlex.split(options), 4, 1)
    assert width(shlex.split(options), 4, 0) == 4


@pytest.mark.parametrize("components", [[(), ()], [("--het-group=1",)]])
def test_where_the_nodes_are_not_ours_to_choose_there_are_no_spares(components: list[tuple[str, ...]]) -> None:
    step = [Component(options, ("./train",)) for options in components]
    assert step_width(step, 4, 0) == 0
    with pytest.raises(UsageError, match="can have no spare nodes"):
        step_width(step, 4, 1)
    assert step_width([Component(("-N2",), ("./train",))], 4, 1) == 2


def test_slurm_s_way_of_starting_mpi_programs_is_of_weight_where_donors_may_come() -> None:
    config, may_come = (
        {"MpiDefault": "pmix"},
        settings_with(restart_via="step", node_replacement__enabled=True, nodes__donor=True),
    )
    assert mpi_default(may_come, config) == "pmix" and mpi_default(may_come, {}) == ""
    for less in ({"restart_via": "shim"}, {"node_replacement__enabled": False}, {"nodes__donor": False}):
        assert mpi_default(settings_with(may_come, **less), config) == ""


@pytest.mark.parametrize("options", ["--het-group=1", "--pack-group 0,1"])
def test_the_steps_of_heterogeneous_jobs_are_sruns_to_place(options: str) -> None:
    assert why_not_placed([Component(tuple(shlex.split(options)), ("a",))])
    assert why_not_placed([Component((), ("a",)), Component((), ("b",))])
    assert not why_not_placed([Component(("-n2",), ("a", "--het-group"))])


# --- the commands and their environment


def launcher(options: str, env: Mapping[str, str] | None = None) -> SrunLauncher:
    return SrunLauncher(
        (Component(tuple(shlex.split(options)), ("train", "-n3")),), env or {}, Python(("/py",), "/lib"), granted=2
    )


def test_the_users_program_is_the_last_word_of_every_part() -> None:
    argvs = launcher("-u --kill-on-bad-exit=1").step_argvs(LENT)
    assert [argv[0] for argv in argvs] == ["srun", "srun"] and all(argv[-2:] == ("train", "-n3") for argv in argvs)
    assert all("--kill-on-bad-exit=0" in argv and "--kill-on-bad-exit=1" not in argv for argv in argvs)


def test_no_secret_is_on_a_command_line() -> None:
    options = "--export=A,B=1"
    for argv in launcher(options).step_argvs(LENT):
        assert f"--export=A,B=1,{CHANNEL_VARIABLE}" in argv


def test_abroad_nothing_of_our_job_but_how_its_tasks_are_run() -> None:
    env = {
        "PATH": "/bin", "HOME": "/home/u", "OMP_NUM_THREADS": "4", "SLURM_CONF": "/etc/slurm.conf", "SLURM_CPUS_PER_TASK": "4",
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_MEM_PER_NODE": "9",
        "SLURM_STEP_ID": "0", "SBATCH_PARTITION": "p", "SALLOC_ACCOUNT": "a", "SLURM_EXPORT_ENV": "NONE",
    }  # fmt: skip
    kept = {"PATH", "HOME", "OMP_NUM_THREADS", "SLURM_CONF", "SLURM_CPUS_PER_TASK", "SLURM_EXPORT_ENV"}
    assert abroad_env(env).keys() == kept


def test_srun_s_own_variable_overrides_slurm_s() -> None:
    from ftslurm.launchers.srun import exported

    env = {"SRUN_EXPORT_ENV": "A,B", "SLURM_EXPORT_ENV": "ALL"}
    assert exported(("-n1",), env) == ("-n1", "--export=A,B,FTSLURM_CHANNEL")
    assert exported(("-n1", "--export=ALL"), env) == ("-n1", "--export=ALL")

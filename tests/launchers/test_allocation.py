"""One command line of srun's, divided: what salloc is asked for, and what is left to the step."""

from __future__ import annotations

import shlex

import pytest

from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import Component, new_allocation
from ftslurm.wrapper.controller.allocating import line_of_ours


def divided(options: str, spares: int = 0, **env: str) -> tuple[str, str]:
    """salloc's options less the job's name, and the step's."""
    found = new_allocation(Component(tuple(shlex.split(options)), ("/bin/train", "-x")), env, spares)
    assert found.component.command == ("/bin/train", "-x")
    return shlex.join(word for word in found.salloc if word != "--job-name=train"), shlex.join(found.component.options)


@pytest.mark.parametrize(
    ("options", "salloc", "step"),
    [
        ("-N2 -n8 --gres=gpu:4 --mem 3G", "-N2 -n8 --gres=gpu:4 --mem 3G", "-N2 -n8 --gres=gpu:4 --mem 3G"),  # shape both
        ("-p gpu -A me -t 5 --exclusive -N1", "-p gpu -A me -t 5 --exclusive -N1", "-N1"),
        ("-l -o out --cpu-bind=cores -u -K1 -N1", "-N1", "-l -o out --cpu-bind=cores -u -K1 -N1"),
        ("-lN2", "-N2", "-lN2"),
        ("-N2-4 -n3", "-N2-4 -n3", "-n3"),  # as many nodes as were granted
        ("--container-image=x --of-a-plugin -D /tmp", "", "--container-image=x --of-a-plugin -D /tmp"),
    ],
)
def test_options_go_where_they_belong(options: str, salloc: str, step: str) -> None:
    assert divided(options) == (salloc, step)


def test_the_job_is_named_by_the_program_unless_it_has_a_name() -> None:
    plain = Component((), ("/bin/train",))
    assert new_allocation(plain, {}, 0).salloc == ("--job-name=train",)
    assert new_allocation(plain, {"SLURM_JOB_NAME": "x"}, 0).salloc == ("--job-name=x",)
    assert new_allocation(Component(("-J", "y"), ("/bin/train",)), {"SLURM_JOB_NAME": "x"}, 0).salloc == ("-J", "y")


def test_srun_s_variables_become_options_and_count_less() -> None:
    assert divided("", SLURM_NTASKS="4", SLURM_OVERCOMMIT="1", SLURM_LABELIO="1") == ("--ntasks=4 --overcommit", "")
    assert divided("-n2", SLURM_NTASKS="4", SLURM_PARTITION="") == ("-n2", "-n2")


def test_salloc_s_variables_are_not_for_what_stands_where_srun_stood() -> None:
    found = new_allocation(Component((), ("x",)), {"SALLOC_PARTITION": "p", "A": "b", "SLURM_LABELIO": "1"}, 0)
    assert found.env == {"A": "b", "SLURM_LABELIO": "1"}


def test_spare_nodes_are_asked_for_with_room_for_as_many_tasks() -> None:
    assert divided("-N2 -n3", spares=1) == ("--nodes=3 --ntasks=6", "-N2 -n3")
    assert divided("-N2 --ntasks-per-node=4", spares=2) == ("--ntasks-per-node=4 --nodes=4", "-N2 --ntasks-per-node=4")
    with pytest.raises(UsageError, match="spare"):
        divided("-n4", spares=1)


@pytest.mark.parametrize(
    ("line", "begun", "said"),
    [
        ("salloc: Pending job allocation 4", False, ""),
        ("salloc: job 4 queued and waiting for resources", False, "ftrun: job 4 queued and waiting for resources"),
        ("salloc: Granted job allocation 4", False, ""),
        ("salloc: Job allocation 4 has been revoked.", False, "ftrun: Job allocation 4 has been revoked."),
        ("salloc: Job allocation 4 has been revoked.", True, ""),
        ("salloc: error: Invalid --time specification", False, "ftrun: error: Invalid --time specification"),
        ("a plugin speaks", False, "a plugin speaks"),
    ],
)
def test_told_is_what_srun_would_tell(line: str, begun: bool, said: str) -> None:
    assert line_of_ours(line, begun) == said

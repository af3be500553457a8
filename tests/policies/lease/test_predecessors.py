"""Where ranks of earlier ftruns may still run, and why: each of them with one reason. Stories of single ones: tests/stories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.model.record import AttemptBegan, Finished, Record, RunBegan
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.lease import is_gone, predecessors


def run(name: str, schedule: int, nodes: str, step_key: str = "k", start_time: int = 100) -> list[Record]:
    return [
        RunBegan(1.0, name, "7", "c", schedule, step_key, "train", nodes, start_time),
        AttemptBegan(2.0, name, 1, schedule, step_key, 1, nodes, 1, f"7.{name}"),
    ]


LEDGER = [
    *run("requeued", 0, "n[1-2]"),
    *run("killed", 1, "n[2-3]"),
    *run("ended", 1, "n[4-5]", "other"), Finished(3.0, "ended", 1, "failed", ("n5",)),
    *run("forgotten", 1, "n6", "third", 50),
]  # fmt: skip
BEFORE = predecessors(LEDGER, 1, 100, gone=lambda began: began.run == "killed")


def test_every_node_is_named_with_why_and_those_of_a_killed_ftrun_apart() -> None:
    assert BEFORE.not_cleaned_up() == {"n1", "n2"}
    assert BEFORE.unproven(Settings(), 4.0, {"n2": "Slurm says DOWN"}) == (
        {
            "n2": "Slurm says DOWN", "n3": "the ftrun before this one was killed",
            "n5": "silent when the ftrun before this one ended", "n6": "slurmctld has forgotten them",
        },
        {"n3"},
    )  # fmt: skip
    assert BEFORE.unproven(Settings(), 1e6, {})[0].keys() == {"n2", "n3", "n6"}, "leases do not last for ever"


def test_where_slurm_does_not_answer_nobody_knows_of_a_clean_up() -> None:
    unproven, killed = BEFORE.unproven(Settings(), 1e6, None)
    assert {node: unproven[node] for node in ("n1", "n2")} == dict.fromkeys(("n1", "n2"), "slurmctld does not answer")
    assert killed == {"n3"}


def test_the_first_ftrun_of_a_job_has_none() -> None:
    nobody = predecessors([], 0)
    assert nobody.unproven(Settings(), 4.0, {}) == ({}, frozenset()) and not nobody.died_alone()
    assert nobody.steps_over() == frozenset() and nobody.loans() == ()


HERE = RunBegan(1.0, "r", "7", "c", 0, "k", "train", "n1", host="n1", pid_space="pid:[1]", pid=4711, started=900)


@pytest.mark.parametrize(
    ("told", "started", "gone"),
    [
        (HERE, 900, False),
        (HERE, None, True),
        (HERE, 901, True),  # another process has its number
        (replace(HERE, started=0), 901, False),  # an older ftrun wrote no time down
        (replace(HERE, started=0), None, True),
        (replace(HERE, host="n2"), None, False),
        (replace(HERE, pid_space="pid:[2]"), None, False),
    ],
)
def test_an_ftrun_has_ended_where_this_machine_can_tell_so(told: RunBegan, started: int | None, gone: bool) -> None:
    assert is_gone(told, "n1", "pid:[1]", started) is gone

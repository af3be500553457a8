"""What stands between a requeue and its plainest form, without any Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.slurm.client import JobState, JobView
from ftslurm.wrapper.requeue.course import (
    DATABASE_S,
    NO_CHANGES,
    NO_CHANGES_AFTER,
    OWN_NODES,
    AskForChanges,
    Course,
    KnownOfJob,
    NothingToDo,
    Parted,
    PartFirst,
    Plain,
    can_give_back,
    course,
    may_lose_gpus,
)

JOB = JobView(1, JobState.RUNNING, batch=True, requeue=True, nodes=("n1", "n2", "n3"), exclusive=False)
DBD = {"AccountingStorageType": "accounting_storage/slurmdbd", "SLURM_VERSION": "22.05.8", "GresTypes": "gpu,npu"}
NO_DBD = {**DBD, "AccountingStorageType": "accounting_storage/none"}
KNOWN = KnownOfJob(JOB, True, DBD, had=3)
DEAD = replace(KNOWN, dead=frozenset({"n2"}))
EXCLUSIVE = replace(DEAD, job=replace(JOB, exclusive=True))
LOST = replace(KNOWN, gave_back=True)
AWAY = Parted(True, "n2 given back to Slurm")
NOT_AWAY = Parted(False, "n2 stays in the job: Slurm has not noticed")
MENDED = {**DBD, "SLURM_VERSION": "23.02.2"}
STAYS = NothingToDo(f"n2 stays in the job until Slurm marks it down: {OWN_NODES}")


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (KNOWN, NothingToDo()),
        (DEAD, PartFirst(("n2",))),
        (replace(DEAD, config=NO_DBD), NothingToDo()),
        # What runs no more, may not be requeued, or was requeued meanwhile: the recipe itself knows.
        (replace(DEAD, may_go=False), NothingToDo()),
        (replace(LOST, may_go=False), NothingToDo()),
        # It has lost nodes before: 22.05 may take no change of it.
        (LOST, AskForChanges(DATABASE_S)),
        (replace(LOST, config=NO_DBD), AskForChanges(0.0)),
        (replace(KNOWN, had=4), AskForChanges(DATABASE_S)),
        (replace(LOST, takes_changes=True), NothingToDo()),
        (replace(LOST, takes_changes=False), Plain(NO_CHANGES)),
        (replace(DEAD, gave_back=True, takes_changes=True), PartFirst(("n2",))),
        (replace(DEAD, gave_back=True, takes_changes=False), Plain(NO_CHANGES)),
        # It has left its dead nodes now, or could not.
        (replace(DEAD, parted=AWAY), AskForChanges(DATABASE_S)),
        (replace(DEAD, parted=AWAY, takes_changes=True), NothingToDo(AWAY.what)),
        (replace(DEAD, parted=AWAY, takes_changes=False), Plain(NO_CHANGES_AFTER)),
        (replace(DEAD, parted=NOT_AWAY), NothingToDo(NOT_AWAY.what)),
        # Of an exclusive job a node is taken from the site, unless Slurm would take all its GPUs instead.
        (EXCLUSIVE, PartFirst(("n2",))),
        (replace(EXCLUSIVE, config={**DBD, "GresTypes": "(null)"}), STAYS),
        (replace(EXCLUSIVE, config=MENDED), STAYS),
        (replace(EXCLUSIVE, config=NO_DBD), NothingToDo()),
    ],
)
def test_the_next_step(known: KnownOfJob, expected: Course) -> None:
    assert course(known) == expected


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.parametrize("known", [KNOWN, DEAD, EXCLUSIVE, LOST, replace(DEAD, gave_back=True)])
def test_it_ends_after_three_answers_and_tries_nothing_twice(known: KnownOfJob, takes: bool, parts: bool) -> None:
    seen: list[type[Course]] = []
    while not isinstance(step := course(known), Plain | NothingToDo):
        seen.append(type(step))
        if isinstance(step, AskForChanges):
            known = replace(known, takes_changes=takes)
        else:
            known = replace(known, parted=Parted(parts, "said"), takes_changes=None)
    assert len(seen) <= 3 and seen.count(PartFirst) <= 1
    assert isinstance(step, Plain) <= (not takes), "a job of which Slurm takes changes is requeued without its bad nodes"


@pytest.mark.parametrize(
    ("dead", "batch_node"), [({"n1"}, ""), ({"n1", "n2"}, ""), ({"n2"}, "n2"), ({"n4"}, ""), (set[str](), "")]
)
def test_the_node_of_the_script_cannot_go_nor_one_that_is_not_the_jobs(dead: set[str], batch_node: str) -> None:
    assert can_give_back(JOB, frozenset(dead), batch_node) == ()


def test_only_a_running_job_gives_nodes_back_and_no_expedited_one() -> None:
    assert can_give_back(JOB, frozenset({"n2", "n3", "n9"}), "n1") == ("n2", "n3")
    assert can_give_back(replace(JOB, state=JobState.PENDING), frozenset({"n2"}), "") == ()
    assert can_give_back(replace(JOB, expedited=True), frozenset({"n2"}), "") == ()


@pytest.mark.parametrize(
    ("release", "expected"),
    [("22.05.8", True), ("23.02.1", True), ("23.02.2", False), ("23.11.0", False), ("26.05.1-0rc1", False), ("", True)],
)
def test_a_release_that_nobody_can_read_counts_as_one_that_loses_gpus(release: str, expected: bool) -> None:
    assert may_lose_gpus({"SLURM_VERSION": release, "GresTypes": "gpu"}) is expected
    assert not may_lose_gpus({"SLURM_VERSION": release, "GresTypes": "npu"})

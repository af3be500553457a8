"""A requeue that stands open is finished, from within the job and from outside, on a Slurm in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.errors import SlurmRefused, StateError
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import private_folder
from ftslurm.model import record as rec
from ftslurm.model.decisions import Start
from ftslurm.model.folds.history import fold
from ftslurm.slurm.client import JobState
from ftslurm.wrapper.requeue.dead_nodes import DATABASE_S, NO_CHANGES, NO_CHANGES_AFTER, OWN_NODES
from ftslurm.wrapper.requeue.finish import finish_open_requeue
from ftslurm.wrapper.requeue.requeue import AS_IT_IS, RUNS_AGAIN
from tests.fakes.slurm import REQUEUE_DELAY_S, FakeSlurm

BEGAN = rec.RunBegan(1.0, "r1", "1", "c", 0, "k", "train", "n[1-3]")
SWAPPED = rec.SlotsChanged(2.0, "r1", 0, ("n1", "n3"), {"1": "n3"})
DECIDED = rec.Decided(3.0, "r1-2", 2, "isolated-requeue", "device", "broken", (), {"n1": "broken"}, ("n1", "n2"), "max_restarts")


class Job:
    def __init__(self, folder: Path, *before: rec.Record, exclusive: bool = False) -> None:
        self.slurm = FakeSlurm([f"n{n}" for n in range(1, 8)], clean_up_s=60.0)
        self.number = self.slurm.submit(3, exclusive=exclusive)
        self.slurm.job(self.number)
        self.journal = Journal(private_folder(folder / "state/jobs") / "c.1.jsonl")
        self.journal.append([BEGAN, *before, DECIDED])

    def finish(self, outsider: str = "") -> str:
        history = fold(self.journal.read().records)
        return finish_open_requeue(self.slurm, self.number, self.journal, history, Start(4.0), False, outsider)

    def keep(self, outsider: str = "") -> str:
        said = self.finish(outsider)
        done = self.journal.read().records[-1]
        assert isinstance(done, rec.CarriedOut) and (done.id, done.ok, done.what) == ("r1-2", True, said)
        return said

    def changes(self) -> list[object]:
        return [name for name, *_ in self.slurm.requests if name not in ("job", "nodes", "config")]


def test_a_requeue_is_carried_out_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert "without n1, n2" in job.keep()
    assert job.changes() == ["requeue_held", "exclude", "start_at", "release"]
    assert job.finish() == "nothing left to do"


@pytest.mark.parametrize("before", [(), (SWAPPED,)])
@pytest.mark.parametrize("outsider", ["", "from outside"])
def test_a_job_of_which_slurm_takes_no_changes_is_never_held(
    tmp_path: Path, before: tuple[rec.Record, ...], outsider: str
) -> None:
    """It gave a node back, or Slurm has cut a dead one out: nobody could end the hold."""
    job = Job(tmp_path, *before)
    job.slurm.cut_out(job.number, "n2")
    assert job.keep(outsider) == f"{AS_IT_IS}: {NO_CHANGES}" + (", finished from outside" if outsider else "")
    view = job.slurm.job(job.number)
    assert (view.state, view.held, view.restarts) == (JobState.PENDING, False, 1)


def test_a_job_that_gave_a_node_back_where_slurm_takes_changes_is_kept_off_the_bad_ones(tmp_path: Path) -> None:
    job = Job(tmp_path, SWAPPED)
    assert "without n1, n2" in job.keep()
    assert job.slurm.job(job.number).excluded == {"n1", "n2"}


@pytest.mark.parametrize("before", [(), (SWAPPED,)])
def test_a_job_that_somebody_requeued_meanwhile_and_that_runs_again_goes_on(
    tmp_path: Path, before: tuple[rec.Record, ...]
) -> None:
    """Also with fewer nodes than it had, and where Slurm would take no changes of it."""
    job = Job(tmp_path, *before)
    job.slurm.requeue(job.number)
    job.slurm.clock = lambda: time.time() + 2 * REQUEUE_DELAY_S
    assert job.slurm.job(job.number).state is JobState.RUNNING
    job.slurm.cut_out(job.number, "n2")
    job.slurm.requests.clear()
    assert job.keep() == RUNS_AGAIN
    assert job.changes() == [] and job.slurm.job(job.number).restarts == 1


def test_a_ledger_that_takes_no_more_leaves_no_job_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)

    def full(records: object) -> None:
        raise StateError("no space left on device")

    monkeypatch.setattr(job.journal, "append", full)
    with pytest.raises(StateError):  # that it is done cannot be written, which is said
        job.finish()
    view = job.slurm.job(job.number)
    assert (view.state, view.held, view.excluded) == (JobState.PENDING, False, {"n1", "n2"})


def test_a_dead_node_leaves_the_job_first_and_its_clean_up_is_not_waited_for(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.journal.append([replace(DECIDED, dead=("n2",))])
    job.slurm.dead = {"n2"}
    job.slurm.settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
    assert "without n1, n2; n2 given back to Slurm" in job.keep()
    assert job.changes() == ["signal_steps", "keep_nodes", "takes_changes", "requeue_held", "exclude", "start_at", "release"]
    assert job.slurm.job(job.number).cleaning == ("n1", "n3")


def test_an_exclusive_job_keeps_its_dead_node_which_is_said(tmp_path: Path) -> None:
    job = Job(tmp_path, exclusive=True)
    job.journal.append([replace(DECIDED, dead=("n2",))])
    job.slurm.dead = {"n2"}
    job.slurm.settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
    assert f"n2 stays in the job until Slurm marks it down: {OWN_NODES}" in job.keep()
    assert job.changes() == ["requeue_held", "exclude", "start_at", "release"]


def test_a_slurmdbd_that_is_gone_after_the_give_back_loses_no_job(tmp_path: Path) -> None:
    """Slurm takes no more changes, so a job that was held would stay so."""
    job = Job(tmp_path)
    job.journal.append([replace(DECIDED, dead=("n2",))])
    job.slurm.dead = {"n2"}
    job.slurm.settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
    keep_nodes = job.slurm.keep_nodes

    def then_gone(number: int, nodes: Iterable[str]) -> None:
        keep_nodes(number, nodes)
        job.slurm.cut_out(number, "n2")

    job.slurm.keep_nodes = then_gone  # type: ignore[method-assign]
    assert job.keep() == f"{AS_IT_IS}: {NO_CHANGES_AFTER}"
    assert job.slurm.requests.count(("takes_changes", job.number, DATABASE_S)) == 1
    view = job.slurm.job(job.number)
    assert (view.state, view.held, view.restarts) == (JobState.PENDING, False, 1)


def test_without_slurmdbd_it_keeps_its_dead_node(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.journal.append([replace(DECIDED, exclude=("n2",), dead=("n2",))])
    job.slurm.dead = {"n2"}
    job.keep()
    assert job.changes() == ["requeue_held", "exclude", "start_at", "release"]


def test_a_job_that_may_not_be_requeued_keeps_its_dead_node(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.number = job.slurm.submit(3, requeue=False)
    job.journal.append([replace(DECIDED, dead=("n5",))])
    job.slurm.dead = {"n5"}
    with pytest.raises(SlurmRefused):
        job.finish()
    assert job.changes() == ["requeue_held"]

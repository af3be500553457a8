"""`ftslurm requeue --finish`, on a Slurm in memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import Store, private_folder
from ftslurm.model import record as rec
from ftslurm.slurm.client import JobState
from ftslurm.wrapper import control as outside
from tests.fakes.slurm import REQUEUE_DELAY_S, FakeSlurm

DECIDED = rec.Decided(3.0, "r1-1", 1, "isolated-requeue", "node", "dead", (), {"n2": "dead"}, ("n2",), "max_restarts")


class Job:
    """On two nodes, and its ftrun did not live to requeue it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slurm = FakeSlurm(["n1", "n2", "n3"])
        self.number = self.slurm.submit(2)
        self.slurm.job(self.number)
        self.store, self.env = Store(folder / "state"), {"HOME": str(folder)}
        self.journal = Journal(private_folder(folder / "state/jobs") / "c.1.jsonl")
        began = rec.RunBegan(1.0, "r1", "1", "c", 0, "k", "train", "n[1-2]", launcher="srun", number=self.number)
        self.journal.append([began, DECIDED])
        monkeypatch.setattr(outside, "SlurmClient", lambda **_: self.slurm)

    def finish(self) -> str:
        return outside.finish_requeue(self.store, "1", self.env)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def test_what_stands_open_is_done_once(job: Job) -> None:
    assert "without n2" in job.finish() and "nothing to do" in job.finish()
    assert (job.slurm.job(job.number).restarts, job.slurm.job(job.number).excluded) == (1, {"n2"})


def test_a_job_that_runs_again_already_is_not_ended_for_it(job: Job) -> None:
    """Its script is at something else, so no ftrun has said yet that it is another scheduling."""
    job.slurm.requeue(job.number)
    job.slurm.clock = lambda: time.time() + 2 * REQUEUE_DELAY_S
    assert job.slurm.job(job.number).state is JobState.RUNNING
    assert "runs again" in job.finish() and "nothing to do" in job.finish()
    assert (job.slurm.job(job.number).state, job.slurm.job(job.number).restarts) == (JobState.RUNNING, 1)

"""What is asked of a job's ledger: how long a clean-up is waited for, and a requeue to be finished."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.hooks import hook_inputs
from ftslurm.hooks.as_owner import own_ledger
from ftslurm.hooks.hook_inputs import JobFacts
from ftslurm.ledger.journal import to_line
from ftslurm.ledger.store import ledger_parts
from ftslurm.model.job import JobId
from ftslurm.model.record import AttemptBegan, CarriedOut, Decided, FaultSeen, RunBegan
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.system.owner import Owner


@pytest.mark.parametrize(
    ("allowed", "said", "grace_s"), [(False, "0", -1.0), (True, "10", 10.0), (True, "-7", -1.0), (True, "x", -1.0)]
)
def test_a_job_cuts_the_wait_short_only_where_the_site_allows_it(
    monkeypatch: pytest.MonkeyPatch, allowed: bool, said: str, grace_s: float
) -> None:
    monkeypatch.setattr(hook_inputs, "ask_owner", lambda *_: said)
    facts = JobFacts(JobId(5), 1000, "c", "n1")
    assert hook_inputs.cleanup_grace(HookSettings(cleanup_grace_of_job=allowed), facts) == grace_s


@pytest.mark.parametrize("said", ["nan", "inf"])
def test_no_number_of_seconds_is_to_the_end(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(hook_inputs, "ask_owner", lambda *_: said)
    assert hook_inputs.cleanup_grace(HookSettings(cleanup_grace_of_job=True), JobFacts(JobId(5), 1000, "c", "n1")) == -1.0


def test_a_requeue_is_finished_also_after_a_thousand_restarts_in_place(tmp_path: Path) -> None:
    lines = [
        RunBegan(1.0, "r", "5", "c", 0, "k", "python train.py --config some/long/path.yaml", "n[1-8]", launcher="srun", number=5)
    ]
    for number in range(1, 1001):
        lines += [
            AttemptBegan(2.0, "r", number, 0, "k", number, "n[1-8]", 64, "5.1"),
            FaultSeen(3.0, f"n{number % 8}", "0.0", "80C98008", "a name from the catalogue", "self-healing"),
            Decided(
                4.0,
                f"r-{number}",
                number,
                "in-place-restart",
                "device",
                "80C98008 (a name from the catalogue) on device 0.0 of n3",
            ),
            CarriedOut(5.0, f"r-{number}", True, "healed by itself"),
        ]
    lines.append(Decided(6.0, "r-last", 1001, "isolated-requeue", "device", "w", isolate={"n1": "w"}, exclude=("n1",)))
    data = b"".join(map(to_line, lines))
    assert len(data) > 512 << 10
    place = tmp_path.joinpath(".ftslurm", *ledger_parts("c", "5"))
    place.parent.mkdir(parents=True)
    place.write_bytes(data)
    found = own_ledger(HookSettings(), Owner(os.getuid(), os.getgid(), "me", tmp_path), 5, "5", "c")
    assert found is not None and found.history.requeues.open is not None and found.history.requeues.open.exclude == ("n1",)

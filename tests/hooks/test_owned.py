"""How long a clean-up is waited for."""

from __future__ import annotations

import pytest

from ftslurm.hooks import owned
from ftslurm.hooks.facts import JobFacts
from ftslurm.model.hook_settings import HookSettings
from ftslurm.model.job import JobId


@pytest.mark.parametrize(("allowed", "said", "grace_s"), [(False, "0", -1.0), (True, "10", 10.0), (True, "-7", -1.0), (True, "x", -1.0)])
def test_a_job_cuts_the_wait_short_only_where_the_site_allows_it(
    monkeypatch: pytest.MonkeyPatch, allowed: bool, said: str, grace_s: float
) -> None:
    monkeypatch.setattr(owned, "ask_owner", lambda *_: said)
    facts = JobFacts(JobId(5), 1000, "c", "n1")
    assert owned.cleanup_grace(HookSettings(cleanup_grace_of_job=allowed), facts, {}) == grace_s


@pytest.mark.parametrize("said", ["nan", "inf"])
def test_no_number_of_seconds_is_to_the_end(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(owned, "ask_owner", lambda *_: said)
    assert owned.cleanup_grace(HookSettings(cleanup_grace_of_job=True), JobFacts(JobId(5), 1000, "c", "n1"), {}) == -1.0

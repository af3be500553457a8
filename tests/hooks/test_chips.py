"""The Epilog's resets: only beside nobody, only while there is time for all of one, and with the codes on record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftslurm.errors import SlurmUnavailable
from ftslurm.hooks import epilog
from ftslurm.hooks.hook_inputs import JobFacts
from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult, ProbeAnswer, Severity
from ftslurm.model.job import JobId
from ftslurm.model.settings.hook_settings import HookSettings

FACTS = JobFacts(JobId(5), 1000, "c", "n1")
SELF, OTHER = (5, 1000, "COMPLETING"), (6, 1001, "RUNNING")
HEALS, STAYS = "80C98008", "80E18402"


class Probe:
    """Two chips with a fault that a reset mends, one with another."""

    kind = "ascend"

    def __init__(self) -> None:
        self.healed: list[str] = []

    def read(self, timeout_s: float) -> ProbeAnswer:
        faulty = {"0.0": HEALS, "1.0": HEALS, "2.0": STAYS}
        return ProbeAnswer(
            tuple(DeviceReport(device, "ascend", DeviceHealth.FAULTY, Severity.MAJOR, (code,)) for device, code in faulty.items())
        )

    def heal(self, device: str, *_: object) -> HealResult:
        self.healed.append(device)
        return HealResult(device, True, "healed by an in-band reset")


class Admin:
    """jobs: on the node each time it is asked for, the last for ever; None: no answer."""

    def __init__(self, *jobs: Sequence[tuple[int, int, str]] | None) -> None:
        self.jobs = list(jobs)

    def jobs_on(self, node: str) -> Sequence[tuple[int, int, str]]:
        found = self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0]
        if found is None:
            raise SlurmUnavailable("slurmctld does not answer")
        return found


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    probe = Probe()
    monkeypatch.setattr(epilog, "choose_probes", lambda *_: (probe,))
    return probe


def reset(state: Path, admin: Admin, left_s: float = 800.0) -> list[str]:
    settings = HookSettings(state=str(state), reset_wait_s=180.0)
    return epilog.reset_idle_chips(settings, FACTS, admin, time.monotonic() + left_s)  # type: ignore[arg-type]


def test_the_codes_are_on_record_before_the_reset_takes_them_away(probe: Probe, tmp_path: Path) -> None:
    said = reset(tmp_path, Admin([SELF]))
    assert said == [f"ascend {chip} with {HEALS}: healed by an in-band reset" for chip in ("0.0", "1.0")]
    kept = (tmp_path / "evidence/5.n1.txt").read_text()
    assert f"before its reset, after job 5: ascend 0.0 shows {HEALS} (major)" in kept and "ascend 1.0" in kept


def test_a_job_that_begins_between_two_resets_keeps_its_chip(probe: Probe, tmp_path: Path) -> None:
    first, second = reset(tmp_path, Admin([SELF], [SELF, OTHER]))
    assert probe.healed == ["0.0"] and "healed" in first and second.endswith("not reset: job 6 is here")


def test_without_an_answer_no_chip_is_reset(probe: Probe, tmp_path: Path) -> None:
    assert all("slurmctld does not answer" in one for one in reset(tmp_path, Admin(None))) and not probe.healed


def test_a_reset_is_begun_only_with_all_of_its_time_left(probe: Probe, tmp_path: Path) -> None:
    said = reset(tmp_path, Admin([SELF]), left_s=100.0)
    assert not probe.healed and all("may take 181 s, and the Epilog has" in one for one in said)


def test_without_a_place_for_the_record_they_are_reset_all_the_same(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert len(reset(tmp_path / "file", Admin([SELF]))) == len(probe.healed) == 2


def test_the_site_s_clean_up_does_not_wait_for_resets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[str] = []
    monkeypatch.setattr(epilog, "clear_leftovers", lambda *_: "")
    monkeypatch.setattr(epilog, "_site_cleanup", lambda *_: done.append("clean-up") or "")
    monkeypatch.setattr(epilog, "reset_idle_chips", lambda *_: done.append("chips") or [])
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "n1"}
    epilog.clean(HookSettings(state=str(tmp_path), reset_wait_s=180.0, cleanup=(("/bin/true",),)), env)
    assert done == ["clean-up", "chips"]

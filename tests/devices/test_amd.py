"""The AMD probe against a stand-in of the module `amdsmi`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftslurm.devices import gpu_probe as gpu
from ftslurm.model.devices import DeviceHealth, ProbeAnswer, Utilisation
from ftslurm.system.plugins import pip_line
from tests.devices.amd_stage import AmdStage

MakeStage = Callable[..., AmdStage]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeStage]:
    made: list[AmdStage] = []

    def stage(gpus: int = 2, **env: str) -> AmdStage:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(AmdStage(folder, monkeypatch, gpus, **env))
        return made[-1]

    yield stage
    for one in made:
        one.close()


@pytest.fixture
def stage(make: MakeStage) -> AmdStage:
    return make()


def codes(stage: AmdStage, device: str = "0") -> tuple[str, ...]:
    return stage.reports()[device].codes


def test_a_report_names_the_gpu_as_people_look_for_it(stage: AmdStage) -> None:
    expected = "AMD Instinct MI300X, 01ff74a1-0000-1000-8000-000000000000, 0000:11:00.0, serial 0x0000000000000001"
    assert stage.reports()["1"].detail == expected


@pytest.mark.parametrize(
    ("event", "code"),
    [("VMFAULT", "RING-HANG"), ("GPU_PRE_RESET", "GPU-RESET"), ("GPU_POST_RESET", "GPU-RESET"), ("THERMAL_THROTTLE", "THERMAL")],
)
def test_an_event_is_a_code_until_it_is_healed(stage: AmdStage, event: str, code: str) -> None:
    stage.sim.event(0, event, "before the job")
    stage.reports()
    stage.sim.event(0, event, "its words")
    report = stage.reports()["0"]
    assert (report.health, report.codes) == (DeviceHealth.FAULTY, (code,))
    assert f"{event} its words" in report.detail
    assert (codes(stage), codes(stage, "1")) == ((code,), ())
    assert stage.probe.heal("0", (code,), False, 0, 0).healed is True
    assert codes(stage) == ()


def test_events_of_every_gpu_come_to_the_right_one(stage: AmdStage) -> None:
    stage.reports()
    for _ in range(15):
        stage.sim.event(1, "MIGRATE_START")
    stage.sim.event(1, "THERMAL_THROTTLE")
    stage.sim.event(0, "GPU_PRE_RESET")
    stage.reports()
    assert (codes(stage), codes(stage, "1")) == (("GPU-RESET",), ("THERMAL",))


def test_counts_from_before_the_job_are_no_news(stage: AmdStage) -> None:
    stage.sim.set(0, ecc=3)
    assert codes(stage) == ()
    stage.sim.set(0, ecc=4)
    assert codes(stage) == ("ECC-UNCORRECTABLE",)


def test_a_board_without_spare_pages_is_for_another_day(stage: AmdStage) -> None:
    stage.reports()
    stage.sim.set(0, bad_pages=127)
    assert codes(stage) == ()
    stage.sim.set(0, bad_pages=128)
    report = stage.reports()["0"]
    assert report.codes == ("BAD-PAGES-THRESHOLD",)
    assert "128 bad pages of 128 allowed" in report.detail
    assert stage.probe.heal("0", report.codes, True, 30, 5).healed is False


@pytest.mark.parametrize("key", ["ecc", "bad_pages", "threshold", "uuid", "serial"])
def test_what_a_board_does_not_support_says_nothing(stage: AmdStage, key: str) -> None:
    stage.sim.set(0, **{key: None})
    assert stage.reports()["0"].health is DeviceHealth.GOOD


def test_a_board_without_events_is_read_all_the_same(stage: AmdStage) -> None:
    stage.sim.set(0, events=False)
    assert stage.reports()["0"].health is DeviceHealth.GOOD


def test_a_gpu_that_answers_again_is_good_again(stage: AmdStage) -> None:
    stage.reports()
    stage.sim.set(1, lost=True)
    report = stage.reports()["1"]
    assert report.health is DeviceHealth.UNKNOWN
    assert "I/O Error" in report.detail
    stage.sim.set(1, lost=False)
    assert stage.reports()["1"].health is DeviceHealth.GOOD


def test_an_event_before_a_new_start_is_kept(stage: AmdStage) -> None:
    """A GPU that fails makes the child begin anew, which forgets what the library has not told yet."""
    stage.reports()
    stage.sim.event(1, "GPU_PRE_RESET")
    stage.sim.set(1, listed=False)
    assert codes(stage, "1") == ("GPU-LOST", "GPU-RESET")


def test_the_reset_that_hangs_is_not_known(stage: AmdStage) -> None:
    stage.reports()
    stage.fault()
    stage.sim.say(hang="reset")
    assert stage.probe.heal("0", ("ECC-UNCORRECTABLE",), True, 0, 0.5).healed is None


def test_only_the_gpus_of_the_job_are_looked_at(make: MakeStage) -> None:
    stage = make(gpus=3, ROCR_VISIBLE_DEVICES="1,2", HIP_VISIBLE_DEVICES="0")
    assert set(stage.reports()) == {"1", "2"}


def test_tells_utilisation_memory_traffic_and_watts(stage: AmdStage) -> None:
    stage.load()
    stage.sim.set(1, traffic=None, power=None)
    assert stage.probe.utilisation(10) == (
        Utilisation("0", "amd", 87.0, 35.0, 612.0),
        Utilisation("1", "amd", 0.0, None, None),
    )


def test_the_library_on_a_node_without_gpus_is_no_fault(stage: AmdStage) -> None:
    stage.sim.say(driver=False)
    assert stage.probe.read(10) == ProbeAnswer()
    stage.dev.mkdir()
    (stage.dev / "kfd").touch()
    assert stage.probe.read(10).error == "amdsmi does not start: AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded"


def test_a_module_that_does_not_load_says_so(stage: AmdStage) -> None:
    del stage.env["AMDSMI_SIM"]
    assert stage.probe.read(10).error == "amdsmi cannot be imported: KeyError: 'libamd_smi.so'"


def test_the_missing_extra_is_asked_for_once(stage: AmdStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_is_installed", lambda module: module != "amdsmi")
    assert stage.probe.read(10).error.endswith(f"no `amdsmi` to look at them with: {pip_line('amd')}")
    assert stage.probe.read(10) == ProbeAnswer()

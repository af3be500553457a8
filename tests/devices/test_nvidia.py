"""The NVIDIA probe: the true nvidia-ml-py against a stand-in of libnvidia-ml.so.1, and a stand-in of nvidia-smi."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftslurm.devices import asking
from ftslurm.devices import gpu_probe as gpu
from ftslurm.devices.gpu_looks import REMEMBER_EVENTS_S
from ftslurm.devices.nvidia import NvidiaProbe
from ftslurm.model.devices import DeviceHealth, ProbeAnswer, Utilisation
from ftslurm.system.plugins import pip_line
from tests.devices.nvidia_stage import NvidiaStage
from tests.fakes.nvml.nvml_sim import DOUBLE_BIT

MakeStage = Callable[..., NvidiaStage]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeStage]:
    made: list[NvidiaStage] = []

    def stage(gpus: int = 2, **env: str) -> NvidiaStage:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(NvidiaStage(folder, gpus, **env))
        return made[-1]

    yield stage
    for one in made:
        one.close()


@pytest.fixture
def stage(make: MakeStage) -> NvidiaStage:
    return make()


def codes(stage: NvidiaStage, device: str = "0") -> tuple[str, ...]:
    return stage.reports()[device].codes


def resets(stage: NvidiaStage) -> list[str]:
    return [call[-1] for call in stage.calls if "--gpu-reset" in call]


# ---- reading


def test_a_report_names_the_gpu_as_people_look_for_it(stage: NvidiaStage) -> None:
    detail = stage.reports()["1"].detail
    assert detail == "NVIDIA H200, GPU-00000001-1111-2222-3333-444444444444, 00000000:11:00.0, serial 1650000000001"


def test_an_xid_is_told_once_and_shown_until_it_is_healed(stage: NvidiaStage) -> None:
    stage.reports()
    stage.sim.xid(0, 31)
    stage.sim.xid(0, 13)
    stage.sim.xid(0, 31)
    assert [codes(stage), codes(stage), codes(stage, "1")] == [("XID 31", "XID 13"), ("XID 31", "XID 13"), ()]
    assert stage.probe.heal("0", ("XID 31",), True, 0, 5).healed is True
    assert codes(stage) == ("XID 13",)
    assert stage.probe.heal("0", (), True, 0, 5).healed is True
    assert codes(stage) == ()
    assert resets(stage) == []


def test_what_was_before_the_job_is_no_news(stage: NvidiaStage) -> None:
    stage.sim.xid(0, 79)
    stage.sim.set(0, ecc=7)
    assert stage.reports()["0"].health is DeviceHealth.GOOD


def test_an_event_is_forgotten_in_the_end(stage: NvidiaStage) -> None:
    probe = NvidiaProbe(stage._counted, stage.env, clock=lambda: stage.now)
    probe.read(10)
    stage.sim.xid(0, 31)
    seen = []
    for stage.now in (1.0, 1.0 + REMEMBER_EVENTS_S, 2.0 + REMEMBER_EVENTS_S):
        seen.append(probe.read(10).reports[0].codes)
    probe.close()
    assert seen == [("XID 31",), ("XID 31",), ()]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"recovery": 2}, "RECOVERY 2"),
        ({"remap": "0,1,1,0"}, "ROW-REMAP-PENDING"),
        ({"remap": "0,1,0,1"}, "ROW-REMAP-FAILURE"),
        ({"ecc": 1}, "ECC-UNCORRECTABLE"),
        ({"lost": 1}, "GPU-LOST"),
        ({"listed": 0}, "GPU-LOST"),
        ({"ecc": "!16"}, "RECOVERY 1"),  # NVML_ERROR_RESET_REQUIRED
    ],
)
def test_a_state_that_is_a_fault(stage: NvidiaStage, state: dict[str, object], code: str) -> None:
    stage.reports()
    stage.sim.set(0, **state)
    report = stage.reports()["0"]
    assert (report.health, report.codes) == (DeviceHealth.FAULTY, (code,))
    assert "serial 1650000000000" in report.detail


@pytest.mark.parametrize(("kind", "shown"), [(DOUBLE_BIT, ("ECC-UNCORRECTABLE",)), (0x800, ("ROW-REMAP-FAILURE",))])
def test_other_events_that_newer_drivers_tell(stage: NvidiaStage, kind: int, shown: tuple[str, ...]) -> None:
    stage.reports()
    stage.sim.event(0, kind)
    report = stage.reports()["0"]
    assert report.codes == shown


def test_clock_changes_are_not_asked_for(stage: NvidiaStage) -> None:
    stage.reports()
    stage.sim.event(0, 0x10)
    assert "event" not in stage.reports()["0"].detail


@pytest.mark.parametrize("key", ["recovery", "remap", "ecc", "serial", "name", "events", "power", "processes"])
@pytest.mark.parametrize("answer", ["-", "!2", "!13"])
def test_what_a_gpu_or_driver_does_not_support_says_nothing(stage: NvidiaStage, key: str, answer: str) -> None:
    stage.sim.set(0, **{key: answer})
    assert stage.reports()["0"].health is DeviceHealth.GOOD


def test_a_gpu_without_events_says_so_in_its_detail(stage: NvidiaStage) -> None:
    stage.sim.set(0, events="-")
    assert "no events: Not Supported" in stage.reports()["0"].detail


def test_a_driver_without_event_sets_still_tells_the_state(stage: NvidiaStage) -> None:
    stage.sim.say(eventset="!3")
    stage.fault()
    report = stage.reports()["0"]
    assert report.codes == ("RECOVERY 1",)
    assert "no events: Not Supported" in report.detail


def test_a_gpu_that_tells_its_uuid_late_is_the_same(stage: NvidiaStage) -> None:
    stage.sim.set(0, uuid="!999")
    assert stage.reports()["0"].health is DeviceHealth.UNKNOWN
    stage.sim.set(0, uuid="GPU-late")
    reports = stage.reports()
    assert {device: report.health for device, report in reports.items()} == {"0": DeviceHealth.GOOD, "1": DeviceHealth.GOOD}
    assert "GPU-late" in reports["0"].detail


def test_a_lost_gpu_is_recognised_when_nvml_starts_anew(make: MakeStage) -> None:
    """NVML then lists fewer GPUs, and its numbers shift: the names must not."""
    stage = make(gpus=3)
    stage.reports()
    stage.probe.close()
    stage.sim.set(1, listed=0)
    reports = stage.reports()
    assert {device: report.codes for device, report in reports.items()} == {"0": (), "1": ("GPU-LOST",), "2": ()}
    assert "00000000:12:00.0" in reports["2"].detail
    stage.sim.set(2, recovery=1)
    assert stage.probe.heal("2", ("RECOVERY 1",), True, 0, 1).how.startswith("reset done, but")  # one GPU is still missing
    assert resets(stage) == ["00000000:12:00.0"]


def test_a_gpu_without_a_handle_is_the_one_that_is_missing(stage: NvidiaStage) -> None:
    stage.reports()
    stage.probe.close()
    stage.sim.set(0, handle="!15")
    reports = stage.reports()
    assert {device: report.codes for device, report in reports.items()} == {"0": ("GPU-LOST",), "1": ()}
    assert "serial 1650000000000" in reports["0"].detail


def test_a_gpu_of_somebody_else_is_none_of_ours(stage: NvidiaStage) -> None:
    stage.sim.set(1, handle="!4")
    assert set(stage.reports()) == {"0"}


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("2,1", {"1", "2"}),
        ("GPU-00000002", {"2"}),
        ("0,7", {"0", "1", "2"}),
        ("MIG-GPU-5", {"0", "1", "2"}),
        ("NoDevFiles", set()),
        ("", set()),
    ],
)
def test_only_the_gpus_of_the_job_are_looked_at(make: MakeStage, visible: str, seen: set[str]) -> None:
    stage = make(gpus=3, CUDA_VISIBLE_DEVICES=visible)
    assert set(stage.reports()) == seen
    assert {use.device for use in stage.probe.utilisation(10)} == seen


# ---- a library that is missing, sick or slow


def test_the_library_or_a_device_node_is_a_sign(stage: NvidiaStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, dev = tmp_path / "ld.so.cache", tmp_path / "dev"
    monkeypatch.setattr(gpu, "LOADER_CACHE", cache)
    cache.write_bytes(b"libnvidia-ml.so.1x\0")
    dev.mkdir()
    (dev / "nvidiactl").touch()
    probe = NvidiaProbe(stage._counted, {}, dev=dev)
    assert not probe.present()
    cache.write_bytes(b"glibc-ld.so.cache1.1\0libnvidia-ml.so.1\0/lib/libnvidia-ml.so.1\0")
    assert probe.present()
    cache.unlink()
    (dev / "nvidia0").touch()
    assert probe.present()


def test_the_library_on_a_node_without_gpus_is_no_fault(stage: NvidiaStage) -> None:
    stage.sim.say(driver="!9")
    assert stage.probe.read(10) == ProbeAnswer()


def test_gpus_without_a_driver_are_an_error(stage: NvidiaStage) -> None:
    stage.dev.mkdir()
    (stage.dev / "nvidia0").touch()
    stage.sim.say(driver="!9")
    assert stage.probe.read(10) == ProbeAnswer(error="NVML does not start: Driver Not Loaded")


def test_a_driver_that_goes_under_the_job_is_an_error(stage: NvidiaStage) -> None:
    stage.reports()
    stage.probe.close()
    stage.sim.say(driver="!18")
    assert stage.probe.read(10).error.startswith("NVML does not start: RM has detected")


def test_the_missing_extra_is_asked_for_once(stage: NvidiaStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_is_installed", lambda module: module != "pynvml")
    assert stage.probe.present()
    assert stage.probe.read(10).error.endswith(f"no `pynvml` to look at them with: {pip_line('nvidia')}")
    assert stage.probe.read(10) == ProbeAnswer()
    assert stage.probe.utilisation(10) == ()


def test_an_xid_heard_before_nvml_falls_silent_still_counts(stage: NvidiaStage) -> None:
    stage.reports()
    stage.sim.xid(1, 79)
    stage.sim.say(hang="remap")
    reports = {report.device: report for report in stage.probe.read(0.5).reports}
    assert (reports["1"].health, reports["1"].codes) == (DeviceHealth.FAULTY, ("XID 79",))
    assert (reports["0"].health, reports["0"].codes) == (DeviceHealth.UNKNOWN, ())
    assert "gave no answer within 0.5 s" in reports["1"].detail


def test_a_library_that_crashes_is_an_error_and_is_asked_again(stage: NvidiaStage) -> None:
    stage.reports()
    child = stage.probe._child._child
    assert child is not None
    os.kill(child.process.pid, signal.SIGSEGV)
    child.process.wait()
    assert stage.probe.read(10).error == "the process that asks NVML has ended (status -11)"
    assert set(stage.reports()) == {"0", "1"}


def test_a_call_that_no_signal_ends_is_not_joined_by_another(stage: NvidiaStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits in the kernel for a lost GPU outlives SIGKILL."""
    stage.reports()
    child = stage.probe._child._child
    assert child is not None
    process = child.process
    monkeypatch.setattr(asking, "KILL_WAIT_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: None)
    stage.sim.say(hang="count")
    assert "gave no answer" in stage.probe.read(0.2).error
    began = time.monotonic()
    assert stage.probe.read(5).error == f"an earlier call of NVML still hangs in the driver (process {process.pid})"
    assert time.monotonic() - began < 4
    monkeypatch.undo()
    process.kill()
    process.wait()
    stage.sim.say(hang=None)
    assert set(stage.reports()) == {"0", "1"}


def test_nobody_is_left_when_the_agent_goes(stage: NvidiaStage) -> None:
    stage.reports()
    child = stage.probe._child._child
    assert child is not None
    child._requests.close()
    assert child.process.wait(5) == 0


# ---- utilisation


def test_tells_utilisation_memory_traffic_and_watts(stage: NvidiaStage) -> None:
    stage.load()
    stage.sim.set(1, power="-", busy="-")
    assert stage.probe.utilisation(10) == (
        Utilisation("0", "nvidia", 87.0, 35.0, 612.0),
        Utilisation("1", "nvidia", None, None, None),
    )


# ---- healing


def test_after_a_program_fault_the_gpu_is_used_again_once_it_is_empty(stage: NvidiaStage) -> None:
    stage.reports()
    stage.sim.xid(0, 31)
    stage.occupy()
    result = stage.probe.heal("0", ("XID 31",), True, 0, 5)
    assert (result.healed, result.how) == (False, "after 0 s: process 4242 still on GPU 0")
    stage.sim.set(0, processes="")
    assert stage.probe.heal("0", ("XID 31",), False, 0, 0).healed is True


@pytest.mark.parametrize("xid", [46, 48, 62, 74, 95, 109, 119, 140])
def test_a_stuck_gpu_is_reset(stage: NvidiaStage, xid: int) -> None:
    stage.reports()
    stage.sim.xid(0, xid)
    stage.reports()
    result = stage.probe.heal("0", (f"XID {xid}",), False, 0, 0)
    assert (result.healed, result.how) == (False, f"Xid {xid} on GPU 00000000:10:00.0 needs a reset, and no reset is allowed")
    assert stage.probe.heal("0", (f"XID {xid}",), True, 0, 5).healed is True
    assert resets(stage) == ["00000000:10:00.0"]
    assert codes(stage) == ()


@pytest.mark.parametrize("code", ["XID 79", "XID 64", "XID 167", "XID 143"])
def test_what_needs_another_node_is_not_reset_nor_waited_for(stage: NvidiaStage, code: str) -> None:
    stage.reports()
    result = stage.probe.heal("0", (code,), True, 30, 5)
    assert result.healed is False
    assert "no reset helps against" in result.how
    assert resets(stage) == []


@pytest.mark.parametrize("state", [{"recovery": 2}, {"remap": "0,9,0,1"}, {"recovery": 1, "remap": "0,9,1,1"}])
def test_a_state_that_needs_another_node_is_not_reset(stage: NvidiaStage, state: dict[str, object]) -> None:
    stage.sim.set(0, **state)
    assert stage.probe.heal("0", (), True, 30, 5).healed is False
    assert resets(stage) == []


def test_a_contained_memory_error_needs_no_reset_if_the_driver_says_so(stage: NvidiaStage) -> None:
    stage.reports()
    stage.sim.set(0, ecc=1)
    stage.sim.xid(0, 94)
    assert codes(stage) == ("ECC-UNCORRECTABLE", "XID 94")
    assert stage.probe.heal("0", codes(stage), True, 0, 5).healed is True
    assert (codes(stage), resets(stage)) == ((), [])
    stage.sim.set(0, ecc=2)
    assert codes(stage) == ("ECC-UNCORRECTABLE",)


def test_without_a_word_from_the_driver_a_memory_error_needs_a_reset(stage: NvidiaStage) -> None:
    stage.sim.set(0, recovery="-")
    stage.reports()
    stage.sim.set(0, ecc=1)
    assert stage.probe.heal("0", ("ECC-UNCORRECTABLE",), False, 0, 0).healed is False


def test_a_gpu_that_another_process_holds_is_not_reset(stage: NvidiaStage) -> None:
    """A monitor that has NVML open is a user too. Our own use of it ends before: else no reset would ever be done."""
    monitor = NvidiaProbe(stage._counted, stage.env)
    monitor.read(10)
    stage.fault()
    result = stage.probe.heal("0", ("RECOVERY 1",), True, 0, 5)
    monitor.close()
    assert result.healed is False
    assert result.how.startswith("reset failed (status 255): The following GPUs")
    assert "In use by another client" in result.how


def test_a_reset_that_the_tool_fails_at_says_its_words(stage: NvidiaStage) -> None:
    stage.fault()
    stage.sim.say(reset="fail")
    result = stage.probe.heal("0", (), True, 0, 5)
    assert (result.healed, result.how.startswith("reset failed (status 255): The following GPUs")) == (False, True)


def test_a_reset_that_takes_too_long_is_not_known(stage: NvidiaStage) -> None:
    stage.fault()
    stage.sim.say(reset="slow:30")
    assert stage.probe.heal("0", (), True, 0, 0.5).healed is None


def test_a_gpu_that_a_reset_loses_is_not_healed(stage: NvidiaStage) -> None:
    stage.fault()
    stage.sim.say(reset="gone")
    result = stage.probe.heal("0", (), True, 0, 0.5)
    assert (result.healed, "lost" in result.how) == (False, True)


def test_no_tool_no_reset(stage: NvidiaStage, tmp_path: Path) -> None:
    stage.fault()
    probe = NvidiaProbe(lambda argv, timeout_s, env: stage._counted(("/no/nvidia-smi",), timeout_s), stage.env)
    result = probe.heal("0", (), True, 0, 5)
    probe.close()
    assert (result.healed, result.how.startswith("not reset: `/no/nvidia-smi` cannot be run")) == (False, True)

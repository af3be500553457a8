"""The Ascend probe by the driver's library: the true ctypes layer and its child over a stand-in of libdcmi.so in C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftslurm.devices.ascend import dcmi
from ftslurm.devices.ascend.dcmi_driver import TRY_AGAIN_S, Driver
from ftslurm.devices.ascend.probe import AscendProbe
from ftslurm.devices.asking import LibraryChild, NoAnswer
from ftslurm.model.devices import DeviceHealth, DeviceReport, Severity
from ftslurm.system.commands import run
from tests.devices.ascend_bench import Bench

pytest.register_assert_rewrite("tests.devices.probe_contract")
from tests.devices.probe_contract import ProbeContract  # noqa: E402
from tests.machine import slowness  # noqa: E402

SOURCE = Path(__file__).parents[1] / "fakes" / "dcmi" / "libdcmi.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")

# The stand-in looks for changes every 5 ms.
HEARD_S = 0.15


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.fail("no C compiler; apt-get install gcc libc6-dev")
    library = tmp_path_factory.mktemp("dcmi") / "libdcmi.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-pthread", "-Wall", "-Werror", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class LibraryBench(Bench):
    """A node with both stand-ins; the library answers unless told otherwise."""

    def __init__(self, folder: Path, built: Path, layout: str = "a2", chips: int = 2, **more: str) -> None:
        library = folder / "libdcmi.so"
        shutil.copy(built, library)
        (folder / "dcmi.state").symlink_to(folder / "npu" / "n2.dcmi")
        super().__init__(folder / "npu", layout, chips, str(library), **more)
        self.sim("clear")

    def all_reports(self) -> list[DeviceReport]:
        answer = self.probe.read(10)
        assert answer.error == ""
        return list(answer.reports)

    def by_tool_alone(self) -> AscendProbe:
        return AscendProbe(run, {**self.env, "FTSLURM_DCMI": "off"})


Make = Callable[..., LibraryBench]


@pytest.fixture
def make(tmp_path: Path, built: Path) -> Iterator[Make]:
    made: list[LibraryBench] = []

    def bench(**how: object) -> LibraryBench:
        made.append(LibraryBench(tmp_path, built, **how))  # type: ignore[arg-type]
        return made[-1]

    yield bench
    for one in made:
        one.probe.close()


# ---- the layer itself


def test_the_structures_are_those_of_the_header(built: Path) -> None:
    library = ctypes.CDLL(str(built))
    library.standin_size_of_event.restype = library.standin_size_of_filter.restype = ctypes.c_ulong
    assert ctypes.sizeof(dcmi.DcmiEvent) == library.standin_size_of_event()
    assert ctypes.sizeof(dcmi._Filter) == library.standin_size_of_filter()


def test_the_library_is_found_chosen_or_switched_off() -> None:
    assert dcmi.find_library({"FTSLURM_DCMI": "/some/where.so"}) == "/some/where.so"
    assert dcmi.find_library({"FTSLURM_DCMI": "off"}) == ""
    assert dcmi.find_library({}) in ("", *dcmi._PLACES)


def test_a_library_that_lacks_a_function_is_one_that_does_not_support_it(built: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-x", "c", "-o", empty, "/dev/null"], check=True)
    with pytest.raises(dcmi.DcmiError, match="-8255, not supported here"):
        dcmi.Dcmi(str(empty))


# ---- the contract of all probes


class LibraryStage:
    """Atlas A2 with two chips, seen by the library."""

    device, other = "0.0", "1.0"
    code = "80E01801"
    names_the_lost = False

    def __init__(self, bench: LibraryBench) -> None:
        self.bench = bench
        self.probe = bench.probe
        self._how = "ok"

    def fault(self) -> None:
        self.bench.sim("inject", "--device", self.device, "--code", self.code, "--reset", self._how)

    def passing_fault(self) -> tuple[str, ...]:
        self.bench.sim("inject", "--device", self.device, "--code", self.code, "--heals-after", "0.7")
        return (self.code,)

    def unsure(self) -> None:
        self.lose()

    def lose(self) -> None:
        self.bench.sim("lose-chip", "--device", self.device)

    def find_again(self) -> None:
        self.bench.sim("clear", "--device", self.device)

    def hang(self) -> None:
        self.bench.sim("dcmi", "hang")
        self.bench.sim("tool", "hang")

    def end_hang(self) -> None:
        self.bench.sim("dcmi", "ok")
        self.bench.sim("tool", "ok")

    def occupy(self) -> None:
        self.bench.sim("process", "--device", self.other, "--pid", "4242")

    def refuse_reset(self) -> None:
        self._how = "refused"
        self.fault()

    def spoil_reset(self) -> None:
        self._how = "keeps"
        self.fault()

    def load(self) -> None:
        self.bench.sim("load", "--device", self.device, "--percent", "87")

    def without_tool(self, monkeypatch: pytest.MonkeyPatch, empty: Path) -> AscendProbe:
        return AscendProbe(run, {"PATH": str(empty), "FTSLURM_DCMI": "off"})


class TestByLibrary(ProbeContract):
    @pytest.fixture
    def stage(self, make: Make) -> Iterator[LibraryStage]:
        stage = LibraryStage(make())
        yield stage
        stage.end_hang()


# ---- looking


def test_while_the_library_answers_the_tool_is_not_run(make: Make) -> None:
    bench = make()
    bench.sim("inject", "--device", "1.0", "--code", "80C98002")
    report = bench.reports()["1.0"]
    assert (report.health, report.severity, report.codes) == (DeviceHealth.FAULTY, Severity.MINOR, ("80C98002",))
    assert report.detail == "node type=0x64, sensor type=0xc0, event state=0x2"
    assert len(bench.probe.utilisation(10)) == 2
    assert bench.calls == []


@pytest.mark.parametrize("layout", ["a2", "a3", "310p", "950"])
def test_library_and_tool_see_the_same(make: Make, layout: str) -> None:
    bench = make(layout=layout, chips=4, FTSLURM_NPU_SIM_CARDS="1,3" if layout == "a3" else "1,3,6,7")
    bench.sim("inject", "--device", "3.0", "--code", "80E01801")
    bench.sim("inject", "--device", "3.0", "--code", "8C084E00")
    bench.sim("load", "--device", "1.0", "--percent", "61")
    bench.sim("process", "--device", "1.0", "--pid", "77", "--mb", "9000")
    told = [
        [(r.device, r.health, r.severity, r.codes) for r in probe.read(10).reports]
        for probe in (bench.probe, bench.by_tool_alone())
    ]
    if layout == "950":  # the library alone tells the severity of each code, and so reports them apart
        told = [sorted((device, code) for device, *_, codes in each for code in codes or ("",)) for each in told]
    assert told[0] == told[1]
    assert len({device for device, *_ in told[0]}) == 4
    uses = [{use.device: use for use in probe.utilisation(10)} for probe in (bench.probe, bench.by_tool_alone())]
    assert uses[0].keys() == uses[1].keys()
    assert [use["1.0"].percent for use in uses] == [61, 61]
    shares = [use["1.0"].memory_percent for use in uses]
    assert None not in shares
    assert abs(shares[0] - shares[1]) < 1  # type: ignore[operator]
    powers = [use["1.0"].power_w for use in uses]
    assert powers == [None, None] if layout == "310p" else None not in powers


def test_codes_of_different_severity_are_reported_apart(make: Make) -> None:
    bench = make(layout="950")
    bench.sim("inject", "--device", "1.0", "--code", "80E01801", "--severity", "critical")
    bench.sim("inject", "--device", "1.0", "--code", "81078603", "--severity", "minor")
    bench.sim("inject", "--device", "1.0", "--code", "80E18006", "--severity", "hint")
    apart = [(r.severity, r.codes) for r in bench.all_reports() if r.device == "1.0"]
    assert apart == [(Severity.CRITICAL, ("80E01801",)), (Severity.MINOR, ("81078603",)), (Severity.HINT, ("80E18006",))]


def test_a_hint_does_not_make_a_chip_faulty(make: Make) -> None:
    bench = make()
    bench.sim("inject", "--device", "0.0", "--code", "80E18006", "--severity", "hint")
    report = bench.reports()["0.0"]
    assert (report.health, report.codes) == (DeviceHealth.GOOD, ("80E18006",))


# ---- events between two looks


def test_what_is_over_at_once_is_shown_once(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("event", "--device", "1.0", "--code", "80CB8002", "--severity", "major")
    time.sleep(HEARD_S)
    report = bench.reports()["1.0"]
    assert (report.health, report.severity, report.codes) == (DeviceHealth.FAULTY, Severity.MAJOR, ("80CB8002",))
    assert "80CB8002 came and went" in report.detail
    assert bench.reports()["1.0"].health is DeviceHealth.GOOD


def test_what_comes_and_goes_between_two_looks_is_shown_once(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("inject", "--device", "0.0", "--code", "80E01801", "--heals-after", "0.05")
    time.sleep(HEARD_S)
    assert bench.reports()["0.0"].codes == ("80E01801",)
    assert bench.reports()["0.0"].codes == ()


def test_what_stays_is_shown_as_it_is_and_no_more_once_it_has_gone(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("inject", "--device", "0.0", "--code", "80E01801", "--heals-after", "0.8")
    time.sleep(HEARD_S)
    assert bench.reports()["0.0"].detail.startswith("node type=")
    time.sleep(0.8)
    assert bench.reports()["0.0"].health is DeviceHealth.GOOD


def test_of_the_time_before_it_listened_a_probe_tells_nothing(make: Make) -> None:
    bench = make()
    bench.sim("event", "--device", "1.0", "--code", "80CB8002")
    time.sleep(HEARD_S)
    assert {report.health for report in bench.all_reports()} == {DeviceHealth.GOOD}


def test_a_passing_hint_is_told_of_a_good_chip(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("event", "--device", "1.0", "--code", "8C2FA009", "--severity", "hint")
    time.sleep(HEARD_S)
    report = bench.reports()["1.0"]
    assert (report.health, report.codes) == (DeviceHealth.GOOD, ("8C2FA009",))


def test_events_of_an_a3_name_the_right_die(make: Make) -> None:
    bench = make(layout="a3", FTSLURM_NPU_SIM_CARDS="2,5")
    bench.reports()
    bench.sim("event", "--device", "5.1", "--code", "80CB8002")
    time.sleep(HEARD_S)
    assert [r.device for r in bench.all_reports() if r.codes] == ["5.1"]


def test_events_wait_for_a_look_that_succeeds(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("event", "--device", "0.0", "--code", "80CB8002")
    time.sleep(HEARD_S)
    bench.sim("dcmi", "fail")
    bench.sim("tool", "fail")
    assert bench.probe.read(5).error
    bench.sim("tool", "ok")
    assert bench.reports()["0.0"].codes == ("80CB8002",)


def test_a_driver_without_events_still_tells_codes(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    bench = make()
    bench.sim("dcmi", "deaf")
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    assert [bench.reports()["0.0"].codes for _ in range(2)] == [("80E01801",)] * 2
    assert [record.message for record in caplog.records if "no events" in record.message] == [
        "no events from libdcmi.so, faults that come and go between two looks are not seen: "
        "dcmi_subscribe_fault_event failed: -8255, not supported here"
    ]


# ---- a library that is sick


def test_a_hanging_library_costs_half_the_time_and_the_tool_answers(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("dcmi", "hang")
    began = time.monotonic()
    answer = bench.probe.read(8)
    assert time.monotonic() - began < 8 * slowness()
    assert len(answer.reports) == 2
    began = time.monotonic()
    assert len(bench.probe.read(8).reports) == 2
    assert time.monotonic() - began < 3.5 * slowness()  # it is left alone for a while


def test_library_and_tool_both_hanging_say_so_each_time(make: Make) -> None:
    bench = make()
    bench.sim("dcmi", "hang")
    bench.sim("tool", "hang")
    for _ in range(2):
        error = bench.probe.read(1.5).error
        assert "`npu-smi info` gave no answer" in error
        assert "libdcmi.so" in error


def test_a_library_that_crashes_takes_nobody_with_it(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("dcmi", "crash")
    assert [report.health for report in bench.all_reports()] == [DeviceHealth.GOOD] * 2
    assert ("npu-smi", "info") in bench.calls


def test_devices_that_somebody_else_holds_are_an_error_in_words(make: Make) -> None:
    bench = make()
    bench.sim("dcmi", "occupied")
    bench.sim("tool", "occupied")
    error = bench.probe.read(5).error
    assert "ret is -8020 (in use by another process or container)" in error
    assert "libdcmi.so: dcmi_init failed: -8020, in use by another process or container" in error


@pytest.mark.parametrize("content", [None, b"no library\n"])
def test_without_a_library_that_can_be_loaded_the_tool_is_asked(make: Make, content: bytes | None) -> None:
    bench = make()
    library = Path(bench.env["FTSLURM_DCMI"])
    library.unlink()
    if content is not None:
        library.write_bytes(content)
    assert len(bench.reports()) == 2
    assert ("npu-smi", "info") in bench.calls


def test_a_library_without_the_tool_is_enough_to_look(make: Make) -> None:
    bench = make()
    bench.env["PATH"] = "/nowhere"
    probe = AscendProbe(run, bench.env)
    assert probe.present()
    assert len(probe.read(10).reports) == 2
    probe.close()


def test_a_library_that_failed_is_tried_again_later(make: Make) -> None:
    bench = make()
    now = [0.0]
    driver = Driver(bench.env, lambda: now[0])
    bench.sim("dcmi", "fail")
    with pytest.raises(NoAnswer, match="dcmi_init failed: -8005, inner error of the driver"):
        driver.look(now[0] + 5)
    bench.sim("dcmi", "ok")
    assert not driver.usable()
    now[0] += TRY_AGAIN_S
    assert driver.usable()
    assert len(driver.look(now[0] + 5)) == 2
    driver.close()


@pytest.mark.parametrize(
    "nonsense",
    [{}, {"chips": None}, {"chips": [{}]}, {"chips": [{"place": [0], "health": 0}]}, {"chips": [{"place": "ab", "health": 0}]}],
)
def test_nonsense_from_the_child_is_no_answer(monkeypatch: pytest.MonkeyPatch, nonsense: dict[str, object]) -> None:
    driver = Driver({"FTSLURM_DCMI": "/some/where.so"}, time.monotonic)
    monkeypatch.setattr(LibraryChild, "ask", lambda *_: nonsense)
    for ask in (driver.look, driver.utilisation):
        with pytest.raises(NoAnswer, match="unreadable"):
            ask(time.monotonic() + 5)


@pytest.mark.parametrize(
    ("told", "health", "words"),
    [
        ({"health": -1}, DeviceHealth.UNKNOWN, "knows no such chip"),
        ({"health": 7}, DeviceHealth.UNKNOWN, "calls its health 7"),
        ({"health": None, "why": "gone"}, DeviceHealth.UNKNOWN, "gone"),
        ({"health": 0, "why": "codes fail"}, DeviceHealth.GOOD, "codes fail"),
        ({"health": 3, "why": "codes fail"}, DeviceHealth.FAULTY, "codes fail"),
    ],
)
def test_only_a_health_of_0_is_well(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, object], health: DeviceHealth, words: str
) -> None:
    driver = Driver({"FTSLURM_DCMI": "/some/where.so"}, time.monotonic)
    well = {"place": [9, 0], "health": 0, "why": "", "codes": [], "words": [], "faults": []}
    monkeypatch.setattr(LibraryChild, "ask", lambda *_: {"chips": [{**well, "place": [0, 0], **told}, well]})
    chip, _ = driver.look(time.monotonic() + 5)
    assert chip.health is health
    assert words in chip.detail


def test_when_no_chip_answers_the_library_is_taken_for_sick(make: Make) -> None:
    bench = make()
    bench.reports()
    for device in ("0.0", "1.0"):
        bench.sim("lose-chip", "--device", device)
    assert "nothing that makes sense" in bench.probe.read(10).error


# ---- healing


def test_a_chip_is_healed_when_it_is_booted_and_on_the_network(make: Make) -> None:
    bench = make(FTSLURM_NPU_SIM_BOOT_S="0.7", FTSLURM_NPU_SIM_NET_S="1.5")
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    began = time.monotonic()
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=8)
    assert result.healed is True
    assert result.how.startswith("healed by an in-band reset after")
    assert "not asked" not in result.how
    assert time.monotonic() - began > 1.5
    assert all(report.health is DeviceHealth.GOOD and not report.codes for report in bench.all_reports())


@pytest.mark.parametrize(("variable", "words"), [("BOOT", "boot status of 0.0 is 2"), ("NET", "network health of 0.0 is 3")])
def test_a_chip_that_does_not_come_into_service_is_not_healed(make: Make, variable: str, words: str) -> None:
    bench = make(**{f"FTSLURM_NPU_SIM_{variable}_S": "60"})
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=1.5)
    assert result.healed is False
    assert words in result.how


def test_a_port_that_was_down_before_is_not_waited_for(make: Make) -> None:
    bench = make()
    for device, health in (("0.0", "3"), ("1.0", "8")):
        bench.sim("network", "--device", device, "--health", health)
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=5)
    assert result.healed is True
    assert result.how.endswith("(not asked: network health)")


def test_a_reset_on_linked_servers_waits_for_all_chips_to_be_idle(make: Make) -> None:
    bench = make()
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    bench.sim("process", "--device", "1.0", "--pid", "4242")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=0.5)
    assert (result.healed, result.how) == (False, "not reset: process 4242 is still on 1.0")


def test_a_card_that_stands_alone_is_reset_beside_busy_ones(make: Make) -> None:
    bench = make(layout="310p")
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    bench.sim("process", "--device", "1.0", "--pid", "4242")
    assert bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=5).healed is True
    # By the tool's text alone nobody knows how the cards are linked.
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    probe = bench.by_tool_alone()
    assert "4242" in probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=0.5).how


def test_a_950_is_reset_without_a_chip(make: Make) -> None:
    bench = make(layout="950")
    bench.sim("inject", "--device", "1.0", "--code", "80E01801")
    assert bench.probe.heal("1.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=5).healed is True
    assert [call for call in bench.calls if "reset" in call] == [("npu-smi", "set", "-t", "reset", "-i", "1", "-m", "1")]


def test_a_chip_lost_in_a_reset_is_a_failed_healing(make: Make) -> None:
    bench = make()
    bench.sim("inject", "--device", "0.0", "--code", "80E01801", "--reset", "loses")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=1.5)
    assert result.healed is False
    assert "0.0" in result.how
    assert "1 of 2 chips" in result.how


def test_what_a_reset_itself_raises_is_no_news(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    bench.sim("inject", "--device", "1.0", "--code", "80E18008")
    time.sleep(HEARD_S)
    assert bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=5).healed is True
    time.sleep(HEARD_S)
    assert all(report.health is DeviceHealth.GOOD and not report.codes for report in bench.all_reports())


def test_an_event_is_healed_by_being_over(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("event", "--device", "0.0", "--code", "80CB8002")
    time.sleep(HEARD_S)
    assert bench.reports()["0.0"].codes == ("80CB8002",)
    result = bench.probe.heal("0.0", ("80CB8002",), may_reset=True, wait_s=1, reset_wait_s=5)
    assert (result.healed, result.how) == (True, "healed by itself after 0 s")


def test_an_event_of_another_chip_outlives_a_healing(make: Make) -> None:
    bench = make()
    bench.reports()
    bench.sim("inject", "--device", "0.0", "--code", "80E01801", "--heals-after", "0.5")
    bench.sim("event", "--device", "1.0", "--code", "80CB8002")
    time.sleep(HEARD_S)
    assert bench.probe.heal("0.0", ("80E01801",), may_reset=False, wait_s=5, reset_wait_s=0).healed is True
    assert [(r.device, r.codes) for r in bench.all_reports() if r.codes] == [("1.0", ("80CB8002",))]

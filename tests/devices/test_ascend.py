"""The Ascend probe by npu-smi alone: against the stand-in as a real process, and against tools that are sick."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ftslurm.devices.ascend.npu_smi import parse_health, parse_info, parse_processes
from ftslurm.devices.ascend.probe import AscendProbe
from ftslurm.errors import CommandMissing
from ftslurm.model.devices import DeviceHealth, Severity, Utilisation
from ftslurm.system.commands import CommandResult, run
from tests.devices.ascend_bench import HUNG, Bench, Script, recorded


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# ---- the stand-in keeps to what the true tool prints


@pytest.mark.parametrize(
    ("layout", "devices"),
    [
        ("a2", ["0.0", "1.0", "2.0", "3.0"]),
        ("a3", ["0.0", "0.1", "1.0", "1.1"]),
        ("310p", ["0.0", "1.0", "2.0", "3.0"]),
        ("950", ["0.0", "1.0", "2.0", "3.0"]),
    ],
)
def test_the_stand_in_says_what_was_injected(tmp_path: Path, layout: str, devices: list[str]) -> None:
    bench = Bench(tmp_path, layout, chips=4)
    sick = devices[1]
    bench.sim("inject", "--device", sick, "--code", "80e01801")
    bench.sim("inject", "--device", sick, "--code", "8C084E00")
    bench.sim("process", "--device", sick, "--pid", "4242")
    text = bench.tool("info")
    table = parse_info(text)
    assert [(row.device, row.health) for row in table.chips] == [
        (device, "Critical" if device == sick else "OK") for device in devices
    ]
    assert table.unread == 0
    processes = parse_processes(text)
    assert [(f"{row.card}.{row.chip}", row.pid) for row in processes.rows] == [(sick, 4242)]
    assert processes.covers({row.card for row in table.chips})
    card, chip = sick.split(".")
    of_chip = ("-i", card) if layout == "950" else ("-i", card, "-c", chip)
    block = parse_health(bench.tool("info", "-t", "health", *of_chip))
    assert block is not None and (block.word, block.codes, len(block.information)) == ("Critical", ("80E01801", "8C084E00"), 2)


def test_the_stand_in_without_a_folder_is_a_node_without_driver(bench: Bench) -> None:
    del bench.env["FTSLURM_NPU_SIM"]
    result = run(("npu-smi", "info"), 10, env=bench.env)
    assert (result.status, result.stdout) == (187, "dcmi module initialize failed. ret is -8005\n")


def test_the_stand_in_can_be_made_another_machine(bench: Bench) -> None:
    bench.sim("clear", "--layout", "a3", "--cards", "2,5")
    assert list(bench.reports()) == ["2.0", "2.1", "5.0", "5.1"]
    bench.sim("clear", "--layout", "310p", "--chips", "3")
    assert [report for report in AscendProbe(run, bench.env).read(5).reports if report.device == "2.0"]


def test_the_stand_in_resets_only_on_both_yeses(bench: Bench) -> None:
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    reset = ("set", "-t", "reset", "-i", "0", "-c", "0", "-m", "1")
    assert "User aborts reset server by inband." in bench.tool(*reset, stdin="Y\n")
    assert bench.reports()["0.0"].health is DeviceHealth.FAULTY
    assert "Reset server successfully." in bench.tool(*reset, stdin="Y\ny\n")
    assert bench.reports()["0.0"].health is DeviceHealth.GOOD


def test_a_fault_of_the_stand_in_comes_back_as_often_as_told(bench: Bench) -> None:
    bench.sim("inject", "--device", "0.0", "--code", "8C084E00", "--times", "2", "--again-after", "0")
    reset = ("set", "-t", "reset", "-i", "0", "-c", "0", "-m", "1")
    healths = [bench.reports()["0.0"].health]
    for _ in range(2):
        bench.tool(*reset, stdin="Y\nY\n")
        healths.append(bench.reports()["0.0"].health)
    assert healths == [DeviceHealth.FAULTY, DeviceHealth.FAULTY, DeviceHealth.GOOD]


# ---- reading


def test_a_healthy_node_costs_one_call(bench: Bench) -> None:
    assert {device: report.health for device, report in bench.reports().items()} == {
        "0.0": DeviceHealth.GOOD,
        "1.0": DeviceHealth.GOOD,
    }
    assert bench.calls == [("npu-smi", "info")]


def test_codes_are_asked_of_sick_chips_only(bench: Bench) -> None:
    bench.sim("inject", "--device", "1.0", "--code", "80C98002")
    report = bench.reports()["1.0"]
    assert (report.kind, report.health, report.severity) == ("ascend", DeviceHealth.FAULTY, Severity.MINOR)
    assert report.codes == ("80C98002",)
    assert report.detail.startswith("node type=AI Core")
    chip = ("-i", "1", "-c", "0")
    assert bench.calls == [("npu-smi", "info"), ("npu-smi", "info", "-t", "health", *chip)]


def test_a_lost_chip_is_unknown_and_not_passed_over(bench: Bench) -> None:
    bench.reports()
    bench.sim("lose-chip", "--device", "1.0")
    report = bench.reports()["1.0"]
    assert report.health is DeviceHealth.UNKNOWN
    assert report.detail == "not listed by npu-smi info any more: 1 of 2 chips are"
    bench.sim("clear")
    assert bench.reports()["1.0"].health is DeviceHealth.GOOD


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("error-inner", 187, "failed with status 187: dcmi module initialize failed. ret is -8005 (inner error of the driver)"),
        ("error-occupied", 172, "ret is -8020 (in use by another process or container)"),
        ("error-board", 211, "npu get board type failed. ret is -9005"),
        ("error-vm", 0, "nothing that makes sense, beginning with: This command cannot be executed on a VM or container."),
        ("error-no-driver", 127, "error while loading shared libraries: libdrvdsmi_host.so"),
    ],
)
def test_what_the_tool_says_instead_is_the_error(name: str, status: int, words: str) -> None:
    out, err = ("", recorded(name)) if status == 127 else (recorded(name), "")
    answer = Script(lambda *_: CommandResult(("npu-smi", "info"), status, out, err)).probe.read(5)
    assert answer.reports == ()
    assert words in answer.error


@pytest.mark.parametrize(
    ("mood", "words"),
    [("fail", "ret is -8005"), ("garble", "nothing that makes sense"), ("occupied", "in use by another process")],
)
def test_a_sick_tool_is_an_error_and_no_report(bench: Bench, mood: str, words: str) -> None:
    bench.sim("tool", mood)
    answer = bench.probe.read(10)
    assert answer.reports == ()
    assert words in answer.error


def test_a_hanging_tool_is_left_alone_in_time(bench: Bench) -> None:
    bench.sim("tool", "hang")
    answer = bench.probe.read(0.5)
    assert answer.reports == ()
    assert "gave no answer within" in answer.error


def test_a_missing_tool_is_not_present_and_an_error(tmp_path: Path) -> None:
    probe = AscendProbe(run, {"PATH": str(tmp_path), "FTSLURM_DCMI": "off"})
    assert not probe.present()
    assert "cannot be run" in probe.read(5).error
    assert probe.heal("0.0", ("80E01801",), True, 0, 0).healed is None


def test_the_stand_in_is_present(bench: Bench) -> None:
    assert bench.probe.present()
    assert not AscendProbe(run, {"FTSLURM_DCMI": "off"}).present()


def test_a_tool_that_is_no_program_is_an_error(tmp_path: Path) -> None:
    tool = tmp_path / "npu-smi"
    tool.write_text("no program\n")
    tool.chmod(0o755)
    assert "cannot be run" in AscendProbe(run, {"PATH": str(tmp_path), "FTSLURM_DCMI": "off"}).read(5).error


def test_the_runners_own_errors_are_the_answers_error() -> None:
    def missing(*_: object) -> str:
        raise CommandMissing("`npu-smi` cannot be run: gone")

    assert Script(missing).probe.read(5).error == "`npu-smi` cannot be run: gone"


def test_a_chip_that_recovers_between_two_calls_is_good() -> None:
    script = Script(lambda args, _: recorded("health-ok") if "health" in args else recorded("info-a2-other-branch"))
    (report,) = script.probe.read(5).reports
    assert (report.health, report.codes) == (DeviceHealth.GOOD, ())


def test_a_chip_whose_codes_cannot_be_read_stays_faulty() -> None:
    script = Script(lambda args, _: HUNG if "health" in args else recorded("info-a2-other-branch"))
    (report,) = script.probe.read(5).reports
    assert (report.health, report.severity, report.codes) == (DeviceHealth.FAULTY, Severity.MINOR, ())
    assert "its codes cannot be read" in report.detail


def test_a_chip_listed_as_unknown_is_unknown_and_not_asked() -> None:
    script = Script(lambda args, _: recorded("health-three-codes") if "health" in args else recorded("info-a2"))
    reports = {report.device: report for report in script.probe.read(5).reports}
    assert reports["6.0"].health is DeviceHealth.UNKNOWN
    assert reports["5.0"].codes == ("A4025021", "8C03A000", "80E01801")
    asked = {argv[argv.index("-i") + 1] for argv, _ in script.calls if "-i" in argv}
    assert asked == {"5"}


def test_the_950_is_asked_without_a_chip() -> None:
    health = recorded("health-950").replace(": 0\n", ": 6\n")
    script = Script(lambda args, _: health if "health" in args else recorded("info-950"))
    reports = {report.device: report for report in script.probe.read(5).reports}
    assert reports["6.0"].codes == ("81078603", "0000123A")
    assert script.calls[1][0] == ("npu-smi", "info", "-t", "health", "-i", "6")


def test_a_spoiled_first_look_is_no_look() -> None:
    script = Script(lambda *_: recorded("info-a2-broken-chip"))
    assert script.probe.read(5).error == "`npu-smi info` printed 1 rows that make no sense"


def test_after_a_good_look_a_spoiled_one_still_tells_of_the_rest() -> None:
    good = recorded("info-a2-broken-chip").replace(
        "| 0                         | 0000:C2", "| 1     910B3  | OK | 90.0 40 0 / 0 |\n| 0     | 0000:C2"
    )
    script = Script(lambda _, now: good if now == 0 else recorded("info-a2-broken-chip"))
    assert [report.health for report in script.probe.read(5).reports] == [DeviceHealth.GOOD] * 3
    script.now = 1
    healths = {report.device: report.health for report in script.probe.read(5).reports}
    assert healths == {"0.0": DeviceHealth.GOOD, "2.0": DeviceHealth.GOOD, "1.0": DeviceHealth.UNKNOWN}


def test_many_hanging_questions_do_not_outlast_the_time_given() -> None:
    script = Script(lambda args, _: HUNG if "health" in args else recorded("info-a2").replace("OK     ", "Alarm  "))
    script.probe.read(5)
    assert script.now <= 5


# ---- use


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("info-a2", [("2.0", 0, 4.8, 93.6), ("5.0", 87, 90.6, None), ("6.0", None, None, None)]),
        ("info-a3", [("0.0", 0, 71.0, 166.9), ("0.1", 12, 70.3, None), ("7.0", 0, 4.8, 162.1), ("7.1", 0, 4.4, None)]),
        ("info-310p-duo", [("2.0", 37, 3.8, None), ("2.1", 0, 3.1, None)]),
        ("info-950", [("0.0", 0, 7.7, 380.7), ("6.0", 100, 79.0, 205.7)]),
        ("info-a2-mixed", [
            ("0.0", 0, None, 102.4), ("3.0", 100, 90.6, 99.9), ("12.0", None, None, None), ("13.0", 3, 4.8, 91.0), ("14.0", 3, 4.8, 91.0),
        ]),
        ("error-inner", []),
    ],
)  # fmt: skip
def test_use_of_each_chip_in_one_call(name: str, uses: list[tuple[str, float | None, float | None, float | None]]) -> None:
    script = Script(lambda *_: recorded(name))
    told = script.probe.utilisation(5)
    rounded = [(use.device, use.percent, use.memory_percent and round(use.memory_percent, 1), use.power_w) for use in told]
    assert rounded == uses
    assert all(isinstance(use, Utilisation) and use.kind == "ascend" for use in told)
    assert len(script.calls) == 1


# ---- healing


def test_a_fault_that_heals_by_itself_is_waited_for(bench: Bench) -> None:
    bench.sim("inject", "--device", "0.0", "--code", "80E01801", "--heals-after", "1")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=False, wait_s=10, reset_wait_s=0)
    assert result.healed is True
    assert result.how.startswith("healed by itself after")


def test_a_fault_that_stays_is_not_healed_by_waiting(bench: Bench) -> None:
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=False, wait_s=0.2, reset_wait_s=10)
    assert (result.healed, result.how) == (False, "after 0.2 s: 0.0 is faulty (critical), 80E01801")
    assert not any("reset" in call for call in bench.calls)


@pytest.mark.parametrize("layout", ["a2", "a3"])
def test_a_reset_heals_what_waiting_does_not(tmp_path: Path, layout: str) -> None:
    bench = Bench(tmp_path, layout)
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=5)
    assert result.healed is True
    assert result.how.startswith("healed by an in-band reset after")
    assert result.how.endswith("(not asked: boot status, network health)")
    assert bench.reports()["0.0"].health is DeviceHealth.GOOD


def test_a_reset_that_fails_in_band_is_tried_through_the_bmc(bench: Bench) -> None:
    bench.sim("inject", "--device", "0.0", "--code", "80E01801", "--reset", "fail,ok")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=5)
    assert result.healed is True
    assert result.how.startswith("healed by an out-of-band reset")
    resets = [call for call in bench.calls if "reset" in call]
    assert [call[-2:] for call in resets] == [("-m", "1"), ("-c", "0")]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("refused", "reset refused: This command can be executed only by the root user."),
        ("fail", "reset failed: Failed to reset server; without -m 1: Failed to reset server"),
        ("keeps", "in-band reset done, but after"),
        ("loses", "in-band reset done, but after"),
    ],
)
def test_a_reset_that_does_not_help_says_so_in_the_tools_words(bench: Bench, how: str, words: str) -> None:
    bench.sim("inject", "--device", "0.0", "--code", "80E01801", "--reset", how)
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=1)
    assert result.healed is False
    assert result.how.startswith(words)


def test_a_reset_that_takes_too_long_is_not_known(bench: Bench) -> None:
    bench.sim("inject", "--device", "0.0", "--code", "80E01801", "--reset", "slow:30")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=1)
    assert result.healed is None
    assert "gave no answer within" in result.how


def test_no_reset_under_a_process_on_any_chip_of_the_node(bench: Bench) -> None:
    bench.sim("inject", "--device", "0.0", "--code", "80E01801")
    bench.sim("process", "--device", "1.0", "--pid", "4242", "--name", "train")
    result = bench.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=0.5)
    assert (result.healed, result.how) == (False, "not reset: process 4242 (train) is still on 1.0")
    assert not any("reset" in call for call in bench.calls)


def test_no_reset_without_a_process_table() -> None:
    table = recorded("info-a2-other-branch").split("| NPU     Chip")[0]
    script = Script(lambda args, _: recorded("health-three-codes") if "health" in args else table)
    result = script.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=1, reset_wait_s=60)
    assert (result.healed, result.how) == (False, "not reset: npu-smi does not tell which processes use the chips")
    assert not any("reset" in argv for argv, _ in script.calls)


def test_no_reset_for_a_chip_that_was_never_seen(bench: Bench) -> None:
    result = bench.probe.heal("9.9; rm", (), may_reset=True, wait_s=0, reset_wait_s=5)
    assert (result.healed, result.how) == (False, "not reset: 9.9; rm: there is no chip 9.9; rm to be seen")
    assert not any("reset" in call for call in bench.calls)


def test_a_silent_tool_leaves_the_healing_unknown() -> None:
    script = Script(lambda *_: HUNG)
    result = script.probe.heal("0.0", ("80E01801",), may_reset=True, wait_s=15, reset_wait_s=150)
    assert result.healed is None
    assert script.now <= 15 + 150


def test_only_the_codes_asked_for_have_to_go() -> None:
    script = Script(lambda args, _: recorded("health-three-codes") if "health" in args else recorded("info-a2"))
    assert script.probe.heal("5.0", ("80C98002",), False, 0, 0).healed is True
    assert script.probe.heal("5.0", ("8C03A000",), False, 0, 0).healed is False
    assert script.probe.heal("5.0", (), False, 0, 0).healed is False


def test_a_chip_that_looks_well_but_does_not_tell_its_codes_is_not_called_healed() -> None:
    script = Script(lambda args, _: HUNG if "health" in args else recorded("info-a2"))
    result = script.probe.heal("2.0", ("80E01801",), may_reset=False, wait_s=15, reset_wait_s=0)
    assert result.healed is None


class Resetting:
    """A node whose chip 0.1 is sick until a reset; for a while after it `spoiled` is missing in the table."""

    def __init__(self, spoiled: str, for_s: float) -> None:
        self.spoiled, self.for_s = spoiled, for_s
        self.reset_at = math.inf

    def __call__(self, args: tuple[str, ...], now: float) -> str:
        if "reset" in args:
            self.reset_at = now
            return recorded("reset-ok-linked")
        if "health" in args:
            return recorded("health-three-codes" if now < self.reset_at else "health-ok")
        table = recorded("info-a3-idle")
        if now < self.reset_at:
            return table
        well = table.replace("Alarm", "OK   ")
        return well if now >= self.reset_at + self.for_s else well.replace(self.spoiled, "XX", 1)


@pytest.mark.parametrize("lost", ["| 7     Ascend910", "9F:00.0"])
def test_after_a_reset_every_chip_has_to_be_back(lost: str) -> None:
    script = Script(Resetting(lost, for_s=60))
    script.probe.read(5)
    result = script.probe.heal("0.1", ("80E01801",), may_reset=True, wait_s=15, reset_wait_s=150)
    assert result.healed is True
    assert 15 + 60 <= script.now <= 15 + 62
    assert ("npu-smi", "set", "-t", "reset", "-i", "0", "-c", "1", "-m", "1") in [argv for argv, _ in script.calls]
    assert [stdin for argv, stdin in script.calls if "reset" in argv] == ["Y\nY\n"]


def test_a_chip_that_does_not_come_back_is_a_failed_healing() -> None:
    script = Script(Resetting("| 7     Ascend910", for_s=math.inf))
    script.probe.read(5)
    result = script.probe.heal("0.1", ("80E01801",), may_reset=True, wait_s=15, reset_wait_s=150)
    assert result.healed is False
    assert "not listed by npu-smi info any more: 3 of 4 chips are" in result.how
    assert script.now <= 15 + 150 + 1


def test_a_tool_that_falls_silent_after_a_reset_leaves_the_healing_unknown() -> None:
    node = Resetting("nothing", for_s=0)
    script = Script(lambda args, now: HUNG if now > node.reset_at else node(args, now))
    result = script.probe.heal("0.1", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=150)
    assert result.healed is None
    assert result.how.startswith("in-band reset done, but after")


def test_after_a_reset_the_chip_is_left_alone_for_a_while() -> None:
    script = Script(Resetting("nothing", for_s=0))
    script.probe.heal("0.1", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=150)
    assert script.now == 15  # a tenth of the 150 s, the vendor's 20 s being more


# ---- somebody else is resetting


class OthersReset:
    """A node on which another user's reset ends `until`; what it heals is up to `heals`."""

    def __init__(self, until: float, heals: bool) -> None:
        self.until, self.heals = until, heals
        self.ours_at = math.inf

    def __call__(self, args: tuple[str, ...], now: float) -> str:
        if "reset" in args:
            if now < self.until:
                return recorded("reset-other-user")
            self.ours_at = now
            return recorded("reset-ok-linked")
        healed = now >= self.ours_at or (self.heals and now >= self.until)
        if "health" in args:
            return recorded("health-ok" if healed else "health-three-codes")
        table = recorded("info-a3-idle")
        return table.replace("Alarm", "OK   ") if healed else table


def test_another_users_reset_is_left_alone() -> None:
    script = Script(OthersReset(until=math.inf, heals=False))
    script.probe.read(5)
    result = script.probe.heal("0.1", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=60)
    assert result.healed is False
    assert result.how.startswith("reset refused: Another user is resetting the NPU(s).")
    assert sum("reset" in argv for argv, _ in script.calls) == 1  # nothing out of band, either


# ---- odd cards


def test_the_second_chip_of_a_duo_card_is_reset_by_its_first() -> None:
    table = recorded("info-310p-duo")
    busy = next(line for line in table.splitlines() if "1881" in line)
    idle = table.replace(busy, "| No running processes found in NPU 2 |")
    reset_at = [math.inf]

    def answer(args: tuple[str, ...], now: float) -> str:
        if "reset" in args and args[args.index("-c") + 1] == "1":
            return recorded("reset-second-chip")
        if "reset" in args:
            reset_at[0] = now
            return recorded("reset-ok")
        if "health" in args:
            return recorded("health-ok" if now >= reset_at[0] else "health-three-codes")
        return idle.replace("Critical", "OK      ") if now >= reset_at[0] else idle

    script = Script(answer)
    script.probe.read(5)
    result = script.probe.heal("2.1", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=30)
    assert result.healed is True
    assert [argv[5:8] for argv, _ in script.calls if "reset" in argv] == [("2", "-c", "1"), ("2", "-c", "0")]


def test_where_chips_are_split_among_users_a_reset_is_refused() -> None:
    node = OthersReset(until=0, heals=False)
    script = Script(lambda args, now: recorded("reset-vnpu") if "reset" in args else node(args, now))
    script.probe.read(5)
    result = script.probe.heal("0.1", ("80E01801",), may_reset=True, wait_s=0, reset_wait_s=30)
    assert result.healed is False
    assert result.how.startswith("reset refused: In the vNPU scenario")

"""npu-smi's text, read. The recorded texts follow the layouts of its driver branches, nasty ones included."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.devices.ascend.npu_smi import (
    ChipRow,
    HealthBlock,
    NpuResetAnswer,
    ProcessRow,
    ResetOutcome,
    health_of,
    parse_health,
    parse_info,
    parse_npu_reset,
    parse_processes,
    severity_of,
)
from ftslurm.model.devices import DeviceHealth, Severity

RECORDED = Path(__file__).parents[1] / "recorded" / "npu-smi"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


# ---- the main table


def test_a2_takes_the_card_from_the_first_row_and_knows_gaps_and_na() -> None:
    table = parse_info(recorded("info-a2"))
    assert table.chips == (
        ChipRow(2, 0, "OK", 93.6, 0, 100 * 3161 / 65536),
        ChipRow(5, 0, "Critical", None, 87, 100 * 59356 / 65536),
        ChipRow(6, 0, "UNKNOWN"),
    )
    assert (table.unread, table.has_chips) == (0, True)
    assert table.chips[1].device == "5.0"


def test_a3_has_two_dies_a_card() -> None:
    table = parse_info(recorded("info-a3"))
    assert [(row.device, row.health, row.power_w) for row in table.chips] == [
        ("0.0", "OK", 166.9),
        ("0.1", "Alarm", None),
        ("7.0", "OK", 162.1),
        ("7.1", "OK", None),
    ]
    assert table.unread == 0


@pytest.mark.parametrize(
    ("name", "devices", "has_chips"),
    [
        ("info-a2-other-branch", [("0.0", "Warning")], True),
        ("info-310p", [("6.0", "OK")], True),
        ("info-950", [("0.0", "OK"), ("6.0", "Alarm")], False),
    ],
)
def test_other_boxes_and_generations(name: str, devices: list[tuple[str, str]], has_chips: bool) -> None:
    table = parse_info(recorded(name))
    assert [(row.device, row.health) for row in table.chips] == devices
    assert (table.unread, table.has_chips) == (0, has_chips)


def test_a_table_of_many_moods() -> None:
    """Gaps in the ids, cells without blanks, words nobody knows, a bus id that is missing, negative numbers."""
    table = parse_info(recorded("info-a2-mixed"))
    assert table.unread == 0
    assert table.chips == (
        ChipRow(0, 0, "Alarm", 102.4, 0),
        ChipRow(3, 0, "Warning", 99.9, 100, 100 * 59356 / 65536),
        ChipRow(12, 0, "Resetting"),
        ChipRow(13, 0, "OK", 91.0, 3, 100 * 3161 / 65536),
        ChipRow(14, 0, "", 91.0, 3, 100 * 3161 / 65536),
    )
    assert [health_of(row.health).value for row in table.chips] == ["faulty", "faulty", "unknown", "good", "unknown"]
    processes = parse_processes(recorded("info-a2-mixed"))
    assert [row.pid for row in processes.rows] == [5523]
    assert processes.covers({0, 3, 12, 13, 14})


@pytest.mark.parametrize(
    ("name", "chips"),
    [
        ("info-310p-duo", [("2.0", "OK", 1685 / 44280), ("2.1", "Critical", 1373 / 43693)]),
        (
            "info-310",
            [("4.0", "OK", 2621 / 8192), ("4.1", "OK", 2621 / 8192), ("4.2", "Warning", 2621 / 8192), ("4.3", "OK", None)],
        ),
    ],
)
def test_inference_cards_with_several_chips(name: str, chips: list[tuple[str, str, float | None]]) -> None:
    table = parse_info(recorded(name))
    used = [None if row.memory_percent is None else row.memory_percent / 100 for row in table.chips]
    assert used == [None if share is None else pytest.approx(share) for _, _, share in chips]
    assert [(row.device, row.health) for row in table.chips] == [(device, health) for device, health, _ in chips]
    assert table.unread == 0


def test_a_card_that_only_the_process_table_knows_is_counted() -> None:
    lines = recorded("info-a2").splitlines()
    table = parse_info("\n".join([*lines[:9], *lines[12:]]))
    assert [row.device for row in table.chips] == ["2.0", "6.0"]
    assert table.unread == 1


def test_rows_of_two_chips_do_not_make_one() -> None:
    """The second row of card 2 and the first of card 5 are missing."""
    lines = recorded("info-a2").splitlines()
    table = parse_info("\n".join([*lines[:7], lines[8], *lines[10:14]]))
    assert [row.device for row in table.chips] == ["6.0"]
    assert table.unread == 2


def test_use_of_a_950_is_read_as_its_ai_core_use() -> None:
    assert [row.aicore_percent for row in parse_info(recorded("info-950")).chips] == [0, 100]


def test_a_chip_without_its_first_row_is_counted_not_invented() -> None:
    table = parse_info(recorded("info-a2-broken-chip"))
    assert [row.device for row in table.chips] == ["0.0", "2.0"]
    assert table.unread == 1


@pytest.mark.parametrize(
    "text",
    ["", "\n", "dcmi module initialize failed. ret is -8005\n", "| 0 | OK |", "| NPU   Name | Health |\n", "\x00\xff"],
)
def test_nothing_to_read_gives_no_chip(text: str) -> None:
    assert parse_info(text).chips == ()
    assert parse_processes(text).cards == frozenset()


def test_a_table_cut_in_the_middle_of_a_chip_counts_that_chip() -> None:
    text = recorded("info-a2")
    cut = text[: text.index("0000:C2")]
    table = parse_info(cut)
    assert [row.device for row in table.chips] == ["2.0"]
    assert table.unread > 0


def test_a_chip_printed_twice_is_read_once_and_counted() -> None:
    lines = recorded("info-a2").splitlines()
    table = parse_info("\n".join([*lines[:9], *lines[6:9]]))
    assert [row.device for row in table.chips] == ["2.0"]
    assert table.unread == 1


@pytest.mark.parametrize(
    ("word", "health", "severity"),
    [
        ("OK", DeviceHealth.GOOD, Severity.HINT),
        ("Warning", DeviceHealth.FAULTY, Severity.MINOR),
        ("Alarm", DeviceHealth.FAULTY, Severity.MAJOR),
        ("Critical ", DeviceHealth.FAULTY, Severity.CRITICAL),
        ("UNKNOWN", DeviceHealth.UNKNOWN, Severity.UNKNOWN),
        ("NA", DeviceHealth.UNKNOWN, Severity.UNKNOWN),
        ("", DeviceHealth.UNKNOWN, Severity.UNKNOWN),
        ("Okay", DeviceHealth.UNKNOWN, Severity.UNKNOWN),
        ("ok", DeviceHealth.UNKNOWN, Severity.UNKNOWN),
        ("O K", DeviceHealth.UNKNOWN, Severity.UNKNOWN),
    ],
)
def test_health_words(word: str, health: DeviceHealth, severity: Severity) -> None:
    assert (health_of(word), severity_of(word)) == (health, severity)


# ---- processes


def test_processes_with_and_without_a_name() -> None:
    table = parse_processes(recorded("info-a2"))
    assert table.rows == (ProcessRow(5, 0, 824166, "VLLMWorker_TP"), ProcessRow(5, 0, 824170, ""))
    assert table.idle_cards == {2, 6}
    assert table.covers({2, 5, 6})
    assert not table.covers({2, 5, 6, 7})


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("info-a3", [(0, 0, 1444272), (0, 1, 1444275)]),
        ("info-a2-other-branch", [(0, 0, 31337)]),
        ("info-950", [(6, 0, 395864)]),
        ("info-310p", []),
    ],
)
def test_process_tables_of_other_generations(name: str, rows: list[tuple[int, int, int]]) -> None:
    table = parse_processes(recorded(name))
    assert [(row.card, row.chip, row.pid) for row in table.rows] == rows
    assert table.covers({row.card for row in parse_info(recorded(name)).chips})


def test_an_unreadable_process_row_proves_nothing() -> None:
    table = parse_processes(recorded("info-a2").replace("824170", "8x4170"))
    assert table.unread == 1
    assert not table.covers({2})


def test_without_the_process_table_no_card_is_covered() -> None:
    assert not parse_processes(recorded("info-a2-broken-chip")).covers({0})


# ---- health


def test_health_without_a_fault() -> None:
    assert parse_health(recorded("health-ok")) == HealthBlock("OK")


def test_health_with_three_codes_and_words_on_further_lines() -> None:
    block = parse_health(recorded("health-three-codes"))
    assert block is not None
    assert block.word == "Critical"
    assert block.codes == ("A4025021", "8C03A000", "80E01801")
    assert [words.split(",")[0] for words in block.information] == ["node type=0x11", "node type=process manager"]


def test_health_of_a_950_and_codes_with_0x_or_without_leading_zeros() -> None:
    block = parse_health(recorded("health-950"))
    assert block is not None and (block.word, block.codes) == ("Warning", ("81078603", "0000123A"))


@pytest.mark.parametrize(
    "text", ["", "Invalid card id.\n", "Error Code : 80E01801\n", "Chip ID : 0\n", "Health : OK\nHealth : Alarm\n"]
)
def test_health_without_a_health_word_or_with_several_is_none(text: str) -> None:
    assert parse_health(text) is None


def test_health_whose_words_the_driver_does_not_have() -> None:
    block = parse_health(recorded("health-words-fail"))
    assert block is not None and block.codes == ("80E18008", "81338008", "40F84E00")


# ---- reset


@pytest.mark.parametrize(
    ("name", "outcome", "message"),
    [
        ("reset-ok", ResetOutcome.DONE, "Reset chip successfully."),
        ("reset-ok-linked", ResetOutcome.DONE, "Reset server successfully."),
        ("reset-fail", ResetOutcome.FAILED, "Failed to reset server"),
        (
            "reset-other-user",
            ResetOutcome.REFUSED,
            "Another user is resetting the NPU(s). Please try again later.; Failed to reset chip",
        ),
        ("reset-not-root", ResetOutcome.REFUSED, "This command can be executed only by the root user."),
        ("reset-vm", ResetOutcome.REFUSED, "This command cannot be executed on a VM or container."),
        ("reset-not-supported", ResetOutcome.FAILED, "This device does not support setting reset."),
        (
            "reset-no-bmc",
            ResetOutcome.FAILED,
            "Chip reset is not supported. Please check BMC version and IPMI driver.; "
            "Please reboot OS to reset chip if there is no BMC.; Failed to reset chip",
        ),
        ("reset-cut-off", ResetOutcome.UNKNOWN, ""),
        (
            "reset-vnpu",
            ResetOutcome.REFUSED,
            "In the vNPU scenario, this device does not support setting reset.",
        ),
        ("reset-second-chip", ResetOutcome.FAILED, "SMP mode only support reset chip 0."),
        (
            "reset-outband-dead",
            ResetOutcome.FAILED,
            "Failed to rescan chip 0.; Please reboot OS to reset card.; Failed to reset card",
        ),
        ("error-occupied", ResetOutcome.FAILED, recorded("error-occupied").strip()),
    ],
)
def test_reset_answers(name: str, outcome: ResetOutcome, message: str) -> None:
    assert parse_npu_reset(recorded(name)) == NpuResetAnswer(outcome, message)


def test_a_failure_without_words_still_says_something() -> None:
    assert parse_npu_reset("\tStatus                         : Fail\n") == NpuResetAnswer(ResetOutcome.FAILED, "Status: Fail")

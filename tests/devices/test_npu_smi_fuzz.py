"""npu-smi's text, hostile: nothing raises, nothing takes long, and nothing but `OK` is ever taken for well."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.devices.ascend.dcmi import with_code_words
from ftslurm.devices.ascend.npu_smi import HealthBlock, health_of, parse_health, parse_info, parse_npu_reset, parse_processes
from ftslurm.model.devices import DeviceHealth
from tests.devices.ascend_bench import RECORDED, Script, recorded

PARSERS = (parse_info, parse_processes, parse_health, parse_npu_reset, with_code_words)
FIXTURES = sorted(path.stem for path in RECORDED.glob("*.txt"))
TABLES = [name for name in FIXTURES if name.startswith("info-")]

PIECES = st.sampled_from(
    [
        "| NPU   Name | Health | Power(W) |\n",
        "| NPU ID | Name | Health | Power(W) |\n",
        "| Chip | Bus-Id | AICore(%) |\n",
        "| 0     910B3 | OK | 1.5 40 0 / 0 |\n",
        "| 0 | 0000:C1:00.0 | 0 0 / 0 1 / 2 |\n",
        "| NPU Chip | Process id | Process name | Process memory(MB) |\n",
        "| 0 0 | 1 | x | 2 |\n",
        "| No running processes found in NPU ",
        "Health Status : ",
        "Error Code : ",
        "Chip ID : ",
        "NPU ID : ",
        "Status : OK\n",
        "ret is -8020",
        "+===+\n",
        "OK",
        "Message : ",
        "|",
        "||",
        ":",
        " ",
        "\n",
        "9" * 5000,
        "٣",
        "²",
        "-1",
        "1.",
        "NA",
        "\x00",
        "\u2028",
    ]
)


def test_numbers_without_end_are_noise() -> None:
    # Python's int() refuses more than 4300 digits.
    text = recorded("info-a2").replace("5     910B3", "5" * 5000 + " 910B3").replace("824166", "8" * 5000)
    assert [row.device for row in parse_info(text).chips] == ["2.0", "6.0"]
    assert parse_processes(text).unread == 1
    assert parse_health(f"Chip ID : {'1' * 5000}\nHealth : OK\n") == HealthBlock("OK")


@given(st.lists(PIECES | st.text(max_size=12), max_size=40).map("".join))
def test_no_parser_raises_on_any_mixture(text: str) -> None:
    for parse in PARSERS:
        parse(text)


@st.composite
def damaged(draw: st.DrawFn, names: list[str]) -> str:
    """A recording with lines lost, swapped, doubled and cut, columns wider or narrower, and noise in it."""
    lines = recorded(draw(st.sampled_from(names))).splitlines()
    for _ in range(draw(st.integers(1, 6))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["drop", "swap", "double", "cut", "widen", "narrow", "noise", "end"])):
            case "drop":
                del lines[at]
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[at], lines[other] = lines[other], lines[at]
            case "double":
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case "cut":
                lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
            case "widen":
                lines[at] = lines[at].replace(" ", " " * draw(st.integers(2, 9)))
            case "narrow":
                lines[at] = re.sub(" +", draw(st.sampled_from([" ", ""])), lines[at])
            case "noise":
                start = draw(st.integers(0, len(lines[at])))
                end = draw(st.integers(start, len(lines[at])))
                lines[at] = lines[at][:start] + draw(st.text(max_size=12)) + lines[at][end:]
            case "end":
                del lines[at:]
    return "\n".join(lines)


def cells_that_say_ok(text: str) -> Iterator[str]:
    """The card of each line whose health cell is `OK`, found in another way than the parser does."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        for health, card in ((1, cells[0].split()[:1]), (2, [cells[0]])):
            if len(cells) > health and cells[health] == "OK" and card:
                yield card[0]


@given(damaged(FIXTURES))
def test_no_parser_raises_on_a_damaged_recording(text: str) -> None:
    for parse in PARSERS:
        parse(text)


@given(damaged(TABLES))
def test_a_chip_is_well_only_where_its_own_row_says_ok(text: str) -> None:
    well = {str(row.card) for row in parse_info(text).chips if health_of(row.health) is DeviceHealth.GOOD}
    assert {card.lstrip("0") or "0" for card in cells_that_say_ok(text)}.issuperset(well)


@given(st.text(max_size=300))
def test_a_health_word_other_than_ok_is_never_read_as_ok(noise: str) -> None:
    block = parse_health(f"Health Status : {noise}")
    assert block is None or health_of(block.word) is not DeviceHealth.GOOD or block.word == "OK"


@given(table=damaged(TABLES), health=damaged([name for name in FIXTURES if name.startswith(("health-", "error-"))]))
def test_the_probe_calls_no_chip_good_that_no_answer_calls_ok(table: str, health: str) -> None:
    script = Script(lambda args, _: health if "health" in args else table)
    answer = script.probe.read(5)
    assert bool(answer.reports) != bool(answer.error)
    says_ok = any(line.partition(":")[2].strip() == "OK" for line in health.splitlines())
    in_table = {card.lstrip("0") or "0" for card in cells_that_say_ok(table)}
    for report in answer.reports:
        if report.health is DeviceHealth.GOOD:
            assert report.device.split(".")[0] in in_table or says_ok


@given(first=damaged(TABLES), later=damaged(TABLES))
def test_the_probe_passes_over_no_chip_it_has_seen(first: str, later: str) -> None:
    script = Script(lambda args, now: recorded("health-ok") if "health" in args else first if now == 0 else later)
    seen = {report.device for report in script.probe.read(5).reports}
    script.now = 1
    answer = script.probe.read(5)
    assert answer.error or seen.issubset(report.device for report in answer.reports)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@pytest.mark.parametrize(
    "unit",
    ["\n", " ", "\t \n", "1 ", "9", "|", "| ", "|\n", "| 0 | ", "1/", "1 / ", ":", " : ", "a", "ret is ", "npu-smi x ",
     "Status", "Status \n", "Health : OK\n", "Error Code : 80E01801 ", "Chip ID : 1\n", "NPU ID ",
     "| NPU   Name | Health |\n", "| 0 910B | OK | 1 |\n", "do you want to continue", "Message : "],
)  # fmt: skip
def test_no_parser_takes_long(parse: object, unit: str) -> None:
    """A parser that is not linear would take hours over this."""
    head = recorded("info-a2").split("| 2     910B3")[0]
    for text in (unit * (200_000 // len(unit)), head + unit * (200_000 // len(unit)), "Error Code : " + unit * 20_000):
        began = time.process_time()
        parse(text)  # type: ignore[operator]
        assert time.process_time() - began < 5

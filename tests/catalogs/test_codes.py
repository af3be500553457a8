"""What fault codes mean: the shipped catalogue, codes it does not know, and catalogues that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.catalogs.code_files import build_catalog
from ftslurm.catalogs.codes import Catalog, Entry, normalise
from ftslurm.config.catalog_files import load_code_book
from ftslurm.errors import PolicyError
from ftslurm.model.devices import CLASS_OF, FaultClass, Remedy, Severity

CATALOG = load_code_book().catalogs["ascend"]
OTHER_PARTS = ("switch of the board", "host", "board", "other service", "network card")


def small(**changes: Any) -> dict[str, Any]:
    """The least catalogue that is right, with `changes`."""
    data: dict[str, Any] = {
        "schema_version": 1,
        "classes": {"RestartNPU": "reset_then_restart_else_replace", "SeparateNPU": "replace_node"},
        "by_severity": {"hint": "log", "minor": "restart_in_place", "major": "restart_in_place", "critical": "replace_node"},
        "user_induced": ["80E18008"],
        "layout": {"sides": {}, "black_box": {}, "nodes": {}, "sensors": {}, "events": {}},
        "codes": {"80E18008": {"class": "RestartNPU", "name": "HBM: multi-bit ECC"}},
    }
    return data | changes


def test_the_shipped_catalogue_is_whole() -> None:
    own = [e for e in CATALOG.entries.values() if not e.part.startswith(OTHER_PARTS) and (e.grade or e.remedy is Remedy.UNKNOWN)]
    assert len(own) == 826
    assert sum(1 for entry in own if not entry.grade) == 24
    assert len(CATALOG.entries) == 826 + 30 + 65 + 16 + 30 + 5 + 17  # switch, host, BMC, services, DPU, conditions
    assert {code for code, entry in CATALOG.entries.items() if entry.program} == {"80C98002", "80CB8002"}


def test_every_entry_has_a_name_a_remedy_and_a_source_that_is_explained() -> None:
    for code, entry in CATALOG.entries.items():
        meaning = CATALOG.meaning(code, Severity.MAJOR)
        assert entry.name and entry.sources and set(entry.sources) <= CATALOG.sources.keys(), code
        assert meaning.remedy is not Remedy.UNKNOWN and meaning.fault_class is CLASS_OF[meaning.remedy], code


@pytest.mark.parametrize(
    ("code", "fault_class", "user_induced"),
    [
        ("80E01801", FaultClass.SELF_HEALING, False),  # ModelArts' model case: heals although its severity is critical
        ("80C98002", FaultClass.SELF_HEALING, True),
        ("80CB8002", FaultClass.SELF_HEALING, True),
        ("80E18402", FaultClass.ISOLATE, False),  # isolated rows full
        ("8C084E00", FaultClass.SELF_HEALING, False),  # reset when idle
        ("80A18006", FaultClass.IGNORE, False),  # single-bit warnings
        ("81078605", FaultClass.IGNORE, False),  # sub-health
        ("110001024", FaultClass.AVOID, False),  # nine digits: made by a cluster service
        ("[0x00f103b0,155907,na,na]", FaultClass.ISOLATE, False),  # the board's switch
        ("2C000031", FaultClass.ISOLATE, False),  # the host, through the BMC
        ("00000003", FaultClass.AVOID, False),
        ("56000005", FaultClass.ISOLATE, False),  # an alarm of the BMC
        ("210001007", FaultClass.IGNORE, False),  # another service
        ("22000026", FaultClass.ISOLATE, False),  # a network card
        ("NT_NPU_ECC_COUNT", FaultClass.ISOLATE, False),  # ModelArts' word
        ("RestartAIProcess", FaultClass.SELF_HEALING, False),
    ],
)
def test_known_codes(code: str, fault_class: FaultClass, user_induced: bool) -> None:
    meaning = CATALOG.meaning(code, Severity.CRITICAL)
    assert (meaning.code, meaning.fault_class, meaning.user_induced) == (code.upper(), fault_class, user_induced)
    assert meaning.source.startswith("catalogue")


@pytest.mark.parametrize("written", ["0x80e01801", "80e01801", " 80E01801\n", "0X80E01801"])
def test_codes_are_found_however_they_are_written(written: str) -> None:
    assert CATALOG.meaning(written).code == "80E01801"


def test_normalise_gives_back_the_leading_zeros_the_tool_drops() -> None:
    assert normalise("0x1234") == "00001234"


@pytest.mark.parametrize(
    ("severity", "fault_class"),
    [
        (Severity.HINT, FaultClass.IGNORE),
        (Severity.MINOR, FaultClass.SELF_HEALING),
        (Severity.MAJOR, FaultClass.SELF_HEALING),
        (Severity.CRITICAL, FaultClass.ISOLATE),
        (Severity.UNKNOWN, FaultClass.UNKNOWN),
    ],
)
def test_a_code_not_in_the_list_is_graded_by_what_the_tool_showed(severity: Severity, fault_class: FaultClass) -> None:
    meaning = CATALOG.meaning("80E08099", severity)
    assert meaning.fault_class is fault_class
    assert meaning.source == f"severity: {severity.value}"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("80E1800D", "device HBM, hardware error: link error"),
        ("40E1800A", "host HBM, hardware error: service timeout"),
        ("80E18099", "device HBM, hardware error: event 153"),
        ("81FF8008", "device part 0xFF, hardware error: multi-bit ECC"),
        ("A4050001", "device black-box record, device OS"),
        ("A41E0001", "device black-box record, module 0x0F"),
        ("200009999", "event of another service"),
    ],
)
def test_a_code_not_in_the_list_is_named_from_its_bits(code: str, name: str) -> None:
    assert code not in CATALOG.entries
    assert CATALOG.meaning(code).name == name


def test_a_known_code_without_a_class_goes_by_its_own_severity_first() -> None:
    assert CATALOG.meaning("80C98005", Severity.CRITICAL).fault_class is FaultClass.SELF_HEALING  # its own is minor
    assert CATALOG.meaning("A8040001", Severity.CRITICAL).fault_class is FaultClass.ISOLATE  # none told, the tool's
    assert CATALOG.meaning("A8040001").name == "device kernel panic"


@pytest.mark.parametrize("text", ["", "NA", "no code", "0x", "80E0180199999"])
def test_what_is_no_code_is_unknown_however_bad_the_chip_looks(text: str) -> None:
    assert CATALOG.meaning(text, Severity.CRITICAL).fault_class is FaultClass.UNKNOWN


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("80E01801", (2, 86400.0)),
        ("0x80e18008", (2, 86400.0)),
        ("80E18005", (3, 86400.0)),
        ("81078603", (5, 86400.0)),
        ("80C98002", None),
        ("XID 79", None),
    ],
)
def test_how_often_is_too_often(code: str, limit: tuple[int, float] | None) -> None:
    assert CATALOG.limit_of(code) == limit


def test_the_rules_beside_the_table() -> None:
    assert sum(len(rule.codes) for rule in CATALOG.frequencies) == 43


@pytest.mark.parametrize(
    ("code", "part"),
    [("80E01801", "HBM"), ("80E08099", "HBM"), ("[0x08520003,na,L2,na]", "switch of the board"), ("A8040001", "blackbox")],
)
def test_the_part_is_read_from_the_bits_first(code: str, part: str) -> None:
    assert CATALOG.part_of(code) == part


def test_a_site_has_the_last_word() -> None:
    site = CATALOG.with_entries({"0x80e01801": Entry("", Remedy.REPLACE), "80E08099": Entry("our own", Remedy.LOG)})
    assert site.meaning("80E01801").fault_class is FaultClass.ISOLATE
    assert site.meaning("80E01801").name == CATALOG.meaning("80E01801").name
    assert site.meaning("80E08099", Severity.CRITICAL).fault_class is FaultClass.IGNORE
    assert site.meaning("80E08099").name == "our own"
    assert CATALOG.meaning("80E01801").fault_class is FaultClass.SELF_HEALING


def test_the_least_catalogue_is_right() -> None:
    assert build_catalog(small()).meaning("80E18008").fault_class is FaultClass.SELF_HEALING


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema_version": 2}, "`schema_version` is 2, it should be 1"),
        ({"classes": {"RestartNPU": "explode"}}, "`classes`: `RestartNPU` is 'explode', it should be 'log'"),
        ({"classes": ["RestartNPU"]}, "`classes` should be a table"),
        ({"by_severity": {"hint": "log"}}, "minor, major, critical"),
        ({"by_severity": {"awful": "log"}}, "`by_severity`: `awful` is 'awful', it should be 'hint', 'minor'"),
        ({"user_induced": "80C98002"}, "`user_induced` should be a list"),
        ({"user_induced": [80818200]}, "80818200: put it in quotes"),
        ({"user_induced": ["80C98002"]}, "`user_induced` names 80C98002, which no section lists"),
        ({"layout": {"sides": {}}}, "`layout`: `black_box` is missing"),
        ({"layout": small()["layout"] | {"nodes": {"HBM": "HBM"}}}, "`layout`, `nodes`: `HBM`"),
        ({"layout": small()["layout"] | {"events": {0xC0: 1}}}, "`layout`, `events`: `192` should be a table"),
        ({"codes": {"80E18008": {"class": "RestartNPU"}}}, "`codes`, `80E18008`: `name` is missing"),
        ({"codes": {"80E18008": {"class": "RestartNPU", "name": ""}}}, "`codes`, `80E18008`: `name` is empty"),
        ({"codes": {"80E18008": {"class": "Explode", "name": "x"}}}, "80E18008.*'Explode', it should be one of RestartNPU"),
        ({"codes": {"80E18008": {"class": ["RestartNPU"], "name": "x"}}}, "80E18008"),
        ({"codes": {"80E18008": {"name": "x", "sev_a2": "awful"}}}, "`80E18008`: `sev_a2` is 'awful', it should be 'hint'"),
        ({"codes": {"80E18008": {"name": "x", "clas": "RestartNPU"}}}, "there is no `clas` here; did you mean `class`"),
        ({"codes": {"80E18008": {"name": "x", "source": ["hearsay"]}}}, "80E18008.*`hearsay`, which the table `sources`"),
        ({"codes": {"80E18008": "RestartNPU"}}, "`80E18008` should be a table"),
        ({"codes": {80818200: {"name": "x"}}}, "80818200: put it in quotes"),
        ({"codes": {"HBM": {"name": "x"}}}, "`codes`: `HBM` is not a fault code"),
        ({"codes": {"80E18008": {"name": "x"}}, "node_codes": {"0x80e18008": {"name": "y"}}}, "another section"),
        ({"codes": None}, "`codes` should be a table"),
        (
            {"frequency_rules": [{"times": 2, "window_s": 0, "codes": [], "becomes": "RestartNPU", "source": ["x"]}]},
            "`window_s` is 0",
        ),
        ({"frequency_rules": [{"times": 2, "window_s": 1, "codes": [], "becomes": "Gone", "source": ["x"]}]}, "'Gone'"),
        ({"whatever": 1}, "there is no `whatever` here"),
    ],
)
def test_a_wrong_catalogue_is_refused_and_the_entry_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyError, match=named) as error:
        build_catalog(small(**changes))
    assert "\n" not in str(error.value) and str(error.value).startswith("ascend.yaml: ")


@given(st.none() | st.lists(st.integers()) | st.dictionaries(st.text(max_size=5), st.integers()))
def test_no_data_at_all_is_refused_like_wrong_data(data: Any) -> None:
    with pytest.raises(PolicyError):
        build_catalog(data)


@given(st.text(max_size=15) | st.text("[]0123456789ABCDEFXx,na", max_size=30), st.sampled_from(Severity))
def test_any_text_has_a_meaning(code: str, severity: Severity) -> None:
    assert CATALOG.meaning(code, severity).name


@given(st.integers(0, 2**32 - 1), st.sampled_from(Severity))
def test_every_event_code_has_a_name_and_only_severity_isolates_the_unknown(bits: int, severity: Severity) -> None:
    meaning = CATALOG.meaning(f"{bits:08X}", severity)
    assert meaning.name
    if meaning.code not in CATALOG.entries and severity is not Severity.CRITICAL:
        assert meaning.fault_class is not FaultClass.ISOLATE


def test_the_catalogue_value_has_no_way_to_the_disk() -> None:
    assert isinstance(build_catalog(small()), Catalog)

"""What fault codes mean: the shipped catalogue, codes it does not know, and catalogues that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import PolicyError
from ftslurm.model.devices import FaultClass, Severity
from ftslurm.policies.codes import AscendCatalog, build_catalog, normalise
from ftslurm.wrapper.catalogs import load_ascend_catalog

CATALOG = load_ascend_catalog()


def small(**changes: Any) -> dict[str, Any]:
    """The least catalogue that is right, with `changes`."""
    data: dict[str, Any] = {
        "schema_version": 1,
        "classes": {"RestartNPU": "self-healing", "SeparateNPU": "isolate"},
        "by_severity": {"hint": "ignore", "minor": "self-healing", "major": "self-healing", "critical": "isolate"},
        "user_induced": ["80C98002"],
        "layout": {"sides": {}, "black_box": {}, "nodes": {}, "sensors": {}, "events": {}},
        "codes": {"80E18008": {"class": "RestartNPU", "name": "HBM: multi-bit ECC"}},
    }
    return data | changes


def test_the_shipped_catalogue_is_whole() -> None:
    assert len(CATALOG.entries) == 826
    assert sum(1 for entry in CATALOG.entries.values() if not entry.handling) == 24
    assert CATALOG.user_induced == {"80C98002", "80CB8002"}
    assert all(entry.name for entry in CATALOG.entries.values())


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
    ],
)
def test_known_codes(code: str, fault_class: FaultClass, user_induced: bool) -> None:
    meaning = CATALOG.meaning(code, Severity.CRITICAL)
    assert (meaning.code, meaning.fault_class, meaning.user_induced) == (code, fault_class, user_induced)
    assert meaning.source.startswith("catalogue: ")


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


def test_a_site_has_the_last_word() -> None:
    site = CATALOG.with_classes({"0x80e01801": "SeparateNPU", "80E08099": "NotHandle"})
    assert site.meaning("80E01801").fault_class is FaultClass.ISOLATE
    assert site.meaning("80E01801").name == CATALOG.meaning("80E01801").name
    assert site.meaning("80E08099", Severity.CRITICAL).fault_class is FaultClass.IGNORE
    assert CATALOG.meaning("80E01801").fault_class is FaultClass.SELF_HEALING


def test_a_site_cannot_invent_a_class() -> None:
    with pytest.raises(PolicyError, match=r"80E01801.*Explode"):
        CATALOG.with_classes({"80E01801": "Explode"})


def test_the_least_catalogue_is_right() -> None:
    assert build_catalog(small()).meaning("80E18008").fault_class is FaultClass.SELF_HEALING


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"classes": {"RestartNPU": "explode"}}, "classes"),
        ({"classes": ["RestartNPU"]}, "classes"),
        ({"by_severity": {"hint": "ignore"}}, "minor, major, critical"),
        ({"by_severity": {"awful": "ignore"}}, "awful"),
        ({"user_induced": "80C98002"}, "user_induced"),
        ({"user_induced": [80818200]}, "80818200"),
        ({"layout": {"sides": {}}}, "layout"),
        ({"layout": small()["layout"] | {"nodes": {"HBM": "HBM"}}}, "layout.nodes"),
        ({"layout": small()["layout"] | {"events": {0xC0: 1}}}, "layout.events.192"),
        ({"codes": {"80E18008": {"class": "RestartNPU"}}}, "80E18008 has no name"),
        ({"codes": {"80E18008": {"class": "Explode", "name": "x"}}}, "80E18008"),
        ({"codes": {"80E18008": {"class": ["RestartNPU"], "name": "x"}}}, "80E18008"),
        ({"codes": {"80E18008": {"name": "x", "sev_a2": "awful"}}}, "80E18008"),
        ({"codes": {"80E18008": "RestartNPU"}}, "80E18008"),
        ({"codes": {80818200: {"name": "x"}}}, "80818200"),
        ({"codes": {"HBM": {"name": "x"}}}, "HBM"),
        ({"codes": None}, "codes"),
    ],
)
def test_a_wrong_catalogue_is_refused_and_the_entry_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyError, match=named):
        build_catalog(small(**changes))


@given(st.none() | st.lists(st.integers()) | st.dictionaries(st.text(max_size=5), st.integers()))
def test_no_data_at_all_is_refused_like_wrong_data(data: Any) -> None:
    with pytest.raises(PolicyError):
        build_catalog(data)


@given(st.text(max_size=15), st.sampled_from(Severity))
def test_any_text_has_a_meaning(code: str, severity: Severity) -> None:
    assert CATALOG.meaning(code, severity).name


@given(st.integers(0, 2**32 - 1), st.sampled_from(Severity))
def test_every_event_code_has_a_name_and_only_severity_isolates_the_unknown(bits: int, severity: Severity) -> None:
    meaning = CATALOG.meaning(f"{bits:08X}", severity)
    assert meaning.name
    if meaning.code not in CATALOG.entries and severity is not Severity.CRITICAL:
        assert meaning.fault_class is not FaultClass.ISOLATE


def test_the_catalogue_value_has_no_way_to_the_disk() -> None:
    assert isinstance(build_catalog(small()), AscendCatalog)

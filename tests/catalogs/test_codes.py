"""What fault codes mean: the shipped catalogue, codes it does not know, and catalogues that are wrong."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.catalogs.codes import Catalog, CodeLayout, Entry, Section, normalise
from ftslurm.config.catalog_files import load_code_book
from ftslurm.config.settings_files import read_shipped
from ftslurm.model.devices import CLASS_OF, FaultClass, Remedy, Severity
from ftslurm.model.values import fields

BOOK = load_code_book()
CATALOG = BOOK.catalogs["ascend"]
OTHER_PARTS = ("switch of the board", "host", "board", "other service", "network card")


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


def raw(kind: str) -> dict[str, Any]:
    return cast(dict[str, Any], read_shipped(f"{kind}.yaml"))


SECTIONS = [(kind, name) for kind in BOOK.catalogs for name in raw(kind)["sections"]]


@pytest.mark.parametrize(("kind", "name"), SECTIONS)
def test_what_ships_is_written_as_its_reader_has_it(kind: str, name: str) -> None:
    catalog, section = BOOK.catalogs[kind], raw(kind)["sections"][name]
    assert section.keys() <= {each.name for each in fields(Section)}
    for code, entry in section["codes"].items():
        assert entry.keys() <= {each.name for each in fields(Entry)}, code
        assert all(len(word) < 1000 for word in entry.values() if isinstance(word, str)), code
        known = catalog.entries[catalog.normalised(code)]
        assert known.name and known.sources and set(known.sources) <= catalog.sources.keys(), code
        assert not catalog.classes or not known.grade or known.grade in catalog.classes, code
        assert name == "conditions" or kind == "amd" or catalog.is_written(code.upper()), code
        assert known.severity is Severity.UNKNOWN or known.severity in catalog.by_severity


@pytest.mark.parametrize("kind", BOOK.catalogs)
def test_no_code_stands_twice_and_no_table_is_unknown(kind: str) -> None:
    catalog, every = BOOK.catalogs[kind], [code for each in raw(kind)["sections"].values() for code in each["codes"]]
    assert len(every) == len(set(map(catalog.normalised, every))) == len(catalog.entries)
    assert raw(kind).keys() <= {each.name for each in fields(Catalog)}
    assert not catalog.layout or raw(kind)["layout"].keys() == {each.name for each in fields(CodeLayout)}
    assert all(set(rule.codes) <= catalog.entries.keys() and rule.times and rule.window_s > 0 for rule in catalog.frequencies)
    assert set(catalog.by_severity) in (set(), set(Severity) - {Severity.UNKNOWN})


@given(st.text(max_size=15) | st.text("[]0123456789ABCDEFXx,na", max_size=30), st.sampled_from(Severity))
def test_any_text_has_a_meaning(code: str, severity: Severity) -> None:
    assert CATALOG.meaning(code, severity).name


@given(st.integers(0, 2**32 - 1), st.sampled_from(Severity))
def test_every_event_code_has_a_name_and_only_severity_isolates_the_unknown(bits: int, severity: Severity) -> None:
    meaning = CATALOG.meaning(f"{bits:08X}", severity)
    assert meaning.name
    if meaning.code not in CATALOG.entries and severity is not Severity.CRITICAL:
        assert meaning.fault_class is not FaultClass.ISOLATE

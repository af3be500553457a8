"""What NVIDIA's and AMD's codes mean: the shipped catalogues, and catalogues that are wrong."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.config.catalog_files import load_code_book
from ftslurm.config.settings_files import read_shipped
from ftslurm.model.devices import CLASS_OF, FaultClass, Remedy, Severity

BOOK = load_code_book()
NVIDIA, AMD = BOOK.catalogs["nvidia"], BOOK.catalogs["amd"]


def test_the_shipped_catalogue_is_whole() -> None:
    numbered = [code.split() for code in NVIDIA.entries]
    assert sum(1 for words in numbered if words[0] == "XID" and len(words) == 2) == 172
    assert sum(1 for words in numbered if words[0] == "SXID") == 93
    assert sum(1 for words in numbered if words[0] == "RECOVERY") == 8
    assert sum(1 for words in numbered if len(words) == 4) == 74


def test_every_entry_has_a_name_a_remedy_and_a_source_that_is_explained() -> None:
    for catalog in (NVIDIA, AMD):
        for code, entry in catalog.entries.items():
            meaning = catalog.meaning(code)
            assert entry.name and entry.sources and set(entry.sources) <= catalog.sources.keys(), code
            assert meaning.remedy is entry.remedy and meaning.fault_class is CLASS_OF[entry.remedy], code


@pytest.mark.parametrize(
    ("code", "fault_class", "user_induced"),
    [
        ("XID 79", FaultClass.ISOLATE, False),
        ("XID 48", FaultClass.SELF_HEALING, False),
        ("XID 94", FaultClass.SELF_HEALING, False),
        ("XID 95", FaultClass.SELF_HEALING, False),
        ("XID 64", FaultClass.ISOLATE, False),
        ("XID 63", FaultClass.IGNORE, False),
        ("XID 13", FaultClass.SELF_HEALING, True),
        ("XID 31", FaultClass.SELF_HEALING, True),
        ("XID 45", FaultClass.IGNORE, True),  # a by-product
        ("XID 78", FaultClass.ISOLATE, False),  # other software is needed
        ("XID 154", FaultClass.IGNORE, False),  # announces what RECOVERY n reports
        ("XID 149", FaultClass.IGNORE, False),  # its sub-code says more
        ("XID 149 NETIR_MFDE_EVENT 0x00000001", FaultClass.SELF_HEALING, False),
        ("XID 145 RLW_REMAP 0x40", FaultClass.SELF_HEALING, False),
        ("XID 145 RLW_REMAP 0x100", FaultClass.IGNORE, False),
        ("XID 1", FaultClass.UNKNOWN, False),  # not in use
        ("XID 999", FaultClass.UNKNOWN, False),
        ("SXID 24007", FaultClass.SELF_HEALING, False),
        ("SXID 22003", FaultClass.ISOLATE, False),
        ("SXID 11004", FaultClass.IGNORE, False),
        ("RECOVERY 0", FaultClass.IGNORE, False),
        ("RECOVERY 1", FaultClass.SELF_HEALING, False),
        ("RECOVERY 2", FaultClass.ISOLATE, False),
        ("RECOVERY 9", FaultClass.UNKNOWN, False),
        ("ROW-REMAP-PENDING", FaultClass.SELF_HEALING, False),
        ("ROW-REMAP-FAILURE", FaultClass.ISOLATE, False),
        ("ECC-UNCORRECTABLE", FaultClass.SELF_HEALING, False),
        ("GPU-LOST", FaultClass.ISOLATE, False),
        ("", FaultClass.UNKNOWN, False),
    ],
)
def test_codes_of_nvidia(code: str, fault_class: FaultClass, user_induced: bool) -> None:
    meaning = NVIDIA.meaning(code, Severity.CRITICAL)
    assert (meaning.fault_class, meaning.user_induced) == (fault_class, user_induced)


@pytest.mark.parametrize("written", ["XID 79", "Xid 79", "xid79", " xid  79\n", "Xid: 79", "XID 079"])
def test_codes_are_found_however_they_are_written(written: str) -> None:
    assert NVIDIA.meaning(written).code == "XID 79"


def test_of_several_causes_for_one_sub_code_the_hardest_remedy_counts() -> None:
    assert NVIDIA.meaning("XID 149 NETIR_LINK_EVT/NETIR_LINK_DOWN 0x00000000").remedy is Remedy.RESET


@pytest.mark.parametrize(
    ("code", "fault_class", "user_induced"),
    [
        ("ECC-UNCORRECTABLE", FaultClass.SELF_HEALING, False),
        ("BAD-PAGES-THRESHOLD", FaultClass.ISOLATE, False),
        ("RAS-FATAL", FaultClass.SELF_HEALING, False),
        ("GPU-RESET", FaultClass.SELF_HEALING, False),
        ("RING-HANG", FaultClass.SELF_HEALING, True),
        ("THERMAL", FaultClass.IGNORE, False),
        ("gpu-lost", FaultClass.ISOLATE, False),
        ("XID 79", FaultClass.UNKNOWN, False),
    ],
)
def test_codes_of_amd(code: str, fault_class: FaultClass, user_induced: bool) -> None:
    meaning = AMD.meaning(code, Severity.CRITICAL)
    assert (meaning.fault_class, meaning.user_induced) == (fault_class, user_induced)


@pytest.mark.parametrize("kind", ["", "tpu", "Ascend"])
def test_a_kind_of_device_that_is_not_known_is_unknown(kind: str) -> None:
    assert BOOK.meaning(kind, "80E01801", Severity.CRITICAL).fault_class is FaultClass.UNKNOWN


@pytest.mark.parametrize(("kind", "code"), [("ascend", "80E01801"), ("nvidia", "XID 94"), ("amd", "RAS-FATAL")])
def test_each_kind_has_its_own_catalogue(kind: str, code: str) -> None:
    assert BOOK.meaning(kind, code, Severity.UNKNOWN).fault_class is FaultClass.SELF_HEALING


@given(st.text(max_size=15) | st.from_regex(r"(?:XID|SXID|RECOVERY) \d{1,6}(?: \w+ 0x[0-9a-f]{1,8})?", fullmatch=True))
def test_any_text_has_a_meaning(code: str) -> None:
    assert NVIDIA.meaning(code).name and AMD.meaning(code).name
    assert NVIDIA.normalised(NVIDIA.normalised(code)) == NVIDIA.normalised(code)


def test_the_catalogues_are_yaml_that_other_readers_take() -> None:
    assert yaml.safe_load(yaml.safe_dump(read_shipped("nvidia.yaml"))) == read_shipped("nvidia.yaml")

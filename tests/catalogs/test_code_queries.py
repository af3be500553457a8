"""What people mean by the words they type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.catalogs.codes import CodeAsked
from ftslurm.config.catalog_files import load_code_book, load_pattern_book

CODES, PATTERNS = load_code_book(), load_pattern_book()
IDS = frozenset({"cuda-oom"})


def told(words: str) -> list[tuple[str, str]]:
    return [(each.kind, each.words) for each in CODES.asked(words.split(), IDS)]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("80E01801", [("ascend", "80E01801")]),
        ("0x80e01801", [("ascend", "0X80E01801")]),
        ("110001024", [("ascend", "110001024")]),
        ("[0x00f103b0,155907,na,na]", [("ascend", "[0X00F103B0,155907,NA,NA]")]),
        ("Xid 79", [("nvidia", "XID 79")]),
        ("xid79", [("nvidia", "XID79")]),
        ("SXid 24007", [("nvidia", "SXID 24007")]),
        ("RECOVERY 1", [("nvidia", "RECOVERY 1")]),
        ("Xid 145 RLW_REMAP 0x40", [("nvidia", "XID 145 RLW_REMAP 0X40")]),
        ("exit 137", [("exit", "137")]),
        ("exit code 137", [("exit", "137")]),
        ("exit status -9", [("exit", "-9")]),
        ("rc=1", [("exit", "1")]),
        ("SIGSEGV", [("exit", "139")]),
        ("segv", [("exit", "139")]),
        ("signal 11", [("exit", "139")]),
        ("GPU-LOST", [("nvidia", "GPU-LOST"), ("amd", "GPU-LOST")]),
        ("cuda-oom", [("pattern", "cuda-oom")]),
        ("143", [("exit", "143"), ("nvidia", "XID 143")]),
        ("507015", [("line", "error code is 507015")]),
        ("80E01801 Xid 79 exit 1", [("ascend", "80E01801"), ("nvidia", "XID 79"), ("exit", "1")]),
        ("the exit of it", [("line", "the exit of it")]),
        ("exit", [("line", "exit")]),
        ("deadbeef is a word", [("line", "deadbeef is a word")]),
        ("RuntimeError: exit 137", [("line", "RuntimeError: exit 137")]),
    ],
)
def test_words_are_understood(words: str, meant: list[tuple[str, str]]) -> None:
    assert told(words) == meant


def test_words_given_as_one_are_the_same() -> None:
    assert CODES.asked(["Xid 79"], IDS) == CODES.asked(["Xid", "79"], IDS)
    assert CODES.asked(["exit 137"], IDS) == CODES.asked(["exit", "137"], IDS)


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        ("NVRM: Xid (PCI:0000:18:00): 94, pid=7, name=python", [CodeAsked("nvidia", "Xid 94")]),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Fatal, Link 4", [CodeAsked("nvidia", "SXid 24007")]),
        ("event_id=0x80e01801", [CodeAsked("ascend", "80e01801")]),
        ("RuntimeError: CUDA out of memory", []),
    ],
)
def test_a_line_may_name_a_code(line: str, codes: list[CodeAsked]) -> None:
    assert PATTERNS.codes_in(line) == codes


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_any_words_are_something(words: list[str]) -> None:
    found = CODES.asked(words, IDS)
    assert found and all(each.kind in ("ascend", "nvidia", "exit", "line", "pattern", "amd") for each in found)

"""Patterns and exit statuses: the shipped files, the book that looks them up, and files that are wrong."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.catalogs.pattern_files import read_site
from ftslurm.catalogs.patterns import LIMIT, PatternBook
from ftslurm.catalogs.scanner import MAX_LINE_BYTES, is_wide, mistake
from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.config.settings_files import read_shipped
from ftslurm.errors import PolicyError
from ftslurm.model.devices import Remedy
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role
from tests.each import each

BOOK = load_pattern_book()
BY_ID = {pattern.id: pattern for pattern in BOOK.patterns}
ORDINARY = b"[2026-08-01 12:00:01] [INFO] iteration 1/500 | lm loss: 2.31E+00 | loss scale: 65536.0 | grad norm: 0.12\n"


def ids(text: bytes, book: PatternBook = BOOK) -> list[str]:
    return [found.pattern.id for found in book.scan(text)]


# --- the shipped files


def test_what_ships_would_pass_as_a_site_s() -> None:
    for name, tables in (("log-patterns.yaml", {"patterns"}), ("exit-codes.yaml", {"exit_codes", "rules"})):
        data = read_shipped(name)
        assert data.keys() == {"schema_version", "sources", *tables}
        read_site({key: item for key, item in data.items() if key not in ("sources", "rules")}, name)
    for told in (*BOOK.patterns, *BOOK.meanings.values()):
        assert told.name and told.sources and set(told.sources) <= BOOK.sources.keys(), told.id


def test_the_shipped_patterns_are_whole() -> None:
    assert len(BOOK.patterns) == len(BY_ID) >= 300
    assert len(BOOK.exits) == 44


def id_of(pattern: Any) -> str:
    return str(pattern.id)


def test_every_pattern_is_told_in_words_and_finds_its_own_sample_first() -> None:
    each(BOOK.patterns, finds_its_own_sample, id_of)


def finds_its_own_sample(pattern: Any) -> None:
    assert pattern.name and pattern.name != pattern.id and len(pattern.name) < 80
    assert pattern.sources and set(pattern.sources) <= BOOK.sources.keys()
    assert pattern.remedy is not Remedy.UNKNOWN
    assert BOOK.line(pattern.sample) == pattern
    assert is_wide(pattern.needs or pattern.pattern) is False


def test_every_sample_is_found_among_ordinary_lines() -> None:
    each(BOOK.patterns, is_found_among_others, id_of)


def is_found_among_others(pattern: Any) -> None:
    line = pattern.sample.encode()
    text = ORDINARY * 50 + line + b"\n" + ORDINARY * 50
    found = BOOK.hints(text) if pattern.role is Role.CONTEXT else BOOK.scan(text)
    assert [(hit.offset, hit.line, hit.pattern.id) for hit in found] == [(50 * len(ORDINARY), line, pattern.id)]


def test_a_pattern_says_of_itself_what_follows_from_it() -> None:
    for pattern in BOOK.patterns:
        if pattern.role is not Role.ROOT:
            assert pattern.remedy is Remedy.LOG, pattern.id
        if pattern.remedy is Remedy.REPLACE:
            assert pattern.blame is Blame.YES, pattern.id
        if pattern.remedy is Remedy.FAIL:
            assert pattern.retriable is Retriable.NO, pattern.id
        if pattern.heals:
            assert pattern.error_class is ErrorClass.HARDWARE, pattern.id


@pytest.mark.parametrize("name", ["npu-uce", "npu-hbm-mbe", "npu-suspect-mem", "cuda-contained"])
def test_errors_that_heal_need_the_processes_restarted_only(name: str) -> None:
    assert BY_ID[name].remedy is Remedy.RESTART and BY_ID[name].heals


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("NET/IB : Got completion from peer 10.0.0.1<1> with status=12 opcode=1", "ib-completion-12"),
        ("NET/IB : Got completion from peer 10.0.0.1<1> with status=5 opcode=1", "ib-completion-other"),
        ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "slurm-time-limit"),
        ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", "slurm-cancel"),
        ("NVRM: Xid (PCI:0000:18:00): 94, pid=7, name=python", "xid-line"),
        ('[rank0]:   File "x.py", line 3', None),
        ("iteration 507015 | loss 2.3", None),  # a step, no error code
        ("error code is 507015", "acl-507015"),
        ("lm loss: nan", "nan-loss"),
        ("loss scale: 1.0 | grad norm: inf", None),  # with dynamic loss scaling it comes and goes
        ("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB", None),
        ("Traceback (most recent call last):", None),
    ],
)
def test_lines_as_they_are_printed(line: str, name: str | None) -> None:
    found = BOOK.line(line)
    assert (found.id if found else None) == name


@pytest.mark.parametrize("pattern", [p for p in BOOK.patterns if p.needs], ids=lambda pattern: pattern.id)
@settings(max_examples=15)
@given(data=st.data())
def test_what_a_pattern_matches_holds_what_it_needs(pattern: Any, data: st.DataObject) -> None:
    expression = re.compile(re.sub(r"\(\?i:(.*?)\)", r"(?:\1)", pattern.pattern), re.ASCII)
    line = data.draw(st.from_regex(expression)).split("\n")[0]
    if not mistake(pattern.pattern, line):
        assert not mistake(pattern.needs, line)


# --- scanning


def test_the_first_pattern_of_a_line_wins_and_context_is_left_out() -> None:
    text = b"Channel 00 via NET/IB/0/GDRDMA ValueError: x\nvia NET/IB/0\nTypeError: ValueError: y\n"
    assert ids(text) == ["py-value", "py-type"]
    assert [found.pattern.id for found in BOOK.hints(text)] == ["gdr-mixed", "gdr-mixed"]
    assert BOOK.line("via NET/IB/0/GDRDMA") is BY_ID["gdr-mixed"]


def test_no_match_spans_two_lines() -> None:
    assert ids(b"GPU is lost.\nReboot the system\nCUDA error:\nhardware stack error\n") == []


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_line_ends_do_not_matter(end: bytes) -> None:
    assert ids(b"x" + end + b"MemoryError" + end) == (["alloc-refused"] if end else [])
    assert ids(b"KeyError: 'a'" + end) == ["py-key"]


def test_the_first_lines_and_the_last_are_found_when_everything_matches() -> None:
    first, spam, last = b"UCE ERROR at first\n", b"Connection refused\n", b"KeyError: 'last'\n"
    found = ids(first + spam * 20000 + last)
    assert found[0] == "npu-uce" and found[-1] == "py-key"
    assert len(found) <= 2 * LIMIT
    many = b"NCCL WARN Call to connect Connection refused: ncclSystemError KeyError: socketStartConnect\n"
    assert ids(first + many * 5000 + last)[-1] == "py-key"


def test_what_is_printed_before_much_noise_is_found() -> None:
    text = b"RuntimeError: UCE ERROR\n" + ORDINARY * 5000
    assert ids(text) == ["npu-uce"]
    assert ids(ORDINARY * 5000 + b"RuntimeError: UCE ERROR") == ["npu-uce"]


def test_a_line_that_never_ends_is_looked_at_in_pieces() -> None:
    text = b"x" * 100_000 + b" UCE ERROR " + b"y" * 100_000
    (found,) = BOOK.scan(text)
    assert found.pattern.id == "npu-uce" and len(found.line) <= MAX_LINE_BYTES
    assert text[found.offset : found.offset + len(found.line)] == found.line
    assert BOOK.line(text[:100_020]) is None and BOOK.line(b"UCE ERROR " + text) is BY_ID["npu-uce"]


@given(
    st.lists(st.sampled_from([p.sample.encode() for p in BOOK.patterns]) | st.binary(max_size=200), max_size=30),
    st.sampled_from([b"\n", b"", b"\0"]),
)
def test_any_bytes_can_be_scanned(pieces: list[bytes], between: bytes) -> None:
    text = between.join(pieces)
    found = BOOK.scan(text)
    assert [hit.offset for hit in found] == sorted(hit.offset for hit in found)
    for hit in found:
        assert text[hit.offset : hit.offset + len(hit.line)] == hit.line and b"\n" not in hit.line
        assert hit.pattern.role is not Role.CONTEXT


@given(st.lists(st.sampled_from([p.sample for p in BOOK.patterns if p.role is not Role.CONTEXT]), max_size=20))
def test_scanning_and_looking_line_by_line_agree(lines: list[str]) -> None:
    expected = [BOOK.line(line) for line in lines]
    assert [hit.pattern for hit in BOOK.scan("\n".join(lines).encode())] == expected


def test_small_limits_and_empty_texts() -> None:
    assert BOOK.scan(b"") == BOOK.scan(b"\n" * 1000) == []
    assert [hit.offset for hit in BOOK.scan(b"KeyError:\n" * 5000, limit=1)] == [0, 49_990]


# --- keywords


def test_a_users_words_stand_before_all_patterns_and_mean_themselves() -> None:
    book = BOOK.with_keywords(["connect timeout", "a.b*(c)", "é\0", "", "connect timeout"])
    assert [p.id for p in book.patterns[:3]] == ["keyword:connect timeout", "keyword:a.b*(c)", "keyword:é\0"]
    assert len(book.patterns) == len(BOOK.patterns) + 3
    assert ids(b"error: connect timeout\na.b*(c)\naxbbc\nCONNECT timeout\n\xc3\xa9\0\n\xe9\0\n", book) == [
        "keyword:connect timeout", "keyword:a.b*(c)", "conn-timeout", "keyword:é\0",
    ]  # fmt: skip
    found = book.line("connect timeout")
    assert found is not None
    assert (found.retriable, found.error_class, found.role) == (Retriable.YES, ErrorClass.UNKNOWN, Role.ROOT)


def test_without_words_it_is_the_same_book() -> None:
    assert BOOK.with_keywords([]) is BOOK and BOOK.with_keywords(["", "x" * 10_000]) is BOOK


@given(st.text(min_size=1, max_size=40))
def test_any_word_can_be_a_keyword(word: str) -> None:
    book = PatternBook([], BOOK.exits, BOOK.rules, BOOK.sources).with_keywords([word])
    line = word.encode("utf-8", "surrogateescape")
    assert len(book.scan(b"before " + line + b" after")) == (0 if "\n" in word else 1)


# --- exit statuses


@pytest.mark.parametrize(
    ("status", "meaning", "error_class", "retriable", "listed"),
    [
        (0, "success", ErrorClass.UNKNOWN, Retriable.NO, True),
        (1, "general error", ErrorClass.USER_CODE, Retriable.NO, True),
        (137, "SIGKILL", ErrorClass.OOM, Retriable.YES, True),
        (139, "SIGSEGV", ErrorClass.UNKNOWN, Retriable.ONCE, True),
        (-11, "SIGSEGV (11) passed on", ErrorClass.UNKNOWN, Retriable.ONCE, True),
        (142, "SIGALRM", ErrorClass.UNKNOWN, Retriable.ONCE, False),
        (77, "a status of the program's own", ErrorClass.UNKNOWN, Retriable.UNKNOWN, False),
        (200, "a status of the program's own", ErrorClass.UNKNOWN, Retriable.ONCE, False),
        (202, "a process left over", ErrorClass.HARDWARE, Retriable.YES, True),
    ],
)
def test_exit_statuses(status: int, meaning: str, error_class: ErrorClass, retriable: Retriable, listed: bool) -> None:
    found = BOOK.exit(status)
    assert found.meaning.startswith(meaning)
    assert (found.error_class, found.retriable, found.listed) == (error_class, retriable, listed)


def test_every_status_has_a_meaning_a_remedy_and_a_source() -> None:
    for status in range(256):
        found = BOOK.exit(status)
        assert found.status == status and found.meaning and "{" not in found.meaning
        assert found.remedy is not Remedy.UNKNOWN and set(found.sources) <= BOOK.sources.keys() and found.sources


# --- files that are wrong


def with_entry(**changes: Any) -> dict[str, Any]:
    first, *more = copy.deepcopy(read_shipped("log-patterns.yaml")["patterns"][:3])
    return {"patterns": [{key: value for key, value in (first | changes).items() if value is not None}, *more]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pattern": "(?!x)CUDA"}, "`cuda-ecc-uncorrectable`: its `pattern` is refused by RE2: invalid perl operator"),
        ({"pattern": "CUDA("}, "its `pattern` is refused by RE2: missing"),
        ({"pattern": "other"}, "its `pattern` does not match its `sample`"),
        ({"pattern": "C*"}, "its `pattern` matches the empty line"),
        ({"pattern": "CUDA.*ECC"}, "has to say in `needs`"),
        ({"pattern": "CUDA.*ECC", "needs": "CUDA.*"}, "its `needs` may span a line"),
        ({"pattern": "CUDA.*ECC", "needs": "DRAM"}, "its `needs` does not match its `sample`"),
        ({"pattern": None}, "`patterns`, `cuda-ecc-uncorrectable`: `pattern` is missing"),
        ({"sample": None}, "`sample` is missing"),
        ({"class": "hardwear"}, "`class` is 'hardwear', it should be 'hardware'"),
        ({"retriable": "often"}, "`retriable` is 'often'"),
        ({"role": "cause"}, "`role` is 'cause', it should be 'root', 'symptom' or 'context'"),
        ({"remedy": "pray"}, "`remedy` is 'pray'"),
        ({"budget": -1}, "`budget` is -1"),
        ({"source": []}, "`source` is empty"),
        ({"id": "two words"}, "`id` is 'two words'"),
        ({"id": "cuda-device-lost"}, "`cuda-device-lost` is in `patterns` twice"),
        ({"isolated": "yes"}, "there is no `isolated` here; did you mean `isolate`"),
    ],
)
def test_a_wrong_pattern_is_refused_and_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(named)) as error:
        read_site(with_entry(**changes), "site.yaml")
    assert "\n" not in str(error.value) and str(error.value).startswith("site.yaml: ")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({300: {}}, "`exit_codes`: `300`"),
        ({1: {"meaning": "x", "class": "y", "retriable": "no"}}, "`exit_codes`, `1`: "),
    ],
)
def test_wrong_exit_statuses_are_refused(changes: dict[int, Any], named: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(named)):
        read_site({"exit_codes": changes}, "site.yaml")


@given(st.lists(st.integers()) | st.dictionaries(st.text(max_size=5), st.integers(), min_size=1))
def test_what_is_no_catalogue_is_refused(data: Any) -> None:
    with pytest.raises(PolicyError):
        read_site(data, "site.yaml")

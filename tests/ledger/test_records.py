"""Records as lines: every kind there and back, and no line, however damaged, that ends the reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.ledger.journal import from_line, to_line
from ftslurm.model.plain import to_plain
from ftslurm.model.record import KINDS, AttemptEnded, CarriedOut, Decided, Drill, Finished, Record, RunBegan

TEXT = st.text(max_size=12)
BY_HINT: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63),
    float: st.floats(-1e15, 1e15),
    str: TEXT,
    bool: st.booleans(),
    bool | None: st.booleans(),  # None stands in older ledgers alone, and is completed as they are read
    Drill | None: st.none() | st.builds(Drill, TEXT, st.integers(0, 99), TEXT, heals=st.booleans(), share=st.just(0.25)),
    Mapping[str, int]: st.dictionaries(TEXT, st.integers(), max_size=3),
    Mapping[str, str]: st.dictionaries(TEXT, TEXT, max_size=3),
    tuple[int, ...]: st.lists(st.integers(), max_size=3).map(tuple),
    tuple[str, ...]: st.lists(TEXT, max_size=3).map(tuple),
    tuple[tuple[str, str], ...]: st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    tuple[tuple[str, str, str], ...]: st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=3).map(tuple),
}


def any_of(kind: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: BY_HINT[hints[field.name]] for field in fields(kind)})


RECORDS: st.SearchStrategy[Record] = st.one_of(*(any_of(kind) for kind in KINDS.values()))


@given(RECORDS)
def test_every_record_comes_back_from_its_line(record: Record) -> None:
    line = to_line(record)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    assert from_line(line) == record == from_line(line.rstrip())


@given(RECORDS)
def test_a_line_tells_what_one_with_all_its_fields_tells(record: Record) -> None:
    """As ledgers of before have them: every view is made of records, so it is the same."""
    whole = {"v": 1, "kind": type(record).__name__, **{field.name: getattr(record, field.name) for field in fields(record)}}
    assert from_line(json.dumps(whole, default=to_plain).encode()) == from_line(to_line(record))


def test_a_field_at_its_default_is_not_written() -> None:
    assert to_line(AttemptEnded(1.0, 1, {"exited with status 0": 8})) == (
        b'{"v":1,"kind":"AttemptEnded","at":1.0,"attempt":1,"exits":{"exited with status 0":8}}\n'
    )


def test_a_command_line_in_no_encoding_survives() -> None:
    record = RunBegan(1.0, "r", "7", "c", 0, "k", b"train \xff\xe9".decode(errors="surrogateescape"), "n1")
    assert from_line(to_line(record)) == record


def test_what_has_a_default_may_be_missing_and_what_is_new_is_passed_over() -> None:
    line = b'{"v":1,"kind":"CarriedOut","at":1,"id":"d1","ok":true,"colour":"blue"}'
    assert from_line(line) == CarriedOut(1.0, "d1", True, "")


LINE = json.loads(
    to_line(Decided(1.0, "d1", 1, "fail", "crash", "because", (("a", "b"),), {"n1": "x"}, ("n1",), "max_restarts", 7))
)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": 0},
        {"v": None},
        {"kind": "Undecided"},
        {"kind": None},
        {"kind": []},
        {"kind": {}},
        {"at": "now"},
        {"at": None},
        {"at": True},
        {"at": 10**400},
        {"attempt": "1"},
        {"attempt": 1.0},
        {"attempt": True},
        {"rung": 5},
        {"passed": [["a"]]},
        {"passed": [["a", 1]]},
        {"settings": [["a", "b"]]},
        {"passed": "ab"},
        {"isolate": ["n1"]},
        {"isolate": {"n1": 1}},
        {"exclude": "n1"},
        {"exclude": [1]},
        {"cost": None},
    ],
)
def test_a_line_that_is_nearly_right_is_kept_out(change: dict[str, Any]) -> None:
    assert from_line(json.dumps({**LINE, **change}).encode()) is None


@pytest.mark.parametrize("missing", ["v", "kind", "at", "id", "attempt", "rung", "cause", "why"])
def test_a_line_with_something_missing_is_kept_out(missing: str) -> None:
    assert from_line(json.dumps({name: value for name, value in LINE.items() if name != missing}).encode()) is None


@given(RECORDS, st.data())
def test_a_torn_line_is_kept_out(record: Record, data: st.DataObject) -> None:
    line = to_line(record).rstrip()
    assert from_line(line[: data.draw(st.integers(0, len(line) - 1))]) is None


@pytest.mark.parametrize(
    "line", [b"", b"\x00" * 300, b"\xff\xfe", b"null", b"[]", b"1", b'"x"', b"{}", b"[" * 200_000, b'{"v":1' + b"1" * 5000 + b"}"]
)
def test_a_line_of_something_else_is_kept_out(line: bytes) -> None:
    assert from_line(line) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from([field.name for kind in KINDS.values() for field in fields(kind)]), JSON, max_size=8)


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda kind, version, body: json.dumps({"v": version, "kind": kind, **body}).encode(),
        st.sampled_from(sorted(KINDS)) | JSON,
        st.just(1) | JSON,
        BODIES,
    )
)
def test_no_line_ends_the_reader(line: bytes) -> None:
    record = from_line(line)
    assert record is None or type(record) in KINDS.values()


@given(RECORDS, st.integers(0, 10**6), st.integers(0, 255))
def test_a_flipped_byte_ends_nothing(record: Record, at: int, byte: int) -> None:
    line = bytearray(to_line(record).rstrip())
    line[at % len(line)] = byte
    found = from_line(bytes(line))
    assert found is None or type(found) in KINDS.values()


def test_numbers_of_a_later_reader_fit() -> None:
    assert from_line(to_line(Finished(1e15, "r", -(2**70), "x"))) == Finished(1e15, "r", -(2**70), "x")


def test_an_end_that_an_older_version_wrote_names_no_nodes() -> None:
    assert from_line(b'{"v":1,"kind":"Finished","at":1.0,"run":"r","status":0,"what":"x"}') == Finished(1.0, "r", 0, "x")
    told = Finished(1.0, "r", 1, "x", ("n2",))
    assert from_line(to_line(told)) == told

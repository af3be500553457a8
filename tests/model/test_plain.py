"""Values as JSON knows them, and back: what was written comes out, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import WireError
from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.values import Value


class Colour(Enum):
    RED = "red"


class Inner(Value):
    name: str
    share: float = 0.5


class Outer(Value):
    number: int
    colour: Colour = Colour.RED
    sure: bool | None = None
    inner: tuple[Inner, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    table: Mapping[str, int] | None = None


WHOLE = Outer(0, sure=False, inner=(Inner("x"), Inner("y", 0.25)), pair=("b", 2), table={"c": 3})


def test_what_was_written_is_read_back_and_defaults_are_left_out() -> None:
    assert from_plain(Outer, json.loads(json.dumps(to_plain(WHOLE)))) == WHOLE
    assert to_plain(Outer(3)) == {"number": 3} and from_plain(Outer, {"number": 3, "of a later version": 1}) == Outer(3)


@pytest.mark.parametrize("change", [
    {"number": True}, {"number": -1}, {"number": 1 << 62}, {"number": 1.0}, {"number": "1"}, {"number": None}, {"colour": "blue"},
    {"colour": []}, {"sure": 0}, {"inner": {}}, {"inner": [["x"]]}, {"inner": [{}]}, {"inner": [{"name": "x" * 513}]},
    {"inner": [{"name": "x", "share": float("nan")}]}, {"inner": [{"name": "x", "share": -0.5}]}, {"pair": ["b"]}, {"pair": "b2"},
    {"table": [1]}, {"table": {"c": "3"}},
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(change: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        from_plain(Outer, {**to_plain(WHOLE), **change})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_a_field_without_default_has_to_be_there() -> None:
    for plain in ({}, None, [], "x"):
        with pytest.raises(WireError):
            from_plain(Outer, plain)


def test_bounds() -> None:
    assert from_plain(Inner, {"name": "x" * 600, "share": -3.0}, Bounds(1000, signed=True)) == Inner("x" * 600, -3.0)
    with pytest.raises(WireError):
        from_plain(Inner, {"name": "", "share": 2e15}, Bounds(1, signed=True))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["number", "inner", "name", "table"]), inner),
    max_leaves=8,
)


@given(anything)
def test_anything_is_read_or_refused(plain: Any) -> None:
    try:
        assert isinstance(from_plain(Outer, plain), Outer)
    except WireError:
        pass

"""What another process has written, value by value."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from ftslurm.errors import WireError
from ftslurm.model.plain import bounded_whole, items, plain_text, real, truth


@pytest.mark.parametrize(
    ("check", "taken", "refused"),
    [
        (lambda value: plain_text(value, 3), ["", "abc"], ["abcd", None, 3, ["abc"]]),
        (plain_text, ["", "a" * 100_000], [None, 3, ["abc"]]),
        (lambda value: bounded_whole(value, 0, 7), [0, 7], [-1, 8, 1.0, "1", True, None]),
        (lambda value: real(value, 10.0), [0, 0.5, 9], [10, -0.1, math.nan, math.inf, "1", True, None]),
        (truth, [True, False], [0, 1, "true", None]),
        (lambda value: items(value, 2), [[], [1, "a"]], [[1, 2, 3], {"a": 1}, "ab", None]),
    ],
)
def test_a_value_is_taken_as_its_type_or_refused(check: Callable[[Any], Any], taken: list[Any], refused: list[Any]) -> None:
    assert [check(value) for value in taken] == taken
    for value in refused:
        with pytest.raises(WireError, match=r"^a value should be "):
            check(value)


def test_a_complaint_names_the_value_and_shows_little_of_it() -> None:
    with pytest.raises(WireError, match=r"^`pid` should be a whole number from 0 to 9, not 'x{39}$"):
        bounded_whole("x" * 100, 0, 9, "`pid`")
    nested = json.loads("[" * 900 + "]" * 900)
    with pytest.raises(WireError, match=r"not list$"):
        plain_text(nested)

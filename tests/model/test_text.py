"""Words for people."""

from __future__ import annotations

import pytest

from ftslurm.model.text import counted


@pytest.mark.parametrize(("number", "told"), [(0, "0 attempts"), (1, "1 attempt"), (2, "2 attempts")])
def test_one_of_a_thing_is_not_several(number: int, told: str) -> None:
    assert counted(number, "attempt") == told


def test_a_plural_of_its_own() -> None:
    assert [counted(number, "process", "processes") for number in (1, 2)] == ["1 process", "2 processes"]

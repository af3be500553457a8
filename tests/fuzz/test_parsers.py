"""No parser is hurt by any input: each takes it or refuses it in a way it is allowed to. `run.py` looks for longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.hold import Parser, bounded, hold
from tests.fuzz.parsers import PARSERS

LIMIT_S = 110.0


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    with bounded(stuck_s=LIMIT_S):
        yield


def examples(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck)
    )  # hold() has a deadline of its own


OF_EACH = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)


@pytest.mark.timeout(LIMIT_S - 10)
@OF_EACH
@examples(10)
@given(data=st.data())
def test_a_parser_takes_anything(parser: Parser, data: st.DataObject) -> None:
    hold(parser, data.draw(parser.inputs, label="given"))


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S - 10)
@OF_EACH
@examples(100)
@given(data=st.data())
def test_a_parser_takes_anything_at_length(parser: Parser, data: st.DataObject) -> None:
    hold(parser, data.draw(parser.inputs, label="given"))

"""A call beside its caller."""

from __future__ import annotations

import threading

import pytest

from ftslurm.system.meanwhile import Meanwhile

LIMIT_S = 10.0


def test_it_has_begun_before_its_answer_is_asked_for() -> None:
    began, may_end = threading.Event(), threading.Event()

    def call() -> int:
        began.set()
        assert may_end.wait(LIMIT_S)
        return 7

    asked = Meanwhile(call)
    assert began.wait(LIMIT_S)
    may_end.set()
    assert asked.answer() == asked.answer() == 7


def test_its_error_is_the_caller_s() -> None:
    def call() -> None:
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        Meanwhile(call).answer()

"""One test over many cases: pytest's own work for a test is more than what most of them ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def each(cases: Iterable[Any], check: Callable[..., None], name: Callable[..., str] = str) -> None:
    """Look at every case; AssertionError that names each of those that fail, with its reason. A case that is a tuple is unpacked."""
    wrong = []
    for case in cases:
        words = case if isinstance(case, tuple) else (case,)
        try:
            check(*words)
        except Exception as error:
            wrong.append(f"{name(*words)}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)

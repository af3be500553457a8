"""What another process has written, value by value: each function gives the value as its type, or raises WireError.

name: what the value is called in the complaint. JSON's true and false are no numbers, though Python's are.
"""

from __future__ import annotations

from typing import Any

from ftslurm.errors import WireError

A_VALUE = "a value"


def text(value: Any, most: int | None = None, name: str = A_VALUE) -> str:
    """most: characters, None for any number."""
    if not isinstance(value, str) or (most is not None and len(value) > most):
        limit = "a text" if most is None else f"a text of up to {most} characters"
        raise WireError(f"{name} should be {limit}, not {_shown(value)}")
    return value


def whole(value: Any, low: int, high: int, name: str = A_VALUE) -> int:
    """Both bounds included."""
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"{name} should be a whole number from {low} to {high}, not {_shown(value)}")
    return value


def real(value: Any, below: float, name: str = A_VALUE) -> float:
    """From 0, and less than `below`; none of JSON's NaN and Infinity."""
    if type(value) not in (int, float) or not 0 <= value < below:
        raise WireError(f"{name} should be a number of 0 or more, not {_shown(value)}")
    return float(value)


def truth(value: Any, name: str = A_VALUE) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"{name} should be true or false, not {_shown(value)}")
    return value


def items(value: Any, most: int, name: str = A_VALUE) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise WireError(f"{name} should be a list of up to {most} items")
    return value


def _shown(value: Any) -> str:
    """Of what is nested only its kind: printing it could end in a RecursionError."""
    return repr(value)[:40] if value is None or isinstance(value, (str, float, bool)) else type(value).__name__

"""The JSON of messages, read and written by the C halves of the json module alone."""

from __future__ import annotations

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, encode_basestring_ascii, make_scanner

if TYPE_CHECKING:
    from typing import Any, TypeAlias
Message: TypeAlias = "dict[str, Any]"


class _JsonRules:
    """What a scanner asks for; the defaults of json.loads, without NaN and Infinity."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float, parse_int = float, int
    memo: dict[str, str] = {}  # noqa: RUF012 -- the scanner's own scratch

    @staticmethod
    def parse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")


_rules: Any = _JsonRules()
_scan = make_scanner(_rules)


def loads(text: str) -> object:
    """As json.loads. Raises: ValueError, RecursionError."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON value") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def dumps(value: object) -> str:
    """As json.dumps, for what messages are made of. Raises: TypeError for anything else."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(dumps, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode_basestring_ascii(key)}:{dumps(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"{type(value).__name__} in a message")


def integer_in(value: object, low: int, high: int) -> int:
    """An integer of a message. Raises: ValueError for what is none, or not within these."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} is not from {low} to {high}")
    return value


def number_in(value: object, low: float, high: float) -> float:
    """Likewise, with or without a fraction."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{value!r} is not from {low} to {high}")
    return value

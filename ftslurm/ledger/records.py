"""Record <-> JSON line. Version 1. A line of a later version or an unknown kind is kept out, not misread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from ftslurm.model.record import KINDS, Record

VERSION = 1
_MOST_S = 1e15  # thirty million years
_MOST_BITS = 256


def to_line(record: Record) -> bytes:
    """One line, newline included."""
    # Not dataclasses.asdict: that copies deeply, and a ledger line is written on the way to a restart.
    body = {"v": VERSION, "kind": type(record).__name__, **{f.name: getattr(record, f.name) for f in fields(record)}}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def from_line(line: bytes) -> Record | None:
    """The record, or None for a line that is torn, damaged or of a kind this version does not know."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("v") != VERSION or str(body.get("kind")) not in KINDS:
        return None
    return _build(KINDS[str(body["kind"])], body)


def _build(kind: type, body: Mapping[str, Any]) -> Record | None:
    values: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        if name not in body:
            continue
        value = _fit(hint, body[name])
        if value is None:
            return None
        values[name] = value
    try:
        return kind(**values)  # type: ignore[no-any-return]
    except TypeError:
        return None  # a field without default is missing


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """Field -> its type. To find them out takes longer than to read the line."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fit(hint: Any, value: Any) -> Any:
    """`value` as the field's type, or None: a ledger may have been written by anybody, so nothing is taken on trust."""
    if hint is float and type(value) in (int, float):
        return _float(value)
    if hint is int:
        return value if _is_count(value) else None
    if hint in (str, bool) and type(value) is hint:
        return value
    text = str(hint)
    if "tuple[tuple[str, str]" in text:
        return tuple((a, b) for a, b in value) if _rows(value, 2) else None
    if "tuple[tuple[str, str, str]" in text:
        return tuple((a, b, c) for a, b, c in value) if _rows(value, 3) else None
    if text.startswith("tuple[int"):
        return tuple(value) if isinstance(value, list) and all(_is_count(v) for v in value) else None
    if text.startswith("tuple[str"):
        return tuple(value) if isinstance(value, list) and all(type(v) is str for v in value) else None
    if "Mapping[str, int]" in text:
        return value if isinstance(value, dict) and all(_is_count(v) for v in value.values()) else None
    if "Mapping[str, str]" in text:
        return value if isinstance(value, dict) and all(type(v) is str for v in value.values()) else None
    return None


def _float(value: int | float) -> float | None:
    """None too for NaN, which JSON's reader lets through, and for a time that no clock can show."""
    return float(value) if -_MOST_S <= value <= _MOST_S else None


def _is_count(value: Any) -> bool:
    """One more than the longest number that Python reads it can no longer print."""
    return type(value) is int and value.bit_length() <= _MOST_BITS


def _rows(value: Any, width: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == width and all(type(v) is str for v in row) for row in value
    )

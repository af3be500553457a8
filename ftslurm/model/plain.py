"""Values as JSON knows them, and back, by the types of their fields.

What is read was written by another process: maybe of another version, maybe hostile. What does not fit its type is refused; a
field that is not there is at its default, and one that is not known is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ftslurm.errors import WireError
from ftslurm.model.values import MISSING, Value, fields, is_dataclass

T = TypeVar("T")
Reader = Callable[[Any], Any]


class Bounds(Value):
    """text: characters. whole, real: numbers are below; signed: may they be negative?"""

    text: int
    whole: int = 1 << 62
    real: float = 1e15
    signed: bool = False


OF_A_RANK = Bounds(512)


def to_plain(value: Any) -> Any:
    """For `from_plain`: objects without the fields that are at their defaults."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        own = getattr(type(value), "plain_forms", {})
        given = ((field, getattr(value, field.name)) for field in fields(value))
        return {
            field.name: own[field.name][0](item) if field.name in own else to_plain(item)
            for field, item in given
            if field.default is MISSING or item != field.default
        }
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def from_plain(kind: type[T], plain: Any, bounds: Bounds = OF_A_RANK) -> T:
    """What `to_plain` made of a value of this kind. Raises: WireError."""
    read: Reader = _reader(kind, bounds)  # type: ignore[arg-type]  # types are hashable
    made: T = read(plain)
    return made


@cache
def _reader(hint: Any, bounds: Bounds) -> Reader:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (_reader(each, bounds) for each in args if each is not NoneType)
        return lambda plain: None if plain is None else inner(plain)
    if origin is tuple:
        if args[-1] is Ellipsis:
            listed = partial(_listed, _reader(args[0], bounds))
            return partial(_as_before, listed, [(None, ())]) if {*get_args(args[0])} == {str} else listed
        return partial(_row, [_reader(each, bounds) for each in args])
    if origin is not None and issubclass(origin, Mapping):
        return partial(_table, _reader(args[0], bounds), _reader(args[1], bounds))
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(_built, hint, _fields(hint, bounds))
    return partial(_member, hint) if issubclass(hint, Enum) else _SIMPLE[hint](bounds)


def _built(kind: type, readers: Mapping[str, Reader], plain: Any) -> Any:
    if not isinstance(plain, dict):
        raise _refused(kind.__name__, plain)
    given = {name: readers[name](item) for name, item in plain.items() if name in readers}
    try:
        return kind(**given)
    except TypeError as error:  # a field without default is missing
        raise WireError(f"{kind.__name__}: {error}") from None


def _fields(kind: type, bounds: Bounds) -> Mapping[str, Reader]:
    hints, own = get_type_hints(kind), getattr(kind, "plain_forms", {})
    names = [field.name for field in fields(kind)]
    return {name: own[name][1] if name in own else _reader(hints[name], bounds) for name in names}


def _listed(each: Reader, plain: Any) -> tuple[Any, ...]:
    return tuple(map(each, items(plain)))


def _as_before(read: Reader, last: list[tuple[Any, Any]], plain: Any) -> Any:
    """Texts that are those of the last time are read once, and kept once: all decisions of a job look at the same settings."""
    before, made = last[0]
    if plain != before:
        made = read(plain)
        last[0] = plain, made
    return made


def _row(readers: list[Reader], plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list) or len(plain) != len(readers):
        raise _refused(f"a list of {len(readers)}", plain)
    return tuple([read(item) for read, item in zip(readers, plain, strict=True)])


def _table(name: Reader, item: Reader, plain: Any) -> dict[Any, Any]:
    if not isinstance(plain, dict):
        raise _refused("a table", plain)
    return {name(key): item(value) for key, value in plain.items()}


def _member(kind: type[Enum], plain: Any) -> Enum:
    try:
        return kind(plain)
    except ValueError:
        raise _refused(f"one of {kind.__name__}", plain) from None


# Partial functions, not functions that call others: a ledger has millions of values.
_SIMPLE: Mapping[type, Callable[[Bounds], Reader]] = {
    str: lambda bounds: partial(plain_text, most=bounds.text),
    int: lambda bounds: partial(bounded_whole, low=1 - bounds.whole if bounds.signed else 0, high=bounds.whole - 1),
    float: lambda bounds: partial(real, below=bounds.real, low=-bounds.real if bounds.signed else 0),
    bool: lambda bounds: truth,
}

# --- one value. name: what it is called in the complaint

A_VALUE = "a value"


def plain_text(value: Any, most: int | None = None, name: str = A_VALUE) -> str:
    """most: characters, None for any number."""
    if not isinstance(value, str) or (most is not None and len(value) > most):
        raise _refused("a text" if most is None else f"a text of up to {most} characters", value, name)
    return value


def bounded_whole(value: Any, low: int, high: int, name: str = A_VALUE) -> int:
    """Both bounds included. JSON's true and false are no numbers, though Python's are."""
    if type(value) is not int or not low <= value <= high:
        raise _refused(f"a whole number from {low} to {high}", value, name)
    return value


def real(value: Any, below: float, name: str = A_VALUE, low: float = 0) -> float:
    """From `low`, and less than `below`; none of JSON's NaN and Infinity."""
    if type(value) not in (int, float) or not low <= value < below:
        raise _refused("a number" if low else "a number of 0 or more", value, name)
    return float(value)


def truth(value: Any, name: str = A_VALUE) -> bool:
    if not isinstance(value, bool):
        raise _refused("true or false", value, name)
    return value


def items(value: Any, most: int = 1 << 24, name: str = A_VALUE) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise _refused(f"a list of up to {most} items", value, name)
    return value


def _refused(wanted: str, value: Any, name: str = A_VALUE) -> WireError:
    """Of what is nested only its kind is said: printing it could end in a RecursionError."""
    shown = repr(value)[:40] if value is None or isinstance(value, (str, float, bool)) else type(value).__name__
    return WireError(f"{name} should be {wanted}, not {shown}")

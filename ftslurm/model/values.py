"""`dataclass(frozen=True, slots=True)` and `replace` as the standard library has them, in a tenth and in a third of the time.

The standard one writes the source of six methods for each class and compiles it: 0.5 to 0.8 ms a class. ftrun makes two
hundred classes before it can start a step, and that was half of what it cost more than srun. Here the six methods are
written once, and look the fields up. All else is left to the standard one: `field`, `fields`, `asdict`, `match`.
Type checkers are told that it is the standard one. To make an object takes up to 1 us longer; to read a ledger is eight times
`replace` a record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def replace(value, /, **changes):
        """Any other kind of value is left to the standard one."""
        return (_replace if hasattr(value, "_slots_") else dataclasses.replace)(value, **changes)

    def dataclass(*, frozen=False, slots=False, **others):
        """Any other kind of data class than those that are frozen, with slots, is the standard one."""
        return _value if frozen and slots and not others else dataclasses.dataclass(frozen=frozen, slots=slots, **others)


def _value(cls: type) -> type:
    own = set(vars(cls))
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard one would write the signature there, which is slow
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    found = dataclasses.fields(made)
    compared = [field.name for field in found if field.compare]
    made._slots_ = tuple((field.name, getattr(made, field.name).__set__) for field in found)
    made._values_ = staticmethod(attrgetter(*(field.name for field in found), "__class__", "__class__"))  # a tuple, however few
    made._defaults_ = {field.name: field.default for field in found if field.default is not dataclasses.MISSING}
    made._factories_ = {field.name: field.default_factory for field in found if field.default_factory is not dataclasses.MISSING}
    made._compared_ = staticmethod(attrgetter(*compared) if compared else _nothing)
    for name, method in _METHODS.items():
        if name not in own:
            setattr(made, name, method)
    result: type = made
    return result


def _nothing(self: Any) -> tuple[()]:
    return ()


def _init(self: Any, *given: Any, **named: Any) -> None:
    slots, defaults = self._slots_, self._defaults_
    if len(given) > len(slots):
        raise TypeError(f"{type(self).__name__} has {len(slots)} fields, and {len(given)} were given")
    for (_, put), item in zip(slots, given, strict=False):
        put(self, item)
    for name, put in slots[len(given) :]:
        put(self, named.pop(name) if name in named else defaults[name] if name in defaults else _made(self, name))
    if named:
        raise TypeError(f"{type(self).__name__} got {', '.join(named)}, twice or without such a field")


def _made(self: Any, name: str) -> Any:
    factories: Mapping[str, Callable[[], Any]] = self._factories_
    if name in factories:
        return factories[name]()
    raise TypeError(f"{type(self).__name__} lacks its field {name}")


def _replace(value: Any, /, **changes: Any) -> Any:
    cls = type(value)
    made = object.__new__(cls)
    for (_, put), item in zip(cls._slots_, cls._values_(value), strict=False):
        put(made, item)
    for name, item in changes.items():
        object.__setattr__(made, name, item)
    return made


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__match_args__)})"


def _eq(self: Any, other: Any) -> Any:
    return self._compared_(self) == self._compared_(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(self._compared_(self))


def _setattr(self: Any, name: str, item: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
    """For pickle and copy, which would assign."""
    return type(self), tuple(getattr(self, name) for name in self.__match_args__)


_METHODS: Mapping[str, Callable[..., Any]] = {
    "__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__setattr__": _setattr, "__delattr__": _delattr,
    "__reduce__": _reduce,
}  # fmt: skip

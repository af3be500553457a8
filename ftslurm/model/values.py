"""`dataclass`, `field`, `fields`, `is_dataclass` and `replace` as the standard library has them, in a fraction of their time.

The standard one writes the source of six methods for each class and compiles it: 0.5 to 0.8 ms a class. ftrun makes four
hundred classes before it can start a step, and that was half of what it cost more than srun. Here the methods are written
once, and look the fields up. The standard module, which loads `inspect` and so 6 ms, is loaded when somebody asks it for
something (`asdict`, its own `fields`), and makes its list of the fields then. Type checkers are told that all is the standard
one. To make an object takes up to 1 us longer; to read a ledger is eight times `replace` a record.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import MISSING as MISSING
    from dataclasses import Field as Field
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import is_dataclass as is_dataclass
    from dataclasses import replace as replace
else:
    MISSING = object()

    class Field:
        """As one field is written in its class, and as `fields` tells of it."""

        __slots__ = ("compare", "default", "default_factory", "metadata", "name")

        def __init__(self, default=MISSING, default_factory=MISSING, compare=True, metadata=None, name=""):
            self.default, self.default_factory, self.compare = default, default_factory, compare
            self.metadata, self.name = metadata or {}, name

        def standard(self):
            import dataclasses

            known = {"default": self.default, "default_factory": self.default_factory}
            given = {name: item for name, item in known.items() if item is not MISSING}
            return dataclasses.field(**given, compare=self.compare, metadata=self.metadata)

    def field(*, default=MISSING, default_factory=MISSING, compare=True, metadata=None):
        return Field(default, default_factory, compare, metadata)

    def fields(kind):
        if hasattr(kind, "_listed_"):
            return kind._listed_
        import dataclasses

        return dataclasses.fields(kind)

    def is_dataclass(kind):
        return hasattr(kind, "_given_") or hasattr(kind, "__dataclass_fields__")

    def replace(value, /, **changes):
        """Any other kind of value is left to the standard one."""
        if hasattr(value, "_slots_"):
            return _replace(value, **changes)
        import dataclasses

        return dataclasses.replace(value, **changes)

    def dataclass(*, frozen=False, slots=False):
        """For those with slots; for another kind, import the standard one."""
        assert slots
        return partial(_with_slots, _OF_FROZEN if frozen else _OF_ALL)


def _with_slots(methods: Mapping[str, Callable[..., Any] | None], cls: type) -> type:
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard one would write the signature there, which is slow
    body = {name: item for name, item in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    own = [name for name, hint in cls.__annotations__.items() if not str(hint).startswith("ClassVar")]
    inherited: Mapping[str, Any] = getattr(cls, "_given_", {})
    given = {**inherited, **{name: body.pop(name, MISSING) for name in own}}
    assert not any(type(item).__module__ == "dataclasses" for item in given.values()), "`field` is to be that of this module"
    named = {name: item for name, item in given.items() if isinstance(item, Field)}
    compared = [name for name in given if name not in named or named[name].compare]
    defaults = given | {name: item.default for name, item in named.items()}
    factories = {name: item.default_factory for name, item in named.items()}
    made: Any = type(cls)(cls.__name__, cls.__bases__, {
        **methods, **body, "__slots__": [name for name in own if name not in inherited], "__match_args__": tuple(given),
        "__dataclass_fields__": _Fields(cls), "_given_": given,
        "_defaults_": {name: item for name, item in defaults.items() if item is not MISSING},
        "_factories_": {name: make for name, make in factories.items() if make is not MISSING}, "_listed_": _Listed(),
        "_compared_": staticmethod(attrgetter(*compared) if compared else _nothing),
        "_values_": staticmethod(attrgetter(*given, "__class__", "__class__")),  # a tuple, however few
    })  # fmt: skip
    made.__qualname__ = cls.__qualname__
    made._slots_ = tuple((name, getattr(made, name).__set__) for name in given)
    made._puts_ = tuple(put for _, put in made._slots_)
    result: type = made
    return result


_MAKING = RLock()


class _Listed:
    """What `fields` gives, made when it is asked for."""

    def __get__(self, _: object, owner: Any) -> tuple[Any, ...]:
        kind: Any = Field
        given = {name: item if isinstance(item, kind) else kind(item) for name, item in owner._given_.items()}
        return tuple(kind(f.default, f.default_factory, f.compare, f.metadata, name) for name, f in given.items())


class _Fields:
    """The standard list of the fields, until it is asked for. plain: the class as it was written, without slots."""

    def __init__(self, plain: type) -> None:
        self._plain = plain
        self._known: object = None

    def __get__(self, _: object, owner: Any) -> object:
        import dataclasses

        with _MAKING:  # the standard one changes the class that it is given: no two threads at once
            if self._known is None:
                for name, item in [*vars(self._plain).items()]:
                    if isinstance(item, Field):
                        setattr(self._plain, name, item.standard())  # type: ignore[attr-defined]
                for name, item in [*vars(self._plain).items()]:
                    if isinstance(item, Field):
                        setattr(self._plain, name, item.standard())  # type: ignore[attr-defined]
                known: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(self._plain)
                made = next(each for each in owner.__mro__ if vars(each).get("__dataclass_fields__") is self)
                made.__dataclass_params__ = known.__dataclass_params__
                self._known = made.__dataclass_fields__ = known.__dataclass_fields__
            return self._known


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
    for put, item in zip(cls._puts_, cls._values_(value), strict=False):
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
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
    """For pickle and copy, which would assign."""
    return type(self), tuple(getattr(self, name) for name in self.__match_args__)


_OF_ALL: Mapping[str, Callable[..., Any] | None] = {
    "__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": None, "__reduce__": _reduce,
}  # fmt: skip
_OF_FROZEN = {**_OF_ALL, "__hash__": _hash, "__setattr__": _setattr, "__delattr__": _delattr}

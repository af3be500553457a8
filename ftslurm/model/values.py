"""`Value`, the base of values, and `field`, `fields`, `is_dataclass`, `replace` as the standard library's data classes have them.

    class Beat(Value):
        rank: int
        at: float = 0.0

A subclass of `Value` is a data class with slots, frozen unless it says `frozen=False`, and made in a fraction of the standard
one's time. That writes the source of six methods for each class and compiles it: 0.5 to 0.8 ms a class. ftrun makes four hundred
classes before it can start a step, and that was half of what it cost more than srun. Here the methods are written once, and
look the fields up. The standard module, which loads `inspect` and so 6 ms, is loaded when somebody asks it for something
(`asdict`, its own `fields`), and makes its list of the fields then. Type checkers are told that all is the standard one. To make
an object takes up to 1 us longer, until there are MANY of its class.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Mapping
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import MISSING as MISSING
    from dataclasses import Field as Field
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import is_dataclass as is_dataclass
    from dataclasses import replace as replace

    from typing_extensions import dataclass_transform
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
        if not hasattr(value, "_slots_"):
            import dataclasses

            return dataclasses.replace(value, **changes)
        made = type(value)._copy_(value)
        for name, item in changes.items():
            object.__setattr__(made, name, item)
        return made

    def dataclass_transform(**_):
        return lambda cls: cls


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class _Values(type):
    """The class of such classes."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], *, frozen: bool = True) -> _Values:
        own = {each: hint for each, hint in body.get("__annotations__", {}).items() if not str(hint).startswith("ClassVar")}
        above: Any = bases[0] if bases else None
        inherited: Mapping[str, Any] = getattr(above, "_given_", {})
        given = {**inherited, **{each: body.pop(each, MISSING) for each in own}}
        assert not any(type(item).__module__ == "dataclasses" for item in given.values()), "`field` is to be that of this module"
        made: Any = super().__new__(cls, name, bases, {
            **(_OF_FROZEN if frozen else _OF_ALL), **body, "__slots__": [each for each in own if each not in inherited],
            "__match_args__": tuple(given), "_given_": given, "_hints_": {**getattr(above, "_hints_", {}), **own},
        })  # fmt: skip
        result: _Values = made
        return result


class _Late:
    """What the methods below look up in a class, made for its first object: of most classes a step that ends well has none."""

    def __init__(self, name: str, make: Callable[[Any], object]) -> None:
        self.name, self.make = name, make

    def __get__(self, _: object, owner: Any) -> object:
        made = self.make(owner)
        setattr(owner, self.name, made)
        return made


def _slots(owner: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((each, getattr(owner, each).__set__) for each in owner._given_)


def _fields(owner: Any) -> Mapping[str, Field[Any]]:
    """Of those that `field` has made."""
    return {each: item for each, item in owner._given_.items() if isinstance(item, Field)}


def _defaults(owner: Any) -> Mapping[str, object]:
    defaults = owner._given_ | {each: item.default for each, item in _fields(owner).items()}
    return {each: item for each, item in defaults.items() if item is not MISSING}


def _factories(owner: Any) -> Mapping[str, object]:
    return {each: item.default_factory for each, item in _fields(owner).items() if item.default_factory is not MISSING}


def _compared(owner: Any) -> Callable[[Any], object]:
    named = _fields(owner)
    return attrgetter(*[each for each in owner._given_ if each not in named or named[each].compare] or ["__class__"])


_MAKING = RLock()
# Of one class. To make or copy so many takes longer than to compile a method for it, which takes a fourth for each further one.
MANY = 100


def _listed(owner: Any) -> tuple[Any, ...]:
    kind: Any = Field
    given = {name: item if isinstance(item, kind) else kind(item) for name, item in owner._given_.items()}
    return tuple(kind(f.default, f.default_factory, f.compare, f.metadata, name) for name, f in given.items())


class _Fields:
    """The standard list of the fields, until it is asked for: the standard library makes it of a class that has them too."""

    def __get__(self, _: object, owner: Any) -> object:
        import dataclasses

        with _MAKING:  # the standard one changes the class that it is given: no two threads at once
            if vars(owner)["__dataclass_fields__"] is self:
                kind: Any = Field
                given = {name: item.standard() if isinstance(item, kind) else item for name, item in owner._given_.items()}
                body = {name: item for name, item in given.items() if item is not MISSING}
                about = {"__module__": owner.__module__, "__annotations__": owner._hints_, "__doc__": ""}
                known: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(type(owner.__name__, (), body | about))
                owner.__dataclass_params__, owner.__dataclass_fields__ = known.__dataclass_params__, known.__dataclass_fields__
            return owner.__dataclass_fields__


def _init(self: Any, *given: Any, **named: Any) -> None:
    slots, defaults = self._slots_, self._defaults_
    if next(self._count_) == MANY:
        type(self).__init__ = _compiled_init(type(self))
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


def _copier(owner: Any) -> Callable[[Any], Any]:
    """Copies an object."""
    puts, copies = tuple(put for _, put in owner._slots_), count()
    values = attrgetter(*owner._given_, "__class__", "__class__")  # a tuple, however few

    def copy(value: Any) -> Any:
        if next(copies) == MANY:
            owner._copy_ = _compiled_copy(owner)
        made = object.__new__(owner)
        for put, item in zip(puts, values(value), strict=False):
            put(made, item)
        return made

    return copy


def _compiled_copy(owner: Any) -> Any:
    return _compiled(owner, "_value_", "_made_ = _new_(_loose_)", {name: f"_value_.{name}" for name in owner._given_}, "_made_")


def _compiled_init(owner: Any) -> Any:
    defaults, factories = owner._defaults_, owner._factories_
    taken = {name: f"=_defaults_['{name}']" if name in defaults else "=_none_" * (name in factories) for name in owner._given_}
    values = {name: f"_factories_['{name}']() if {name} is _none_ else {name}" for name in factories}
    head = ", ".join(["_made_", *map("".join, taken.items())])
    return _compiled(owner, head, "_put_(_made_, '__class__', _loose_)", {name: values.get(name, name) for name in taken}, "None")


def _compiled(owner: Any, head: str, begin: str, values: Mapping[str, str], end: str) -> Any:
    """A function that assigns all fields to an object of a class with the same slots, which then becomes one of the owner's."""
    names = {
        "_owner_": owner, "_loose_": _Values(owner.__name__, (owner,), {}, frozen=False), "_new_": object.__new__,
        "_put_": object.__setattr__, "_none_": MISSING, "_defaults_": owner._defaults_, "_factories_": owner._factories_,
    }  # fmt: skip
    lines = [f"_made_.{name} = {value}" for name, value in values.items()]
    exec("\n ".join([f"def _({head}):", begin, *lines, "_made_.__class__ = _owner_", f"return {end}"]), names)  # noqa: S102
    return names["_"]


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


_OF_ALL: Mapping[str, Any] = {
    "__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": None, "__reduce__": _reduce,
    "__setattr__": object.__setattr__, "__delattr__": object.__delattr__,
    "__dataclass_fields__": _Fields(), "_listed_": _Late("_listed_", _listed),
    "_slots_": _Late("_slots_", _slots), "_defaults_": _Late("_defaults_", _defaults),
    "_count_": _Late("_count_", lambda owner: count()),
    "_copy_": _Late("_copy_", _copier),
    "_factories_": _Late("_factories_", _factories), "_compared_": _Late("_compared_", _compared),
}  # fmt: skip
_OF_FROZEN = {**_OF_ALL, "__hash__": _hash, "__setattr__": _setattr, "__delattr__": _delattr}


class Value(metaclass=_Values):
    """What is known, decided or has happened: equal where its fields are."""

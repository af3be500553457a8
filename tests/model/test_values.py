"""Our data class beside the standard one: whatever is done to a value comes out the same."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ftslurm.model import values

# What `site` of some Pythons loads is not ours.
PATHS = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


class Ours(values.Value):
    """A value."""

    a: int
    b: str = "b"
    c: Mapping[str, int] = values.field(default_factory=dict)
    d: bool = values.field(default=False, compare=False, metadata={"unit": "s"})

    @property
    def twice(self) -> int:
        return 2 * self.a


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    """A value."""

    a: int
    b: str = "b"
    c: Mapping[str, int] = dataclasses.field(default_factory=dict)
    d: bool = dataclasses.field(default=False, compare=False, metadata={"unit": "s"})

    @property
    def twice(self) -> int:
        return 2 * self.a


class Often(Ours):
    """A value."""


class Bare(values.Value): ...


def matched(it: Any) -> object:
    match it:
        case Ours(a, b) | Theirs(a, b):
            return a, b
    return None


def failed(work: Callable[[], object]) -> type[Exception]:
    with pytest.raises((TypeError, AttributeError)) as caught:
        work()
    return caught.type


DONE: Mapping[str, Callable[[type[Any]], object]] = {
    "positional": lambda kind: dataclasses.astuple(kind(1, "x", {"y": 2}, True)),
    "named": lambda kind: dataclasses.asdict(kind(b="x", a=1)),
    "defaults": lambda kind: dataclasses.astuple(kind(1)),
    "a-new-default-each": lambda kind: kind(1).c is kind(1).c,
    "equal": lambda kind: (kind(1) == kind(1, "b"), kind(1) == kind(2), kind(1) == (1, "b", {}), kind(1, d=True) == kind(1)),
    "unlike-others": lambda kind: kind(1) == Bare(),
    "hash": lambda kind: hash(kind(1, c=())) == hash(kind(1, "b", (), True)) != hash(kind(2, c=())),
    "hash-of-what-has-none": lambda kind: failed(lambda: hash(kind(1))),
    "text": lambda kind: repr(kind(1, "x")).replace(kind.__name__, "It"),
    "replaced": lambda kind: dataclasses.astuple(dataclasses.replace(kind(1), b="y")),
    "fields": lambda kind: [(f.name, f.type, dict(f.metadata)) for f in dataclasses.fields(kind)],
    "matched": lambda kind: matched(kind(1)),
    "copied": lambda kind: (copy.copy(kind(1)) == kind(1), copy.deepcopy(kind(1)) == kind(1)),
    "pickled": lambda kind: pickle.loads(pickle.dumps(kind(1, "x"))) == kind(1, "x"),
    "property": lambda kind: kind(2).twice,
    "no-dict": lambda kind: hasattr(kind(1), "__dict__"),
    "set": lambda kind: failed(lambda: setattr(kind(1), "a", 2)),
    "deleted": lambda kind: failed(lambda: delattr(kind(1), "a")),
    "too-many": lambda kind: failed(lambda: kind(1, 2, 3, 4, 5)),
    "too-few": lambda kind: failed(lambda: kind()),
    "unknown": lambda kind: failed(lambda: kind(1, z=1)),
    "twice": lambda kind: failed(lambda: kind(1, a=1)),
    "doc": lambda kind: kind.__doc__,
}


@pytest.mark.parametrize("what", DONE)
def test_is_the_standard_one(what: str) -> None:
    assert DONE[what](Ours) == DONE[what](Theirs)


@pytest.mark.parametrize("what", DONE)
def test_is_so_as_well_once_many_were_made_and_copied(what: str) -> None:
    for _ in range(values.MANY + 2):
        values.replace(Often(1), b="x")
    assert DONE[what](Often) == DONE[what](Theirs) and values.replace(Often(1), b="x") == Often(1, "x") != Often(1)


def test_without_fields_all_are_equal() -> None:
    assert (Bare(), hash(Bare()), repr(Bare())) == (Bare(), hash(Bare()), "Bare()")


def test_one_that_is_not_frozen_changes() -> None:
    class Changing(values.Value, frozen=False):
        a: int

    changing = Changing(1)
    changing.a = 2
    assert changing == Changing(2)


def test_tells_its_fields_without_the_standard_library() -> None:
    told = [(each.name, each.default, dict(each.metadata)) for each in values.fields(Ours)[:2] + values.fields(Ours)[3:]]
    assert told == [("a", values.MISSING, {}), ("b", "b", {}), ("d", False, {"unit": "s"})]
    assert values.fields(Ours)[2].default_factory is dict
    assert [each.name for each in values.fields(Theirs(1))] == [each.name for each in values.fields(Ours(1))]
    assert [values.is_dataclass(each) for each in (Ours, Ours(1), Theirs, Theirs(1), int)] == [True] * 4 + [False]


def test_the_standard_field_is_refused_where_it_would_be_a_value() -> None:
    with pytest.raises(AssertionError, match="of this module"):

        class Mixed(values.Value):
            a: list[int] = dataclasses.field(default_factory=list)


def test_a_start_of_ftrun_does_not_load_the_standard_one() -> None:
    """With `inspect` below it, it takes 6 ms, and each class of its kind as much as twenty of ours."""
    ask = "import ftslurm.cli.ftrun, ftslurm.wrapper.controller.joining, sys; print({'dataclasses', 'inspect'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-S", "-c", ask], capture_output=True, text=True, timeout=180, check=True, env=PATHS)
    assert done.stdout == "set()\n"


def test_threads_that_ask_for_the_fields_at_once_have_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base(values.Value):
        one: int
        many: dict[str, int] = values.field(default_factory=dict)

    class Below(Base):
        two: int = 2

    usual, all_ask = dataclasses.dataclass, threading.Barrier(4)

    def slow(**how: Any) -> Callable[[type], type]:
        def made(cls: type) -> type:
            time.sleep(0.05)
            return usual(**how)(cls)

        return made

    def ask(kind: Any) -> list[tuple[str, bool]]:
        all_ask.wait(10.0)
        return [(each.name, each.default_factory is dict) for each in dataclasses.fields(kind)]

    monkeypatch.setattr(dataclasses, "dataclass", slow)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, [Below, Base, Below, Base]))
    assert found == [[("one", False), ("many", True), ("two", False)], [("one", False), ("many", True)]] * 2

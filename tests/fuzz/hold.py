"""What every parser owes to every input: an answer of the declared type or an error of ours, soon, and in little memory.

Time is CPU time, so that a busy machine makes no test fail; memory is address space beyond what the process had before.
"""

from __future__ import annotations

import faulthandler
import math
import resource
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis.strategies import SearchStrategy

from ftslurm.errors import FtslurmError

CPU_S = 5.0  # of one example
LOOK_S = 0.5
MEMORY_BYTES = 1 << 30  # of all examples of one parser; RE2 may ask for 64 MB an automaton
_PAGE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Parser:
    """inputs: what `read` is given. gives: the type of its answer, checked to the last part. raises: all that it may raise."""

    name: str
    inputs: SearchStrategy[Any]
    read: Callable[[Any], Any]
    gives: Any
    raises: tuple[type[BaseException], ...] = (FtslurmError,)


class _TooLong(BaseException):
    """Of no class that a parser might catch."""


class _Watch:
    """begun: CPU time of the process when the example began, None between two."""

    begun: float | None = None

    @classmethod
    def look(cls, *_: object) -> None:
        if cls.begun is not None and time.process_time() - cls.begun > CPU_S:
            raise _TooLong


@contextmanager
def bounded(stuck_s: float) -> Iterator[None]:
    """Around several examples, for to set it up costs more than most of them.

    stuck_s: a loop inside a C function that never looks at signals ends with the whole process after so long.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGPROF, _Watch.look)
    faulthandler.dump_traceback_later(stuck_s, exit=True, file=sys.__stderr__ or 2)
    most = [limit for limit in (soft, hard, pages * _PAGE + MEMORY_BYTES) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    signal.setitimer(signal.ITIMER_PROF, LOOK_S, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGPROF, before)


def hold(parser: Parser, given: Any) -> bool:
    """Did the parser take it, not refuse it? Within `bounded`. Raises: AssertionError where it owes something."""
    try:
        _Watch.begun = time.process_time()
        try:
            answer = parser.read(given)
        finally:
            _Watch.begun = None
    except _TooLong:
        raise AssertionError(f"more than {CPU_S:g} s of CPU time") from None
    except MemoryError:
        raise AssertionError(f"more than {MEMORY_BYTES >> 20} MiB of memory") from None
    except parser.raises as error:
        assert isinstance(str(error), str)
        return False
    assert (wrong := next(misfits(answer, parser.gives, "answer"), "")) == "", wrong
    return True


# --- types


def misfits(value: Any, hint: Any, where: str) -> Iterator[str]:
    """Where `value` is not what `hint` says. Stricter than a type checker: a bool is no int, and NaN is no number."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return
    if origin in (Union, types.UnionType):
        if all(any(misfits(value, one, where)) for one in inner):
            yield f"{where} is {_short(value)}, not {hint}"
    elif origin is tuple and inner and inner[-1] is not Ellipsis:
        if not isinstance(value, tuple) or len(value) != len(inner):
            yield f"{where} is {_short(value)}, not {hint}"
        else:
            for index, (item, one) in enumerate(zip(value, inner, strict=True)):
                yield from misfits(item, one, f"{where}[{index}]")
    elif origin is type:
        if not (isinstance(value, type) and issubclass(value, inner[0])):
            yield f"{where} is {_short(value)}, not a {inner[0].__name__}"
    elif origin is not None:
        yield from _misfits_of_collection(value, origin, inner, where)
    elif not _is_of(value, hint):
        yield f"{where} is {_short(value)}, not {getattr(hint, '__name__', hint)}"
    elif is_dataclass(hint):
        for name, one in _hints(value.__class__).items():
            yield from misfits(getattr(value, name), one, f"{where}.{name}")


def _misfits_of_collection(value: Any, origin: Any, inner: tuple[Any, ...], where: str) -> Iterator[str]:
    if not isinstance(value, origin):
        yield f"{where} is {_short(value)}, not {origin.__name__}"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from misfits(key, inner[0], f"{where}, key")
            yield from misfits(item, inner[1], f"{where}[{_short(key)}]")
    else:
        for item in value:
            yield from misfits(item, inner[0], f"{where}, item")


def _is_of(value: Any, hint: Any) -> bool:
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if hint in (int, str, bool, bytes):
        return type(value) is hint
    return isinstance(value, hint)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _short(value: Any) -> str:
    try:
        return repr(value)[:80]
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"

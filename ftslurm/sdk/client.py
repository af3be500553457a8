"""What a training program can tell ftrun, and ask. Nothing here raises into the training, or costs anything without ftrun.

    from ftslurm.sdk import client as ft

    ft.heartbeat()                      # I live
    ft.progress(step)                   # this training step is done
    ft.checkpoint(step)                 # a checkpoint is complete: `ftslurm control JOB stop --after-checkpoint` may wait for it
    with ft.section("checkpoint"): ...  # ft.start_section(name), ft.end_section(name)
    with ft.hang_interval(180): ...     # here, 180 s without a sign is a hang; -1: nothing is. Also as a decorator
    ft.message("the loss is NaN")       # for people
    ft.retriable(["connect timeout"])   # an error with these words in it is worth another try
    ft.leave_this_node("ECC errors"), ft.shut_down("diverged"), ft.restart_info()

A process becomes watched with its first heartbeat, section or progress. A forked child of it is not: it keeps silent.
"""

from __future__ import annotations

import os
from _thread import RLock
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, Iterable, NamedTuple, TypeVar, cast  # noqa: UP035 -- training environments are older

from ftslurm.sdk import notes
from ftslurm.sdk.page import NAMES_MAX, VARIABLE, Page, claim

_Function = TypeVar("_Function", bound=Callable[..., Any])
_quietly = suppress(Exception)


class RestartInfo(NamedTuple):
    """Whether, and how, this run of the program follows on another.

    rung, cause: the last remedy and what it was for, as in FTSLURM_RESTART_RUNG and _CAUSE; empty at first.
    schedule_count: how often this slot was scheduled. start_count: how often the command ran on it since.
    attempt: number of this start over the whole life of the job. shared_memory_survived: /dev/shm, /tmp and what the last
    run loaded into the page cache are as it left them.
    """

    is_restart: bool
    rung: str
    cause: str
    schedule_count: int
    start_count: int
    attempt: int
    shared_memory_survived: bool


# --- the page of this process


def _nothing(*_: object, **__: object) -> None:
    pass


class _Nowhere:
    """Where there is no page: whatever is told does nothing."""

    begin = over = beat = step = warmup = stage = checkpoint = open = close = close_all = _nothing


_NO_PAGE = cast(Page, _Nowhere())


class _FirstUse:
    """Stands where the page will be until something is told for the first time."""

    def __getattr__(self, name: str) -> Any:
        # The others say nothing of heartbeats yet, so they are not watched for it.
        return getattr(_begun() if name in ("beat", "step", "warmup", "open") else page() or _NO_PAGE, name)


_FIRST_USE = _FirstUse()
_page: Page | _FirstUse = _FIRST_USE  # what is written to
_claimed: Page | None = None  # None: not asked for yet


# For what happens once, and in two threads at once. A child that is forked meanwhile finds it taken for ever, hence the
# time limit: it has no page then.
_once = RLock()
_ONCE_S = 1.0


def page(even_in_a_child: bool = False) -> Page | None:
    """The page of this process, made if need be; None without ftrun, and in a forked child of a process that has one.

    even_in_a_child: a forked one gets a page of its own.
    """
    global _claimed
    if even_in_a_child and _claimed is _NO_PAGE:
        _claimed = None
    if _claimed is None and _once.acquire(timeout=_ONCE_S):
        try:
            if _claimed is None:
                _claimed = _claim()
        finally:
            _once.release()
    return None if _claimed is _NO_PAGE else _claimed


def _claim() -> Page:
    path = os.environ.get(VARIABLE, "")
    found = claim(path, _number(os.environ.get("FTSLURM_ATTEMPT", ""), 0), notes.rank_of(os.environ)) if path else None
    if found is None:
        return _NO_PAGE
    os.register_at_fork(after_in_child=_keep_silent)
    return found


def begin(even_in_a_child: bool = False) -> Page:
    """The program reports from now on. even_in_a_child: a forked one gets a page of its own."""
    global _page, _claimed
    try:
        begun = page(even_in_a_child) or _NO_PAGE
        begun.begin()
    except Exception:
        begun = _NO_PAGE
    _page = begun
    return begun


def over() -> None:
    """The program reports no more, and is not watched."""
    with _quietly:
        _page.over()


def _begun() -> Page:
    if _once.acquire(timeout=_ONCE_S):
        try:
            return begin() if isinstance(_page, _FirstUse) else _page
        finally:
            _once.release()
    return _NO_PAGE


def _keep_silent() -> None:
    global _page, _claimed
    _page = _claimed = _NO_PAGE


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isdigit() and len(text) < 10 else otherwise


# --- signs of life


def heartbeat() -> None:
    """The rank lives."""
    try:
        _page.beat()
    except Exception:
        pass


def progress(step: int) -> None:
    """Training step `step` is done."""
    with _quietly:
        _page.step(int(step))


def checkpoint(step: int | None = None) -> None:
    """A checkpoint is complete on disk, of training step `step`: to be called where that is known, on one rank or on all."""
    with _quietly:
        _page.checkpoint(None if step is None else int(step))


def start_section(name: str) -> None:
    """A part of the program begins that has a time limit of its own. One that is open already begins anew."""
    try:  # as in heartbeat: the context manager would double the cost
        _page.open(name)
    except Exception:
        pass


def end_section(name: str) -> None:
    """It ends; nothing happens if it was not open."""
    try:
        _page.close(name)
    except Exception:
        pass


def end_all_sections() -> None:
    with _quietly:
        _page.close_all()


class _Scope:
    """A context manager that decorates as well: functions, coroutines and generators, for as long as they run."""

    __slots__ = ()

    def __enter__(self) -> _Scope:
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        raise NotImplementedError

    def again(self) -> _Scope:
        """One as this, for one more call of a decorated function."""
        raise NotImplementedError

    def __call__(self, function: _Function) -> _Function:
        import functools
        import inspect

        if inspect.iscoroutinefunction(function):
            around = _around_coroutine(function, self.again)
        elif inspect.isasyncgenfunction(function):
            around = _around_async_generator(function, self.again)
        elif inspect.isgeneratorfunction(function):
            around = _around_generator(function, self.again)
        else:
            around = _around_function(function, self.again)
        return cast(_Function, functools.wraps(function)(around))


_Again = Callable[[], _Scope]


def _around_function(function: Callable[..., Any], again: _Again) -> Callable[..., Any]:
    def around(*given: Any, **named: Any) -> Any:
        with again():
            return function(*given, **named)

    return around


def _around_coroutine(function: Callable[..., Any], again: _Again) -> Callable[..., Any]:
    async def around(*given: Any, **named: Any) -> Any:
        with again():
            return await function(*given, **named)

    return around


def _around_generator(function: Callable[..., Any], again: _Again) -> Callable[..., Any]:
    def around(*given: Any, **named: Any) -> Any:
        with again():
            return (yield from function(*given, **named))

    return around


def _around_async_generator(function: Callable[..., Any], again: _Again) -> Callable[..., Any]:
    async def around(*given: Any, **named: Any) -> Any:
        with again():
            async for item in function(*given, **named):
                yield item

    return around


class _Section(_Scope):
    """Entered again before it was left, it stays one section: recursion."""

    __slots__ = ("_depth", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._depth = 0

    def __enter__(self) -> _Section:
        self._depth += 1
        if self._depth == 1:
            try:
                _page.open(self._name)
            except Exception:
                pass
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._depth -= 1
        if not self._depth:
            try:
                _page.close(self._name, kind is None)
            except Exception:
                pass

    def again(self) -> _Section:
        return self


_sections: dict[str, _Section] = {}  # to make one costs as much as to enter it


def section(name: str) -> _Section:
    """`with section("step"):` or `@section("step")`."""
    try:
        return _sections[name]
    except Exception:
        return _new_section(name if isinstance(name, str) else type(name).__name__)


def _new_section(name: str) -> _Section:
    made = _Section(name)
    if len(_sections) >= NAMES_MAX:
        return made
    return _sections.setdefault(name, made)


# --- staged intervals

_NO_INTERVAL = "%r is not an interval: give seconds, or -1 to switch it off"
_base: float | None = None  # seconds that hold where no scope says otherwise
_scopes: list[list[float]] = []  # of those entered and not left, the last one holds; each a list, to be told by identity


def interval(value: Any) -> float | None:
    """Seconds, or -1 for off; None if `value` is neither."""
    try:
        seconds = float(value)
    except Exception:
        return None
    return seconds if seconds == -1 or 0 < seconds <= 1e9 else None


def set_hang_interval(seconds: float | None) -> None:
    """From here on; inside a `hang_interval` only to its end. -1: nothing is a hang; None: as the job's settings say."""
    global _base
    known = None if seconds is None else interval(seconds)
    if seconds is not None and known is None:
        return _warn(_NO_INTERVAL, seconds)
    if _scopes and known is not None:
        _scopes[-1][0] = known
    else:
        _base = known
    _tell_stage()


class hang_interval(_Scope):
    """`with hang_interval(180):` or `@hang_interval(180)`: so many seconds without a sign are a hang, -1: nothing is.

    What held before holds again afterwards, however the scope was left; scopes may nest, and overlap in async code.
    """

    __slots__ = ("_entered", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = interval(seconds)
        self._entered: list[list[float] | None] = []
        if self._seconds is None:
            _warn(_NO_INTERVAL, seconds)

    def __enter__(self) -> hang_interval:
        mine = None if self._seconds is None else [self._seconds]
        self._entered.append(mine)
        if mine is not None:
            _scopes.append(mine)
            _tell_stage()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        mine = self._entered.pop() if self._entered else None
        for place in range(len(_scopes) - 1, -1, -1):
            if _scopes[place] is mine:
                del _scopes[place]
                _tell_stage()
                return

    def again(self) -> hang_interval:
        fresh = hang_interval.__new__(hang_interval)  # a wrong number was complained about once already
        fresh._seconds, fresh._entered = self._seconds, []
        return fresh


def _tell_stage() -> None:
    with _quietly:
        _page.stage(_scopes[-1][0] if _scopes else _base)


def _warn(text: str, *told: object) -> None:
    try:
        import logging

        logging.getLogger("ftslurm.sdk").warning(text, *told)
    except Exception:
        pass


# --- words to people and to ftrun

NOT_THERE = "this rank was not started by ftrun"


def notes_path() -> str:
    """Where notes go; empty without ftrun."""
    path = os.environ.get(VARIABLE, "")
    return path + notes.SUFFIX if path else ""


def tell(write: Callable[..., str], *told: Any) -> str:
    """Write a note by one of notes.write_*. Gives why it could not be told, empty if it was."""
    path = notes_path()
    return write(path, *told) if path else NOT_THERE


def message(text: str) -> bool:
    """Tell the people who follow the job. False if it could not be told."""
    return not tell(notes.write_message, text)


def retriable(words: str | Iterable[str]) -> bool:
    """A failure with one of these words in a rank's last output is worth another try."""
    return not tell(notes.write_retriable, [words] if isinstance(words, str) else words)


def shut_down(reason: str) -> bool:
    """The job shall end, and not be started again. False if that could not be told."""
    return not tell(notes.write_control, "shutdown", reason)


def leave_this_node(reason: str) -> bool:
    """The node that this rank runs on shall be left out from the next start on. False if that could not be told."""
    return not tell(notes.write_control, "exclude", reason)


def restart_info() -> RestartInfo:
    """Source: the environment that ftrun gives each rank."""
    env = os.environ
    schedule, starts, attempt = (
        _number(env.get(name, ""), 1) for name in ("MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "FTSLURM_ATTEMPT")
    )
    return RestartInfo(
        is_restart=max(schedule, starts, attempt) > 1,
        rung=env.get("FTSLURM_RESTART_RUNG", ""),
        cause=env.get("FTSLURM_RESTART_CAUSE", ""),
        schedule_count=schedule,
        start_count=starts,
        attempt=attempt,
        shared_memory_survived=starts > 1,
    )

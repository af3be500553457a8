"""A restart that does not import again, seen from inside the rank's interpreter. Its other half is wrapper/shim/warm.py.

sitecustomize calls it before the program's first line, so that Python itself goes on with script, `-m` or `-c` as ever. The
variable FTSLURM_WARM says which process this is:

`SHIM` (the pid of the shim)  the rank. It notes in `RANK.warm`, beside its page, which modules of EARLY it imports, for
                              as long as nothing has happened that another process could not know of before its own imports.
`SHIM:FD:BYTES`               a spare. It imports what is noted there, and waits for the end of the rank. What the shim then
                              sends is the environment of the next rank: that becomes this process's own, and Python goes on.

A spare that cannot be what a cold start would be says why, and ends. The notes: a line with the CPU time until here
(ms) and the rank's argv, then `=` with sys.path where it has changed, names of modules, `!` with a reason never to import early,
`.` with the reason for the end.
"""

# ruff: noqa: PTH109, PTH115, PTH116, PTH208 -- pathlib would be imported for it

from __future__ import annotations

import builtins
import os
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False  # as in typing, which a rank need not load
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

VARIABLE, PAGE_VARIABLE = "FTSLURM_WARM", "FTSLURM_PAGE"
# Seen to import without a device, a socket, a process or a look at the variables of a rank (tests/wrapper/shim/test_warm.py).
EARLY = frozenset(("numpy", "torch"))
# These begin MPI, open a device or replace parts of the standard library when they are imported.
NEVER = frozenset(("eventlet", "gevent", "habana_frameworks", "mpi4py", "tensorflow", "torch_npu", "torch_xla"))
# What ftrun sets for each start; of all others a module, or a library that it loads, may have made something already.
OF_A_START = (
    "FTSLURM_", "MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE",
)  # fmt: skip
SHARE = 0.2  # of a core, while a spare imports: another process's nice value cannot be lowered again without privilege
LAST_OOM = "1000"  # the kernel takes a spare first, proc(5)


def begin() -> Callable[[], None]:
    """Be a spare until the rank has ended, where this is one. Gives what to call once the path of the program is laid."""
    said = os.environ.pop(VARIABLE, "").split(":")
    page = os.environ.get(PAGE_VARIABLE, "")
    spare, path = len(said) == 3, f"{page.rpartition('.')[0]}.warm"
    if said[0] != str(os.getppid()) or not page:  # not the rank, but below it
        if spare:
            os._exit(1)
        return lambda: None
    if spare:
        from _signal import ITIMER_PROF, setitimer  # type: ignore[import-not-found]

        setitimer(ITIMER_PROF, 0)
        _wait(int(said[1]), int(said[2]), path)
        return lambda: None
    return lambda: _Notes(path).begin()


def joined(words: Iterable[str]) -> str:
    """As one word of a line, whatever is in them."""
    return b"\0".join(map(os.fsencode, words)).hex()


def parted(text: str) -> list[str]:
    return [os.fsdecode(word) for word in bytes.fromhex(text).split(b"\0")]


# --- the rank


class _Notes:
    """Asked first for each module that is not loaded yet; notes those that a spare may import; others find them.

    What packages import by themselves once they are loaded is left to the time when they do.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._sys_path: list[str] = []
        self._state: tuple[object, ...] = ()
        self._beside: set[str] = set()  # top packages that those of EARLY have imported
        self._noted = self._asks = False
        self._inside = 0  # the thread in which a noted module is being imported

    def begin(self) -> None:
        self._write(f"{time.process_time() * 1000:.0f} {joined(sys.orig_argv)}", os.O_CREAT | os.O_TRUNC)
        sys.meta_path.insert(0, self)
        self._state = _state()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        try:
            return self._found(name, path, target) if not self._asks and self._note(name, name.partition(".")[0]) else None
        except Exception as error:
            self._end(f".{type(error).__name__}")
            return None

    def _note(self, name: str, top: str) -> bool:
        """Does the program itself import a module here that a spare may import?"""
        if top in NEVER:
            self._end(f"!the program imports {top}")
        elif top in sys.stdlib_module_names:
            pass
        elif self._inside == get_ident():
            if top in EARLY:
                self._write(name)
            else:
                self._beside.add(top)
        elif _importer() in EARLY | self._beside:
            pass
        elif top not in EARLY:
            if self._noted:  # it may change what is loaded, and so what later modules find
                self._end(f".{top} is imported before the rest")
        elif self._state != _state():
            self._end(f".before it imports {top} the program changes {_difference(self._state, _state())}")
        else:
            self._noted = True
            if sys.path != self._sys_path:
                self._sys_path = list(sys.path)
                self._write(f"={joined(self._sys_path)}")
            self._write(name)
            return True
        return False

    def _found(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """As the others find it. While it is loaded, it and what it imports may change what they like: so they do in a spare."""
        self._asks = True
        try:
            others = (finder for finder in list(sys.meta_path) if finder is not self)
            spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        finally:
            self._asks = False
        loader: Any = spec and spec.loader
        if not hasattr(loader, "exec_module"):
            return spec
        own, usual = "exec_module" in vars(loader), loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if own:
                loader.exec_module = usual
            else:
                del loader.exec_module
            self._inside = get_ident()
            try:
                usual(module)
            finally:
                self._inside, self._state = 0, _state()

        loader.exec_module = exec_module
        return spec

    def _write(self, line: str, begins: int = os.O_APPEND) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | begins, 0o600)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def _end(self, why: str) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            self._write(why)
        except OSError:
            pass


def _importer() -> str:
    """The top package of the code that imports, without what is of the standard library."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        if frame.f_globals is not globals() and top not in sys.stdlib_module_names:
            return top
        frame = frame.f_back
    return ""


_STATE = (
    "its environment", "sys.meta_path", "sys.path_hooks", "how modules are imported", "how libraries are loaded", "its folder",
    "its CPUs", "what runs below it",
)  # fmt: skip


def _state() -> tuple[object, ...]:
    """What of a process an import may depend on, but for sys.path and what is loaded."""
    environ: Any = os.environ
    return (
        dict(environ._data), list(sys.meta_path), list(sys.path_hooks), builtins.__import__, sys.getdlopenflags(), os.getcwd(),
        os.sched_getaffinity(0), _children(),
    )  # fmt: skip


def _difference(one: tuple[object, ...], other: tuple[object, ...]) -> str:
    return next(what for what, mine, theirs in zip(_STATE, one, other, strict=True) if mine != theirs)


def _children() -> list[str]:
    return [child for thread in os.listdir("/proc/self/task") for child in _text(f"/proc/self/task/{thread}/children").split()]


def _text(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


# --- a spare


class _Unlike(BaseException):
    """A spare would not be what a cold start is. Not an Exception: packages that try an import catch those."""


def _wait(fd: int, most_bytes: int, path: str) -> None:
    """Returns as the rank, or not at all."""
    os.set_inheritable(fd, False)
    try:
        oom = _text("/proc/self/oom_score_adj")
        _set_oom(LAST_OOM)
        read, places = _import_early(path)
        if (size := _own_bytes()) > most_bytes:
            raise _Unlike(f"it takes {size >> 20} MB, more than warm.memory")
        env = _next_env(fd, b"ready\n")
        _check_env(env, read)
        if [_stamp(place) for place in places] != list(places.values()):
            raise _Unlike("packages have changed")
        _set_oom(oom)
        _say(fd, b"taken\n")
        if os.read(fd, 1) != b"+":
            os._exit(0)
        os.close(fd)
        os.environ.clear()
        os.environ.update(env)
    except BaseException as error:
        try:
            _say(fd, f"{error if isinstance(error, _Unlike) else repr(error)}\n".encode(errors="replace"))
        finally:
            os._exit(0)


def _import_early(path: str) -> tuple[set[str], dict[str, object]]:
    """What is noted in `path`. Gives the variables that were read for it, and the places of what was found, with their stamps."""
    _, *lines = _text(path).splitlines()
    for line in lines:
        if line[0] == "!":
            raise _Unlike(line[1:])
    own, opened, before = list(sys.path), _opened(), set(sys.modules)
    names = [line for line in lines if line[0] not in "=."]
    if not names:
        raise _Unlike(
            next((line[1:] for line in lines if line[0] == "."), f"the program imports none of {', '.join(sorted(EARLY))}")
        )
    places = {place: _stamp(place) for place in own}
    asked = _watch_environ()
    with _Slow():
        for line in lines:
            if line[0] == "=":
                sys.path[:] = parted(line[1:])
            elif line[0] != "." and line not in sys.modules:
                try:
                    __import__(line)
                except ImportError:
                    pass  # nor could the rank
    read = asked()
    sys.path[:] = own
    sys.path_importer_cache.clear()
    loaded = [name for name in sys.modules if name not in before]
    for name in loaded:
        _check_module(name, own)
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in loaded if "." not in name}
    # Not the others: a program may write into a folder that is on its path.
    places = {place: places[place] for place in own if any(file.startswith(f"{place}/{name}") for name, file in files.items())}
    places |= {place: _stamp(place) for name in EARLY if (place := getattr(sys.modules.get(name), "__file__", None))}
    if more := sorted(_opened() - opened):
        raise _Unlike(f"an import opens {more[0]}")
    if _children():
        raise _Unlike("an import starts a process")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # the shim sees whether there was anything
    return read, places


def _check_module(name: str, own: list[str]) -> None:
    """It is of no folder of the program's own."""
    place = getattr(sys.modules[name], "__file__", None)
    if isinstance(place, str) and place.startswith("/") and not any(place.startswith(f"{each}/") for each in own):
        raise _Unlike(f"{name} is the program's own")


def _check_env(env: dict[str, str], read: set[str]) -> None:
    now = dict(os.environ)
    for name in {name for name in env.keys() | now.keys() if env.get(name) != now.get(name)}:
        if not name.startswith(OF_A_START):
            raise _Unlike(f"{name} has changed")
        if name in read:
            raise _Unlike(f"{name} was read when packages were imported")


def _watch_environ() -> Callable[[], set[str]]:
    """From now on note which variables are read; the function given ends that."""
    read: set[str] = set()
    environ: Any = os.environ
    usual: Any = type(environ)

    class Watched(usual):  # type: ignore[misc]
        def __getitem__(self, name: str) -> str:
            read.add(name)
            return str(super().__getitem__(name))

    environ.__class__ = Watched

    def end() -> set[str]:
        environ.__class__ = usual
        return read

    return end


class _Slow:
    """Within it, imports take SHARE of a core."""

    def __enter__(self) -> None:
        self._used = time.process_time()
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in NEVER:
            raise _Unlike(f"the program imports {name}")
        used = time.process_time() - self._used
        time.sleep(used * (1 / SHARE - 1))
        self._used += used


def _next_env(fd: int, ready: bytes) -> dict[str, str]:
    """Of the next rank: `NAME=VALUE` with a zero byte after each, and another after the last."""
    _say(fd, ready)
    data = b""
    while not data.endswith(b"\0\0"):
        more = os.read(fd, 1 << 16)
        if not more:
            os._exit(0)  # the shim needs no spare any more
        data += more
    return dict(os.fsdecode(word).partition("=")[::2] for word in data[:-2].split(b"\0"))


def _say(fd: int, line: bytes) -> None:
    os.write(fd, line)


def _stamp(place: str) -> object:
    try:
        info = os.stat(place)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_ino


def _opened() -> set[str]:
    """Descriptors, and mapped devices."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd}, {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue  # it was of the list itself
    return found | {line[line.find("/dev/") :].rstrip() for line in _lines("/proc/self/maps") if "/dev/" in line}


def _lines(path: str) -> Iterator[str]:
    return iter(_text(path).splitlines())


def _own_bytes() -> int:
    """Of memory, with a share of what others have mapped as well."""
    for line in _lines("/proc/self/smaps_rollup"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _set_oom(score: str) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(score)

"""A restart that does not import again, seen from inside the rank's interpreter. Its other half is wrapper/shim/warm.py.

sitecustomize calls it before the program's first line, so that Python itself goes on with script, `-m` or `-c` as ever. The
variable FTSLURM_WARM says which process this is:

`SHIM:PACKAGES`              the rank. It notes in `RANK.warm`, beside its page, which modules of PACKAGES (names, by commas) it
                             imports, for as long as nothing has happened that another process could not know of before its
                             own imports. SHIM: the pid of the shim.
`SHIM:PACKAGES:FD:BYTES:PID` a spare of the rank PID. It imports what is noted there, and waits for the end of the rank. What the
                             shim then sends is what changes in the environment: this process takes it over, and Python goes on.

A spare that cannot be what a cold start would be says why, and ends. The notes: a line with the CPU time until here
(ms) and the rank's argv, then `=` with sys.path where it has changed, `>` where an import begins and the module's name where it
ends, `!` with a reason never to import early, `.` with the reason for the end.
"""

# ruff: noqa: PTH109, PTH115, PTH116, PTH208 -- pathlib would be imported for it

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import _warnings
import _weakref
import builtins
import os
import sys
import time

TYPE_CHECKING = False  # as in typing, which a rank need not load
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

VARIABLE, PAGE_VARIABLE = "FTSLURM_WARM", "FTSLURM_PAGE"
# These begin MPI, open a device or replace parts of the standard library when they are imported.
NEVER = frozenset(("eventlet", "gevent", "habana_frameworks", "mpi4py", "tensorflow", "torch_npu", "torch_xla"))
# What ftrun sets for each start; of all others a module, or a library that it loads, may have made something already.
OF_A_START = (
    "FTSLURM_", "MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE",
)  # fmt: skip
IMPORTLIB = "<frozen importlib._bootstrap_external>"
SHARE = 0.2  # of a core, while a spare imports: another process's nice value cannot be lowered again without privilege
LAST_OOM = "1000"  # the kernel takes a spare first, proc(5)


def begin() -> Callable[[], None]:
    """Be a spare until the rank has ended, where this is one. Gives what to call once the path of the program is laid."""
    said = os.environ.pop(VARIABLE, "").split(":")
    page = os.environ.get(PAGE_VARIABLE, "")
    spare, path = len(said) == 5, f"{page.rpartition('.')[0]}.warm"
    if said[0] != str(os.getppid()) or not page:  # not the rank, but below it
        if spare:
            os._exit(1)
        return lambda: None
    if spare:
        _signal.setitimer(_signal.ITIMER_PROF, 0)
        _wait(int(said[2]), int(said[3]), int(said[4]), path, said[1])
        return lambda: None
    return lambda: _Notes(path, frozenset(said[1].split(","))).begin()


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

    def __init__(self, path: str, packages: frozenset[str]) -> None:
        self._path = path
        self._pid = os.getpid()
        self._packages = packages
        self._sys_path: list[str] = []
        self._state: dict[str, object] = {}
        self._beside: set[str] = set()  # top packages that were loaded with the noted ones
        self._loaded: set[str] = set()  # those that were loaded then
        self._asks = False
        self._inside = 0  # the thread in which a noted module is being imported

    def begin(self) -> None:
        self._write(f"{time.process_time() * 1000:.0f} {joined(sys.orig_argv)}", os.O_CREAT | os.O_TRUNC)
        sys.meta_path.insert(0, self)
        self._state = _state()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As the others find it; it is noted when it is loaded, since many are only looked for."""
        top = name.partition(".")[0]
        if self._asks or top not in (NEVER if self._inside == _thread.get_ident() else self._packages | NEVER):
            return None
        self._asks = True
        try:
            others = (finder for finder in list(sys.meta_path) if finder is not self)
            spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        finally:
            self._asks = False
        if spec is not None and hasattr(spec.loader, "exec_module"):  # a namespace package has nothing to run
            self._safely(self._hook, spec.loader, name, top)
        return spec

    def _hook(self, loader: Any, name: str, top: str) -> None:
        own, usual = "exec_module" in vars(loader), loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if own:
                loader.exec_module = usual
            else:
                del loader.exec_module
            before = _tops()
            noted = self._safely(self._begins, top)
            try:
                usual(module)
            finally:
                if noted:
                    self._safely(self._ends, name, before)

        # What tells where an import stands (tracebacks, warnings) passes over importlib's own frames, and so over this.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=IMPORTLIB)
        loader.exec_module = exec_module

    def _begins(self, top: str) -> bool:
        """Does the program itself import a module here that a spare may import?"""
        if top in NEVER:
            self._end(f"!the program imports {top}")
        if top in NEVER or self not in sys.meta_path or not _imported_by_program(self._packages | self._beside):
            return False
        now = _state()
        if self._loaded and (other := next((each for each in _tops() if each not in self._loaded | {top}), "")):
            self._end(f".{other} is imported before {top}")  # it may change what is loaded, and so what later modules find
            return False
        if changed := sorted(what for what in self._state.keys() | now.keys() if self._state.get(what) != now.get(what)):
            self._end(f".before it imports {top} the program changes {changed[0]}")
            return False
        if sys.path != self._sys_path:
            self._sys_path = list(sys.path)
            self._write(f"={joined(self._sys_path)}")
        self._write(">")
        self._inside = _thread.get_ident()
        return True

    def _ends(self, name: str, before: dict[str, None]) -> None:
        """Meanwhile, it and what it imported may have changed what they like: so they do in a spare."""
        self._inside, self._state, self._loaded = 0, _state(), _tops().keys() | {name.partition(".")[0]}
        self._beside |= self._loaded - before.keys()
        self._write(name)

    def _safely(self, do: Callable[..., object], *given: object) -> object:
        """What goes wrong here is not the program's: it ends the notes."""
        try:
            return do(*given)
        except Exception as error:
            self._inside = 0
            self._end(f".{type(error).__name__}")
            return None

    def _write(self, line: str, begins: int = os.O_APPEND) -> None:
        if self._pid != os.getpid():
            return  # forked from the rank
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


def _imported_by_program(packages: set[str] | frozenset[str]) -> bool:
    """By a statement of the program, and not by `packages` in their own time."""
    frame: Any = sys._getframe(1)
    through = False
    while frame is not None:
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        if top in packages:
            through = True
        elif frame.f_globals is not globals() and top not in sys.stdlib_module_names:
            return not through or _is_import(frame)
        frame = frame.f_back
    return not through


def _is_import(frame: Any) -> bool:
    """As `from package import name`, where the package imports its parts when they are asked for."""
    known = sys.modules.get("opcode")  # such a package has loaded it
    return bool(known and known.opname[frame.f_code.co_code[frame.f_lasti]].startswith("IMPORT_"))


def _tops() -> dict[str, None]:
    """The top packages that are loaded, but for the standard library; in the order of their imports."""
    return {top: None for name in list(sys.modules) if (top := name.partition(".")[0]) not in sys.stdlib_module_names}


def _state() -> dict[str, object]:
    """What of a process an import may depend on or change, but for sys.path and what is loaded."""
    environ: Any = os.environ
    processes = getattr(sys.modules.get("multiprocessing.context"), "_default_context", None)
    return {
        **{f"the variable {os.fsdecode(name)}": value for name, value in environ._data.items()},
        "sys.meta_path": list(sys.meta_path),
        "sys.path_hooks": list(sys.path_hooks),
        "sys.modules": [name for name, module in list(sys.modules.items()) if _is_put(name, module)],
        "how modules are imported": builtins.__import__,
        "how libraries are loaded": sys.getdlopenflags(),
        "its folder": os.getcwd(),
        "its CPUs": os.sched_getaffinity(0),  # of which threads that libraries start have their own from then on; as of these two
        "its priority": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
        "the signals that it blocks": _signal.pthread_sigmask(_signal.SIG_BLOCK, ()),
        "what runs below it": _children(),
        "its streams or sys.excepthook": (sys.stdin, sys.stdout, sys.stderr, sys.excepthook),
        "how it is traced": (sys.gettrace(), sys.getprofile()),
        "filters of warnings": list(getattr(sys.modules.get("warnings"), "filters", _warnings.filters)),
        "how it logs": _logs(),
        "how processes are started": getattr(processes, "_actual_context", None),
    }


def _is_put(name: str, module: object) -> bool:
    """In the place of a module, or against its import. A lazy module would be loaded if it were asked for anything."""
    if name.partition(".")[0] in sys.stdlib_module_names or name in ("__main__", "__mp_main__"):
        return False
    return module is None or object.__getattribute__(module, "__dict__").get("__spec__") is None


def _logs() -> tuple[object, ...]:
    """A configuration of logging switches loggers off that there are already."""
    logging: Any = sys.modules.get("logging")
    if logging is None:
        return (0, 30, 0, "Logger")
    handlers = [kind for ref in logging._handlerList if (kind := type(ref()).__name__) not in ("NullHandler", "_StderrHandler")]
    return len(handlers), logging.root.level, logging.root.manager.disable, logging.getLoggerClass().__name__


def _children() -> list[str]:
    return [child for thread in os.listdir("/proc/self/task") for child in _text(f"/proc/self/task/{thread}/children").split()]


def _text(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


# --- a spare


class _Unlike(BaseException):
    """A spare would not be what a cold start is. Not an Exception: packages that try an import catch those."""


def _noted(path: str, packages: str) -> list[str]:
    """What a rank has imported of `packages`, and where that is to be looked for."""
    _, *lines = _text(path).splitlines()
    reasons = {line[0]: line[1:] for line in lines if line[0] in "!."}
    if "!" in reasons or all(line[0] in "=>." for line in lines):
        raise _Unlike(reasons.get("!") or reasons.get(".") or f"the program imports none of {packages}")
    return [line for line in lines if line[0] not in ">."]


def _wait(fd: int, most_bytes: int, rank: int, path: str, packages: str) -> None:
    """Returns as the rank, or not at all."""
    os.set_inheritable(fd, False)
    try:
        oom = _text("/proc/self/oom_score_adj")
        _set_oom(LAST_OOM)
        read, places = _import_early(_noted(path, packages), packages.split(","))
        _check_libraries(rank)
        if (size := _own_bytes()) > most_bytes:
            raise _Unlike(f"it takes {size >> 20} MB, more than warm.memory")
        os.write(fd, b"ready\n")
        changed = _changes(fd)
        _check_env(changed, read)
        if [_stamp(place) for place in places] != list(places.values()):
            raise _Unlike("packages have changed")
        _set_oom(oom)
        os.write(fd, b"taken\n")
        if os.read(fd, 1) != b"+":
            os._exit(0)
        os.close(fd)
        for name, value in changed.items():  # the others as imports have left them
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    except BaseException as error:
        try:
            os.write(fd, f"{error if isinstance(error, (_Unlike, OSError)) else repr(error)}\n".encode(errors="replace"))
        finally:
            os._exit(0)


def _import_early(lines: list[str], packages: list[str]) -> tuple[set[str], dict[str, object]]:
    """What is noted. Gives the variables that were read for it, and the places of what was found, with their stamps."""
    own, opened, before = list(sys.path), _opened(), set(sys.modules)
    places = {place: _stamp(place) for place in own}
    asked = _watch_environ()
    with _Slow():
        for line in lines:
            if line[0] == "=":
                sys.path[:] = parted(line[1:])
            elif line not in sys.modules:
                try:
                    __import__(line)
                except ImportError:
                    pass  # nor could the rank
    read = asked()
    sys.path[:] = own
    sys.path_importer_cache.clear()
    loaded = {name: place for name in sys.modules.keys() - before if (place := _place(sys.modules[name]))}
    _check_own(loaded, own, packages)
    # Of folders those alone that something was found in: a program may write into one that is on its path.
    found = {place for place in own for name, file in loaded.items() if file.startswith(f"{place}/{name}")}
    places = {place: places[place] for place in found}
    places |= {place: _stamp(place) for name, place in loaded.items() if name in packages or _is_edited(name, place)}
    _check_process(opened)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # the shim sees whether there was anything
    return read, places


def _place(module: ModuleType) -> str:
    """Its file; "" if it has none, as one that is built in."""
    place = getattr(module, "__file__", None)
    return place if isinstance(place, str) and place.startswith("/") else ""


def _is_edited(name: str, place: str) -> bool:
    """Others come and go with their folder."""
    installed = "/site-packages/" in place or "/dist-packages/" in place
    return not installed and name.partition(".")[0] not in sys.stdlib_module_names


def _check_own(loaded: dict[str, str], path: list[str], packages: list[str]) -> None:
    """What is not on the `path` of every Python is the program's own, which has to be asked for."""
    folders = tuple(f"{each}/" for each in path)
    own = {name.partition(".")[0] for name, place in loaded.items() if not place.startswith(folders)}
    if own and not own.intersection(packages):
        raise _Unlike(f"{min(own)} is the program's own")


def _check_process(opened: set[str]) -> None:
    """What an import may not do in a process that waits. opened: before it."""
    if more := sorted(_opened() - opened):
        raise _Unlike(f"an import opens {more[0]}")
    if _children():
        raise _Unlike("an import starts a process")
    if _thread._count():
        raise _Unlike("an import starts a thread")


def _check_libraries(rank: int) -> None:
    """One that is found in another place, or before another, is not what a cold start would have."""
    try:
        more = sorted(_libraries("self") - _libraries(rank))
    except FileNotFoundError:
        raise _Unlike("the rank ended while its spare process was importing") from None
    if more:
        raise _Unlike(f"the rank has not loaded {more[0]}")


def _check_env(changed: Iterable[str], read: set[str]) -> None:
    for name in changed:
        if not name.startswith(OF_A_START):
            raise _Unlike(f"{name} has changed")
        if name in read:
            raise _Unlike(f"{name} was read when packages were imported")


class _Value(str):
    """Of a variable, which can be seen to be kept."""


def _watch_environ() -> Callable[[], set[str]]:
    """From now on note which variables of a start are read; the function given ends that.

    Who goes through all of them takes those with a name of its own (tqdm, fsspec), unless it keeps the others.
    """
    read: set[str] = set()
    kept: list[tuple[str, _weakref.ref[_Value]]] = []
    environ: Any = os.environ
    usual: Any = type(environ)

    class Watched(usual):  # type: ignore[misc]
        rest: Iterator[str] = iter(())  # names that who goes through all reads next

        def __iter__(self) -> Iterator[str]:
            names = list(super().__iter__())
            Watched.rest = iter(names)
            return iter(names)

        def __getitem__(self, name: str) -> str:
            value = str(super().__getitem__(name))
            alone = next(Watched.rest, None) != name
            if not name.startswith(OF_A_START):
                return value
            if alone:
                read.add(name)
            kept.append((name, _weakref.ref(value := _Value(value))))
            return value

    environ.__class__ = Watched

    def end() -> set[str]:
        environ.__class__ = usual
        return read.union(name for name, value in kept if value() is not None)

    return end


class _Slow:
    """Within it, imports take SHARE of a core."""

    def __enter__(self) -> None:
        self._used = time.process_time()
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        used = time.process_time() - self._used
        time.sleep(used * (1 / SHARE - 1))
        self._used += used


def _changes(fd: int) -> dict[str, str | None]:
    """Of variables, for the next rank: `NAME=VALUE`, or `NAME` of one that is gone, with a zero byte after each, and another
    after the last."""
    data = b""
    while not data.endswith(b"\0\0"):
        more = os.read(fd, 1 << 16)
        if not more:
            os._exit(0)  # the shim needs no spare any more
        data += more
    parts = (os.fsdecode(word).partition("=") for word in data[:-2].split(b"\0"))
    return {name: value if equals else None for name, equals, value in parts}


def _stamp(place: str) -> object:
    try:
        info = os.stat(place)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_ino


def _opened() -> set[str]:
    """Descriptors, but for those of mapped libraries (libffi 3.5 keeps its own), and mapped devices."""
    found = set()
    libraries = _libraries("self")
    for fd in os.listdir("/proc/self/fd"):
        try:
            place = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # it was of the list itself
        if place not in libraries:
            found.add(f"{fd}, {place}")
    return found | {line[line.find("/dev/") :].rstrip() for line in _text("/proc/self/maps").splitlines() if "/dev/" in line}


def _libraries(process: object) -> set[str]:
    """That are mapped."""
    return {line[line.find("/") :] for line in _text(f"/proc/{process}/maps").splitlines() if ".so" in line}


def _own_bytes() -> int:
    """Of memory, with a share of what others have mapped as well."""
    for line in _text("/proc/self/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _set_oom(score: str) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(score)

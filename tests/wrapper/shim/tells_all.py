"""For test_warm.py: it prints what a program can learn of itself, and ends as its first argument says."""

import atexit
import faulthandler
import gc
import json
import locale
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
import warnings

import numpy

# ruff: noqa: SIM115 -- what is left open is seen by the program itself


class Own:
    pass


def tell() -> str:
    return f"{__name__} {Own.__module__} {numpy.add(1, 2)}"


def streams() -> list[object]:
    files = (sys.stdin, sys.stdout, sys.stderr)
    buffers = [getattr(getattr(f, "buffer", None), "raw", None) for f in files]
    modes = [(os.fstat(fd).st_mode, os.lseek(0, 0, os.SEEK_CUR) if fd == 0 else 0) for fd in range(3)]
    return [
        [(f.encoding, f.errors, f.line_buffering, f.write_through, f.isatty(), f.fileno(), f.mode) for f in files],
        [type(b).__name__ for b in buffers], modes,
    ]  # fmt: skip


def process() -> dict[str, object]:
    status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
    names = (
        "Name", "Umask", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Seccomp", "Cpus_allowed",
        "Mems_allowed",
    )  # fmt: skip
    me = os.getpid()
    # Not the kernel's own list: what opens it has it open.
    fds = [os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0] for fd in range(64) if os.path.lexists(f"/proc/self/fd/{fd}")]
    return {
        "status": [status.get(name) for name in names], "fds": fds, "cgroup": open("/proc/self/cgroup").read(),
        "group": [os.getpgid(0) == me, os.getsid(0), os.getppid()], "nice": os.nice(0), "policy": os.sched_getscheduler(0),
        "oom": open("/proc/self/oom_score_adj").read(), "cmdline": open("/proc/self/cmdline").read(),
        "limits": [resource.getrlimit(n) for n in range(16)], "timers": [signal.getitimer(n) for n in (0, 1, 2)],
        "handlers": [str(signal.getsignal(n)) for n in range(1, 32)], "children": open("/proc/thread-self/children").read(),
        "exe": os.readlink("/proc/self/exe"), "cwd": os.getcwd(), "terminal": os.ctermid(), "uid": (os.getuid(), os.getgroups()),
    }  # fmt: skip


def python() -> dict[str, object]:
    own = {name: repr(value) for name, value in globals().items() if name.startswith("__") and name != "__builtins__"}
    of_start = ("FTSLURM_ATTEMPT", "FTSLURM_PAGE")
    return {
        "main": {name: value.partition(" object at ")[0] for name, value in own.items()}, "argv": sys.argv,
        "orig": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags), "env": [i for i in os.environ.items() if i[0] not in of_start],
        "attempt": os.environ["FTSLURM_PAGE"].endswith(f".{os.environ['FTSLURM_ATTEMPT']}"), "x": repr(sys._xoptions),
        "modules": sorted(sys.modules), "hooks": [getattr(h, "__qualname__", "") for h in sys.path_hooks], "warnings": repr(warnings.filters),
        "finders": [type(f).__name__ for f in sys.meta_path if type(f).__module__ != "_ftslurm_warm"],
        "main thread": threading.current_thread() is threading.main_thread(), "threads": threading.active_count(),
        "gc": (gc.isenabled(), gc.get_threshold()), "prefix": (sys.prefix, sys.exec_prefix, sys.executable), "dl": sys.getdlopenflags(),
        "hash": hash("a") if os.environ.get("PYTHONHASHSEED") else 0, "main module": sys.modules["__main__"].__dict__ is globals(),
        "pickle": type(pickle.loads(pickle.dumps(Own()))) is Own, "recursion": sys.getrecursionlimit(), "environ": type(os.environ).__name__,
        "encoding": (sys.getfilesystemencoding(), sys.getdefaultencoding()), "argv0": sys.argv[0], "hookless": sys.excepthook is sys.__excepthook__,
        "tracing": (sys.gettrace(), sys.getprofile()), "numpy": [numpy.__file__, type(numpy.__loader__).__name__],
        "place": (faulthandler.is_enabled(), locale.setlocale(locale.LC_ALL), time.tzname),
        "environb": dict(os.environ)["PATH"] == os.environb[b"PATH"].decode(),
    }  # fmt: skip


def work(number: int) -> str:
    return f"{number} {__name__} {os.environ.get('FTSLURM_WARM')}"


def end(how: str) -> None:
    word, _, number = how.partition(" ")
    atexit.register(print, "at exit")
    if word == "text":
        sys.exit("a text")
    if word == "raise":
        raise ValueError(how)
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "_exit":
        os._exit(int(number))
    if word == "signal":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), int(number))
    if word == "children":
        for method in ("fork", "spawn") if __spec__ is None and sys.argv[0] not in ("-c", "-") else ("fork",):
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(pool.map(work, [1, 2]))
        pid = os.fork()
        if not pid:
            print(tell(), numpy.ones(3).sum(), flush=True)
            os._exit(5)
        print(os.waitpid(pid, 0)[1])
        print(os.popen("echo $FTSLURM_WARM").read())
    if word == "thread":
        thread = threading.Thread(target=lambda: print("thread"))
        thread.start()
        thread.join()
    sys.exit(int(word) if word.isdigit() else 0)


if __name__ == "__main__":
    print(json.dumps({**process(), **python(), "streams": streams(), "tells": tell()}).encode().hex(), flush=True)
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
    end(sys.argv[1])

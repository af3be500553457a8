"""Where the installed commands begin, before anything but the standard library is loaded."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence


def ftrun(last: str = "") -> None:
    """last: `_` of the environment. bin/ftrun is a bash, which drops that, and makes an SHLVL where its caller has none."""
    gc.disable()  # until run_job has loaded all: nothing of that is garbage, and to look for some would take a tenth of the time
    if os.environ.get("SHLVL") == "0":
        del os.environ["SHLVL"]
    if last not in ("", "/bin/bash"):
        os.environ["_"] = last
    own_packages_first()
    ended_by_interrupts(True)
    from ftslurm.cli.ftrun import main

    end_with(main)


def ftslurm() -> None:
    own_packages_first()
    ended_by_interrupts(True)
    from ftslurm.cli.ftslurm import main

    ended_by_interrupts(False)
    end_with(main)


def ft_launcher() -> None:
    own_packages_first()
    ended_by_interrupts(True)
    from ftslurm.cli.ft_launcher.command import main

    end_with(main)


def ended_by_interrupts(really: bool) -> None:
    """Ctrl-C ends us as it ends srun, where Python would raise KeyboardInterrupt and print where it was: while we load, and in
    ftrun until it takes all signals itself. One that is ignored stays so (nohup)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL if really else signal.default_int_handler)


def end_with(main: Callable[[], object]) -> None:
    """Call `main` and end the process with its status, without freeing all objects one by one: that takes a tenth of the CPU time
    of a short step. By then threads have been waited for, and all other handlers called, as the first registered is the last.
    """
    statuses: list[int] = []
    atexit.register(_end_at_once, statuses)
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            statuses.append(end.code)
        raise


def _end_at_once(statuses: Sequence[int]) -> None:
    """Left to Python where `main` gave no status, or what was printed cannot be written: it says so, and ends with 120."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return
    for status in statuses:
        os._exit(status & 255)


def own_packages_first() -> None:
    """PYTHONPATH is for the user's program; a site's modules set it to packages of another Python, which do not load in ours."""
    sys.path[:] = behind_the_others(sys.path, os.environ.get("PYTHONPATH", ""))


def behind_the_others(path: Sequence[str], python_path: str) -> list[str]:
    """`path` with the folders that PYTHONPATH names last. One that it does not hold is not added."""
    named = {os.path.abspath(folder) for folder in python_path.split(os.pathsep)} if python_path else set()  # noqa: PTH100
    return sorted(path, key=lambda folder: folder in named)

"""For all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings


def pytest_configure() -> None:
    """Examples that do not change."""
    # The same examples in every CI run; on a developer's machine the search goes on.
    # No deadline: how long an example takes says something of the machine, not of the code.
    settings.register_profile("ci", derandomize=True, deadline=None)
    settings.register_profile("own", deadline=None)
    settings.load_profile("ci" if os.environ.get("CI") else "own")


# A limit ends a test that hangs, and no other: what takes a minute on a quiet machine may take four where others compute.
PATIENCE = 4
ENOUGH_S = 900.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    usual_s = float(config.getini("timeout"))
    for item in items:
        mark = item.get_closest_marker("timeout")
        limit_s = float(mark.args[0]) if mark else usual_s
        item.add_marker(pytest.mark.timeout(max(limit_s, min(PATIENCE * limit_s, ENOUGH_S))), append=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names in build/ what needed a second try, for make test to say last of all: nothing should."""
    if again := terminalreporter.stats.get("rerun", []):
        file = Path(__file__).parents[1] / "build/second-tries"
        file.parent.mkdir(exist_ok=True)
        with file.open("a") as opened:
            opened.writelines(f"{name}\n" for name in sorted({report.nodeid for report in again}))


def pytest_runtest_setup() -> None:
    """Signals as a terminal's shell leaves them, also where a test before has left its own handlers.

    `nohup`, `&` and some CI runners have some signals ignored, and children inherit it.
    """
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests in which time itself is the subject, as in leases, or that wait for children which do: folders and modules.
TIMELY = frozenset({
    "contract", "demo", "devices", "launchers", "slurm", "wrapper",
    "test_delivery.py", "test_ft_launcher.py", "test_originals.py", "test_past.py", "test_probe.py",
})  # fmt: skip
AT_ONCE, LATER = -10, 5  # nice values
CAN_HURRY = "PYTEST_XDIST_WORKER" in os.environ and os.geteuid() == 0


@pytest.fixture(autouse=True, scope="module")
def _timely(request: pytest.FixtureRequest) -> Iterator[None]:
    """Beside a hundred daemons (make test) a lease of three seconds runs out before its renewal gets the processor: such tests come first."""
    path: Path = request.node.path
    if not CAN_HURRY or not TIMELY.intersection(path.relative_to(Path(__file__).parent).parts):
        yield
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):  # the session is ours already
        os.setsid()
    set_priority(AT_ONCE, AT_ONCE)
    yield
    set_priority(nice, LATER)


def set_priority(nice: int, session_nice: int) -> None:
    """Of this process and its children: within its session, and of the session among others, where the kernel groups by them.

    Source: sched(7), "The autogroup feature".
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(session_nice))

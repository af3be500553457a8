"""For all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import settings


def pytest_configure() -> None:
    """Examples that do not change."""
    # The same examples in every CI run; on a developer's machine the search goes on.
    # No deadline: how long an example takes says something of the machine, not of the code.
    settings.register_profile("ci", derandomize=True, deadline=None)
    settings.register_profile("own", deadline=None)
    settings.load_profile("ci" if os.environ.get("CI") else "own")


def pytest_runtest_setup() -> None:
    """Signals as a terminal's shell leaves them, also where a test before has left its own handlers.

    `nohup`, `&` and some CI runners have some signals ignored, and children inherit it.
    """
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)

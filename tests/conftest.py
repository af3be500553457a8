"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Signals as a terminal's shell leaves them: `nohup`, `&` and some CI runners have some ignored, and children inherit it."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)

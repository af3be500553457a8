"""Sends what waits in the outbox: a process beside ftrun, so that whatever a service, a proxy or a library does, the job goes on.

Arguments: state folder, notify file, burst, window in seconds. A line on standard input: something new waits. Its end: the job
is over, send what is left and end. Each line on standard output is for people. One thread for each destination: one that
does not answer holds up no other.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.model.text import visible
from ftslurm.notify.deliver import TRIES, Destination, deliver_patiently, need_apprise, read_destinations
from ftslurm.notify.outbox import Item, Outbox, Pace, due, summary

# A destination that took nothing is tried again with the next notice, and not before this.
REST_S = 60.0
# After the end of the job: for all that is left. Who has started us may end us sooner.
END_LIMIT_S = 60.0
NICE = 5
TRIES_AT_THE_END = 2


class _Line:
    """To one destination. say: for people."""

    def __init__(self, to: Destination, outbox: Outbox, pace: Pace, say: Callable[[str], None]) -> None:
        self._to, self._outbox, self._pace, self._say = to, outbox, pace, say
        self._news, self._ending = threading.Event(), threading.Event()
        self._failed_at = 0.0
        self._told = False

    def wake(self) -> None:
        self._news.set()

    def end(self) -> None:
        self._ending.set()
        self._news.set()

    def run(self) -> None:
        while True:
            ending = self._ending.is_set()
            wait_s = self.send(ending)
            if ending:
                return
            self._news.wait(wait_s)
            self._news.clear()

    def send(self, ending: bool) -> float | None:
        """All that may go now. Gives for how long to wait, seconds; None: until something comes."""
        now = time.time()
        if not ending and now - self._failed_at < REST_S:
            return REST_S
        paths = self._outbox.waiting(self._to.name)
        may = due(now, self._outbox.sent(self._to.name), len(paths), self._pace, ending)
        for path in paths[: may.each]:
            if not self._sent(self._outbox.take([path]), ending):
                return REST_S
        if may.rest and not self._sent(self._outbox.take(paths[may.each :]), ending):
            return REST_S
        return max(0.1, may.until - now) if may.until else None

    def _sent(self, items: list[Item], ending: bool) -> bool:
        if not items:
            return True
        tries = TRIES_AT_THE_END if ending else TRIES
        why = deliver_patiently(self._to, summary([item.notice for item in items]), self._ending.wait, tries)
        if not why:
            self._outbox.done(items)
            self._outbox.note_sent(self._to.name, self._pace.window_s)
            self._failed_at = 0.0
            return True
        self._failed_at = time.time()
        self._outbox.give_back(items)
        if not self._told:
            self._told = True
            self._say(f"notices to {self._to.name} cannot be sent: {why}")
        return False


def send_all(lines: list[_Line], wake: Callable[[], bool], limit_s: float = END_LIMIT_S) -> None:
    """Until `wake`, which waits for news, says that nothing more comes."""
    threads = [threading.Thread(target=line.run, daemon=True) for line in lines]
    for thread in threads:
        thread.start()
    while wake():
        for line in lines:
            line.wake()
    for line in lines:
        line.end()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def lines_to(destinations: dict[str, Destination], outbox: Outbox, pace: Pace, say: Callable[[str], None]) -> list[_Line]:
    return [_Line(each, outbox, pace, say) for each in destinations.values()]


def _print(text: str) -> None:
    with suppress(OSError):  # nobody listens any more
        print(visible(text), flush=True)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Slurm's, to the whole script: we end by ourselves, and soon
    os.nice(NICE)
    os.umask(0o077)
    root, file, burst, window_s = sys.argv[1:]
    try:
        destinations = read_destinations(Path(file))
    except FtslurmError as error:
        return _print(f"no notices are sent: {error}")
    if need_apprise(destinations):
        with suppress(ImportError):
            import apprise  # noqa: F401 -- while its files are there: an upgrade may replace them before there is news
    outbox, pace = Outbox(Path(root), Path(file)), Pace(int(burst), float(window_s))
    send_all(lines_to(destinations, outbox, pace, _print), lambda: bool(os.read(0, 4096)))
    os._exit(0)  # a thread that waits for a service holds nobody up


if __name__ == "__main__":
    main()

"""Sets the job's comment to the latest text, outside the loop, since slurmctld may be slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ftslurm.model.decisions import ShowPhase


def phase_text(d: ShowPhase) -> str:
    """`attempt 3, waiting for n7's lease until 12:03:41`: a moment and not a span, as nobody sets it anew each second."""
    if not d.attempt:
        return ""
    if not d.what:
        return f"attempt {d.attempt} runs"
    until = f" until {time.strftime('%H:%M:%S', time.localtime(d.until))}" if d.until else ""
    return f"attempt {d.attempt}, {d.what}{until}"


class Display:
    """set_text: may take long. What is shown while it works comes after it, the latest alone."""

    def __init__(self, set_text: Callable[[str], None]) -> None:
        self._set_text = set_text
        self._lock = threading.Lock()
        self._next: str | None = None
        self._worker: threading.Thread | None = None

    def show(self, text: str) -> None:
        with self._lock:
            self._next = text
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, daemon=True)
                self._worker.start()

    def settle(self, limit_s: float) -> None:
        """Wait until all is shown, or so long."""
        worker = self._worker
        if worker is not None:
            worker.join(limit_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                text, self._next = self._next, None
                if text is None:
                    self._worker = None
                    return
            self._set_text(text)

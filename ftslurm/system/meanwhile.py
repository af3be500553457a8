"""A call that runs beside its caller, who needs the answer later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Meanwhile(Generic[T]):
    """Begins `call` at once, in a thread that keeps no program from its end; an answer that nobody asks for is dropped."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def has_ended(self, wait_s: float | None) -> bool:
        """Now, or in `wait_s`; None: in whatever time it takes."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def answer(self) -> T:
        """Waits for it. Raises: what `call` raises."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._call())
        except BaseException as error:
            self._error = error

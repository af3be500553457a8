"""What one asks a job's ftrun for from `ftslurm watch`: a question first, and its answer as a notice."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from ftslurm.cli.jobs.control import WAIT_S
from ftslurm.errors import FtslurmError
from ftslurm.ledger.store import Store
from ftslurm.model.folds import control as ctl
from ftslurm.model.record import Requested
from ftslurm.model.text import visible

T = TypeVar("T")

WILL: dict[str, str] = {
    ctl.RESTART: "its ranks end, and start again in place, on the same nodes; this spends no budget",
    ctl.REQUEUE: "its ranks end, and it starts again some seconds later; this spends no budget",
    ctl.STOP: "its ranks get SIGTERM and the grace time, and nothing starts again",
}
KEYS: list[BindingType] = [
    Binding("I", f"ask('{ctl.RESTART}')", "restart"),
    Binding("R", f"ask('{ctl.REQUEUE}')", "requeue"),
    Binding("X", f"ask('{ctl.STOP}')", "stop"),
]


class Question(ModalScreen[bool]):
    """One line, answered by y or by any other key."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "dismiss(True)")]
    CSS = "Question Static { dock: bottom; height: auto; background: ansi_default; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{visible(self._text)} (y/n)", style="bold"), markup=False)

    def on_key(self, event: Any) -> None:
        if event.key != "y":
            event.stop()
            self.dismiss(False)


def tried(what: Callable[[], T]) -> tuple[T | None, str]:
    """What it gives, or why it gives nothing."""
    try:
        return what(), ""
    except FtslurmError as error:
        return None, str(error)
    except OSError as error:
        return None, error.strerror or str(error)


class AskingPage(Screen[None]):
    """A screen whose keys ask a job's ftrun for something."""

    def asked_job(self) -> tuple[Store, str] | None:
        """The one that is meant, None where there is none."""
        raise NotImplementedError

    def action_ask(self, name: str) -> None:
        if (meant := self.asked_job()) is None:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                threading.Thread(target=self._order, args=(*meant, name), daemon=True).start()

        self.app.push_screen(Question(f"{name} job {meant[1]}? {WILL[name]}"), answered)

    def _order(self, store: Store, job: str, name: str) -> None:
        from ftslurm.wrapper.control import order

        taken, refused = tried(lambda: order(store, job, Requested(0.0, 0, "", name), os.environ, WAIT_S))
        self.call_later(self.notify, visible(refused or taken), severity="warning" if refused else "information", markup=False)

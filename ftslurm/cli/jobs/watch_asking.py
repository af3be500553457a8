"""What one asks a job's ftrun for from `ftslurm watch`: a question first, and its answer as a notice."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from ftslurm.cli.jobs.control import WAIT_S
from ftslurm.errors import FtslurmError
from ftslurm.ledger.store import Store
from ftslurm.model.folds import control as ctl
from ftslurm.model.record import Requested
from ftslurm.model.text import visible

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


class Answered(Message):
    def __init__(self, text: str, refused: bool) -> None:
        super().__init__()
        self.text, self.refused = text, refused


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

        try:
            self.post_message(Answered(order(store, job, Requested(0.0, 0, "", name), os.environ, WAIT_S), False))
        except FtslurmError as error:
            self.post_message(Answered(str(error), True))
        except OSError as error:
            self.post_message(Answered(error.strerror or "the request cannot be written", True))

    def on_answered(self, message: Answered) -> None:
        self.notify(visible(message.text), severity="warning" if message.refused else "information", markup=False)

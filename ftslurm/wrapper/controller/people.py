"""What people are told: sentences and cards on stderr, notices to those who follow the job, and the files of its cycles.
And the job's comment, which is set outside the loop, since slurmctld may be slow."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ftslurm.model import decisions as do
from ftslurm.model.decisions import ShowPhase
from ftslurm.model.outcome import outcome_of
from ftslurm.model.record import Decided, Finished, Record
from ftslurm.model.settings.tree import Settings
from ftslurm.model.text import visible

if TYPE_CHECKING:
    from ftslurm.report.card import Card, LastCard
    from ftslurm.wrapper.controller.cycles import Cycles
    from ftslurm.wrapper.controller.teller import Notices

FILE = "notify.yaml"


def place_of(settings: Settings, root: Path) -> Path | None:
    """The file with the addresses, None if nobody gets notices. root: the state folder."""
    if settings.notify.file in ("", "none"):
        return None
    if settings.notify.file != "auto":
        return Path(settings.notify.file).expanduser().absolute()
    path = root / FILE
    return path if path.exists() else None


def notices_for(settings: Settings, root: Path, job: str, about: str, say: Callable[[str], None]) -> Notices | None:
    """The notices of one ftrun, None if nobody gets any. If the file has a mistake, ftrun prints it, and the job runs without
    notices. root: the state folder.
    """
    file = place_of(settings, root)
    if file is None:
        return None
    from ftslurm.wrapper.controller.teller import make

    return make(settings, root, file, job, about, say)


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
        """Wait until all is shown, `limit_s` seconds at most."""
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


# Before each line of ours among the ranks' own.
SPEAKER = "ftrun: "


class People:
    """cycles (to be set): writes them down. at_end (to be set): is called when the job is over, with whether it goes on
    elsewhere."""

    def __init__(
        self, verbose: bool = False, err: TextIO | None = None, past: Sequence[Record] = (), notices: Notices | None = None,
        notices_wait_s: float = 0.0,
    ) -> None:  # fmt: skip
        """past: what the ledger held when this ftrun began. notices: for the people who follow the job; notices_wait_s: for the
        last of them, when the job is over."""
        self._records = list(past)  # once a card was asked for, of those that it has read the last of each kind
        self._read = 0  # how many of them
        self.cycles: Cycles | None = None
        self.at_end: Callable[[bool], None] = lambda goes_on: None
        self._verbose = verbose
        self._err = err or sys.stderr
        self._last_card: LastCard | None = None
        self._notices = notices
        self._notices_wait_s = notices_wait_s
        self._goes_on = False

    def prepare(self) -> None:
        if self._notices is not None:
            self._notices.prepare()

    def tell(self, decision: do.Say) -> None:
        if self._verbose or not decision.quiet:
            self.say(decision.text)

    def show_card(self, decision: do.ShowCard) -> None:
        from ftslurm.report.card import card_lines

        card = self._card()
        if self._notices is not None and card is not None and not card.rung:
            self._notices.card(card)  # that of a decision they have
        if card is not None and (self._verbose or not decision.quiet):
            self.say(*card_lines(card, self._width()))

    def _card(self) -> Card | None:
        """The last one. A job may restart thousands of times: only what is asked for later is kept."""
        from ftslurm.report.card import LastCard

        self._last_card = self._last_card or LastCard()
        card = self._last_card.after(self._records[self._read :])
        latest = {type(record): record for record in self._records}
        self._records = [record for record in self._records if record is latest[type(record)]]
        self._read = len(self._records)
        return card

    def _width(self) -> int | None:
        """Of the terminal, less what stands before each line; None for a file or a pipe."""
        try:
            return os.get_terminal_size(self._err.fileno()).columns - len(SPEAKER)
        except (OSError, ValueError):
            return None

    def say(self, *texts: str) -> None:
        """A line each on stderr, all at once; a reader that has gone away ends nothing."""
        with suppress(OSError):
            print("\n".join(f"{SPEAKER}{visible(text)}" for text in texts), file=self._err, flush=True)

    def log(self, text: str, *words: object) -> None:
        """With --ft-verbose, for which the door has set logging up: to load it for nothing takes 4 ms of each step."""
        if self._verbose:
            import logging

            logging.getLogger(__name__).debug(text, *words)

    def remember(self, decision: do.Remember) -> None:
        """The ledger has it already, if it takes anything; for the cards."""
        self._records.append(decision.record)
        if self._notices is not None:
            self._notices.record(decision.record, self._records)
            if isinstance(decision.record, Decided):
                self._notices.card(self._card())
        if self.cycles is not None:
            self.cycles.record(decision.record)
        if isinstance(decision.record, Finished):
            self._goes_on = outcome_of(decision.record).goes_on

    def end(self) -> None:
        """A job that goes on is not held up: what has not gone out by then its next ftrun sends."""
        if self._notices is not None:
            self._notices.end(0.0 if self._goes_on else self._notices_wait_s)
        if self.cycles is not None:
            self.cycles.end()
        self.at_end(self._goes_on)

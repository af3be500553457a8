"""Which events of a job people are told, and the process that sends them (notify/sender.py). Nothing delays the loop: notices go
through a bounded queue to a thread, which writes them to the outbox and wakes the sender.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError
from ftslurm.launchers.python import own_python
from ftslurm.model import record as rec
from ftslurm.model.folds.counters import schedule_count
from ftslurm.model.folds.summary import AFTER_LIMIT
from ftslurm.model.job import Reading
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.rungs import REQUEUES, SWAPS, Rung
from ftslurm.model.settings.tree import Settings, suggestion
from ftslurm.model.text import cut
from ftslurm.notify.deliver import read_destinations, why_no_apprise
from ftslurm.notify.outbox import KINDS, Notice, Outbox
from ftslurm.report.card import Card, last_card, lines
from ftslurm.wrapper.telling.silent import Silent

# Notices that wait for the thread: if its file system hangs, so does the ledger's.
MAX_QUEUED = 200
# How often a sender that ends by itself is started again.
MAX_STARTS = 3


# --- what is told: records in, notices out


def of_card(card: Card, job: str, about: str) -> Notice:
    """The notice of a failure card. about: one line on where the job runs."""
    text = "\n".join([*lines(card)[1:], about])  # the first line is the title
    return Notice(f"{job}.{card.at:.6f}.{card.rung}", card.at, job, _kind(card.rung), card.title, text)


def _kind(rung: str) -> str:
    if rung in ("", Rung.FAIL):
        return "failure" if rung else "hang"
    if rung in REQUEUES or rung.startswith("requeue"):
        return "requeue"
    return "replacement" if rung in SWAPS else "restart"


def of_record(record: rec.Record, past: Sequence[rec.Record], job: str, about: str) -> Notice | None:
    """The notice of the new record `record`; past: all records, with it as the last. None: nobody is told."""
    match record:
        case rec.Decided():
            card = last_card(past)
            return of_card(card, job, about) if card is not None else None
        case rec.ProgramSaid(what="message"):
            title = f"job {job}: rank {record.rank} says: {cut(record.text, 100)}"
            id = f"{job}.{record.at:.6f}.{record.rank}.{record.text}"
            return Notice(id, record.at, job, "message", title, f"{record.text}\n{about}")
        case rec.RunBegan() if _unseen(record, past):
            count = schedule_count(record.schedule)
            id, title = f"{job}.{record.run}", f"job {job}: Slurm has started it again, scheduling {count}"
            return Notice(id, record.at, job, "requeue", title, f"no record says how the previous scheduling ended\n{about}")
        case rec.Finished():
            return _of_end(record, past, job, about)
        case _:
            return None


def _unseen(began: rec.RunBegan, past: Sequence[rec.Record]) -> bool:
    """Did the previous scheduling end without a record of its ftrun, for example because its node died?"""
    before = next((each for each in reversed(past[:-1]) if isinstance(each, (rec.RunBegan, rec.Decided, rec.Finished))), None)
    if isinstance(before, rec.Decided):
        return before.rung not in REQUEUES
    return isinstance(before, rec.RunBegan) and before.schedule < began.schedule


def _of_end(record: rec.Finished, past: Sequence[rec.Record], job: str, about: str) -> Notice | None:
    """The notice of the end, None if people know it: a failure or a requeue that the ladder decided has been told already."""
    outcome = outcome_of(record)
    if outcome is Outcome.REQUEUED:
        return None
    id = f"{job}.{record.at:.6f}.end"
    if outcome.goes_on:
        return Notice(id, record.at, job, "requeue", f"job {job}: {record.what}", about)
    decided = next((each for each in reversed(past) if isinstance(each, (rec.Decided, rec.AttemptBegan))), None)
    if isinstance(decided, rec.Decided) and decided.rung == Rung.FAIL:
        return None
    call = next((each for each in reversed(past) if isinstance(each, (rec.CallRead, rec.RunBegan))), None)
    if isinstance(call, rec.CallRead) and call.reading == Reading.ANSWER and record.status:
        return None  # the script wanted to know, and the job goes on
    if record.status == 0:
        return Notice(id, record.at, job, "end", f"job {job} has completed", about)
    if outcome is Outcome.TIMEOUT:
        about = f"{AFTER_LIMIT}\n{about}"
    title = f"job {job} has ended with status {record.status}: {record.what}"
    return Notice(id, record.at, job, "end" if outcome.by_people else "failure", title, about)


# --- who is told


def routes(settings: Settings, known: Sequence[str], complain: Callable[[str], None]) -> Mapping[str, tuple[str, ...]]:
    """kind -> names of those who are told. complain: is called with unknown names."""
    found = {}
    for kind in KINDS:
        words: tuple[str, ...] = getattr(settings, f"notify_{kind}", ("all",))
        for word in words:
            if word not in (*known, "all", "none"):
                complain(f"notify.{kind}: there is no address `{word}` in the notify file{suggestion(word, known)}")
        found[kind] = tuple(known) if "all" in words else tuple(name for name in known if name in words)
    return found


class Notices(Silent):
    """Sends the notices of a job.

    say: prints for people who read ftrun's output. argv: of the sender. put: writes one notice for one address to the outbox;
    False if that is full. pending: do earlier notices wait there?
    """

    def __init__(
        self, job: str, about: str, routes: Mapping[str, tuple[str, ...]], argv: Sequence[str],
        put: Callable[[Notice, str], bool], say: Callable[[str], None], pending: bool = False,
    ) -> None:  # fmt: skip
        self._job, self._about, self._routes, self._argv = job, about, routes, argv
        self._put, self._say = put, say
        self._queue: queue.Queue[Notice | None] = queue.Queue(MAX_QUEUED)
        self._sender: subprocess.Popen[bytes] | None = None
        self._starts, self._complained = 0, False
        self._pending = pending
        self._worker: threading.Thread | None = None
        if pending:
            self._work_on()

    def record(self, record: rec.Record, past: Sequence[rec.Record]) -> None:
        if isinstance(record, (rec.Decided, rec.ProgramSaid, rec.RunBegan, rec.Finished)):
            self._tell(of_record(record, past, self._job, self._about))

    def hang(self, card: Card) -> None:
        self._tell(of_card(card, self._job, self._about))

    def _tell(self, notice: Notice | None) -> None:
        if notice is None or not self._routes.get(notice.kind):
            return
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            self._complain("notices come faster than they can be written; some are dropped")
        self._work_on()

    def _work_on(self) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, daemon=True)
            self._worker.start()

    def end(self, wait_s: float) -> None:
        """No more notices follow. wait_s: how long to wait until they are sent; then the sender is stopped. 0: it continues on
        its own.
        """
        if self._worker is None:
            return
        deadline = time.monotonic() + wait_s
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        if not wait_s:
            return
        self._worker.join(wait_s)
        sender = self._sender
        if sender is None:
            return
        try:
            sender.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(sender.pid, signal.SIGKILL)
            sender.wait(1.0)
            self._say("not all notices went out in time; the next ftrun sends them, or `ftslurm notify --pending`")

    # --- the thread

    def _work(self) -> None:
        try:
            if self._pending:
                self._wake()
            while (notice := self._queue.get()) is not None:
                for name in self._routes[notice.kind]:
                    if not self._put(notice, name):
                        self._complain("too many notices wait to be sent; some are dropped")
                self._wake()
        except StateError as error:
            self._complain(f"{error}; no more notices are sent")
        except Exception as error:  # the job continues whatever happens here
            self._complain(f"no more notices are sent: {type(error).__name__}: {error}")
        finally:
            if self._sender is not None and self._sender.stdin is not None:
                with suppress(OSError):
                    self._sender.stdin.close()

    def _wake(self) -> None:
        for _ in range(2):
            sender = self._started()
            if sender is None or sender.stdin is None:
                return
            try:
                sender.stdin.write(b"\n")
                sender.stdin.flush()
                return
            except OSError:
                self._sender = None

    def _started(self) -> subprocess.Popen[bytes] | None:
        if self._sender is not None and self._sender.poll() is None:
            return self._sender
        if self._starts >= MAX_STARTS:
            self._complain("the sender of notices has failed; no more are sent")
            return None
        self._starts += 1
        self._sender = subprocess.Popen(
            list(self._argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._sender,), daemon=True).start()
        return self._sender

    def _listen(self, sender: subprocess.Popen[bytes]) -> None:
        assert sender.stdout is not None
        with sender.stdout:
            for line in sender.stdout:
                self._say(line.decode(errors="replace").rstrip("\n")[:500])

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            self._say(text)


def sender_argv(root: Path, file: Path, settings: Settings) -> tuple[str, ...]:
    python = own_python()
    words = (str(root), str(file), str(settings.notify_burst), f"{settings.notify_window_s:g}")
    return python.module_argv("ftslurm.notify.sender", *words)


def make(settings: Settings, root: Path, file: Path, job: str, about: str, say: Callable[[str], None]) -> Silent:
    """The notices of a job; see notices_for."""
    try:
        known = read_destinations(file)
    except FtslurmError as error:
        say(f"no notices of this job are sent: {error}")
        return Silent()
    wanted = routes(settings, list(known), say)
    if any(each.url for each in known.values()) and (why := why_no_apprise()):
        say(f"{file}: {why}")
        wanted = {kind: tuple(name for name in names if known[name].argv) for kind, names in wanted.items()}
    outbox = Outbox(root, file)
    return Notices(job, about, wanted, sender_argv(root, file, settings), outbox.put, say, outbox.anything())

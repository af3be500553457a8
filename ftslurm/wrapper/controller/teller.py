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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError
from ftslurm.launchers.python import own_python
from ftslurm.model import record as rec
from ftslurm.model.folds.history import schedule_count
from ftslurm.model.folds.summary import AFTER_LIMIT, last_wait
from ftslurm.model.job import Reading
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.rungs import REQUEUES, SWAPS, Rung
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.settings.tree import Settings
from ftslurm.model.text import cut
from ftslurm.model.values import replace
from ftslurm.notify.deliver import need_apprise, read_destinations, why_no_apprise
from ftslurm.notify.outbox import KINDS, Notice, Outbox, summary
from ftslurm.report.card import Card, card_lines
from ftslurm.report.words import moment

# Notices that wait for the thread: if its file system hangs, so does the ledger's.
MAX_QUEUED = 200
# How often a sender that ends by itself is started again.
MAX_STARTS = 3
# What passes by itself in less is no news.
WAIT_S = 300.0
DIGEST, DIGEST_S = "digest", 3600.0
# The end of an ftrun, for what is kept to be written to the outbox.
FLUSH_S = 0.5


# --- what is told: records in, notices out


def of_card(card: Card, job: str, about: str) -> Notice:
    """The notice of a failure card. about: one line on where the job runs."""
    text = "\n".join([*card_lines(card)[1:], about])  # the first line is the title
    return Notice(f"{job}.{card.at:.6f}.{card.rung}", card.at, job, _kind(card.rung), card.title, text)


def _kind(rung: str) -> str:
    if rung in ("", Rung.FAIL):
        return "failure" if rung else "hang"
    if rung in (*REQUEUES, Rung.BY_SLURM):
        return "requeue"
    return "replacement" if rung in SWAPS else "restart"


def of_record(record: rec.Record, past: Sequence[rec.Record], job: str, about: str) -> Notice | None:
    """The notice of the new record `record`, but for a decision, which has a card; past: the last of each kind or more, with it
    as the last. None: nobody is told."""
    match record:
        case rec.ProgramSaid(what="message"):
            title = f"job {job}: rank {record.rank} says: {cut(record.text, 100)}"
            id = f"{job}.{record.at:.6f}.{record.rank}.{record.text}"
            return Notice(id, record.at, job, "message", title, f"{record.text}\n{about}")
        case rec.RunBegan() if _unseen(record, past):
            count = schedule_count(record.schedule)
            id, title = f"{job}.{record.run}", f"job {job}: Slurm has started it again, scheduling {count}"
            return Notice(id, record.at, job, "requeue", title, f"no record says how the previous scheduling ended\n{about}")
        case rec.Waiting() if record.what:
            return _of_wait(record, job, about)
        case rec.Finished():
            return _of_end(record, past, job, about)
        case _:
            return None


def _of_wait(wait: rec.Waiting, job: str, about: str) -> Notice:
    """At once where nobody knows when it ends by itself, and somebody can end it; else when it has lasted."""
    until = f", until {moment(wait.until)} at the latest" if wait.until else ""
    title = f"job {job} waits for {wait.what}{until}"
    text = "\n".join((f"  since  {moment(wait.at)}", *([f"  next   {wait.helps}"] if wait.helps else []), about))
    after_s = 0.0 if wait.helps and not wait.until else WAIT_S
    return Notice(f"{job}.{wait.at:.6f}.wait", wait.at + after_s, job, "wait", title, text)


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


def digests(settings: Settings) -> frozenset[str]:
    """Kinds of which people get a digest."""
    return frozenset(kind for kind in KINDS if DIGEST in getattr(settings.notify, kind, ()))


def routes(settings: Settings, known: Sequence[str], complain: Callable[[str], None]) -> Mapping[str, tuple[str, ...]]:
    """kind -> names of those who are told. complain: is called with unknown names."""
    found = {}
    for kind in KINDS:
        words: tuple[str, ...] = getattr(settings.notify, kind, ("all",))
        for word in words:
            if word not in (*known, "all", "none", DIGEST):
                complain(f"notify.{kind}: there is no address `{word}` in the notify file{suggestion(word, known)}")
        everybody = "all" in words or words == (DIGEST,)
        found[kind] = tuple(known) if everybody else tuple(name for name in known if name in words)
    return found


class Held:
    """Notices that do not go at once: those of kinds of which people get a digest, and that of a wait that may yet pass. Times in
    Unix seconds."""

    def __init__(self, digests: Collection[str] = ()) -> None:
        self._digests = frozenset(digests)
        self._kept: list[Notice] = []
        self._wait: Notice | None = None

    def take(self, notice: Notice, now: float) -> list[Notice]:
        """Gives what goes at once."""
        if notice.kind in self._digests:
            self._kept.append(notice)
        elif notice.at > now:
            self._wait = replace(notice, at=min(notice.at, self._wait.at)) if self._wait else notice
        else:
            return [notice]
        return []

    def wait_is_over(self) -> None:
        self._wait = None

    def due(self, now: float, ending: bool = False) -> list[Notice]:
        found = []
        if self._wait is not None and now >= self._wait.at:
            found.append(self._wait)
            self._wait = None
        if self._kept and (ending or now >= self._kept[0].at + DIGEST_S):
            found.append(summary(self._kept))
            self._kept = []
        return found

    def next_at(self) -> float | None:
        at = ([self._wait.at] if self._wait else []) + ([self._kept[0].at + DIGEST_S] if self._kept else [])
        return min(at, default=None)


class Notices:
    """Sends the notices of a job.

    say: prints for people who read ftrun's output. argv: of the sender. put: writes one notice for one address to the outbox;
    False if that is full. pending: do earlier notices wait there?
    """

    def __init__(
        self, job: str, about: str, routes: Mapping[str, tuple[str, ...]], argv: Sequence[str],
        put: Callable[[Notice, str], bool], say: Callable[[str], None], pending: bool = False, digests: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._job, self._about, self._routes, self._argv = job, about, routes, argv
        self._put, self._say = put, say
        self._queue: queue.Queue[Notice | bool] = queue.Queue(MAX_QUEUED)  # True: a wait is over; False: nothing follows
        self._held, self._waits = Held(digests), False
        self._sender: subprocess.Popen[bytes] | None = None
        self._starts, self._complained = 0, False
        self._told = pending  # is there anything to send?
        self._worker: threading.Thread | None = None
        if pending:
            self._work_on()

    def prepare(self) -> None:
        """Start the sender while its files are those of our version: an upgrade may replace them before there is news."""
        if any(self._routes.values()):
            self._work_on()

    def record(self, record: rec.Record, past: Sequence[rec.Record]) -> None:
        if self._waits and last_wait(past) is None:
            self._waits = False
            with suppress(queue.Full):
                self._queue.put_nowait(True)
        if isinstance(record, (rec.ProgramSaid, rec.RunBegan, rec.Finished, rec.Waiting)):
            self._waits = self._waits or isinstance(record, rec.Waiting)
            self._tell(of_record(record, past, self._job, self._about))

    def card(self, card: Card | None) -> None:
        self._tell(of_card(card, self._job, self._about) if card is not None else None)

    def _tell(self, notice: Notice | None) -> None:
        if notice is None or not self._routes.get(notice.kind):
            return
        self._told = True
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
            self._queue.put_nowait(False)
        self._worker.join(wait_s or FLUSH_S)
        if not wait_s or not self._told:
            return
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
            self._wake()
            while self._next():
                pass
        except StateError as error:
            self._complain(f"{error}; no more notices are sent")
        except Exception as error:  # no fault of notices ends the job
            self._complain(f"no more notices are sent: {type(error).__name__}: {error}")
        finally:
            if self._sender is not None and self._sender.stdin is not None:
                with suppress(OSError):
                    self._sender.stdin.close()

    def _next(self) -> bool:
        """Wait for news, or until something kept is due; pass on what may go. False: nothing follows."""
        at = self._held.next_at()
        news: Notice | bool | None = None
        with suppress(queue.Empty):
            news = self._queue.get(timeout=None if at is None else max(0.1, at - time.time()))
        if isinstance(news, bool):
            self._held.wait_is_over()
        at_once = self._held.take(news, time.time()) if isinstance(news, Notice) else []
        self._pass_on([*at_once, *self._held.due(time.time(), ending=news is False)])
        return news is not False

    def _pass_on(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            for name in self._routes[notice.kind]:
                if not self._put(notice, name):
                    self._complain("too many notices wait to be sent; some are dropped")
        if notices:
            self._wake()

    def _wake(self) -> None:
        sender = self._started()
        if sender is not None and sender.stdin is not None:
            with suppress(OSError):  # it has just ended: the next notice starts it again, or the next ftrun
                sender.stdin.write(b"\n")
                sender.stdin.flush()

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
    words = (str(root), str(file), str(settings.notify.burst), f"{settings.notify.window_s:g}")
    return python.module_argv("ftslurm.notify.sender", *words)


def make(settings: Settings, root: Path, file: Path, job: str, about: str, say: Callable[[str], None]) -> Notices | None:
    """The notices of a job; see notices_for."""
    try:
        known = read_destinations(file)
    except FtslurmError as error:
        say(f"no notices of this job are sent: {error}")
        return None
    wanted = routes(settings, list(known), say)
    if any(each.url for each in known.values()) and (why := why_no_apprise()) and (mute := need_apprise(known)):
        say(f"{file}: {why}")
        wanted = {kind: tuple(name for name in names if name not in mute) for kind, names in wanted.items()}
    outbox = Outbox(root, file)
    return Notices(job, about, wanted, sender_argv(root, file, settings), outbox.put, say, outbox.anything(), digests(settings))

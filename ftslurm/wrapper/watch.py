"""Reads what people watch: a job's ledger, live data of its ftrun, and Slurm's state if neither tells."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.ledger import live as files
from ftslurm.ledger.journal import Contents
from ftslurm.ledger.output import kept_evidence
from ftslurm.ledger.store import LOCAL_CLUSTER, Store, ledger_parts
from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.messages import Live
from ftslurm.model.record import Record
from ftslurm.model.text import visible
from ftslurm.model.values import Value, replace
from ftslurm.report import view
from ftslurm.report.jobs import SORTS
from ftslurm.report.logs import outputs_of
from ftslurm.report.watch import Seen
from ftslurm.system.files import info_of, read_private
from ftslurm.wrapper import logs
from ftslurm.wrapper.jobs import all_jobs, with_slurms_word
from ftslurm.wrapper.logs import Source

# Seconds between two signs to ftrun that someone watches, and between two requests to Slurm.
ASK_S, SLURM_S = 3.0, 10.0
LOG_BYTES, EVIDENCE_BYTES = 256 << 10, 256 << 10
# How long finished jobs stay in a list, seconds.
OVER_S = 86400.0


class JobWatch:
    """One job. `look` may be slow if a file system or slurmctld is."""

    def __init__(self, store: Store, job: str, env: Mapping[str, str]) -> None:
        """Raises: UnknownJob, StateError."""
        self.job = job
        self.store = store
        self._env = env
        self.journal, self._contents = store.read(job)
        self._status: view.Status | None = None
        self._said: JobSummary | None = None
        self._slurm_at = self._ask_at = 0.0
        # A file that exists already may be of a killed ftrun: only new content counts.
        self._live: Live | None = None
        self._written = files.live_changed(self.journal.path)
        self._told_at = self._began = time.monotonic()
        self._told_to = False
        self._request: dict[str, object] = {}
        self._size = (0, 0)
        self._read(self._contents)

    @property
    def records(self) -> Sequence[Record]:
        """As they were last read."""
        return self._contents.records

    def look(self) -> Seen | None:
        """The present state, None if nothing has begun. Raises: StateError."""
        now = time.monotonic()
        if self._changed() and (contents := self.journal.read()) is not self._contents:
            self._read(contents)
        if self._status is None:
            return None
        known = self._status.summary
        self._ask(known, now)
        if (written := files.live_changed(self.journal.path)) != self._written:
            self._written, live = written, files.read_live(self.journal.path)
            if live is not None:
                self._live, self._told_at = live, now
        seen = Seen(
            time.time(), self._status, self._contents.records, self._live, now - self._told_at, now - self._began, self._told_to
        )
        if seen.fresh is not None or known.over:
            return seen
        summary = self._slurms_word(known, now)
        if summary.over and self.journal.path.stat().st_uid == os.geteuid():
            files.remove_live(self.journal.path, request=True)  # a killed ftrun may have left them
        return replace(seen, status=replace(seen.status, summary=summary))

    def want_stacks(self, node: str) -> str:
        """Ask for the stacks of the ranks on `node`; gives the name under which they arrive (Live.stacks)."""
        asked = os.urandom(6).hex()
        self._request = {"stacks": [asked, node]}
        self._ask_at = 0.0
        return asked

    def sources(self, rank: int | None) -> tuple[list[Source], int | None]:
        """The files of that rank, or of the whole job, and the rank whose label selects lines. Raises: UsageError."""
        outputs = outputs_of(self._contents.records)
        if rank is not None and (own := logs.rank_sources(outputs, rank, None)):
            return own[-1:], None
        found = logs.sources(outputs, self.journal.path, None)
        return [one for one in found if one.schedule is None] or found, rank if outputs.label else None

    def evidence(self) -> list[tuple[Path, str]]:
        """The evidence on hung ranks that was kept before they were stopped, the latest last."""
        found = []
        for path in kept_evidence(self.journal.path):
            with suppress(OSError):
                found.append((path, visible(read_private(path, EVIDENCE_BYTES).decode(errors="replace"), lines=True)))
        return found

    def _changed(self) -> bool:
        """Has the ledger changed? It is opened for that: NFS may cache the state of a file that another machine writes for a
        minute.
        """
        if (info := info_of(self.journal.path)) is None:
            return False
        before, self._size = self._size, (info.st_ino, info.st_size)
        return before != self._size

    def _read(self, contents: Contents) -> None:
        self._contents = contents
        self._status = view.status_of(contents.records, contents.damaged)
        self._slurm_at = 0.0

    def _ask(self, known: JobSummary, now: float) -> None:
        if now < self._ask_at or known.over:
            return
        self._ask_at = now + ASK_S
        try:
            files.write_request(self.journal.path, self._request)
            self._told_to = True
        except OSError:
            self._told_to = False

    def _slurms_word(self, known: JobSummary, now: float) -> JobSummary:
        if self._said is None or now >= self._slurm_at:
            (self._said,), _ = with_slurms_word([known], self.journal.path.stat().st_uid, self._env)
            self._slurm_at = time.monotonic() + SLURM_S
        return self._said


def name_of(job: JobSummary) -> str:
    """The name that finds this job's ledger and no other."""
    name = ledger_parts(job.cluster, job.job)[1].removesuffix(".jsonl")
    return f"{LOCAL_CLUSTER}.{job.job}" if job.local else name


class JobsSeen(Value):
    """now: Unix seconds. silent: why Slurm could not be asked, empty if it could."""

    now: float
    jobs: tuple[JobSummary, ...]
    silent: str = ""


class JobsWatch:
    """All jobs of the user."""

    def __init__(self, store: Store, env: Mapping[str, str], every: bool = False) -> None:
        """every: also jobs that ended during the last day."""
        self.every = every
        self._store = store
        self._env = env

    def look(self) -> JobsSeen:
        """Raises: StateError."""
        jobs, silent = all_jobs(self._store.root, self._env)
        now = time.time()
        shown = [job for job in jobs.values() if not job.over or (self.every and job.at > now - OVER_S)]
        return JobsSeen(now, tuple(sorted(shown, key=SORTS["last"])), silent)


def log_lines(pieces: Iterator[bytes]) -> Iterator[list[str]]:
    """Whole lines as a terminal would show them, made safe, without what a progress bar has overwritten."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LOG_BYTES:
            lines, rest = [*lines, rest], b""
        if lines:
            yield [visible(line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")) for line in lines]


def follow_log(
    watch: JobWatch, rank: int | None, stop: Callable[[], bool], wait: Callable[[float], object]
) -> Iterator[list[str]]:
    """The end of the output of the job, or the rank, and what follows. Raises: UsageError if there is no such file."""
    found, by_label = watch.sources(rank)
    yield [f"==> {visible(source.title)} <==" for source in found]
    pieces = logs.follow([source.path for source in found], stop, by_label, wait, LOG_BYTES)
    yield from log_lines(pieces)

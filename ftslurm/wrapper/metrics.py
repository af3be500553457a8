"""ftrun's output for monitoring, while it runs and when it ends: its file for node_exporter, and its trace. A problem here
neither delays nor breaks the job.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import ftslurm
from ftslurm.errors import FtslurmError, StateError, UsageError
from ftslurm.launchers.python import own_python
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import VARIABLE
from ftslurm.model.folds.summary import summarise
from ftslurm.model.settings.tree import Settings
from ftslurm.model.text import visible
from ftslurm.report.measures import Span, spans
from ftslurm.system.commands import run_group
from ftslurm.system.files import replace_file
from ftslurm.system.owner import user_name
from ftslurm.system.plugins import pip_line

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

# --- Sends a job's spans to an OpenTelemetry collector (OTLP by HTTP). OTEL_EXPORTER_OTLP_* set headers, certificates and so on,
# as OpenTelemetry defines them.

SEND_LIMIT_S = 10
_NS = 1_000_000_000


def _readable(found: Sequence[Span]) -> list[ReadableSpan]:
    """The spans as the SDK's exporters take them."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    resource = Resource.create({"service.name": "ftslurm", "service.version": ftslurm.__version__})

    def context(trace: int, id: int) -> SpanContext:
        return SpanContext(trace, id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return [
        ReadableSpan(
            name=span.name, context=context(span.trace, span.id),
            parent=context(span.trace, span.parent) if span.parent else None, resource=resource,
            attributes=dict(span.about), kind=SpanKind.INTERNAL,
            events=[Event(event.name, dict(event.about), int(event.at * _NS)) for event in span.events],
            status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.UNSET),
            start_time=int(span.began * _NS), end_time=int(span.ended * _NS),
        )
        for span in found
    ]  # fmt: skip


def otlp_exporter(endpoint: str) -> SpanExporter:
    """endpoint: empty for OTEL_EXPORTER_OTLP_ENDPOINT. Raises: UsageError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise UsageError("traces need OpenTelemetry, which is not installed", hint=pip_line("otel")) from None
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # ftrun reports a failure itself, in one sentence
    return OTLPSpanExporter(endpoint=endpoint or None, timeout=SEND_LIMIT_S)


def send(found: Sequence[Span], exporter: SpanExporter) -> None:
    """Send the spans. Raises: StateError if the collector does not accept them."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    try:
        taken = exporter.export(_readable(found)) is SpanExportResult.SUCCESS
    except Exception as error:
        raise StateError(f"the traces were not sent: {type(error).__name__}: {error}", hint="correct the endpoint") from None
    if not taken:
        raise StateError("the traces were not taken", hint="is a collector listening there, and does it take OTLP by HTTP?")


def spans_of(ledger: Path) -> list[Span]:
    """The spans of a job. Raises: StateError."""
    records = Journal(ledger).read().records
    job = summarise(records)
    return spans(records, time.time(), job is not None and job.over)


# Seconds to send the trace, when the job is over.
TRACE_LIMIT_S = 15.0
# beats, time of the last one (Unix seconds), connected ranks, training step
Numbers = tuple[int, float, int, int]
End = Callable[[bool], None]


def measured(
    settings: Settings, job: str, cluster: str, ledger: Path, numbers: Callable[[], Numbers], say: Callable[[str], None]
) -> End:
    """Begin to report. Gives the function to call at the end, with whether the job continues elsewhere."""
    file = _text_file(settings, job, cluster, ledger, numbers, say) if settings.metrics.dir else None

    def end(goes_on: bool) -> None:
        if file is not None:
            file.end(remove=goes_on)
        if settings.metrics.otlp and not goes_on:
            _trace(ledger, settings.metrics.otlp, say)

    return end


def _text_file(
    settings: Settings, job: str, cluster: str, ledger: Path, numbers: Callable[[], Numbers], say: Callable[[str], None]
) -> TextFile | None:
    if not find_spec("prometheus_client"):
        say(f"no metrics are written: metrics.dir needs prometheus-client ({pip_line('metrics')})")
        return None

    journal = Journal(ledger)

    def text() -> str:
        from ftslurm.report.measures import JobOf, Pulse, measure
        from ftslurm.wrapper.exposition import exposition

        seen = journal.read().records
        known = summarise(seen)
        if known is None:
            return ""
        job_of = JobOf(user_name(os.getuid()), measure(seen, known, time.time()), Pulse(*numbers()))
        return exposition([job_of], with_totals=False)

    path = file_of(Path(settings.metrics.dir), os.getuid(), cluster, job)
    return TextFile(path, text, say)


def _trace(ledger: Path, endpoint: str, say: Callable[[str], None]) -> None:
    """Send the trace from a process of its own, which is stopped if it takes too long."""
    words = ("ftslurm.cli.ftslurm", "metrics", "--otlp", "--endpoint", endpoint, ledger.stem)
    env = {**os.environ, VARIABLE: str(ledger.parent.parent)}
    try:
        done = run_group(own_python().module_argv(*words), TRACE_LIMIT_S, env)
    except FtslurmError as error:
        return say(str(error))
    if done.timed_out:
        say(f"the trace was not sent within {TRACE_LIMIT_S:g} s; `ftslurm metrics --otlp` sends it later")
    elif done.status:
        said = done.stderr.strip().splitlines() or [f"the trace was not sent: status {done.status}"]
        say(said[-1].removeprefix("ftslurm: ")[:300])


# --- one file of metrics per job in the folder that node_exporter's textfile collector reads, rewritten every few seconds by the
# job's ftrun. Often everyone may write to that folder (mode 1777), so no file in it is opened by its name.

MODE = 0o644
PREFIX, SUFFIX = "ftslurm", ".prom"
# Between two writes.
EVERY_S = 15.0
# After which a later job may remove the file of one that is over.
KEEP_S = 3600.0
# Seconds to write the last state, at the end.
END_WAIT_S = 2.0


def file_of(folder: Path, user_id: int, cluster: str, job: str) -> Path:
    safe = "".join(char if char.isalnum() or char in "_-" else "-" for char in f"{cluster}-{job}")[:100]
    return folder / f"{PREFIX}-{user_id}-{safe}{SUFFIX}"


def sweep(folder: Path, user_id: int, now: float) -> None:
    """Remove files of the user's jobs that were not written for KEEP_S: the job is over, or runs elsewhere. Never raises."""
    with suppress(OSError):
        for path in folder.glob(f"{PREFIX}-{user_id}-*{SUFFIX}"):
            with suppress(OSError):
                info = path.lstat()
                if info.st_uid == user_id and now - info.st_mtime > KEEP_S:
                    path.unlink()


class TextFile:
    """Writes the file in a thread. text: gives the job's present metrics; may be slow. say: prints for people, once."""

    def __init__(self, path: Path, text: Callable[[], str], say: Callable[[str], None]) -> None:
        self._path, self._text, self._say = path, text, say
        self._end = threading.Event()
        self._remove, self._told = False, False
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()

    def end(self, remove: bool) -> None:
        """remove: the job continues elsewhere; otherwise its last state stays for a while."""
        self._remove = remove
        self._end.set()
        self._worker.join(END_WAIT_S)

    def _work(self) -> None:
        sweep(self._path.parent, os.getuid(), time.time())
        ending = False
        while not (ending and self._remove):
            try:
                replace_file(self._path, self._text().encode(), MODE)
            except Exception as error:  # the job continues whatever happens here
                self._complain(error)
            if ending:
                return
            ending = self._end.wait(EVERY_S)
        with suppress(OSError):
            self._path.unlink()

    def _complain(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._say(f"the metrics cannot be written to {self._path}: {visible(why)}; the job continues")

"""Sends a job's spans to an OpenTelemetry collector (OTLP by HTTP). OTEL_EXPORTER_OTLP_* set headers, certificates and so on, as
OpenTelemetry defines them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ftslurm
from ftslurm.errors import FtslurmError, StateError, UsageError
from ftslurm.ledger.journal import Journal
from ftslurm.model.folds.summary import summarise
from ftslurm.report.measures import Span, spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

SEND_LIMIT_S = 10
_NS = 1_000_000_000


def readable(found: Sequence[Span]) -> list[ReadableSpan]:
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
        raise UsageError("traces need OpenTelemetry, which is not installed", hint="pip install 'ftslurm[otel]'") from None
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # ftrun reports a failure itself, in one sentence
    return OTLPSpanExporter(endpoint=endpoint or None, timeout=SEND_LIMIT_S)


def send(found: Sequence[Span], exporter: SpanExporter) -> None:
    """Send the spans. Raises: StateError if the collector does not accept them."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    try:
        taken = exporter.export(readable(found)) is SpanExportResult.SUCCESS
    except Exception as error:
        raise StateError(f"the traces were not sent: {type(error).__name__}: {error}", hint="correct the endpoint") from None
    if not taken:
        raise StateError("the traces were not taken", hint="is a collector listening there, and does it take OTLP by HTTP?")


def spans_of(ledger: Path) -> list[Span]:
    """The spans of a job. Raises: StateError."""
    records = Journal(ledger).read().records
    job = summarise(records)
    return spans(records, time.time(), job is not None and job.over)


def main() -> None:
    """Sends a trace. Arguments: ledger, endpoint. Prints one line if it fails."""
    try:
        send(spans_of(Path(sys.argv[1])), otlp_exporter(sys.argv[2]))
    except FtslurmError as error:
        from ftslurm.model.text import visible

        print(visible(error))


if __name__ == "__main__":
    main()

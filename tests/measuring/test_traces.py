"""A job as a trace: its spans, that the same job gives the same ones, and that a real collector's door takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from ftslurm.cli.site import metrics as door
from ftslurm.errors import StateError, UsageError
from ftslurm.model import record as rec
from ftslurm.report.measures import MAX_EVENTS, spans
from ftslurm.wrapper.metrics import send
from tests.cli.test_ftrun import command
from tests.measuring.test_metrics import RECORDS, ledger
from tests.notify.servers import free_port, webhook


def test_attempts_and_what_lies_between_are_spans_of_one_trace() -> None:
    found = spans(RECORDS, 500.0, over=False)
    assert [(span.name, span.began, span.ended) for span in found] == [
        ("job 7", 100, 500), ("starting", 100, 105), ("attempt 1", 105, 227), ("isolated-requeue", 227, 260), ("starting", 260, 264),
        ("attempt 2", 264, 400), ("starting", 400, 500),
    ]  # fmt: skip
    job, first = found[0], found[2]
    assert len({span.trace for span in found}) == 1 and len({span.id for span in found}) == 7
    assert job.parent == 0 and all(span.parent == job.id for span in found[1:])
    assert first.failed == "n2 0.0 is broken"
    assert [event.name for event in first.events] == ["device fault", "device fault", "trouble", "attempt ended", "decision"]
    assert spans(RECORDS, 500.0, over=False) == found, "sent again it is the same trace"
    assert spans((), 1.0, over=True) == []


def test_a_job_that_talks_all_day_stays_a_trace() -> None:
    many = [rec.FaultSeen(110.0, "n", "d", "c\x1b" * 1000, "", "") for _ in range(1000)]
    span = spans((*RECORDS[:2], *many), 500.0, over=False)[2]
    assert len(span.events) == MAX_EVENTS and all(
        len(str(value)) <= 300 for event in span.events for value in event.about.values()
    )


def test_the_sdk_takes_them() -> None:
    memory = InMemorySpanExporter()
    send(spans(RECORDS, 500.0, over=False), memory)
    taken = memory.get_finished_spans()
    attempt = next(span for span in taken if span.name == "attempt 1")
    assert attempt.status.status_code is StatusCode.ERROR and attempt.attributes is not None
    assert attempt.attributes["ftslurm.attempt"] == 1 and attempt.start_time == 105 * 10**9
    assert attempt.parent is not None and attempt.parent.span_id == taken[0].context.span_id
    assert taken[0].resource.attributes["service.name"] == "ftslurm"


def test_a_job_sends_its_trace_when_it_is_over_and_the_door_sends_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(body: bytes) -> list[str]:
        request = ExportTraceServiceRequest.FromString(body)
        return [span.name for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]

    with webhook() as collector:
        endpoint = f"http://127.0.0.1:{collector.port}/v1/traces"
        argv = ("--ft-launcher", "local", "-n1", "sh", "-c", "[ $FTSLURM_ATTEMPT = 2 ]")
        done = command("ftslurm", *argv, home=tmp_path, FTRUN_METRICS_OTLP=endpoint, OTEL_EXPORTER_OTLP_COMPRESSION="none")
        assert done.returncode == 0, done.stderr
        whole = ["job 1", "starting", "attempt 1", "in-place-restart", "attempt 2"]
        assert [names(body) for body in collector.bodies] == [whole] and collector.paths == ["/v1/traces"]
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("FTSLURM_STATE_DIR", raising=False)
        again = CliRunner().invoke(door, ["--otlp", "--endpoint", endpoint, "local.1"])
        assert again.stdout == "5 spans of job local.1 sent\n" and names(collector.bodies[1]) == whole


def test_nobody_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FTSLURM_STATE_DIR", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr("ftslurm.wrapper.metrics.SEND_LIMIT_S", 1)
    ledger(tmp_path, "7").append(RECORDS)
    assert isinstance(CliRunner().invoke(door, ["--otlp", "7"]).exception, UsageError)
    nowhere = f"http://127.0.0.1:{free_port()}/v1/traces"
    assert isinstance(CliRunner().invoke(door, ["--otlp", "--endpoint", nowhere, "7"]).exception, StateError)

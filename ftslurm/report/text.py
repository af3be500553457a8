"""Views as text for a terminal or a pipe. One fact a line, so that narrow windows and grep both do well."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from ftslurm.model.nodes import fold
from ftslurm.report.facts import print_facts, printable
from ftslurm.report.view import AttemptView, RemedyView, Status, VerdictView


def moment(at: float) -> str:
    """Local time, to the second: what people compare with their own logs and Slurm's."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "-"


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at)) if at else "?"


def span(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `5 h 2 min`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def print_status(console: Console, view: Status) -> None:
    facts = [
        ("state", view.state),
        ("attempt", f"{view.attempt}  (MA_SCHEDULE_CNT {view.schedule_count}, MA_PROC_START_CNT {view.start_count})"),
        ("nodes", view.nodes),
        ("last rung", f"{view.rung} ({view.cause}): {view.why}" if view.rung else "none: nothing has gone wrong yet"),
        ("excluded", "; ".join(f"{node}: {why}" for node, why in view.excluded.items()) or "none"),
        ("budgets", ", ".join(f"{name} {left} of {limit} left" for name, (left, limit) in view.left.items())),
        ("in a row", f"{view.unconditional_in_a_row} unconditional requeues without progress or a fact between"),
        ("last word", moment(view.at)),
    ]
    if view.requeue_open:
        facts.append(("note", f"a requeue was begun and not finished: ftslurm requeue --finish {view.job}"))
    if view.damaged:
        facts.append(("note", f"{view.damaged} damaged lines in the ledger were passed over"))
    console.print(printable(f"job {view.job} on {view.cluster or '?'}: {view.command}", style="bold"))
    print_facts(console, facts, 2)


def print_all(console: Console, views: Sequence[Status]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("JOB", "CLUSTER", "ATTEMPT", "STATE", "LAST RUNG", "LAST WORD"):
        table.add_column(title, overflow="fold")
    for view in views:
        table.add_row(
            view.job, view.cluster, str(view.attempt), printable(view.state), view.rung or "-", moment(view.at)
        )
    console.print(table)


def print_history(console: Console, view: Status, attempts: Sequence[AttemptView]) -> None:
    console.print(printable(f"job {view.job} on {view.cluster or '?'}: {view.command}", style="bold"))
    ended = 0.0
    for attempt in attempts:
        if ended:
            console.print(printable(f"  {span(attempt.began - ended)} until it ran again", style="dim"))
        ended = attempt.ended
        _print_attempt(console, attempt)
    console.print(printable(f"now: {view.state}", style="bold"))


def print_files(console: Console, what: str, paths: Sequence[str]) -> None:
    for path in paths:
        console.print(printable(f"{what}: {path}"))


def _print_attempt(console: Console, a: AttemptView) -> None:
    lasted = f" for {span(a.ended - a.began)}" if a.ended else ", end not recorded"
    console.print(
        printable(f"attempt {a.number}  {moment(a.began)}{lasted} on {a.nodes}, {a.tasks} tasks", style="cyan")
    )
    facts = [("counters", f"MA_SCHEDULE_CNT {a.schedule_count}, MA_PROC_START_CNT {a.start_count}, step {a.step}")]
    facts += [("fault", fault) for fault in a.faults]
    facts += [("cause", a.cause)] if a.cause else []
    ranks = ", ".join(f"{count} {how.removeprefix('was ')}" for how, count in sorted(a.exits.items()))
    facts += [("ranks", ranks)] if ranks else []
    for hang in a.hangs:
        facts += [("hang", hang.what), *(("evidence", line) for line in hang.evidence)]
    for hint in a.hints:
        facts += [("hint", f"{hint.what}: {hint.advice}"), *(("evidence", line) for line in hint.evidence)]
    for verdict in a.verdicts:
        facts += _verdict_facts(verdict)
    for remedy in a.remedies:
        facts += _remedy_facts(remedy)
    facts += [("note", note) for note in a.notes]
    print_facts(console, facts, 2)


def _verdict_facts(v: VerdictView) -> Iterable[tuple[str, str]]:
    drill = " (a drill)" if v.drill else ""
    everywhere = ", the same everywhere" if v.program else ""
    yield "verdict", f"{v.error_class}: {v.what}{drill}"
    yield "", f"{v.signature}; worth another try: {v.retriable}; confidence: {v.confidence}{everywhere}"
    for line in v.evidence:
        if line not in v.what:
            yield "evidence", line
    for node, why in v.against.items():
        yield "suspect", f"{node}: {why}" if node not in why else why


def _remedy_facts(r: RemedyView) -> Iterable[tuple[str, str]]:
    cost = f", costs one of {r.cost}" if r.cost else ", costs nothing"
    yield "remedy", f"{clock(r.at)} {r.rung}{cost if r.rung != 'fail' else ''}"
    yield "why", r.why
    for rung, why in r.passed:
        yield "not", f"{rung}: {why}"
    for node, why in r.isolated.items():
        yield "isolated", f"{node}: {why}"
    if r.excluded:
        yield "without", fold(r.excluded)
    if r.done:
        yield ("done" if r.ok else "failed"), r.done

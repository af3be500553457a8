"""Views as text for a terminal or a pipe. One fact a line, so that narrow windows and grep both do well."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass
from ftslurm.model.folds.history import counters_of_attempt
from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.rungs import Rung
from ftslurm.model.text import counted, visible
from ftslurm.model.values import replace
from ftslurm.report.card import Card, card_lines
from ftslurm.report.jobs import state_words, title_of
from ftslurm.report.moments import Moment, MomentKind, fault, moments
from ftslurm.report.view import Again, AttemptView, Status, folded, in_a_line
from ftslurm.report.words import budgets, clock, moment, span


def safe_text(text: str, style: str = "") -> Text:
    """As rich prints it: brackets are no markup in it, and what is not printable becomes `?`."""
    return Text(visible(text, lines=True), style=style)


def print_facts(console: Console, facts: Iterable[tuple[str, str]], indent: int) -> None:
    """Names and values, a pair a line: wrapped under the value in a terminal, whole in a pipe. Those with an empty value are left
    out."""
    given = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        head, text = f"{' ' * indent}{name:<{width}}  ", safe_text(value)
        lines = text.wrap(console, max(20, console.width - len(head))) if console.is_terminal else [text]
        for number, line in enumerate(lines):
            console.print(safe_text(" " * len(head) if number else head, "dim") + line, soft_wrap=True)


def console() -> Console:
    """A pipe has no width: lines stay whole there, for grep and for logs."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def print_status(console: Console, view: Status, now: float) -> None:
    """now: Unix seconds."""
    wait, job = view.wait, view.summary
    last = f"{job.rung} ({job.cause}): {view.why}" if job.rung else "none: nothing has gone wrong yet"
    slow = job.requeue_open and not (wait and wait.helps)  # that wait may be longer
    facts = [
        ("state", f"{_state(view, now)}{' at the latest' if job.state == 'waiting' and job.until else ''}"),
        ("attempt", f"{job.attempt}  (MA_SCHEDULE_CNT {job.schedule_count}, MA_PROC_START_CNT {view.start_count})"),
        ("nodes", job.nodes),
        ("last rung", "" if view.card and view.card.rung else last),
        ("excluded", "; ".join(f"{node}: {why}" for node, why in view.excluded.items()) or "none"),
        ("budgets", budgets(view.left)),
        ("in a row", f"{counted(view.unconditional_in_a_row, 'unconditional requeue')} without progress or a fault between"),
        *_asked(view),
        ("next", wait.helps if wait else ""),
        *_sight(view),
        ("last word", moment(job.at)),
        ("note", f"a requeue is under way; if it is not done in two minutes: ftslurm requeue --finish {job.job}" if slow else ""),
        ("note", f"{view.damaged} damaged lines in the ledger were skipped" if view.damaged else ""),
    ]
    print_title(console, job)
    print_facts(console, facts, 2)
    if view.card is not None:
        console.print()
        told = view.card.next == f"ftslurm status {job.job}" or bool(wait and wait.helps)  # typed just now; stands above
        print_card(console, replace(view.card, next="") if told else view.card)


def print_title(console: Console, job: JobSummary) -> None:
    console.print(safe_text(title_of(job), style="bold"))


UNSEEN = "a replica that hangs while others get on, endless computing, a rank slower by less than a third"


def _sight(view: Status) -> Iterable[tuple[str, str]]:
    """What keeps it from going on, or may; and where the limit lies of what can be seen of hangs."""
    if view.stuck is not None:
        yield "stuck", "; ".join(view.stuck.evidence)
        yield from ([("next", f"{view.stuck.helps}  (lets it go on)")] if view.stuck.helps else ())
        yield "next", f"ftslurm control {view.summary.job} restart  (all ranks in place, now)"
    for seen in view.faults:
        acts = seen.fault_class in (FaultClass.SELF_HEALING.value, FaultClass.ISOLATE.value)
        yield "fault", f"{fault(seen)}{'; no remedy so far, and the ranks keep running' if acts else ''}"
    if view.summary.state == "running":
        yield "hangs", f"seen by I/O alone, as {view.blind}" if view.blind else f"not seen: {UNSEEN} (docs/hangs.md)"


def _asked(view: Status) -> Iterable[tuple[str, str]]:
    """By `ftslurm control`: what holds now, and what is still to come."""
    yield from (("held", f"{rung}: {why}") for rung, why in view.held.items())
    for request in view.requests:
        asked = request.asked
        yield "asked for", f"{in_a_line(request, moment)}, request {asked.number} of {asked.by}, {moment(asked.at)}"


def _state(view: Status, now: float) -> str:
    """Where a card follows it says what the end was about."""
    job = view.summary
    if view.card is not None and view.card.rung == Rung.FAIL and job.state == "failed":
        return job.state
    return state_words(job, now)


def print_card(console: Console, card: Card, indent: int = 0) -> None:
    """As in the log of ftrun; wrapped in a terminal, one fact a line in a pipe."""
    width = console.width - indent if console.is_terminal else None
    for number, line in enumerate(card_lines(card, width)):
        console.print(safe_text(f"{' ' * indent}{line}", style="" if number else "bold"), soft_wrap=True)


def print_history(
    console: Console, view: Status, attempts: Sequence[AttemptView], now: float, records: Sequence[rec.Record] = ()
) -> None:
    """now: Unix seconds. records: of the job, to tell all that was known and considered, and not the cards alone; nor is what
    repeats folded then."""
    print_title(console, view.summary)
    ended, told, whole = 0.0, False, _by_attempt(records)
    for attempt in attempts if whole else folded(attempts):
        if isinstance(attempt, Again):
            console.print(safe_text(_again(attempt), style="cyan"))
            ended = 0.0
            continue
        if ended and (whole or not told):
            console.print(safe_text(f"  {span(attempt.began.at - ended)} until it ran again", style="dim"))
        ended, told = attempt.ended.at if attempt.ended else 0.0, bool(attempt.cards)
        runs = attempt is attempts[-1] and view.summary.state in ("running", "hanging")
        _print_attempt(console, attempt, now if runs else ended, whole.get(attempt.number, ()))
    # A step that never came up has no attempt, below which its card would stand.
    shown = any(card.rung == Rung.FAIL for attempt in attempts[-1:] for card in attempt.cards)
    briefly = not whole and (shown or view.summary.state != "failed")
    console.print(safe_text(f"now: {_state(view, now) if briefly else view.summary.words}", style="bold"))


def _again(a: Again) -> str:
    lasted = f", for {span(a.shortest_s)} to {span(a.longest_s)} each" if a.longest_s else ""
    return f"attempts {a.first} to {a.last}  the same again, {counted(a.count, 'time')}{lasted} (-v shows them all)"


def _by_attempt(records: Iterable[rec.Record]) -> dict[int, list[Moment]]:
    found: dict[int, list[Moment]] = {}
    number = 0
    for record in records:
        number = record.attempt if isinstance(record, rec.AttemptBegan) else number
        found.setdefault(number, []).extend(moments(record))
    return found


def _print_attempt(console: Console, a: AttemptView, until: float, whole: Sequence[Moment]) -> None:
    """until: it has lasted to then, Unix seconds; 0: nobody knows. whole: all that has happened, instead of cards."""
    so_far = "" if a.ended else " so far"
    began, count = a.began, counters_of_attempt(a.began)
    lasted = f" for {span(max(0.0, until - began.at))}{so_far}" if until else ", end not recorded"
    told = f"attempt {a.number}  {moment(began.at)}{lasted} on {began.nodes}, {counted(began.tasks, 'task')}"
    console.print(safe_text(told, style="cyan"))
    facts = [("counters", f"MA_SCHEDULE_CNT {count.schedule}, MA_PROC_START_CNT {count.starts}, step {began.step}")]
    if not whole:
        facts += [] if a.cards else [*(("fault", fault(seen)) for seen in a.faults), *([("cause", a.cause)] if a.cause else [])]
        notes = a.notes if a.cards else [*a.notes, *a.ends]
        print_facts(console, [*facts, *(("note", note) for note in notes)], 2)
        for card in a.cards:
            print_card(console, replace(card, next=""), 2)
        return
    print_facts(console, [*facts, *(_fact(each) for each in whole if each.kind is not MomentKind.BEGAN)], 2)


def _fact(told: Moment) -> tuple[str, str]:
    what = f"{told.source}: {told.what}" if told.source else told.what
    return ("", what) if told.kind is MomentKind.DETAIL else (told.kind.value, f"{clock(told.at)} {what}")

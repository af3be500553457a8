"""A report as Markdown and as JSON. No text in the Markdown becomes markup, wherever it is shown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import TypedDict

from ftslurm.model.values import fields
from ftslurm.report.account.job import JobAccount
from ftslurm.report.account.jobs import JobsAccount
from ftslurm.report.account.parts import Part, Ratio
from ftslurm.report.page.document import Block, CardBlock, Cards, Document, Picture, Section, Table, Text

# What CommonMark and GitHub's tables take for markup inside a line. Brackets alone are none, and node lists have them; nor is
# `_` between letters.
_MARKUP = re.compile(r"([\\`*<|&]|(?<=\])[(\[:]|(?<=~)~)")
_WIDTH = 100


def render_text(document: Document) -> str:
    lines = [f"# {escape(document.title)}", "", escape(document.subtitle), ""]
    told = [[f"**{escape(figure.value)}**", escape(figure.label), escape(figure.note)] for figure in document.figures]
    lines += _table(["", "", ""], told, set())
    for section in document.sections:
        lines += _section(section)
    return "\n".join([*lines, "", f"_{escape(document.footer)}_", ""])


def escape(text: str) -> str:
    """One line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _section(section: Section) -> Iterable[str]:
    if all(isinstance(block, Picture) for block in section.blocks):
        return
    yield from ("", f"## {escape(section.title)}")
    for block in section.blocks:
        yield from (line for part in _parts(block) for line in ("", *part))


def _parts(block: Block) -> Iterable[Iterable[str]]:
    """Each of some lines."""
    match block:
        case Table():
            yield _of_table(block)
        case Text(text):
            yield textwrap.wrap(escape(text), _WIDTH, break_long_words=False, break_on_hyphens=False)
        case Cards(cards, more):
            yield from map(_card, cards)
            if more:
                yield [f"{more} older ones are not shown."]
        case _:
            pass  # a picture


def _of_table(block: Table) -> Iterable[str]:
    if not block.rows:
        yield escape(block.empty)
        return
    rows = [[escape(value) for value in row] for row in block.rows]
    if not block.head:
        rows = [[f"**{label}**", value] for label, value in rows]
    yield from _table([escape(word) for word in block.head or ("", "")], rows, set(block.numbers))
    if block.more:
        yield from ("", f"{block.more} more rows are not shown.")
    if block.caption:
        yield from ("", escape(block.caption))


def _card(card: CardBlock) -> Iterable[str]:
    yield f"### {escape(card.title)}"
    yield ""
    for label, value in card.rows:
        yield f"- **{escape(label)}**: {escape(value)}"
    for summary, text in card.details:
        yield ""
        yield f"{escape(summary)}:"
        yield ""
        yield from (f"    {line}" for line in text.splitlines())  # a code block: nothing in it counts


def _table(head: list[str], rows: list[list[str]], numbers: set[int]) -> list[str]:
    """Padded, but for the last column: that may be long."""
    last = len(head) - 1
    widths = [max([3, *(len(row[column]) for row in (head, *rows))]) for column in range(last)]

    def line(cells: list[str]) -> str:
        padded = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        return f"| {' | '.join([*padded, cells[last]])} |"

    rule = [("-" * (width - 1) + ":" if column in numbers else "-" * width) for column, width in enumerate([*widths, 3])]
    return [line(head), f"| {' | '.join(rule)} |", *map(line, rows)]


# --- reports for programs

# Of all that commands print as JSON: grows when a field goes, or changes its type or its meaning (docs/reference/json.md).
VERSION = 2


class Sums(TypedDict):
    """parts: seconds by part, which add up to whole_s. failed: of what interrupted it, the failures."""

    parts: Mapping[Part, float]
    whole_s: float
    lost_s: float
    ettr: Ratio | None
    rank_restarts: int
    tells_steps: bool
    failed: int
    interrupted: int


def job_as_plain(job: JobAccount) -> dict[str, Any]:
    """Times in Unix seconds, durations in seconds."""
    failures = [{**_fields(one), "lost_s": one.lost_s, "failed": one.outage.failed, "remedy": one.remedy} for one in job.failures]
    more = {"attempts": job.attempts, "events": job.events, "stretches": job.spent.stretches, "notes": job.notes}
    return {"version": VERSION, "kind": "job", **_short(job), **more, "failures": failures}


def jobs_as_plain(jobs: JobsAccount) -> dict[str, Any]:
    """parts: seconds times GPUs or nodes (unit)."""
    return {"version": VERSION, "kind": "jobs", **_fields(jobs), "jobs": [_short(job) for job in jobs.jobs]}


# Of a job among many these are left out.
LONG = frozenset({"summary", "spent", "failures", "attempts", "events", "notes"})


def _short(job: JobAccount) -> dict[str, Any]:
    body = {name: value for name, value in _fields(job).items() if name not in LONG}
    sums: Sums = {
        "parts": job.spent.parts, "whole_s": job.spent.whole_s, "lost_s": job.lost_s, "ettr": job.spent.ettr,
        "rank_restarts": job.spent.rank_restarts, "tells_steps": job.spent.tells_steps,
        "failed": sum(one.outage.failed for one in job.failures), "interrupted": len(job.failures),
    }  # fmt: skip
    return {**job.summary._asdict(), **body, **sums}


def _fields(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in fields(value)}

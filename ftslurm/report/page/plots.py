"""The pictures of a page: rows of bars, with places in per cent of the width, which page.html.j2 draws. Every part has a colour
of Okabe and Ito's palette, which colour-blind people can tell apart, and a hatch of its own there, so that nothing is told by
colour alone; a picture stands beside a table with the same numbers. Pure.

Source: M. Okabe, K. Ito, Color Universal Design (2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ftslurm.model.nodes import fold_nodes, named_nodes
from ftslurm.model.text import cut
from ftslurm.report.account.job import JobAccount
from ftslurm.report.account.jobs import JobsAccount
from ftslurm.report.account.parts import Part, Stretch
from ftslurm.report.page.document import Bar, Picture, Row, hours, percent
from ftslurm.report.words import clock, day, span

ROWS_MOST, OUTAGES_MOST, KINDS_MOST, NODES_MOST = 40, 25, 12, 20
LABEL_MOST, TICKS_MOST = 46, 6
# What is thinner can be seen no more; numbers of outages nearer than this would lie upon each other.
THIN, NUMBERS_APART = 0.2, 5.0
# What happened to a node -> what its mark is called.
MARKS: Mapping[str, str] = {
    "fault": "device fault", "excluded": "excluded", "refused": "not taken", "reinstated": "reinstated",
    "lent": "lent by another job",
}  # fmt: skip

Amounts = Sequence[tuple[str, float]]


# In the order of an outage; of each what it means, for the reader of the table.
MEANINGS: Mapping[Part, str] = {
    Part.TRAINING: "ranks did work that had not been done before",
    Part.NEW_OR_REDONE: "ranks ran; whether the work had been done before the restart is not known",
    Part.REDONE: "from the first step after a restart to the first new one",
    Part.NOTICING: "from the fault until ftrun knew of it",
    Part.STOPPING: "until no process of the attempt was left",
    Part.DECIDING: "until the ladder had chosen: devices and Slurm were asked",
    Part.WAITING: "for a device to heal, a node, a lease, the queue",
    Part.STARTING: "the script, the step, and the program until its first step where it reports steps",
    Part.UNKNOWN: "nobody wrote down what the ranks did",
    Part.OUTSIDE: "the script did something else; no part of the ratio",
}
SHORT: Mapping[Part, str] = {
    Part.NOTICING: "notice", Part.STOPPING: "stop", Part.DECIDING: "decide", Part.WAITING: "heal/wait", Part.STARTING: "start",
    Part.REDONE: "redo",
}  # fmt: skip


def _look(part: Part) -> str:
    return part.name.lower().replace("_", "-")


PARTS: Mapping[str, str] = {_look(part): part.value for part in MEANINGS}


def _stacked(
    caption: str, rows: Sequence[tuple[str, Amounts, str]], axis: str = "", names: Mapping[str, str] | None = None
) -> tuple[Picture, ...]:
    """rows: label, amounts that stand beside each other, note. Empty where there is nothing to draw."""
    most = max((sum(amount for _, amount in amounts) for _, amounts, _ in rows), default=0.0)
    if not most:
        return ()
    drawn = [Row(cut(label, LABEL_MOST), tuple(_beside(amounts, 100 / most)), note=note) for label, amounts, note in rows]
    return (Picture(caption, (*drawn, _scale(most)) if axis else tuple(drawn), names or {}, axis=axis),)


def _beside(amounts: Amounts, scale: float) -> Iterator[Bar]:
    x = 0.0
    for look, amount in amounts:
        if amount > 0:
            yield Bar(look, x, amount * scale)
            x += amount * scale


def _scale(most: float) -> Row:
    """Whole numbers where there are as many."""
    step = 10.0 ** math.floor(math.log10(most / TICKS_MOST))
    step = next(step * by for by in (1, 2, 5, 10) if most / (step * by) <= TICKS_MOST)
    step = max(1.0, step) if most >= 1 else step
    return Row(words=tuple((100 * step * tick / most, f"{step * tick:g}") for tick in range(int(most / step) + 1)))


def parts_of(caption: str, parts: Mapping[Part, float], show: Callable[[float], str]) -> tuple[Picture, ...]:
    whole = sum(parts.values())
    return _stacked(caption, [
        (part.value, [(_look(part), parts[part])], f"{percent(parts[part] / whole)}, {show(parts[part])}")
        for part in MEANINGS if parts[part] > 0
    ])  # fmt: skip


# --- one job


def timeline(job: JobAccount) -> tuple[Picture, ...]:
    if not job.attempts or job.spent.whole_s <= 0:
        return ()
    began, whole_s = job.spent.began, job.spent.whole_s

    def at(moment: float) -> float:
        return 100 * (min(max(moment, began), job.spent.ended) - began) / whole_s

    alike, left_out = _rows(job)
    rows = [Row("job", tuple(_bars(job.spent.stretches, at)))]
    for names, attempts, events in alike:
        mine = [each for each in job.spent.stretches if each.attempt in attempts and each.part not in _WITHOUT_NODES]
        marks = tuple((what, at(when), 50.0) for what, when in events if what in MARKS)
        rows.append(Row(cut(fold_nodes(names), LABEL_MOST), tuple(_bars(mine, at)), marks))
    numbers: list[tuple[float, str]] = []
    for one in job.failures:
        if not numbers or at(one.outage.at) - numbers[-1][0] > NUMBERS_APART:
            numbers.append((at(one.outage.at), str(one.number)))
    unit_s, unit = _unit(whole_s)
    more = f"; {left_out} more nodes are left out" if left_out else ""
    caption = (
        "Each row is a node, or several with the same story; each bar an attempt. Marks show faults, decisions, and nodes that "
        "were excluded or came back."
    )
    picture = Picture(
        caption, (Row(words=tuple(numbers)), *rows, _scale(whole_s / unit_s)),
        {**PARTS, **MARKS}, tuple(at(one.outage.at) for one in job.failures), f"{unit} since {day(began)} {clock(began)}{more}",
    )  # fmt: skip
    return (picture,)


_WITHOUT_NODES = frozenset({Part.WAITING, Part.OUTSIDE, Part.DECIDING})


def _unit(seconds: float) -> tuple[float, str]:
    for unit_s, name, least in ((86400.0, "days", 4 * 86400), (3600.0, "hours", 4 * 3600), (60.0, "minutes", 240)):
        if seconds >= least:
            return unit_s, name
    return 1.0, "seconds"


def _bars(stretches: Iterable[Stretch], at: Callable[[float], float]) -> Iterator[Bar]:
    """Those of a part too near to be told apart count as one, so that a job which restarted ten thousand times is still one
    picture; but no part vanishes."""
    by_part: dict[Part, list[tuple[float, float]]] = {}
    for stretch in stretches:
        begin, spans = at(stretch.begin), by_part.setdefault(stretch.part, [])
        end = max(at(stretch.end), begin + THIN)
        if spans and begin - spans[-1][1] < THIN:
            begin, _ = spans.pop()
        spans.append((begin, end))
    for part, spans in by_part.items():
        yield from (Bar(_look(part), begin, end - begin) for begin, end in spans)


_Alike = tuple[tuple[str, ...], frozenset[int], tuple[tuple[str, float], ...]]


def _rows(job: JobAccount) -> tuple[list[_Alike], int]:
    """Nodes with the same story share a row; those to which something happened come first where not all fit. And how many nodes
    are left out."""
    attempts: dict[str, set[int]] = {}
    for view in job.attempts:
        for node in named_nodes(view.began.nodes) or (view.began.nodes[:64],):
            attempts.setdefault(node, set()).add(view.number)
    events: dict[str, list[tuple[str, float]]] = {}
    for event in job.events:
        events.setdefault(event.node, []).append((event.what, event.at))
    groups: dict[tuple[frozenset[int], tuple[tuple[str, float], ...]], list[str]] = {}
    for node in sorted(attempts.keys() | events.keys(), key=lambda name: (len(name), name)):
        groups.setdefault((frozenset(attempts.get(node, ())), tuple(events.get(node, ()))), []).append(node)
    rows: list[_Alike] = [(tuple(nodes), *story) for story, nodes in groups.items()]
    if len(rows) > ROWS_MOST:
        rows.sort(key=lambda row: not row[2])
    return rows[:ROWS_MOST], sum(len(names) for names, _, _ in rows[ROWS_MOST:])


def outages(job: JobAccount) -> tuple[Picture, ...]:
    shown = [one for one in job.failures if one.lost_s + one.unsure_s > 0][-OUTAGES_MOST:][::-1]
    unit_s, unit = _unit(max((sum(one.cost.values()) for one in shown), default=0.0))
    parts = (*SHORT, Part.NEW_OR_REDONE, Part.UNKNOWN)
    rows = [
        (f"{one.number}  {one.name}: {one.remedy}", [(_look(part), one.cost.get(part, 0.0) / unit_s) for part in parts], "")
        for one in shown
    ]
    return _stacked("The latest outages, one bar each: how long ranks did no new work, and why.", rows, unit, PARTS)


# --- many jobs


def bins(jobs: JobsAccount) -> tuple[Picture, ...]:
    most = max((sum(each.parts.values()) for each in jobs.bins), default=0.0)
    if not most:
        return ()
    wide, failures = 100 / len(jobs.bins), max(each.failures for each in jobs.bins)
    bars: list[Bar] = []
    for place, each in enumerate(jobs.bins):
        upright = _beside([(_look(part), each.parts[part]) for part in MEANINGS], 100 / most)
        bars += [Bar(bar.look, (place + 0.05) * wide, 0.9 * wide, 100 - bar.x - bar.width, bar.width) for bar in upright]
    marks = tuple(
        ("failures", (place + 0.5) * wide, 100 - 90 * each.failures / failures)
        for place, each in enumerate(jobs.bins)
        if each.failures
    )
    step = -(-len(jobs.bins) // TICKS_MOST)
    when = [
        ((place + 0.5) * wide, clock(each.at)[:5] if each.width_s < 86400 else day(each.at)[5:])
        for place, each in enumerate(jobs.bins) if not place % step
    ]  # fmt: skip
    picture = Picture(
        "The same over time; the points count failures.", (Row("", tuple(bars), marks), Row(words=tuple(when))),
        {**PARTS, "failures": f"failures, {failures} at most"}, (), f"the highest bar: {hours(most)} {jobs.unit}-hours", True,
    )  # fmt: skip
    return (picture,)


def kinds(jobs: JobsAccount) -> tuple[Picture, ...]:
    return _stacked("How often each failure came.", [
        (kind.name, [("waiting", kind.count)], f"{kind.count}, lost {span(kind.lost_s)}") for kind in jobs.kinds[:KINDS_MOST]
    ])  # fmt: skip


def nodes(jobs: JobsAccount) -> tuple[Picture, ...]:
    looks = {"waiting": "failures", "redone": "device faults", "deciding": "excluded", "training": "reinstated"}
    rows = [
        (line.node, [*zip(looks, (line.failures, line.faults, line.excluded, line.reinstated), strict=True)], "")
        for line in jobs.nodes[:NODES_MOST]
    ]  # fmt: skip
    return _stacked("Nodes that failures are blamed on, or that jobs excluded.", rows, "how often", looks)

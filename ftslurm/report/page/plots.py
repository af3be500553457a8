"""The pictures of a page. Every part has a colour of Okabe and Ito's palette, which colour-blind people can tell apart, and a
hatch of its own, so that nothing is told by colour alone; a picture stands beside a table with the same numbers.

Source: M. Okabe, K. Ito, Color Universal Design (2008).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ftslurm.model.nodes import fold_nodes, named_nodes
from ftslurm.model.text import cut, visible
from ftslurm.model.values import Value
from ftslurm.report.account.job import JobAccount
from ftslurm.report.account.jobs import JobsAccount
from ftslurm.report.account.parts import Part, Stretch
from ftslurm.report.page.document import hours, percent
from ftslurm.report.page.job import MEANINGS, SHORT
from ftslurm.report.words import clock, day, long_span

# Colours that stand for the page's own; nothing else is drawn in them.
INK, SOFT, PAPER = "#010203", "#040506", "#fafbfc"
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# What it does is in the page's own style sheet.
_DROPPED = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")
_FONT = re.compile(r"(?:[a-z-]+ )*?(?:(?P<weight>bold|\d{3}) )?(?P<size>[\d.]+)px ", re.ASCII)
_CLASSES = {SOFT: "soft", PAPER: "paper"}


def markup(figure: Figure, name: str, title: str) -> Markup:
    """name: of this picture in its page; its ids begin with that. title: for those who do not see it."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(out.getvalue())  # noqa: S314 - matplotlib has just written it
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in _DROPPED:
                parent.remove(child)
    used = {word for element in root.iter() for value in element.attrib.values() for word in re.findall(r"#([\w-]+)", value)}
    for element in root.iter():
        _restyle(element)
        _rename(element, used, name)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", title)
    ElementTree.register_namespace("", _SVG)
    text = ElementTree.tostring(root, encoding="unicode")
    return Markup(text)  # noqa: S704 - text in it was escaped by ElementTree


def _restyle(element: ElementTree.Element) -> None:
    """Declarations become attributes, which no policy forbids."""
    for declaration in element.attrib.pop("style", "").split(";"):
        key, colon, value = declaration.partition(":")
        if colon:
            _declare(element, key.strip(), value.strip())
    for key in ("fill", "stroke"):
        if (value := element.get(key, "").lower()) in (INK, SOFT, PAPER):
            element.set(key, "currentColor")
            if value in _CLASSES:
                element.set("class", _CLASSES[value])
    if element.tag == f"{{{_SVG}}}text" and "fill" not in element.attrib:
        element.set("fill", "currentColor")


def _declare(element: ElementTree.Element, key: str, value: str) -> None:
    if key != "font":
        element.set(key, value)
        return
    if found := _FONT.match(value):
        element.set("font-size", found["size"])
        if found["weight"]:
            element.set("font-weight", found["weight"])


def _rename(element: ElementTree.Element, used: set[str], name: str) -> None:
    if (own := element.get("id")) is not None:
        del element.attrib["id"]
        if own in used:
            element.set("id", f"{name}-{own}")
    if (link := element.attrib.pop(f"{{{_LINK}}}href", "")).startswith("#"):
        element.set("href", f"#{name}-{link[1:]}")
    for key, value in element.attrib.items():
        if value.startswith("url(#"):
            element.set(key, f"url(#{name}-{value[5:]}")


# --- the pictures of a page. Every part has a colour of Okabe and Ito's palette, which colour-blind people can tell apart, and a

# Inches of 72 points; a page shows the narrow one on a telephone.
BROAD, NARROW = 11.0, 4.6
ROWS_MOST, OUTAGES_MOST, KINDS_MOST, NODES_MOST = 40, 25, 12, 20
_POINT = 9.0
STYLES: Mapping[Part, tuple[str, str]] = {
    Part.TRAINING: ("#009e73", ""),
    Part.NEW_OR_REDONE: ("#7fceb9", "//"),
    Part.REDONE: ("#e69f00", "////"),
    Part.NOTICING: ("#f0e442", "xxxx"),
    Part.STOPPING: ("#cc79a7", "\\\\\\\\"),
    Part.DECIDING: ("#0072b2", "++"),
    Part.WAITING: ("#d55e00", "----"),
    Part.STARTING: ("#56b4e9", "||||"),
    Part.UNKNOWN: ("#999999", "xx"),
    Part.OUTSIDE: ("#dddddd", ""),
}
# what happened to a node -> marker, and what it is called.
MARKS: Mapping[str, tuple[str, str]] = {
    "fault": ("v", "device fault"), "excluded": ("X", "excluded"), "refused": ("P", "not taken"),
    "reinstated": ("o", "reinstated"), "lent": ("D", "lent by another job"),
}  # fmt: skip
_RC: dict[str, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "DejaVu Sans", "font.size": _POINT, "axes.edgecolor": SOFT,
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "xtick.labelsize": _POINT,
    "ytick.labelsize": _POINT, "axes.spines.top": False, "axes.spines.right": False, "hatch.linewidth": 0.6, "grid.color": SOFT,
    "grid.alpha": 0.25, "legend.frameon": False, "legend.fontsize": _POINT, "figure.constrained_layout.use": True,
    "svg.hashsalt": "ftslurm", "axes.formatter.use_mathtext": False,
}  # fmt: skip


class Picture(Value):
    broad: Markup
    narrow: Markup


Draw = Callable[[bool], Figure | None]


def job_pictures(job: JobAccount) -> dict[str, Picture | None]:
    return {
        "parts": _picture("parts", "Share of each part of the time", lambda broad: _parts(job.spent.parts, long_span, broad)),
        "timeline": _picture("timeline", "Attempts over nodes", lambda broad: _timeline(job, broad)),
        "outages": _picture("outages", "What each outage cost", lambda broad: _outages(job, broad)),
    }


def jobs_pictures(jobs: JobsAccount) -> dict[str, Picture | None]:
    unit = f"{jobs.unit}-hours"
    return {
        "parts": _picture("parts", f"{unit} by part", lambda broad: _parts(jobs.parts, lambda value: f"{hours(value)} h", broad)),
        "bins": _picture("bins", f"{unit} by part over time", lambda broad: _bins(jobs, broad)),
        "kinds": _picture("kinds", "How often each failure came", lambda broad: _kinds(jobs, broad)),
        "nodes": _picture("nodes", "What is held against nodes", lambda broad: _nodes(jobs, broad)),
    }


def _picture(name: str, title: str, draw: Draw) -> Picture | None:
    drawn = []
    with mpl.rc_context(_RC):  # type: ignore[arg-type]
        for broad in (True, False):
            figure = draw(broad)
            if figure is None:
                return None
            drawn.append(markup(figure, f"{name}-{'b' if broad else 'n'}", title))
    return Picture(*drawn)


def _axes(broad: bool, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(BROAD if broad else NARROW, height))
    return figure, figure.add_subplot()


def _label(text: str, broad: bool) -> str:
    return cut(visible(text), 46 if broad else 20)


def _style(part: Part) -> dict[str, Any]:
    colour, hatch = STYLES[part]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.5}


def _legend(figure: Figure, parts: Iterable[Part], broad: bool, more: Sequence[Any] = ()) -> None:
    patches = [Patch(label=part.value, **_style(part)) for part in parts]
    figure.legend(
        handles=[*patches, *more], loc="outside lower left", ncols=6 if broad else 2, handlelength=2.2, handleheight=1.2,
        columnspacing=1.4,
    )  # fmt: skip


def _beside(axes: Axes, end: float, row: float, text: str) -> None:
    """To the right of a bar."""
    axes.annotate(text, (end, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=_POINT)


def _parts(parts: Mapping[Part, float], show: Callable[[float], str], broad: bool) -> Figure | None:
    shown = [part for part in MEANINGS if parts[part] > 0]
    whole = sum(parts.values())
    if not whole:
        return None
    figure, axes = _axes(broad, 0.55 + 0.3 * len(shown))
    for row, part in enumerate(shown):
        share = parts[part] / whole
        axes.barh(row, 100 * share, height=0.7, **_style(part))
        _beside(axes, 100 * share, row, f"{percent(share)}, {show(parts[part])}")
    _name_rows(axes, [part.value for part in shown])
    _without_scale(axes, 100 * max(parts[part] for part in shown) / whole * (1.25 if broad else 1.75))
    return figure


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """From top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)


def _without_scale(axes: Axes, most: float) -> None:
    """The numbers stand beside the bars."""
    axes.set_xlim(0, most)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


# --- one job


def _timeline(job: JobAccount, broad: bool) -> Figure | None:
    if not job.attempts or job.spent.whole_s <= 0:
        return None
    rows, left_out = _rows(job)
    unit_s, unit = _unit(job.spent.whole_s)
    figure, axes = _axes(broad, 1.5 + 0.3 * (len(rows) + 1) + (0.0 if broad else 0.5))

    def at(moment: float) -> float:
        return (min(max(moment, job.spent.began), job.spent.ended) - job.spent.began) / unit_s

    _bars(axes, 0, job.spent.stretches, at)
    for row, (_, attempts, _) in enumerate(rows, 1):
        mine = [stretch for stretch in job.spent.stretches if stretch.attempt in attempts and stretch.part not in _WITHOUT_NODES]
        _bars(axes, row, mine, at)
    seen: set[str] = set()
    for row, (_, _, events) in enumerate(rows, 1):
        for what, when in events:
            if what in MARKS:
                marker, name = MARKS[what]
                axes.plot(
                    at(when), row, marker=marker, color="#ffffff", markeredgecolor="#000000", markersize=8, markeredgewidth=1.2,
                    linestyle="", label="" if what in seen else name, zorder=5, clip_on=False,
                )  # fmt: skip
                seen.add(what)
    last = -math.inf
    for one in job.failures:
        place = at(one.outage.at)
        axes.plot([place, place], [-0.55, len(rows) + 0.5], color=INK, linewidth=0.6, linestyle=(0, (2, 2)), zorder=0)
        if place - last > job.spent.whole_s / unit_s * (0.025 if broad else 0.07):
            axes.text(place, -0.6, str(one.number), ha="center", va="bottom", fontsize=_POINT - 1, fontweight="bold")
            last = place
    labels = [_label(fold_nodes(names) if len(names) > 1 else names[0], broad) for names, _, _ in rows]
    axes.set_yticks(range(len(rows) + 1), ["job", *labels])
    axes.set_ylim(len(rows) + 0.6, -1.3)
    axes.set_xlim(0, at(job.spent.ended))
    axes.xaxis.set_major_locator(MaxNLocator(8 if broad else 4))
    more = f"; {left_out} more nodes are left out" if left_out else ""
    axes.set_xlabel(f"{unit} since {day(job.spent.began)} {clock(job.spent.began)}{more}")
    axes.tick_params(axis="y", length=0)
    used = [part for part in MEANINGS if any(stretch.part is part for stretch in job.spent.stretches)]
    _legend(figure, used, broad, axes.get_legend_handles_labels()[0])
    return figure


_WITHOUT_NODES = frozenset({Part.WAITING, Part.OUTSIDE, Part.DECIDING})


def _unit(seconds: float) -> tuple[float, str]:
    for unit_s, name, least in ((86400.0, "days", 4 * 86400), (3600.0, "hours", 4 * 3600), (60.0, "minutes", 240)):
        if seconds >= least:
            return unit_s, name
    return 1.0, "seconds"


def _bars(axes: Axes, row: float, stretches: Iterable[Stretch], at: Callable[[float], float]) -> None:
    """One collection a part: a job that restarted ten thousand times is still one picture."""
    by_part: dict[Part, list[tuple[float, float]]] = {}
    for stretch in stretches:
        by_part.setdefault(stretch.part, []).append((at(stretch.begin), at(stretch.end) - at(stretch.begin)))
    for part, spans in by_part.items():
        axes.broken_barh(_joined(spans, at), (row - 0.36, 0.72), **_style(part))


def _joined(spans: list[tuple[float, float]], at: Callable[[float], float]) -> list[tuple[float, float]]:
    """Those too thin to be told apart count as one; but no part vanishes."""
    found: list[tuple[float, float]] = []
    whole = at(math.inf)
    for begin, width in spans:
        wide = max(width, whole / 1500)
        if found and begin - (found[-1][0] + found[-1][1]) < whole / 1500:
            found[-1] = (found[-1][0], max(found[-1][1], begin + wide - found[-1][0]))
        else:
            found.append((begin, wide))
    return found


Row = tuple[tuple[str, ...], frozenset[int], tuple[tuple[str, float], ...]]


def _rows(job: JobAccount) -> tuple[list[Row], int]:
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
    rows: list[Row] = [(tuple(nodes), *story) for story, nodes in groups.items()]
    kept = set(sorted(range(len(rows)), key=lambda row: (not rows[row][2], row))[:ROWS_MOST])
    left_out = sum(len(rows[row][0]) for row in range(len(rows)) if row not in kept)
    return [row for number, row in enumerate(rows) if number in kept], left_out


def _outages(job: JobAccount, broad: bool) -> Figure | None:
    shown = [one for one in job.failures if one.lost_s + one.unsure_s > 0][-OUTAGES_MOST:][::-1]
    if not shown:
        return None
    longest = max(sum(one.cost.values()) for one in shown)
    unit_s, unit = _unit(longest)
    figure, axes = _axes(broad, 1.25 + 0.3 * len(shown) + (0.0 if broad else 0.5))
    used: dict[Part, None] = {}
    for row, one in enumerate(shown):
        begin = 0.0
        for part in (*SHORT, Part.NEW_OR_REDONE, Part.UNKNOWN):
            width = one.cost.get(part, 0.0) / unit_s
            if width > 0:
                axes.barh(row, width, left=begin, height=0.7, **_style(part))
                begin += width
                used[part] = None
    labels = [_label(f"{one.number}  {one.name}{f': {one.remedy}' if broad else ''}", broad) for one in shown]
    _name_rows(axes, labels)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.set_xlabel(unit)
    _legend(figure, [part for part in MEANINGS if part in used], broad)
    return figure


# --- many jobs


def _bins(jobs: JobsAccount, broad: bool) -> Figure | None:
    if not jobs.bins:
        return None
    figure, axes = _axes(broad, 3.4 if broad else 3.9)
    used = [part for part in MEANINGS if any(each.parts[part] for each in jobs.bins)]
    places = range(len(jobs.bins))
    base = [0.0] * len(jobs.bins)
    for part in used:
        heights = [each.parts[part] / 3600 for each in jobs.bins]
        axes.bar(places, heights, bottom=base, width=0.9, **_style(part))
        base = [low + height for low, height in zip(base, heights, strict=True)]
    axes.set_ylabel(f"{jobs.unit}-hours")
    axes.xaxis.set_major_locator(MaxNLocator(8 if broad else 4, integer=True))
    width_s = jobs.bins[0].width_s

    def when(place: float, _: object = None) -> str:
        number = round(place)
        if not 0 <= number < len(jobs.bins):
            return ""
        begin = jobs.bins[number].at
        return clock(begin)[:5] if width_s < 86400 else day(begin)[5:]

    axes.xaxis.set_major_formatter(FuncFormatter(when))
    handles: list[Any] = []
    if any(each.failures for each in jobs.bins):
        other = axes.twinx()
        (line,) = other.plot(
            places, [each.failures or math.nan for each in jobs.bins], marker="D", linestyle="", color="#ffffff",
            markeredgecolor="#000000", markersize=6, label="failures", zorder=5,
        )  # fmt: skip
        other.set_ylim(0, 1.15 * max(each.failures for each in jobs.bins))
        other.set_ylabel("failures")
        other.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        handles.append(line)
    _legend(figure, used, broad, handles)
    return figure


def _kinds(jobs: JobsAccount, broad: bool) -> Figure | None:
    shown = jobs.kinds[:KINDS_MOST]
    if not shown:
        return None
    figure, axes = _axes(broad, 0.6 + 0.3 * len(shown))
    axes.barh(range(len(shown)), [kind.count for kind in shown], height=0.7, facecolor="#d55e00", edgecolor=INK, linewidth=0.5)
    for row, kind in enumerate(shown):
        _beside(axes, kind.count, row, f"{kind.count}, lost {long_span(kind.lost_s)}")
    _name_rows(axes, [_label(kind.name, broad) for kind in shown])
    _without_scale(axes, max(kind.count for kind in shown) * (1.25 if broad else 1.8))
    return figure


def _nodes(jobs: JobsAccount, broad: bool) -> Figure | None:
    shown = jobs.nodes[:NODES_MOST]
    if not shown:
        return None
    kinds = (
        ("failures", [line.failures for line in shown], "#d55e00", "////"),
        ("device faults", [line.faults for line in shown], "#e69f00", "----"),
        ("excluded", [line.excluded for line in shown], "#0072b2", "xxxx"),
        ("reinstated", [line.reinstated for line in shown], "#009e73", ""),
    )  # fmt: skip
    figure, axes = _axes(broad, 1.0 + 0.3 * len(shown) + (0.0 if broad else 0.3))
    base = [0] * len(shown)
    for name, counts, colour, hatch in kinds:
        axes.barh(
            range(len(shown)), counts, left=base, height=0.7, label=name,
            facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.5,
        )  # fmt: skip
        base = [low + count for low, count in zip(base, counts, strict=True)]
    _name_rows(axes, [_label(line.node, broad) for line in shown])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    figure.legend(loc="outside lower left", ncols=4 if broad else 2, handlelength=2.2, handleheight=1.2)
    return figure

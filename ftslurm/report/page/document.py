"""A report before it is Markdown or HTML: blocks of plain text, each already safe to show and bounded in length. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from ftslurm.model.text import cut, visible
from ftslurm.model.values import Value, field
from ftslurm.report.account.parts import Ratio

CELL_MOST = 240
ROWS_MOST = 200
TEXT_MOST = 20_000


class Figures(Value):
    """The number that matters, in large. note: what it means or where it ends."""

    label: str
    value: str
    note: str = ""


class Table(Value):
    """head: empty for names and their values. numbers: columns that are set to the right. more: rows that are left out. empty: in
    place of a table without rows."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    more: int = 0
    empty: str = ""
    caption: str = ""


class Text(Value):
    text: str


class Bar(Value):
    """look: its colour and hatch. All in per cent: from the left, and from the top of its row."""

    look: str
    x: float
    width: float
    top: float = 14.0
    height: float = 72.0


class Row(Value):
    """marks: look, and per cent from the left and from the top. words: per cent from the left, and what stands there. note:
    beside the bars."""

    label: str = ""
    bars: tuple[Bar, ...] = ()
    marks: tuple[tuple[str, float, float], ...] = ()
    words: tuple[tuple[float, str], ...] = ()
    note: str = ""


class Picture(Value):
    """That only HTML has. caption: what it shows. names: look of a bar or a mark -> its name in the legend. lines: per cent from
    the left. axis: what the ticks count. tall: the bars of its first row stand."""

    caption: str
    rows: tuple[Row, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[float, ...] = ()
    axis: str = ""
    tall: bool = False

    @property
    def legend(self) -> list[tuple[str, str, bool]]:
        """Of what is drawn: look, name, is it a mark?"""
        bars = {bar.look for row in self.rows for bar in row.bars}
        marks = {look for row in self.rows for look, _, _ in row.marks}
        return [(look, name, look in marks) for look, name in self.names.items() if look in bars | marks]


class CardBlock(Value):
    """A failure card. anchor: for links. details: (summary, text), folded away at first."""

    anchor: str
    title: str
    rows: tuple[tuple[str, str], ...]
    details: tuple[tuple[str, str], ...] = ()


class Cards(Value):
    cards: tuple[CardBlock, ...]
    more: int = 0


Block = Table | Text | Picture | Cards


class Section(Value):
    anchor: str
    title: str
    blocks: tuple[Block, ...]


class Document(Value):
    title: str
    subtitle: str
    figures: tuple[Figures, ...]
    sections: tuple[Section, ...]
    footer: str


def cell(value: object, most: int = CELL_MOST) -> str:
    return cut(visible(value), most)


def table_of(
    head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = (), empty: str = "none", caption: str = "",
    most: int = ROWS_MOST,
) -> Table:  # fmt: skip
    every = [tuple(cell(value) for value in row) for row in rows]
    return Table(tuple(head), tuple(every[:most]), frozenset(numbers), max(0, len(every) - most), empty, caption)


def facts(*rows: tuple[str, object]) -> Table:
    return Table((), tuple((label, cell(value, 600)) for label, value in rows if str(value)))


def long_text(text: str) -> str:
    """Of several lines; the beginning of what is too long."""
    shown = visible(text, lines=True)
    return shown if len(shown) <= TEXT_MOST else f"{shown[:TEXT_MOST]}\n[{len(shown) - TEXT_MOST} characters more]"


def zone() -> str:
    return time.strftime("%Z (UTC%z)")


def percent(share: float) -> str:
    """`97.3 %`; near the ends as many digits as it takes to tell it from 0 and 100."""
    for digits in (1, 2, 3):
        text = f"{100 * share:.{digits}f}"
        if float(text) not in (0.0, 100.0) or share in (0.0, 1.0):
            return f"{text} %"
    return f"{'> 99.999' if share > 0.5 else '< 0.001'} %"


def ratio(value: Ratio | None) -> str:
    if value is None:
        return "-"
    low, high = percent(value.low), percent(value.high)
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def share_of(label: str, share: Ratio | None, whole: str) -> Figures:
    """A share of time, of the whole in words."""
    exact = share is None or percent(share.low) == percent(share.high)
    return Figures(label, ratio(share), f"of {whole}{'' if exact else ', not known exactly'}")


def hours(unit_s: float) -> str:
    """Of GPU-seconds or node-seconds, as hours."""
    value = unit_s / 3600
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 1 else 2 if size >= 0.01 or not size else 4
    return f"{value:,.{digits}f}"

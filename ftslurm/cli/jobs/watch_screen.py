"""The live view of `ftslurm watch` in a terminal: screens and keys. What they show is made in report/watch.py."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Input, Log, Static

from ftslurm.cli.jobs.watch_asking import KEYS, AskingPage, tried
from ftslurm.errors import FtslurmError
from ftslurm.ledger.store import Store
from ftslurm.model.folds.summary import JobSummary, Story
from ftslurm.model.record import Record
from ftslurm.model.text import visible
from ftslurm.report.card import card_lines, cards
from ftslurm.report.jobs import HEADING, RIGHT, SORTS, cells
from ftslurm.report.moments import happened
from ftslurm.report.watch import Row, Seen, Sheet, devices_sheet, fitted, head, nodes_sheet, ranks_sheet, timed, weight_of
from ftslurm.wrapper.watch import JobsSeen, JobsWatch, JobWatch, follow_log, name_of

LOOK_S = 1.0
# Of a list of all jobs, which asks Slurm.
JOBS_LOOK_S = 5.0
# Lines of a log that are kept in memory.
LOG_LINES = 20_000
# More ranks than this are shown by node first, as are nodes without any.
MANY_RANKS = 64
STYLES: Mapping[str, str] = {"title": "bold", "bad": "bold red", "done": "green", "dim": "dim", "wait": "yellow", "": ""}
_SHORT_KEYS: Mapping[str, str] = {"escape": "esc", "slash": "/"}
# Of a table's width: its outer padding, and a scrollbar.
BESIDE = 3


class Looker(threading.Thread):
    """Looks again and again, beside the screen: a file system or a slurmctld that hangs must not hold up a key."""

    def __init__(self, page: LookingPage, look: Callable[[], object], every_s: float) -> None:
        super().__init__(daemon=True)
        self._page, self._look, self._every_s = page, look, every_s
        self._again, self._over = threading.Event(), False

    def run(self) -> None:
        while not self._over:
            self._page.call_later(self._page.looked, *tried(self._look))
            self._again.wait(self._every_s)
            self._again.clear()

    def now(self) -> None:
        self._again.set()

    def end(self) -> None:
        self._over = True
        self._again.set()


class SheetTable(DataTable[Text]):
    """Rows that are there already are changed in place, so that the cursor stays where it is."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", cell_padding=1)
        self.sheet = Sheet((), ())
        self._shape: object = None

    @property
    def chosen(self) -> Row | None:
        """The row at the cursor."""
        return self.sheet.rows[self.cursor_row] if self.cursor_row < len(self.sheet.rows) else None

    def show(self, sheet: Sheet) -> None:
        sheet, before, chosen = fitted(sheet, self.app.size.width - BESIDE), self.sheet, self.chosen
        # A width that textual finds itself comes after the first frame, or not at all.
        widths = [
            max([4 if name in RIGHT else 0, len(name), *(cell_len(row.cells[at]) for row in sheet.rows)])
            for at, name in enumerate(sheet.heading)
        ]
        keys = [row.key for row in sheet.rows]
        self.sheet, shape = sheet, (sheet.heading, widths, keys)
        if shape == self._shape:
            for row in (row for was, row in zip(before.rows, sheet.rows, strict=True) if was != row):
                for name, cell in zip(sheet.heading, _cells(row, sheet), strict=True):
                    self.update_cell(row.key, name, cell)
            return
        self._shape, at = shape, self.cursor_row
        self.clear(columns=True)
        for name, width in zip(sheet.heading, widths, strict=True):
            self.add_column(Text(name, justify=_justify(name)), key=name, width=width)
        for row in sheet.rows:
            self.add_row(*_cells(row, sheet), key=row.key)
        if keys:
            self.move_cursor(row=keys.index(chosen.key) if chosen and chosen.key in keys else min(at, len(keys) - 1))


LEAVE: list[BindingType] = [Binding("q", "app.quit", "quit"), Binding("ctrl+c", "app.quit", show=False, priority=True)]


class Page(Screen[None]):
    """What all screens share: leaving, and a line that tells the keys."""

    BINDINGS: ClassVar[list[BindingType]] = LEAVE

    def on_resize(self) -> None:
        """The last lines: as many as it takes, where textual's own footer would leave keys out."""
        shown = [binding for binding in self.BINDINGS if isinstance(binding, Binding) and binding.show]
        named = [(_SHORT_KEYS.get(key := one.key.partition(",")[0], key), one.description) for one in shown]
        text = Text(no_wrap=True)
        for number, line in enumerate(_rows(named, self.size.width)):
            text.append("\n" if number else "")
            for key, what in line:
                text.append(key, style="bold reverse")
                text.append(f" {what}  ")
        self.query_one("#keys", Static).update(text)


class LookingPage(Page):
    """A table of what is looked at beside the screen, again and again."""

    found: Any = None
    _looker: Looker

    def on_mount(self) -> None:
        self._looker.start()
        self.query_one(SheetTable).focus()

    def on_unmount(self) -> None:
        self._looker.end()

    def on_resize(self) -> None:
        super().on_resize()
        self._show()

    def looked(self, found: Any, error: str) -> None:
        """error: why a look gave nothing."""
        if error:
            self.notify(visible(error), severity="warning", markup=False)
            return
        self.found = found or self.found
        self._show()

    def _show(self) -> None:
        raise NotImplementedError


class TextPage(Page):
    """Lines to scroll through. pieces: are read beside the screen, and may go on for ever."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LEAVE,
        Binding("escape,backspace", "back", "back"),
        Binding("g,home", "focused.scroll_home", "begin"),
        Binding("G,end", "focused.scroll_end", "end"),
    ]
    CSS = "Log { overflow: auto auto; scrollbar-size: 1 1; background: transparent; }"

    def __init__(self, title: str, pieces: Callable[[TextPage], Iterator[list[str]]], at_end: bool) -> None:
        super().__init__()
        self._title, self._pieces, self._at_end = title, pieces, at_end
        self.over = threading.Event()

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"))
        yield Log(max_lines=LOG_LINES)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        self.query_one(Log).focus()

    def _read(self) -> None:
        _, error = tried(self._tell)
        self.call_later(self._write, [visible(error)] if error else [])

    def _tell(self) -> None:
        for lines in self._pieces(self):
            self.call_later(self._write, [part for line in lines for part in _broken(line, self.size.width - 1)])
            if self.over.is_set():
                return

    def _write(self, lines: list[str]) -> None:
        log = self.query_one(Log)
        follows = self._at_end and log.is_vertical_scroll_end
        log.write_lines(lines, scroll_end=False)
        if follows:  # once it is laid out: the first lines come before
            log.call_after_refresh(log.scroll_end, animate=False)

    def action_back(self) -> None:
        self.over.set()
        self.dismiss()

    def on_unmount(self) -> None:
        self.over.set()


class JobPage(LookingPage, AskingPage):
    """One job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LEAVE,
        Binding("r", "sheet('ranks')", "ranks"),
        Binding("n", "sheet('nodes')", "nodes"),
        Binding("d", "sheet('devices')", "devices"),
        Binding("l", "log", "log"),
        Binding("c", "card", "card"),
        Binding("s", "stacks", "stacks"),
        Binding("h", "happened", "events"),
        *KEYS,
        Binding("escape", "back", "jobs"),
    ]
    CSS = """
    JobPage { layout: vertical; }
    #head { height: auto; max-height: 9; }
    JobPage SheetTable { height: 1fr; min-height: 4; scrollbar-size: 1 1; margin: 1 0 0 0; }
    #happened { height: auto; max-height: 8; margin: 1 0 0 0; }
    """

    def __init__(self, watch: JobWatch, from_list: bool) -> None:
        super().__init__()
        self._watch = watch
        self._from_list = from_list
        self._sheet: str | None = None  # until somebody has chosen one
        self._node = ""  # of which alone ranks and devices are shown
        self._looker = Looker(self, watch.look, LOOK_S)

    def compose(self) -> ComposeResult:
        yield Static(f"job {visible(self._watch.job)}: ftrun and Slurm are asked", id="head", markup=False)
        yield SheetTable()
        yield Static(id="happened", markup=False)
        yield Static(id="keys", markup=False)

    def looked(self, found: Seen | None, error: str) -> None:
        super().looked(found, error)
        if not (found or error):
            self.query_one("#head", Static).update(f"job {visible(self._watch.job)}: nothing has begun yet")

    def asked_job(self) -> tuple[Store, str]:
        return self._watch.store, self._watch.job

    def _show(self) -> None:
        seen, width, height = self.found, self.size.width, self.size.height
        if seen is None or not width:
            return
        top = head(seen, width)
        self.query_one("#head", Static).update(_text((line.text, line.weight) for line in top))
        self.query_one(SheetTable).show(self._chosen(seen))
        # A third of what is left; the table has the rest.
        room = max(2, min(8, (height - len(top) - 3) // 3))
        last = happened(seen.records)[-room:]
        self.query_one("#happened", Static).update(_text((timed(each.at, each.what, width), each.weight) for each in last))

    def _chosen(self, seen: Seen) -> Sheet:
        ranks = len(seen.fresh.tasks) if seen.fresh is not None else 0
        name = self._sheet or ("ranks" if 0 < ranks <= MANY_RANKS else "nodes")
        sheets = {"ranks": ranks_sheet, "devices": devices_sheet}
        return sheets[name](seen, self._node) if name in sheets else nodes_sheet(seen)

    def on_data_table_row_selected(self) -> None:
        """Enter: of a node its ranks, of a rank its log."""
        table = self.query_one(SheetTable)
        if (row := table.chosen) is None:
            return
        if row.rank is not None:
            self.action_log()
        elif row.node and "RANKS" in table.sheet.heading:
            self._sheet, self._node = "ranks", row.node
            self._show()

    def action_sheet(self, name: str) -> None:
        self._sheet, self._node = name, ""
        self._show()

    def action_log(self) -> None:
        row = self.query_one(SheetTable).chosen
        rank = row.rank if row is not None else None
        self.app.push_screen(log_page(self._watch, rank, lambda: self.found is not None and self.found.summary.over))

    def action_card(self) -> None:
        self.app.push_screen(card_page(self.found.records if self.found is not None else (), self.size.width))

    def action_happened(self) -> None:
        found = happened(self.found.records) if self.found is not None else []
        self.app.push_screen(
            TextPage("what happened", lambda _: iter([[timed(each.at, each.what) for each in found]]), at_end=True)
        )

    def action_stacks(self) -> None:
        """Of the ranks of the chosen node, now; below it what was kept of ranks that hung."""
        row = self.query_one(SheetTable).chosen
        node = row.node if row is not None else ""
        asked = self._watch.want_stacks(node) if node and self.found is not None and self.found.fresh is not None else ""
        self._looker.now()

        def pieces(page: TextPage) -> Iterator[list[str]]:
            if asked:
                yield [f"asking {node} what its ranks are doing", ""]
                yield self._stacks(page, asked, node)
            kept = self._watch.evidence()
            for path, text in reversed(kept):
                yield [f"==> {visible(path)} <==", *text.splitlines(), ""]
            if not asked and not kept:
                yield ["no ranks run now, and no record of hung ranks was kept"]

        self.app.push_screen(TextPage(f"what ranks are doing{f' on {node}' if node else ''}", pieces, at_end=False))

    def _stacks(self, page: TextPage, asked: str, node: str) -> list[str]:
        for _ in range(STACKS_LOOKS):
            live = self.found.live if self.found is not None else None
            if live is not None and live.stacks[0] == asked:
                return [*visible(live.stacks[2], lines=True).splitlines(), ""]
            if page.over.wait(0.5):
                break
        return [f"{node} has not answered", ""]

    def action_back(self) -> None:
        if self._node:
            self._node, self._sheet = "", "nodes"
            self._show()
        elif self._from_list:
            self.dismiss()
        else:
            self.app.switch_screen(JobsPage(self._watch.store))


# Half a second each: an agent takes up to ten seconds for stacks, and its answer comes with what is told next.
STACKS_LOOKS = 60


class JobsPage(LookingPage, AskingPage):
    """The jobs that are not over."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LEAVE,
        Binding("enter", "open", "open"),
        Binding("l", "log", "log"),
        Binding("c", "card", "card"),
        *KEYS,
        Binding("o", "order", "order"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "every_line", show=False),
        Binding("a", "every", "all of a day"),
    ]
    CSS = """
    #title { height: auto; }
    JobsPage SheetTable { height: 1fr; scrollbar-size: 1 1; }
    #filter { display: none; border: none; height: 1; background: ansi_default; }
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._jobs = JobsWatch(store, os.environ)
        self._sort, self._filter = 0, ""
        self._looker = Looker(self, self._jobs.look, JOBS_LOOK_S)

    def compose(self) -> ComposeResult:
        yield Static("your jobs under ftrun: Slurm is asked", id="title", markup=False)
        yield SheetTable()
        yield Input(id="filter", placeholder="words that a line has", compact=True)
        yield Static(id="keys", markup=False)

    def _show(self) -> None:
        found: JobsSeen | None = self.found
        if found is None or not self.size.width:
            return
        none = "" if found.jobs else ": none runs or waits" if not self._jobs.every else ": none in a day"
        by = f", by {ORDERS[self._sort]}" if self._sort else ""
        only = f", with `{self._filter}`" if self._filter else ""
        silent = f"; Slurm does not answer: {found.silent}" if found.silent else ""
        title = visible(f"your jobs under ftrun{none}{by}{only}{silent}")
        self.query_one("#title", Static).update(Text(title, style="bold"))
        jobs = tuple(sorted(found.jobs, key=SORTS[ORDERS[self._sort]]))
        self.query_one(SheetTable).show(_jobs_sheet(jobs, found.now, self._filter))

    def action_every(self) -> None:
        self._jobs.every = not self._jobs.every
        self._looker.now()

    def action_order(self) -> None:
        self._sort = (self._sort + 1) % len(ORDERS)
        self._show()

    def action_filter(self) -> None:
        self._typing(True)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value.strip().lower()
        self._show()

    def action_every_line(self) -> None:
        self.query_one("#filter", Input).clear()
        self._typing(False)

    def on_input_submitted(self) -> None:
        self._typing(False)

    def _typing(self, on: bool) -> None:
        field = self.query_one("#filter", Input)
        field.display = on
        (field if on else self.query_one(SheetTable)).focus()

    def asked_job(self) -> tuple[Store, str] | None:
        row = self.query_one(SheetTable).chosen
        return (self._store, row.key) if row is not None else None

    def action_log(self) -> None:
        self._with_job(lambda watch: log_page(watch, None, lambda: False))

    def action_card(self) -> None:
        self._with_job(lambda watch: card_page(watch.records, self.size.width))

    def on_data_table_row_selected(self) -> None:
        self._with_job(lambda watch: JobPage(watch, from_list=True))

    def _with_job(self, page: Callable[[JobWatch], Screen[None]]) -> None:
        if (meant := self.asked_job()) is None:
            return
        try:
            self.app.push_screen(page(JobWatch(*meant, os.environ)))
        except FtslurmError as error:
            self.notify(visible(error), severity="warning", markup=False)


ORDERS = tuple(SORTS)


def log_page(watch: JobWatch, rank: int | None, over: Callable[[], bool]) -> TextPage:
    """Of a rank, or of the whole job. over: nothing follows any more."""

    def pieces(page: TextPage) -> Iterator[list[str]]:
        return follow_log(watch, rank, lambda: page.over.is_set() or over(), page.over.wait)

    whose = f" of rank {rank}" if rank is not None else ""
    return TextPage(f"log of job {visible(watch.job)}{whose}", pieces, at_end=True)


def card_page(records: Sequence[Record], width: int) -> TextPage:
    found = [[*card_lines(card, width - 1), ""] for *_, card in cards(Story(records))]
    pieces = found[::-1] or [["nothing has failed yet"]]
    return TextPage("what failed, the latest first", lambda _: iter(pieces), at_end=False)


def _jobs_sheet(jobs: Sequence[JobSummary], now: float, words: str) -> Sheet:
    """words: only lines that have each of them."""
    several = len({job.cluster for job in jobs}) > 1
    rows = tuple(
        Row(
            name_of(job), tuple(map(visible, cells(job, now, several))),
            weight_of(job),
        )
        for job in jobs
    )  # fmt: skip
    shown = tuple(row for row in rows if all(word in " ".join(row.cells).lower() for word in words.split()))
    return Sheet(HEADING, shown)


class WatchApp(App[None]):
    """first: makes the first screen."""

    TITLE = "ftslurm watch"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; }  /* transparent, textual draws the screen below through it */
    Question { background: transparent; }
    #keys { dock: bottom; height: auto; }
    DataTable { background: transparent; }
    DataTable > .datatable--header { background: transparent; text-style: underline; }
    """

    def __init__(self, first: Callable[[], Screen[None]]) -> None:
        super().__init__(ansi_color=True)
        self._first = first

    def on_mount(self) -> None:
        self.push_screen(self._first())


def _rows(keys: list[tuple[str, str]], width: int) -> list[list[tuple[str, str]]]:
    """As many keys a line as fit."""
    rows: list[list[tuple[str, str]]] = [[]]
    left = width
    for key, what in keys:
        size = len(key) + len(what) + 1
        if rows[-1] and size > left:
            rows.append([])
            left = width
        rows[-1].append((key, what))
        left -= size + 2
    return rows


def _broken(line: str, width: int) -> list[str]:
    """What is too long goes on below, where Log would let it run out of the screen."""
    if len(line) <= width or width < 20:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False, expand_tabs=False, replace_whitespace=False)


def _text(lines: Any) -> Text:
    """Lines with their weights, none of them wrapped."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, (line, weight) in enumerate(lines):
        text.append(f"{chr(10) if number else ''}{line}", style=STYLES[weight])
    return text


def _cells(row: Row, sheet: Sheet) -> list[Text]:
    return [
        Text(cell, style=STYLES[row.weight], justify=_justify(name), no_wrap=True)
        for name, cell in zip(sheet.heading, row.cells, strict=True)
    ]


def _justify(name: str) -> Any:
    return "right" if name in RIGHT else "left"


def run_screen(store: Store, job: str | None) -> None:
    """Until somebody leaves. Raises: UnknownJob, StateError."""
    if job is None:
        WatchApp(lambda: JobsPage(store)).run()
    else:
        watch = JobWatch(store, job, os.environ)
        WatchApp(lambda: JobPage(watch, from_list=False)).run()

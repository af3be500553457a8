"""The tables that `npu-smi info` prints, read into values; npu_smi_fields.py reads its other answers.

Pure, never raises, takes time in proportion to the text: what cannot be read is left out and counted. npu-smi has no
machine-readable mode; box widths, spacing and columns differ between driver branches, so rows are split on `|` and
blanks, never on columns. Source: the vendor's npu-smi references and the open npu-smi sources of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum

from ftslurm.model.devices import DeviceHealth, Severity
from ftslurm.model.values import Value, field, replace

# Nine digits hold every id and size the tool prints; longer runs of digits are noise, and int() refuses very long ones.
_NUMBER = "[0-9]{1,9}"
_INT = re.compile(_NUMBER)
_FLOAT = re.compile(rf"{_NUMBER}(?:\.[0-9]{{1,9}})?")
_PAIR = re.compile(rf"(?<![-0-9.])({_NUMBER})[ \t]*/[ \t]*({_NUMBER})(?![0-9])")
_CARD_AND_NAME = re.compile(rf"({_NUMBER})\s+(\S.*)")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}(?:\.[0-9A-Fa-f]+)?")
_IDLE_CARD = re.compile(rf"No running processes found in NPU\s+({_NUMBER})")

_ALARMS = {"WARNING": Severity.MINOR, "ALARM": Severity.MAJOR, "CRITICAL": Severity.CRITICAL}


class ChipRow(Value):
    """One chip in the main table."""

    card: int
    chip: int
    name: str
    health: str  # the tool's word as printed. None: the tool printed NA, `-` or nothing.
    power_w: float | None = None
    aicore_percent: int | None = None  # on the 950 the use of the whole NPU. memory_…: where there is no HBM, as on the 310P.
    hbm_used_mb: int | None = None
    hbm_total_mb: int | None = None
    memory_used_mb: int | None = None
    memory_total_mb: int | None = None

    @property
    def device(self) -> str:
        return f"{self.card}.{self.chip}"


class InfoTable(Value):
    """The main table. unread: rows of it that could not be read, so a chip may be missing.

    has_chips: False on the 950 generation, which knows cards only; their one chip is called 0 here.
    """

    chips: tuple[ChipRow, ...] = ()
    unread: int = 0
    has_chips: bool = True


class ProcessRow(Value):
    card: int
    chip: int
    pid: int
    name: str


class ProcessTable(Value):
    """Who uses the chips. found: the table was there at all. idle_cards: the tool says so of them in words."""

    found: bool = False
    rows: tuple[ProcessRow, ...] = ()
    idle_cards: frozenset[int] = frozenset()
    unread: int = 0

    @property
    def cards(self) -> frozenset[int]:
        """Those the table tells of."""
        return self.idle_cards | {row.card for row in self.rows}

    def covers(self, cards: Iterable[int]) -> bool:
        """Does the table tell of each of `cards` whether it is used? Only then does an absent row prove anything."""
        return self.found and not self.unread and self.cards.issuperset(cards)


def health_of(word: str) -> DeviceHealth:
    """`OK`, `Warning`, `Alarm`, `Critical`; every other word, also the tool's own `UNKNOWN`, is unknown."""
    if word.strip() == "OK":
        return DeviceHealth.GOOD
    return DeviceHealth.FAULTY if word.strip().upper() in _ALARMS else DeviceHealth.UNKNOWN


def severity_of(word: str) -> Severity:
    """The driver's grade behind a health word; the tool shows the worst of all alarms of the chip."""
    return Severity.HINT if word.strip() == "OK" else _ALARMS.get(word.strip().upper(), Severity.UNKNOWN)


# ---- npu-smi info


def parse_info(text: str) -> InfoTable:
    """The main table of `npu-smi info`: two rows a chip, on Atlas A2, A3, 310P and 950."""
    rows = _Rows()
    has_chips = True
    for section, cells in _sections(text):
        if section is _Section.CHIPS_OF_CARDS:
            has_chips = False
        if not cells:
            rows.close()  # a chip's two rows have no rule between them
        elif section is not _Section.PROCESSES:
            rows.take(cells, card_only=section is _Section.CHIPS_OF_CARDS)
    rows.close()
    # The process table tells of every card; one that it alone knows has lost its rows here.
    lost = parse_processes(text).cards - {card for card, _ in rows.chips}
    return InfoTable(tuple(rows.chips.values()), rows.unread + len(lost), has_chips)


def parse_processes(text: str) -> ProcessTable:
    """The second table of `npu-smi info`: one row a process, or a sentence for a card without any."""
    found, unread = False, 0
    rows: list[ProcessRow] = []
    idle: set[int] = set()
    for section, cells in _sections(text):
        if section is not _Section.PROCESSES:
            continue
        found = True
        if not any(cells):
            continue
        if sentence := _IDLE_CARD.search(cells[0]):
            idle.add(int(sentence[1]))
        elif row := _process_row(cells):
            rows.append(row)
        else:
            unread += 1
    return ProcessTable(found, tuple(rows), frozenset(idle), unread)


class _Section(Enum):
    CHIPS = "chips"
    CHIPS_OF_CARDS = "cards"  # the 950 form: id and name in cells of their own, no chip column
    PROCESSES = "processes"


def _sections(text: str) -> Iterator[tuple[_Section, list[str]]]:
    """Each row of the two tables with its section, and each rule as a row without cells. The heading counts as a row
    only for processes, with an empty cell, so that a table without rows can be told from no table."""
    section: _Section | None = None
    for line in text.splitlines():
        cells = _cells(line)
        if heading := _heading(cells):
            section = heading
            if section is _Section.PROCESSES:
                yield section, [""]
        elif section and (line.lstrip().startswith("+") or (cells and not _is_second_heading(cells))):
            yield section, cells


def _cells(line: str) -> list[str]:
    line = line.strip()
    if not line.startswith("|"):
        return []  # a rule of the box, or words around the tables
    return [cell.strip() for cell in line[1:].removesuffix("|").split("|")]


def _heading(cells: list[str]) -> _Section | None:
    if len(cells) < 2 or not cells[0].startswith("NPU"):
        return None
    if cells[1].lower().startswith("process id"):
        return _Section.PROCESSES
    if "Health" not in cells[1:3]:
        return None
    return _Section.CHIPS_OF_CARDS if cells[0] == "NPU ID" else _Section.CHIPS


def _is_second_heading(cells: list[str]) -> bool:
    return "Bus-Id" in cells[1:3]


class _Rows(Value, frozen=False):
    """Pairs the two rows of each chip. A row without its partner is counted as unread: it does not name its chip."""

    chips: dict[tuple[int, int], ChipRow] = field(default_factory=dict)
    unread: int = 0
    _first: ChipRow | None = None

    def take(self, cells: list[str], card_only: bool) -> None:
        if card_only:
            # Make the 950's cells those of the other layouts: id and name together, second row without any.
            cells = [" ".join(cells[:2]).strip(), *cells[2:]]
        if len(cells) < 3:
            self.unread += any(cells)
        elif self._is_second(cells):
            self._close_with(cells, card_only)
        else:
            self.close()
            self._open(cells)

    def close(self) -> None:
        self.unread += self._first is not None
        self._first = None

    def _is_second(self, cells: list[str]) -> bool:
        if _BUS_ID.fullmatch(cells[1]):
            return True
        # Chips without PCIe have no bus id. Where a first row is open, a row of ids only is its second.
        ids = cells[0].split()
        return self._first is not None and cells[1] in ("NA", "-", "") and len(ids) < 3 and all(map(_INT.fullmatch, ids))

    def _open(self, cells: list[str]) -> None:
        named = _CARD_AND_NAME.fullmatch(cells[0])
        if not named:
            self.unread += 1
            return
        power = (*cells[2].split(), "")[0]
        self._first = ChipRow(int(named[1]), 0, named[2].strip(), cells[1], _float(power))

    def _close_with(self, cells: list[str], card_only: bool) -> None:
        first, self._first = self._first, None
        chip = 0 if card_only else whole_of((*cells[0].split(), "")[0])
        if first is None or chip is None or (first.card, chip) in self.chips:
            self.unread += 1
            return
        self.chips[first.card, chip] = _joined(first, chip, cells)


def _joined(first: ChipRow, chip: int, cells: list[str]) -> ChipRow:
    pairs = _PAIR.findall(cells[2])
    # Two columns are memory and HBM; the 310P has memory only. One that holds NA is no pair.
    hbm = pairs[-1] if len(pairs) > 1 else ("", "")
    memory = pairs[0] if cells[2].count("/") == 1 and pairs else ("", "")
    return replace(
        first,
        chip=chip,
        aicore_percent=whole_of((*cells[2].split(), "")[0]),
        hbm_used_mb=whole_of(hbm[0]),
        hbm_total_mb=whole_of(hbm[1]),
        memory_used_mb=whole_of(memory[0]),
        memory_total_mb=whole_of(memory[1]),
    )


def _process_row(cells: list[str]) -> ProcessRow | None:
    ids = [whole_of(word) for word in cells[0].split()]
    if len(cells) < 2 or not 1 <= len(ids) <= 2 or None in ids:
        return None
    card, chip, pid = ids[0], (ids[1] if len(ids) > 1 else 0), whole_of(cells[1])
    if card is None or chip is None or pid is None:
        return None
    return ProcessRow(card, chip, pid, (*cells[2:3], "")[0])


def whole_of(word: str) -> int | None:
    return int(word) if _INT.fullmatch(word) else None


def _float(word: str) -> float | None:
    return float(word) if _FLOAT.fullmatch(word) else None

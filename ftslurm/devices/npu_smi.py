"""What npu-smi prints, read into values. Pure, and never raises: what cannot be read is left out and counted.

npu-smi has no machine-readable mode; box widths, spacing and columns differ between driver branches, so rows are split
on `|` and blanks, never on columns. Source: the vendor's npu-smi references and the open npu-smi sources of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from ftslurm.model.devices import DeviceHealth, Severity

# Nine digits hold every id and size the tool prints; longer runs of digits are noise, and int() refuses very long ones.
_NUMBER = "[0-9]{1,9}"
_INT = re.compile(_NUMBER)
_FLOAT = re.compile(rf"{_NUMBER}(?:\.[0-9]{{1,9}})?")
_PAIR = re.compile(rf"({_NUMBER})\s*/\s*({_NUMBER})")
_CARD_AND_NAME = re.compile(rf"({_NUMBER})\s+(\S.*)")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}(?:\.[0-9A-Fa-f]+)?")
_CODE = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{4,10})")
_VERSION = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)")
_IDLE_CARD = re.compile(rf"No running processes found in NPU\s+({_NUMBER})")
_MAP_TITLES = re.compile("Chip Logic ID|Chip Phy-ID|Chip Name|NPU ID|Slot ID|Chip ID")

# An event code has 32 bits; the tool prints it without leading zeros.
_CODE_DIGITS = 8

_HEALTH_WORDS = {
    "OK": (DeviceHealth.GOOD, Severity.HINT),
    "WARNING": (DeviceHealth.FAULTY, Severity.MINOR),
    "ALARM": (DeviceHealth.FAULTY, Severity.MAJOR),
    "CRITICAL": (DeviceHealth.FAULTY, Severity.CRITICAL),
}


@dataclass(frozen=True, slots=True)
class ChipRow:
    """One chip in the main table. health: the tool's word as printed. None: the tool printed NA, `-` or nothing.

    phy_id: the second id of the row, `Phy-ID` on the A3 and `Device` on the 310P; other layouts have none.
    """

    card: int
    chip: int
    name: str
    health: str
    power_w: float | None = None
    temperature_c: float | None = None
    aicore_percent: int | None = None
    hbm_used_mb: int | None = None
    hbm_total_mb: int | None = None
    phy_id: int | None = None
    bus_id: str = ""

    @property
    def device(self) -> str:
        return f"{self.card}.{self.chip}"


@dataclass(frozen=True, slots=True)
class InfoTable:
    """The main table. unread: rows of it that could not be read, so a chip may be missing.

    has_chips: False on the 950 generation, which knows cards only; their one chip is called 0 here.
    """

    chips: tuple[ChipRow, ...] = ()
    unread: int = 0
    has_chips: bool = True
    version: str = ""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    card: int
    chip: int
    pid: int
    name: str
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """Who uses the chips. found: the table was there at all. idle_cards: the tool says so of them in words."""

    found: bool = False
    rows: tuple[ProcessRow, ...] = ()
    idle_cards: frozenset[int] = frozenset()
    unread: int = 0

    def covers(self, cards: Iterable[int]) -> bool:
        """Does the table tell of each of `cards` whether it is used? Only then does an absent row prove anything."""
        told = self.idle_cards | {row.card for row in self.rows}
        return self.found and not self.unread and told.issuperset(cards)


@dataclass(frozen=True, slots=True)
class HealthBlock:
    """One chip as `info -t health` tells. card, chip: None where the block does not say. part: `MCU` for the board's.

    word: empty if none was printed. codes: upper case, no 0x, 8 digits or more.
    """

    word: str = ""
    card: int | None = None
    chip: int | None = None
    part: str = ""
    codes: tuple[str, ...] = ()
    information: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MapRow:
    """One line of `info -m`. logic_id: what the run time calls the device, None for the board's MCU and on the 950."""

    card: int
    chip: int
    name: str
    logic_id: int | None = None
    phy_id: int | None = None


class ResetOutcome(Enum):
    """UNKNOWN: the tool ended without saying how it went."""

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"  # not allowed here: another way of resetting will be refused as well
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ResetAnswer:
    """message: the tool's words on the outcome, without its questions and progress notes."""

    outcome: ResetOutcome
    message: str = ""


def health_of(word: str) -> DeviceHealth:
    """`OK`, `Warning`, `Alarm`, `Critical`; every other word, also the tool's own `UNKNOWN`, is unknown."""
    return _HEALTH_WORDS.get(word.strip().upper(), (DeviceHealth.UNKNOWN, Severity.UNKNOWN))[0]


def severity_of(word: str) -> Severity:
    """The driver's grade behind a health word; the tool shows the worst of all alarms of the chip."""
    return _HEALTH_WORDS.get(word.strip().upper(), (DeviceHealth.UNKNOWN, Severity.UNKNOWN))[1]


# ---- npu-smi info


def parse_info(text: str) -> InfoTable:
    """The main table of `npu-smi info`: two rows a chip, on Atlas A2, A3, 310P and 950."""
    rows = _Rows()
    has_chips = True
    for section, cells in _sections(text):
        if section is _Section.CHIPS_OF_CARDS:
            has_chips = False
        if section is not _Section.PROCESSES:
            rows.take(cells, card_only=section is _Section.CHIPS_OF_CARDS)
    rows.close()
    version = _VERSION.search(text)
    return InfoTable(tuple(rows.chips.values()), rows.unread, has_chips, version[1] if version else "")


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
    """Each row of the two tables with its section. The heading counts as a row of its section only for processes,
    with empty cells, so that a table without rows can be told from no table."""
    section: _Section | None = None
    for line in text.splitlines():
        cells = _cells(line)
        if heading := _heading(cells):
            section = heading
            if section is _Section.PROCESSES:
                yield section, [""]
        elif section and cells and not _is_second_heading(cells):
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


@dataclass(slots=True)
class _Rows:
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
        return self._first is not None and not _CARD_AND_NAME.fullmatch(cells[0]) and cells[1] in ("NA", "-", "")

    def _open(self, cells: list[str]) -> None:
        named = _CARD_AND_NAME.fullmatch(cells[0])
        if not named:
            self.unread += 1
            return
        power, temperature = (*cells[2].split(), "", "")[:2]
        self._first = ChipRow(
            int(named[1]), 0, named[2].strip(), cells[1], power_w=_float(power), temperature_c=_float(temperature)
        )

    def _close_with(self, cells: list[str], card_only: bool) -> None:
        first, self._first = self._first, None
        chip = 0 if card_only else _int((*cells[0].split(), "")[0])
        if first is None or chip is None or (first.card, chip) in self.chips:
            self.unread += 1
            return
        self.chips[first.card, chip] = _joined(first, chip, cells)


def _joined(first: ChipRow, chip: int, cells: list[str]) -> ChipRow:
    ids, pairs = cells[0].split(), _PAIR.findall(cells[2])
    # Two pairs are memory and HBM; the 310P has memory only.
    used, total = pairs[-1] if len(pairs) > 1 else ("", "")
    return replace(
        first,
        chip=chip,
        aicore_percent=_int((*cells[2].split(), "")[0]),
        hbm_used_mb=_int(used),
        hbm_total_mb=_int(total),
        phy_id=_int(ids[1]) if len(ids) > 1 else None,
        bus_id=cells[1],
    )


def _process_row(cells: list[str]) -> ProcessRow | None:
    ids = [_int(word) for word in cells[0].split()]
    if len(cells) < 2 or not 1 <= len(ids) <= 2 or None in ids:
        return None
    card, chip, pid = ids[0], (ids[1] if len(ids) > 1 else 0), _int(cells[1])
    if card is None or chip is None or pid is None:
        return None
    name, memory = (*cells[2:4], "", "")[:2]
    return ProcessRow(card, chip, pid, name, _int(memory))


# ---- npu-smi info -t health


def parse_health(text: str) -> tuple[HealthBlock, ...]:
    """The blocks of `npu-smi info -t health -i N [-c C]`.

    With `-c` there is one block, with its codes. Without, the tool of Atlas A2 and A3 prints the health words only, one
    block a chip and one for the board's MCU, each followed by the `Chip ID` or `Chip Name` it belongs to; the tool of
    the 310 prints the id before the block.
    """
    blocks = _Blocks()
    key = ""
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        # The information goes on in lines without a label, and blank lines stand between them.
        key = label.strip().lower() if label.strip() else key
        if colon:
            blocks.take(key, value.strip())
    return blocks.closed()


@dataclass(slots=True)
class _Blocks:
    """Builds blocks from fields; `_open` is the block that fields go to, `_ids` what was told before it began."""

    _done: list[HealthBlock] = field(default_factory=list)
    _open: HealthBlock | None = None
    _card: int | None = None
    _chip: int | None = None

    def take(self, key: str, value: str) -> None:
        if key in ("health", "health status"):
            self._begin(value)
        elif key == "npu id":
            self._card = _int(value)
        elif key == "chip id":
            self._name(_int(value))
        elif self._open is not None:
            self._open = _with_field(self._open, key, value)

    def closed(self) -> tuple[HealthBlock, ...]:
        self._end()
        return tuple(self._done)

    def _begin(self, word: str) -> None:
        self._end()
        self._open = HealthBlock(word, self._card, self._chip)
        self._chip = None

    def _name(self, chip: int | None) -> None:
        if self._open is not None and self._open.chip is None and not self._open.part:
            self._open = replace(self._open, chip=chip)
        else:
            self._chip = chip

    def _end(self) -> None:
        if self._open is not None:
            self._done.append(self._open)
        self._open = None


def _with_field(block: HealthBlock, key: str, value: str) -> HealthBlock:
    if key == "error code":
        return replace(block, codes=block.codes + tuple(_codes(value)))
    if key == "error information" and value not in ("", "NA", "-"):
        return replace(block, information=(*block.information, value))
    if key == "chip name":
        return replace(block, part=value)
    return block


def _codes(value: str) -> Iterator[str]:
    for word in value.replace(",", " ").split():
        if code := _CODE.fullmatch(word):
            yield code[1].upper().zfill(_CODE_DIGITS)


# ---- npu-smi info -m


def parse_mapping(text: str) -> tuple[MapRow, ...]:
    """The lines of `npu-smi info -m`: which card and chip is which logical device. The heading names the columns."""
    titles: list[str] = []
    rows = []
    for line in text.splitlines():
        if found := _MAP_TITLES.findall(line):
            titles = found
        elif row := _map_row(titles, line.split()):
            rows.append(row)
    return tuple(rows)


def _map_row(titles: list[str], words: list[str]) -> MapRow | None:
    # The name is the last column and may hold blanks.
    told = dict(zip(titles[:-1], words, strict=False))
    card, chip = _int(told.get("NPU ID", "")), _int(told.get("Chip ID", ""))
    if card is None or chip is None:
        return None
    name = " ".join(words[len(titles) - 1 :])
    return MapRow(card, chip, name, _int(told.get("Chip Logic ID", "")), _int(told.get("Chip Phy-ID", "")))


# ---- npu-smi set -t reset

_REFUSALS = ("root user", "not permitted", "permission denied", "cannot be executed on", "can only be executed on")
_CHATTER = re.compile(
    r"resetting|are you sure|.*do you want to continue|\[warning]|error! please|status\s*:|[yn]$", re.IGNORECASE
)


def parse_reset(text: str) -> ResetAnswer:
    """How `npu-smi set -t reset` ended, by its `Status` field or its words."""
    message = "; ".join(_reset_words(text))
    status = re.findall(r"^\s*Status\s*:\s*(\w+)", text, re.MULTILINE)
    if status and status[-1].upper() == "OK":
        return ResetAnswer(ResetOutcome.DONE, message)
    if any(words in message.lower() for words in _REFUSALS):
        return ResetAnswer(ResetOutcome.REFUSED, message)
    if status or message:
        return ResetAnswer(ResetOutcome.FAILED, message or f"Status: {status[-1]}")
    return ResetAnswer(ResetOutcome.UNKNOWN)


def _reset_words(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = re.sub(r"^\s*Message\s*:\s*", "", line).strip()
        if words and not _CHATTER.match(words):
            yield words


def _int(word: str) -> int | None:
    return int(word) if _INT.fullmatch(word) else None


def _float(word: str) -> float | None:
    return float(word) if _FLOAT.fullmatch(word) else None

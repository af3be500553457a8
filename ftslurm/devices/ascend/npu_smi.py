"""What npu-smi prints, read into values: the tables of `info`, and what it tells as `label : value`.

Pure, never raises, takes time in proportion to the text: what cannot be read is left out and counted. npu-smi has no
machine-readable mode; box widths, spacing and columns differ between driver branches, so rows are split on `|` and
blanks, never on columns. Source: the vendor's npu-smi references and the open npu-smi sources of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum

from ftslurm.model.devices import DeviceHealth, Severity
from ftslurm.model.text import whole
from ftslurm.model.values import Value, field, replace

# Nine digits hold every id and size the tool prints; longer runs of digits are noise, and int() refuses very long ones.
_NUMBER = "[0-9]{1,9}"
# An event code has 32 bits; the tool prints it without leading zeros.
_CODE, _CODE_DIGITS = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{4,10})"), 8
# Of a chip, twice as many as the driver keeps (DCMI, 128).
_MOST_CODES = 256
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
    health: str  # the tool's word as printed. None: the tool printed NA, `-` or nothing.
    power_w: float | None = None
    aicore_percent: int | None = None  # on the 950 the use of the whole NPU
    memory_percent: float | None = None  # of the HBM; where there is none, as on the 310P, of the memory

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
    """Who uses the chips. idle_cards: the tool says so of them in words."""

    rows: tuple[ProcessRow, ...] = ()
    idle_cards: frozenset[int] = frozenset()
    unread: int = 0

    @property
    def cards(self) -> frozenset[int]:
        """Those the table tells of."""
        return self.idle_cards | {row.card for row in self.rows}

    def covers(self, cards: Iterable[int]) -> bool:
        """Does the table tell of each of `cards` whether it is used? Only then does an absent row prove anything."""
        return not self.unread and self.cards.issuperset(cards)


class HealthBlock(Value):
    """One chip as `info -t health` tells. codes: upper case, no 0x, 8 digits or more."""

    word: str
    codes: tuple[str, ...] = ()
    information: tuple[str, ...] = ()


class ResetOutcome(Enum):
    """UNKNOWN: the tool ended without saying how it went."""

    DONE = "done"  # as the tool says; in-band on one chip it says so of failures too
    FAILED = "failed"
    REFUSED = "refused"  # not allowed here: another way of resetting will be refused as well
    UNKNOWN = "unknown"


class NpuResetAnswer(Value):
    """message: the tool's words on the outcome, without its questions and progress notes."""

    outcome: ResetOutcome
    message: str = ""


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
    unread = 0
    rows: list[ProcessRow] = []
    idle: set[int] = set()
    for section, cells in _sections(text):
        if section is not _Section.PROCESSES or not any(cells):
            continue
        if sentence := _IDLE_CARD.search(cells[0]):
            idle.add(int(sentence[1]))
        elif row := _process_row(cells):
            rows.append(row)
        else:
            unread += 1
    return ProcessTable(tuple(rows), frozenset(idle), unread)


class _Section(Enum):
    CHIPS = "chips"
    CHIPS_OF_CARDS = "cards"  # the 950 form: id and name in cells of their own, no chip column
    PROCESSES = "processes"


def _sections(text: str) -> Iterator[tuple[_Section, list[str]]]:
    """Each row of the two tables with its section, and each rule as a row without cells."""
    section: _Section | None = None
    for line in text.splitlines():
        cells = _cells(line)
        if heading := _heading(cells):
            section = heading
        elif section and (line.lstrip().startswith("+") or (cells and "Bus-Id" not in cells[1:3])):
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
        ids = [whole(word) for word in cells[0].split()]
        return self._first is not None and cells[1] in ("NA", "-", "") and len(ids) < 3 and None not in ids

    def _open(self, cells: list[str]) -> None:
        named = _CARD_AND_NAME.fullmatch(cells[0])
        if not named:
            self.unread += 1
            return
        power = (*cells[2].split(), "")[0]
        self._first = ChipRow(int(named[1]), 0, cells[1], float(power) if _FLOAT.fullmatch(power) else None)

    def _close_with(self, cells: list[str], card_only: bool) -> None:
        first, self._first = self._first, None
        chip = 0 if card_only else whole((*cells[0].split(), "")[0])
        if first is None or chip is None or (first.card, chip) in self.chips:
            self.unread += 1
            return
        self.chips[first.card, chip] = _joined(first, chip, cells)


def _joined(first: ChipRow, chip: int, cells: list[str]) -> ChipRow:
    # Two columns are memory and HBM; the 310P has memory only. One that holds NA is no pair.
    pairs = [(int(used), int(total)) for used, total in _PAIR.findall(cells[2])]
    memory = next((100.0 * used / total for used, total in reversed(pairs) if total), None)
    return replace(first, chip=chip, aicore_percent=whole((*cells[2].split(), "")[0]), memory_percent=memory)


def _process_row(cells: list[str]) -> ProcessRow | None:
    ids = [whole(word) for word in cells[0].split()]
    if len(cells) < 2 or not 1 <= len(ids) <= 2 or None in ids:
        return None
    card, chip, pid = ids[0], (ids[1] if len(ids) > 1 else 0), whole(cells[1])
    if card is None or chip is None or pid is None:
        return None
    return ProcessRow(card, chip, pid, (*cells[2:3], "")[0])


# ---- npu-smi info -t health


def parse_health(text: str) -> HealthBlock | None:
    """The block of `npu-smi info -t health -i N -c C`, of a 950 without `-c`; None if it is not there, or not alone."""
    told: dict[str, list[str]] = {}
    for key, value in _fields(text):
        told.setdefault(key, []).append(value)
    words = [*told.get("health status", ()), *told.get("health", ())]
    if len(words) != 1 or not words[0]:
        return None
    codes = [code for value in told.get("error code", ()) for code in _codes(value)]
    information = [value for value in told.get("error information", ()) if value not in ("", "NA", "-")]
    return HealthBlock(words[0], tuple(codes[:_MOST_CODES]), tuple(information[:_MOST_CODES]))


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Label in lower case, and value. A line that begins with the colon goes on with the label before; lines without a
    colon may stand between."""
    key = ""
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        if colon:
            key = label.strip().lower() or key
            yield key, value.strip()


def _codes(value: str) -> Iterator[str]:
    for word in value.replace(",", " ").split():
        if code := _CODE.fullmatch(word):
            yield code[1].upper().zfill(_CODE_DIGITS)


# ---- npu-smi set -t reset

_REFUSALS = (
    "root user", "not permitted", "permission denied", "cannot be executed on", "can only be executed on",
    "vnpu scenario", "another user is resetting",
)  # fmt: skip
_CHATTER = re.compile(
    r"resetting|are you sure|.*do you want to continue|\[warning]|error! please|status\s*:|[yn]$", re.IGNORECASE
)
_MESSAGE = re.compile(r"Message\s*:\s*")
_STATUS = re.compile(r"Status\s*:\s*(\w+)")


def parse_npu_reset(text: str) -> NpuResetAnswer:
    """How `npu-smi set -t reset` ended, by its `Status` field or its words."""
    lines = [line.strip() for line in text.splitlines()]
    message = "; ".join(_reset_words(lines))
    status = [found[1] for line in lines if (found := _STATUS.match(line))]
    if status and status[-1].upper() == "OK":
        return NpuResetAnswer(ResetOutcome.DONE, message)
    if any(words in message.lower() for words in _REFUSALS):
        return NpuResetAnswer(ResetOutcome.REFUSED, message)
    if status or message:
        return NpuResetAnswer(ResetOutcome.FAILED, message or f"Status: {status[-1]}")
    return NpuResetAnswer(ResetOutcome.UNKNOWN)


def _reset_words(lines: list[str]) -> Iterator[str]:
    for line in lines:
        words = _MESSAGE.sub("", line, count=1) if line.startswith("Message") else line
        if words and not _CHATTER.match(words):
            yield words

"""What npu-smi prints as `label : value`, and hccn_tool of the network ports, read into values.

Pure, never raises, takes time in proportion to the text: what cannot be read is left out. Source: as npu_smi.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from ftslurm.devices.ascend.npu_smi import whole_of
from ftslurm.model.values import Value, field

_CODE = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{4,10})")
_MAP_TITLES = re.compile("Chip Logic ID|Chip Phy-ID|Chip Name|NPU ID|Slot ID|Chip ID")

# An event code has 32 bits; the tool prints it without leading zeros.
_CODE_DIGITS = 8
# Of a chip, as many as the driver keeps (DCMI, 128), and some for a second chip.
_MOST_CODES = 256


class HealthBlock(Value, frozen=False):
    """One chip as `info -t health` tells. card, chip: None where the block does not say. part: `MCU` for the board's.

    word: empty if none was printed. codes: upper case, no 0x, 8 digits or more.
    """

    word: str = ""
    card: int | None = None
    chip: int | None = None
    part: str = ""
    codes: tuple[str, ...] = ()
    information: tuple[str, ...] = ()


class LiveEvent(Value):
    """One fault as `info -t current-fault-event` tells. severity: the driver's 0 to 3, None if it is not one of these."""

    code: str
    severity: int | None = None


class EventList(Value):
    """count: how many there are, None if the tool did not say (then it does not know this query, or failed)."""

    count: int | None = None
    events: tuple[LiveEvent, ...] = ()


class MapRow(Value):
    """One line of `info -m`. logic_id: what the run time calls the device, None for the board's MCU and on the 950."""

    card: int
    chip: int
    logic_id: int | None = None


class ResetOutcome(Enum):
    """UNKNOWN: the tool ended without saying how it went."""

    DONE = "done"  # as the tool says; in-band on one chip it says so of failures too
    FAILED = "failed"
    REFUSED = "refused"  # not allowed here: another way of resetting will be refused as well
    OTHERS = "others"  # somebody else is resetting at this moment
    UNKNOWN = "unknown"


class NpuResetAnswer(Value):
    """message: the tool's words on the outcome, without its questions and progress notes."""

    outcome: ResetOutcome
    message: str = ""


# ---- npu-smi info -t health


def parse_health(text: str) -> tuple[HealthBlock, ...]:
    """The blocks of `npu-smi info -t health -i N [-c C]`.

    With `-c` there is one block, with its codes. Without, the tool of Atlas A2 and A3 prints the health words only, one
    block a chip and one for the board's MCU, each followed by the `Chip ID` or `Chip Name` it belongs to; the tool of
    the 310 prints the id before the block.
    """
    blocks = _Blocks()
    for key, value in _fields(text):
        blocks.take(key, value)
    return tuple(blocks.all)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Label in lower case, and value. A line that begins with the colon goes on with the label before; lines without a
    colon may stand between."""
    key = ""
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        if colon:
            key = label.strip().lower() or key
            yield key, value.strip()


class _Blocks(Value, frozen=False):
    """Builds blocks from fields; the last one is where fields go to. _card, _chip: told before it began."""

    all: list[HealthBlock] = field(default_factory=list)
    _card: int | None = None
    _chip: int | None = None

    def take(self, key: str, value: str) -> None:
        if key in ("health", "health status"):
            self.all.append(HealthBlock(value, self._card, self._chip))
            self._chip = None
        elif key == "npu id":
            self._card = whole_of(value)
        elif key == "chip id":
            self._name(whole_of(value))
        elif self.all:
            _add(self.all[-1], key, value)

    def _name(self, chip: int | None) -> None:
        if self.all and self.all[-1].chip is None and not self.all[-1].part:
            self.all[-1].chip = chip
        else:
            self._chip = chip


def _add(block: HealthBlock, key: str, value: str) -> None:
    if key == "error code":
        block.codes = (*block.codes, *_codes(value))[:_MOST_CODES]
    elif key == "error information" and value not in ("", "NA", "-") and len(block.information) < _MOST_CODES:
        block.information += (value,)
    elif key == "chip name":
        block.part = value


def _codes(value: str) -> Iterator[str]:
    for word in value.replace(",", " ").split():
        if code := _CODE.fullmatch(word):
            yield code[1].upper().zfill(_CODE_DIGITS)


# ---- npu-smi info -t current-fault-event


def parse_events(text: str) -> EventList:
    """The faults a chip has now: `Fault Event Count : n`, then entries `event id=0x…, severity=…, node type ex=…, …`."""
    count: int | None = None
    events: list[LiveEvent] = []
    for key, value in _fields(text):
        if key == "fault event count":
            count = whole_of(value)
        elif key == "fault event information" and len(events) < _MOST_CODES and (event := _live_event(value)):
            events.append(event)
    return EventList(count, tuple(events) if count else ())


def _live_event(value: str) -> LiveEvent | None:
    told = dict(_assignment(part) for part in value.split(","))
    code = _CODE.fullmatch(told.get("event id", ""))
    severity = whole_of(told.get("severity", ""))
    if not code:
        return None
    return LiveEvent(code[1].upper().zfill(_CODE_DIGITS), severity if severity in range(4) else None)


def _assignment(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    return name.strip().lower(), value.strip()


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
    card, chip = whole_of(told.get("NPU ID", "")), whole_of(told.get("Chip ID", ""))
    if card is None or chip is None:
        return None
    return MapRow(card, chip, whole_of(told.get("Chip Logic ID", "")))


# ---- npu-smi set -t reset

_REFUSALS = (
    "root user", "not permitted", "permission denied", "cannot be executed on", "can only be executed on",
    "vnpu scenario",
)  # fmt: skip
_OTHERS = "another user is resetting"
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
    if _OTHERS in message.lower():
        return NpuResetAnswer(ResetOutcome.OTHERS, message)
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


# ---- hccn_tool -i N -net_health -g

_NET_HEALTH = {
    "success": 0, "socket fail": 1, "receive timeout": 2, "unreachable": 3, "time exceeded": 4, "fault": 5, "init": 6,
    "thread error": 7, "detect ip set": 8,
}  # fmt: skip


def parse_net_health(text: str) -> int | None:
    """`net health status: Success` -> 0, and so on in DCMI's numbers; None for other words and for none."""
    for key, value in _fields(text):
        if key == "net health status":
            return _NET_HEALTH.get(value.lower())
    return None

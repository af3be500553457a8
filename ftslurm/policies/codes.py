"""What an Ascend fault code asks for: the catalogue first, the bits and the severity for what it does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.devices import CodeMeaning, FaultClass, Severity

SCHEMA_VERSION = 1

# Event codes have 32 bits; the codes that MindCluster's services make up themselves have nine digits.
_CODE = re.compile(r"[0-9A-F]{4,10}")
_EVENT_DIGITS = 8
_ORDER = (Severity.HINT, Severity.MINOR, Severity.MAJOR, Severity.CRITICAL)

Table = Mapping[Any, Any]  # as the YAML reader gives it, nothing checked yet


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """One code of the catalogue. handling: MindCluster's class, empty where it leaves the code to its severity.

    severity: the worst the driver of any generation attaches to the code, UNKNOWN where no source tells.
    """

    name: str
    handling: str = ""
    part: str = ""
    severity: Severity = Severity.UNKNOWN


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """Names for the bits of an event code. events: sensor type -> event state -> words."""

    sides: Mapping[int, str] = field(default_factory=dict)
    black_box: Mapping[int, str] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    sensors: Mapping[int, str] = field(default_factory=dict)
    events: Mapping[int, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AscendCatalog:
    """All that is known of Ascend codes; made by `build_catalog`."""

    entries: Mapping[str, CodeEntry]
    classes: Mapping[str, FaultClass]
    by_severity: Mapping[Severity, FaultClass]
    user_induced: frozenset[str]
    layout: CodeLayout

    def meaning(self, code: str, severity: Severity = Severity.UNKNOWN) -> CodeMeaning:
        """What `code` asks for. severity: what the device tool showed, used where the catalogue has no class."""
        name = normalise(code)
        if not _CODE.fullmatch(name):
            return CodeMeaning(name, "not a fault code", FaultClass.UNKNOWN, source="unreadable")
        entry = self.entries.get(name)
        if entry is None:
            return self._graded(name, describe(name, self.layout), severity)
        if not entry.handling:
            # The driver's severity is that of this very code; what the tool shows is the worst of all on the chip.
            own = severity if entry.severity is Severity.UNKNOWN else entry.severity
            return self._graded(name, entry.name, own)
        induced = name in self.user_induced
        return CodeMeaning(name, entry.name, self.classes[entry.handling], induced, f"catalogue: {entry.handling}")

    def with_classes(self, overrides: Mapping[str, object]) -> AscendCatalog:
        """A site's own word: code -> MindCluster class; a code new to the catalogue is named from its bits.

        Raises: PolicyError naming the code whose class does not exist.
        """
        entries = dict(self.entries)
        for code, handling in overrides.items():
            name = _code_key(code, "classes")
            old = entries.get(name) or CodeEntry(name=describe(name, self.layout))
            entries[name] = replace(old, handling=_known_class(handling, self.classes, name))
        return replace(self, entries=entries)

    def _graded(self, code: str, name: str, severity: Severity) -> CodeMeaning:
        fault_class = self.by_severity.get(severity, FaultClass.UNKNOWN)
        return CodeMeaning(code, name, fault_class, code in self.user_induced, f"severity: {severity.value}")


def normalise(code: str) -> str:
    """`0x80e01801` -> `80E01801`. The tool drops leading zeros (it prints `%04X`), so they come back here."""
    text = code.strip().upper().removeprefix("0X")
    return text.zfill(_EVENT_DIGITS) if _CODE.fullmatch(text) else text


def describe(code: str, layout: CodeLayout) -> str:
    """The name of a normalised code from its bits alone, as far as the tables go; never raises."""
    if not _CODE.fullmatch(code) or len(code) != _EVENT_DIGITS:
        return "event of another service"  # nine digits: made by a cluster service, no bits to read
    bits = int(code, 16)
    side = layout.sides.get(bits >> 30, "unknown side")
    if bits >> 28 & 3:
        return f"{side} black-box record, {_named(layout.black_box, bits >> 17 & 0x7F, 'module')}"
    sensor, state = bits >> 9 & 0xFF, bits & 0x1FF
    event = layout.events.get(sensor, {}).get(state, f"event {state}")
    part = _named(layout.nodes, bits >> 17 & 0x7FF, "part")
    return f"{side} {part}, {_named(layout.sensors, sensor, 'sensor')}: {event}"


def build_catalog(data: Mapping[str, object]) -> AscendCatalog:
    """Check `data`, the parsed catalogue file, and make the value of it.

    Raises: PolicyError naming the entry that is wrong.
    """
    version = _table(data, "the file").get("schema_version")
    if version != SCHEMA_VERSION:
        raise _wrong("schema_version", f"is {version!r}, this version of ftslurm reads {SCHEMA_VERSION}")
    classes = _fault_classes(data.get("classes"), "classes")
    return AscendCatalog(
        entries={
            _code_key(code, "codes"): _entry(_table(raw, f"codes.{code}"), classes, code)
            for code, raw in _table(data.get("codes"), "codes").items()
        },
        classes=classes,
        by_severity=_by_severity(data.get("by_severity")),
        user_induced=_codes(data.get("user_induced"), "user_induced"),
        layout=_layout(_table(data.get("layout"), "layout")),
    )


def _entry(raw: Table, classes: Mapping[str, FaultClass], code: str) -> CodeEntry:
    name, handling = raw.get("name"), raw.get("class")
    if not isinstance(name, str) or not name:
        raise _wrong(f"codes.{code}", "has no name")
    return CodeEntry(
        name=name,
        handling="" if handling is None else _known_class(handling, classes, code),
        part=str(raw.get("part", "")),
        severity=_worst([raw[key] for key in ("sev_a2", "sev_950") if key in raw], f"codes.{code}"),
    )


def _worst(words: Iterable[object], where: str) -> Severity:
    told = [severity for severity in (_severity(word, where) for word in words) if severity in _ORDER]
    return max(told, key=_ORDER.index, default=Severity.UNKNOWN)


def _fault_classes(raw: object, where: str) -> dict[str, FaultClass]:
    try:
        return {name: FaultClass(word) for name, word in _table(raw, where).items()}
    except ValueError as error:
        raise _wrong(where, f"has no known fault class: {error}") from None


def _by_severity(raw: object) -> dict[Severity, FaultClass]:
    graded = {_severity(word, "by_severity"): found for word, found in _fault_classes(raw, "by_severity").items()}
    if missing := [severity.value for severity in _ORDER if severity not in graded]:
        raise _wrong("by_severity", f"says nothing of {', '.join(missing)}")
    return graded


def _severity(word: object, where: str) -> Severity:
    try:
        return Severity(word)
    except ValueError:
        raise _wrong(where, f"has the severity {word!r}, which is not a known word") from None


def _layout(raw: Table) -> CodeLayout:
    events = _numbered(raw.get("events"), "layout.events")
    return CodeLayout(
        sides=_words(raw.get("sides"), "layout.sides"),
        black_box=_words(raw.get("black_box"), "layout.black_box"),
        nodes=_words(raw.get("nodes"), "layout.nodes"),
        sensors=_words(raw.get("sensors"), "layout.sensors"),
        events={sensor: _words(states, f"layout.events.{sensor}") for sensor, states in events.items()},
    )


def _words(raw: object, where: str) -> dict[int, str]:
    return {number: str(words) for number, words in _numbered(raw, where).items()}


def _numbered(raw: object, where: str) -> Table:
    table = _table(raw, where)
    for number in table:
        if not isinstance(number, int):
            raise _wrong(where, f"has the key {number!r}, which is not a number")
    return table


def _named(table: Mapping[int, str], number: int, what: str) -> str:
    return table.get(number, f"{what} 0x{number:02X}")


def _known_class(value: object, classes: Mapping[str, FaultClass], code: str) -> str:
    if not isinstance(value, str) or value not in classes:
        raise _wrong(f"codes.{code}", f"has the class {value!r}, which is none of {', '.join(classes)}")
    return value


def _code_key(code: object, where: str) -> str:
    # To a YAML reader an unquoted 80818200 is a number, and an unquoted 020001001 another number than it looks.
    text = normalise(code) if isinstance(code, str) else ""
    if not _CODE.fullmatch(text):
        raise _wrong(where, f"lists {code!r}, which is no fault code (codes stand in quotes)")
    return text


def _table(value: object, where: str) -> Table:
    if not isinstance(value, Mapping):
        raise _wrong(where, f"should be a table, it is {type(value).__name__}")
    return value


def _codes(value: object, where: str) -> frozenset[str]:
    if not isinstance(value, list):
        raise _wrong(where, f"should be a list, it is {type(value).__name__}")
    return frozenset(_code_key(code, where) for code in value)


def _wrong(where: str, what: str) -> PolicyError:
    return PolicyError(f"the Ascend catalogue is wrong: {where} {what}", hint="catalogs/ascend.yaml tells its form")

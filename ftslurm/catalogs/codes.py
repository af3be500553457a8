"""What an Ascend fault code asks for: the catalogue first, the bits and the severity for what it does not know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace

from ftslurm.catalogs.gpu_codes import GpuCatalog
from ftslurm.model.devices import CLASS_OF, CodeMeaning, FaultClass, Remedy, Severity
from ftslurm.model.values import dataclass

# Event codes have 32 bits; the codes that MindCluster's services make up themselves have nine digits. A switch's alarm is
# `[0x00f1fef5,155913,cpu,na]`, ModelArts has names.
_CODE = re.compile(r"[0-9A-F]{4,10}")
_EVENT_DIGITS = 8


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """One code of the catalogue. handling: MindCluster's class, empty where it leaves the code to its severity.

    severity: the worst the driver of any generation attaches to the code, UNKNOWN where no source tells. remedy: where the
    entry names one itself. sources: words that the catalogue's table of sources explains. note: for people.
    """

    name: str
    handling: str = ""
    part: str = ""
    severity: Severity = Severity.UNKNOWN
    sources: tuple[str, ...] = ()
    note: str = ""
    remedy: Remedy = Remedy.UNKNOWN


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """Names for the bits of an event code. events: sensor type -> event state -> words."""

    sides: Mapping[int, str] = field(default_factory=dict)
    black_box: Mapping[int, str] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    sensors: Mapping[int, str] = field(default_factory=dict)
    events: Mapping[int, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrequencyRule:
    """`times` within `window_s` on one chip is too often, by the vendor's own rule."""

    times: int
    window_s: float
    codes: frozenset[str]


@dataclass(frozen=True, slots=True)
class AscendCatalog:
    """All that is known of Ascend codes; made by `ascend_file.build_catalog`. sources: word -> what it is."""

    entries: Mapping[str, CodeEntry]
    classes: Mapping[str, Remedy]
    by_severity: Mapping[Severity, Remedy]
    user_induced: frozenset[str]
    layout: CodeLayout
    frequencies: tuple[FrequencyRule, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    vendor: str = "Ascend"
    # Of a code that is not listed, for people.
    unlisted: str = "the name is read from its bits; npu-smi tells its severity, by which ftrun goes for codes it does not know"

    def entry(self, code: str) -> CodeEntry | None:
        return self.entries.get(normalise(code))

    def meaning(self, code: str, severity: Severity = Severity.UNKNOWN) -> CodeMeaning:
        """What `code` asks for. severity: what the device tool showed, used where the catalogue has no class."""
        name = normalise(code)
        entry = self.entries.get(name)
        if entry is None:
            if not _CODE.fullmatch(name):
                return _meant(name, "not a fault code", Remedy.UNKNOWN, False, "unreadable")
            return self._graded(name, describe(name, self.layout), severity)
        induced = name in self.user_induced
        if entry.handling:
            return _meant(name, entry.name, self.classes[entry.handling], induced, f"catalogue: {entry.handling}")
        if entry.remedy is not Remedy.UNKNOWN:
            return _meant(name, entry.name, entry.remedy, induced, "catalogue")
        # The driver's severity is that of this very code; what the tool shows is the worst of all on the chip.
        return self._graded(name, entry.name, severity if entry.severity is Severity.UNKNOWN else entry.severity)

    def limit_of(self, code: str) -> tuple[int, float] | None:
        """How often within how many seconds on one chip is too often, by the vendor's own rule; None where it has none."""
        name = normalise(code)
        rules = [rule for rule in self.frequencies if name in rule.codes]
        return min(((rule.times, rule.window_s) for rule in rules), default=None)

    def part_of(self, code: str) -> str:
        """The block that the code belongs to, by its bits or its section; empty where neither tells."""
        name = normalise(code)
        entry = self.entries.get(name)
        bits = int(name, 16) if _CODE.fullmatch(name) and len(name) == _EVENT_DIGITS else 0
        if bits >> 30 and not bits >> 28 & 3 and (found := self.layout.nodes.get(bits >> 17 & 0x7FF)):
            return found
        return entry.part if entry else ""

    def with_entries(self, changes: Mapping[str, CodeEntry]) -> AscendCatalog:
        """A site's own word: a class, and a name; without a name the old one, else what the bits say."""
        entries = dict(self.entries)
        for code, change in changes.items():
            name = normalise(code)
            old = entries.get(name) or CodeEntry(name=describe(name, self.layout))
            entries[name] = replace(change, name=change.name or old.name, part=change.part or old.part)
        return replace(self, entries=entries, sources={**self.sources, "site": "the site's own file"})

    def _graded(self, code: str, name: str, severity: Severity) -> CodeMeaning:
        remedy = self.by_severity.get(severity, Remedy.UNKNOWN)
        return _meant(code, name, remedy, code in self.user_induced, f"severity: {severity.value}")


def _meant(code: str, name: str, remedy: Remedy, user_induced: bool, source: str) -> CodeMeaning:
    return CodeMeaning(code, name, CLASS_OF[remedy], user_induced, source, remedy)


def normalise(code: str) -> str:
    """`0x80e01801` -> `80E01801`. The tool drops leading zeros (it prints `%04X`), so they come back here."""
    text = code.strip().upper().removeprefix("0X")
    return text.zfill(_EVENT_DIGITS) if _CODE.fullmatch(text) else text


def is_code(normalised: str) -> bool:
    """Does it look like a fault code of a device, a switch or a service, names of conditions aside?"""
    return _CODE.fullmatch(normalised) is not None or re.fullmatch(r"\[0X[0-9A-F]+(?:,[0-9A-Z]+){3}\]", normalised) is not None


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


def _named(table: Mapping[int, str], number: int, what: str) -> str:
    return table.get(number, f"{what} 0x{number:02X}")


# --- all device catalogues as one


@dataclass(frozen=True, slots=True)
class CodeBook:
    """kind of device -> its catalogue. Made by `catalog_files.load_code_book`."""

    catalogs: Mapping[str, AscendCatalog | GpuCatalog]

    def meaning(self, kind: str, code: str, severity: Severity) -> CodeMeaning:
        """What `code` asks for. kind: of the device, as its probe names it. Unknown for a kind or code that is not known."""
        if kind in self.catalogs:
            return self.catalogs[kind].meaning(code, severity)
        return CodeMeaning(code, f"code of a device of unknown kind `{kind}`", FaultClass.UNKNOWN)

    def limit_of(self, code: str) -> tuple[int, float] | None:
        """(times, seconds): so often within so long on one chip is too often, by its vendor's own rule; None without one."""
        return next((limit for each in self.catalogs.values() if (limit := each.limit_of(code))), None)

    def kinds_of(self, code: str) -> list[str]:
        """The kinds whose catalogues list the code."""
        return [kind for kind, each in self.catalogs.items() if each.entry(code)]

"""What a device's fault code asks for: by the catalogue of its vendor, else by its bits and severity, where they tell. Pure.

NVIDIA numbers its codes (Xids, SXids, recovery actions). AMD has no numbers: its names are the probe's, and so it is with devices
of plugins. Ascend's event codes have 32 bits; the codes that MindCluster's services make up themselves have nine digits. A
switch's alarm is `[0x00f1fef5,155913,cpu,na]`, ModelArts has names.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from ftslurm.model.devices import CLASS_OF, CodeMeaning, FaultClass, Remedy, Severity
from ftslurm.model.exits import signal_name
from ftslurm.model.plain import Bounds, from_plain
from ftslurm.model.text import whole
from ftslurm.model.values import Value, field, replace

_CODE = re.compile(r"[0-9A-F]{4,10}")
_EVENT_DIGITS = 8


class Entry(Value):
    """One code. remedy: unknown where it is left to the severity. part: gpu, memory, link, ... grade: the vendor's own word for
    what to do (MindCluster's class, NVIDIA's bucket), empty where it has none. program: mostly the program's doing. note: for
    people. sources: words that the catalogue's table of sources explains. severity: the worst the driver of any generation
    attaches to the code, UNKNOWN where no source tells."""

    name: str
    remedy: Remedy = Remedy.UNKNOWN
    part: str = ""
    grade: str = ""
    program: bool = False
    note: str = ""
    sources: tuple[str, ...] = ()
    severity: Severity = Severity.UNKNOWN


class CodeLayout(Value):
    """Names for the bits of an event code. events: sensor type -> event state -> words."""

    sides: Mapping[int, str] = field(default_factory=dict)
    black_box: Mapping[int, str] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    sensors: Mapping[int, str] = field(default_factory=dict)
    events: Mapping[int, Mapping[int, str]] = field(default_factory=dict)


class FrequencyRule(Value):
    """`times` within `window_s` on one chip is too often, by the vendor's own rule."""

    times: int
    window_s: float
    codes: tuple[str, ...]


class Section(Value):
    """Codes of one vendor, and what holds of those of them that say nothing else."""

    codes: Mapping[str, Entry]
    part: str = ""
    sources: tuple[str, ...] = ()


class Catalog(Value):
    """All that is known of one vendor's codes."""

    vendor: str
    entries: Mapping[str, Entry] = field(default_factory=dict)  # by normalised code
    sections: Mapping[str, Section] = field(default_factory=dict)  # in which they stand in a file
    sources: Mapping[str, str] = field(default_factory=dict)  # word -> what it is
    unlisted: str = ""  # for people, of a code that is not listed
    layout: CodeLayout | None = None  # where a code's bits tell what it means
    by_severity: Mapping[Severity, Remedy] = field(default_factory=dict)  # for codes without a remedy
    classes: Mapping[str, Remedy] = field(default_factory=dict)  # the vendor's, of which a site may name one for a code
    frequencies: tuple[FrequencyRule, ...] = ()
    numbered: tuple[str, ...] = ()  # words before the numbers of codes; a number alone means the first

    def normalised(self, code: str) -> str:
        if self.layout is not None:
            return normalise(code)
        return normalise_numbered(self.with_word(code), self.numbered)

    def with_word(self, code: str) -> str:
        """`79` -> `XID 79`"""
        return f"{self.numbered[0]} {code}" if self.numbered and whole(code) is not None else code

    def is_written(self, word: str) -> bool:
        """Is `word`, in capitals, written as the vendor writes its codes, whether it is listed or not?"""
        if self.layout is None:
            return _numbered(word, self.numbered) is not None
        # `DEAD` or `face` is a word first of all: eight or more digits, or a 0x before them.
        marked = word.startswith(("0X", "[")) or (len(word) >= _EVENT_DIGITS and any(char.isdigit() for char in word))
        return marked and is_code(normalise(word))

    def entry(self, code: str) -> Entry | None:
        return self.entries.get(self.normalised(code))

    def meaning(self, code: str, severity: Severity = Severity.UNKNOWN) -> CodeMeaning:
        """What `code` asks for. severity: what the device tool showed, used where the catalogue has no remedy."""
        name = self.normalised(code)
        entry = self.entries.get(name)
        if entry is None and self.layout is None:
            return CodeMeaning(name, f"not in {self.vendor}'s catalogue", FaultClass.UNKNOWN)
        if entry is None and not _CODE.fullmatch(name):
            return CodeMeaning(name, "not a fault code", FaultClass.UNKNOWN, source="unreadable")
        entry = entry or self._by_its_bits(name)
        if entry.remedy is not Remedy.UNKNOWN or not self.by_severity:
            source = f"catalogue: {entry.grade}" if entry.grade else "catalogue"
            return CodeMeaning(name, entry.name, CLASS_OF[entry.remedy], entry.program, source, entry.remedy)
        # The driver's severity is that of this very code; what the tool shows is the worst of all on the chip.
        shown = severity if entry.severity is Severity.UNKNOWN else entry.severity
        remedy = self.by_severity.get(shown, Remedy.UNKNOWN)
        return CodeMeaning(name, entry.name, CLASS_OF[remedy], entry.program, f"severity: {shown.value}", remedy)

    def limit_of(self, code: str) -> tuple[int, float] | None:
        """How often within how many seconds on one chip is too often, by the vendor's own rule; None where it has none."""
        name = self.normalised(code)
        rules = [rule for rule in self.frequencies if name in rule.codes]
        return min(((rule.times, rule.window_s) for rule in rules), default=None)

    def part_of(self, code: str) -> str:
        """The block that the code belongs to, by its bits or its section; empty where neither tells."""
        name = self.normalised(code)
        entry = self.entries.get(name)
        bits = int(name, 16) if self.layout and _CODE.fullmatch(name) and len(name) == _EVENT_DIGITS else 0
        if self.layout and bits >> 30 and not bits >> 28 & 3 and (found := self.layout.nodes.get(bits >> 17 & 0x7FF)):
            return found
        return entry.part if entry else ""

    def with_entries(self, changes: Mapping[str, Entry]) -> Catalog:
        """A site's own word: a remedy, and a name; without a name the old one, else what the bits say."""
        entries = dict(self.entries)
        for code, change in changes.items():
            name = self.normalised(code)
            old = entries.get(name) or self._by_its_bits(name)
            entries[name] = replace(change, name=change.name or old.name, part=change.part or old.part)
        return replace(self, entries=entries, sources={**self.sources, "site": "the site's own file"})

    def _by_its_bits(self, name: str) -> Entry:
        return Entry(describe(name, self.layout) if self.layout else name)


def read_catalog(data: object) -> Catalog:
    """data: of a file that ships. Raises: WireError."""
    read = from_plain(Catalog, data, Bounds(1000))
    listed = ((section, code, entry) for section in read.sections.values() for code, entry in section.codes.items())
    entries = {
        read.normalised(code): replace(
            entry,
            remedy=read.classes.get(entry.grade, entry.remedy),
            part=entry.part or section.part,
            sources=entry.sources or section.sources,
        )
        for section, code, entry in listed
    }
    return replace(read, entries=entries, sections={})


def normalise_numbered(code: str, words: Sequence[str] = ()) -> str:
    """`Xid 79`, `xid79` -> `XID 79`; what none of the words numbers only in capitals."""
    text = " ".join(code.strip().upper().split())
    found = _numbered(text, words)
    if found is None:
        return text
    word, number, unit, status = found.groups()
    return f"{word} {int(number)}" + (f" {unit} 0X{int(status, 16):08X}" if unit else "")


def _numbered(text: str, words: Sequence[str]) -> re.Match[str] | None:
    """`XID 79`, `XID79`, `XID: 79`; of NVLink 5 also `XID 145 RLW_REMAP 0X00000040`."""
    return re.fullmatch(rf"({'|'.join(words)})[ :=]*(\d{{1,9}})(?: +(\S+) +(0X[0-9A-F]{{1,8}}))?", text) if words else None


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


# --- what people mean when they ask for a code: words in, a list of things to look up out. Pure, and forgiving

_SIGNALS = {signal_name(number): number for number in range(1, 32)}
_EXIT = re.compile(r"(?:EXIT(?:ED)?|STATUS|RC)[ _]*(?:CODE|STATUS)?[ :=]*(-?[0-9]{1,3})")
_SIGNAL = re.compile(r"SIGNAL[ :=]*([0-9]{1,2})")
_WORD = re.compile(r"[\w-]+")
_ACL = re.compile(r"[0-9]{6}")
# `XID 145 RLW_REMAP 0X00000040`
MOST_WORDS = 4


class CodeAsked(Value):
    """kind: of device; or exit, pattern or line. words: the code, status, id or line to look up."""

    kind: str
    words: str


# --- all device catalogues as one


class CodeBook(Value):
    """kind of device -> its catalogue. user_induced: codes that a job calls its program's doing. Made by
    `catalog_files.load_code_book`.
    """

    catalogs: Mapping[str, Catalog]
    user_induced: tuple[str, ...] = ()

    def meaning(self, kind: str, code: str, severity: Severity) -> CodeMeaning:
        """What `code` asks for. kind: of the device, as its probe names it. Unknown for a kind or code that is not known."""
        catalog = self.catalogs.get(kind)
        if catalog is None:
            return CodeMeaning(code, f"code of a device of unknown kind `{kind}`", FaultClass.UNKNOWN)
        found = catalog.meaning(code, severity)
        induced = found.user_induced or found.code in map(catalog.normalised, self.user_induced)
        return replace(found, user_induced=induced)

    def named(self, word: str) -> list[CodeAsked]:
        """What the word is: a code that is listed, or one of the vendors that write theirs so."""
        name = " ".join(word.upper().split())
        kinds = self.kinds_of(name) or [kind for kind, each in self.catalogs.items() if each.is_written(name)]
        return [CodeAsked(kind, name) for kind in kinds]

    def in_sentence(self, text: str) -> list[CodeAsked]:
        """The codes among the words of a sentence."""
        words = _WORD.findall(text)
        found: list[CodeAsked] = []
        for word, after in zip(words, [*words[1:], ""], strict=True):
            if not word.isdigit() and (word.isupper() or any(char.isdigit() for char in word + after)):
                found += self.named(f"{word} {after}") or self.named(word)
        return found

    def asked(self, words: Sequence[str], ids: Container[str]) -> list[CodeAsked]:
        """The codes that `words` consist of; where they are none, one line of output. ids: of patterns, in small letters."""
        found: list[CodeAsked] = []
        rest = list(words)
        while rest:
            runs = ((count, self._meant(" ".join(rest[:count]), ids)) for count in range(min(len(rest), MOST_WORDS), 0, -1))
            count, what = next(((count, what) for count, what in runs if what), (0, []))
            if not count:
                return [CodeAsked("line", " ".join(words))]
            found += what
            rest = rest[count:]
        return found

    def _meant(self, text: str, ids: Container[str]) -> Sequence[CodeAsked]:
        """What the text may be if it is one code."""
        word = " ".join(text.upper().split())
        if word.isascii() and word.isdigit() and len(word) <= 3:
            numbered = [(kind, each.with_word(word)) for kind, each in self.catalogs.items() if each.numbered]
            return [CodeAsked("exit", word), *(CodeAsked(kind, code) for kind, code in numbered)]
        if text.strip().lower() in ids:
            return [CodeAsked("pattern", text.strip().lower())]
        if found := self.named(word):
            return found
        if status := _EXIT.fullmatch(word):
            return [CodeAsked("exit", status.group(1))]
        if number := _SIGNAL.fullmatch(word):
            return [CodeAsked("exit", str(128 + int(number.group(1))))]
        if word in _SIGNALS or f"SIG{word}" in _SIGNALS:
            return [CodeAsked("exit", str(128 + _SIGNALS.get(word, _SIGNALS.get(f"SIG{word}", 0))))]
        return [CodeAsked("line", f"error code is {word}")] if _ACL.fullmatch(word) else []

    def kinds_of(self, code: str) -> list[str]:
        """The kinds whose catalogues list the code."""
        return [kind for kind, each in self.catalogs.items() if each.entry(code)]

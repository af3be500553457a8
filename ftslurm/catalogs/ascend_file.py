"""ascend.yaml: parsed data in, the checked catalogue out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from ftslurm.catalogs.catalog_models import Condition, Sources, Strict, Text, Version, checked, known_sources, wrong
from ftslurm.catalogs.codes import AscendCatalog, CodeEntry, CodeLayout, FrequencyRule, is_code, normalise
from ftslurm.model.devices import Remedy, Severity

FILE = "ascend.yaml"
_ORDER = (Severity.HINT, Severity.MINOR, Severity.MAJOR, Severity.CRITICAL)


def _code(text: str) -> str:
    if not is_code(normalise(text)):
        raise ValueError("is not a fault code")
    return normalise(text)


Code = Annotated[str, AfterValidator(_code)]
Seconds = Annotated[float, Field(gt=0)]


class Entry(Strict):
    name: Text
    handling: str | None = Field(default=None, alias="class")
    part: str = ""
    sev_a2: Severity = Severity.UNKNOWN
    sev_950: Severity = Severity.UNKNOWN
    source: Sources | None = None
    note: str = ""


class Frequency(Strict):
    becomes: str
    source: Sources
    times: Annotated[int, Field(ge=1)]
    window_s: Seconds
    codes: tuple[Code, ...]


class Layout(Strict):
    sides: Mapping[int, str]
    black_box: Mapping[int, str]
    nodes: Mapping[int, str]
    sensors: Mapping[int, str]
    events: Mapping[int, Mapping[int, str]]


class AscendFile(Strict):
    schema_version: Version
    sources: Mapping[str, Text] = {}
    section_sources: Mapping[str, Sources] = {}
    classes: Mapping[str, Remedy]
    by_severity: Mapping[Severity, Remedy]
    user_induced: tuple[Code, ...]
    frequency_rules: tuple[Frequency, ...] = ()
    layout: Layout
    codes: Mapping[Code, Entry]
    switch_codes: Mapping[Code, Entry] = {}
    node_codes: Mapping[Code, Entry] = {}
    bmc_codes: Mapping[Code, Entry] = {}
    public_codes: Mapping[Code, Entry] = {}
    dpu_codes: Mapping[Code, Entry] = {}
    conditions: Mapping[Text, Condition] = {}


# Section -> the part that its entries belong to where they name none.
_SECTIONS = {
    "codes": "",
    "switch_codes": "switch of the board",
    "node_codes": "host",
    "bmc_codes": "board",
    "public_codes": "other service",
    "dpu_codes": "network card",
}


def build_catalog(data: object) -> AscendCatalog:
    """Check `data`, the parsed catalogue file, and make the value of it. Raises: PolicyError naming the entry that is wrong."""
    file = checked(AscendFile, data, FILE)
    if missing := [severity.value for severity in _ORDER if severity not in file.by_severity]:
        raise wrong(FILE, "`by_severity`", f"lacks {', '.join(missing)}")
    rules = file.frequency_rules
    for number, rule in enumerate(rules, 1):
        _known_class(rule.becomes, file.classes, f"rule {number}:")
    known_sources(((f"rule {number}:", rule.source) for number, rule in enumerate(rules, 1)), file.sources, FILE)
    layout = file.layout
    return AscendCatalog(
        entries=dict(_entries(file)),
        classes=dict(file.classes),
        by_severity=dict(file.by_severity),
        user_induced=frozenset(file.user_induced),
        layout=CodeLayout(layout.sides, layout.black_box, layout.nodes, layout.sensors, layout.events),
        frequencies=tuple(FrequencyRule(rule.times, rule.window_s, frozenset(rule.codes)) for rule in rules),
        sources=dict(file.sources),
    )


def _entries(file: AscendFile) -> Iterable[tuple[str, CodeEntry]]:
    seen: set[str] = set()
    for section, part in _SECTIONS.items():
        usual = file.section_sources.get(section, ())
        for code, entry in getattr(file, section).items():
            where = f"`{section}`, `{code}`:"
            if code in seen:
                raise wrong(FILE, where, "is in another section, too: keep one")
            seen.add(code)
            sources = entry.source or usual
            known_sources([(where, sources)], file.sources, FILE)
            if entry.handling is not None:
                _known_class(entry.handling, file.classes, where)
            worst = max((entry.sev_a2, entry.sev_950), key=lambda severity: (Severity.UNKNOWN, *_ORDER).index(severity))
            yield code, CodeEntry(entry.name, entry.handling or "", entry.part or part, worst, sources, entry.note)
    for name, condition in file.conditions.items():
        sources = condition.source or file.section_sources.get("conditions", ())
        known_sources([(f"`conditions`, `{name}`:", sources)], file.sources, FILE)
        yield normalise(name), CodeEntry(condition.name, sources=sources, note=condition.note, remedy=condition.remedy)


def _known_class(word: str, classes: Mapping[str, Remedy], where: str) -> None:
    if word not in classes:
        raise wrong(FILE, where, f"`class` is {word!r}, it should be one of {', '.join(classes)}")

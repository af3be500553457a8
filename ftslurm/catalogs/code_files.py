"""The catalogues of codes (ascend.yaml, nvidia.yaml, amd.yaml): parsed data in, the checked catalogue out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ftslurm.catalogs.catalog_models import Condition, Numbered, Sources, Strict, Text, Version, checked, known_sources, wrong
from ftslurm.catalogs.codes import Catalog, CodeLayout, Entry, FrequencyRule, is_code, normalise, normalise_numbered
from ftslurm.model.devices import ORDER, Remedy, Severity

# --- nvidia.yaml and amd.yaml: parsed data in, the checked catalogues out

NVIDIA, AMD = "nvidia.yaml", "amd.yaml"
Number = Annotated[int, Field(ge=0)]


class Bucket(Strict):
    remedy: Remedy
    note: str = ""


class Action(Strict):
    word: Text
    name: Text
    remedy: Remedy
    note: str = ""


class Xid(Strict):
    name: Text
    mnemonic: Text
    part: Literal["gpu", "memory", "link", "app", "driver", "video", "power", "confidential", "info", "unused"]
    remedy: Remedy
    now: str = ""
    then: str = ""
    gpud: tuple[Literal["CheckUserAppAndGPU", "RebootSystem", "HardwareInspection", "IgnoreNoActionRequired"], ...] = ()
    program: bool = False
    note: str = ""


class SubCode(Strict):
    xid: Number
    unit: Text
    status: Annotated[str, Field(pattern=r"^0x[0-9a-f]{8}$")]
    severity: Text
    side: Text
    now: Text
    then: Text


class Sxid(Strict):
    name: Text
    fatal: Literal["yes", "maybe", "no"]
    remedy: Remedy
    repeat: Remedy | None = None


class NvidiaFile(Strict):
    schema_version: Version
    sources: Mapping[str, Text]
    section_sources: Mapping[str, Sources]
    numbered: Annotated[Numbered, Field(min_length=1)]
    buckets: Mapping[Text, Bucket]
    recovery_actions: Mapping[Number, Action]
    conditions: Mapping[Text, Condition]
    xids: Mapping[Number, Xid]
    nvlink5: tuple[SubCode, ...]
    sxids: Mapping[Number, Sxid]


class AmdFile(Strict):
    schema_version: Version
    sources: Mapping[str, Text]
    codes: Mapping[Text, Condition]


def build_nvidia(data: object) -> Catalog:
    """Raises: PolicyError naming the entry that is wrong."""
    file = checked(NvidiaFile, data, NVIDIA)
    for section in ("xids", "nvlink5", "sxids", "recovery_actions", "conditions"):
        if section not in file.section_sources:
            raise wrong(NVIDIA, "`section_sources`", f"lacks the section `{section}`")
    entries = dict(_nvidia_entries(file))
    known_sources(((f"`{code}`:", entry.sources) for code, entry in entries.items()), file.sources, NVIDIA)
    for code, entry in entries.items():
        if entry.grade and entry.grade not in file.buckets:
            raise wrong(NVIDIA, f"`{code}`:", f"the bucket `{entry.grade}` is not in the table `buckets`")
    return Catalog("NVIDIA", entries, dict(file.sources), numbered=file.numbered)


def _nvidia_entries(file: NvidiaFile) -> Iterable[tuple[str, Entry]]:
    usual = file.section_sources
    for number, xid in file.xids.items():
        note = xid.note or _advice(xid.gpud) or (file.buckets[xid.now].note if xid.now in file.buckets else "")
        yield f"XID {number}", Entry(xid.name, xid.remedy, xid.part, xid.now, xid.program, note, usual["xids"])
    yield from _sub_codes(file).items()
    for number, sxid in file.sxids.items():
        repeat = "when it comes back, another node is needed" if sxid.repeat is Remedy.REPLACE else ""
        yield f"SXID {number}", Entry(sxid.name, sxid.remedy, "NVSwitch", note=repeat, sources=usual["sxids"])
    for number, action in file.recovery_actions.items():
        sources = usual["recovery_actions"]
        yield f"RECOVERY {number}", Entry(action.name, action.remedy, "gpu", note=action.note, sources=sources)
    for word, state in file.conditions.items():
        sources = state.source or usual["conditions"]
        yield (
            normalise_numbered(word),
            Entry(state.name, state.remedy, "gpu", program=state.program, note=state.note, sources=sources),
        )


# What gpud's advice says to people.
_ADVICE = {
    "CheckUserAppAndGPU": "look at the program first, then at the GPU",
    "RebootSystem": "a reboot of the node may help",
    "HardwareInspection": "if it comes back, have the hardware inspected",
}


def _advice(words: Sequence[str]) -> str:
    if "IgnoreNoActionRequired" in words:
        return ""
    return "; ".join(_ADVICE[word] for word in words)


def _sub_codes(file: NvidiaFile) -> dict[str, Entry]:
    """A unit and status may stand for several causes that a log line does not tell apart: the hardest remedy counts."""
    found: dict[str, Entry] = {}
    for number, sub in enumerate(file.nvlink5, 1):
        if sub.now not in file.buckets:
            raise wrong(NVIDIA, f"`nvlink5`, entry {number}:", f"the bucket `{sub.now}` is not in the table `buckets`")
        code = normalise_numbered(f"XID {sub.xid} {sub.unit} {sub.status}", file.numbered)
        remedy = file.buckets[sub.now].remedy
        if code not in found or ORDER.index(remedy) > ORDER.index(found[code].remedy):
            how = f"{sub.severity.replace('_', ' ')}, on the side of {_side(sub.side)}"
            name = f"NVLink 5, unit {sub.unit}, status {sub.status}: {how}"
            found[code] = Entry(name, remedy, "link", sub.now, sources=file.section_sources["nvlink5"])
    return found


def _side(word: str) -> str:
    names = {"hw": "hardware", "sw": "software", "fw": "firmware", "na": "neither"}
    return " or ".join(names.get(part, part) for part in word.split("/"))


def build_amd(data: object) -> Catalog:
    """Raises: PolicyError naming the entry that is wrong."""
    file = checked(AmdFile, data, AMD)
    entries = {
        normalise_numbered(code): Entry(each.name, each.remedy, "", "", each.program, each.note, each.source or ("ftslurm",))
        for code, each in file.codes.items()
    }
    known_sources(((f"`{code}`:", entry.sources) for code, entry in entries.items()), file.sources, AMD)
    return Catalog("AMD", entries, dict(file.sources))


FILE = "ascend.yaml"
_ORDER = (Severity.HINT, Severity.MINOR, Severity.MAJOR, Severity.CRITICAL)


def _code(text: str) -> str:
    if not is_code(normalise(text)):
        raise ValueError("is not a fault code")
    return normalise(text)


Code = Annotated[str, AfterValidator(_code)]
Seconds = Annotated[float, Field(gt=0)]


class EventEntry(Strict):
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


class _Layout(Strict):
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
    layout: _Layout
    codes: Mapping[Code, EventEntry]
    switch_codes: Mapping[Code, EventEntry] = {}
    node_codes: Mapping[Code, EventEntry] = {}
    bmc_codes: Mapping[Code, EventEntry] = {}
    public_codes: Mapping[Code, EventEntry] = {}
    dpu_codes: Mapping[Code, EventEntry] = {}
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


def build_catalog(data: object) -> Catalog:
    """Check `data`, the parsed catalogue file, and make the value of it. Raises: PolicyError naming the entry that is wrong."""
    file = checked(AscendFile, data, FILE)
    if missing := [severity.value for severity in _ORDER if severity not in file.by_severity]:
        raise wrong(FILE, "`by_severity`", f"lacks {', '.join(missing)}")
    rules = file.frequency_rules
    for number, rule in enumerate(rules, 1):
        _known_class(rule.becomes, file.classes, f"rule {number}:")
    known_sources(((f"rule {number}:", rule.source) for number, rule in enumerate(rules, 1)), file.sources, FILE)
    entries = dict(_entries(file))
    if unknown := [code for code in file.user_induced if code not in entries]:
        raise wrong(FILE, "`user_induced`", f"names {unknown[0]}, which no section lists")
    layout = file.layout
    return Catalog(
        "Ascend",
        entries,
        dict(file.sources),
        "the name is read from its bits; npu-smi tells its severity, by which ftrun goes for codes it does not know",
        CodeLayout(layout.sides, layout.black_box, layout.nodes, layout.sensors, layout.events),
        dict(file.by_severity),
        dict(file.classes),
        tuple(FrequencyRule(rule.times, rule.window_s, frozenset(rule.codes)) for rule in rules),
    )


def _entries(file: AscendFile) -> Iterable[tuple[str, Entry]]:
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
            remedy = Remedy.UNKNOWN if entry.handling is None else file.classes[entry.handling]
            induced = code in file.user_induced
            yield code, Entry(entry.name, remedy, entry.part or part, entry.handling or "", induced, entry.note, sources, worst)
    for name, condition in file.conditions.items():
        sources = condition.source or file.section_sources.get("conditions", ())
        known_sources([(f"`conditions`, `{name}`:", sources)], file.sources, FILE)
        yield normalise(name), Entry(condition.name, condition.remedy, note=condition.note, sources=sources)


def _known_class(word: str, classes: Mapping[str, Remedy], where: str) -> None:
    if word not in classes:
        raise wrong(FILE, where, f"`class` is {word!r}, it should be one of {', '.join(classes)}")

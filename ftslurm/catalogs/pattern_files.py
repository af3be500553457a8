"""The catalogues of words, of devices' errors and of statuses, and a site's own: parsed data in, checked values out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import re2
from pydantic import BeforeValidator, Field, StrictInt

from ftslurm.catalogs import catalog_models as form
from ftslurm.catalogs.catalog_models import ExitEntry, Numbered, PatternEntry, Status, Strict, Text, Version, checked, wrong
from ftslurm.catalogs.codes import Catalog, CodeBook, Entry, is_code
from ftslurm.catalogs.kinds import Kind, KindOfWords, Kinds
from ftslurm.catalogs.patterns import ExitMeaning, ExitRule, Pattern, PatternBook
from ftslurm.catalogs.scanner import is_wide, mistake
from ftslurm.catalogs.vocabulary import ErrorWord, Vocabulary
from ftslurm.model.devices import Remedy
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.values import fields, replace
from ftslurm.model.verdict import ErrorClass, Retriable

# --- A site's or a plugin's own catalogue, laid over those that ship: codes graded, patterns and statuses added and replaced

SITE = ("site",)


class CodeChange(Strict):
    """Of one code: a remedy, or a class where its vendor has classes."""

    remedy: Remedy | None = None
    handling: str = Field(default="", alias="class")
    name: str = ""
    program: bool = False
    note: str = ""


class SiteFile(Strict):
    """One file of the setting `catalogs`. devices: kind of device -> codes. numbered: kind -> words before the codes' numbers."""

    schema_version: Version = 1
    devices: Mapping[Text, Mapping[StrictInt | Text, CodeChange]] = {}
    numbered: Mapping[Text, Numbered] = {}
    patterns: tuple[PatternEntry, ...] = ()
    remove: tuple[Text, ...] = ()
    exit_codes: Mapping[Status, ExitEntry] = {}


def read_site(data: object, place: str, kinds: Iterable[str] = ()) -> SiteFile:
    """data: the parsed file. place: its path. kinds: those that may stand beside `devices`, too, as they once had to.

    Raises: PolicyError naming file and entry.
    """
    if isinstance(data, dict) and isinstance(below := data.get("devices", {}), dict) and (beside := data.keys() & set(kinds)):
        rest = {name: value for name, value in data.items() if name not in beside}
        data = {**rest, "devices": {**below, **{kind: data[kind] for kind in sorted(beside)}}}
    file = checked(SiteFile, {} if data is None else data, place)
    check_patterns(file.patterns, place)
    return file


def codes_laid_over(book: CodeBook, site: SiteFile, place: str) -> CodeBook:
    """Raises: PolicyError for a code or a class that does not exist."""
    found = dict(book.catalogs)
    for kind in (*site.devices, *site.numbered):
        catalog = found.get(kind) or Catalog(kind, {})
        catalog = replace(catalog, numbered=site.numbered.get(kind, catalog.numbered))
        changes = site.devices.get(kind, {}).items()
        found[kind] = catalog.with_entries({str(code): _entry(kind, code, each, catalog, place) for code, each in changes})
    return replace(book, catalogs=found)


def _entry(kind: str, code: int | str, change: CodeChange, catalog: Catalog, place: str) -> Entry:
    """YAML reads the number of an Xid as a number, and digits of other codes as another one than is meant."""
    if catalog.layout is not None and isinstance(code, int):
        raise wrong(place, f"`{kind}`:", f"`{code}` is a number to YAML: put it in quotes")
    if catalog.layout is not None and not is_code(catalog.normalised(str(code))):
        raise wrong(place, f"`{kind}`:", f"`{code}` is not a fault code")
    where, remedy = f"`{kind}`, `{code}`:", change.remedy
    if change.handling or (catalog.classes and remedy is None):
        remedy = catalog.classes.get(change.handling)
        if remedy is None:
            known = f"it should be one of {', '.join(catalog.classes)}" if catalog.classes else "it has none: write a `remedy`"
            raise wrong(place, where, f"`class` is {change.handling!r}, {known}")
    if remedy is None:
        raise wrong(place, where, "`remedy` is missing")
    old = catalog.entry(str(code))
    program = change.program or (bool(catalog.classes) and old is not None and old.program)
    return Entry(change.name, remedy, "", change.handling, program, change.note, SITE)


def patterns_laid_over(book: PatternBook, site: SiteFile, place: str) -> PatternBook:
    """Raises: PolicyError for a pattern to remove that is not there."""
    known = {pattern.id for pattern in book.patterns}
    for word in site.remove:
        if word not in known:
            raise wrong(place, "`remove`:", f"there is no pattern `{word}`{suggestion(word, known)}")
    return laid_over(book, site.patterns, site.remove, site.exit_codes)


def build_book(patterns: object, exits: object, devices: object = None, kinds: object = None) -> PatternBook:
    """The shipped files' data as a book. devices: device-errors.yaml's. kinds: words.yaml's.

    Raises: PolicyError naming file and entry.
    """
    words = form.checked(form.PatternFile, patterns, "log-patterns.yaml")
    statuses = form.checked(form.ExitFile, exits, "exit-codes.yaml")
    form.known_sources(((f"`{e.id}`", e.sources) for e in words.patterns), words.sources, "log-patterns.yaml")
    form.known_sources(((f"`{s}`", e.sources) for s, e in statuses.codes.items()), statuses.sources, "exit-codes.yaml")
    form.known_sources((("`rules`:", e.sources) for e in statuses.rules), statuses.sources, "exit-codes.yaml")
    rules = tuple(ExitRule(rule.low, rule.high, exit_meaning(rule.low, rule, listed=False)) for rule in statuses.rules)
    for status in range(256):
        if status not in statuses.codes and not any(rule.low <= status <= rule.high for rule in rules):
            raise form.wrong("exit-codes.yaml", "`rules`:", f"no rule holds {status}")
    mine = tuple(pattern(entry.id, entry) for entry in check_patterns(words.patterns, "log-patterns.yaml"))
    vocabulary, meanings, more = build_vocabulary(devices, frozenset(each.id for each in mine))
    return PatternBook(
        mine,
        {status: exit_meaning(status, entry) for status, entry in statuses.codes.items()},
        rules,
        {"job": "the job's own keywords", "site": "the site's own file", **statuses.sources, **more, **words.sources},
        vocabulary,
        {id: pattern(id, entry) for id, entry in meanings.items()},
        build_kinds(kinds) if kinds is not None else None,
    )


def check_patterns(entries: Sequence[form.PatternEntry], place: str) -> Sequence[form.PatternEntry]:
    """The same entries. Raises: PolicyError for an id that stands twice, or an expression that does not do what it should."""
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise form.wrong(place, f"`{entry.id}`", "is in `patterns` twice: keep one")
        seen.add(entry.id)
        if what := _mistake(entry):
            raise form.wrong(place, f"`{entry.id}`:", what)
    return entries


def _mistake(entry: form.PatternEntry) -> str:
    """What is wrong with its expressions, or nothing."""
    for name, expression in (("pattern", entry.pattern), ("needs", entry.needs), ("kernel", entry.kernel)):
        if expression and (what := mistake(expression, entry.sample)):
            return f"its `{name}` {what}"
    if entry.codes and not re2.compile(entry.pattern.encode()).groups:
        return "has `codes`, so its `pattern` has to hold the code in parentheses"
    if is_wide(entry.needs):
        return "its `needs` may span a line (`.*`); it should be plain words"
    if not entry.needs and is_wide(entry.pattern):
        return "its `pattern` may span a line (`.*`), so it has to say in `needs` which plain words every such line holds"
    return ""


def pattern(id: str, entry: form.MeaningEntry) -> Pattern:
    return Pattern(**{**_judged(entry, Pattern), "id": id})


def exit_meaning(status: int, entry: form.ExitEntry, listed: bool = True) -> ExitMeaning:
    return ExitMeaning(status=status, listed=listed, **_judged(entry, ExitMeaning))


def _judged(entry: form.Judged, kind: type) -> dict[str, Any]:
    """What an entry tells of the fields of `kind`; they have its names."""
    told = {field.name: getattr(entry, field.name) for field in fields(kind) if field.name in type(entry).model_fields}
    return {**told, "remedy": entry.remedy or form.usual_remedy(entry)}


def laid_over(
    book: PatternBook, mine: Sequence[form.PatternEntry], remove: Sequence[str], exits: Mapping[int, form.ExitEntry]
) -> PatternBook:
    """A site's own entries before the others, which they replace by id; `remove` names those that are to go."""
    gone = {*remove, *(entry.id for entry in mine)}
    return PatternBook(
        [*(pattern(entry.id, entry) for entry in mine), *(each for each in book.patterns if each.id not in gone)],
        {**book.exits, **{status: exit_meaning(status, entry) for status, entry in exits.items()}},
        book.rules,
        book.sources,
        book.vocabulary,
        book.meanings,
        book.kinds,
    )


# --- what an error complains about, by its words: words.yaml


class KindEntry(form.Strict):
    error_class: ErrorClass = Field(alias="class")
    retriable: Annotated[Retriable, BeforeValidator(form.yes_no)]
    words: Annotated[tuple[form.Text, ...], Field(min_length=1)]
    id: str = ""
    note: str = ""


class KindFile(form.Strict):
    schema_version: form.Version
    kinds: tuple[KindEntry, ...]


def build_kinds(data: object) -> Kinds:
    """Raises: PolicyError."""
    file = form.checked(KindFile, data, "words.yaml")
    return Kinds(KindOfWords(Kind(row.error_class, row.retriable), "|".join(row.words), row.id) for row in file.kinds)


# --- errors of devices, by their numbers and names: device-errors.yaml

DEVICE_ERRORS = "device-errors.yaml"


class WordEntry(form.Strict):
    number: int | None = None
    names: Annotated[tuple[form.Text, ...], Field(min_length=1)]
    texts: tuple[form.Text, ...] = ()
    means: form.Text


class DeviceErrors(form.Strict):
    schema_version: form.Version
    sources: Mapping[str, form.Text]
    meanings: Mapping[form.Text, form.MeaningEntry]
    errors: Mapping[form.Text, tuple[WordEntry, ...]]


def build_vocabulary(
    data: object, patterns: frozenset[str]
) -> tuple[Vocabulary, Mapping[str, form.MeaningEntry], Mapping[str, str]]:
    """The words, what those mean that are not in `patterns` (ids), and the sources. data: None for none. Raises: PolicyError."""
    if data is None:
        return Vocabulary(()), {}, {}
    file = form.checked(DeviceErrors, data, DEVICE_ERRORS)
    form.known_sources(((f"`{word}`", entry.sources) for word, entry in file.meanings.items()), file.sources, DEVICE_ERRORS)
    words = []
    seen: set[str] = set()
    for family, entries in file.errors.items():
        for entry in entries:
            if entry.means not in patterns and entry.means not in file.meanings:
                raise form.wrong(DEVICE_ERRORS, f"`{entry.names[0]}`:", f"`means` is {entry.means!r}, which nothing explains")
            if twice := seen.intersection(entry.names):
                raise form.wrong(DEVICE_ERRORS, f"`{min(twice)}`", "is in `errors` twice: keep one")
            seen.update(entry.names)
            words.append(ErrorWord(family, entry.number, entry.names, entry.texts, entry.means))
    return Vocabulary(words), file.meanings, file.sources

"""The catalogues of words, of devices' errors and of statuses, and a site's own: parsed data in, checked values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import re2
from pydantic import Field, StrictInt

from ftslurm.catalogs import catalog_models as form
from ftslurm.catalogs.catalog_models import ExitEntry, Numbered, PatternEntry, Status, Strict, Text, Version, checked, wrong
from ftslurm.catalogs.codes import Catalog, CodeBook, Entry, is_code
from ftslurm.catalogs.kinds import Kind, Kinds
from ftslurm.catalogs.patterns import ExitMeaning, ExitRule, Pattern, PatternBook
from ftslurm.catalogs.scanner import is_wide, mistake
from ftslurm.catalogs.vocabulary import ErrorWord, Family, Frames, Numbers, Vocabulary
from ftslurm.model.devices import Remedy
from ftslurm.model.plain import Bounds, from_plain
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.values import Value, fields, replace

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


def read_site(data: object, place: str) -> SiteFile:
    """data: the parsed file. place: its path. Raises: PolicyError naming file and entry."""
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


# --- what ships. Tests check it, so that a job that fails need not


class Shipped(SiteFile):
    """log-patterns.yaml, exit-codes.yaml: as a site's, with the table of sources, and rules for statuses that are not listed."""

    sources: Mapping[str, Text]
    rules: tuple[form.ExitRuleEntry, ...] = ()


class DeviceErrors(Value):
    """device-errors.yaml. errors: by family. Each means one of `meanings`, or a pattern of log-patterns.yaml."""

    sources: Mapping[str, str]
    meanings: tuple[Pattern, ...]
    errors: Mapping[str, tuple[ErrorWord, ...]]
    families: Mapping[str, Family]
    numbers: tuple[Numbers, ...]


_BOUNDS = Bounds(1000, signed=True)


def build_book(patterns: object, exits: object, errors: object, kinds: Mapping[str, object]) -> PatternBook:
    """The data of log-patterns.yaml, exit-codes.yaml, device-errors.yaml and words.yaml as a book."""
    words, statuses = Shipped.model_validate(patterns), Shipped.model_validate(exits)
    devices = from_plain(DeviceErrors, errors, _BOUNDS)
    book = PatternBook(
        (),
        {},
        tuple(ExitRule(rule.low, rule.high, exit_meaning(rule.low, rule, listed=False)) for rule in statuses.rules),
        {"job": "the job's own keywords", "site": "the site's own file", **statuses.sources, **devices.sources, **words.sources},
        Vocabulary(
            (replace(word, family=family) for family, words in devices.errors.items() for word in words),
            Frames(devices.families, devices.numbers),
        ),
        {each.id: each for each in devices.meanings},
        Kinds(from_plain(tuple[Kind, ...], kinds["kinds"], _BOUNDS)),
    )
    return laid_over(book, words.patterns, (), statuses.exit_codes)


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


def pattern(entry: form.PatternEntry) -> Pattern:
    return Pattern(**_judged(entry, Pattern))


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
        [*map(pattern, mine), *(each for each in book.patterns if each.id not in gone)],
        {**book.exits, **{status: exit_meaning(status, entry) for status, entry in exits.items()}},
        book.rules,
        book.sources,
        book.vocabulary,
        book.meanings,
        book.kinds,
    )

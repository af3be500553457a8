"""The catalogue of device errors, device-errors.yaml: parsed data in, checked values out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from ftslurm.catalogs.catalog_models import Sources, Strict, Text, Version, checked, known_sources, wrong, yes_no
from ftslurm.catalogs.patterns import Pattern
from ftslurm.catalogs.vocabulary import Vocabulary, Word
from ftslurm.model.devices import Remedy
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role

PLACE = "device-errors.yaml"


class WordEntry(Strict):
    number: int | None = None
    names: Annotated[tuple[Text, ...], Field(min_length=1)]
    texts: tuple[Text, ...] = ()
    means: Text


class MeaningEntry(Strict):
    """As an entry of log-patterns.yaml, but for what tells it."""

    name: Text
    error_class: ErrorClass = Field(alias="class")
    retriable: Annotated[Retriable, BeforeValidator(yes_no)]
    isolate: Annotated[Blame, BeforeValidator(yes_no)]
    role: Role = Role.ROOT
    budget: Annotated[int, Field(ge=0, le=100)] = 0
    remedy: Remedy
    source: Sources
    note: str = ""


class DeviceErrors(Strict):
    schema_version: Version
    sources: Mapping[str, Text]
    meanings: Mapping[Text, MeaningEntry]
    errors: Mapping[Text, tuple[WordEntry, ...]]


def build_vocabulary(data: object, patterns: frozenset[str]) -> tuple[Vocabulary, dict[str, Pattern], dict[str, str]]:
    """The words, what those mean that are not in `patterns` (ids), and the sources. data: None for none. Raises: PolicyError."""
    if data is None:
        return Vocabulary(()), {}, {}
    file = checked(DeviceErrors, data, PLACE)
    known_sources(((f"`{word}`", entry.source) for word, entry in file.meanings.items()), file.sources, PLACE)
    words = []
    seen: set[str] = set()
    for family, entries in file.errors.items():
        for entry in entries:
            if entry.means not in patterns and entry.means not in file.meanings:
                raise wrong(PLACE, f"`{entry.names[0]}`:", f"`means` is {entry.means!r}, which nothing explains")
            if twice := seen.intersection(entry.names):
                raise wrong(PLACE, f"`{min(twice)}`", "is in `errors` twice: keep one")
            seen.update(entry.names)
            words.append(Word(family, entry.number, entry.names, entry.texts, entry.means))
    return Vocabulary(words), {id: _meaning(id, entry) for id, entry in file.meanings.items()}, dict(file.sources)


def _meaning(id: str, entry: MeaningEntry) -> Pattern:
    return Pattern(
        id=id,
        name=entry.name,
        error_class=entry.error_class,
        retriable=entry.retriable,
        blame=entry.isolate,
        role=entry.role,
        where="log",
        remedy=entry.remedy,
        confirm=entry.budget,
        pattern="",
        note=entry.note,
        sources=entry.source,
    )

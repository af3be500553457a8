"""The catalogue of device errors, device-errors.yaml: parsed data in, checked values out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from ftslurm.catalogs.catalog_models import MeaningEntry, Strict, Text, Version, checked, known_sources, wrong
from ftslurm.catalogs.vocabulary import Vocabulary, Word

PLACE = "device-errors.yaml"


class WordEntry(Strict):
    number: int | None = None
    names: Annotated[tuple[Text, ...], Field(min_length=1)]
    texts: tuple[Text, ...] = ()
    means: Text


class DeviceErrors(Strict):
    schema_version: Version
    sources: Mapping[str, Text]
    meanings: Mapping[Text, MeaningEntry]
    errors: Mapping[Text, tuple[WordEntry, ...]]


def build_vocabulary(data: object, patterns: frozenset[str]) -> tuple[Vocabulary, Mapping[str, MeaningEntry], Mapping[str, str]]:
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
    return Vocabulary(words), file.meanings, file.sources

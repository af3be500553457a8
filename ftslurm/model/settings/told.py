"""Settings as a ledger tells them: those that are not the default, with which a later simulation of the job begins, and those
that led to a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, cast

from ftslurm.errors import PolicyError
from ftslurm.model.settings.kinds import in_words
from ftslurm.model.settings.tree import LEAVES, Resolved, Settings, parse_leaf, with_values

# Who is notified is nobody's business later, and may hold a secret. It decides nothing.
_PRIVATE = "notify."
# Is always told, so that a ledger that tells no policy differs from the default policy.
_ALWAYS = "max_restarts"


def told(settings: Settings) -> dict[str, str]:
    """Name -> value, as a policy would have it. A value that cannot be written in one is left out."""
    found = {}
    for name, leaf in LEAVES.items():
        value = leaf.of(settings)
        if name == _ALWAYS or (value != leaf.default and not name.startswith(_PRIVATE)):
            text = next((text for text in (in_words(leaf, value), f"{value!r}s", str(value)) if _says(name, text, value)), None)
            if text is not None:
                found[name] = text
    return found


def places_told(resolved: Resolved) -> dict[str, str]:
    """Name -> where it was set (`policy.yaml, line 4`, `--ft-max-restarts`), of what is told and was set at all."""
    return {name: resolved.places[name] for name in told(resolved.settings) if resolved.places[name] != "default"}


def _says(name: str, text: str, value: Any) -> bool:
    try:
        return bool(parse_leaf(name, text, "") == value)
    except PolicyError:
        return False


def settings_told(values: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """The settings, and the names of those that this version does not understand. What one setting implies is told as well."""
    found, unknown = {}, []
    for name, text in values.items():
        try:
            found[name] = parse_leaf(name, text, "the ledger")
        except (KeyError, PolicyError):
            unknown.append(name)
    return with_values(Settings(), found), tuple(unknown)


# --- notes which settings a rule looks at, so that a decision can name what led to it


class _Noting:
    """Stands for the settings, or for those of a feature: gives what they give."""

    def __init__(self, settings: Any, read: dict[str, Any], path: tuple[str, ...] = ()) -> None:
        self._settings, self._read, self._path = settings, read, path

    def __getattr__(self, name: str) -> Any:
        value, path = getattr(self._settings, name), (*self._path, name)
        if leaf := _LEAF_AT.get(path):
            self._read[leaf.name] = value
        elif not path[1:] and is_dataclass(value):
            return _Noting(value, self._read, path)
        return value


_LEAF_AT = {leaf.path: leaf for leaf in LEAVES.values()}


def noting(settings: Settings) -> Settings:
    """For one rule; `read_of` tells afterwards what it has looked at."""
    return cast(Settings, _Noting(settings, {}))


def read_of(noted: Settings) -> tuple[tuple[str, str], ...]:
    """(name, value in words) of the settings that were looked at, in that order. noted: made by `noting`."""
    return tuple((name, in_words(LEAVES[name], value)) for name, value in cast(_Noting, noted)._read.items())

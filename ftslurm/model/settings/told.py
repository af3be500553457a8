"""Settings as a ledger tells them: those that are not the default, with which a later simulation of the job begins, and those
that led to a decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ftslurm.errors import PolicyError
from ftslurm.model.settings.tree import LEAVES, Resolved, Settings, in_words, parse_leaf

# Who is notified is nobody's business later, and may hold a secret. It decides nothing.
_PRIVATE = "notify."
# Is always told, so that a ledger that tells no policy differs from the default policy.
_ALWAYS = "max_restarts"


def told(settings: Settings) -> dict[str, str]:
    """Name -> value, as a policy would have it. A value that cannot be written in one is left out."""
    default = Settings()
    found = {}
    for name, leaf in LEAVES.items():
        value = getattr(settings, leaf.name)
        if name == _ALWAYS or (value != getattr(default, leaf.name) and not name.startswith(_PRIVATE)):
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
            found[LEAVES[name].name] = parse_leaf(name, text, "the ledger")
        except (KeyError, PolicyError):
            unknown.append(name)
    return Settings(**found), tuple(unknown)


# --- notes which settings a rule looks at, so that a decision can name what led to it

_NAMES = {leaf.name: name for name, leaf in LEAVES.items()}


class _Noting:
    """Stands for the settings: gives what they give."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._read: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._settings, name)
        if name in _NAMES:
            self._read[name] = value
        return value


def noting(settings: Settings) -> Settings:
    """For one rule; `read_of` tells afterwards what it has looked at."""
    return cast(Settings, _Noting(settings))


def read_of(noted: Settings) -> tuple[tuple[str, str], ...]:
    """(name, value in words) of the settings that were looked at, in that order. noted: made by `noting`."""
    read = cast(_Noting, noted)._read
    return tuple((_NAMES[name], in_words(LEAVES[_NAMES[name]], value)) for name, value in read.items())

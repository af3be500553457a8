"""Notes which settings a rule looks at, so that a decision can name what led to it."""

from __future__ import annotations

from typing import Any, cast

from ftslurm.model.settings.tree import LEAVES, Settings, in_words

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

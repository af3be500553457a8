"""Limits of the site: values that no user's layer overrides. They are compared with the settings that are in force in the end,
so that a setting that another one implies obeys them too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.settings.kinds import Layer, duration, lead, suggestion, value_in_words
from ftslurm.model.settings.tree import LEAVES, Resolved, check_name, from_tree, parse_leaf
from ftslurm.model.values import Value, replace

AT_MOST, NEVER, ALWAYS = "at_most", "never", "always"
WORDS = (AT_MOST, NEVER, ALWAYS)


class Limit(Value):
    """word: of WORDS. name: of the setting. raw: as it stands there. values: parsed, several for `never`. place: file, line."""

    word: str
    name: str
    raw: Any
    values: tuple[Any, ...]
    place: str

    def allows(self, value: Any) -> bool:
        if self.word == AT_MOST:
            return _size(self.name, value) <= _size(self.name, self.values[0])
        return (value in self.values) == (self.word == ALWAYS)

    @property
    def words(self) -> str:
        """`at most 20`, `never async or independent`, `always true`."""
        return f"{self.word.replace('_', ' ')} {' or '.join(value_in_words(LEAVES[self.name], value) for value in self.values)}"


def _size(name: str, value: Any) -> float:
    """For comparisons: without an end is more than any number. Values as in kinds.py."""
    kind = LEAVES[name].kind
    endless = (value < 0 and kind is not lead) or (value == 0 and kind is duration)
    return math.inf if endless else float(value)


def limits_of(tree: Any, place_of: Callable[[str], str]) -> tuple[Limit, ...]:
    """What stands below `limits:` in a site's policy. place_of: dotted name there -> file and line. Raises: PolicyError."""
    if not isinstance(tree, Mapping) or not all(isinstance(below, Mapping) for below in tree.values()):
        raise PolicyError(
            f"{place_of('')}: limits: not a mapping", hint=f"below it stand {', '.join(WORDS)}, and below those settings"
        )
    layer = from_tree(tree, place_of)
    return tuple(_limit(*name.partition(".")[::2], raw, layer.places[name]) for name, raw in layer.values.items())


def _limit(word: str, name: str, raw: Any, place: str) -> Limit:
    if word not in WORDS:
        raise PolicyError(f"{place}: limits: `{word}` is no limit{suggestion(word, WORDS)}", hint=f"there are {', '.join(WORDS)}")
    check_name(name, place)
    values = tuple(parse_leaf(name, each, place) for each in (raw if word == NEVER and isinstance(raw, list) else [raw]))
    if word == AT_MOST and (isinstance(values[0], bool) or not isinstance(values[0], int | float)):
        raise PolicyError(f"{place}: {name} is no number", hint=f"use {NEVER} or {ALWAYS}")
    if word == NEVER and any(isinstance(value, tuple) for value in values):
        raise PolicyError(f"{place}: {name} is a list, of which `{NEVER}` knows nothing", hint=f"use {ALWAYS}")
    return Limit(word, name, raw, values, place)


def base_values(limits: Iterable[Limit]) -> Layer:
    """What is in force where nobody sets anything and the default would break a limit: it lies below all other layers."""
    values, places = {}, {}
    for limit in limits:
        default = LEAVES[limit.name].default
        if limit.word != NEVER and not limit.allows(default):
            values[limit.name] = limit.raw
        elif isinstance(default, bool) and not limit.allows(default):
            values[limit.name] = not default
        else:
            continue
        places[limit.name] = limit.place
    return Layer(values, places)


def check_limits(resolved: Resolved, limits: Iterable[Limit]) -> Resolved:
    """The same, with the words of the limits. Raises: PolicyError for the first setting that breaks a limit."""
    told: dict[str, list[str]] = {}
    for limit in limits:
        value, place = LEAVES[limit.name].of(resolved.settings), resolved.places[limit.name]
        if not limit.allows(value):
            written = value_in_words(LEAVES[limit.name], value)
            raise PolicyError(
                f"{place}: {limit.name} {written}: this site allows {limit.words} ({limit.place})",
                hint=f"leave {limit.name} out, or set it to what is allowed",
            )
        told.setdefault(limit.name, []).append(f"{limit.words} ({limit.place})")
    return replace(resolved, limits={name: ", ".join(words) for name, words in told.items()})

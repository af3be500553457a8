"""Reads values of `scontrol show config`, and makes values for slurm.conf from them. Source: slurm.conf(5)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ftslurm.model.values import Value, field


class NotSaid(Exception):
    """A rule lacks a value: Slurm does not show it, or it cannot be read. The text says which, in words."""


class Holds(Value):
    """outcome: of a check, by its name in catalogs/site-checks.yaml. values: those in its words."""

    outcome: str
    values: Mapping[str, object] = field(default_factory=dict)


def holds(outcome: str, **values: object) -> Holds:
    return Holds(outcome, values)


# --- reads values of `scontrol show config`, and makes values for slurm.conf from them. Source: slurm.conf(5)

Config = Mapping[str, str]
Release = tuple[int, int, int]

_ENDLESS = frozenset({"INFINITE", "UNLIMITED", "NONE"})
# From this release on Slurm does not show a Prolog that is not set, and shows several as `Prolog[0]` and so on (24.11, 26.05).
_SEVERAL_FROM: Release = (23, 11, 0)
# What Slurm writes for "no limit" in 16 bits.
_NO_LIMIT_S = 65534


def release(config: Config) -> Release:
    """Raises: NotSaid."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", config.get("SLURM_VERSION", ""))
    if found is None:
        raise NotSaid("ftslurm cannot read Slurm's release")
    return int(found[1]), int(found[2]), int(found[3])


def seconds_said(config: Config, key: str) -> float:
    """Seconds of `30 sec`, `2 min`, `65534` or INFINITE (inf). Raises: NotSaid."""
    text = config[key]
    if text.upper() in _ENDLESS:
        return math.inf
    found = re.fullmatch(r"(\d{1,9})( sec| min)?", text)
    if found is None:
        raise NotSaid(f"ftslurm cannot read the time in {key}")
    took = int(found[1]) * (60.0 if found[2] == " min" else 1.0)
    return math.inf if took >= _NO_LIMIT_S and not found[2] else took


def words_said(config: Config, key: str) -> tuple[str, ...]:
    """The words of a comma-separated list; `none` does not count as one."""
    return tuple(word for word in re.split(r"[,\s]+", config[key]) if word and word.lower() != "none")


def option(config: Config, key: str, name: str, default: float) -> float:
    """N of `NAME=N` in a list such as SchedulerParameters; the default if the list has no such entry. Raises: NotSaid."""
    found = [word.partition("=")[2] for word in words_said(config, key) if word.partition("=")[0].lower() == name]
    if not found:
        return default
    if not re.fullmatch(r"-?\d{1,9}", found[-1]):
        raise NotSaid(f"{name} in {key} is not a number")
    return float(found[-1])


def has(config: Config, key: str, name: str) -> bool:
    return any(word.lower() == name.lower() for word in words_said(config, key))


def programs(config: Config, key: str) -> tuple[str, ...]:
    """The programs that `Prolog` or a similar key names. Raises: NotSaid if an old Slurm does not show the key."""
    shown = [value for name, value in config.items() if re.fullmatch(rf"{key}(\[\d+\])?", name)]
    if not shown and release(config) < _SEVERAL_FROM:
        raise NotSaid(f"Slurm does not show {key}")
    return tuple(value for value in shown if value)


def is_ours(program: str) -> bool:
    """Is it a script that `ftslurm install-hooks` has written? Its folder tells."""
    return "ftslurm" in program


def line_with(config: Config, key: str, *more: str) -> str:
    """The present line with `more` added; NAME=N replaces another value of NAME."""
    names = {word.partition("=")[0].lower() for word in more}
    kept = [word for word in words_said(config, key) if word.partition("=")[0].lower() not in names]
    return f"{key}={','.join((*kept, *more))}"


def line_without(config: Config, key: str, name: str) -> str:
    """The present line without `name`."""
    return f"{key}={','.join(word for word in words_said(config, key) if word.lower() != name.lower())}"

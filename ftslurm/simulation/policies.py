"""The policies that are compared: the one in force here, others by name and by file. Settings are read as ftrun reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ftslurm.config.settings_files import Request, settings_in_force
from ftslurm.errors import UsageError
from ftslurm.model.settings.tree import Settings

MOST = 12
IN_FORCE = "in force"


def named(text: str) -> tuple[str, dict[str, str]]:
    """`NAME:key=value,...` -> name and settings. A value may have commas: `ladder=hang-restart,fail`. Raises: UsageError."""
    name, _, rest = text.partition(":")
    values: dict[str, str] = {}
    last = ""
    for piece in rest.split(",") if rest else ():
        key, equals, value = piece.partition("=")
        if equals:
            last = key.strip()
            values[last] = value
        elif last:
            values[last] += f",{piece}"
        else:
            break
    if not name or not values:
        raise UsageError(f"--with {text}: a name and settings are wanted", hint="such as --with spare:nodes.spares=1")
    return name, values


def policies(base: Request, others: Sequence[str], files: Sequence[str], env: Mapping[str, str]) -> dict[str, Settings]:
    """By name, the one in force first. Raises: PolicyError, UsageError."""
    found = {IN_FORCE: settings_in_force(base, env).settings}
    for text in others:
        name, values = named(text)
        laid_over = {**(base.values or {}), **{key: (value, f"--with {name}:{key}") for key, value in values.items()}}
        _add(found, name, settings_in_force(replace(base, values=laid_over), env).settings)
    for path in files:
        name = path.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
        _add(found, name, settings_in_force(replace(base, policy=path), env).settings)
    return found


def _add(found: dict[str, Settings], name: str, settings: Settings) -> None:
    if name in found:
        raise UsageError(f"two policies are called {name}", hint="give one of them another name")
    if len(found) >= MOST:
        raise UsageError(f"more than {MOST} policies", hint="compare fewer at once")
    found[name] = settings


def why_not(name: str, settings: Settings) -> str:
    """What of a policy cannot be simulated; empty if all can."""
    return f"{name}: mode {settings.mode} cannot be simulated, only sync" if settings.mode != "sync" else ""

"""The ladder in force, as `ftslurm explain` shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from ftslurm.model.record import Record, RunBegan, SettingsFrom
from ftslurm.model.rungs import Rung, RungWords
from ftslurm.model.settings.told import settings_told
from ftslurm.model.settings.tree import LEAVES, Resolved, Settings, env_name, in_words, is_on, takes
from ftslurm.report.name_values import print_facts
from ftslurm.report.requests import InForce
from ftslurm.report.text import moment


def of_job(records: Iterable[Record]) -> tuple[Resolved, tuple[str, ...]] | None:
    """What was in force in the last ftrun, by its ledger, and the names of settings that this version does not know. None for a
    ledger that does not tell."""
    settings: Mapping[str, str] = {}
    places: Mapping[str, str] = {}
    for record in records:
        if isinstance(record, RunBegan):
            settings, places = record.settings, {}
        elif isinstance(record, SettingsFrom):
            places = record.places
    if not settings:
        return None
    found, unknown = settings_told(settings)
    return Resolved(found, {name: places.get(name) or _unplaced(name, name in settings, found) for name in LEAVES}), unknown


def _unplaced(name: str, told: bool, found: Settings) -> str:
    default = not told or getattr(found, LEAVES[name].name) == LEAVES[name].default
    return "default" if default else "the job; where is not recorded"


def as_json(resolved: Resolved, requests: InForce | None = None) -> dict[str, Any]:
    """requests: what the owner of a job has asked for there."""
    values = {
        name: {
            "value": getattr(resolved.settings, leaf.name),
            "from": resolved.places[name],
            "default": leaf.default,
            "takes": takes(leaf.metadata["kind"]),
            "variable": env_name(name),
            "what": leaf.metadata["what"],
        }
        for name, leaf in LEAVES.items()
    }
    asked = {"requests": asdict(requests)} if requests is not None else {}
    return {"ladder": list(resolved.settings.ladder), "settings": values, **asked}


def print_ladder(console: Console, resolved: Resolved, rungs: Mapping[Rung, RungWords], requests: InForce | None = None) -> None:
    """rungs: every rung there is, in words. requests: what the owner of a job has asked for there."""
    console.print(Text("The ladder, cheapest remedy first; ftrun skips a rung that is off or does not fit.", style="bold"))
    for number, name in enumerate(dict.fromkeys((*resolved.settings.ladder, Rung.FAIL)), 1):
        on = is_on(resolved.settings, name)
        held = requests.why_held(name, moment) if requests is not None else ""
        more = held or ("" if on else "off")
        console.print(Text(f"{number}. {name}{f'  ({more})' if more else ''}", style="cyan" if on and not held else "dim"))
        words = rungs[Rung(name)]
        facts = [("answers", words.trigger), ("costs", words.price), ("next rung", words.degrades)]
        facts += [(leaf, value) for leaf, value in _values(resolved, f"rungs.{name}.")]
        print_facts(console, facts, 3)
    for group, names in _groups().items():
        console.print(Text(f"Settings: {group}", style="bold"))
        print_facts(console, [pair for pair in _values(resolved, "") if pair[0] in names], 3)


def _groups() -> dict[str, frozenset[str]]:
    """First word -> the settings outside of the rungs that begin with it; those that stand alone are `general`."""
    names = [name for name in LEAVES if not name.startswith("rungs.")]
    alike = Counter(name.partition(".")[0] for name in names)
    found: dict[str, set[str]] = {"general": set()}
    for name in names:
        word = name.partition(".")[0]
        found.setdefault(word if alike[word] > 1 else "general", set()).add(name)
    return {group: frozenset(found[group]) for group in found}


def _values(resolved: Resolved, prefix: str) -> list[tuple[str, str]]:
    found = []
    for name, leaf in LEAVES.items():
        if name.startswith(prefix):
            value, place = in_words(leaf, getattr(resolved.settings, leaf.name)), resolved.places[name]
            default = "" if place == "default" else f"; default {in_words(leaf, leaf.default)}"
            found.append((name.removeprefix(prefix), f"{value}  [{place}{default}]  {leaf.metadata['what']}"))
    return found

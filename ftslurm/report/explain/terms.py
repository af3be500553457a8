"""What the words of ftslurm itself mean: settings, rungs, variables, states of jobs, hangs, phases, columns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from typing_extensions import TypedDict

from ftslurm.model.folds.control import NO_RESTARTS
from ftslurm.model.record import Record, RunBegan, SettingsFrom
from ftslurm.model.rungs import Glossary, Rung, RungWords
from ftslurm.model.settings.kinds import takes, value_in_words
from ftslurm.model.settings.tree import LEAVES, Resolved, Settings, env_name, is_on, settings_told
from ftslurm.model.values import Value, field
from ftslurm.report.text import print_facts, safe_text


class Term(Value):
    """facts: further names -> values, in the order to show them."""

    name: str
    kind: str
    text: str
    facts: Mapping[str, str] = field(default_factory=dict)


def terms(resolved: Resolved, glossary: Glossary, notices: Mapping[str, str]) -> dict[str, Term]:
    """Every word by its name. notices: their words (`notify`)."""
    words = {**glossary.words, "notice (the setting notify.KIND says to whom)": notices}
    plain = [Term(name, kind, text) for kind, there in words.items() for name, text in there.items()]
    return {term.name: term for term in (*plain, *_settings(resolved, glossary.settings), *_rungs(resolved, glossary.rungs))}


def _settings(resolved: Resolved, words: Mapping[str, str]) -> Iterator[Term]:
    for name, leaf in LEAVES.items():
        place = resolved.places[name]
        now = value_in_words(leaf, leaf.of(resolved.settings))
        yield Term(
            name, "setting", words[name],
            {
                "now": now if place == "default" else f"{now} ({place})",
                "default": value_in_words(leaf, leaf.default),
                **({"this site": f"allows {resolved.limits[name]}"} if name in resolved.limits else {}),
                "takes": takes(leaf.kind),
                "set it": f"--ft-set {name}=VALUE, {env_name(name)}=VALUE, or in a policy",
            },
        )  # fmt: skip


def _rungs(resolved: Resolved, rungs: Mapping[Rung, RungWords]) -> Iterator[Term]:
    for rung, words in rungs.items():
        own = ", ".join(name for name in resolved.places if name.startswith(f"rungs.{rung.value}."))
        facts = {"costs": words.price, "passes on": words.degrades, "settings": own}
        yield Term(rung.value, "rung of the ladder", f"answers {words.trigger}", facts)


def print_term(console: Console, term: Term) -> None:
    console.print(safe_text(f"{term.name}: {term.kind}", "bold"), soft_wrap=not console.is_terminal)
    print_facts(console, (("means", term.text), *term.facts.items()), 2)


# --- the ladder in force, as `ftslurm explain` shows it


def terms_of_job(records: Iterable[Record]) -> tuple[Resolved, tuple[str, ...]] | None:
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
    default = not told or LEAVES[name].of(found) == LEAVES[name].default
    return "default" if default else "the job; where is not recorded"


# `from`: where the value was set. takes: in words.
SettingTold = TypedDict(
    "SettingTold", {"value": Any, "from": str, "default": Any, "takes": str, "variable": str, "what": str}
)  # fmt: skip


class LadderTold(TypedDict):
    """held: a rung, or `no-restarts` for all -> why a request of the job's owner holds it; with --job."""

    ladder: Sequence[str]
    settings: Mapping[str, SettingTold]
    held: Mapping[str, str]


def ladder_as_json(resolved: Resolved, glossary: Glossary, held: Mapping[str, str]) -> LadderTold:
    values: dict[str, SettingTold] = {
        name: {
            "value": leaf.of(resolved.settings),
            "from": resolved.places[name],
            "default": leaf.default,
            "takes": takes(leaf.kind),
            "variable": env_name(name),
            "what": glossary.settings[name],
        }
        for name, leaf in LEAVES.items()
    }
    return {"ladder": resolved.settings.ladder, "settings": values, "held": held}


def print_ladder(console: Console, resolved: Resolved, glossary: Glossary, held: Mapping[str, str]) -> None:
    """held: as in LadderTold."""
    console.print(Text("The ladder, cheapest remedy first; ftrun skips a rung that is off or does not fit.", style="bold"))
    for number, name in enumerate(dict.fromkeys((*resolved.settings.ladder, Rung.FAIL)), 1):
        on = is_on(resolved.settings, name)
        why = held.get(name, held.get(NO_RESTARTS, "") if name != Rung.FAIL else "")
        more = why or ("" if on else "off")
        console.print(Text(f"{number}. {name}{f'  ({more})' if more else ''}", style="dim" if more else "cyan"))
        words = glossary.rungs[Rung(name)]
        facts = [("answers", words.trigger), ("costs", words.price), ("next rung", words.degrades)]
        facts += [(leaf, value) for leaf, value in _values(resolved, glossary.settings, f"rungs.{name}.")]
        print_facts(console, facts, 3)
    console.print(Text("Settings", style="bold"))
    print_facts(console, [pair for pair in _values(resolved, glossary.settings, "") if not pair[0].startswith("rungs.")], 3)


def _values(resolved: Resolved, words: Mapping[str, str], prefix: str) -> list[tuple[str, str]]:
    found = []
    for name, leaf in LEAVES.items():
        if name.startswith(prefix):
            value, place = value_in_words(leaf, leaf.of(resolved.settings)), resolved.places[name]
            default = "" if place == "default" else f"; default {value_in_words(leaf, leaf.default)}"
            found.append((name.removeprefix(prefix), f"{value}  [{place}{default}]  {words[name]}"))
    return found

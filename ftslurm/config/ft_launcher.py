"""ft_launcher's configuration as people give it, in YAML and by flags, and what of it and of its command line has no effect here.

In a file a key that is not known is passed over, as there, and said; a section that is empty or missing leaves the defaults, and
null as a value its own. The table of what has no effect is catalogs/ft-launcher.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ftslurm.config.settings_files import read_shipped
from ftslurm.errors import PolicyError
from ftslurm.model.plain import Bounds, from_plain
from ftslurm.model.settings.ft_config import FORMER_KEYS, HINT, KEYS, checked_values
from ftslurm.model.settings.kinds import suggestion, switch
from ftslurm.model.values import Value

_PATH = ""  # stands for a key
_IGNORED = ("ft-ignore-missing-cfg", "ignore-missing-fault-tol-cfg")
# Flags whose name is not that of their key.
FLAG_NAMES = {"storage_health_check_path": "storage_healthcheck_path"}


# --- the catalogue


class Option(Value):
    """takes: text, whole, number or nothing. choices: none for any."""

    takes: str = "text"
    default: str = ""
    short: str = ""
    choices: tuple[str, ...] = ()


class NoEffect(Value):
    """What is without effect for one reason; see the catalogue."""

    why: str
    keys: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    only_ftrun: tuple[str, ...] = ()
    only_ft_launcher: tuple[str, ...] = ()


class Surface(Value):
    """options: that ft_launcher takes besides those of its keys and those without effect."""

    options: Mapping[str, Option]
    without_effect: tuple[NoEffect, ...]

    def keys_ignored(self) -> dict[str, str]:
        """Key -> why it has no effect."""
        return {key: row.why for row in self.without_effect for key in row.keys}

    def ignored_by_ftrun(self) -> dict[str, str]:
        """Option -> why it has no effect."""
        return {name: row.why for row in self.without_effect for name in (*row.options, *row.only_ftrun)}

    def ignored_by_ft_launcher(self) -> dict[str, str]:
        return {name: row.why for row in self.without_effect for name in (*row.only_ft_launcher, *row.options)}


@cache
def surface() -> Surface:
    return from_plain(Surface, read_shipped("ft-launcher.yaml"), Bounds(1000))


def in_sentences(ignored: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each reason. ignored: name -> why it has no effect."""
    by_reason: dict[str, list[str]] = {}
    for name, why in ignored.items():
        by_reason.setdefault(why, []).append(name)
    have = {True: "has", False: "have"}
    return tuple(f"{', '.join(names)} {have[len(names) == 1]} no effect here: {why}" for why, names in by_reason.items())


def why_ignored(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each reason why keys among them have no effect."""
    reasons = surface().keys_ignored() if values else {}
    return in_sentences({name: reasons[name] for name in sorted(values) if name in reasons})


# --- its file


def from_file(tree: Any, place: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values under `fault_tolerance` in a YAML tree, at whatever depth, and what of them is passed over, in sentences.

    Raises: PolicyError for a section that is no mapping, and for a value that is wrong.
    """
    sections_there = list(_sections(tree))
    if not sections_there:
        return {}, (f"{place}: it has no section `fault_tolerance`, so it sets nothing",)
    found = next((section for section in sections_there if section), None) or {}
    if not isinstance(found, Mapping):
        raise PolicyError(f"{place}: `fault_tolerance` is not a mapping of keys", hint="put the keys below `fault_tolerance:`")
    unknown = [name for name in found if name not in KEYS and name not in FORMER_KEYS]
    remarks = (f"{place}: ft_launcher has no key `{name}`{suggestion(str(name), KEYS)}: it is ignored" for name in unknown)
    known = {name: value for name, value in found.items() if name not in unknown and value is not None}
    return checked_values(known, place), tuple(remarks)


def _sections(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        if "fault_tolerance" in tree:
            yield tree["fault_tolerance"]
            return
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from _sections(item)


# --- its flags


def spellings(name: str) -> tuple[str, ...]:
    """`ft-rank-heartbeat-timeout` as it may be written: with - or _ anywhere, as --ft-param-KEY."""
    found = [f"--{name}", f"--{name.replace('-', '_')}"]
    if name.startswith("ft-"):
        rest = name.removeprefix("ft-").replace("-", "_")
        found += [f"--ft-{rest}", f"--ft-param-{rest}", f"--ft-param-{rest.replace('_', '-')}", f"--ft_param_{rest}"]
    return tuple(dict.fromkeys(found))


def flags_of(key: str) -> tuple[str, ...]:
    """The names of a key's option, without dashes before them."""
    return tuple(f"ft-{name.replace('_', '-')}" for name in (key, *(flag for flag, of in FLAG_NAMES.items() if of == key)))


_KEY_OF = {"ft-cfg-path": _PATH, "fault-tol-cfg-path": _PATH} | {name: key for key in KEYS for name in flags_of(key)}


def from_flags(words: Sequence[str], place: str) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """ft_launcher's own flags: the values they give, still unchecked, the path of the YAML file, empty if none, and a sentence
    for each flag without effect.

    `--ft-param-<key>` (0.4) and `--ft-<key>`, with `-` or `_` in the key, a value after `=`; a switch may stand alone.
    Raises: PolicyError for a flag that is none, or stands twice, or has no value.
    """
    found: dict[str, str] = {}
    unused: dict[str, str] = {}
    for word in words:
        flag, equals, raw = word.partition("=")
        name = _plain_name(flag)
        if name in _IGNORED:
            continue
        key = _KEY_OF.get(name)
        if key is None:
            unused[name] = _why_unused(flag, place)
            continue
        if not equals and KEYS.get(key) is not switch:
            raise PolicyError(f"{place}: {flag} has no value", hint=f"write {flag}=VALUE")
        if key in found:
            raise PolicyError(f"{place}: {flag} is there twice", hint="keep one")
        found[key] = raw if equals else "true"
    path = found.pop(_PATH, "")
    return found, path, tuple(f"--{name} has no effect here: {why}" for name, why in unused.items())


def is_flag(flag: str) -> bool:
    """Is it one of ft_launcher's, or may it be (`--ft-param-KEY`)? flag: with `-` for `_`."""
    name = _plain_name(flag)
    return flag.startswith("--ft-param-") or name in (*_KEY_OF, *_IGNORED) or name in surface().ignored_by_ftrun()


def _plain_name(flag: str) -> str:
    return flag.replace("_", "-").removeprefix("--").replace("ft-param-", "ft-", 1)


def _why_unused(flag: str, place: str) -> str:
    """Raises: PolicyError for a flag that is neither a key's nor one without effect."""
    why = surface().ignored_by_ftrun().get(_plain_name(flag))
    if why is None:
        known = [f"--{flags_of(key)[0]}" for key in KEYS]
        raise PolicyError(f"{place}: ft_launcher has no flag `{flag}`{suggestion(flag, known)}", hint=HINT)
    return why

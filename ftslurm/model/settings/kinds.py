"""Kinds of values, and the leaves of tables of settings that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.values import MISSING, Value, field, fields

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LARGE_FIRST = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


# --- kinds of values: text or a YAML scalar in, a value out, ValueError with the reason otherwise

# What a kind takes, for people.
TAKES: dict[Callable[[Any], Any], str] = {}


def takes(kind: Callable[[Any], Any]) -> str:
    """What one writes for a value of this kind, with its unit: `a duration, such as 20s, 5m, 24h or 2d`."""
    return TAKES.get(kind, "text")


def how_to_correct(kind: Callable[[Any], Any]) -> str:
    """The hint for a value that `kind` refuses."""
    return f"write {TAKES[kind]}" if kind in TAKES else "correct the value there"


def value_of(kind: Callable[[Any], Any], raw: Any, where: str, hint: str = "") -> Any:
    """`raw` as `kind` has it. where: place and name. hint: instead of what the kind takes.

    Raises: PolicyError that begins with `where`, when `kind` refuses it.
    """
    try:
        return kind(raw)
    except (ValueError, TypeError, OverflowError) as error:
        raise PolicyError(f"{where}: {error}", hint=hint or how_to_correct(kind)) from None


def duration(value: Any) -> float:
    """`20s`, `1.5h`, `never` (0) -> seconds. A number without a unit is refused: Slurm's own options mean minutes."""
    text = str(value).strip()
    if text in ("never", "0"):
        return 0.0
    number = text.rstrip("mshd")
    unit = text[len(number) :]
    if unit not in _UNITS:
        raise ValueError(f"`{text}` is not a duration")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        raise ValueError(f"`{text}` is not a duration") from None
    if not 0 <= seconds < 1e9:
        raise ValueError(f"`{text}` is out of range for a duration")
    return seconds


def lasting(value: Any) -> float:
    """A duration that cannot be `never`: it would be taken for at once."""
    if str(value).strip() == "never":
        raise ValueError("`never` is not allowed here; a long time, such as 30d, is")
    return duration(value)


def lasting_or_auto(value: Any) -> float:
    """A duration above nothing; 0 for auto."""
    if str(value).strip() == "auto":
        return 0.0
    if not (seconds := lasting(value)):
        raise ValueError(f"`{value}` is not a duration above 0")
    return seconds


def lead(value: Any) -> float:
    """A duration above nothing; 0 for auto, -1 for off."""
    return -1.0 if str(value).strip().lower() in ("off", "false", "no") else lasting_or_auto(value)


def grace(value: Any) -> float:
    """A duration, or -1 for as long as it takes."""
    return -1.0 if str(value).strip() == "-1" else lasting(value)


def switch(value: Any) -> bool:
    words = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError(f"`{value}` is neither true nor false") from None


def switch_or_auto(value: Any) -> bool | None:
    """None: auto."""
    if value is None or str(value).strip().lower() == "auto":
        return None
    return switch(value)


def count(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = int(str(value).strip())
        except ValueError:
            raise ValueError(f"`{str(value)[:60]}` is not a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"{number} is out of range: {low} to {high}")
        return number

    TAKES[parse] = f"a whole number, {low} to {high}"
    return parse


def choice(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = str(value).strip()
        if text not in words:
            raise ValueError(f"`{text}` is not one of {', '.join(words)}{suggestion(text, words)}")
        return text

    TAKES[parse] = f"one of {', '.join(words)}"
    return parse


def words_of(*known: str) -> Callable[[Any], tuple[str, ...]]:
    """A list, or text with commas, of words from `known` (any word if none is given)."""

    def parse(value: Any) -> tuple[str, ...]:
        items = value if isinstance(value, (list, tuple)) else str(value).split(",")
        words = tuple(str(item).strip() for item in items if str(item).strip())
        for word in words:
            if known and word not in known:
                raise ValueError(f"`{word}` is not one of {', '.join(known)}{suggestion(word, known)}")
        return words

    TAKES[parse] = f"a list with commas, of {', '.join(known)}" if known else "a list with commas"
    return parse


def top_packages(value: Any) -> tuple[str, ...]:
    """What may stand after `import`, without its parts."""
    words = words_of()(value)
    for word in words:
        if not word.isidentifier():
            raise ValueError(f"`{word}` is not the name of a top package or module, such as torch")
    return words


def share(value: Any) -> float:
    """From 0 to 1, or -1 for never asked."""
    try:
        number = float(str(value).strip())
    except ValueError:
        raise ValueError(f"`{value}` is not a number") from None
    if number != -1 and not 0 <= number <= 1:
        raise ValueError(f"{number:g} is out of range: 0 to 1, or -1 to switch it off")
    return number


# AIMaster's words (AIMaster, fault tolerance monitoring), and ft_launcher's, of which one says the same; the value is ours.
_MODES = {
    "sync": "sync", "any-failed": "sync", "async": "async", "min-healthy": "min-healthy", "independent": "independent",
}  # fmt: skip
# In which a rank that fails may start again alone.
ALONE = frozenset({"async", "independent"})


def mode(value: Any) -> str:
    """`sync`: a rank that fails ends the attempt of all. `async`: ranks are independent of each other. `min-healthy`: the ranks
    of a node where one fails end, and the attempt of all ends when fewer than nodes.min_healthy are left without.
    `independent`: a rank that fails ends no other, as with srun --kill-on-bad-exit=0.
    """
    text = str(value).strip()
    if text.lower() not in _MODES:
        known = ("sync", "async", "any-failed", "min-healthy", "independent")
        raise ValueError(f"`{text}` is not one of {', '.join(known)}{suggestion(text.lower(), known)}")
    return _MODES[text.lower()]


def text(value: Any) -> str:
    return str(value)


def secret_file(value: Any) -> str:
    """A path. What is secret stands in the file, and never here: this is printed, and kept in ledgers."""
    path = str(value).strip()
    if "://" in path:
        raise ValueError("the path of a file is wanted; the address goes into the file (mode 0600)")
    return path


def port_range(value: Any) -> tuple[int, int] | None:
    """`60000-60100` -> both ends, both included; empty, or 0-0 as Slurm writes it: None."""
    raw = str(value).strip()
    if raw in ("", "0-0"):
        return None
    low, dash, high = raw.partition("-")
    if not (dash and low.isascii() and low.isdecimal() and high.isascii() and high.isdecimal()):
        raise ValueError(f"`{raw}` is not a port range")
    if not 1024 <= int(low) <= int(high) <= 65535:
        raise ValueError(f"`{raw}` is not a port range between 1024 and 65535")
    return int(low), int(high)


def table(value: Any) -> str:
    """A mapping, or JSON of one, as JSON."""
    import json

    try:
        tree = json.loads(value) if isinstance(value, str) and value else value or {}
        if not isinstance(tree, Mapping):
            raise ValueError
        return json.dumps(dict(tree), separators=(",", ":")) if tree else ""
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"`{str(value)[:60]}` is not a mapping of names to values") from None


TAKES |= {
    duration: "a duration, such as 20s, 5m, 24h or 2d, or never",
    lasting: "a duration, such as 20s, 5m, 24h or 2d",
    lasting_or_auto: "a duration, such as 20s, 5m, 24h or 2d, or auto",
    lead: "a duration, such as 20s, 5m, 24h or 2d, or auto, or off",
    grace: "a duration, such as 20s, 5m, 24h or 2d, or -1",
    switch: "true or false",
    switch_or_auto: "true, false or auto",
    share: "a number from 0 to 1, or -1",
    mode: "one of sync, any-failed (the same), async, min-healthy, independent",
    top_packages: "a list with commas, of names of top packages or modules",
    secret_file: "the path of a file",
    port_range: "two numbers from 1024 to 65535, such as 60000-60100",
    table: "a mapping of names to values, or JSON of one",
}


def suggestion(word: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def leaf(kind: Callable[[Any], Any], default: Any) -> Any:
    """A field of a table of settings. kind: checks a value and converts it; raises ValueError."""
    metadata = {"kind": kind}
    return field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)


class Leaf(Value):
    """One setting. name: as people write it. path: of its field, from the whole table. What it does: catalogs/glossary.yaml."""

    name: str
    path: tuple[str, ...]
    kind: Callable[[Any], Any]
    default: Any

    def of(self, table: Any) -> Any:
        """Its value in a whole table."""
        return attrgetter(".".join(self.path))(table)


def leaves_of(table: type, prefix: str = "", path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The leaves among the fields of a table. The name of one is that of its field, without the unit."""
    for one in fields(table):
        if one.metadata:
            default = one.default if one.default is not MISSING else {}
            yield Leaf(prefix + one.name.removesuffix("_s"), (*path, one.name), one.metadata["kind"], default)


def value_in_words(leaf: Leaf, value: Any) -> str:
    """A value as one would write it in a policy."""
    if value is None and leaf.kind is switch_or_auto:
        return "auto"
    if value == -1 and leaf.kind is grace:
        return "-1"
    if value == -1 and leaf.kind is lead:
        return "off"
    if value == 0 and leaf.kind in (lasting_or_auto, lead):
        return "auto"
    if leaf.kind in (duration, lasting, lasting_or_auto, lead, grace):
        return next((f"{value / size:g}{unit}" for unit, size in _LARGE_FIRST if value and value % size == 0), f"{value:g}s")
    if isinstance(value, bool):
        return "true" if value else "false"
    if leaf.kind is port_range:
        return "-".join(map(str, value)) if value else "(empty)"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value != "" else "(empty)"


class Layer(Value):
    """Some values and where they stand. values: leaf name -> raw value; places: leaf name -> `policy.yaml, line 4`."""

    values: Mapping[str, Any]
    places: Mapping[str, str]

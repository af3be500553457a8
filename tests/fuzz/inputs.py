"""Hostile inputs: what real programs and people wrote, damaged; and what neither would ever write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

# Digits that str.isdigit() or isdecimal() takes for such, marks of writing direction, halves of characters, line ends that
# splitlines() sees and nobody else, numbers that int() refuses, and the words of formats that are not asked for here.
HOSTILE = (
    "", "\0", "²", "٣", "１２", "\u200f", "\u202e", "\ufeff", "\ud800", "\udc80\udcff", "\U0001f4a5", "é", "\r\n", "\n", "\r",
    "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\u2028", "\t", " ", "\x1b[31m", "\x7f", "-1", "+1", "1_0", "00", "0x1F", "1e999",
    "-0.0", "NaN", "Infinity", "null", "true", "None", "(null)", "N/A", "Unknown", "9" * 19, "9" * 400, "9" * 4299, "9" * 5000,
    "1" + "0" * 5000, "٣" * 5000, "-" * 50, "|" * 50, ":" * 50, "=", "=" * 50, ",", ";", "/", "%", "%s%n", "{}", "{0}", "$(x)",
    "\\", "'", '"', "`", "#", "@", "@all", "*", "!", "&", "&&", "<", ">", "?", "(", ")", "[", "]", "[" * 500, "[[", "]]", "[0-9]",
    "[0-999999999]", "n[1-2]", "n[1-2", "[1-", "a" * 300, "x" * 20_000, " " * 5000, "\n" * 300, "JobId=1 ", "JobState=RUNNING",
    "   JobState=FAILED", "NodeName=", "Reason=", "2026-13-45T99:99:99", "1970-01-01T00:00:00", "9999-12-31T23:59:59",
)  # fmt: skip


def one_of(words: Sequence[str]) -> st.SearchStrategy[str]:
    """As sampled_from, which would show all of them, however long, where it is asked for its name."""
    return st.integers(0, len(words) - 1).map(words.__getitem__)


hostile_text = one_of(HOSTILE)
any_text = st.text(max_size=60) | st.lists(hostile_text | st.text(max_size=6), max_size=8).map("".join)


# --- text


def mutated(bases: Sequence[str], words: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """One of `bases` with some damage, `words` among what is put in; seldom any text at all."""
    pieces = one_of(words) | hostile_text if words else hostile_text

    @st.composite
    def changed(draw: st.DrawFn) -> str:
        if not draw(st.integers(0, 7)):
            return draw(any_text)
        text = draw(one_of(bases))
        for change in draw(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=4)):
            text = change(draw, text, pieces)
        return text

    return changed()


Change = Callable[[st.DrawFn, str, st.SearchStrategy[str]], str]


def _place(draw: st.DrawFn, length: int) -> int:
    return draw(st.integers(0, max(0, length - 1)))


def _put_in(draw: st.DrawFn, text: str, pieces: st.SearchStrategy[str]) -> str:
    at = _place(draw, len(text) + 1)
    return text[:at] + draw(pieces) + text[at:]


def _put_for_a_word(draw: st.DrawFn, text: str, pieces: st.SearchStrategy[str]) -> str:
    spans = [found.span() for found in re.finditer(r"\w+|\S", text)] or [(0, 0)]
    begin, end = spans[_place(draw, len(spans))]
    return text[:begin] + draw(pieces) + text[end:]


def _put_for_a_value(draw: st.DrawFn, text: str, pieces: st.SearchStrategy[str]) -> str:
    """What stands behind a colon or an equals sign."""
    spans = [found.span(1) for found in re.finditer(r"[:=][ \t]*([^\s,{}\[\]|]+)", text)] or [(0, 0)]
    begin, end = spans[_place(draw, len(spans))]
    return text[:begin] + draw(pieces) + text[end:]


def _word_for_word(draw: st.DrawFn, text: str, _: st.SearchStrategy[str]) -> str:
    spans = [found.span() for found in re.finditer(r"\w+|\S", text)] or [(0, 0)]
    (begin, end), (first, last) = (spans[_place(draw, len(spans))] for _ in range(2))
    return text[:begin] + text[first:last] + text[end:]


def _cut(draw: st.DrawFn, text: str, _: st.SearchStrategy[str]) -> str:
    return text[: _place(draw, len(text))]


def _cut_out(draw: st.DrawFn, text: str, _: st.SearchStrategy[str]) -> str:
    at = _place(draw, len(text))
    return text[:at] + text[at + draw(st.integers(1, 40)) :]


def _drop_line(draw: st.DrawFn, text: str, _: st.SearchStrategy[str]) -> str:
    lines = text.split("\n")
    del lines[_place(draw, len(lines))]
    return "\n".join(lines)


def _repeat_line(draw: st.DrawFn, text: str, _: st.SearchStrategy[str]) -> str:
    lines = text.split("\n")
    at = _place(draw, len(lines))
    return "\n".join([*lines[:at], *[lines[at]] * draw(st.sampled_from((1, 2, 40))), *lines[at:]])


def _swap_lines(draw: st.DrawFn, text: str, _: st.SearchStrategy[str]) -> str:
    lines = text.split("\n")
    one, other = _place(draw, len(lines)), _place(draw, len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


def _crlf(_: st.DrawFn, text: str, __: st.SearchStrategy[str]) -> str:
    return text.replace("\n", "\r\n")


def _no_blanks(_: st.DrawFn, text: str, __: st.SearchStrategy[str]) -> str:
    return text.replace(" ", "")


def _twice(_: st.DrawFn, text: str, __: st.SearchStrategy[str]) -> str:
    return text + text


CHANGES: tuple[Change, ...] = (
    _put_in, _put_for_a_word, _put_for_a_value, _put_for_a_value, _word_for_word, _cut, _cut_out, _drop_line, _repeat_line, _swap_lines, _crlf,
    _no_blanks, _twice,
)  # fmt: skip


# --- bytes


def as_bytes(texts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Texts as a file may hold them: mostly UTF-8, halves of characters and stray bytes too."""
    return st.builds(_encoded, texts, st.none() | st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=4)))


def _encoded(text: str, stray: tuple[float, bytes] | None) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    if stray is None:
        return data
    at = int(stray[0] * len(data))
    return data[:at] + stray[1] + data[at:]


def torn(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Bytes in the portions in which a socket may give them."""
    return st.builds(
        lambda whole, cuts: [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)],
        data,
        st.lists(st.integers(0, 2000), max_size=4).map(sorted),
    )


# --- JSON and YAML values


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


json_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.sampled_from((2**31, 2**53, 2**62, 2**63, 2**64, -(2**63), 10**18, 10**400, 10**4299))
    | st.floats()
    | st.text(max_size=8)
    | hostile_text
)
json_values: st.SearchStrategy[Any] = st.recursive(
    json_scalars | st.sampled_from((60, 300)).map(nested),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | hostile_text, inner, max_size=3),
    max_leaves=5,
)


def mutated_trees(bases: Sequence[Any], values: st.SearchStrategy[Any] = json_values) -> st.SearchStrategy[Any]:
    """One of `bases` with some of its parts replaced, dropped, doubled or renamed."""

    @st.composite
    def changed(draw: st.DrawFn) -> Any:
        tree = bases[draw(st.integers(0, len(bases) - 1))]
        for _ in range(draw(st.integers(1, 3))):
            tree = _changed(draw, tree, values)
        return tree

    return changed()


def _changed(draw: st.DrawFn, tree: Any, values: st.SearchStrategy[Any]) -> Any:
    if not isinstance(tree, (dict, list)) or not tree or draw(st.integers(0, 9)) == 0:
        return draw(values)
    copy = dict(tree) if isinstance(tree, dict) else dict(enumerate(tree))
    key = draw(st.sampled_from(sorted(copy, key=repr)))
    what = draw(st.sampled_from(("in", "in", "in", "new", "new", "drop", "rename", "double")))
    if what == "drop":
        del copy[key]
    elif what == "rename" and isinstance(tree, dict):
        copy[draw(st.text(max_size=6) | hostile_text)] = copy.pop(key)
    elif what == "double" and isinstance(tree, list):
        return [*tree, tree[key]]
    elif what == "new":
        copy[key] = draw(values)
    else:
        copy[key] = _changed(draw, copy[key], values)
    return copy if isinstance(tree, dict) else list(copy.values())


def as_json(values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    """Of Python's own json, so with NaN and without a limit to numbers."""
    return st.builds(lambda value, ascii_only: json.dumps(value, ensure_ascii=ascii_only), values, st.booleans())


# --- YAML text

YAML_WORDS = (
    "&a ", "*a", "*b ", "<<: *a\n", "<<: [*a, *a]\n", "? ", "? [a, b]\n: 1\n", "- ", "{", "}", "[", "]", ": ", "|\n", ">\n",
    "%YAML 1.1\n", "---\n", "...\n", "~", ".nan", ".inf", "-.inf", "1:1", "1:1:1.5", "1" + ":1" * 900, "0b1", "0o7", "07",
    "2020-13-45", "2020-02-02", "0001-01-01 00:00:00 +23:59", "9999-12-31 23:59:59 -12:00", "!!binary é", "!!set {a, a}",
    "!!omap [a]", "!!pairs [[a]]", "!!merge x", "!!value x", "!!null x", "!!str [a]", "!!seq x", "!!map x",
    "!!python/object/apply:os.getcwd []", "!x y", "! z", "yes", "on", "1_000", "1e5", '"\\0"', '"\\ud800"', '"\\x1b[2J"', "'", '"',
    "\t", "rungs:\n", "profile: ", "20s", "never",
)  # fmt: skip
# What PyYAML's own reader does not refuse, but falls over.
YAML_PITFALLS = (
    '!!int ""', '!!float ""', "!!bool maybe", "!!timestamp soon", "1" + ":1" * 300 + ".5", "0x" + "f" * 2000, "0x" + "f" * 5000,
)  # fmt: skip


def laughs(first: Sequence[str], templates: Sequence[str]) -> st.SearchStrategy[str]:
    """Lines of which each stands for several times the one before. templates: with {here}, {many} and {one}."""

    def written(begin: str, template: str, lines: int, width: int) -> str:
        text = [begin]
        for number in range(1, lines):
            one = f"*a{number - 1}"
            text.append(template.format(here=f"a{number}", one=one, many=", ".join([one] * width)))
        return "\n".join(text) + "\n"

    return st.builds(written, st.sampled_from(first), st.sampled_from(templates), st.integers(1, 40), st.integers(1, 9))


policy_laughs = laughs(
    ("a0: &a0 [x, y]", "a0: &a0 {p: 1, q: 2}", "a0: &a0 {max_restarts: 3}", "a0: &a0 word"),
    (
        "{here}: &{here} [{many}]",
        "{here}: &{here} {{<<: [{many}]}}",
        "{here}: &{here} {{p: {one}, q: {one}, r: {one}, s: {one}}}",
        "ladder: &{here} [{many}]",
        "max_restarts: &{here} [{many}]",
    ),
)


# --- environments and command lines


def mutated_env(bases: Sequence[Mapping[str, str]], names: Sequence[str]) -> st.SearchStrategy[dict[str, str]]:
    """What an environment can hold: no NUL, and bytes that are no UTF-8 as Python shows them."""
    values = (hostile_text | mutated([value for base in bases for value in base.values()])).map(_without_nul)
    return st.builds(
        lambda base, more, less: {name: value for name, value in {**bases[base], **more}.items() if name not in less},
        st.integers(0, len(bases) - 1),
        st.dictionaries(one_of(names), values, max_size=3),
        st.sets(one_of(names), max_size=3),
    )


def _without_nul(text: str) -> str:
    return (
        text.replace("\0", "")
        .encode("utf-8", "surrogateescape" if _escapes(text) else "replace")
        .decode("utf-8", "surrogateescape")
    )


def _escapes(text: str) -> bool:
    return all(not "\ud800" <= char <= "\udfff" or "\udc80" <= char <= "\udcff" for char in text)


def argvs(bases: Sequence[Sequence[str]], words: Sequence[str]) -> st.SearchStrategy[list[str]]:
    word = (one_of(words) | hostile_text | st.text(max_size=6)).map(_without_nul)
    joined = st.builds(lambda one, other: one + other, word, word)

    @st.composite
    def changed(draw: st.DrawFn) -> list[str]:
        argv = list(bases[draw(st.integers(0, len(bases) - 1))])
        for _ in range(draw(st.integers(0, 5))):
            at = _place(draw, len(argv) + 1)
            argv[at : at + draw(st.integers(0, 1))] = draw(st.lists(word | joined, max_size=2))
        return argv

    return changed()

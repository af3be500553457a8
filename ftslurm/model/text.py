"""Text of others, made safe for people: the one function at every door (terminal, syslog, drain reason, report, mail).

A ledger, a policy, a setting, the environment, what a rank prints, what Slurm or NCCL answers: any of them may hold words
that somebody else has chosen, and a terminal obeys what it is sent.
"""

from __future__ import annotations


class _Shown(dict[int, str]):
    """What is shown for a character, by its number. str.translate asks once for each of ASCII, whatever the length of a text."""

    def __init__(self, newline: str, tab: str) -> None:
        super().__init__({number: self[number] for number in range(128)} | {10: newline, 9: tab})

    def __missing__(self, number: int) -> str:
        return char if (char := chr(number)).isprintable() else "?"


_LINE, _LINES = _Shown(" ", " "), _Shown("\n", "\t")


def visible(text: object, lines: bool = False) -> str:
    """As print() would show `text`, with `?` for whatever is not printable: escapes, control characters, marks that turn the
    direction of writing, bytes that are no text.

    lines: text of several lines keeps its newlines and tabs; else it becomes one line, so that nothing in it can be taken for
    a line of ours.
    """
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    shown = shown.replace("\r\n", "\n").encode(errors="replace").decode()
    return shown.translate(_LINES if lines else _LINE)


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 restart`, `3 restarts`. many: the plural of a noun that takes no plain s."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def cut(text: str, most: int) -> str:
    """At most so many characters, the end left out."""
    return text if len(text) <= most else text[: max(0, most - 3)].rstrip() + "..."


def cut_front(text: str, most: int) -> str:
    """At most so many characters, the beginning left out: of a path the end tells more."""
    return text if len(text) <= most else "..." + text[len(text) - max(0, most - 3) :]


def how_often(times: int) -> str:
    return {1: "once", 2: "twice"}.get(times) or counted(times, "time")

"""Text of programs and users, made safe where it comes in: what it may do to a terminal, and how long it may be."""

from __future__ import annotations

TAB = "\t"


def visible(text: str) -> str:
    """One line that a terminal only shows: no control character, no escape, nothing that turns the writing round."""
    if text.isascii() and text.isprintable():
        return text
    shown = text.replace("\r\n", "\n").replace(TAB, " ").encode(errors="replace").decode()
    return "".join(char if char.isprintable() else " " if char == "\n" else "?" for char in shown)


def cut(text: str, most: int) -> str:
    """At most so many characters, the end left out."""
    return text if len(text) <= most else text[: max(0, most - 3)].rstrip() + "..."


def cut_front(text: str, most: int) -> str:
    """At most so many characters, the beginning left out: of a path the end tells more."""
    return text if len(text) <= most else "..." + text[len(text) - max(0, most - 3) :]

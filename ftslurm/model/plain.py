"""Text of others, made safe for people: the one function at every door (terminal, syslog, drain reason, report, mail).

A ledger, a policy, a setting, the environment, what a rank prints, what Slurm or NCCL answers: any of them may hold words
that somebody else has chosen, and a terminal obeys what it is sent.
"""

from __future__ import annotations


def plain(text: object, lines: bool = False) -> str:
    """As print() would show `text`, with `?` for whatever is not printable: escapes, control characters, marks that turn the
    direction of writing, bytes that are no text.

    lines: text of several lines keeps its newlines and tabs; else it becomes one line, so that nothing in it can be taken for
    a line of ours.
    """
    shown = str(text).encode(errors="replace").decode()
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() else _instead(char, lines) for char in shown)


def _instead(char: str, lines: bool) -> str:
    if char in "\n\t":
        return char if lines else " "
    return "" if char == "\r" and lines else "?"

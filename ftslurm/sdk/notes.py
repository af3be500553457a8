"""Rare messages of a rank to the controller and to people: JSON lines in `<page>.notes`, appended whole, never waited for.

| kind | members besides t, at (Unix seconds), pid, rank |
|---|---|
| message | text |
| control | action: continue, exclude (leave this node out), shutdown (end the job); reason |
| retriable | words: as settings' retry.keywords |
| limits | initial, beat, out_of_section: seconds; sections: name -> seconds. Calculated by the program; what is absent stays |
| setting | name, value: one of AIMaster's parameters that the program changed, such as job_exit_hang_interval |

64 KiB in all, 16 KiB a line, and messages leave the last quarter to the others: a program that talks too much still can be
controlled. The reader takes nothing for granted: the file is a user's.
"""

from __future__ import annotations

import os
import stat
import time
from itertools import islice
from math import isfinite
from typing import Any, Iterable, Mapping, NamedTuple  # noqa: UP035 -- what a training program runs may be older

from ftslurm.sdk.page import check_folder, printable, read_plain

SUFFIX = ".notes"
NOTES_BYTES, LINE_BYTES = 64 << 10, 16 << 10
MESSAGES_BYTES = 48 << 10
TEXT_MAX, WORD_MAX, WORDS_MAX, SECTIONS_MAX = 2000, 200, 64, 48
SECONDS_MAX = 1e9
ACTIONS = ("continue", "exclude", "shutdown")


class Limits(NamedTuple):
    """Timeouts in seconds that the program calculated; None and absent sections: no news."""

    initial_s: float | None
    beat_s: float | None
    out_of_section_s: float | None
    sections: tuple[tuple[str, float], ...]


class Note(NamedTuple):
    """As the controller is told it. what: `message`, one of ACTIONS, `retriable`, `setting` or `limits`. limits: those."""

    what: str
    words: tuple[str, ...]
    limits: Limits | None = None


# --- writing


def write_message(path: str, text: str) -> str:
    """Each of these gives why it could not be written, empty if it was. None of them raises."""
    return _say(path, "message", {"text": _line(text, TEXT_MAX)})


def write_control(path: str, action: str, reason: str) -> str:
    return _say(path, "control", {"action": action, "reason": _line(reason, TEXT_MAX)})


def write_retriable(path: str, words: Iterable[str]) -> str:
    try:
        told = [word for word in (_line(word, WORD_MAX) for word in islice(words, WORDS_MAX)) if word]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return _say(path, "retriable", {"words": told}) if told else "it holds no words"


def limits(
    path: str, initial: float | None, beat: float | None, out_of_section: float | None, sections: Mapping[str, float | None]
) -> str:
    """Seconds."""
    rest = {"initial": initial, "beat": beat, "out_of_section": out_of_section}
    told = {name: value for name, value in rest.items() if value is not None}
    known = [(name, value) for name, value in sections.items() if value is not None]
    return _say(path, "limits", {**told, "sections": dict(known[:SECTIONS_MAX])})


def write_setting(path: str, name: str, value: float | str) -> str:
    return _say(path, "setting", {"name": _line(name, WORD_MAX), "value": value})


def _line(text: Any, most: int) -> str:
    try:
        return printable(" ".join(str(text).split()))[:most]
    except Exception:
        return f"({type(text).__name__} that cannot be printed)"


def _say(path: str, kind: str, told: dict[str, Any]) -> str:
    try:
        import json  # here: most programs never say anything

        told = {"t": kind, "at": round(time.time(), 3), "pid": os.getpid(), "rank": rank_of(os.environ), **told}
        line = json.dumps(told, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        if len(line) > LINE_BYTES:
            return "it is too long"
        return _append(path, line, MESSAGES_BYTES if kind == "message" else NOTES_BYTES)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _append(path: str, line: bytes, most: int) -> str:
    check_folder(os.path.dirname(path) or ".")  # noqa: PTH120
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        told = os.fstat(fd)
        if not stat.S_ISREG(told.st_mode):
            return f"{path} is not a file"
        if told.st_size + len(line) > most:
            return "this rank has already said as much as it may"
        return "" if os.write(fd, line) == len(line) else "there is no space for it"
    finally:
        os.close(fd)


def rank_of(env: Mapping[str, str]) -> int | None:
    """RANK (torchrun's and the user's own), else Slurm's; None if neither is a number."""
    for name in ("RANK", "SLURM_PROCID"):
        text = env.get(name, "")
        if text.isdigit() and len(text) < 10:
            return int(text)
    return None


# --- reading


def read_placed(path: str, offset: int) -> tuple[tuple[tuple[int, Note], ...], int]:
    """What was said from `offset` on, each note with the place in the file that it ends at, and the offset to ask from next time.

    Never raises, never waits. Lines that make no sense are passed over. Nothing beyond NOTES_BYTES is read, whatever was written
    there.
    """
    data = read_plain(path, NOTES_BYTES - offset, offset) if 0 <= offset < NOTES_BYTES else b""
    whole = data.rfind(b"\n") + 1
    if not whole and len(data) > LINE_BYTES:
        return (), offset + len(data)  # a line without end
    return placed_notes(data[:whole], offset), offset + whole


def placed_notes(data: bytes, offset: int) -> tuple[tuple[int, Note], ...]:
    """The notes in whole lines that stand at `offset` of the file, each with the place that it ends at."""
    found, end = [], offset
    for line in data.split(b"\n"):
        end += len(line) + 1
        note = parse_note(line) if 0 < len(line) < LINE_BYTES else None
        if note is not None:
            found.append((end, note))
    return tuple(found)


def _limits_in_words(limits: Limits) -> tuple[str, ...]:
    """`beat 30 s`, `section step 12.5 s`."""
    named = {"first beat": limits.initial_s, "beat": limits.beat_s, "out of section": limits.out_of_section_s}
    named.update((f"section {name}", seconds) for name, seconds in limits.sections)
    return tuple(f"{name} {seconds:g} s" for name, seconds in named.items() if seconds is not None)


def parse_note(line: bytes) -> Note | None:
    """One line as a value; None if it is none."""
    import json

    try:
        told = json.loads(line.decode())
        reader = _READERS.get(told["t"])
        if reader is None:
            return None
        return reader(told)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _message(told: Mapping[str, Any]) -> Note:
    return Note("message", (_text(told["text"], TEXT_MAX),))


def _control(told: Mapping[str, Any]) -> Note:
    if told["action"] not in ACTIONS:
        raise ValueError(told["action"])
    return Note(told["action"], (_text(told["reason"], TEXT_MAX),))


def _retriable(told: Mapping[str, Any]) -> Note:
    words = told["words"]
    if not isinstance(words, list) or not 0 < len(words) <= WORDS_MAX:
        raise ValueError("words")
    return Note("retriable", tuple(_text(word, WORD_MAX) for word in words if _text(word, WORD_MAX).strip()))


def _limits(told: Mapping[str, Any]) -> Note:
    sections = told.get("sections", {})
    if not isinstance(sections, dict) or len(sections) > SECTIONS_MAX:
        raise ValueError("sections")
    known = tuple((_text(name, 255), _number(value)) for name, value in sections.items())
    initial, beat, outside = (_maybe(told.get(name)) for name in ("initial", "beat", "out_of_section"))
    found = Limits(initial, beat, outside, known)
    return Note("limits", _limits_in_words(found), found)


def _setting(told: Mapping[str, Any]) -> Note:
    value = told["value"]
    kept = _text(value, WORD_MAX) if isinstance(value, str) else float(value) if value == -1 else _number(value)
    return Note("setting", (_text(told["name"], WORD_MAX), str(kept)))


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise ValueError("text")
    return printable(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or not 0 < value <= SECONDS_MAX:
        raise ValueError("number")
    return float(value)


def _maybe(value: Any) -> float | None:
    return None if value is None else _number(value)


_READERS = {"message": _message, "control": _control, "retriable": _retriable, "limits": _limits, "setting": _setting}

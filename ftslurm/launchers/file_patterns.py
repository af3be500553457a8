"""What -i, -o and -e of srun mean, and the names of the files they make. Pure. Source: srun(1), "FILENAME PATTERN"; fname.c."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from ftslurm.model.text import whole
from ftslurm.model.values import dataclass

MAX_WIDTH = 10  # of zero padding


class Kind(Enum):
    """What -i, -o and -e can ask for."""

    ALL = "our own stream"
    NONE = "/dev/null"
    ONE = "our own stream for one task, /dev/null for the others"
    FILE = "one file for all"
    EACH = "a file by task or node"


@dataclass(frozen=True, slots=True)
class Target:
    kind: Kind
    task: int = 0
    pattern: str = ""


_FIELD = re.compile(r"%(?:(%)|(\d*)([aAjJsutnNx]))")


def read_target(text: str | None, tasks: int) -> Target:
    """Source: fname_create in srun's fname.c."""
    if text is None or text[:3].lower() == "all" or text.startswith("-"):
        return Target(Kind.ALL)
    if text.lower() == "none":
        return Target(Kind.NONE)
    task = whole(text)
    if task is not None and task < tasks:
        return Target(Kind.ONE, task=task)
    if "\\" in text:  # srun's way to say that nothing is a pattern
        return Target(Kind.FILE, pattern=text.replace("\\", "").replace("%", "%%"))
    each = any(found[3] in "tnNu" for found in _FIELD.finditer(text) if found[3])
    return Target(Kind.EACH if each else Kind.FILE, pattern=text)


def letters_of(pattern: str) -> frozenset[str]:
    return frozenset(found[3] for found in _FIELD.finditer(pattern) if found[3])


def expand_pattern(pattern: str, values: Mapping[str, str], partly: bool = False) -> str:
    """values: by letter. Numbers are padded with zeros to the width given, in `%J` the job's. partly: what has no value stays."""

    def value_of(found: re.Match[str]) -> str:
        if partly and (found[1] or found[3] not in values):
            return found[0]
        if found[1]:
            return "%"
        first, dot, rest = values[found[3]].partition(".") if found[3] == "J" else (values[found[3]], "", "")
        width = 0 if found[3] in "uNx" else min(int(found[2][-9:] or 0), MAX_WIDTH)
        return first.zfill(width) + dot + rest

    return _FIELD.sub(value_of, pattern)

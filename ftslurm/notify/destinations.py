"""Where notices can go: a file of the user's own, since what stands in it is secret.

    team: slack://TokenA/TokenB/TokenC/#training     # any address of apprise's
    me: mailto://user:password@mail.example.org
    pager: [/shared/bin/page, --urgent]              # a program: the text is its standard input

A destination is known by its name everywhere else: ledger, log, report and arguments never hold the rest.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.values import dataclass

MAX_BYTES = 64 << 10
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
RESERVED = frozenset({"all", "none"})
_OPEN_TO_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Destination:
    """url: an address of apprise's; else argv: a program."""

    name: str
    url: str = ""
    argv: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Destination({self.name}, {self.what})"

    @property
    def what(self) -> str:
        """For people, without what is secret."""
        return f"program {self.argv[0]}" if self.argv else f"{self.url.partition('://')[0]}://..."


def read_destinations(path: Path) -> dict[str, Destination]:
    """name -> destination. Raises: PolicyError for a file that is not there, is not ours, is open to others, or makes no sense;
    nothing of its contents is said."""
    import yaml

    data = _read_secret(path)
    try:
        tree = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise PolicyError(f"{path}{where}: not YAML", hint="write NAME: ADDRESS, a line for each destination") from None
    if not isinstance(tree, Mapping) or not tree:
        raise PolicyError(f"{path}: it names no destination", hint="write NAME: ADDRESS, a line for each")
    return {str(name): _destination(path, name, value) for name, value in tree.items()}


def _destination(path: Path, name: Any, value: Any) -> Destination:
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
        raise PolicyError(
            f"{path}: the name of a destination is not valid", hint="use up to 32 letters, digits, - and _; not `all`, not `none`"
        )
    if isinstance(value, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://.", value):
        return Destination(name, url=value)
    if isinstance(value, list) and value and all(isinstance(word, (str, int, float)) for word in value):
        argv = tuple(str(word) for word in value)
        if not argv[0].startswith("/"):
            raise PolicyError(f"{path}: {name}: a program needs its absolute path", hint="write [/path/to/program, argument]")
        return Destination(name, argv=argv)
    raise PolicyError(
        f"{path}: {name} is neither an address nor a program", hint="write slack://..., or [/path/to/program, argument]"
    )


def _read_secret(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise PolicyError(f"the notify file {path} cannot be read: {error.strerror}", hint="correct the path") from None
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise PolicyError(f"the notify file {path} is not a plain file", hint="correct the path")
        if info.st_uid != os.geteuid():
            raise PolicyError(f"the notify file {path} is not yours", hint="make one of your own, mode 0600")
        if info.st_mode & _OPEN_TO_OTHERS:
            mode = stat.S_IMODE(info.st_mode)
            raise PolicyError(
                f"the notify file {path} is open to others (mode {mode:04o}), and its addresses are secret",
                hint=f"chmod 600 {path}",
            )
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise PolicyError(f"the notify file {path} is larger than 64 KiB", hint="is it the right file?")
    return data


def why_no_apprise() -> str:
    """Empty where it is installed."""
    if find_spec("apprise"):
        return ""
    return "addresses need apprise, which is not installed (pip install 'ftslurm[notify]', or name a program)"


def scrubbed(text: str, destination: Destination) -> str:
    """`text` of somebody's without whatever the address or the program's arguments hold: tokens, names, passwords, also as they
    are sent."""
    from urllib.parse import quote, unquote

    secret = (destination.url.partition("://")[2], *destination.argv[1:])
    parts = {*destination.argv[1:], *(part for each in secret for part in re.split(r"[/:@?&=#,;\s]+", each))}
    long = [part for part in parts if len(part) >= 4]
    for part in sorted({*long, *map(unquote, long), *map(quote, long)}, key=len, reverse=True):
        text = text.replace(part, "***")
    return text

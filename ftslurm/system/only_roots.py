"""What root runs or obeys nobody else may be able to exchange: looked at place by place, as the kernel walks a path."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ftslurm.errors import StateError

# As the kernel's own limit, path_resolution(7).
LINKS_MAX = 40


def check_only_roots(path: Path) -> None:
    """Raises: StateError if anybody but root could exchange `path`: it, a folder above, a link on the way, or where it leads.

    Of a path that is not there, whoever could make it.
    """
    passed = list(_places(path))
    for number, (place, info) in enumerate(passed, 1):
        if info.st_uid != 0 or _writable(info, passed_on=number < len(passed)):
            raise _others(place)


def check_tree(top: Path) -> None:
    """The same for everything below, and for where links in it lead. Raises: StateError."""
    tops, seen = [top], set()
    while tops:
        check_only_roots(tops[-1])
        real = os.path.realpath(tops.pop())
        if real in seen:
            continue
        seen.add(real)
        for folder, folders, files in os.walk(real):
            for name in (*folders, *files):
                place = Path(folder, name)
                if place.is_symlink():
                    tops.append(place)
                elif _is_others(place):
                    raise _others(place)


def _is_others(place: Path) -> bool:
    try:
        info = place.lstat()
    except FileNotFoundError:  # a file that Python itself was writing
        return False
    return info.st_uid != 0 or _writable(info, passed_on=False)


def _writable(info: os.stat_result, passed_on: bool) -> bool:
    """passed_on: the path leads on from here. In a folder like /tmp nobody can exchange what is there and not theirs, yet add."""
    if stat.S_ISLNK(info.st_mode):
        return False
    kept = passed_on and stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX
    return bool(info.st_mode & 0o022) and not kept


def _places(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All that the kernel passes on its way to `path`, from / on, as far as it is there. Raises: StateError."""
    at, todo, links = Path("/"), list(reversed(path.parts[1:])), 0
    yield at, at.lstat()
    while todo:
        name = todo.pop()
        if name == "..":
            at = at.parent
            continue
        place = at / name
        try:
            info = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        yield place, info
        if not stat.S_ISLNK(info.st_mode):
            at = place
            continue
        links += 1
        if links > LINKS_MAX:
            raise StateError(f"{path} leads through too many links")
        target = place.readlink()
        at = Path("/") if target.is_absolute() else at
        todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _others(place: Path) -> StateError:
    return StateError(
        f"{place} can be changed by users other than root, and root would run what is in it",
        hint="install ftslurm in a folder that only root can write, and run its `ftslurm install-hooks`",
    )

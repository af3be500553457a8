"""Does something as the user whom it concerns, with that user's rights only.

What a user has written is read, and acted on, with that user's rights: whatever it says, it can do nothing that the user could
not do anyway. It also works if the file system does not trust root (root_squash).
"""

from __future__ import annotations

import os
import pwd
import resource
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ftslurm.errors import StateError, UnknownJob
from ftslurm.model.values import Value
from ftslurm.system.commands import CommandResult, Group, run_group

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


# The part of root's environment that Slurm's programs need: the user can inspect a process that runs as that user.
HANDED_ON = ("PATH", "SLURM_CONF", "SLURM_CLUSTER_NAME", "FTRUN_SLURM_BIN")
# CPU seconds; bytes of a file, also of its output; processes and threads of the user, who may have others on this node.
LIMITS = ((resource.RLIMIT_CPU, 30), (resource.RLIMIT_FSIZE, 16 << 20), (resource.RLIMIT_NPROC, 4096), (resource.RLIMIT_CORE, 0))
NICE = 5


class Owner(Value):
    user_id: int
    group_id: int
    name: str
    home: Path


def owner_of(user_id: int) -> Owner:
    """The user, from the password database. Raises: UnknownJob."""
    try:
        entry = pwd.getpwuid(user_id)
    except (KeyError, OverflowError):
        raise UnknownJob(f"the job's user {user_id} has no entry in the password database", hint="is sssd up?") from None
    return Owner(entry.pw_uid, entry.pw_gid, entry.pw_name, Path(entry.pw_dir))


def user_name(user_id: int) -> str:
    """The number, where no name is known."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except (KeyError, OverflowError):
        return str(user_id)


def _modest(limits: Sequence[tuple[int, int]] = LIMITS) -> None:
    """Limit the child before its program starts: it acts on what a user has written, so it gets no more than it needs."""
    for kind, wanted in limits:
        _, hard = resource.getrlimit(kind)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (most, most))
    os.nice(NICE)


def people(first_user_id: int, also: Iterable[int] = ()) -> list[Owner]:
    """All users with a home folder whose number is at least `first_user_id`: those that the password database lists, and those
    whose home is beside one of these, since a directory service may list nobody. also: these numbers in any case.
    """
    wanted = {*also}
    entries = {entry.pw_uid: entry for entry in pwd.getpwall() if entry.pw_uid >= first_user_id or entry.pw_uid in wanted}
    beside = {Path(entry.pw_dir).parent for entry in entries.values() if entry.pw_uid >= first_user_id} - {Path("/")}
    for user_id in {*wanted, *(found for folder in sorted(beside) for found in _owners_in(folder) if found >= first_user_id)}:
        if user_id not in entries:
            with suppress(KeyError, OverflowError):
                entries[user_id] = pwd.getpwuid(user_id)
    found = [Owner(each.pw_uid, each.pw_gid, each.pw_name, Path(each.pw_dir)) for _, each in sorted(entries.items())]
    return [owner for owner in found if owner.home.is_absolute()]


def _owners_in(folder: Path) -> set[int]:
    found = set()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                found.add(entry.stat(follow_symlinks=False).st_uid)
    return found


def start_as(owner: Owner, argv: Sequence[str], limit: int, more: Mapping[str, str] | None = None, apart: bool = False) -> Group:
    """Start a program as `owner`, for root to read at most `limit` bytes of its output. more: of its environment. apart: as in
    `Group`.

    It runs in a session of its own without a terminal: the owner may control it, and could otherwise type there. Raises:
    CommandMissing; StateError if the caller may not become the owner.
    """
    if os.geteuid() not in (0, owner.user_id):
        raise StateError("only root may read what another user wrote")
    limits = tuple((kind, max(limit, wanted) if kind == resource.RLIMIT_FSIZE else wanted) for kind, wanted in LIMITS)
    kept = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    env = {"PATH": PATH, "LANG": "C.UTF-8", **kept, "HOME": str(owner.home), **(more or {})}
    return Group(argv, env, apart=apart, preexec_fn=partial(_modest, limits), **_becoming(owner))


def _becoming(owner: Owner) -> dict[str, Any]:
    """The arguments for subprocess."""
    if os.geteuid() != 0:
        return {}
    groups = os.getgrouplist(owner.name, owner.group_id)
    return {"user": owner.user_id, "group": owner.group_id, "extra_groups": groups}


def run_as(owner: Owner, argv: Sequence[str], timeout_s: float, env: Mapping[str, str]) -> CommandResult:
    """Run `argv` as `owner`: root becomes that user; others use sudo, which must allow it and passes no environment on.

    Raises: CommandMissing.
    """
    if os.geteuid() in (0, owner.user_id):
        return run_group(argv, timeout_s, env, preexec_fn=_modest, **_becoming(owner))
    return run_group(["sudo", "-n", f"--user=#{owner.user_id}", "--", *argv], timeout_s, env, preexec_fn=_modest)

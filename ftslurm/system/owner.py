"""Doing something as the user whom it concerns, and with no more rights than that user has.

What a user has written is then read, and acted on, with that user's own rights: whatever it says, it can do nothing that
the user could not do without it. It also works where the file system trusts no root (root_squash).
"""

from __future__ import annotations

import os
import pwd
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from ftslurm.errors import StateError, UnknownJob
from ftslurm.model.values import dataclass
from ftslurm.system.commands import CommandResult, run_group

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


# Of root's environment, what a program of Slurm's needs: a process can be looked into by the user as whom it runs.
HANDED_ON = ("PATH", "SLURM_CONF", "SLURM_CLUSTER_NAME", "FTRUN_SLURM_BIN")
# CPU seconds; bytes of a file, of what it prints too; processes and threads of the user, who may have others on this node.
LIMITS = ((resource.RLIMIT_CPU, 30), (resource.RLIMIT_FSIZE, 16 << 20), (resource.RLIMIT_NPROC, 4096), (resource.RLIMIT_CORE, 0))
NICE = 5


@dataclass(frozen=True, slots=True)
class Owner:
    user_id: int
    group_id: int
    name: str
    home: Path


def owner_of(user_id: int) -> Owner:
    """By the password database. Raises: UnknownJob."""
    try:
        entry = pwd.getpwuid(user_id)
    except (KeyError, OverflowError):
        raise UnknownJob(f"the job's user {user_id} has no entry in the password database", hint="is sssd up?") from None
    return Owner(entry.pw_uid, entry.pw_gid, entry.pw_name, Path(entry.pw_dir))


def _modest(limits: Sequence[tuple[int, int]] = LIMITS) -> None:
    """In the child, before its program begins: it acts on what a user has written, so it gets no more than it needs."""
    for kind, wanted in limits:
        _, hard = resource.getrlimit(kind)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (most, most))
    os.nice(NICE)


def people(first_user_id: int, also: Iterable[int] = ()) -> list[Owner]:
    """Everybody with a home folder, by the password database, whose number is not below that. also: these numbers, whatever they
    are: a directory service may not list them."""
    entries = {entry.pw_uid: entry for entry in pwd.getpwall()}
    wanted = {*also}
    for user_id in wanted:
        with suppress(KeyError, OverflowError):
            entries.setdefault(user_id, pwd.getpwuid(user_id))
    found = [
        Owner(entry.pw_uid, entry.pw_gid, entry.pw_name, Path(entry.pw_dir))
        for _, entry in sorted(entries.items()) if entry.pw_uid >= first_user_id or entry.pw_uid in wanted
    ]  # fmt: skip
    return [owner for owner in found if owner.home.is_absolute() and owner.home.is_dir()]


def work_as(owner: Owner, work: Callable[[], bytes], limit_s: float, limit_bytes: int) -> bytes | None:
    """What `work` gives, done as `owner` in a process of its own; None where it gives nothing in time, or too much. Only root can
    become another. It may be the owner's to choose every byte of it.
    """
    if os.geteuid() not in (0, owner.user_id):
        return None
    ours, its = os.pipe()
    child = os.fork()
    if not child:
        _become(owner, work, its)
    os.close(its)
    data, deadline = b"", time.monotonic() + limit_s
    whole = False
    try:
        while not whole and len(data) <= limit_bytes and (left_s := deadline - time.monotonic()) > 0:
            if not select.select([ours], [], [], left_s)[0]:
                break
            piece = os.read(ours, 1 << 16)
            data, whole = data + piece, not piece
    finally:
        os.close(ours)
        os.kill(child, signal.SIGKILL)  # a zombie takes it, too
        os.waitpid(child, 0)
    return data if whole and len(data) <= limit_bytes and data else None


def _become(owner: Owner, work: Callable[[], bytes], its: int) -> NoReturn:
    """Never comes back, and nothing of ours that is open is of use to the owner: a process that gave up root's rights cannot be
    traced or read by its user (ptrace(2), PR_SET_DUMPABLE). The programs that it starts can: they get no environment of root."""
    try:
        if os.geteuid() == 0:
            kept = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
            os.environ.clear()
            os.environ.update(kept, HOME=str(owner.home), LANG="C.UTF-8")
            os.setgroups(os.getgrouplist(owner.name, owner.group_id))
            os.setgid(owner.group_id)
            os.setuid(owner.user_id)
        _modest()
        data = work()
        while data:
            data = data[os.write(its, data) :]
    except BaseException:
        os._exit(1)
    os._exit(0)


def read_as(owner: Owner, argv: Sequence[str], timeout_s: float, env: Mapping[str, str], limit: int) -> bytes:
    """What a program prints that root runs as `owner`, `limit` bytes at most. Its errors come last.

    Raises: CommandMissing; StateError if it took too long.
    """

    limits = tuple((kind, limit if kind == resource.RLIMIT_FSIZE else wanted) for kind, wanted in LIMITS)
    groups = os.getgrouplist(owner.name, owner.group_id)
    done = run_group(argv, timeout_s, env, limit=limit, user=owner.user_id, group=owner.group_id, extra_groups=groups,
                     preexec_fn=partial(_modest, limits))  # fmt: skip
    if done.timed_out:
        raise StateError(f"`{argv[0]}` has not ended within {timeout_s:g} s", hint="is their file system there?")
    return done.raw


def run_as(owner: Owner, argv: Sequence[str], timeout_s: float, env: Mapping[str, str]) -> CommandResult:
    """Run `argv` as `owner`: as root by becoming that user, else by sudo, which must allow it and hands no environment on.

    Raises: CommandMissing.
    """
    if os.geteuid() == 0:
        groups = os.getgrouplist(owner.name, owner.group_id)
        return run_group(argv, timeout_s, env, user=owner.user_id, group=owner.group_id, extra_groups=groups,
                         preexec_fn=_modest)  # fmt: skip
    if os.geteuid() == owner.user_id:
        return run_group(argv, timeout_s, env, preexec_fn=_modest)
    return run_group(["sudo", "-n", f"--user=#{owner.user_id}", "--", *argv], timeout_s, env, preexec_fn=_modest)

"""Doing something as the user whom it concerns, and with no more rights than that user has.

What a user has written is then read, and acted on, with that user's own rights: whatever it says, it can do nothing that
the user could not do without it. It also works where the file system trusts no root (root_squash).
"""

from __future__ import annotations

import os
import pwd
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftslurm.errors import UnknownJob
from ftslurm.model.values import dataclass
from ftslurm.system.commands import CommandResult, run_group

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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


def _modest() -> None:
    """In the child, before its program begins: it acts on what a user has written, so it gets no more than it needs."""
    for kind, wanted in LIMITS:
        _, hard = resource.getrlimit(kind)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (most, most))
    os.nice(NICE)


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

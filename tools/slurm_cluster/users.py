"""Who Slurm's daemons and jobs belong to."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress

from slurm_cluster.spec import Spec
from slurm_cluster.trouble import EX_USAGE, Trouble

# Debian's packages make the first.
SLURM_USER = "slurm"
# With --accounting these have an account, beside whoever boots the cluster.
ORDINARY_USERS = ("nobody", "daemon", "bin")


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise Trouble(
            f"uid {os.geteuid()} has no name in /etc/passwd, and Slurm runs no jobs for such a user; add one with useradd"
        ) from None


def site_user() -> str:
    """SlurmUser, as sites have it: not root where there is another."""
    with suppress(KeyError):
        return pwd.getpwnam(SLURM_USER).pw_name
    return user_name()


def slurm_user(spec: Spec) -> str:
    """Whom slurmctld runs as. Raises: Trouble."""
    told = [line.partition("=")[2] for line in spec.extra if line.lower().startswith("slurmuser=")]
    user = told[-1] if told else spec.user
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise Trouble(f"SlurmUser={user}: there is no such user here", EX_USAGE) from None
    return user


def submitters(spec: Spec) -> tuple[str, ...]:
    """Who may submit where an account is asked for."""
    return tuple(dict.fromkeys((user_name(), slurm_user(spec), *ORDINARY_USERS)))

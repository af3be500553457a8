"""A process, as much of it as tells whose it is."""

from __future__ import annotations

from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """started: seconds after the boot; with the pid it names one process of this boot. state: zombie, once it has
    ended; any other word is for people.

    login: it belongs to a session that somebody has opened on this node by ssh, a console or cron. service: to a service of
    systemd's, and not to the one of slurmd.
    """

    pid: int
    parent: int
    user_id: int
    name: str
    started: float
    state: str = ""
    login: bool = False
    service: bool = False

"""A process, as much of it as tells whose it is."""

from __future__ import annotations

from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as /proc tells of it."""

    pid: int
    parent: int
    user_id: int
    name: str
    started: float  # seconds after the boot; with the pid it names one process of this boot
    state: str = ""  # zombie, once it has ended; any other word is for people
    login: bool = False  # it belongs to a session that somebody has opened on this node by ssh, a console or cron
    service: bool = False  # to a service of systemd's, and not to the one of slurmd

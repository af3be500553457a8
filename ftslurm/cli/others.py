"""`--user` and `--all-users`: root looks at another user's job. The same command runs as that user, with that user's rights, and
what it prints counts as that user's words (SECURITY.md)."""

from __future__ import annotations

import codecs
import pwd
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import click

from ftslurm.cli.output import passed_over, site_settings
from ftslurm.errors import UnknownJob, UsageError
from ftslurm.ledger.store import VARIABLE
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.text import visible
from ftslurm.system.commands import Group
from ftslurm.system.files import is_there
from ftslurm.system.owner import Owner, owner_of, start_as

# Seconds that a command which ends by itself may take, and bytes that one may print.
LIMIT_S, LIMIT_BYTES = 60.0, 64 << 20
POLL_S = 0.1
# The words of the command, as typed (cli/ftslurm.py), and those with which it lasts as long as the job.
WORDS = "ftslurm.words"
LASTING = frozenset({"watch", "-f", "--follow"})


def for_users(argument: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds both options to a door. argument: its parameter that names jobs."""

    def decorate(door: Callable[..., Any]) -> Callable[..., Any]:
        lists_all = "all_users" in signature(door).parameters

        @wraps(door)
        def opened(user: str, all_users: bool, **asked: Any) -> Any:
            named = asked[argument] or ""
            job = named if isinstance(named, str) else str(named[0])
            if user or (all_users and job):
                site = site_settings()
                return _through(_named(user) if user else _whose(job, site), site)
            if lists_all:
                return door(all_users=all_users, **asked)
            if all_users:
                raise UsageError("--all-users needs a JOB here", hint="`ftslurm status --all-users` lists those of all users")
            return door(**asked)

        every = "As root: jobs of all users; of JOB, whoever's it is." if lists_all else "As root: JOB, whoever's it is."
        opened = click.option("--all-users", is_flag=True, help=every)(opened)
        return click.option("--user", metavar="NAME", default="", help="As root: jobs of this user.")(opened)

    return decorate


def _named(user: str) -> Owner:
    """Raises: UnknownJob."""
    try:
        return owner_of(pwd.getpwnam(user).pw_uid)
    except KeyError:
        raise UnknownJob(f"--user {user}: no such user", hint="`getent passwd` lists them") from None


def _whose(job: str, site: HookSettings) -> Owner:
    """The user who has the job's ledger, of several the one whose was written last. Raises: UnknownJob, UsageError."""
    from ftslurm.wrapper.all_ledgers import who_has

    found = who_has(job, passed_over, site.ledgers, site.first_user_id)
    if found is None:
        raise UnknownJob(f"no user has a ledger of job {job}", hint="`ftslurm status --all-users` lists those that there are")
    return found


def words_for(words: Sequence[str]) -> list[str]:
    """The command as its user would type it."""
    kept = [word for word in words if word != "--all-users" and not word.startswith("--user=")]
    if "--user" in kept:
        at = kept.index("--user")
        del kept[at : at + 2]
    return kept


class _Shown:
    """A stream of the command, shown on the same one of ours as far as it has come."""

    def __init__(self, group: Group, errors: bool) -> None:
        self._group, self._errors, self._shown = group, errors, 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def show(self) -> None:
        """At most LIMIT_BYTES in all: its user may go on writing for as long as we read."""
        while self._shown < LIMIT_BYTES and (piece := self._group.printed(self._shown, errors=self._errors)):
            self._shown += len(piece)
            click.echo(visible(self._decode(piece), lines=True), nl=False, err=self._errors)


def _through(owner: Owner, site: HookSettings) -> None:
    """Run the command as the owner, and exit with its status. Raises: StateError for who is not root."""
    from ftslurm.wrapper.all_ledgers import folders_of

    context = click.get_current_context()
    words = words_for(context.meta[WORDS])
    if any(word.startswith(("-o", "--output")) for word in words):
        raise UsageError("-o would be written by that user", hint="leave it out, pass --format, and use `> FILE`")
    folders = folders_of(owner, site.ledgers)
    place = next((each for each in folders if is_there(each)), folders[0])
    argv = [sys.executable, "-I", "-m", "ftslurm.cli.ftslurm", *words]
    group = start_as(owner, argv, LIMIT_BYTES, {VARIABLE: str(place)}, apart=True)
    streams, ended = (_Shown(group, errors=False), _Shown(group, errors=True)), False
    until = float("inf") if LASTING & set(words) else time.monotonic() + LIMIT_S
    try:
        while not ended and time.monotonic() < until:
            ended = group.has_ended(POLL_S)
            for stream in streams:
                stream.show()
    finally:
        done = group.end()
    if not ended:
        click.echo(visible(f"ftslurm: the program that looks as {owner.name} has not ended in {LIMIT_S:.0f} s"), err=True)
    context.exit(done.status if done.status is not None and done.status >= 0 else 75)

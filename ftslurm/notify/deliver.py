"""Where notices can go, and how one of them gets there: by apprise, by a plugin, or as the standard input of a program."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tenacity import RetryError, Retrying, retry_if_result, stop_after_attempt, wait_exponential_jitter

from ftslurm.errors import FtslurmError, PolicyError
from ftslurm.model.text import cut, visible
from ftslurm.model.values import Value
from ftslurm.notify.outbox import Notice, shown
from ftslurm.system.commands import run_group
from ftslurm.system.files import open_plain
from ftslurm.system.plugins import NOTIFIERS, Plugin, find, pip_line

APPRISE = "apprise"
MAX_BYTES = 64 << 10
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
RESERVED = frozenset({"all", "none"})
_OPEN_TO_OTHERS = 0o077


class Destination(Value):
    """url: `acme://...`, of the plugin acme, else of apprise's; without one argv: a program."""

    name: str
    url: str = ""
    argv: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Destination({self.name}, {self.what})"

    @property
    def what(self) -> str:
        """For people, without what is secret."""
        return f"program {self.argv[0]}" if self.argv else _without_secrets(self.url)


def _without_secrets(url: str) -> str:
    return f"{url.partition('://')[0]}://..."


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
        opened = open_plain(path, link=0)
    except OSError as error:
        raise PolicyError(f"the notify file {path} cannot be read: {error.strerror}", hint="correct the path") from None
    with opened as file:
        info = os.fstat(file.fileno())
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


def need_apprise(known: Mapping[str, Destination]) -> frozenset[str]:
    """The names of those that no program and no other plugin sends to."""
    return frozenset(name for name, each in known.items() if each.url and _notifier(each.url).name == APPRISE)


def _notifier(url: str) -> Plugin:
    """By the first word of the address."""
    known = find(NOTIFIERS)
    return known.get(url.partition("://")[0], known[APPRISE])


def why_no_apprise() -> str:
    """Empty where it is installed."""
    if find_spec("apprise"):
        return ""
    return f"addresses need apprise, which is not installed ({pip_line('notify')}, or name a program)"


def scrubbed(text: str, destination: Destination) -> str:
    """`text` of somebody's without whatever the address or the program's arguments hold: tokens, names, passwords, also as they
    are sent."""
    from urllib.parse import quote, unquote

    secret = (destination.url.partition("://")[2], *destination.argv[1:])
    # A token may have a slash or an equals sign within, so that words are taken whole first.
    splits = (r"[=\s]+", r"\s+", r"[/:@?&=#,;\s]+")
    parts = {*destination.argv[1:], *(part for each in secret for split in splits for part in re.split(split, each))}
    long = [part for part in parts if len(part) >= 4]
    sent = (*map(unquote, long), *map(quote, long), *(quote(part, safe="") for part in long))
    for part in sorted({*long, *sent}, key=len, reverse=True):
        text = text.replace(part, "***")
    return text


# --- one message to one destination

TRIES = 4
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 20.0
COMMAND_LIMIT_S = 30.0
MAX_WHY = 200
# What a service makes of the kind of event: the colour and the sign.
_TYPES = {"failure": "failure", "hang": "failure", "requeue": "warning", "replacement": "warning", "restart": "warning"}


def deliver(destination: Destination, notice: Notice) -> str:
    """Why it did not go, empty if it did. Never raises."""
    try:
        why = _by_command(destination, notice) if destination.argv else _notifier(destination.url).load()(destination.url, notice)
    except FtslurmError as error:
        why = str(error)
    except (Exception, SystemExit) as error:  # a service's plugin may raise whatever it likes
        why = f"{type(error).__name__}: {error}"
    return cut(visible(scrubbed(str(why or ""), destination)), MAX_WHY)


def deliver_patiently(destination: Destination, notice: Notice, sleep: Callable[[float], Any], tries: int = TRIES) -> str:
    """The same, tried again with growing waits. sleep: may return sooner."""
    trying = Retrying(
        stop=stop_after_attempt(tries), wait=wait_exponential_jitter(FIRST_WAIT_S, LONGEST_WAIT_S), retry=retry_if_result(bool),
        sleep=sleep,
    )  # fmt: skip
    try:
        return trying(deliver, destination, notice)
    except RetryError as failed:
        why: str = failed.last_attempt.result()
        return why


def _by_command(destination: Destination, notice: Notice) -> str:
    title, text = shown(notice)
    about = {"FTSLURM_NOTICE_KIND": notice.kind, "FTSLURM_NOTICE_JOB": visible(notice.job), "FTSLURM_NOTICE_TITLE": title}
    env: Mapping[str, str] = {**os.environ, **about}
    done = run_group(destination.argv, COMMAND_LIMIT_S, env, given=f"{title}\n{text}\n" if text else f"{title}\n")
    if done.timed_out:
        return f"{destination.argv[0]} did not end within {COMMAND_LIMIT_S:g} s"
    if done.status:
        last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
        return f"{destination.argv[0]} ended with status {done.status}{f': {last}' if last else ''}"
    return ""


def by_apprise(url: str, notice: Notice) -> str:
    """A notifier, as those of plugins: why it did not go, empty if it did. It may raise."""
    if why := why_no_apprise():
        return why
    import apprise

    client = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False, app_id="ftslurm"))
    if not client.add(url):
        return f"apprise cannot read its address ({_without_secrets(url)})"
    title, text = shown(notice)
    log, said = logging.getLogger("apprise"), _Said()
    log.addHandler(said)
    mark = _LISTENS.set(said)
    log.propagate = False
    try:
        sent = client.notify(
            body=text or title, title=title if text else "", notify_type=_TYPES.get(notice.kind, "info"), body_format="text"
        )
    finally:
        _LISTENS.reset(mark)
        log.removeHandler(said)
    return "" if sent else said.last or f"{_without_secrets(url)} did not accept it"


class _Said(logging.Handler):
    """What apprise says while it sends for us: other threads send to other destinations. It works in threads of its own, which
    have the context of who called. Its debug lines hold the addresses, and are not listened to."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        if _LISTENS.get() is self:
            self.last = record.getMessage()


_LISTENS: ContextVar[_Said | None] = ContextVar("ftslurm_listens", default=None)

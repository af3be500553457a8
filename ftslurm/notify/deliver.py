"""One message to one destination: by apprise, or as the standard input of a program."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from tenacity import RetryError, Retrying, retry_if_result, stop_after_attempt, wait_exponential_jitter

from ftslurm.errors import FtslurmError
from ftslurm.model.text import cut, visible
from ftslurm.notify.destinations import Destination, scrubbed, why_no_apprise
from ftslurm.notify.notice import Notice, shown
from ftslurm.system.commands import run_group

TRIES = 4
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 20.0
COMMAND_LIMIT_S = 30.0
MAX_WHY = 200
# What a service makes of the kind of event: the colour and the sign.
_TYPES = {"failure": "failure", "hang": "failure", "requeue": "warning", "replacement": "warning", "restart": "warning"}


def deliver(destination: Destination, notice: Notice) -> str:
    """Why it did not go, empty if it did. Never raises."""
    try:
        return _by_command(destination, notice) if destination.argv else _by_apprise(destination, notice)
    except Exception as error:  # a service's plugin may raise whatever it likes
        return cut(visible(scrubbed(f"{type(error).__name__}: {error}", destination)), MAX_WHY)


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
    try:
        done = run_group(destination.argv, COMMAND_LIMIT_S, env, given=f"{title}\n{text}\n" if text else f"{title}\n")
    except FtslurmError as error:
        return str(error)
    if done.timed_out:
        return f"{destination.argv[0]} did not end within {COMMAND_LIMIT_S:g} s"
    if done.status:
        last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")
        said = f": {scrubbed(last, destination)}" if last else ""
        return cut(visible(f"{destination.argv[0]} ended with status {done.status}{said}"), MAX_WHY)
    return ""


def _by_apprise(destination: Destination, notice: Notice) -> str:
    if why := why_no_apprise():
        return why
    import apprise

    client = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False, app_id="ftslurm"))
    if not client.add(destination.url):
        return f"apprise cannot read its address ({destination.what})"
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
    if sent:
        return ""
    return cut(visible(scrubbed(said.last, destination)), MAX_WHY) or f"{destination.what} did not accept it"


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

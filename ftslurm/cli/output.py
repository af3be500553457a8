"""What several doors need: where the ledgers are, and how values are printed for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import click

from ftslurm.errors import UnknownJob
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.ledger.store import VARIABLE, Store, at_path, is_path, state_folder
from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.text import visible
from ftslurm.model.values import fields, is_dataclass


def store() -> Store:
    """Raises: StateError."""
    return Store(state_folder(os.environ))


class NoLedgerHere(UnknownJob):
    """Slurm knows the job."""


def find_ledger(job: str) -> tuple[Journal, Contents]:
    """The ledger of a job by its number, or a ledger file by its path.

    Raises: UnknownJob, with what Slurm says of it; StateError.
    """
    if is_path(job):
        return at_path(Path(job))
    try:
        return store().find(job)
    except UnknownJob as error:
        from ftslurm.wrapper.jobs import why_no_ledger

        if store().tasks(job) or not (why := why_no_ledger(job, os.geteuid(), os.environ)):
            raise
        hint = f"name the ledger file (JOBS/*.{job}.jsonl in the state folder), or set {VARIABLE}"
        raise NoLedgerHere(why, hint=hint) from error


def tasks_of(job: str) -> list[str]:
    """The tasks that have ledgers, where `job` is an array (`28`, `28_[1-10]`), and no job of its own. Raises: StateError."""
    return [] if is_path(job) else store().tasks(job)


def latest_job() -> str:
    """The one that this runs in, else the one whose ledger was written last. Raises: UnknownJob, StateError."""
    if inside := this_job():
        return inside
    from ftslurm.ledger.index import Index

    folder = state_folder(os.environ)
    jobs = Index(folder).named(lambda error: None)
    if not jobs:
        raise UnknownJob(f"no ledger in {folder}: no job has run under ftrun yet", hint=f"is {VARIABLE} set?")
    return Path(max(jobs, key=lambda name: jobs[name].at)).stem


def this_job() -> str | None:
    """The job that this runs in."""
    from ftslurm.slurm.env import read_allocation

    allocation = read_allocation(os.environ)
    return str(allocation.job) if allocation else None


def site_settings() -> HookSettings:
    """What the site has told the hooks: where users' ledgers are, and who is a user. Raises: PolicyError."""
    from ftslurm.hooks.hook_inputs import read_settings

    return read_settings(Path("/etc/ftslurm/hooks.yaml"))


def passed_over(what: object) -> None:
    """A ledger or a folder that cannot be read, of many."""
    click.echo(f"ftslurm: {visible(what)}: skipped", err=True)


def print_json(value: object) -> None:
    """tools/schemas.py has the type of what each command prints."""
    click.echo(as_json(value))


def as_json(value: object) -> str:
    return json.dumps(_plain(value), indent=2, sort_keys=True)


def _plain(value: Any) -> Any:
    """What json.dumps takes."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        told = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return told.pop("summary", {}) | told  # of a job
    if isinstance(value, JobSummary):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_plain(one) for one in value]
    return value

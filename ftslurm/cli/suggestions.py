"""What the shells may suggest: the user's own jobs, settings, profiles, states.

A suggestion reads, never asks Slurm and never fails: what cannot be known is not suggested.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

# The latest; nobody chooses from a longer list.
MOST_JOBS = 100

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Jobs that have a ledger, the latest first. Shells that show a help text get name and state."""
    from ftslurm.errors import FtslurmError
    from ftslurm.ledger.index import Index
    from ftslurm.ledger.store import state_folder
    from ftslurm.model.text import visible

    try:
        known = Index(state_folder(os.environ)).named().values()
    except (FtslurmError, OSError):
        return []
    fit = sorted((job for job in known if job.job.startswith(incomplete)), key=lambda job: -job.at)[:MOST_JOBS]
    return [CompletionItem(visible(job.job), help=visible(f"{job.name} {job.state}".strip())) for job in fit]


def settings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """NAME=DEFAULT, to be changed."""
    from ftslurm.config.catalog_files import load_glossary
    from ftslurm.model.settings.kinds import value_in_words
    from ftslurm.model.settings.tree import LEAVES

    found, words = [], load_glossary().settings
    for name, leaf in LEAVES.items():
        if name.startswith(incomplete):
            default = value_in_words(leaf, leaf.default)
            value = "" if default in ("none", "(empty)") or " " in default else default
            found.append(CompletionItem(f"{name}={value}", help=words[name]))
    return found


def profiles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ftslurm.config.settings_files import profile_names

    return [CompletionItem(name) for name in profile_names() if name.startswith(incomplete)]


def states(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """One, or the last of several with commas."""
    from ftslurm.model.folds.summary import STATES

    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in STATES if name.startswith(last)]


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def folders(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def known_words(*known: str) -> Completer:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in known if word.startswith(incomplete)]

    return complete

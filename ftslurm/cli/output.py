"""What several doors need: where the ledgers are, and how values are printed for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from ftslurm.ledger.store import Store, state_folder
from ftslurm.model.settings.hook_settings import HookSettings


def store() -> Store:
    """Raises: StateError."""
    return Store(state_folder(os.environ))


def site_settings() -> HookSettings:
    """What the site has told the hooks: where users' ledgers are, and who is a user. Raises: PolicyError."""
    from ftslurm.hooks.hook_inputs import read_settings

    path = Path("/etc/ftslurm/hooks.yaml")
    return read_settings(path) if path.exists() else HookSettings()


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True))

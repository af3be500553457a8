"""What several doors need: where the ledgers are, and how values are printed for programs."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from ftslurm.ledger.store import Store, state_folder


def store() -> Store:
    """Raises: StateError."""
    return Store(state_folder(os.environ))


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True))

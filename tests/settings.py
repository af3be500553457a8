"""Settings for tests, by the names of their fields."""

from __future__ import annotations

from typing import Any

from ftslurm.model.settings.tree import LEAVES, Settings, with_values

_NAMES = {"__".join(leaf.path): name for name, leaf in LEAVES.items()}


def settings_with(base: Settings | None = None, /, **values: Any) -> Settings:
    """The defaults, or `base`, with other values: `hang__stall_s=100.0` is that of `settings.hang.stall_s`."""
    return with_values(base or Settings(), {_NAMES[name]: value for name, value in values.items()})

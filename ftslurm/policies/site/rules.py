"""The form of a rule about a site."""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.model.site import Said, Site
from ftslurm.model.values import dataclass


class NotSaid(Exception):
    """A rule lacks a value: Slurm does not show it, or it cannot be read. The text says which, in words."""


@dataclass(frozen=True, slots=True)
class Rule:
    """keys: of `scontrol show config`; if one is not shown, the finding is unknown. judge: raises NotSaid; gives None if the
    check does not apply to this site."""

    check: str
    keys: tuple[str, ...]
    source: str
    judge: Callable[[Site], Said | None]

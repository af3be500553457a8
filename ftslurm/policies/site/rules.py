"""What a rule about a site is."""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.model.site import Said, Site
from ftslurm.model.values import dataclass


class NotSaid(Exception):
    """What a rule needs is not told, or cannot be read. The text: what, in words."""


@dataclass(frozen=True, slots=True)
class Rule:
    """keys: of `scontrol show config`; where one is not shown, the finding is unknown. judge: raises NotSaid; None where the
    check means nothing on this site."""

    check: str
    keys: tuple[str, ...]
    source: str
    judge: Callable[[Site], Said | None]

"""What ftrun tells notices to, where nobody gets any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftslurm.model.record import Record

if TYPE_CHECKING:
    from ftslurm.report.card import Card


class Silent:
    """Sends no notices."""

    def prepare(self) -> None:
        pass

    def record(self, record: Record, past: Sequence[Record]) -> None:
        pass

    def hang(self, card: Card) -> None:
        pass

    def end(self, wait_s: float) -> None:
        pass

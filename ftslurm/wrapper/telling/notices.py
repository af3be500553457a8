"""Does anyone get notices of a job, and where do the addresses stand? Loads teller.py only if so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ftslurm.model.record import Record
from ftslurm.model.settings.tree import Settings

if TYPE_CHECKING:
    from ftslurm.report.card import Card

FILE = "notify.yaml"


class Silent:
    """Sends no notices."""

    def record(self, record: Record, past: Sequence[Record]) -> None:
        pass

    def hang(self, card: Card) -> None:
        pass

    def end(self, wait_s: float) -> None:
        pass


def place_of(settings: Settings, root: Path) -> Path | None:
    """The file with the addresses, None where nobody is told. root: the state folder."""
    if settings.notify_file in ("", "none"):
        return None
    if settings.notify_file != "auto":
        return Path(settings.notify_file).expanduser().absolute()
    path = root / FILE
    return path if path.exists() else None


def notices_for(settings: Settings, root: Path, job: str, about: str, say: Callable[[str], None]) -> Silent:
    """Of one ftrun. A file that is not as it should be is said, and the job runs without. root: the state folder."""
    file = place_of(settings, root)
    if file is None:
        return Silent()
    from ftslurm.wrapper.telling.teller import make

    return make(settings, root, file, job, about, say)

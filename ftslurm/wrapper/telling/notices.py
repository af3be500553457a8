"""Does anyone get notices of a job, and which file has the addresses? Loads teller.py only if someone does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ftslurm.model.settings.tree import Settings
from ftslurm.wrapper.telling.silent import Silent

FILE = "notify.yaml"


def place_of(settings: Settings, root: Path) -> Path | None:
    """The file with the addresses, None if nobody gets notices. root: the state folder."""
    if settings.notify.file in ("", "none"):
        return None
    if settings.notify.file != "auto":
        return Path(settings.notify.file).expanduser().absolute()
    path = root / FILE
    return path if path.exists() else None


def notices_for(settings: Settings, root: Path, job: str, about: str, say: Callable[[str], None]) -> Silent:
    """The notices of one ftrun. If the file has a mistake, ftrun prints it, and the job runs without notices. root: the state
    folder.
    """
    file = place_of(settings, root)
    if file is None:
        return Silent()
    from ftslurm.wrapper.telling.teller import make

    return make(settings, root, file, job, about, say)

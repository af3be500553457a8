"""What starts fast loads late. Late is as soon as the job runs, and not when it is needed: by then somebody may have put another
version into our folder, or none. One rule for all of ftrun's process, so that no module that loads late need be named here.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil

log = logging.getLogger(__name__)

# Rooms of ftrun's own; hooks, doors, reports and the simulation are other processes'. All of it costs 0.06 s and 1 MB.
ROOMS = (
    "catalogs", "config", "launchers", "ledger", "model", "policies", "slurm", "system", "wrapper.controller", "wrapper.output",
    "wrapper.requeue", "wrapper.wire",
)  # fmt: skip
BESIDE = ("ftslurm.report.card", "ftslurm.sdk.notes", "psutil")


def load_all() -> None:
    """Logs what cannot be loaded, and goes on."""
    for name in BESIDE:
        _load(name)
    for room in ROOMS:
        place = importlib.import_module(f"ftslurm.{room}")
        for module in pkgutil.walk_packages(place.__path__, f"{place.__name__}.", onerror=lambda name: None):
            _load(module.name)


def _load(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception:
        log.debug("%s could not be loaded ahead", name, exc_info=True)

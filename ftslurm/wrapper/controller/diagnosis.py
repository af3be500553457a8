"""Loads what the classification needs, beside the running job or at its first failure, and asks it."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING

from ftslurm.model import decisions as do
from ftslurm.model.events import Advised, Diagnosed
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import unknown

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from ftslurm.catalogs.patterns import PatternBook
    from ftslurm.model.verdict import HintWords

# Rooms of ftrun's own; hooks, doors, reports and the simulation are other processes'. All of it costs 0.06 s and 1 MB.
ROOMS = (
    "catalogs", "config", "launchers", "ledger", "model", "policies", "slurm", "system", "wrapper.controller",
    "wrapper.requeue",
)  # fmt: skip
BESIDE = ("ftslurm.report.card", "ftslurm.sdk.notes")


class Diagnosis:
    """Answers the judge's questions on failures and hangs. It may take seconds, so it is asked beside the loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._book: PatternBook | None = None
        self._hints: Mapping[str, HintWords] = {}
        self._loads: threading.Timer | None = None

    def prepare(self, in_s: float = 0.0) -> None:
        """Load in the background, `in_s` from now: it takes a fifth of a second and 20 MB."""
        self.close()
        # Not a daemon: an interpreter that ends first ends those, and inside RE2 (C++) that is an abort of the whole process,
        # status 134 for a job that has gone well. A site's own files have been read before (wiring), so nothing blocks here.
        self._loads = threading.Timer(in_s, self._load_quietly)
        self._loads.start()

    def close(self) -> None:
        """What has not begun to load is not needed any more."""
        if self._loads is not None:
            self._loads.cancel()

    def diagnose(self, asked: do.Diagnose) -> Diagnosed:
        """Never raises: a job is not lost to its own diagnosis."""
        from ftslurm.policies.diagnose import Facts, diagnose
        from ftslurm.policies.weigh import on_the_whole

        try:
            found = on_the_whole(diagnose(asked.ends, Facts(asked.faults, asked.bad), self.load()), asked)
        except Exception as error:  # the edge of the judgement: the ladder goes on without a diagnosis
            _log().exception("the classification failed")
            found = unknown(f"the classification failed ({error})")
        return Diagnosed(asked.attempt, found, asked.rank)

    def advise(self, asked: do.Advise) -> Advised:
        """Hints on a hang (policies/hang/hints.py). Never raises."""
        from ftslurm.policies.hang.hints import hints

        try:
            self.load()
            told = hints(asked.ends, asked.evidence, self._hints)
            found = tuple((hint.name, hint.what, hint.advice, hint.evidence) for hint in told)
        except Exception:
            _log().exception("no hints could be given")
            found = ()
        return Advised(asked.attempt, found)

    def load(self) -> PatternBook:
        """Raises: PolicyError for a site's catalogue that is wrong."""
        with self._lock:
            if self._book is None:
                from ftslurm.config.catalog_files import load_hang_hints, load_pattern_book

                self._hints = load_hang_hints()
                self._book = load_pattern_book(self._settings.catalogs).of_ranks().with_keywords(self._settings.retry.keywords)
            return self._book

    def _load_quietly(self) -> None:
        try:
            self.load()
            load_all()
        except Exception:
            _log().debug("the patterns could not be loaded ahead", exc_info=True)


def load_all() -> None:
    """Load now, as the job runs, what else would load when it is needed: by then somebody may have put another version into our
    folder, or none. One rule for all of ftrun's process, so that no module that loads late need be named here. Logs what cannot
    be loaded, and goes on."""
    import pkgutil

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
        _log().debug("%s could not be loaded ahead", name, exc_info=True)


def _log() -> logging.Logger:
    import logging  # 4 ms of each step, were it loaded with this module

    return logging.getLogger(__name__)

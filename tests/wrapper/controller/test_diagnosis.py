"""What is loaded beside the job for its diagnosis, and an ftrun that ends meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

import ftslurm.policies.diagnose
from ftslurm.model import decisions as do
from ftslurm.model.events import Diagnosed
from ftslurm.model.settings.tree import Settings
from ftslurm.wrapper.controller.diagnosis import Diagnosis
from ftslurm.wrapper.controller.effects import Effects

# Half a second or more inside RE2, which lets go of the interpreter's lock while it works.
ENDS_MEANWHILE = """
import threading
import ftslurm.config.catalog_files as catalogs
from ftslurm.model.settings.tree import Settings
from ftslurm.catalogs.scanner import _set
from ftslurm.wrapper.controller.diagnosis import Diagnosis

begun = threading.Event()
inside = _set(["(?:a|b)*c{3,50}x%d" % number for number in range(200)])

def load(names):
    begun.set()
    for _ in range(20):
        inside.Match(b"abccc" * 20_000)

catalogs.load_pattern_book = load
Diagnosis(Settings()).prepare()
begun.wait(30)
"""


def test_an_ftrun_that_ends_while_it_is_loaded_keeps_its_status() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", ENDS_MEANWHILE], capture_output=True, text=True, timeout=180)
        assert (done.returncode, done.stderr) == (0, "")


def test_what_is_to_be_loaded_later_does_not_keep_an_ftrun_that_ends() -> None:
    diagnosis = Diagnosis(Settings())
    diagnosis.prepare(3600.0)
    (waits,) = (thread for thread in threading.enumerate() if isinstance(thread, threading.Timer))
    diagnosis.close()
    waits.join(60)
    assert not waits.is_alive()


# Somebody removes the installation, or puts another version in its place, while the ranks run.
IS_REMOVED = """
import sys, threading
from ftslurm.model import decisions as do
from ftslurm.model.settings.tree import Settings
from ftslurm.wrapper.controller.diagnosis import Diagnosis

class Gone:
    def find_spec(self, name, *_):
        if name.startswith("ftslurm"):
            raise ModuleNotFoundError(name)

diagnosis = Diagnosis(Settings())
diagnosis.prepare()
[thread.join() for thread in threading.enumerate() if thread is not threading.main_thread()]
sys.meta_path.insert(0, Gone())
found = diagnosis.diagnose(do.Diagnose(3, ()))
assert "classification" not in found.verdict.what, found
from ftslurm.report.card import LastCard, card_lines
from ftslurm.policies.hang.hints import hints
"""


def test_the_end_of_an_attempt_needs_nothing_more_of_the_installation() -> None:
    done = subprocess.run([sys.executable, "-c", IS_REMOVED], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")


class Slow(Diagnosis):
    """Takes until it is let go."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.go, self.answered = threading.Event(), threading.Event()

    def diagnose(self, asked: do.Diagnose) -> Diagnosed:
        self.go.wait(30)
        self.answered.set()
        return super().diagnose(asked)


class Background:
    """The part of the sources that is used."""

    def background_to_the_end(self, work: Any) -> None:
        threading.Thread(target=work).start()


def test_the_loop_goes_on_while_it_is_found_out_what_is_behind_a_failure() -> None:
    slow: Slow = Slow()
    effects = Effects(Background(), None, None, None, None, None, slow, None)  # type: ignore[arg-type]
    effects.carry_out(do.Diagnose(1, ()))
    assert not slow.answered.is_set()
    slow.go.set()
    assert slow.answered.wait(30)


def test_a_diagnosis_that_fails_is_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("no such rank")

    monkeypatch.setattr(ftslurm.policies.diagnose, "diagnose", fails)
    found = Diagnosis(Settings()).diagnose(do.Diagnose(3, (), rank=7))
    assert (found.attempt, found.rank, found.verdict.signature) == (3, 7, "unknown")
    assert found.verdict.what == "not known: the classification failed (no such rank)"

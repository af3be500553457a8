"""What is loaded beside the job for its diagnosis, and an ftrun that ends meanwhile."""

from __future__ import annotations

import subprocess
import sys

# Half a second or more inside RE2, which lets go of the interpreter's lock while it works.
ENDS_MEANWHILE = """
import threading
import ftslurm.config.catalog_files as catalogs
from ftslurm.model.settings import Settings
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
        done = subprocess.run([sys.executable, "-c", ENDS_MEANWHILE], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")

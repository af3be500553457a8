"""The folder of ftslurm goes away while a job runs, as in an upgrade in place: the job fails, restarts and tells as if it had not."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import click

import ftslurm
from ftslurm.wrapper.controller.diagnosis import ROOMS

# Of a process of that installation: what it imports, and when.
AUDIT = """
import importlib, os, sys
def note(event, args):
    if event == "import":
        with open({log!r}, "a") as log:
            log.write(f"{{os.getpid()}} {{args[0]}}\\n")
sys.addaudithook(note)
load = importlib.import_module  # which the hook does not hear of
def loaded(name, *more, **how):
    note("import", (name,))
    module = load(name, *more, **how)
    note("import", (name + "!",))
    return module
importlib.import_module = loaded
"""
TRAIN = """
import os, sys, time
if os.environ["SLURM_PROCID"] == "1" and os.environ["MA_PROC_START_CNT"] == "1":
    while not os.path.exists("moved"):
        time.sleep(0.05)
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""
# The last that is loaded ahead (wrapper/controller/diagnosis.py), and is there.
_ROOM = importlib.import_module(f"ftslurm.{ROOMS[-1]}")
LATE = [module.name for module in pkgutil.walk_packages(_ROOM.__path__, f"{_ROOM.__name__}.")][-1] + "!"
LIMIT_S = 40.0


def installed(folder: Path) -> Path:
    """A copy, in an environment of its own."""
    venv.create(folder, with_pip=False)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "libraries.pth").write_text(str(Path(click.__file__).parents[1]))
    shutil.copytree(Path(ftslurm.__file__).parent, site / "ftslurm")  # with what is compiled
    (site / "audit.py").write_text(AUDIT.format(log=str(folder / "imports")))
    (site / "audit.pth").write_text("import audit")
    return site


def imports(log: Path) -> list[tuple[str, str]]:
    return [(words[0], words[-1]) for line in log.read_text().splitlines() if (words := line.split())] if log.exists() else []


def until(what: str, true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def test_a_job_goes_on_without_its_installation(tmp_path: Path) -> None:
    site = installed(tmp_path / "env")
    log, told, state = tmp_path / "env/imports", tmp_path / "told", tmp_path / "state"
    state.mkdir(mode=0o700)
    notifier = tmp_path / "notifier"
    notifier.write_text(f"#!/bin/sh\necho $FTSLURM_NOTICE_TITLE >>{told}\n")
    notifier.chmod(0o700)
    addresses = state / "notify.yaml"
    addresses.touch(0o600)
    addresses.write_text(f"me: [{notifier}]\n")
    (tmp_path / "train.py").write_text(TRAIN)
    start = "import sys; del sys.argv[0]; from ftslurm.cli.doors import ftrun; ftrun()"
    options = ("--ft-launcher", "local", "--ft-set", "notify.end_wait=30s", "--ft-set", "stop.grace=1s")
    argv = [tmp_path / "env/bin/python", "-c", start, "ftrun", *options, "-n2", sys.executable, "train.py"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FTSLURM_STATE_DIR": str(state)}
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as job:
        try:
            until("what loads late to be loaded", lambda: (str(job.pid), LATE) in imports(log))
            until(
                "the sender to be up",
                lambda: any(name == "ftslurm.notify.outbox" and pid != str(job.pid) for pid, name in imports(log)),
            )
            (site / "ftslurm").rename(site / "of-yesterday")
            before = len(imports(log))
            (tmp_path / "moved").touch()
            _, said = job.communicate(timeout=LIMIT_S)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    assert (
        job.returncode == 0 and "is restarted in place" in said and "a GPU kernel accessed memory that is not its own" in said
    ), said
    assert "restarted in place: rank 1" in told.read_text()
    late = [name for pid, name in imports(log)[before:] if name.startswith("ftslurm") and pid == str(job.pid)]
    assert late == [], said

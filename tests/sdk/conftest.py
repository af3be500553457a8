"""A rank's environment, and the sdk as it is before its first use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftslurm.sdk import client

ROOT = Path(__file__).resolve().parents[2]
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
OURS = ("FTSLURM_", "MA_")


@pytest.fixture
def rank_env(tmp_path: Path) -> dict[str, str]:
    """What a rank gets, and nothing of whoever runs the tests."""
    clean = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES and not name.startswith(OURS)}
    clean.pop("PYTHONPATH", None)
    return {**clean, "FTSLURM_PAGE": str(tmp_path / "pages" / "r3.a2"), "FTSLURM_ATTEMPT": "2", "RANK": "3", "WORLD_SIZE": "1"}


@pytest.fixture
def page_path(rank_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """This process is a rank that has told nothing yet. Gives the path of its page."""
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("FTSLURM_PAGE", "FTSLURM_ATTEMPT", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, rank_env[name])
    for name, value in (("_page", client._FIRST_USE), ("_claimed", None), ("_base", None), ("_scopes", []), ("_sections", {})):
        monkeypatch.setattr(client, name, value)
    yield rank_env["FTSLURM_PAGE"]


@pytest.fixture
def rank(rank_env: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program as a rank: `rank(source, NAME="value")`; its output is shown if it fails."""

    def run(source: str, status: int = 0, python: str = sys.executable, **more: Any) -> subprocess.CompletedProcess[str]:
        env = {**rank_env, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in more.items()}}
        done = subprocess.run([python, "-c", textwrap.dedent(source)], env=env, capture_output=True, text=True, timeout=180)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run

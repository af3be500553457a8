"""torch, for tests that train with it."""

from __future__ import annotations

import importlib.util
import os

import pytest


def need_torch() -> None:
    """Skip without torch, visibly; where nothing may be missing that is an error."""
    if importlib.util.find_spec("torch") is None:
        if os.environ.get("FTSLURM_REQUIRE_SLURM") == "1":
            pytest.fail("torch is not installed, and FTSLURM_REQUIRE_SLURM=1 says that nothing may be missing")
        pytest.skip("torch is not installed: tools/setup test VENV does it")

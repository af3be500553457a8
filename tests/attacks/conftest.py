"""Attacks by two local users on each other and on root's hooks. They need root, for nobody else can be two users, and time:
`make test-attacks` and `make test-long` run them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest looks at marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = "" if os.environ.get("FTSLURM_TEST_ATTACKS") == "1" else "attacks are `make test-attacks`"
    why = why or ("" if os.geteuid() == 0 else "only root can be two users")
    for item in (item for item in items if HERE in item.path.parents):
        item.add_marker(pytest.mark.long)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))

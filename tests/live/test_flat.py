"""For users who are not root there is a cluster whose nodes are processes of one machine: a few of these tests, as one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.conftest import REPO, as_user, copied_commands, user_folder

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="whoever is not root runs all tests so"),
]

USER = "daemon"  # from 26.05 on Slurm refuses nobody as SlurmUser
LAST_LINES = 200


@pytest.mark.timeout(900)
@pytest.mark.flaky(reruns=0)  # those that it runs have their second try
def test_what_an_ordinary_user_has_works() -> None:
    with user_folder(USER) as home:
        tree = home.parent / "tree"  # the checkout may lie where only root goes
        for name in ("ftslurm", "tests", "tools"):
            shutil.copytree(REPO / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "corpus"))
        shutil.copy(REPO / "pyproject.toml", tree)
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8",
               "FTSLURM_REQUIRE_SLURM": os.environ.get("FTSLURM_REQUIRE_SLURM", "0"), "PYTHONDONTWRITEBYTECODE": "1",
               "FTSLURM_SECOND_TRIES": os.environ.get("FTSLURM_SECOND_TRIES", "0")}  # fmt: skip
        argv = [reachable_python(home), "-m", "pytest", "-p", "no:cacheprovider", "-m", "flat", "tests/live"]
        done = subprocess.run(argv, cwd=tree, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, **as_user(USER))  # fmt: skip
    last_words = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
    assert done.returncode == 0, last_words
    assert " passed" in last_words, last_words


def reachable_python(home: Path) -> str:
    """The one that runs these tests, or a copy with all that it imports where the user can reach it."""
    try:
        subprocess.run(
            [sys.executable, "-c", "import pytest, ftslurm"], cwd="/", check=True, capture_output=True, **as_user(USER)
        )
    except (OSError, subprocess.CalledProcessError):
        return str(copied_commands(home.parent) / "python")
    return sys.executable

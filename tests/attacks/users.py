"""Two ordinary users of the machine, as every Debian has them: whose job it is, and her neighbour."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
OWNER, NEIGHBOUR = 65534, 1  # nobody, daemon
TIME_S = 60.0


def start_as(user_id: int, program: str, *words: str, **how: Any) -> subprocess.Popen[str]:
    """A Python program of that user's, which may import ftslurm."""
    env: Mapping[str, str] = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": "/"} | how
    return subprocess.Popen(
        [sys.executable, "-c", program, *words], user=user_id, group=user_id, extra_groups=[], env=dict(env), **given
    )


def run_as(user_id: int, program: str, *words: str) -> str:
    """What it printed to its end, errors too."""
    with start_as(user_id, program, *words) as process:
        return process.communicate(timeout=TIME_S)[0]

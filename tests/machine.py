"""How busy this machine is, for the few tests that say how long something may take."""

from __future__ import annotations

import os
from pathlib import Path


def slowness() -> float:
    """How many times longer what computes may take now than where nothing else runs: those that want a core, for each core; at least 1."""
    running = next(line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if line.startswith("procs_running"))
    return max(1.0, max(os.getloadavg()[0], float(running)) / (os.cpu_count() or 1))

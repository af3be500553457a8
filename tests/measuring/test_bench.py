"""The benches load: what they import goes by the names that the program has now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_every_bench_can_be_loaded() -> None:
    names = sorted(path.stem for path in BENCH.glob("*.py"))
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCH, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""requirements.lock, which root installs: all that ftslurm needs, each by hash, and a version that pyproject.toml allows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")
packaging = pytest.importorskip("packaging.requirements")
ROOT = Path(__file__).parents[2]


def locked() -> dict[str, list[tuple[str, int]]]:
    """Name -> (version, number of hashes) of each pin."""
    found: dict[str, list[tuple[str, int]]] = {}
    for block in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text()):
        if pin := re.match(r"([a-z0-9-]+)==(\S+)", block):
            found.setdefault(pin[1], []).append((pin[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}", block))))
    return found


def test_all_that_is_needed_is_pinned_by_hash() -> None:
    project, pins = tomllib.loads((ROOT / "pyproject.toml").read_text()), locked()
    extras = project["project"]["optional-dependencies"]
    of_hooks = (*extras["nvidia"], *extras["amd"])  # on nodes with GPUs
    for line in (*project["project"]["dependencies"], *project["build-system"]["requires"], *of_hooks):
        needed = packaging.Requirement(line)
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        assert name in pins, f"{name} is missing: run tools/lock"
        assert all(version in needed.specifier for version, _ in pins[name]), f"{line}: run tools/lock"
    assert all(hashes for each in pins.values() for _, hashes in each)
    assert not re.search(r"://|^-(?!-)|^--(?!hash)", (ROOT / "requirements.lock").read_text(), re.M), (
        "nothing names where it is had"
    )


AUDITS = {
    "Found 2 known vulnerabilities in 1 package": (1, "Found 2"), "No known vulnerabilities found": (0, "no advisory"),
    "x could not be audited: x": (0, "nobody has looked"), "ConnectionError: no": (0, "nobody has looked"),
}  # fmt: skip


@pytest.mark.parametrize("answer", AUDITS)
def test_what_the_audit_says(tmp_path: Path, answer: str) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/pip-audit"
    tool.write_text(f"#!/bin/sh\necho '{answer}'\nexit {int('No known' not in answer)}\n")
    tool.chmod(0o755)
    done = subprocess.run([ROOT / "tools/audit", tmp_path], capture_output=True, text=True, check=False)
    status, said = AUDITS[answer]
    assert done.returncode == status and said in done.stdout

"""Another's drain is neither overwritten nor undone, whatever was known before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ftslurm.slurm.cli_client import SlurmAdmin
from ftslurm.system.commands import CommandResult

OURS = "ftslurm: "


class Slurm:
    """state: of the one node, as scontrol shows it."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.updates: list[str] = []

    def __call__(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        if "update" in argv:
            self.updates.append(argv[3])
            return CommandResult(tuple(argv), 0, "", "")
        return CommandResult(tuple(argv), 0, f"NodeName=n1 Arch=x86_64 State={self.state}\n", "")


@pytest.mark.parametrize(
    ("state", "stands"),
    [
        ("IDLE", None),
        ("IDLE+DRAIN Reason=ftslurm: command: fan [root@2026-01-01T00:00:00]", None),
        ("MIXED+DRAIN Reason=new fan [eve@2026-01-01T00:00:00]", "new fan"),
        ("IDLE+FAIL Reason=new fan [eve@2026-01-01T00:00:00]", "new fan"),
        ("DOWN+NOT_RESPONDING Reason=new fan [eve@2026-01-01T00:00:00]", "new fan"),
        ("IDLE+DRAIN", ""),
        ("IDLE+POWERED_DOWN", None),
        ("IDLE Reason=mended [eve@2026-01-01T00:00:00]", None),
    ],
)
def test_drain(state: str, stands: str | None) -> None:
    slurm = Slurm(state)
    assert SlurmAdmin(1, slurm).drain_unless_drained("n1", f"{OURS}x", OURS) == stands
    assert slurm.updates == ([] if stands is not None else ["State=DRAIN"])


@pytest.mark.parametrize(
    ("state", "done"),
    [
        ("IDLE+DRAIN Reason=ftslurm: command: fan [root@2026-01-01T00:00:00]", True),
        ("IDLE+DRAIN Reason=new fan [eve@2026-01-01T00:00:00]", False),
        ("IDLE+DRAIN", False),
        ("IDLE Reason=ftslurm: command: fan [root@2026-01-01T00:00:00]", False),
    ],
)
def test_undrain(state: str, done: bool) -> None:
    slurm = Slurm(state)
    assert SlurmAdmin(1, slurm).undrain_if_ours("n1", OURS) is done
    assert slurm.updates == (["State=UNDRAIN"] if done else [])

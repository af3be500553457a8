"""The health check and the Prolog beside a person who drains the node while they look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ftslurm.hooks import health_check, prolog
from ftslurm.hooks.hook_inputs import HookMemory, Memory
from ftslurm.hooks.node_look import Looked
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.policies.node import NodeFinding, NodeHealth
from ftslurm.slurm.cli_client import SlurmAdmin
from ftslurm.system.commands import CommandResult

OURS = "IDLE+DRAIN Reason=ftslurm: command: fan"
REBOOTS = "IDLE+DRAIN+REBOOT_REQUESTED Reason=ftslurm: command: fan"
THEIRS = "IDLE+DRAIN Reason=new fan"
ENV = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000"}


class Slurm:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: str, after: str, health: NodeHealth) -> None:
        self.state, self.updates = before, list[str]()

        def look(settings: HookSettings, node: str, known: HookMemory) -> Looked:
            self.state = after
            return Looked((NodeFinding("command", health, "fan"),), known)

        for module in (health_check, prolog):
            monkeypatch.setattr(module, "look_at_node", look)
            monkeypatch.setattr(module, "SlurmAdmin", lambda timeout_s: SlurmAdmin(timeout_s, self))

    def __call__(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        if "update" in argv:
            self.updates.append(argv[3])
        return CommandResult(tuple(argv), 0, f"NodeName=n1 State={self.state}\n", "")


@pytest.mark.parametrize(
    ("before", "after", "health", "updates"),
    [
        (OURS, OURS, NodeHealth.GOOD, ["State=UNDRAIN"]),
        (OURS, THEIRS, NodeHealth.GOOD, []),
        (REBOOTS, REBOOTS, NodeHealth.GOOD, []),
        ("IDLE", "IDLE", NodeHealth.BAD, ["State=DRAIN"]),
        ("IDLE", THEIRS, NodeHealth.BAD, []),
    ],
)
def test_the_health_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str, after: str, health: NodeHealth, updates: list[str]
) -> None:
    slurm = Slurm(monkeypatch, before, after, health)
    assert health_check.check(HookSettings(state=str(tmp_path)), ENV)[0]
    assert slurm.updates == updates


@pytest.mark.parametrize(("after", "updates"), [("IDLE", ["State=DRAIN"]), (OURS, ["State=DRAIN"]), (THEIRS, [])])
def test_the_prolog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after: str, updates: list[str]) -> None:
    slurm = Slurm(monkeypatch, "IDLE", after, NodeHealth.BAD)
    fit, said = prolog.check(HookSettings(state=str(tmp_path)), ENV)
    assert not fit and slurm.updates == updates and ("new fan" in said) == (after == THEIRS)
    assert Memory(str(tmp_path), "n1").read().drained


def test_the_prolog_forgets_what_a_person_has_taken_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), "n1")
    known = memory.read()
    memory.change(known, HookMemory(known.boot, 7, "XID 79"))
    slurm = Slurm(monkeypatch, "IDLE", "IDLE", NodeHealth.GOOD)
    assert prolog.check(HookSettings(state=str(tmp_path)), ENV)[0] and slurm.updates == []
    assert memory.read() == HookMemory(known.boot, 7, "", False)

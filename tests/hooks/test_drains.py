"""What a person takes back is not held against the node again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ftslurm.hooks.hook_inputs import HookMemory, known_now
from ftslurm.slurm.cli_client import SlurmAdmin
from ftslurm.system.commands import CommandResult


def admin(state: str) -> SlurmAdmin:
    def answer(argv: Sequence[str], timeout_s: float) -> CommandResult:
        return CommandResult(tuple(argv), 0 if state else None, f"NodeName=n1 State={state}\n", "")

    return SlurmAdmin(1, answer)


@pytest.mark.parametrize(("state", "proof"), [("IDLE", ""), ("IDLE+DRAIN Reason=ftslurm: x", "XID 79"), ("", "XID 79")])
def test_a_proof_on_a_node_that_is_not_drained_was_taken_back(state: str, proof: str) -> None:
    assert known_now(admin(state), "n1", HookMemory("b", 7, "XID 79")).proof == proof


def test_slurm_is_not_asked_for_nothing() -> None:
    def never(argv: Sequence[str], timeout_s: float) -> CommandResult:
        raise AssertionError(argv)

    assert known_now(SlurmAdmin(1, never), "n1", HookMemory("b", 7)) == HookMemory("b", 7)

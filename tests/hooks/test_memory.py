"""What several scripts on one node remember at the same time."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.errors import StateError
from ftslurm.hooks import hook_inputs
from ftslurm.hooks.hook_inputs import BOOT_ID, HookMemory, Memory, Unfinished, merged
from ftslurm.model.exits import Process

BOOT = "b"
A, B = Process(20, 1, 1000, "a", 5.0), Process(21, 1, 1000, "b", 6.0)
C, D = Unfinished(1000, "5"), Unfinished(1001, "6_2")


@pytest.mark.parametrize(
    ("now", "before", "after", "then"),
    [
        # An Epilog has added a process while a health check was looking.
        (
            HookMemory(BOOT, 7, "", True, (A,)),
            HookMemory(BOOT, 7, "", False),
            HookMemory(BOOT, 9, "", False),
            HookMemory(BOOT, 9, "", True, (A,)),
        ),
        # A health check saw one end while an Epilog was adding another.
        (
            HookMemory(BOOT, 7, "", True, (A, B)),
            HookMemory(BOOT, 7, "", True, (A,)),
            HookMemory(BOOT, 7),
            HookMemory(BOOT, 7, "", True, (B,)),
        ),
        # A Prolog found a proof while a health check had read fewer lines.
        (
            HookMemory(BOOT, 9, "XID 79", True),
            HookMemory(BOOT, 5, "", False),
            HookMemory(BOOT, 7, "", False),
            HookMemory(BOOT, 9, "XID 79", True),
        ),
        # An Epilog has noted what it cleans up while another's was done.
        (
            HookMemory(BOOT, 7, "", False, (), (C, D)),
            HookMemory(BOOT, 7, "", False, (), (C,)),
            HookMemory(BOOT, 7, "", False),
            HookMemory(BOOT, 7, "", False, (), (D,)),
        ),
        # A person took the node back.
        (
            HookMemory(BOOT, 9, "XID 79", True),
            HookMemory(BOOT, 9, "XID 79", True),
            HookMemory(BOOT, 9, "", False),
            HookMemory(BOOT, 9, "", False),
        ),
        # Of an earlier boot nothing counts.
        (
            HookMemory("a", 99, "XID 79", True, (A,)),
            HookMemory(BOOT),
            HookMemory(BOOT, 3, "", False),
            HookMemory(BOOT, 3, "", False),
        ),
    ],
)
def test_each_changes_only_what_it_has_found_out(
    now: HookMemory, before: HookMemory, after: HookMemory, then: HookMemory
) -> None:
    assert merged(now, before, after) == then


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = Memory(str(tmp_path / "{node}"), "n1")
    before = kept.read()
    after = replace(before, read_to=4, proof="XID 79", stuck=(A,), unfinished=(C, D))
    kept.change(before, after)
    assert kept.read() == after and kept.root == tmp_path / "n1"
    assert json.loads((kept.root / "node.json").read_text())["boot"] == BOOT_ID.read_text().strip()


def test_one_that_was_written_before_there_was_as_much_to_remember_is_read(tmp_path: Path) -> None:
    boot = BOOT_ID.read_text().strip()
    (tmp_path / "node.json").write_text(json.dumps({"boot": boot, "read_to": 4, "proof": "", "drained": False, "stuck": []}))
    assert Memory(str(tmp_path), "n1").read() == HookMemory(boot, 4, "", False)


def test_of_too_many_users_the_latest_are_remembered() -> None:
    many = tuple(Unfinished(1000 + number, "5") for number in range(50))
    kept = merged(HookMemory(BOOT), HookMemory(BOOT), HookMemory(BOOT, unfinished=many)).unfinished
    assert kept == many[-hook_inputs.MAX_UNFINISHED :]


def test_a_lock_that_stays_is_waited_for_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_inputs, "LOCK_WAIT_S", 0.1)
    kept = Memory(str(tmp_path), "n1")
    with (tmp_path / "node.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="held by another"):
            kept.change(kept.read(), kept.read())
    kept.change(kept.read(), kept.read())

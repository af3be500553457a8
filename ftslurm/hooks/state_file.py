"""What root's scripts on a node remember from one run to the next: one small JSON file and a folder of evidence."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from ftslurm.errors import StateError
from ftslurm.model.exits import Process
from ftslurm.model.values import dataclass
from ftslurm.system.files import Locked, locked, private_folder, replace_file

# Users whose last Epilogs did not come to their end here; of more the oldest are forgotten.
MAX_UNFINISHED = 20
MAX_EVIDENCE_FILES, MAX_EVIDENCE_BYTES = 500, 1 << 16
LOCK_WAIT_S = 5.0
T = TypeVar("T")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The Epilog of this job found something left by the user, and has not come to know that it is gone."""

    user_id: int
    job: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """boot: of the kernel whose log was read up to line `read_to`. proof: what it said against the node.

    drained: by us, or nobody remembers: Slurm is asked then. stuck: processes that outlived SIGKILL. unfinished: the last
    is the latest.
    """

    boot: str = ""
    read_to: int = -1
    proof: str = ""
    drained: bool = True
    stuck: tuple[Process, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()


def merged(now: Remembered, before: Remembered, after: Remembered) -> Remembered:
    """`now` with what one script has changed from `before` to `after`. Pure.

    Where something speaks against the node still, Slurm is asked whether it is drained.
    """
    if now.boot != after.boot:
        return after
    stuck = _joined(now.stuck, before.stuck, after.stuck)
    unfinished = _joined(now.unfinished, before.unfinished, after.unfinished)[-MAX_UNFINISHED:]
    proof = after.proof if after.proof != before.proof else now.proof
    drained = after.drained if after.drained != before.drained else now.drained
    return Remembered(now.boot, max(now.read_to, after.read_to), proof, drained or bool(proof or stuck), stuck, unfinished)


def _joined(now: tuple[T, ...], before: tuple[T, ...], after: tuple[T, ...]) -> tuple[T, ...]:
    gone = set(before) - set(after)
    come = [one for one in after if one not in before]
    return tuple(dict.fromkeys([*(one for one in now if one not in gone), *come]))


class Memory:
    """root: the site's state folder."""

    def __init__(self, root: str, node: str) -> None:
        self.root = Path(root.replace("{node}", node))

    def read(self) -> Remembered:
        """What cannot be read is forgotten; nothing of an earlier boot counts."""
        now = BOOT_ID.read_text().strip()
        try:
            body = json.loads((self.root / "node.json").read_bytes())
            stuck = tuple(Process(**one) for one in body.pop("stuck"))
            unfinished = tuple(Unfinished(**one) for one in body.pop("unfinished", ()))
            found = Remembered(**body, stuck=stuck, unfinished=unfinished)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return Remembered(now)
        return found if found.boot == now else Remembered(now)

    def change(self, before: Remembered, after: Remembered) -> None:
        """Write what differs between the two, and keep what others have written since `before` was read.

        Raises: StateError, OSError.
        """
        try:
            with locked(private_folder(self.root) / "node.lock", LOCK_WAIT_S):
                replace_file(self.root / "node.json", json.dumps(asdict(merged(self.read(), before, after))).encode())
        except Locked:
            raise StateError(f"{self.root}/node.lock is held by another", hint="is a script of Slurm's stuck here?") from None

    def said(self, hook: str, sentence: str) -> None:
        """For people: what the last run of this hook came to. Never raises."""
        with suppress(Exception):
            replace_file(private_folder(self.root) / f"{hook}.last", f"{sentence}\n".encode())

    def keep_evidence(self, name: str, text: str) -> None:
        """What a job left behind, for people; of too many files the oldest go. Raises: StateError, OSError."""
        folder = private_folder(private_folder(self.root) / "evidence")
        old = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in old[: max(len(old) - MAX_EVIDENCE_FILES + 1, 0)]:
            path.unlink(missing_ok=True)
        with (folder / name).open("a") as file:
            if file.tell() < MAX_EVIDENCE_BYTES:
                file.write(text[:MAX_EVIDENCE_BYTES])

"""What root's scripts on a node remember from one run to the next: one small JSON file and a folder of evidence."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ftslurm.model.processes import Process
from ftslurm.system.files import private_folder

MAX_EVIDENCE_FILES, MAX_EVIDENCE_BYTES = 500, 1 << 16
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Remembered:
    """boot: of the kernel whose log was read up to line `read_to`. proof: what it said against the node.

    drained: by us, or nobody remembers: Slurm is asked then. stuck: processes that outlived SIGKILL.
    """

    boot: str = ""
    read_to: int = -1
    proof: str = ""
    drained: bool = True
    stuck: tuple[Process, ...] = ()


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
            found = Remembered(**body, stuck=stuck)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return Remembered(now)
        return found if found.boot == now else Remembered(now)

    def write(self, remembered: Remembered) -> None:
        """Raises: StateError, OSError."""
        private_folder(self.root)
        self._replace("node.json", json.dumps(asdict(remembered)))

    def said(self, hook: str, sentence: str) -> None:
        """For people: what the last run of this hook came to. Never raises."""
        with suppress(Exception):
            private_folder(self.root)
            self._replace(f"{hook}.last", f"{sentence}\n")

    def keep_evidence(self, name: str, text: str) -> None:
        """What a job left behind, for people; of too many files the oldest go. Raises: StateError, OSError."""
        folder = private_folder(private_folder(self.root) / "evidence")
        old = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in old[: max(len(old) - MAX_EVIDENCE_FILES + 1, 0)]:
            path.unlink(missing_ok=True)
        with (folder / name).open("a") as file:
            if file.tell() < MAX_EVIDENCE_BYTES:
                file.write(text[:MAX_EVIDENCE_BYTES])

    def _replace(self, name: str, text: str) -> None:
        fresh = self.root / f".{name}.{os.getpid()}"
        fresh.write_text(text)
        fresh.replace(self.root / name)

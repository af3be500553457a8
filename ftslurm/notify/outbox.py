"""Notices that wait to be sent: `<state folder>/notices/`, a file for each of them and each destination.

What an ftrun could not send any more (its node has no way out, it was killed, the job was requeued) the next one sends, or
`ftslurm notify --pending` on a machine that has a way out. Who sends one takes it first, by renaming it, so that nobody else
does; when it is sent the file is removed. Names begin with the time, so that sorting them is their order.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2s
from pathlib import Path

from ftslurm.errors import StateError
from ftslurm.model.values import dataclass
from ftslurm.notify.notice import Notice, from_json, to_json
from ftslurm.system.files import private_folder, read_private

MAX_WAITING = 1000
MAX_BYTES = 64 << 10
# News that old is none.
TOO_OLD_S = 86400.0
# Whoever has taken one and not sent it in that time is not there any more.
TAKEN_S = 600.0
_NEW, _TAKEN = ".notice", ".taken"


@dataclass(frozen=True, slots=True)
class Item:
    """One notice for one destination. path: as it is called now."""

    path: Path
    notice: Notice


class Outbox:
    """root: the state folder. file: where the destinations stand; those of another file are not ours to send."""

    def __init__(self, root: Path, file: Path, now: Callable[[], float] = time.time) -> None:
        self._folder = root / "notices"
        self._root = root
        self._of = _digest(str(file.resolve()))
        self._now = now
        self._me = f"{socket.gethostname()}-{os.getpid()}"

    def put(self, notice: Notice, destination: str) -> bool:
        """False where too many wait already. Raises: StateError."""
        private_folder(self._root)
        folder = private_folder(self._folder)
        try:
            if sum(1 for _ in os.scandir(folder)) >= MAX_WAITING:
                return False
            name = f"{notice.at:017.6f}.{_digest(notice.id)}.{self._of}.{destination}"
            new = folder / f"{name}.{os.getpid()}.new"
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(to_json(notice).encode())
            new.rename(folder / f"{name}{_NEW}")
        except OSError as error:
            raise StateError(f"{folder} cannot be written: {error.strerror}", hint="check free space and rights") from None
        return True

    def waiting(self, destination: str) -> list[Path]:
        """The oldest first; what is too old is removed, and what a sender left behind is there again."""
        return sorted(self._current(destination))

    def being_sent(self, destination: str) -> tuple[int, float]:
        """How many a sender has taken, and how many seconds from now the last of them counts as waiting again: that sender may
        have died with its node or its job."""
        taken = []
        for path in self._folder.glob(f"*.{self._of}.{destination}.*{_TAKEN}"):
            with suppress(OSError):
                taken.append(path.stat().st_mtime)
        return len(taken), max(0.0, max(taken, default=0.0) + TAKEN_S - self._now())

    def anything(self) -> bool:
        return any(True for _ in self._current(None))

    def take(self, paths: list[Path]) -> list[Item]:
        """Those of them that nobody else has taken meanwhile."""
        found = []
        for path in paths:
            mine = path.with_name(f"{path.name.removesuffix(_NEW)}.{self._me}{_TAKEN}")
            try:
                path.rename(mine)
                os.utime(mine)
                notice = from_json(read_private(mine, MAX_BYTES))
            except OSError:
                continue
            if notice is None:
                mine.unlink(missing_ok=True)
            else:
                found.append(Item(mine, notice))
        return found

    def done(self, items: list[Item]) -> None:
        for item in items:
            with suppress(OSError):
                item.path.unlink()

    def give_back(self, items: list[Item]) -> None:
        for item in items:
            self._give_back(item.path)

    def sent(self, destination: str) -> list[float]:
        """When messages went there, by any job of the user; Unix seconds, ascending."""
        with suppress(OSError, ValueError):
            return sorted(float(line) for line in read_private(self._sent(destination), MAX_BYTES).split())
        return []

    def note_sent(self, destination: str, keep_s: float) -> None:
        """keep_s: what is older does not matter any more. Two at once may forget one; that is one message too many."""
        now = self._now()
        times = [at for at in self.sent(destination) if now - at < keep_s]
        path = self._sent(destination)
        new = path.with_suffix(f".{self._me}.new")
        with suppress(OSError):
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write("".join(f"{at:.3f}\n" for at in (*times, now)))
            new.rename(path)

    def _sent(self, destination: str) -> Path:
        return self._folder / f"{self._of}.{destination}.sent"

    def _current(self, destination: str | None) -> Iterator[Path]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError:
            return
        for name in names:
            parts = name.split(".")  # seconds, microseconds, id, file, destination, ...
            if len(parts) < 6 or parts[3] != self._of or destination not in (None, parts[4]):
                continue
            path = self._folder / name
            if self._age_s(parts) > TOO_OLD_S:
                with suppress(OSError):
                    path.unlink()
            elif name.endswith(_NEW):
                yield path
            elif name.endswith(_TAKEN) and self._is_left(path) and (again := self._give_back(path)):
                yield again

    def _age_s(self, parts: list[str]) -> float:
        try:
            return self._now() - float(f"{parts[0]}.{parts[1]}")
        except ValueError:
            return TOO_OLD_S + 1

    def _is_left(self, path: Path) -> bool:
        try:
            return self._now() - path.lstat().st_mtime > TAKEN_S
        except OSError:
            return False

    def _give_back(self, path: Path) -> Path | None:
        again = path.with_name(".".join(path.name.split(".")[:5]) + _NEW)
        try:
            path.rename(again)
        except OSError:
            return None
        return again


def _digest(text: str) -> str:
    return blake2s(text.encode(errors="surrogateescape"), digest_size=6).hexdigest()

"""Notices that wait to be sent: `<state folder>/notices/`, a file for each of them and each destination.

What an ftrun could not send any more (its node has no way out, it was killed, the job was requeued) the next one sends, or
`ftslurm notify --pending` on a machine that has a way out. Who sends one takes it first, by renaming it, so that nobody else
does; when it is sent the file is removed. Names begin with the time, so that sorting them is their order.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import StateError, WireError
from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.text import counted, cut, fingerprint, visible
from ftslurm.model.values import Value
from ftslurm.system.files import private_folder, read_private, replace_file

# Kind of event -> what it stands for. The settings notify.KIND name where each goes.
KINDS = {
    "failure": "the job has failed",
    "requeue": "the job is requeued",
    "replacement": "a node is replaced or excluded",
    "restart": "the ranks are restarted on the same nodes",
    "hang": "the job hangs, and ftrun does nothing about it",
    "wait": "the job waits for minutes, or until somebody acts",
    "message": "the program has a message",
    "end": "the job has ended without a failure",
    "test": "a test",
}
MAX_TITLE, MAX_TEXT = 200, 8000
# Of a summary: so many titles, and the whole text of the last failure.
MAX_TITLES = 20


class Notice(Value):
    """at: Unix seconds. id: the same notice has the same one, whoever makes it anew. title: one line; text: more, with lines."""

    id: str
    at: float
    job: str
    kind: str
    title: str
    text: str = ""


def notice_from_json(data: bytes) -> Notice | None:
    """None for what is none."""
    try:
        notice = from_plain(Notice, json.loads(data), Bounds(MAX_BYTES))
    except (ValueError, RecursionError, WireError):
        return None
    return notice if notice.kind in KINDS else None


def shown(notice: Notice) -> tuple[str, str]:
    """Title and text, as they may leave."""
    return cut(visible(notice.title), MAX_TITLE), cut(visible(notice.text, lines=True), MAX_TEXT)


def summary(notices: Sequence[Notice]) -> Notice:
    """One for several, the latest last: how many of which kind, their titles, and the last failure in full."""
    if len(notices) == 1:
        return notices[0]
    kinds = [notice.kind for notice in notices]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    jobs = list(dict.fromkeys(notice.job for notice in notices))
    whose = f"job {jobs[0]}" if len(jobs) == 1 else counted(len(jobs), "job")
    listed = [cut(visible(notice.title), MAX_TITLE) for notice in notices[-MAX_TITLES:]]
    more = [f"... and {len(notices) - len(listed)} before these"] if len(notices) > len(listed) else []
    worst = next((notice for notice in reversed(notices) if notice.kind == "failure"), notices[-1])
    last = ["", worst.text] if worst.text else []
    return Notice(
        worst.id, notices[-1].at, worst.job, worst.kind, f"{whose}: {counted(len(notices), 'event')} ({counts})",
        "\n".join([*more, *listed, *last]),
    )  # fmt: skip


# --- the folder

MAX_WAITING = 1000
MAX_BYTES = 64 << 10
# News that old is none.
TOO_OLD_S = 86400.0
# Whoever has taken one and not sent it in that time is not there any more.
TAKEN_S = 600.0
_NEW, _TAKEN = ".notice", ".taken"


class Item(Value):
    """One notice for one destination. path: as it is called now."""

    path: Path
    notice: Notice


class Outbox:
    """root: the state folder. file: where the destinations stand; those of another file are not ours to send."""

    def __init__(self, root: Path, file: Path, now: Callable[[], float] = time.time) -> None:
        self._folder = root / "notices"
        self._root = root
        self._of = fingerprint(str(file.resolve()))
        self._now = now
        self._me = f"{socket.gethostname()}-{os.getpid()}"

    def put(self, notice: Notice, destination: str) -> bool:
        """False where too many wait already. Raises: StateError."""
        private_folder(self._root)
        folder = private_folder(self._folder)
        try:
            if sum(1 for _ in os.scandir(folder)) >= MAX_WAITING:
                return False
            name = f"{notice.at:017.6f}.{fingerprint(notice.id)}.{self._of}.{destination}"
            replace_file(folder / f"{name}{_NEW}", json.dumps(to_plain(notice)).encode())
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
                notice = notice_from_json(read_private(mine, MAX_BYTES))
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
        with suppress(OSError):
            replace_file(self._sent(destination), "".join(f"{at:.3f}\n" for at in (*times, now)).encode())

    def _sent(self, destination: str) -> Path:
        return self._folder / f"{self._of}.{destination}.sent"

    def _current(self, destination: str | None) -> Iterator[Path]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError:
            return
        for name in names:
            parts = name.lstrip(".").split(".")  # seconds, microseconds, id, file, destination, ...
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


# --- how many messages one place gets: some at once, and what comes after them in one summary. Pure

# So much more than usual may be sent when the job ends: its last word is the one that people wait for.
AT_THE_END = 2


class Pace(Value):
    """burst: messages to one place within window_s."""

    burst: int
    window_s: float


class Due(Value):
    """each: of those that wait, so many may go by themselves; rest: the others go now, too, as one summary. until: Unix seconds
    at which to ask again, 0: not before something comes."""

    each: int = 0
    rest: bool = False
    until: float = 0.0


def due(now: float, sent: Sequence[float], waiting: int, pace: Pace, ending: bool) -> Due:
    """What may go now. sent: when messages went to this place, Unix seconds, ascending."""
    recent = [at for at in sent if now - at < pace.window_s]
    free = pace.burst - len(recent)
    if not waiting:
        return Due()
    if waiting <= free:
        return Due(each=waiting)
    if free > 0:  # the last one that is free tells of all that are left
        return Due(each=free - 1, rest=True)
    if ending and len(recent) < AT_THE_END * pace.burst:
        return Due(rest=True)
    return Due(until=recent[-pace.burst] + pace.window_s)

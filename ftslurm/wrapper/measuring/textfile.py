"""One file of metrics per job in the folder that node_exporter's textfile collector reads, rewritten every few seconds by the
job's ftrun. Often everyone may write to that folder (mode 1777), so no file in it is opened by its name.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ftslurm.model.text import visible

MODE = 0o644
PREFIX, SUFFIX = "ftslurm", ".prom"
# Seconds to write the last state, at the end.
END_WAIT_S = 2.0


def file_of(folder: Path, user_id: int, cluster: str, job: str) -> Path:
    safe = "".join(char if char.isalnum() or char in "_-" else "-" for char in f"{cluster}-{job}")[:100]
    return folder / f"{PREFIX}-{user_id}-{safe}{SUFFIX}"


def write(path: Path, text: str) -> None:
    """Write all or nothing: a reader meanwhile sees the previous content. Raises: OSError."""
    fd, new = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".new", dir=path.parent)  # O_EXCL, an unpredictable name
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            os.fchmod(fd, MODE)
        Path(new).rename(path)
    except BaseException:
        with suppress(OSError):
            Path(new).unlink()
        raise


def sweep(folder: Path, user_id: int, keep_s: float, now: float) -> None:
    """Remove files of the user's jobs that were not written for `keep_s`: the job is over, or runs elsewhere. Never raises."""
    with suppress(OSError):
        for path in folder.glob(f"{PREFIX}-{user_id}-*{SUFFIX}"):
            with suppress(OSError):
                info = path.lstat()
                if info.st_uid == user_id and now - info.st_mtime > keep_s:
                    path.unlink()


class TextFile:
    """Writes the file in a thread. text: gives the job's present metrics; may be slow. say: prints for people, once. every_s:
    seconds between two writes.
    """

    def __init__(self, path: Path, text: Callable[[], str], say: Callable[[str], None], every_s: float, keep_s: float) -> None:
        self._path, self._text, self._say, self._every_s, self._keep_s = path, text, say, every_s, keep_s
        self._end = threading.Event()
        self._remove, self._told = False, False
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()

    def end(self, remove: bool) -> None:
        """remove: the job continues elsewhere; otherwise its last state stays for a while."""
        self._remove = remove
        self._end.set()
        self._worker.join(END_WAIT_S)

    def _work(self) -> None:
        sweep(self._path.parent, os.getuid(), self._keep_s, time.time())
        ending = False
        while not (ending and self._remove):
            try:
                write(self._path, self._text())
            except Exception as error:  # the job continues whatever happens here
                self._complain(error)
            if ending:
                return
            ending = self._end.wait(self._every_s)
        with suppress(OSError):
            self._path.unlink()

    def _complain(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._say(f"the metrics cannot be written to {self._path}: {visible(why)}; the job continues")

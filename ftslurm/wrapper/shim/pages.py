"""The shared pages of a step on one node (sdk/page.py), and what a program has left written in its own."""

from __future__ import annotations

import os
import time

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, blake2s, socket
from ftslurm.wrapper.shim.output.target import complain
from ftslurm.wrapper.shim.protocol.connection import Channel

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE_VARIABLE = "FTSLURM_PAGE"
NOTES_TOLD = 16 << 10  # of what the program has said, with its exit; its agent tells the rest
NOTE_READ_S = 1.5  # an agent reads once a second (LOOK_S in pages.py)


class Pages:
    """The folder of this step's shared pages on this node, and the names of our own rank's in it (sdk/page.py)."""

    def __init__(self, env: Mapping[str, str], rank: int, channel: Channel) -> None:
        self._folder = page_folder(f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}", channel)
        self._rank = rank
        self._complains = env.get("SLURM_LOCALID", "0") == "0"  # once a node

    def variables(self, attempt: int) -> dict[str, str]:
        """For the command; nothing where there is no folder of our own, which is said."""
        why = why_not_private(self._folder)
        if not why:
            return {PAGE_VARIABLE: f"{self._folder}/{self._rank}.{attempt}"}
        if self._complains:
            self._complains = False
            complain(f"ftslurm: {socket.gethostname()}: {why}: ftrun cannot see heartbeats, progress and probes of its ranks")
        return {}

    def clear(self) -> None:
        """Our own pages, and the folder with the last of them. A program's last message is often its very last act: what has just
        been written the agent has not read yet."""
        try:
            own = [name for name in os.listdir(self._folder) if name.startswith(f"{self._rank}.")]
            notes = [os.stat(f"{self._folder}/{name}").st_mtime for name in own if name.endswith(".notes")]
            time.sleep(max(0.0, min(NOTE_READ_S, max(notes, default=0.0) + NOTE_READ_S - time.time())))
            for name in own:
                if not os.path.isdir(f"{self._folder}/{name}"):
                    os.unlink(f"{self._folder}/{name}")
            os.rmdir(self._folder)
        except OSError:
            pass  # never made, or others are still in it


def page_folder(step: str, channel: Channel) -> str:
    """Where the pages of `step` (`123.0`) are on this node; agents look there as well."""
    # Steps of several clusters, or none, may meet on a machine. The names of a ftrun's folders have the same family, by which
    # _is_older() knows them; the mark is the step's own, so that nobody who sees one can take the name of the next.
    family, mark = (blake2s(what, key=channel.secret).hexdigest() for what in (b"pages", f"pages of {step}".encode()))
    base = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"  # noqa: S108
    # In a container our number may be another one than outside (--container-remap-root), where the agent looks for it.
    return f"{base}/ftslurm.{os.environ.get('SLURM_JOB_UID') or os.getuid()}.{step}.{family[:8]}-{mark[:12]}"


def why_not_private(path: str) -> str:
    """Why `path` is no folder of ours alone (a link is none), though it was to be made; empty if it is."""
    try:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        info = os.lstat(path)
    except OSError as error:
        return f"{path} cannot be created ({error.strerror})"
    if info.st_uid != os.getuid():
        return f"{path} belongs to user {info.st_uid}"
    if info.st_mode & 0o170077 != 0o040000:
        return f"{path} is {'open to others' if info.st_mode & 0o170000 == 0o040000 else 'not a folder'}"
    return ""


def last_notes(page: str) -> list[int | str]:
    """[place, text]: the last whole lines of what the program of `page` has said (sdk/notes.py), and where they begin."""
    try:
        fd = os.open(f"{page}.notes", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        begin = max(0, os.fstat(fd).st_size - NOTES_TOLD)
        data = os.pread(fd, NOTES_TOLD, begin)
    except OSError:
        return []
    finally:
        os.close(fd)
    skipped = data.find(b"\n") + 1 if begin else 0
    text = data[skipped : data.rfind(b"\n") + 1].decode(errors="replace")
    return [begin + skipped, text] if text else []

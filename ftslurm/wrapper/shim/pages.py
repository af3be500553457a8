"""The shared pages of a step on one node (sdk/page.py), what a program has left written in its own, and whether it was saving."""

from __future__ import annotations

import os

from ftslurm.wrapper.shim.connection import Channel
from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, blake2s, socket
from ftslurm.wrapper.shim.output import complain
from ftslurm.wrapper.shim.processes import content

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ftslurm.wrapper.shim.messages import Message

# --- Was a rank writing a checkpoint when it was told to stop, and did it write that to its end? Two words of its pages tell so
# (sdk/page.py has the table).

SAVE_LOOK_S = 0.1  # as often as an agent looks at the page of a program that reports
PAGE_BYTES, PAGE_HEAD = 8192, (0x4547415053544621, 1)
PAGE_SIBLINGS = 64
SAVING_WORD, SAVED_WORD = 44, 45


class Saves:
    """Of one start of a rank: those that it had open when it was told to stop."""

    def __init__(self) -> None:
        self._due: Mapping[str, int] = {}  # page -> how many saves it will have ended, once these are
        self.waits = False  # the rank is not asked to end yet

    def stop(self, page: str, first: bool) -> bool:
        """It is told to stop. page: its FTSLURM_PAGE, empty for none. first: shall a save end first? Gives if one does."""
        self._due = {path: begun + whole for path, (begun, whole) in _pages(page) if begun}
        self.waits = first and self.going_on
        return self.waits

    def turn(self, stopping: bool) -> bool:
        """Is the rank to be asked now? Once. stopping: it has not ended."""
        asks = self.waits and not (stopping and self.going_on)
        self.waits = self.waits and not asks
        return asks and stopping

    @property
    def going_on(self) -> bool:
        """Is one of them still being written, by a process that lives?"""
        return any(begun and whole < self._due[path] for path in self._due for begun, whole in [saves_of(path)])

    def told(self) -> Message:
        """With the message that the rank has stopped."""
        if not self._due:
            return {}
        whole = all(saves_of(path, dead=True)[1] >= due for path, due in self._due.items())
        return {"save": "whole" if whole else "cut"}


def _pages(page: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The page of the task, and those of further processes below it (torchrun's ranks)."""
    for number in range(PAGE_SIBLINGS if page else 0):
        path = f"{page}.{number}" if number else page
        if not os.path.exists(path):
            return
        yield path, saves_of(path)


def end_of(path: str, most: int) -> tuple[int, bytes]:
    """The last `most` bytes of a file, and where they begin; nothing of one that cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0, b""
    try:
        begin = max(0, os.fstat(fd).st_size - most)
        return begin, os.pread(fd, most, begin)
    except OSError:
        return 0, b""
    finally:
        os.close(fd)


def saves_of(path: str, dead: bool = False) -> tuple[int, int]:
    """How many saves of this page's program are under way, and how many are whole; none where it has ended, unless `dead`. Never
    raises."""
    _, data = end_of(path, PAGE_BYTES)
    if len(data) != PAGE_BYTES:
        return 0, 0
    words = memoryview(data).cast("Q")
    if tuple(words[:2]) != PAGE_HEAD or not (dead or _writer_lives(words[2], words[3], words[4])):
        return 0, 0
    return words[SAVING_WORD], words[SAVED_WORD]


def _writer_lives(pid: int, start: int, namespace: int) -> bool:
    """start: in clock ticks. In another pid namespace it cannot be looked up, and counts as alive."""
    try:
        if os.stat("/proc/self/ns/pid").st_ino != namespace:
            return True
        words = content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return words[0] not in (b"Z", b"X") and int(words[19]) == start
    except (OSError, ValueError, IndexError):
        return False


# --- The shared pages of a step on one node (sdk/page.py), and what a program has left written in its own.

PAGE_VARIABLE = "FTSLURM_PAGE"
NOTES_TOLD = 16 << 10  # of what the program has said, with its exit: its very last act, often; its agent tells the rest


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
        """Our own pages, and the folder with the last of them."""
        try:
            for name in os.listdir(self._folder):
                if name.startswith(f"{self._rank}.") and not os.path.isdir(f"{self._folder}/{name}"):
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
    begin, data = end_of(f"{page}.notes", NOTES_TOLD)
    skipped = data.find(b"\n") + 1 if begin else 0
    text = data[skipped : data.rfind(b"\n") + 1].decode(errors="replace")
    return [begin + skipped, text] if text else []

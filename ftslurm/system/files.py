"""Files that must not be lost, that nobody else may write to or exchange, and how many of them may be open."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ftslurm.errors import NoRoom, StateError

# --- how many files and connections this process may open: one for each rank and node of a job

# With an unlimited hard limit, programs allocate tables for it, or close every number below it.
ENOUGH = 1 << 17
# This process, or the whole machine, has no descriptor left.
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_AS_STARTED = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, as srun does for itself. A login shell's usual 1024 are too few for 1,000 ranks."""
    soft, hard = _AS_STARTED
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the limit stays; in a large job, ranks report that they cannot reach ftrun
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_limit() -> None:
    """Restore the limit in a child that passes its limits on to the ranks."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _AS_STARTED)


def room() -> int:
    """How many more descriptors this process may open now; ENOUGH if unlimited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if limit == resource.RLIM_INFINITY else min(limit, ENOUGH)
    try:
        return max(0, most - len(list(Path("/proc/self/fd").iterdir())))
    except OSError as error:
        return 0 if error.errno in OUT_OF_DESCRIPTORS else most


class SpareDescriptors:
    """Descriptors in reserve, for what must not fail when all others are used."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._held: list[int] = []
        self._take()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Meanwhile this many descriptors are free."""
        self.close()
        try:
            yield
        finally:
            self._take()

    def close(self) -> None:
        """Close all; may be called twice."""
        while self._held:
            os.close(self._held.pop())

    def _take(self) -> None:
        """Open as many as possible; those that another thread has used meanwhile are opened another time."""
        with suppress(OSError):
            while len(self._held) < self.count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def __del__(self) -> None:
        self.close()


# --- what root runs or obeys nobody else may be able to exchange: looked at place by place, as the kernel walks a path

# As the kernel's own limit, path_resolution(7).
LINKS_MAX = 40


def check_only_roots(path: Path) -> None:
    """Raises: StateError if anybody but root could exchange `path`: it, a folder above, a link on the way, or where it leads.

    Of a path that is not there, whoever could make it.
    """
    passed = list(_places(path))
    for number, (place, info) in enumerate(passed, 1):
        if info.st_uid != 0 or _writable(info, passed_on=number < len(passed)):
            raise _others(place)


def check_tree(top: Path) -> None:
    """The same for everything below, and for where links in it lead. Raises: StateError."""
    tops, seen = [top], set()
    while tops:
        check_only_roots(tops[-1])
        real = os.path.realpath(tops.pop())
        if real in seen:
            continue
        seen.add(real)
        for folder, folders, files in os.walk(real):
            for name in (*folders, *files):
                place = Path(folder, name)
                if place.is_symlink():
                    tops.append(place)
                elif _is_others(place):
                    raise _others(place)


def _is_others(place: Path) -> bool:
    try:
        info = place.lstat()
    except FileNotFoundError:  # a file that Python itself was writing
        return False
    return info.st_uid != 0 or _writable(info, passed_on=False)


def _writable(info: os.stat_result, passed_on: bool) -> bool:
    """passed_on: the path leads on from here. In a folder like /tmp nobody can exchange what is there and not theirs, yet add."""
    if stat.S_ISLNK(info.st_mode):
        return False
    kept = passed_on and stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX
    return bool(info.st_mode & 0o022) and not kept


def _places(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All that the kernel passes on its way to `path`, from / on, as far as it is there. Raises: StateError."""
    at, todo, links = Path("/"), list(reversed(path.parts[1:])), 0
    yield at, at.lstat()
    while todo:
        name = todo.pop()
        if name == "..":
            at = at.parent
            continue
        place = at / name
        try:
            info = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        yield place, info
        if not stat.S_ISLNK(info.st_mode):
            at = place
            continue
        links += 1
        if links > LINKS_MAX:
            raise StateError(f"{path} leads through too many links")
        target = place.readlink()
        at = Path("/") if target.is_absolute() else at
        todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _others(place: Path) -> StateError:
    return StateError(
        f"{place} can be changed by users other than root, and root would run what is in it",
        hint="install ftslurm in a folder that only root can write, and run its `ftslurm install-hooks`",
    )


def is_there(path: Path) -> bool:
    """Also a link to nowhere, and what we may not reach (root_squash): whoever opens it learns why."""
    try:
        path.lstat()
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, NotADirectoryError))
    return True


LOCK_POLL_S = 0.02
_ROOM_BYTES = 16 << 10  # a ledger of a job without trouble is smaller


def make_folder(path: Path, mode: int) -> None:
    """Create `path` with `mode`, and missing parents with 0755: whatever the umask, nobody else may write there.

    Raises: OSError.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent, 0o755)
    try:
        path.mkdir(mode)
        path.chmod(mode)  # a umask also removes rights
    except FileExistsError:
        if not path.is_dir():
            raise


def private_folder(path: Path) -> Path:
    """Create or check `path`: mode 0700, owned by us and no link. Raises: StateError."""
    try:
        make_folder(path, 0o700)
        info = path.lstat()
    except OSError as error:
        raise StateError(
            f"the state folder {path} cannot be made: {error.strerror}",
            hint="set FTSLURM_STATE_DIR to a folder on the shared file system that you may write",
        ) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise StateError(f"the state folder {path} is not a folder of yours", hint="set FTSLURM_STATE_DIR to one that is")
    if info.st_mode & 0o077:
        try:
            path.chmod(0o700)
        except OSError as error:
            raise StateError(f"the state folder {path} is open to others: {error.strerror}", hint="chmod 700") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise StateError(f"the state folder {path} is not writable", hint="set FTSLURM_STATE_DIR to a folder that you may write")
    return path


def check_room(folder: Path) -> None:
    """Can a few KB be written there? Only a file tells of a quota. Raises: StateError."""
    path = folder / f".room-{os.urandom(8).hex()}"
    try:
        try:
            path.write_bytes(b"\xff" * _ROOM_BYTES)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise NoRoom(
            f"the state folder {folder} cannot be written: {error.strerror}",
            hint="free some space, or set FTSLURM_STATE_DIR to another folder on the shared file system",
        ) from None


class Locked(OSError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, wait_s: float) -> Iterator[None]:
    """Nobody else is within the lock of this file meanwhile. Raises: Locked after `wait_s` without it; OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while not _lock(fd):
            if time.monotonic() >= deadline:
                raise Locked
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def append(path: Path, data: bytes) -> None:
    """Append `data` in one write and sync it. First ends an incomplete last line of an earlier write.

    The caller holds a lock against other writers. Raises: OSError; then nothing of `data` is in the file.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        size = info.st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        try:
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the meaning of a short write to a file
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
        if not size:
            _sync_folder(path.parent)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Give a file new content as a whole: whoever reads meets the old one or the new. Raises: OSError; then the old one stays.

    In a folder that everybody may write to nobody can have laid a link under the name of the new one, which a `*` passes over.
    """
    new = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)  # a umask removes rights
            file.write(data)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_plain(path: str | Path, link: int = os.O_NOFOLLOW) -> BinaryIO:
    """Open for reading, without waiting for a FIFO. link: 0 follows one. Raises: OSError, also for anything but a plain file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | link)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return os.fdopen(fd, "rb")


def info_of(path: Path) -> os.stat_result | None:
    """Of a plain file, None for anything else: of a file that is opened a file server tells the latest."""
    try:
        with open_plain(path) as file:
            return os.fstat(file.fileno())
    except OSError:
        return None


def read_private(path: Path, limit: int) -> bytes:
    """The file's last bytes, at most `limit`. Raises: as `open_plain`; for root also where it is another user's, who may have
    written anything: root reads that with the rights of that user alone (cli/others.py).
    """
    with open_plain(path) as file:
        info = os.fstat(file.fileno())
        if os.geteuid() == 0 and info.st_uid != 0:
            raise PermissionError(errno.EPERM, "it is another user's, and root reads it by --user NAME alone")
        if info.st_size > limit:
            file.seek(info.st_size - limit)
            file.readline()  # the rest of a line that began before
        return file.read(limit)

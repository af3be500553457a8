"""Output of earlier schedulings of a job: copies beside its ledger, limited in number and size.

Slurm begins the output file of a requeued script anew (sbatch(1), --open-mode), and a shell the file behind a `>`. Nobody can
tell beforehand, so each is copied before the job is given back; a copy of a file that still holds what it held is removed
again. A link would not do: it is truncated with the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from ftslurm.errors import StateError, WireError
from ftslurm.ledger.journal import body_in
from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.text import fingerprint, visible
from ftslurm.model.values import Value, replace
from ftslurm.system import files
from ftslurm.system.files import private_folder

# --- evidence on hung ranks, taken before they were stopped: text files beside the ledger, limited in number and size

# Of one job; a job that hangs again and again leaves the same behind each time.
EVIDENCE_FILES, EVIDENCE_BYTES = 200, 1 << 18


def evidence_folder(ledger: Path) -> Path:
    return ledger.with_suffix(".evidence")


def keep_evidence(ledger: Path, attempt: int, node: str, text: str) -> Path | None:
    """Write the text; gives the file, or None if the job has reached its limit. Raises: StateError."""
    folder = private_folder(evidence_folder(ledger))
    safe = "".join(char if char.isalnum() or char in "_-." else "-" for char in node)[:64] or "node"
    path = folder / f"attempt-{attempt}.{safe}.txt"
    if sum(1 for _ in folder.iterdir()) >= EVIDENCE_FILES:
        return None
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            if os.fstat(fd).st_size < EVIDENCE_BYTES:
                file.write(visible(text, lines=True).encode()[:EVIDENCE_BYTES])
    except OSError as error:
        raise StateError(f"the evidence {path} cannot be written: {error.strerror}", hint="check free space and rights") from None
    return path


def kept_evidence(ledger: Path) -> tuple[Path, ...]:
    """All files of the job, sorted."""
    folder = evidence_folder(ledger)
    return tuple(sorted(folder.glob("*.txt"))) if folder.is_dir() else ()


# Of one job; the first ones are removed first.
MAX_FILES = 40
# Of a longer output the beginning is kept, where the set-up is told, and the end, where it failed.
HEAD_SHARE = 1 / 8
_LOOK_BYTES = 4096


class Kept(Value):
    """schedule: requeues before. source: the file as it was called, of `size` bytes then. copy: of all of it, or of its first
    `head` bytes and its end, with a line between them that tells."""

    plain_forms: ClassVar[Any] = {"copy": (str, Path)}

    schedule: int
    source: str
    size: int
    head: int
    copy: Path = Path()


def output_folder(ledger: Path) -> Path:
    return ledger.with_suffix(".output")


def keep_files(ledger: Path, schedule: int, sources: Iterable[str], most_bytes: int) -> None:
    """Copy each of `sources` that is a plain file and has anything in it. Raises: StateError."""
    for source in dict.fromkeys(sources):
        name = f"run-{schedule + 1}.{fingerprint(source, 4)}"
        file = open_kept(source)
        if file is None:
            continue
        with file:
            size = os.fstat(file.fileno()).st_size
            if size and most_bytes:
                _copy(file, size, output_folder(ledger), name, schedule, source, most_bytes)
    _forget_oldest(ledger)


def open_kept(path: str | Path) -> BinaryIO | None:
    """None if it does not exist (here) or is not a plain file. It may be a link."""
    try:
        return files.open_plain(path, link=0)
    except OSError:
        return None


def _copy(file: BinaryIO, size: int, folder: Path, name: str, schedule: int, source: str, most: int) -> None:
    head = size if size <= most else int(most * HEAD_SHARE)
    tail_at = size if size <= most else size - (most - head)
    copy = private_folder(folder) / f"{name}.out"
    try:
        with _anew(copy) as out:
            _pour(file, out, 0, head)
            if tail_at > head:
                out.write(f"\nftslurm: {tail_at - head} bytes were not kept (logs.keep_bytes)\n".encode())
            _pour(file, out, tail_at, size - tail_at)
        with _anew(copy.with_suffix(".json")) as out:
            out.write(json.dumps({"v": 1, **to_plain(Kept(schedule, source, size, head))}).encode())
    except OSError as error:
        copy.unlink(missing_ok=True)
        raise StateError(f"{source} cannot be kept in {folder}: {error.strerror}", hint="check free space and rights") from None


def _anew(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")


def _pour(file: BinaryIO, out: BinaryIO, at: int, count: int) -> None:
    file.seek(at)
    while count > 0 and (data := file.read(min(count, 1 << 20))):
        out.write(data)
        count -= len(data)


def kept_copies(ledger: Path) -> tuple[Kept, ...]:
    """The copies in the order of the schedulings, without damaged ones."""
    found = (_read(path) for path in output_folder(ledger).glob("*.json"))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: (one.schedule, one.source)))


def _read(path: Path) -> Kept | None:
    try:
        one = from_plain(Kept, body_in(path.read_bytes()[: 1 << 16], 1), Bounds(1 << 16))
    except (OSError, WireError):
        return None
    return replace(one, copy=path.with_suffix(".out"))


def same_beginning(one: Kept) -> bool:
    """Does the file still begin with what it held then? Compares both ends of that part."""
    source = open_kept(one.source)
    if source is None:
        return False
    try:
        with source as file, one.copy.open("rb") as copy:
            if os.fstat(file.fileno()).st_size < one.size:
                return False
            length = min(_LOOK_BYTES, one.head)
            ends = [(0, 0), (one.size - length, os.fstat(copy.fileno()).st_size - length)]
            return all(_at(file, a, length) == _at(copy, b, length) for a, b in ends)
    except OSError:
        return False


def _at(file: BinaryIO, position: int, count: int) -> bytes:
    file.seek(max(position, 0))
    return file.read(count)


def settle(ledger: Path) -> None:
    """Remove what was not overwritten after all (--open-mode=append). To be called when the next scheduling has begun."""
    for one in kept_copies(ledger):
        if same_beginning(one):
            _remove(one)


def _forget_oldest(ledger: Path) -> None:
    for one in kept_copies(ledger)[:-MAX_FILES]:
        _remove(one)


def _remove(one: Kept) -> None:
    with suppress(OSError):
        one.copy.with_suffix(".json").unlink(missing_ok=True)
        one.copy.unlink(missing_ok=True)

"""The ledger on a disk that tears, fills up, and is shared."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftslurm.errors import StateError
from ftslurm.ledger import journal as journal_module
from ftslurm.ledger.journal import RESERVE_BYTES, Journal, from_line, to_line
from ftslurm.model import record as rec
from ftslurm.model.record import Finished, Record
from ftslurm.model.values import replace
from ftslurm.system.files import locked, private_folder

REPOSITORY = Path(__file__).parents[2]


def word(number: int, what: str = "x") -> Finished:
    return Finished(float(number), "r1", number, what)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(private_folder(tmp_path / "state") / "c.7.jsonl")


def statuses(journal: Journal) -> list[int]:
    return [record.status for record in journal.read().records if isinstance(record, Finished)]


def test_what_is_written_is_read_in_order(journal: Journal) -> None:
    assert journal.read() == journal_module.Contents(())
    journal.append([word(1), word(2)])
    journal.append([word(3)])
    assert statuses(journal) == [1, 2, 3] == statuses(Journal(journal.path)) and journal.read().damaged == 0


# --- damage


def test_a_torn_last_line_is_forgiven_and_the_next_record_stands_on_its_own(journal: Journal) -> None:
    journal.append([word(1), word(2)])
    journal.path.write_bytes(journal.path.read_bytes()[:-10])
    assert statuses(journal) == [1] and journal.read().damaged == 1
    journal.append([word(3)])
    assert statuses(journal) == [1, 3] and journal.read().damaged == 1


@pytest.mark.parametrize(
    "damage", [b"{", b"\x00" * 4096, b"\xff\xfe\xfd", b'{"v":9,"kind":"Finished"}', b'{"v":1,"kind":[]}', b"\r"]
)
def test_a_damaged_line_in_the_middle_costs_that_line(journal: Journal, damage: bytes) -> None:
    journal.path.write_bytes(to_line(word(1)) + damage + b"\n" + to_line(word(2)))
    assert statuses(journal) == [1, 2]
    assert journal.read().damaged == (damage.strip() != b"")


def test_empty_lines_are_no_damage(journal: Journal) -> None:
    journal.path.write_bytes(b"\n\n" + to_line(word(1)) + b"\n")
    assert statuses(journal) == [1] and journal.read().damaged == 0


def test_of_a_file_that_is_far_too_long_the_end_counts(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_BYTES", 300)
    journal.append([word(number) for number in range(100)])
    assert statuses(journal)[-1] == 99 and 0 < len(statuses(journal)) < 10 and journal.read().damaged == 0


# --- two writers

WRITER = """
import sys
from pathlib import Path
from ftslurm.ledger.journal import Journal
from ftslurm.model.record import Finished
journal = Journal(Path(sys.argv[1]))
for number in range(40):
    journal.append([Finished(0.0, sys.argv[2], number, "x" * 500), Finished(1.0, sys.argv[2], number, "y")])
"""


def test_two_writers_lose_nothing_of_each_other(journal: Journal) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(journal.path), run], cwd=REPOSITORY) for run in ("a", "b", "c")
    ]
    try:
        assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    finally:
        for writer in writers:
            writer.kill()
    contents = journal.read()
    assert contents.damaged == 0 and len(contents.records) == 240
    for run in ("a", "b", "c"):
        mine = [record.status for record in contents.records if isinstance(record, Finished) and record.run == run]
        assert mine == [number for number in range(40) for _ in (1, 2)]


COUNTER = """
import sys
from pathlib import Path
from ftslurm.ledger.journal import Journal
from ftslurm.model.record import Finished
journal = Journal(Path(sys.argv[1]))
for _ in range(20):
    with journal.held():
        number = len(journal.read().records)
        journal.append([Finished(0.0, "r", number, "")])
"""


def test_of_those_that_hold_it_no_two_take_one_number(journal: Journal) -> None:
    counters = [subprocess.Popen([sys.executable, "-c", COUNTER, str(journal.path)], cwd=REPOSITORY) for _ in range(4)]
    try:
        assert [counter.wait(timeout=120) for counter in counters] == [0] * 4
    finally:
        for counter in counters:
            counter.kill()
    assert statuses(journal) == [*range(80)]


def test_what_was_read_is_not_read_again(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Journal(journal.path)
    other.append([word(1), word(2)])
    assert statuses(journal) == [1, 2]
    parsed: list[bytes] = []
    monkeypatch.setattr(journal_module, "from_line", lambda line: parsed.append(line) or from_line(line))
    other.append([word(3)])
    assert statuses(journal) == statuses(journal) == [1, 2, 3]
    assert len(parsed) == 1


@pytest.mark.parametrize("changed", [b"", to_line(word(9)), to_line(word(1)) + b"{torn"])
def test_a_ledger_that_another_took_the_place_of_is_read_anew(journal: Journal, changed: bytes) -> None:
    journal.append([word(1), word(2)])
    assert statuses(journal) == [1, 2]
    journal.path.write_bytes(changed)
    assert statuses(journal) == statuses(Journal(journal.path))
    journal.append([word(3)])
    assert statuses(journal) == statuses(Journal(journal.path))


def test_a_lock_that_is_never_given_back_is_an_error_in_time(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "LOCK_TIMEOUT_S", 0.1)
    caught: list[StateError] = []
    with locked(journal.path.with_suffix(".lock"), 0):

        def append() -> None:
            try:
                journal.append([word(1)])
            except StateError as error:
                caught.append(error)

        other = threading.Thread(target=append)
        other.start()
        other.join(10)
    assert caught and "locked" in str(caught[0]) and caught[0].exit_status == 73
    assert statuses(journal) == []


# --- a full disk


class FullDisk:
    """`os.write` to the ledger fails while there is a reserve to be given up (or for good)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: Callable[[], bool], short: bool = False) -> None:
        real, self.refused = os.write, 0

        def write(fd: int, data: bytes) -> int:
            if free():
                return real(fd, data)
            self.refused += 1
            if short:
                return real(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("short", [False, True])
def test_on_a_full_disk_the_reserve_is_given_up_for_the_decision(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    journal.append([word(1)])
    reserve = journal.path.with_suffix(".reserve")
    assert reserve.stat().st_size == RESERVE_BYTES
    disk = FullDisk(monkeypatch, free=lambda: not reserve.exists(), short=short)
    journal.append([word(2)])
    assert disk.refused == 1 and not reserve.exists()
    journal.append([word(3)])
    assert statuses(journal) == [1, 2, 3] and journal.read().damaged == 0
    assert not reserve.exists(), "what was given up on a full disk is not taken again"


@pytest.mark.parametrize("short", [False, True])
def test_on_a_disk_that_stays_full_nothing_of_the_record_stands(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    journal.append([word(1)])
    before = journal.path.read_bytes()
    with monkeypatch.context() as patch:
        FullDisk(patch, free=lambda: False, short=short)
        with pytest.raises(StateError, match="No space left on device") as caught:
            journal.append([word(2), word(3)])
    assert str(journal.path) in str(caught.value) and caught.value.hint
    assert journal.path.read_bytes() == before
    journal.append([word(4)])
    assert statuses(journal) == [1, 4]


def test_what_could_not_be_synced_does_not_stand(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.append([word(1)])
    before = journal.path.read_bytes()
    with monkeypatch.context() as patch:

        def fsync(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StateError, match="Input/output error"):
            journal.append([word(2)])
    assert journal.path.read_bytes() == before


def test_every_append_is_synced_before_it_returns(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    journal.append([word(1)])
    assert journal.path.stat().st_size in synced
    journal.append([word(2)])
    assert synced[-1] == journal.path.stat().st_size


def test_the_reserve_is_given_back_at_the_end(journal: Journal) -> None:
    journal.append([word(1)])
    journal.close()
    assert not journal.path.with_suffix(".reserve").exists()
    journal.append([word(2)])
    assert not journal.path.with_suffix(".reserve").exists() and statuses(journal) == [1, 2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of some 250 KiB. Takes root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], timeout=120, check=True)


def fill(folder: Path) -> None:
    with pytest.raises(OSError), (folder / "filler").open("ab", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    journal = Journal(private_folder(small_disk / "state") / "c.7.jsonl")
    journal.append([word(0)])
    fill(small_disk)
    written = [word(0)]
    with pytest.raises(StateError, match="No space left on device"):
        for number in range(1, 1000):
            journal.append([word(number, "y" * 500)])
            written.append(word(number, "y" * 500))
    assert len(written) > 20, "the reserve was there for these"
    contents = Journal(journal.path).read()
    assert contents.records == tuple(written) and contents.damaged == 0
    (small_disk / "filler").unlink()
    journal.append([word(1001)])
    assert statuses(journal)[-1] == 1001


# --- whose file it is


def test_nobody_else_may_read_or_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = Journal(private_folder(tmp_path / "a" / "state") / "c.7.jsonl")
        journal.append([word(1)])
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (journal.path.parent, *journal.path.parent.iterdir())}
    assert modes.pop("state") == 0o700
    assert "c.7.jsonl" in modes and set(modes.values()) == {0o600}, modes


def test_a_folder_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state").chmod(0o777)
    private_folder(tmp_path / "state")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_a_ledger_that_is_a_link_is_neither_written_nor_read(journal: Journal, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious\n")
    journal.path.symlink_to(target)
    for touch in (lambda: journal.append([word(1)]), journal.read):
        with pytest.raises(StateError, match=r"c\.7\.jsonl"):
            touch()
    assert target.read_text() == "precious\n"


def test_a_reserve_that_is_a_link_is_not_followed(journal: Journal, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious\n")
    journal.path.with_suffix(".reserve").symlink_to(target)
    journal.append([word(1)])
    journal.close()
    assert target.read_text() == "precious\n" and statuses(journal) == [1]


def test_a_lock_that_is_a_link_does_not_empty_what_it_points_to(journal: Journal, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious\n")
    journal.path.with_suffix(".lock").symlink_to(target)
    try:
        journal.append([word(1)])
    except StateError:
        pass
    assert target.read_text() == "precious\n"


def test_a_state_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="not a folder of yours"):
        private_folder(tmp_path / "state")


def test_a_state_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    for path in (tmp_path / "state", tmp_path / "state" / "below"):
        with pytest.raises(StateError) as caught:
            private_folder(path)
        assert str(path) in str(caught.value) and "FTSLURM_STATE_DIR" in caught.value.hint


@pytest.mark.parametrize("path", ["/proc/no-such-folder", "/proc/self/no-such-folder/below"])
def test_a_state_folder_that_cannot_be_made_is_refused(path: str) -> None:
    with pytest.raises(StateError, match="cannot be made") as caught:
        private_folder(Path(path))
    assert path in str(caught.value) and "FTSLURM_STATE_DIR" in caught.value.hint and caught.value.exit_status == 73


def test_a_state_folder_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "state").mkdir(mode=0o500)
    with pytest.raises(StateError, match="not writable"):
        private_folder(tmp_path / "state")


def test_a_state_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a folder away takes root")
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 12345, 12345)
    with pytest.raises(StateError, match="not a folder of yours"):
        private_folder(tmp_path / "state")


def test_a_folder_that_went_away_is_not_made_anew_for_others_to_read(journal: Journal) -> None:
    journal.path.parent.rmdir()
    try:
        journal.append([word(1)])
    except StateError as error:
        assert "c.7.jsonl" in str(error) and error.exit_status == 73
    else:
        assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700


def test_a_record_may_be_of_any_kind(journal: Journal) -> None:
    records: list[Record] = [word(1, "\n\r\x00\u2028 ünï")]
    journal.append(records)
    assert list(journal.read().records) == records


def test_a_fifo_in_the_ledger_s_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.jsonl")
    journal = Journal(tmp_path / "ledger.jsonl")
    for do in (journal.read, lambda: journal.append([word(1)])):
        with pytest.raises(StateError, match="not a plain file"):
            do()


def test_what_must_be_next_is_written_only_if_nobody_else_has_written(journal: Journal) -> None:
    journal.append([word(1)])
    mine, other = Journal(journal.path), Journal(journal.path)
    assert statuses(mine) == statuses(other) == [1]
    assert other.append_next([word(2)]) and not mine.append_next([word(3)])
    assert statuses(mine) == [1, 2] and mine.append_next([word(4)])
    assert statuses(journal) == [1, 2, 4]


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file system that answers `stat` from what it remembers until this side itself writes, as NFS does between nodes; what is
    opened it asks its server for (nfs(5), close-to-open)."""
    known: dict[Path, os.stat_result] = {}
    ask, write = Path.stat, journal_module.append

    def remembered(path: Path, **how: bool) -> os.stat_result:
        if path not in known:
            known[path] = ask(path, **how)  # type: ignore[arg-type]
        return known[path]

    def written(path: Path, data: bytes) -> None:
        write(path, data)
        known.pop(path, None)

    monkeypatch.setattr(Path, "stat", remembered)
    monkeypatch.setattr(journal_module, "append", written)
    yield


def test_another_node_s_words_are_not_taken_for_read_where_sizes_are_remembered(journal: Journal, remembering: None) -> None:
    journal.append([word(1)])
    journal.read()
    assert not journal.grown()
    write_elsewhere = to_line(word(2))
    with journal.path.open("ab") as other:
        other.write(write_elsewhere)
    assert not journal.append_next([word(3)]), "nobody here has read the second"
    journal.append([word(4)])
    assert not journal.append_next([word(5)]), "nor now"
    assert statuses(journal) == [1, 2, 4]
    assert journal.append_next([word(6)])


def test_what_older_ledgers_had_in_words_alone_is_a_field_once_a_line_is_read() -> None:
    seen = rec.TroubleSeen(1.0, 1, "lost", "the shim of rank 2 on n2 was lost: it hung up [drill: node-death of n2]")
    assert from_line(to_line(seen)) == replace(
        seen, what="the shim of rank 2 on n2 was lost: it hung up", drill=("node-death of n2",), hung_up=True
    )
    failed = rec.TroubleSeen(1.0, 1, "crash", "rank 3 on n2 exited with status 1", hung_up=False)
    assert from_line(to_line(failed)) == replace(failed, rank=3)
    told = rec.TroubleSeen(1.0, 1, "crash", "somebody said: it hung up", hung_up=False)
    assert from_line(to_line(told)) == told, "a later ledger says for itself"
    isolate = {"n2": "ECC; held against it 3 times in 24 h"}
    decided = rec.Decided(1.0, "r-1", 1, "isolated-requeue", "crash", "why", isolate=isolate, reason="without n2")
    assert from_line(to_line(decided)) == replace(decided, often={"n2": "3 times in 24 h"})

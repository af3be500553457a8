"""What is read for people who watch: a ledger that grows, a file that is told, logs, and Slurm only where it is needed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.errors import UnknownJob, UsageError
from ftslurm.ledger import live as files
from ftslurm.ledger.journal import to_line
from ftslurm.ledger.output import keep_evidence
from ftslurm.ledger.store import Store
from ftslurm.model import record as rec
from ftslurm.model.folds.summary import JobSummary, summarise
from ftslurm.report.watch import Seen
from ftslurm.wrapper import watch as module
from ftslurm.wrapper.watch import JobsWatch, JobWatch, follow_log, log_lines, name_of
from tests.report.test_watch import live_of, running
from tests.stories.replay import Job


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "jobs").mkdir()
    return Store(tmp_path)


def path(store: Store) -> Path:
    return store.root / "jobs" / "c.7.jsonl"


def write(store: Store, job: Job) -> None:
    path(store).write_bytes(b"".join(to_line(record) for record in job.ledger))


def look(watch: JobWatch) -> Seen:
    found = watch.look()
    assert found is not None
    return found


class Asked:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(module, "with_slurms_word", self)

    def __call__(self, jobs: list[object], user: int, env: object) -> tuple[list[object], str]:
        self.count += 1
        return list(jobs), "slurmctld is away"


def test_slurm_is_asked_where_ftrun_does_not_tell_and_then_seldom(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, job = Asked(monkeypatch), running()
    write(store, job)
    files.make_request(path(store))
    watch = JobWatch(store, "7", {})
    files.write_live(path(store), live_of(job))
    assert look(watch).fresh is not None and asked.count == 0
    assert files.read_request(path(store)) == {}  # and yet it was written: ftrun sees that somebody watches
    assert path(store).with_suffix(".watch").stat().st_size == files.REQUEST_BYTES
    files.remove_live(path(store), request=True)
    watch = JobWatch(store, "7", {})
    for _ in range(3):
        found = look(watch)
    assert (found.fresh, found.told_to, asked.count) == (None, False, 1)


def test_what_is_written_meanwhile_is_seen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch)
    job = running()
    write(store, job)
    watch = JobWatch(store, "c.7", {})
    assert look(watch).summary.attempt == 1
    job.exits(0, 1)
    write(store, job)
    found = look(watch)
    assert found.summary.attempt == 2 and len(found.records) == len(job.ledger)


def test_a_ledger_that_has_not_grown_is_folded_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch)
    write(store, running())
    watch = JobWatch(store, "7", {})
    monkeypatch.delattr(module.view, "status_of")
    assert look(watch).summary.attempt == 1


def test_what_is_told_no_more_grows_old(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """ftrun was killed: its file stays, and says the same for ever. Its clock is not asked."""
    Asked(monkeypatch)
    job = running()
    write(store, job)
    files.write_live(path(store), live_of(job))
    watch = JobWatch(store, "7", {})
    assert look(watch).fresh is None  # nobody knows how old it is
    files.write_live(path(store), live_of(job, number=6))
    assert look(watch).fresh is not None
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 60.0)
    assert look(watch).fresh is None and look(watch).told_s >= 59.0


def test_what_a_killed_ftrun_has_left_is_cleared_away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = running()
    write(store, job)
    files.make_request(path(store))
    files.write_live(path(store), live_of(job))
    monkeypatch.setattr(module, "with_slurms_word", lambda jobs, *_: ([jobs[0]._replace(state="gone", over=True)], ""))
    assert look(JobWatch(store, "7", {})).summary.over
    assert [one.name for one in path(store).parent.iterdir()] == ["c.7.jsonl"]


def test_stacks_are_asked_for_by_name(store: Store) -> None:
    job = running()
    write(store, job)
    files.make_request(path(store))
    watch = JobWatch(store, "7", {})
    asked = watch.want_stacks("n1")
    files.write_live(path(store), live_of(job))
    watch.look()
    assert files.read_request(path(store)) == {"stacks": [asked, "n1"]}


def test_nothing_has_begun_and_nobody_knows_the_job(store: Store) -> None:
    path(store).touch()
    assert JobWatch(store, "7", {}).look() is None
    with pytest.raises(UnknownJob):
        JobWatch(store, "8", {})


def test_the_list_has_what_is_not_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = running()
    write(store, job)
    done = running()
    done.all_exit(0)
    (store.root / "jobs" / "c.8.jsonl").write_bytes(b"".join(to_line(record) for record in done.ledger))
    found = JobsWatch(store, {"PATH": "/nonexistent"}).look()
    assert [one.job for one in found.jobs] == ["7"] and found.silent


def test_a_job_of_the_list_is_found_by_its_name_there(store: Store) -> None:
    """Of two clusters that gave out the same number, one of them called as our own jobs without Slurm are."""
    job = running()
    for name in ("c.7", "cluster-local.7", "local.7"):
        (store.root / "jobs" / f"{name}.jsonl").write_bytes(b"".join(to_line(record) for record in job.ledger))
    summary = look_at(job)
    for cluster, local, name in (("c", False, "c.7"), ("local", False, "cluster-local.7"), ("local", True, "local.7")):
        found = JobWatch(store, name_of(summary._replace(cluster=cluster, local=local)), {})
        assert found.journal.path.stem == name


def look_at(job: Job) -> JobSummary:
    found = summarise(job.ledger)
    assert found is not None
    return found


def test_a_log_is_shown_from_near_its_end_and_safe(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, log = running(), tmp_path / "slurm-7.out"
    log.write_bytes(b"early\n" * 100 + b"10%\r20%\r100%\n\x1b[31mred\xff\nlast\n")
    monkeypatch.setattr(module, "LOG_BYTES", 40)
    job.ledger.append(rec.OutputTo(job.ledger[-1].at, "r", (str(log),)))
    write(store, job)
    lines = [line for some in follow_log(JobWatch(store, "7", {}), 0, lambda: True, lambda s: None) for line in some]
    assert lines[0] == f"==> {log} <==" and lines[-3:] == ["100%", "?[31mred\ufffd", "last"]
    assert lines.count("early") < 5 and all(line in ("early", "100%", "?[31mred\ufffd", "last") for line in lines[1:])


def test_a_line_without_an_end_is_no_reason_to_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 8)

    def pieces() -> Iterator[bytes]:
        yield b"half a "
        yield b"line, and more"

    assert list(log_lines(pieces())) == [["half a line, and more"]]


def test_output_that_went_nowhere_is_said(store: Store) -> None:
    write(store, running())
    with pytest.raises(UsageError, match="terminal or a pipe"):
        next(follow_log(JobWatch(store, "7", {}), None, lambda: True, lambda s: None))


def test_what_was_kept_of_hung_ranks_is_found(store: Store) -> None:
    write(store, running())
    keep_evidence(path(store), 1, "n1", "rank 0: \x1b[31msleeping")
    assert [text for _, text in JobWatch(store, "7", {}).evidence()] == ["rank 0: ?[31msleeping"]

"""Where ledgers lie, and whose past a job finds under its number."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.errors import StateError, UnknownJob
from ftslurm.ledger.index import Index
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import Identity, Store, state_folder
from ftslurm.model.folds.history import History
from ftslurm.model.record import AttemptBegan, Decided, RunBegan

ME = Identity("c", "7", restarts=0, start_time=1000, name="train")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


def runs(journal: Journal, me: Identity) -> None:
    """What an ftrun of this job writes at first."""
    journal.append([
        RunBegan(1.0, "r", me.job, me.cluster, me.restarts, "k", "train", "n[1-2]", me.start_time, me.name),
        AttemptBegan(2.0, "r", me.restarts + 1, me.restarts, "k", 1, "n[1-2]", 4),
    ])  # fmt: skip


def open_and_run(store: Store, me: Identity) -> History:
    """The past that was found."""
    journal, history = store.open(me)
    runs(journal, me)
    return history


def test_a_new_job_has_no_past_and_nothing_is_written_yet(store: Store) -> None:
    journal, history = store.open(ME)
    assert history == History() and not journal.path.exists()
    assert journal.path.name == "c.7.jsonl"


def test_a_second_ftrun_of_the_same_scheduling_goes_on(store: Store) -> None:
    open_and_run(store, ME)
    assert open_and_run(store, ME).attempts == 1


def test_a_requeued_job_goes_on(store: Store) -> None:
    open_and_run(store, ME)
    again = replace(ME, restarts=1, start_time=2000)
    assert open_and_run(store, again).attempts == 1
    later = replace(ME, restarts=5, start_time=9000)  # requeued by others in between
    assert open_and_run(store, later).attempts == 2


@pytest.mark.parametrize(("rung", "restarts", "goes_on"), [
    ("isolated-requeue", 1, True), ("unconditional-requeue", 1, True),
    ("isolated-requeue", 2, False), ("in-place-restart", 1, False), ("", 1, False)])  # fmt: skip
def test_a_renamed_job_goes_on_where_our_own_requeue_is_the_link(store: Store, rung: str, restarts: int, goes_on: bool) -> None:
    """From 24.11 on the script of the next scheduling has the new name in its environment."""
    open_and_run(store, ME)
    if rung:
        store.open(ME)[0].append([Decided(3.0, "d1", 1, rung, "crash", "because")])
    renamed = replace(ME, restarts=restarts, start_time=2000, name="renamed")
    assert open_and_run(store, renamed).attempts == (1 if goes_on else 0)


@pytest.mark.parametrize(("restarts", "submitted", "goes_on"), [(1, 1, True), (0, 1, True), (1, 3, False), (0, 0, False)])
def test_a_job_that_slurm_began_anew_without_counting_goes_on_if_it_is_as_old(
    store: Store, restarts: int, submitted: int, goes_on: bool
) -> None:
    """slurmctld died before it had saved the requeue. A job submitted after the last run cannot be the one that ran."""
    open_and_run(store, replace(ME, restarts=1))
    anew = replace(ME, restarts=restarts, start_time=5000, submit_time=submitted)
    assert open_and_run(store, anew).attempts == (2 if goes_on else 0)


def test_a_requeue_of_an_earlier_run_links_nothing(store: Store) -> None:
    open_and_run(store, ME)
    store.open(ME)[0].append([Decided(0.5, "d1", 1, "isolated-requeue", "crash", "because")])
    assert open_and_run(store, replace(ME, restarts=1, start_time=2000, name="renamed")).attempts == 0


def test_where_slurm_tells_no_start_time_the_count_of_requeues_has_to_do(store: Store) -> None:
    open_and_run(store, ME)
    assert open_and_run(store, replace(ME, start_time=0)).attempts == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(ME, start_time=5000),  # same number, another time
        replace(ME, start_time=5000, name="evaluate"),
        replace(ME, restarts=3, start_time=5000, name="evaluate"),
    ],
)
def test_a_job_that_got_a_number_again_is_a_new_job(store: Store, other: Identity) -> None:
    open_and_run(store, ME)
    old = store.open(ME)[0].path.read_bytes()
    journal, history = store.open(other)
    assert history == History() and not journal.path.exists()
    runs(journal, other)
    kept = [path.read_bytes() for path in journal.path.parent.glob("*.was.*")]
    assert kept == [old], "what the old job wrote is kept, aside"
    assert [*Index(store.root).named()] == [journal.path.name]


def test_fewer_requeues_than_the_ledger_knows_is_a_new_job(store: Store) -> None:
    open_and_run(store, replace(ME, restarts=2))
    assert store.open(replace(ME, restarts=1, start_time=5000))[1] == History()


def test_a_number_may_be_given_out_many_times(store: Store) -> None:
    for start in (1000, 2000, 3000):
        assert open_and_run(store, replace(ME, start_time=start)) == History()
    assert len(list((store.root / "jobs").glob("*.was.*"))) == 2


def test_a_ledger_of_nothing_but_damage_ends_nobody(store: Store) -> None:
    journal, _ = store.open(ME)
    journal.path.write_bytes(b"garbage\n\x00\xff\n")
    assert store.open(ME)[1] == History()
    assert store.open(ME)[0].read().damaged >= 1


def test_every_task_of_an_array_has_a_ledger_of_its_own(store: Store) -> None:
    paths = {store.open(replace(ME, job=job))[0].path.name for job in ("7_1", "7_2", "7_11", "7", "71")}
    assert paths == {"c.7_1.jsonl", "c.7_2.jsonl", "c.7_11.jsonl", "c.7.jsonl", "c.71.jsonl"}
    open_and_run(store, replace(ME, job="7_1"))
    assert store.open(replace(ME, job="7_2"))[1] == History()


@pytest.mark.parametrize(
    "cluster",
    [
        "../../etc",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/b",
        "a\\b",
        "a\nb",
        "a\x00b",
        "local",
        "-rf",
        "x" * 100,
        "*",
        "c.7",
        "ünï",
        "~",
    ],
)
def test_a_hostile_cluster_name_leads_nowhere_else(store: Store, cluster: str) -> None:
    me = replace(ME, cluster=cluster)
    open_and_run(store, me)
    assert open_and_run(store, me).attempts == 1
    journals = list((store.root / "jobs").glob("*.jsonl"))
    assert len(journals) == 1 and journals[0].parent == store.root / "jobs" and not journals[0].is_symlink()
    assert not journals[0].name.startswith(("local.", "."))
    assert {path.name for path in store.root.parent.iterdir()} == {"state"}


@pytest.mark.parametrize("job", ["../7", "7/../../x", "7\x00"])
def test_a_hostile_job_name_leads_nowhere_else(store: Store, job: str) -> None:
    open_and_run(store, replace(ME, job=job))
    assert len(list((store.root / "jobs").glob("c.*.jsonl"))) == 1


def test_a_name_too_long_for_a_file_is_one_clear_error(store: Store) -> None:
    with pytest.raises(StateError):
        open_and_run(store, replace(ME, cluster="x" * 300))


def test_clusters_do_not_share_a_ledger(store: Store) -> None:
    open_and_run(store, ME)
    assert store.open(replace(ME, cluster="d"))[1] == History()


# --- local jobs


def test_local_jobs_count_from_1_and_never_take_a_number_twice(store: Store) -> None:
    numbers = [store.new_local() for _ in range(3)]
    assert [number for number, _ in numbers] == [1, 2, 3]
    assert len({journal.path for _, journal in numbers}) == 3
    assert store.new_local()[0] == 4


def test_a_cluster_that_is_called_local_is_not_the_local_one(store: Store) -> None:
    number, journal = store.new_local()
    runs(journal, replace(ME, job=str(number)))
    assert store.open(replace(ME, cluster="local", job=str(number)))[1] == History()


# --- finding


@pytest.mark.parametrize("asked", ["7_2", "c.7_2"])
def test_a_job_is_found_by_its_number_or_with_its_cluster(store: Store, asked: str) -> None:
    for job in ("7_2", "7", "77_2"):
        open_and_run(store, replace(ME, job=job))
    assert store.find(asked)[0].path.name == "c.7_2.jsonl"


def test_of_a_number_on_two_clusters_the_latest_is_found(store: Store) -> None:
    for at, cluster in ((1000, "new"), (500, "old")):
        journal, _ = store.open(replace(ME, cluster=cluster))
        runs(journal, replace(ME, cluster=cluster))
        os.utime(journal.path, (at, at))
    assert store.find("7")[0].path.name == "new.7.jsonl"


def test_a_job_that_is_not_there_is_named(store: Store) -> None:
    open_and_run(store, ME)
    for asked in ("8", "", "7*", "../c.7"):
        with pytest.raises(UnknownJob) as caught:
            store.find(asked)
        assert str(store.root) in str(caught.value) and caught.value.exit_status == 66


def test_looking_makes_nothing(store: Store) -> None:
    assert store.peek(ME).records == ()
    assert not store.root.exists()


# --- the folder


def test_the_state_folder_is_the_one_that_was_asked_for_or_the_home_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_folder({"FTSLURM_STATE_DIR": str(tmp_path), "HOME": "/home/u"}) == tmp_path
    assert state_folder({"HOME": "/home/u"}) == Path("/home/u/.ftslurm")
    assert state_folder({}) == Path(pwd.getpwuid(os.geteuid()).pw_dir, ".ftslurm")
    assert state_folder({"FTSLURM_STATE_DIR": "rel", "HOME": "/home/u"}).is_absolute()
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)  # has no entry
    with pytest.raises(StateError, match="home") as caught:
        state_folder({})
    assert "FTSLURM_STATE_DIR" in caught.value.hint


def test_folders_that_were_made_are_private(store: Store) -> None:
    store.open(ME)
    assert [folder.stat().st_mode & 0o777 for folder in (store.root, store.root / "jobs")] == [0o700, 0o700]

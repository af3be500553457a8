"""How long clean-ups took, as one job tells the next."""

from __future__ import annotations

from pathlib import Path

from ftslurm.ledger.shared_file import add_clean_up, known_clean_ups
from ftslurm.model.folds.history import CLEAN_UPS_MAX, CleanUpTook, History


def test_the_latest_of_a_cluster_are_read_in_order(tmp_path: Path) -> None:
    for number in range(CLEAN_UPS_MAX + 5):
        add_clean_up(tmp_path / "state", "c", "7", 1.0, CleanUpTook(3.0 + number, rough=number % 2 == 0))
        add_clean_up(tmp_path / "state", "other", "8", 1.0, CleanUpTook(99.0))
    assert known_clean_ups(tmp_path / "state", "c", History()) == tuple(
        CleanUpTook(3.0 + number, number % 2 == 0) for number in range(5, CLEAN_UPS_MAX + 5)
    )


def test_what_somebody_wrote_there_is_passed_over(tmp_path: Path) -> None:
    add_clean_up(tmp_path / "state", "c", "7", 1.0, CleanUpTook(4.0))
    with (tmp_path / "state/clean-ups.jsonl").open("ab") as file:
        file.write(
            b'{"v":1,"cluster":"c","seconds":-3.0}\n{"v":1,"cluster":"c","seconds":"x"}\n[]\n\xff\n{"v":1,"cluster":"c","seconds":NaN}\n'
        )
    assert known_clean_ups(tmp_path / "state", "c", History()) == (CleanUpTook(4.0),)


def test_without_a_memory_the_job_s_own_past_counts(tmp_path: Path) -> None:
    past = History(clean_ups=(CleanUpTook(5.0),))
    assert known_clean_ups(tmp_path / "nowhere", "c", past) == past.clean_ups
    add_clean_up(tmp_path, "c", "7", 1.0, CleanUpTook(8.0))
    assert known_clean_ups(tmp_path, "c", past) == (CleanUpTook(8.0),)
    (tmp_path / "clean-ups.jsonl").unlink()
    (tmp_path / "clean-ups.jsonl").mkdir()
    assert known_clean_ups(tmp_path, "c", past) == past.clean_ups

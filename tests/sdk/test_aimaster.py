"""Programs written for AIMaster's sdk, as its documentation shows them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ftslurm.sdk import aimaster as jm
from ftslurm.sdk import notes
from ftslurm.sdk.page import read_page
from tests.sdk.reading import read_notes


def stage(path: str) -> float | None:
    state = read_page(path)
    return state.stage_s if state else None


def told(path: str) -> list[tuple[Any, ...]]:
    return [note.words for note in read_notes(path + notes.SUFFIX, 0)[0]]


def test_a_message_and_own_keywords(page_path: str) -> None:
    monitor = jm.Monitor(config=jm.PyTorchConfig())
    status = monitor.send_custom_message(content="The training loss of the job is NaN.")
    assert status.ok() and status.to_string() == "OK"
    assert jm.Monitor(config=jm.TFConfig(**{})).set_retryable_errors(["connect timeout", "error_yyy", "error_zzz"]).ok()
    assert told(page_path) == [("The training loss of the job is NaN.",), ("connect timeout", "error_yyy", "error_zzz")]


def test_without_ftrun_a_status_says_so(page_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTSLURM_PAGE")
    monitor = jm.Monitor(config=jm.PyTorchConfig(job_hang_interval=1800))
    for status in (
        monitor.send_custom_message("x"),
        monitor.set_retryable_errors(["x"]),
        monitor.reset_config(job_hang_interval=5),
    ):
        assert not status.ok() and status.to_string() == "this rank was not started by ftrun" and not status


def test_the_interval_of_the_config_holds_from_the_start_and_can_be_reset(page_path: str) -> None:
    monitor = jm.Monitor(config=jm.PyTorchConfig(**{"job_hang_interval": 1800}))
    assert stage(page_path) == 1800
    params = {"job_hang_interval": 10}
    assert monitor.reset_config(job_hang_interval=20).ok() and stage(page_path) == 20
    assert monitor.reset_config(**params).ok() and stage(page_path) == 10
    assert monitor.reset_config({"job_hang_interval": 30}).ok() and stage(page_path) == 30
    assert monitor.reset_config(jm.TFConfig(job_hang_interval=40)).ok() and stage(page_path) == 40
    assert monitor.reset_config(job_hang_interval=-1).ok() and stage(page_path) == -1


def test_stages_hold_for_their_functions(page_path: str) -> None:
    monitor = jm.Monitor(config=jm.PyTorchConfig(job_hang_interval=1800))
    seen = []

    @jm.hang_detect(180)
    def train(epoch: int) -> int:
        seen.append(stage(page_path))
        monitor.reset_config(job_hang_interval=90)
        seen.append(stage(page_path))
        test()
        seen.append(stage(page_path))
        return epoch

    @jm.hang_detect(-1)
    def test() -> None:
        seen.append(stage(page_path))

    @jm.hang_detect(60)
    async def fetch() -> None:
        await asyncio.sleep(0)
        seen.append(stage(page_path))
        raise OSError

    assert train(4) == 4
    with pytest.raises(OSError):
        asyncio.run(fetch())
    assert seen == [180, 90, -1, 90, 60] and stage(page_path) == 1800


def test_what_is_wrong_is_in_the_status_and_nowhere_else(page_path: str) -> None:
    monitor = jm.Monitor(config=jm.PyTorchConfig(job_hang_interval="soon"))
    assert stage(page_path) is None
    assert "job_hang_interval: 0 is neither" in monitor.reset_config(job_hang_interval=0).to_string()
    assert not monitor.reset_config(5).ok() and not monitor.reset_config(strange=[1]).ok()
    assert not monitor.set_retryable_errors(7).ok()  # type: ignore[arg-type]
    assert jm.Monitor(config=None).config.params == {} and jm.Monitor(config="x").config == "x"  # type: ignore[arg-type,comparison-overlap]


def test_other_parameters_are_passed_on_by_name(page_path: str) -> None:
    config = jm.PyTorchConfig(job_exit_hang_interval=600, enable_job_hang_detection=True)
    assert jm.Monitor(config=config).reset_config(c4d_log_level="Info").ok()
    assert told(page_path) == [
        ("job_exit_hang_interval", "600.0"), ("enable_job_hang_detection", "True"), ("c4d_log_level", "Info"),
    ]  # fmt: skip

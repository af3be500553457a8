"""Our own interface: what a program tells, what it asks, and that neither ever costs it anything but time."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftslurm.sdk import client as ft
from ftslurm.sdk import notes
from ftslurm.sdk.page import PageState, read_page
from tests.sdk.conftest import ROOT
from tests.sdk.reading import read_notes

Rank = Callable[..., "subprocess.CompletedProcess[str]"]


def read(path: str) -> PageState:
    state = read_page(path)
    assert state is not None
    return state


def is_open(path: str, name: str) -> bool:
    return any(one.opened_ns for one in read(path).sections if one.name == name)


def stage(path: str) -> float | None:
    return read(path).stage_s


# --- without ftrun


def test_without_ftrun_all_calls_do_nothing(tmp_path: Path, rank: Rank) -> None:
    done = rank("""
        import os, sys
        from ftslurm.sdk import client as ft
        ft.heartbeat(); ft.progress(1); ft.start_section("a"); ft.end_section("a"); ft.end_all_sections()
        with ft.section("b"), ft.hang_interval(5):
            ft.set_hang_interval(-1)
        print(ft.message("x"), ft.retriable("y"), ft.shut_down("z"), ft.leave_this_node("n"), ft.page(), ft.restart_info())
        print("json" in sys.modules, "logging" in sys.modules)
        """, FTSLURM_PAGE="", FTSLURM_ATTEMPT="")  # fmt: skip
    assert done.stdout == (
        "False False False False None RestartInfo(is_restart=False, rung='', cause='', schedule_count=1, start_count=1,"
        " attempt=1, shared_memory_survived=False)\nFalse False\n"
    )
    assert not (tmp_path / "pages").exists() and done.stderr == ""


def test_where_no_page_can_be_made_the_program_runs_on(tmp_path: Path, rank: Rank) -> None:
    (tmp_path / "file").write_text("")
    done = rank("""
        from ftslurm.sdk import client as ft
        ft.heartbeat(); ft.start_section("a"); ft.end_section("a"); ft.progress(1)
        print(ft.message("x"))
        """, FTSLURM_PAGE=tmp_path / "file" / "page")  # fmt: skip
    assert (done.stdout, done.stderr) == ("False\n", "")


class Rude:
    """An object that fails at whatever is done with it."""

    def __int__(self) -> int:
        raise RuntimeError("no")

    __str__ = __index__ = __float__ = __hash__ = __eq__ = __iter__ = __int__  # type: ignore[assignment]


@pytest.mark.parametrize("wrong", [None, float("nan"), "text", [], {}, b"\xff", -5, 1 << 80, Rude()])
def test_no_argument_whatever_raises(page_path: str, wrong: Any) -> None:
    ft.heartbeat()
    ft.progress(wrong)
    ft.start_section(wrong)
    ft.end_section(wrong)
    ft.set_hang_interval(wrong)
    with ft.hang_interval(wrong), ft.section(wrong):
        ft.message(wrong)
    ft.retriable(wrong)
    ft.shut_down(wrong)
    ft.leave_this_node(wrong)
    assert read(page_path).beats == 1


# --- signs of life


def test_the_first_sign_of_life_makes_the_process_watched(page_path: str) -> None:
    assert ft.page() is not None and read(page_path).init_ns == 0
    ft.set_hang_interval(60)
    assert read(page_path).init_ns == 0 and stage(page_path) == 60
    ft.heartbeat()
    assert read(page_path).init_ns > 0 and stage(page_path) == 60
    ft.over()
    assert read(page_path).init_ns == 0


def test_progress_takes_what_counts_as_a_number(page_path: str) -> None:
    class Scalar:
        def __int__(self) -> int:
            return 17

    ft.progress(Scalar())  # type: ignore[arg-type]
    assert (read(page_path).step, read(page_path).rank, read(page_path).attempt) == (17, 3, 2)


def test_a_section_ends_however_it_is_left(page_path: str) -> None:
    with pytest.raises(KeyError), ft.section("step"):
        assert is_open(page_path, "step")
        raise KeyError
    assert not is_open(page_path, "step")


def test_a_section_within_itself_is_one_section(page_path: str) -> None:
    @ft.section("walk")
    def walk(depth: int) -> None:
        if depth:
            walk(depth - 1)
            assert is_open(page_path, "walk")

    walk(3)
    assert not is_open(page_path, "walk") and read(page_path).sections[0].times == 1


def test_sections_of_two_threads_do_not_disturb_each_other(page_path: str) -> None:
    def work(name: str) -> None:
        for _ in range(300):
            with ft.section(name):
                pass

    threads = [threading.Thread(target=work, args=(name,)) for name in ("load", "save")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.times for one in read(page_path).sections] == [300, 300] and read(page_path).out_since_ns > 0


# --- staged intervals


def test_an_interval_holds_for_its_scope_and_the_one_before_it_afterwards(page_path: str) -> None:
    ft.set_hang_interval(1800)
    with ft.hang_interval(180):
        assert stage(page_path) == 180
        with ft.hang_interval(-1):
            assert stage(page_path) == -1
            ft.set_hang_interval(20)  # only for this scope
            assert stage(page_path) == 20
        assert stage(page_path) == 180
    assert stage(page_path) == 1800
    ft.set_hang_interval(None)
    assert stage(page_path) is None


def test_an_interval_ends_with_an_exception_too(page_path: str) -> None:
    @ft.hang_interval(180)
    def train() -> None:
        assert stage(page_path) == 180
        raise ValueError

    with pytest.raises(ValueError):
        train()
    assert stage(page_path) is None


def test_decorated_functions_stay_what_they_were(page_path: str) -> None:
    @ft.hang_interval(60)
    def plain(a: int, b: int = 2) -> tuple[int, int, float | None]:
        """What it does."""
        return a, b, stage(page_path)

    assert (plain.__name__, plain.__doc__) == ("plain", "What it does.")
    assert plain(1, b=3) == (1, 3, 60.0) and stage(page_path) is None

    @ft.hang_interval(60)
    def recursive(depth: int) -> float | None:
        return recursive(depth - 1) if depth else stage(page_path)

    assert recursive(3) == 60 and stage(page_path) is None

    @ft.hang_interval(60)
    def batches() -> Iterator[float | None]:
        yield stage(page_path)
        yield stage(page_path)

    assert list(batches()) == [60, 60] and stage(page_path) is None


def test_an_interval_lasts_as_long_as_a_coroutine_runs(page_path: str) -> None:
    seen = []

    @ft.hang_interval(60)
    async def long() -> str:
        await asyncio.sleep(0.01)
        seen.append(stage(page_path))
        await asyncio.sleep(0.04)
        return "done"

    @ft.hang_interval(-1)
    async def short() -> None:
        await asyncio.sleep(0.02)
        seen.append(stage(page_path))

    @ft.hang_interval(5)
    async def stream() -> AsyncIterator[float | None]:
        yield stage(page_path)

    async def both() -> list[Any]:
        done = await asyncio.gather(long(), short())
        return [*done, [item async for item in stream()]]

    assert asyncio.run(both()) == ["done", None, [5.0]]
    assert seen == [-1, -1] and stage(page_path) is None  # the one entered last holds


def test_a_wrong_interval_changes_nothing_and_is_said_once(page_path: str, caplog: pytest.LogCaptureFixture) -> None:
    ft.set_hang_interval(60)

    @ft.hang_interval(0)
    def work() -> float | None:
        return stage(page_path)

    assert [work(), work()] == [60, 60] and len(caplog.records) == 1
    ft.set_hang_interval(-2)
    assert stage(page_path) == 60


# --- words


def test_notes_say_what_was_said(page_path: str) -> None:
    assert ft.message("NaN") and ft.retriable("connect timeout") and ft.retriable(["a", "b"])
    assert ft.shut_down("diverged") and ft.leave_this_node("ECC")
    found, _ = read_notes(page_path + notes.SUFFIX, 0)
    assert [note[:2] for note in found] == [
        ("message", ("NaN",)), ("retriable", ("connect timeout",)), ("retriable", ("a", "b")), ("shutdown", ("diverged",)),
        ("exclude", ("ECC",)),
    ]  # fmt: skip


def test_a_note_makes_no_page(page_path: str) -> None:
    ft.message("only this")
    assert read_page(page_path) is None and os.path.exists(page_path + notes.SUFFIX)


# --- restarts


@pytest.mark.parametrize(("env", "told"), [
    ({"MA_SCHEDULE_CNT": "1", "MA_PROC_START_CNT": "1", "FTSLURM_ATTEMPT": "1"}, (False, "", "", 1, 1, 1, False)),
    ({"MA_SCHEDULE_CNT": "1", "MA_PROC_START_CNT": "2", "FTSLURM_ATTEMPT": "2", "FTSLURM_RESTART_RUNG": "in-place-restart",
      "FTSLURM_RESTART_CAUSE": "device"}, (True, "in-place-restart", "device", 1, 2, 2, True)),
    ({"MA_SCHEDULE_CNT": "2", "MA_PROC_START_CNT": "1", "FTSLURM_ATTEMPT": "3", "FTSLURM_RESTART_RUNG": "isolated-requeue",
      "FTSLURM_RESTART_CAUSE": "node"}, (True, "isolated-requeue", "node", 2, 1, 3, False)),
    ({"MA_SCHEDULE_CNT": "", "MA_PROC_START_CNT": "x", "FTSLURM_ATTEMPT": "-3"}, (False, "", "", 1, 1, 1, False)),
])  # fmt: skip
def test_a_program_knows_how_it_was_started(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], told: tuple[Any, ...]) -> None:
    for name in ("MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "FTSLURM_ATTEMPT", "FTSLURM_RESTART_RUNG", "FTSLURM_RESTART_CAUSE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert tuple(ft.restart_info()) == told


# --- old Pythons


SOURCES = sorted((ROOT / "ftslurm" / "sdk").rglob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=[str(path.relative_to(ROOT)) for path in SOURCES])
def test_the_sdk_can_be_read_by_python_3_8(source: Path) -> None:
    ast.parse(source.read_text(), feature_version=(3, 8))


def test_it_loads_nothing_heavy(rank: Rank) -> None:
    heavy = "asyncio dataclasses inspect json logging pathlib re socket subprocess torch threading yaml".split()
    done = rank(f"""
        import sys
        before = set(sys.modules)
        import ftslurm.sdk.client
        print(sorted(set({heavy!r}) & (set(sys.modules) - before)))
        """)
    assert done.stdout in ("[]\n", "['re']\n")  # `typing` takes `re` with it before Python 3.12

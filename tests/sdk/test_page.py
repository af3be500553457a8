"""The shared page: what a writer tells, what a reader makes of it, and pages that are not ours."""

from __future__ import annotations

import os
import random
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.sdk import page as pages
from ftslurm.sdk.page import Page, PageState, claim, owner_lives, page_paths, parse_page, read_page
from tests.sdk.conftest import ROOT

Rank = Callable[..., "subprocess.CompletedProcess[str]"]


def made(path: str) -> Page:
    page = claim(path, attempt=2, rank=3)
    assert page is not None
    page.begin()
    return page


def read(path: str) -> PageState:
    state = read_page(path)
    assert state is not None
    return state


def section(path: str, name: str) -> pages.SectionState:
    return next(one for one in read(path).sections if one.name == name)


# --- what is told


def test_a_page_says_whose_it_is_and_nobody_else_may_read_it(page_path: str) -> None:
    made(page_path)
    state = read(page_path)
    assert (state.pid, state.attempt, state.rank) == (os.getpid(), 2, 3)
    assert state.start_ticks == pages.start_ticks(os.getpid()) and owner_lives(state) is True
    told = os.stat(page_path)
    assert stat.S_IMODE(told.st_mode) == 0o600 and told.st_size == pages.SIZE
    assert stat.S_IMODE(os.stat(os.path.dirname(page_path)).st_mode) == 0o700


def test_nothing_is_watched_before_begin_and_after_over(page_path: str) -> None:
    page = claim(page_path, 1, None)
    assert page is not None and read(page_path).init_ns == 0 and read(page_path).rank is None
    page.begin()
    page.open("setup")
    assert read(page_path).init_ns > 0
    page.over()
    state = read(page_path)
    assert (state.init_ns, state.out_since_ns, section(page_path, "setup").opened_ns) == (0, 0, 0)


def test_heartbeats_are_counted(page_path: str) -> None:
    page = made(page_path)
    for _ in range(3):
        page.beat()
    assert read(page_path).beats == 3


def test_a_new_begin_forgets_the_heartbeats_before_it(page_path: str) -> None:
    page = made(page_path)
    page.beat()
    first = read(page_path).init_ns
    page.begin()
    state = read(page_path)
    assert state.init_ns > first and state.beats == 0


def test_progress_tells_the_step_and_the_first_one(page_path: str) -> None:
    page = made(page_path)
    assert (read(page_path).step, read(page_path).first_step) == (None, None)
    for step in (0, 7, 5):
        page.step(step)
    state = read(page_path)
    assert (state.steps, state.step, state.first_step) == (3, 5, 0)
    page.warmup(5)
    assert read(page_path).warmup == 5


@pytest.mark.parametrize(("seconds", "told"), [(180.0, 180.0), (0.25, 0.25), (-1, -1.0), (None, None), (1e30, 1e9)])
def test_a_staged_interval_is_told(page_path: str, seconds: float | None, told: float | None) -> None:
    page = made(page_path)
    page.stage(seconds)
    assert (read(page_path).stages, read(page_path).stage_s) == (1, told)


def test_sections_nest_and_overlap_and_the_time_out_of_them_is_known(page_path: str) -> None:
    page = made(page_path)
    assert read(page_path).out_since_ns > 0
    page.open("outer")
    page.open("inner")
    state = read(page_path)
    assert state.out_since_ns == 0
    assert all(one.opened_ns for one in state.sections)
    page.close("outer")  # they overlap
    assert read(page_path).out_since_ns == 0
    time.sleep(0.02)
    page.close("inner")
    state = read(page_path)
    assert state.out_since_ns > 0
    inner, outer = section(page_path, "inner"), section(page_path, "outer")
    assert (inner.opened_ns, outer.opened_ns, inner.times, outer.times) == (0, 0, 1, 1)


def test_what_it_saves_is_counted_apart(page_path: str) -> None:
    page = made(page_path)
    for name in ("step", "checkpointing", "save", "save"):
        page.open(name)
    page.close("step")
    assert (page.words[pages.SAVING], read(page_path).saved) == (2, 0)
    page.close("save", whole=False)
    time.sleep(0.02)
    page.close("checkpointing")
    state = read(page_path)
    assert (page.words[pages.SAVING], state.saved) == (0, 1) and state.longest_save_ns >= 20e6


def test_a_section_opened_again_begins_anew_and_one_that_is_not_open_does_not_end(page_path: str) -> None:
    page = made(page_path)
    page.close("step")
    page.open("step")
    first = section(page_path, "step").opened_ns
    page.open("step")
    assert section(page_path, "step").opened_ns > first
    page.close("step")
    page.close("step")
    assert section(page_path, "step").times == 1 and read(page_path).out_since_ns > 0


def test_all_sections_end_at_once(page_path: str) -> None:
    page = made(page_path)
    for name in "abc":
        page.open(name)
    page.close_all()
    assert [one.opened_ns for one in read(page_path).sections] == [0, 0, 0] and read(page_path).out_since_ns > 0


def test_the_forty_ninth_section_has_no_slot_but_counts(page_path: str) -> None:
    page = made(page_path)
    for number in range(60):
        page.open(f"s{number}")
        page.close(f"s{number}")
    page.open("s59")
    state = read(page_path)
    assert len(state.sections) == 48 and state.out_since_ns == 0


def test_names_without_room_are_dropped_and_do_not_grow_for_ever(page_path: str) -> None:
    page = made(page_path)
    page.open("x" * 256)
    for number in range(12):
        page.open(f"{number:03}" + "y" * 200)
    state = read(page_path)
    assert len(state.sections) == 1792 // 203
    page.close_all()
    for number in range(5000):
        page.open(f"step {number}")
        page.close(f"step {number}")
    assert len(page._slots) <= pages.NAMES_MAX + 1


def test_names_may_be_any_text_and_are_read_without_tricks(page_path: str) -> None:
    page = made(page_path)
    page.open("检查点")
    page.open("\x1b[2J\nrm")
    assert [one.name for one in read(page_path).sections] == ["检查点", "?[2J?rm"]


def test_the_words_of_the_probe_are_left_alone(page_path: str) -> None:
    page = made(page_path)
    for index in range(pages.PROBE, pages.PROBE_END):
        page.words[index] = index
    page.beat()
    page.step(1)
    page.stage(3)
    for number in range(70):
        page.open(f"section {number}")
    page.close_all()
    page.begin()
    page.over()
    assert page.words[pages.PROBE : pages.PROBE_END].tolist() == list(range(pages.PROBE, pages.PROBE_END))


# --- who may write


def test_a_second_process_gets_a_page_of_its_own_and_a_dead_ones_page_is_taken_over(page_path: str, rank: Rank) -> None:
    made(page_path).beat()
    rank("from ftslurm.sdk import client; client.heartbeat(); client.heartbeat()")
    assert page_paths(page_path) == [page_path, f"{page_path}.1"]
    assert [read(path).beats for path in page_paths(page_path)] == [1, 2]
    assert owner_lives(read(f"{page_path}.1")) is False
    rank("from ftslurm.sdk import client; client.heartbeat()")
    assert page_paths(page_path) == [page_path, f"{page_path}.1"] and read(f"{page_path}.1").beats == 1


def test_nothing_of_a_dead_ones_page_stays(page_path: str, rank: Rank) -> None:
    rank("from ftslurm.sdk import client as c; c.start_section('old'); c.progress(9); c.set_hang_interval(5)")
    assert section(page_path, "old").opened_ns
    made(page_path)
    state = read(page_path)
    assert (state.sections, state.steps, state.stages, state.pid) == ((), 0, 0, os.getpid())


def test_many_at_once_have_a_page_each(page_path: str, rank_env: dict[str, str]) -> None:
    source = "import sys; from ftslurm.sdk import client as c; c.heartbeat(); print(c.page().path, flush=True); sys.stdin.read()"
    env = {**rank_env, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", source], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    paths = [rank.stdout.readline().strip() for rank in ranks if rank.stdout]
    states = [read(path) for path in paths]
    assert len(set(paths)) == 6 and {state.pid for state in states} == {rank.pid for rank in ranks}
    for rank in ranks:
        rank.communicate("")


def test_an_executed_program_takes_the_page_of_the_one_it_was(page_path: str, rank: Rank) -> None:
    rank("""
        import os, sys
        from ftslurm.sdk import client
        client.heartbeat(); client.heartbeat()
        os.execv(sys.executable, [sys.executable, "-c", "from ftslurm.sdk import client; client.heartbeat()"])
        """)
    assert page_paths(page_path) == [page_path] and read(page_path).beats == 1


def test_a_forked_child_does_not_write_and_can_have_a_page_of_its_own(page_path: str, rank: Rank) -> None:
    rank("""
        import os
        from ftslurm.sdk import client
        client.start_section("step")
        if os.fork() == 0:
            client.heartbeat(); client.end_section("step"); client.progress(1); client.set_hang_interval(-1)
            if os.fork() == 0:
                client.begin(even_in_a_child=True)
                client.heartbeat()
            else:
                os.wait()
            os._exit(0)
        os.wait()
        """)
    state = read(page_path)
    assert (state.beats, state.steps, state.stages) == (0, 0, 0) and section(page_path, "step").opened_ns
    assert read(f"{page_path}.1").beats == 1


def test_a_child_of_a_process_without_a_page_is_as_free_as_its_parent(page_path: str, rank: Rank) -> None:
    rank("""
        import os
        from ftslurm.sdk import client
        if os.fork() == 0:
            client.heartbeat()
            os._exit(0)
        os.wait()
        """)
    assert read(page_path).beats == 1


# --- where there can be none


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_no_page_in_a_folder_that_others_may_enter(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    assert claim(str(folder / "page"), 0, None) is None and list(folder.iterdir()) == []


def test_no_page_through_a_link_nor_over_something_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "folder", "fifo", "missing/deeper/still", "nul\0"):
        assert claim(str(tmp_path / name), 0, None) is None
        assert read_page(str(tmp_path / name)) is None
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_full_file_system_costs_the_page_and_not_the_program(page_path: str, rank: Rank) -> None:
    done = rank("""
        import resource
        from ftslurm.sdk import client
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for _ in range(3):
            client.heartbeat(); client.start_section("a"); client.progress(1)
        print(client.page())
        """)
    assert done.stdout == "None\n" and read_page(page_path) is None


# --- hostile content


def test_what_is_no_page_is_none(tmp_path: Path) -> None:
    good = made(str(tmp_path / "pages" / "p")).words.tobytes()
    assert parse_page(good) is not None
    wrong_version = good[:8] + struct.pack("=Q", 2) + good[16:]
    for data in (b"", good[:-1], good + b"\0", bytes(8192), wrong_version, b"\xff" * 8192):
        assert parse_page(data) is None
    assert read_page(str(tmp_path / "nothing")) is None


@given(st.data())
def test_no_bytes_make_the_reader_stumble(data: st.DataObject) -> None:
    words = [pages.MAGIC_NUMBER, pages.VERSION_NUMBER] + [0] * 1022
    places = st.one_of(st.integers(2, 63), st.integers(512, 1023))
    values = st.one_of(st.integers(0, pages.WORD_MAX), st.sampled_from([0, 1, 49, pages.WORD_MAX, 1 << 63, 0xFFFF_FFFF]))
    for place, value in data.draw(st.lists(st.tuples(places, values), max_size=60)):
        words[place] = value
    state = parse_page(struct.pack("=1024Q", *words))
    assert state is not None and len(state.sections) <= 48
    assert all(one.name.isprintable() for one in state.sections)


@given(st.integers(0, 1 << 32))
def test_nor_does_noise(seed: int) -> None:
    noise = random.Random(seed).randbytes(pages.SIZE - 16)
    assert parse_page(struct.pack("=2Q", pages.MAGIC_NUMBER, pages.VERSION_NUMBER) + noise) is not None


def test_slots_that_point_elsewhere_or_twice_to_one_name_are_passed_over(tmp_path: Path) -> None:
    path = str(tmp_path / "pages" / "p")
    page = made(path)
    page.open("good")
    page.open("bad")
    page.open("twin")
    slot = pages.SLOTS + pages.SLOT_WORDS
    page.words[slot + pages.NAME] = 1790 << 16 | 30  # beyond the end
    for index in (pages.KEY, pages.NAME):
        page.words[slot + pages.SLOT_WORDS + index] = page.words[pages.SLOTS + index]
    page.words[pages.SECTIONS] = 1 << 40
    assert [one.name for one in read(path).sections] == ["good"]


def test_a_page_cut_short_under_the_reader_is_none(tmp_path: Path) -> None:
    path = str(tmp_path / "pages" / "p")
    made(path)
    os.truncate(path, 100)
    assert read_page(path) is None


def test_words_are_never_seen_half_written(tmp_path: Path) -> None:
    path = str(tmp_path / "pages" / "p")
    page = made(path)
    child = os.fork()
    if child == 0:
        words = page.words
        while True:
            words[pages.BEATS] = 0
            words[pages.BEATS] = pages.WORD_MAX
    try:
        until = time.monotonic() + 0.5
        seen = set()
        while time.monotonic() < until:
            seen.add(read(path).beats)
        assert seen == {0, pages.WORD_MAX}
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_of_another_pid_namespace_nobody_knows_whether_it_lives(page_path: str) -> None:
    page = made(page_path)
    page.words[pages.NAMESPACE] += 1
    assert owner_lives(read(page_path)) is None

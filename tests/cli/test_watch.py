"""`ftslurm watch` as people use it: its keys, in a terminal of 80 columns, in one that can do nothing, and in a pipe."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyte
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Log, Static

from ftslurm.cli.jobs import watch_screen
from ftslurm.cli.jobs.watch_screen import JobPage, JobsPage, TextPage, WatchApp
from ftslurm.ledger import live as files
from ftslurm.ledger.journal import to_line
from ftslurm.ledger.store import Store
from ftslurm.model import record as rec
from ftslurm.wrapper import control
from ftslurm.wrapper import watch as reader
from ftslurm.wrapper.watch import JobWatch
from tests.report.test_watch import live_of, running
from tests.stories.replay import Job

ROOT = str(Path(__file__).resolve().parents[2])
LIMIT_S = 90.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    (tmp_path / "state" / "jobs").mkdir(parents=True)
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "/nonexistent")  # nor is there a Slurm
    for name in ("LOOK_S", "JOBS_LOOK_S"):
        monkeypatch.setattr(watch_screen, name, 0.05)
    return Store(tmp_path / "state")


def path(store: Store) -> Path:
    return store.root / "jobs" / "c.7.jsonl"


def write(store: Store, job: Job) -> None:
    path(store).write_bytes(b"".join(to_line(record) for record in job.ledger))
    files.make_request(path(store))


class Ftrun(threading.Thread):
    """Tells, while somebody watches, as one does that runs."""

    def __init__(self, store: Store, job: Job) -> None:
        super().__init__(daemon=True)
        self.live = live_of(job)
        self._ledger, self._over = path(store), threading.Event()

    def run(self) -> None:
        before = files.request_changed(self._ledger)
        while not self._over.wait(0.05):
            if files.request_changed(self._ledger) != before:
                self.live = replace(self.live, number=self.live.number + 1)
                files.write_live(self._ledger, self.live)

    def end(self) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def ftrun(store: Store) -> Iterator[Callable[[Job], Ftrun]]:
    """Writes the ledger of a job, and runs it."""
    begun: list[Ftrun] = []

    def begin(job: Job) -> Ftrun:
        write(store, job)
        begun.append(Ftrun(store, job))
        begun[-1].start()
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


def play(app: WatchApp, story: Callable[[Pilot[None]], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await asyncio.wait_for(story(pilot), LIMIT_S)

    asyncio.run(run())


async def until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        await pilot.pause(0.02)


def job_app(store: Store) -> WatchApp:
    watch = JobWatch(store, "7", os.environ)
    return WatchApp(lambda: JobPage(watch, from_list=False))


def rows(pilot: Pilot[None]) -> list[list[str]]:
    found = pilot.app.screen.query_one(DataTable)
    return [[str(cell) for cell in found.get_row_at(number)] for number in range(found.row_count)]


def text_of(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.screen.query_one(name, Static).render())


def log_of(pilot: Pilot[None]) -> list[str]:
    return list(pilot.app.screen.query_one(Log).lines)


def is_text(pilot: Pilot[None]) -> bool:
    return isinstance(pilot.app.screen, TextPage)


def test_ranks_nodes_and_devices_by_their_keys(store: Store, ftrun: Callable[[Job], Ftrun]) -> None:
    ftrun(running())

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0].isdecimal())
        assert rows(pilot)[0][:3] == ["0", "n1", "running"] and "2 running" in text_of(pilot, "#head")
        assert "attempt 1 began" in text_of(pilot, "#happened")
        await pilot.press("d")
        assert rows(pilot)[0][:4] == ["n1", "0", "npu", "good"]
        await pilot.press("n")
        assert [row[0] for row in rows(pilot)] == ["n1", "n2"]
        await pilot.press("down", "enter")  # the ranks of that node alone
        assert [row[1] for row in rows(pilot)] == ["n2"]
        await pilot.press("escape")
        assert [row[0] for row in rows(pilot)] == ["n1", "n2"]
        await pilot.press("r")
        assert [row[0] for row in rows(pilot)] == ["0", "1"]
        await pilot.press("q")
        assert not pilot.app.is_running

    play(job_app(store), story)


def test_what_changes_is_shown_and_the_cursor_stays(store: Store, ftrun: Callable[[Job], Ftrun]) -> None:
    job = running()
    ftrun(job)

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0].isdecimal())
        await pilot.press("down")
        job.exits(0, 1)
        path(store).write_bytes(b"".join(to_line(record) for record in job.ledger))
        await until(pilot, lambda: "in-place-restart" in text_of(pilot, "#happened"))
        assert pilot.app.screen.query_one(DataTable).cursor_row == 1
        await pilot.press("c")
        await until(pilot, lambda: is_text(pilot) and any("rank 0 on n1 exited with status 1" in line for line in log_of(pilot)))
        await pilot.press("escape", "h")
        await until(pilot, lambda: is_text(pilot) and any("attempt 1 began" in line for line in log_of(pilot)))

    play(job_app(store), story)


def test_a_log_is_followed(store: Store, tmp_path: Path, ftrun: Callable[[Job], Ftrun]) -> None:
    job, log = running(), tmp_path / "rank-0.out"
    log.write_text("step 1\n")
    job.ledger.append(rec.OutputTo(job.ledger[-1].at, "r", (), (("task", str(tmp_path / "rank-%t.out")),)))
    ftrun(job)

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0].isdecimal())
        await pilot.press("l")
        await until(pilot, lambda: is_text(pilot) and "step 1" in log_of(pilot))
        with log.open("a") as file:
            file.write("step 2\x1b[2J\n")
        await until(pilot, lambda: "step 2?[2J" in log_of(pilot))
        await pilot.press("escape")
        assert not is_text(pilot)
        await pilot.press("down", "l")  # a rank that has none
        await until(pilot, lambda: is_text(pilot) and any("no file" in line or "writes a file" in line for line in log_of(pilot)))

    play(job_app(store), story)


def test_a_log_begins_at_its_end_and_long_lines_go_on_below(store: Store, tmp_path: Path, ftrun: Callable[[Job], Ftrun]) -> None:
    job, log = running(), tmp_path / "rank-0.out"
    log.write_text("".join(f"step {number} {'word ' * 20}\n" for number in range(60)))
    job.ledger.append(rec.OutputTo(job.ledger[-1].at, "r", (), (("task", str(tmp_path / "rank-%t.out")),)))
    ftrun(job)

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0].isdecimal())
        await pilot.press("l")
        await until(pilot, lambda: is_text(pilot) and any(line.startswith("step 59") for line in log_of(pilot)))
        shown = pilot.app.screen.query_one(Log)
        await until(pilot, lambda: shown.max_scroll_y and shown.scroll_offset.y == shown.max_scroll_y)
        assert max(map(len, log_of(pilot))) < 80 and "".join(log_of(pilot)).count("word") == 60 * 20

    play(job_app(store), story)


def test_stacks_are_asked_for_and_come(store: Store, ftrun: Callable[[Job], Ftrun]) -> None:
    runs = ftrun(running())

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0].isdecimal())
        await pilot.press("s")
        await until(pilot, lambda: "stacks" in files.read_request(path(store)))
        asked, node = files.read_request(path(store))["stacks"]
        assert node == "n1"
        runs.live = replace(runs.live, stacks=(asked, node, "rank 0:\n  train.py:9 \x1b[31m"))
        await until(pilot, lambda: is_text(pilot) and "  train.py:9 ?[31m" in log_of(pilot))

    play(job_app(store), story)


def test_the_list_opens_a_job_and_leads_back(store: Store, ftrun: Callable[[Job], Ftrun]) -> None:
    ftrun(running())

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0].isdecimal())
        assert rows(pilot)[0][0] == "7" and rows(pilot)[0][2] == "running"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, JobPage) and rows(pilot))
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, JobsPage)
        await pilot.press("a", "ctrl+c")
        assert not pilot.app.is_running

    play(WatchApp(lambda: JobsPage(store)), story)


def some_jobs(store: Store) -> None:
    record = running().ledger
    for number in range(1, 7):
        named = tuple(
            replace(each, job=f"471{number}", name=f"train{number}") if isinstance(each, rec.RunBegan) else each
            for each in record
        )
        (store.root / "jobs" / f"c.471{number}.jsonl").write_bytes(b"".join(map(to_line, named)))


def test_the_list_is_ordered_and_filtered(store: Store) -> None:
    some_jobs(store)

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(pilot)) == 6)
        await pilot.press("o")  # by the number
        assert [row[0] for row in rows(pilot)] == [f"471{number}" for number in range(1, 7)]
        await pilot.press("slash", *"train5", "enter")
        await until(pilot, lambda: [row[0] for row in rows(pilot)] == ["4715"])
        assert "with `train5`" in text_of(pilot, "#title")
        await pilot.press("c")
        await until(pilot, lambda: is_text(pilot) and log_of(pilot)[:1] == ["nothing has failed yet"])
        await pilot.press("escape", "slash", "escape")
        await until(pilot, lambda: len(rows(pilot)) == 6)

    play(WatchApp(lambda: JobsPage(store)), story)


@pytest.mark.parametrize(("key", "name"), [
    ("X", "stop"), *(pytest.param(*each, marks=pytest.mark.long) for each in (("I", "restart"), ("R", "requeue"))),
])  # fmt: skip
def test_what_ends_ranks_is_asked_for_first(store: Store, monkeypatch: pytest.MonkeyPatch, key: str, name: str) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(control, "order", lambda store, job, wanted, env, wait_s: asked.append((job, wanted.verb)) or "taken")
    some_jobs(store)

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(rows(pilot)) == 6)
        await pilot.press("o", "ctrl+home", "down", key, "n")
        assert isinstance(pilot.app.screen, JobsPage) and not asked
        await pilot.press(key, "y")
        await until(pilot, lambda: asked)
        await pilot.press("enter", key, "y")
        await until(pilot, lambda: len(asked) == 2)

    play(WatchApp(lambda: JobsPage(store)), story)
    assert asked == [("c.4712", name), ("c.4712", name)]


@pytest.mark.parametrize("size", [(40, 20), (80, 24), (200, 50), (10, 5)])
def test_it_fits_any_terminal(store: Store, size: tuple[int, int], ftrun: Callable[[Job], Ftrun]) -> None:
    ftrun(running())

    async def story(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: rows(pilot) and rows(pilot)[0][0].isdecimal())
        keys = text_of(pilot, "#keys")
        assert max(map(len, keys.splitlines())) <= size[0] + 2 or size[0] < 12
        assert all(f"{key} " in keys for key in "qrndlcsh")
        await pilot.resize_terminal(60, 20)
        await until(pilot, lambda: len(text_of(pilot, "#keys").splitlines()) == 2)

    play(job_app(store), story, size)


def test_a_file_system_that_hangs_holds_up_no_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, running())
    answered = threading.Event()
    monkeypatch.setattr(reader.JobWatch, "look", lambda self: answered.wait(2 * LIMIT_S))

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("n")
        assert text_of(pilot, "#head") == "job 7: ftrun and Slurm are asked"
        await pilot.press("q")
        assert not pilot.app.is_running

    try:
        play(job_app(store), story)
    finally:
        answered.set()


# --- the program itself


def environ(store: Store, **other: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "FTRUN_"))}
    return {
        **kept,
        "FTSLURM_STATE_DIR": str(store.root),
        "PYTHONPATH": ROOT,
        "TERM": "xterm-256color",
        "PATH": "/usr/bin:/bin",
        **other,
    }


class Terminal:
    """A real one of 80x24, and what is on it."""

    def __init__(self, store: Store, *argv: str, columns: int = 80, **env: str) -> None:
        self.own, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns)) if hasattr(termios, "tcsetwinsize") else _set_size(theirs, columns)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.screen = pyte.Screen(columns, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.process = subprocess.Popen(
            (sys.executable, "-m", "ftslurm.cli.ftslurm", "watch", *argv), stdin=theirs, stdout=theirs, stderr=theirs,
            env=environ(store, **env), cwd=ROOT, start_new_session=True,
        )  # fmt: skip

    def read(self, wait_s: float = 0.1) -> None:
        if select.select([self.own], [], [], wait_s)[0]:
            data = os.read(self.own, 1 << 16)
            self.raw += data
            self._stream.feed(data)

    def until(self, holds: Callable[[str], object]) -> str:
        end = time.monotonic() + 2 * LIMIT_S
        while not holds("\n".join(self.screen.display)):
            assert time.monotonic() < end, "\n".join(self.screen.display)
            self.read()
        return "\n".join(self.screen.display)

    def press(self, keys: bytes) -> None:
        os.write(self.own, keys)

    def ends(self) -> int:
        end = time.monotonic() + 2 * LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < end
            self.read()
        self.read()
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.own)
        os.close(self.theirs)


def _set_size(fd: int, columns: int) -> None:
    import fcntl
    import struct

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


@pytest.fixture
def terminal(store: Store) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_(*argv: str, **other: Any) -> Terminal:
        opened.append(Terminal(store, *argv, **other))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.mark.parametrize("leave", [b"q", b"\x03"])
def test_a_terminal_of_80_columns_is_left_as_it_was(
    ftrun: Callable[[Job], Ftrun], terminal: Callable[..., Terminal], leave: bytes
) -> None:
    ftrun(running())
    one = terminal("7")
    shown = one.until(lambda text: "3.25" in text and "esc jobs" in text)
    assert "job 7 on c: train" in shown and "state    running" in shown and "attempt  1, " in shown and "STEPS/S" in shown
    one.press(leave)
    assert one.ends() == 0
    assert termios.tcgetattr(one.theirs) == one.before
    assert b"\x1b[?1049h" in one.raw and one.raw.rindex(b"\x1b[?1049l") > one.raw.rindex(b"\x1b[?1049h")
    assert one.raw.rindex(b"\x1b[?25h") > one.raw.rindex(b"\x1b[?25l")


def test_the_list_is_whole_from_its_first_frame_and_gone_in_the_view_of_a_job(
    store: Store, terminal: Callable[..., Terminal]
) -> None:  # fmt: skip
    some_jobs(store)
    one = terminal()
    shown = one.until(lambda text: "4716" in text)
    assert " JOB   NAME    STATE    ATTEMPT  NODES " in shown
    one.press(b"\r")
    shown = one.until(lambda text: "RANK" in text)
    assert not any(line.startswith(" 471") for line in shown.splitlines())


def test_a_terminal_that_can_only_print_gets_lines(store: Store, terminal: Callable[..., Terminal]) -> None:
    write(store, running())
    one = terminal("7", TERM="dumb")
    one.until(lambda text: "a line for each change" in text and "state running" in text)
    one.process.send_signal(signal.SIGINT)
    assert one.ends() == 0 and b"\x1b" not in one.raw


def test_without_textual_it_says_so_and_prints_lines(store: Store, terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    write(store, running())
    (tmp_path / "textual.py").write_text("raise ImportError")
    one = terminal("7", PYTHONPATH=f"{tmp_path}:{ROOT}")
    one.until(lambda text: "-m pip install" in text and "state running" in text)


def test_a_pipe_gets_lines_until_the_job_is_over(store: Store) -> None:
    job = running()
    write(store, job)
    argv = (sys.executable, "-m", "ftslurm.cli.ftslurm", "watch", "7")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ(store), cwd=ROOT, text=True) as watch:
        assert watch.stdout is not None
        assert "job 7 on c: train" in watch.stdout.readline()
        job.all_exit(0)
        path(store).write_bytes(b"".join(to_line(record) for record in job.ledger))
        out, err = watch.communicate(timeout=LIMIT_S)
    assert watch.returncode == 0 and not err
    assert out.splitlines()[-1].endswith("ended: every rank ended with status 0") and "\x1b" not in out


def test_it_ends_when_nobody_reads_any_more(store: Store) -> None:
    write(store, running())
    argv = (sys.executable, "-m", "ftslurm.cli.ftslurm", "watch", "7")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ(store), cwd=ROOT) as watch:
        assert watch.stdout is not None
        watch.stdout.readline()
        watch.stdout.close()
        assert watch.wait(LIMIT_S) == 0


def test_once(store: Store, ftrun: Callable[[Job], Ftrun]) -> None:
    ftrun(running())
    argv = (sys.executable, "-m", "ftslurm.cli.ftslurm", "watch", "--once")
    said = subprocess.run((*argv, "7"), capture_output=True, env=environ(store), cwd=ROOT, text=True, timeout=LIMIT_S)
    assert said.returncode == 0 and "STEPS/S" in said.stdout and "attempt 1 began" in said.stdout
    said = subprocess.run(argv, capture_output=True, env=environ(store), cwd=ROOT, text=True, timeout=LIMIT_S)
    assert said.returncode == 0 and said.stdout.splitlines()[1].split()[:2] == ["7", "running"]
    said = subprocess.run((*argv, "8"), capture_output=True, env=environ(store), cwd=ROOT, text=True, timeout=LIMIT_S)
    assert said.returncode == 66 and "no ledger of job 8" in said.stderr

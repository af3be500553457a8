"""What passes through the shim, what it keeps of it, and the faults that it injects on order: the real one, as a process."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.launchers.python import Python
from ftslurm.model import messages as wire
from ftslurm.model.events import RankExited, RankWords
from ftslurm.wrapper.shim.messages import MAX_LINE, dumps
from ftslurm.wrapper.shim.output import _Target
from ftslurm.wrapper.shim.processes import descendants, oom_kills
from ftslurm.wrapper.shim.tail import (
    CHUNKS_MAX,
    ERROR_LINE_MAX,
    ERROR_WORDS,
    ERRORS_MAX,
    PIECE_S,
    WORDS_MAX,
    Tail,
    last_words,
)
from tests.wrapper.shim_controller import SOON_S, Message, Shim, as_in_a_terminal, is_gone, until

pytestmark = pytest.mark.timeout(60)

TAIL = 65536
SLEEP = "exec sleep 1000"


@pytest.fixture
def shims() -> Iterator[Callable[..., Shim]]:
    made: list[Shim] = []

    def make(*command: str, **how: Any) -> Shim:
        argv = command if len(command) > 1 else ("sh", "-c", *(command or (SLEEP,)))
        made.append(Shim(argv, **{"tail": TAIL} | how))
        return made[-1]

    yield make
    for shim in made:
        shim.close()


def python(program: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", program


def text_of(told: Message, stream: str = "out") -> str:
    return "".join(text for _, name, text in told.get("tail", ()) if name == stream)


def read_all(fd: int) -> bytes:
    data = b""
    while True:
        try:
            more = os.read(fd, 1 << 16)
        except OSError as error:  # of a terminal whose other side is closed
            assert error.errno == errno.EIO
            return data
        if not more:
            return data
        data += more


# --- the tail by itself


def tail_of(parts: Sequence[tuple[float, bytes]], limit: int = 100) -> tuple[list[list], list[list]]:
    tail = Tail("out", limit)
    for at, data in parts:
        tail.add(data, at)
    return tail.pieces()


@pytest.mark.parametrize(
    ("came", "pieces"),
    [
        ([], []),
        ([(1.0, b"a\n"), (1.04, b"b\n")], [[1.0, "out", "a\nb\n"]]),
        ([(1.0, b"a\n"), (1.06, b"b\n")], [[1.0, "out", "a\n"], [1.06, "out", "b\n"]]),
        ([(1.0, b"a\n"), (1.04, b"b\n"), (1.08, b"c\n")], [[1.0, "out", "a\nb\n"], [1.08, "out", "c\n"]]),
        ([(9.0, b"a\n"), (5.0, b"b\n")], [[9.0, "out", "a\n"], [5.0, "out", "b\n"]]),  # somebody has set the clock
        # in full flow a line stays whole; one that was begun long before does not lend its time to what follows
        ([(1.0, b"a\nb"), (1.04, b"b"), (1.08, b"b\nc\n")], [[1.0, "out", "a\nbbb\n"], [1.08, "out", "c\n"]]),
        ([(1.0, b"loading "), (9.0, b"Traceback\n")], [[1.0, "out", "loading "], [9.0, "out", "Traceback\n"]]),
        ([(1.0, "é".encode()[:1]), (1.0, "é".encode()[1:])], [[1.0, "out", "é"]]),
        ([(1.0, b"\xff\0\n")], [[1.0, "out", "\ufffd\0\n"]]),
        ([(1.0, b"x" * 60 + b"\n" + b"y" * 60 + b"\n")], [[1.0, "out", "y" * 60 + "\n"]]),
        ([(1.0, b"x" * 500)], [[1.0, "out", "x" * 100]]),  # one line without end is better than nothing
        ([(1.0, b"x" * 500), (2.0, b"x\nlast")], [[2.0, "out", "last"]]),
    ],
)
def test_the_tail_comes_in_pieces_of_whole_lines(came: list[tuple[float, bytes]], pieces: list[list]) -> None:
    assert tail_of(came) == ([], pieces)


PARTS = st.sampled_from([b"ok\n", b"step 7 of 9\n", b"Error: x\n", b"\n", b"\xff\r", b"an ERR", b"or\n", b"xxxxx"])
LINES = st.lists(PARTS, min_size=1, max_size=8)  # in all less than ERROR_LINE_MAX


@given(st.lists(st.tuples(st.floats(0, 2), LINES.map(b"".join)), max_size=10), st.integers(1, 300))
def test_nothing_in_the_tail_is_invented_or_told_twice(came: list[tuple[float, bytes]], limit: int) -> None:
    clock, parts = 0.0, []
    for gap, data in came:
        clock += gap / 10
        parts.append((clock, data))
    stream = b"".join(data for _, data in parts)
    errors, last = tail_of(parts, limit)
    text = "".join(piece[2] for piece in last)
    assert len(text) <= limit and all(piece[2] for piece in last)
    assert stream.decode(errors="replace").endswith(text)
    before = stream.decode(errors="replace").removesuffix(text)
    assert not before or before.endswith("\n") or "\n" not in text, "it begins with a whole line, if it has any"
    wrong = [line for line in before.split("\n")[:-1] if any(word.decode() in line for word in ERROR_WORDS)]
    assert [piece[2] for piece in errors] == [f"{line}\n" for line in wrong]
    assert [piece[0] for piece in last] == sorted(piece[0] for piece in last)


def test_the_tail_of_a_mebibyte_of_single_bytes_costs_no_more_than_any_other() -> None:
    tail = Tail("out", TAIL)
    for number in range(3 * CHUNKS_MAX):
        tail.add(b"x", number * 2 * PIECE_S)
    assert len(tail.pieces()[1]) <= CHUNKS_MAX


def test_of_the_first_errors_as_many_are_kept_as_there_is_room_for() -> None:
    lines = [f"step {number}: Error: overflow".encode() + b"\n" for number in range(100_000)]
    errors, last = tail_of([(float(number), line) for number, line in enumerate(lines)], 1000)
    assert errors[0] == [0.0, "out", "step 0: Error: overflow\n"]
    assert len(errors) > 250 and sum(len(piece[2]) for piece in errors) <= ERRORS_MAX + 1
    assert sum(len(piece[2]) for piece in last) <= 1000


def test_of_a_very_long_line_the_part_around_the_error_is_kept() -> None:
    errors, _ = tail_of([(1.0, b"a" * 5000 + b" RuntimeError: boom " + b"z" * 5000 + b"\n"), (2.0, b"x\n" * 50)])
    ((_, _, text),) = errors
    assert "RuntimeError: boom" in text and len(text) <= ERROR_LINE_MAX + 1


def test_an_error_that_came_in_two_parts_is_one_line() -> None:
    errors, _ = tail_of([(1.0, b"x\nTrace"), (1.5, b"back (most recent call last):\n"), (2.0, b"x\n" * 60)])
    assert [piece[1:] for piece in errors] == [["out", "Traceback (most recent call last):\n"]]


@pytest.mark.parametrize("data", [b"\x01", b"\xff", b"\n", b"a"])
def test_last_words_fit_into_one_message_whatever_they_are_made_of(data: bytes) -> None:
    tails = [Tail(name, 1 << 20) for name in ("out", "err")]
    for number in range(40):
        for tail in tails:
            tail.add(data * (1 << 16), number * 0.01)
    told = last_words([tail.pieces() for tail in tails], WORDS_MAX)
    assert told and len(dumps(told)) <= WORDS_MAX < MAX_LINE
    assert {stream for _, stream, _ in told} <= {"out", "err"}
    reported = wire.shim_report(0, json.loads(dumps(exited(tail=told))))
    assert isinstance(reported, RankExited) and reported.output


def exited(**more: Any) -> dict[str, Any]:
    return {"t": "exited", "attempt": 1, "code": 1, "signal": 0, "at": 5.0, **more}


def test_when_there_is_no_room_the_oldest_goes_first() -> None:
    pieces = [[float(at), "out", f"{at}\n" * 20] for at in range(10)]
    told = last_words([([[0.5, "out", "Error\n"]], pieces)], 200)
    assert told[0][2] == "Error\n" and told[-1] == pieces[-1] and len(told) < 5


# --- passing through


def test_every_byte_passes_unchanged(shims: Callable[..., Shim], tmp_path: Path) -> None:
    data = os.urandom(3_000_000) + bytes(range(256)) + b"\r\n\x1b[0mno newline"
    (tmp_path / "data").write_bytes(data)
    shim = shims(f"cat {tmp_path}/data; cat {tmp_path}/data >&2; exit 1", stderr=subprocess.PIPE)
    taken: list[bytes] = []
    assert shim.process.stderr is not None and shim.process.stdout is not None
    thread = threading.Thread(target=lambda: taken.append(shim.process.stderr.read()))  # type: ignore[union-attr]
    thread.start()
    shim.start()
    out = shim.process.stdout
    got = out.read(len(data))
    told = shim.hear("exited")
    shim.end(1)
    thread.join(SOON_S)
    assert got + out.read() == data and taken == [data]
    assert text_of(told).endswith("no newline") and text_of(told, "err").endswith("no newline")
    assert 0 < len(text_of(told)) <= TAIL


def test_two_streams_into_one_pipe_keep_their_order(shims: Callable[..., Shim]) -> None:
    script = "for i in $(seq 2000); do echo out $i; echo err $i >&2; done; exit 1"
    shim = shims(script, stderr=subprocess.STDOUT, tail=1000)
    shim.start()
    told = shim.hear("exited")
    shim.end(1)
    expected = "".join(f"out {number}\nerr {number}\n" for number in range(1, 2001))
    assert shim.rest() == expected
    assert text_of(told) and expected.endswith(text_of(told)) and not text_of(told, "err")


def test_without_a_tail_nothing_stands_between(shims: Callable[..., Shim], tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as file:
        shim = shims("readlink /proc/$$/fd/1; exit 1", stdout=file, tail=0)
        shim.start()
        told = shim.hear("exited")
    assert "tail" not in told
    assert (tmp_path / "out").read_text() == f"{tmp_path}/out\n"


def test_the_controllers_that_know_no_tail_get_none(shims: Callable[..., Shim]) -> None:
    shim = shims("echo out; exit 1")
    shim.say(t="start", attempt=1, env={}, argv=None)
    shim.hear("started")
    assert "tail" not in shim.hear("exited")


def test_a_file_gets_what_it_would_have_got(shims: Callable[..., Shim], tmp_path: Path) -> None:
    with open(tmp_path / "out", "ab") as file:
        file.write(b"before\n")
        file.flush()
        shim = shims("echo out; echo err >&2; exit 1", stdout=file, stderr=file)
        shim.start()
        assert text_of(shim.hear("exited")) == "out\nerr\n"
        shim.end(1)
    assert (tmp_path / "out").read_bytes() == b"before\nout\nerr\n"


def test_lines_of_ranks_that_share_a_pipe_stay_whole(shims: Callable[..., Shim]) -> None:
    """As the local launcher starts them. Each line is one write of less than PIPE_BUF, which the kernel does not tear."""
    reading, writing = os.pipe()
    program = "import os\nfor n in range(3000): os.write(1, b'%s' * 90 + b'\\n')"
    for name in "abcd":
        shims(*python(program.replace("%s", name)), stdout=writing).start()
    os.close(writing)
    time.sleep(0.3)  # they fill the pipe, and write on when somebody reads
    with os.fdopen(reading, "rb") as pipe:
        lines = [pipe.readline() for _ in range(12000)]
    assert {len(set(line)) for line in lines} == {2} and {len(line) for line in lines} == {91}


def test_a_hundred_megabytes_and_an_exit_at_once(shims: Callable[..., Shim]) -> None:
    size = 100_000_000
    shim = shims("sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x; exit 7")
    digest, got = hashlib.sha256(), 0
    shim.start()
    assert shim.process.stdout is not None
    ended = False
    while data := os.read(shim.process.stdout.fileno(), 1 << 16):
        digest.update(data)
        got += len(data)
        if got > size - TAIL and not ended:  # the rest is still to come when the shim is told to end
            ended = True
            assert shim.hear("exited")["code"] == 7
            shim.say(t="end", status=7)
    assert got == size and digest.hexdigest() == hashlib.sha256(b"x" * size).hexdigest()
    assert shim.process.wait(SOON_S) == 7


def test_what_a_command_wrote_before_it_was_killed_arrives(shims: Callable[..., Shim]) -> None:
    shim = shims("i=0; while :; do echo $i; i=$((i+1)); done")
    shim.start()
    while shim.words() != ["100"]:
        pass
    shim.stop(grace_s=0)
    told = shim.hear("exited")
    shim.hear("stopped")
    shim.end(1)
    printed = shim.rest().splitlines()
    assert printed and printed == [str(number) for number in range(101, len(printed) + 101)]
    assert text_of(told).splitlines()[-1] == printed[-1]


def test_a_command_that_runs_on_tells_what_it_printed_last_whenever_it_is_asked(shims: Callable[..., Shim]) -> None:
    shim = shims("echo one; read go </dev/null; sleep 0.1; exec sleep 1000")
    shim.start()
    assert shim.words() == ["one"]
    for _ in range(2):
        shim.say(t="words")
        told = shim.hear("words")
        assert text_of(told) == "one\n" and isinstance(wire.shim_report(0, told), RankWords)
    shim.stop(grace_s=0)
    assert text_of(shim.hear("exited")) == "one\n", "and it is there for its end"
    shim.say(t="words")
    shim.hear("stopped")


def test_descendants_that_outlive_the_command_are_heard(shims: Callable[..., Shim], tmp_path: Path) -> None:
    script = f"(while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo late; sleep 1000) & echo early; exit 3"
    shim = shims(script)
    shim.start()
    told = shim.hear("exited")
    assert (told["code"], text_of(told)) == (3, "early\n")
    (tmp_path / "go").touch()
    assert shim.words() == ["early"] and shim.words() == ["late"]
    assert shim.end(3) == 3 and shim.rest() == ""


def test_the_command_gets_no_descriptor_of_ours(shims: Callable[..., Shim]) -> None:
    shim = shims("ls /proc/self/fd | tr '\\n' ' '; echo; exit 1", stderr=subprocess.PIPE)
    for attempt in (1, 2, 3):
        shim.start(attempt)
        assert shim.words() == ["0", "1", "2", "3"]  # 3 is the folder that ls reads
        shim.hear("exited")
        shim.stop(attempt)
        shim.hear("stopped")


def test_attempts_leave_no_descriptors_or_threads_behind(shims: Callable[..., Shim]) -> None:
    shim = shims("echo here; exit 1", stderr=subprocess.PIPE)
    proc = Path(f"/proc/{shim.process.pid}")
    before = len(list((proc / "fd").iterdir()))
    for attempt in range(20):
        shim.start(attempt)
        shim.hear("exited")
        shim.stop(attempt)
        shim.hear("stopped")
    until(lambda: len(list((proc / "task").iterdir())) == 1, "the pumps to end")
    assert len(list((proc / "fd").iterdir())) == before


def test_a_python_that_warns_of_forks_with_threads_says_nothing(tmp_path: Path) -> None:
    """3.12 and later do, as a DeprecationWarning, which is shown for what is run as a script: so the shim is imported."""
    done = started_by(tmp_path, "from _warnings import warn\ndef main(): warn('fork', DeprecationWarning, 1)\n")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("before, status", [("", -signal.SIGINT), ("import signal; signal.signal(2, signal.SIG_IGN); ", 0)])
def test_an_interrupt_while_it_loads_ends_it_without_a_traceback(tmp_path: Path, before: str, status: int) -> None:
    """srun sends one to end a step. An ignored one stays ignored, which Python finds at its start."""
    done = started_by(tmp_path, "import os\nos.kill(os.getpid(), 2)\ndef main(): pass\n", before)
    assert (done.returncode, done.stderr) == (status, "")


def started_by(folder: Path, bundle: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """What launchers start, with another file as the shim's. before: code that runs first, in the process that becomes it."""
    place = folder / "ftslurm/wrapper/shim"
    place.mkdir(parents=True)
    (place / "_shim.py").write_text(bundle)
    argv = Python((sys.executable,), str(folder)).shim_argv(("true",))
    start = f"import os; {before}os.execv({argv[0]!r}, {list(argv)!r})"
    return subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=120)


# --- readers that do not read, or go


def blocked(shim: Shim) -> None:
    """Wait until the pipes are full: nobody has read anything."""
    written: list[str] = []

    def stands_still() -> bool:
        written.append("".join(Path(f"/proc/{child}/io").read_text() for child in descendants(shim.process.pid)))
        return len(written) > 5 and len(set(written[-5:])) == 1

    until(stands_still, "the command to block")


def test_a_reader_that_does_not_read_does_not_hold_up_a_stop(shims: Callable[..., Shim]) -> None:
    shim = shims("yes 'Error: nobody listens'")
    shim.start()
    blocked(shim)
    began = time.monotonic()
    shim.stop(grace_s=SOON_S)
    told = shim.hear("exited")
    assert shim.hear("stopped")["left"] == [] and time.monotonic() - began < SOON_S / 2
    assert told["signal"] == signal.SIGTERM and "nobody listens" in text_of(told)


def test_after_a_restart_the_old_output_comes_first(shims: Callable[..., Shim]) -> None:
    """Although nobody has read for so long that the pump of the first attempt still has some of it."""
    shim = shims("yes $N")
    shim.start(1, N="one")
    blocked(shim)
    for attempt, name in ((2, "two"), (3, "three")):
        shim.stop(attempt - 1)
        shim.hear("exited")
        shim.hear("stopped")
        shim.start(attempt, N=name)
        blocked(shim)
    assert shim.process.stdout is not None
    text = b""
    while b"three\n" not in text:
        text += os.read(shim.process.stdout.fileno(), 1 << 16)
    lines = text.decode().splitlines()[:-1]
    order = [line for number, line in enumerate(lines) if number == 0 or lines[number - 1] != line]
    assert [line for line in order if line in ("one", "two", "three")] == ["one", "two", "three"]


def test_a_slow_reader_gets_all_before_the_shim_ends(shims: Callable[..., Shim]) -> None:
    shim = shims("seq 30000; exit 1")
    shim.start()
    time.sleep(0.5)  # the reader sleeps; what is written fills the pipe and then blocks
    shim.say(t="end", status=1)  # kills the command, with what it has written on its way
    assert shim.process.stdout is not None
    assert shim.process.poll() is None
    text = shim.rest()
    assert text.startswith("1\n2\n") and len(text) >= 65536
    assert shim.process.wait(SOON_S) in (1, 128 + 9, -9)


def test_a_half_line_at_the_end_is_waited_for_until_a_slow_reader_has_it() -> None:
    reading, writing = os.pipe()
    target = _Target(writing, shared=False, label=b"7: ")
    assert target.take(b"half")
    os.set_blocking(writing, False)
    full = os.write(writing, bytes(1 << 20))
    ending = threading.Thread(target=target.end, daemon=True)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive() and target.waits
    while full:
        full -= len(os.read(reading, full))
    ending.join(SOON_S)
    assert os.read(reading, 100) == b"7: half\n" and not target.waits


def test_when_the_reader_is_gone_the_command_gets_its_sigpipe(shims: Callable[..., Shim]) -> None:
    reading, writing = os.pipe()
    shim = shims("yes", "y", stdout=writing)
    os.close(writing)
    shim.start()
    os.read(reading, 10)
    os.close(reading)
    told = shim.hear("exited")
    assert told["signal"] == signal.SIGPIPE and text_of(told).startswith("y\n")


def test_a_command_that_bears_epipe_goes_on(shims: Callable[..., Shim], tmp_path: Path) -> None:
    program = f"""
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
try:
    while True: os.write(1, b'x' * 1000)
except BrokenPipeError:
    open('{tmp_path}/seen', 'w').close()
os.write(2, b'still here')
os._exit(9)
"""
    reading, writing = os.pipe()
    shim = shims(*python(program), stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    shim.start()
    told = shim.hear("exited")
    assert told["code"] == 9 and text_of(told, "err") == "still here" and (tmp_path / "seen").exists()


def test_a_full_disk_ends_nobody(shims: Callable[..., Shim]) -> None:
    with open("/dev/full", "wb") as full:
        shim = shims("echo lost; echo 'No space left' ; exit 4", stdout=full)
        shim.start()
        told = shim.hear("exited")
    assert (told["code"], text_of(told)) == (4, "lost\nNo space left\n")


def test_a_reader_that_has_made_the_pipe_non_blocking(shims: Callable[..., Shim]) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    shim = shims("seq 100000; exit 1", stdout=writing)
    os.close(writing)
    shim.start()
    time.sleep(0.2)  # the pipe is full
    got = b""
    while not got.endswith(b"\n100000\n"):
        got += os.read(reading, 4096)
    os.close(reading)
    assert got == b"".join(b"%d\n" % number for number in range(1, 100001))
    assert shim.hear("exited")["code"] == 1


def test_signals_in_the_midst_of_it_lose_nothing(shims: Callable[..., Shim]) -> None:
    shim = shims("trap '' USR1; seq 300000; exit 1")
    shim.start()
    assert shim.process.stdout is not None
    got = b""
    while not got.endswith(b"\n300000\n"):
        got += os.read(shim.process.stdout.fileno(), 4096)
        if len(got) % 5 == 0:
            shim.process.send_signal(signal.SIGUSR1)
    assert got == b"".join(b"%d\n" % number for number in range(1, 300001))


# --- terminals


def test_a_terminal_without_input_is_passed_on_as_a_terminal(shims: Callable[..., Shim]) -> None:
    """As srun --unbuffered gives it: raw, for stdout only."""
    ours, theirs = os.openpty()
    mode = termios.tcgetattr(theirs)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    script = "test -t 1 && echo tty; test -t 2 || echo none; stty size <&1; ls -l /proc/$$/fd >&2; printf 'a\\nb\\r\\n'; exit 1"
    shim = shims(script, stdout=theirs, stderr=subprocess.PIPE)
    name = os.ttyname(theirs)
    os.close(theirs)
    shim.start()
    told = shim.hear("exited")
    shim.end(1)
    expected = "tty\nnone\n40 100\na\nb\r\n"
    assert read_all(ours).decode() == expected == text_of(told)
    os.close(ours)
    held = text_of(told, "err")
    assert "/dev/pts/" in held and f"{name}\n" not in held


def test_much_output_through_a_terminal_arrives_before_the_end(shims: Callable[..., Shim]) -> None:
    ours, theirs = os.openpty()
    mode = termios.tcgetattr(theirs)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    shim = shims("seq 20000; exit 1", stdout=theirs, stderr=theirs)
    os.close(theirs)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read_all(ours)))
    reader.start()
    shim.start()
    told = shim.hear("exited")
    shim.end(1)
    reader.join(SOON_S)
    os.close(ours)
    assert got == [b"".join(b"%d\n" % number for number in range(1, 20001))]
    assert text_of(told).endswith("19999\n20000\n")


def test_a_terminal_that_hangs_up_ends_what_writes_to_it(shims: Callable[..., Shim]) -> None:
    ours, theirs = os.openpty()
    shim = shims(*python("import os\nwhile True: os.write(1, b'x\\n')"), stdout=theirs)
    os.close(theirs)
    shim.start()
    os.read(ours, 10)
    os.close(ours)
    assert shim.hear("exited")["code"] == 1  # OSError: Input/output error, as it would without a shim


def test_a_terminal_to_read_from_is_handed_through(shims: Callable[..., Shim]) -> None:
    """srun --pty: the command talks to it itself, and nothing is kept."""
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs)

    def controlled() -> None:
        as_in_a_terminal()
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "preexec_fn": controlled}
    shim = shims("readlink /proc/self/fd/0; ls -l /proc/$$/fd; exit 1", **ends)
    os.close(theirs)
    shim.start()
    told = shim.hear("exited")
    shim.end(1)
    printed = read_all(ours).decode()
    assert printed.count(name) == 4 and printed.count("/dev/pts/") == 4 and "tail" not in told
    os.close(ours)


# --- what is told


def test_the_last_words_of_both_streams_are_told_with_their_times(shims: Callable[..., Shim]) -> None:
    before = time.time()
    shim = shims("echo one; sleep 0.2; echo two >&2; exit 1", stderr=subprocess.PIPE)
    shim.start()
    (first, second) = shim.hear("exited")["tail"]
    assert first[1:] == ["out", "one\n"] and second[1:] == ["err", "two\n"]
    assert before <= first[0] < second[0] <= time.time() and 0.15 < second[0] - first[0] < SOON_S


@pytest.mark.parametrize("how", ["exit 0", "exit 3", "kill -9 $$", "kill -11 $$"])
def test_only_who_fails_has_last_words(shims: Callable[..., Shim], how: str) -> None:
    shim = shims(f"echo last words; {how}")
    shim.start()
    told = shim.hear("exited")
    assert text_of(told) == ("" if how == "exit 0" else "last words\n") and ("tail" in told) == (how != "exit 0")


def test_who_was_told_to_stop_has_last_words_too(shims: Callable[..., Shim]) -> None:
    shim = shims("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done")
    shim.start()
    shim.words()
    shim.stop()
    told = shim.hear("exited")
    assert told["asked"] is True and text_of(told) == "ready\nbye\n"


def test_a_command_that_cannot_start_has_none(shims: Callable[..., Shim]) -> None:
    shim = shims("/nonexistent/train", "x")
    for attempt in (1, 2):
        assert "tail" not in shim.start(attempt)
    until(lambda: len(os.listdir(f"/proc/{shim.process.pid}/task")) == 1, "the pumps to end")


def test_every_attempt_has_its_own(shims: Callable[..., Shim]) -> None:
    shim = shims("echo Error number $N; exit 1")
    for attempt in (1, 2, 3):
        shim.start(attempt, N=str(attempt))
        assert text_of(shim.hear("exited")) == f"Error number {attempt}\n"
        shim.stop(attempt)
        shim.hear("stopped")
    shim.end(1)
    assert shim.rest() == "Error number 1\nError number 2\nError number 3\n"


def test_the_first_errors_are_told_before_the_tail_and_once(shims: Callable[..., Shim]) -> None:
    script = """echo begin; echo 'ERROR: the cause'; sleep 0.1; seq 20000; echo 'RuntimeError: what came of it'; exit 1"""
    shim = shims(script, tail=1000, stdout=subprocess.DEVNULL)
    shim.start()
    tail = shim.hear("exited")["tail"]
    assert tail[0][2] == "ERROR: the cause\n" and tail[0][0] < tail[1][0]
    assert [piece[2].count("RuntimeError") for piece in tail].count(1) == 1
    assert len("".join(piece[2] for piece in tail[1:])) <= 1000
    assert tail[1][2].split("\n")[0].isdigit() and tail[-1][2].endswith("20000\nRuntimeError: what came of it\n")


def test_a_tail_of_control_characters_gets_through(shims: Callable[..., Shim]) -> None:
    shim = shims("head -c 3000000 /dev/zero | tr '\\0' '\\1'; head -c 3000000 /dev/urandom >&2; exit 1", tail=1 << 20,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    shim.start()
    # both to /dev/null, so one pump serves both
    told = shim.hear("exited")
    assert told["tail"] and sum(len(piece[2]) for piece in told["tail"]) > 100_000
    assert isinstance(wire.shim_report(0, told), RankExited)


def test_the_end_of_one_who_still_holds_much_is_told_soon(shims: Callable[..., Shim]) -> None:
    """A descendant that goes on writing keeps the pipe full: nobody waits for that."""
    shim = shims("yes & sleep 0.1; exit 5", stdout=subprocess.DEVNULL)
    began = time.monotonic()
    shim.start()
    assert shim.hear("exited")["code"] == 5 and time.monotonic() - began < SOON_S / 2
    shim.stop(grace_s=0)
    assert shim.hear("stopped")["left"] == []


# --- killed for memory


@pytest.mark.parametrize(
    ("cgroup", "files", "kills"),
    [
        ("0::/job_1/step_0/user/task_0", {"/job_1/step_0/user/task_0/memory.events": "low 0\noom 3\noom_kill 2\n"}, 2),
        ("0::/job_1/step_0/user/task_0", {"/job_1/step_0/memory.events": "oom 3\noom_kill 1\noom_group_kill 7\n"}, 1),
        ("0::/job_1/step_0/user/task_0", {"/job_1/memory.events": "oom_kill 1\n"}, None),  # of all the job's steps
        ("0::/user.slice/a", {"/user.slice/a/memory.events": "oom_kill 0\n"}, 0),
        ("0::/user.slice/a", {"/user.slice/memory.events": "oom_kill 4\n"}, None),
        ("0::/", {"/memory.events": "oom_kill 4\n"}, 4),  # a container with a namespace of its own
        ("0::/a", {"/a/memory.events": "oom_kill many\n"}, None),
        ("0::/a", {}, None),
        ("garbage\n\n1:\n", {}, None),
        (
            "9:cpu,cpuacct:/x\n4:memory:/slurm/uid_0/job_1/step_0/task_0\n0::/",
            {"/memory/slurm/uid_0/job_1/step_0/task_0/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"},
            5,
        ),
        ("4:memory:/job_1/step_0/task_0", {"/memory/job_1/step_0/memory.oom_control": "under_oom 0\noom_kill 6\n"}, 6),
        ("4:memory:/a", {"/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, None),  # Linux before 4.13
    ],
)
def test_kills_for_memory_are_counted_where_they_are_ours(
    tmp_path: Path, cgroup: str, files: dict[str, str], kills: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        file = tmp_path / f"sys/fs/cgroup{name}"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert oom_kills(str(tmp_path)) == kills


def test_where_nothing_can_be_read_nothing_is_known(tmp_path: Path) -> None:
    assert oom_kills(str(tmp_path)) is None


def test_a_rank_that_the_kernel_did_not_kill_for_memory_is_not_called_so(shims: Callable[..., Shim]) -> None:
    shim = shims("kill -9 $$")
    shim.start()
    assert shim.hear("exited").get("oom", False) is False


# --- drills


def drill(shim: Shim, what: str, **fields: Any) -> None:
    shim.say(t="drill", what=what, **fields)


def state_of(pid: int) -> str:
    """D, too, for one who waits in vfork for a child that stands still before its exec."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "stopped" if state in "TD" else state


def stand_still(pids: Sequence[int]) -> bool:
    return all(state_of(pid) == "stopped" for pid in pids)


@pytest.mark.parametrize("status", [1, 42, 255])
def test_a_crash_looks_like_an_exit_with_that_status(shims: Callable[..., Shim], status: int) -> None:
    shim = shims("echo ready; sleep 1000 & echo $!; wait")
    shim.start()
    shim.words()
    child = shim.pid()
    drill(shim, "crash", status=status)
    told = shim.hear("exited")
    assert (told["code"], told["signal"], told["asked"]) == (status, 0, False) and text_of(told).startswith("ready\n")
    assert not is_gone(child)
    assert shim.end(0) == status


def test_a_crash_by_a_signal(shims: Callable[..., Shim]) -> None:
    shim = shims()
    shim.start()
    drill(shim, "crash", signal=int(signal.SIGSEGV))
    told = shim.hear("exited")
    assert (told["code"], told["signal"]) == (0, signal.SIGSEGV)


def test_after_a_crash_the_next_attempt_ends_as_it_ends(shims: Callable[..., Shim]) -> None:
    shim = shims()
    shim.start(1)
    drill(shim, "crash", status=5)
    shim.hear("exited")
    shim.stop(1)
    shim.hear("stopped")
    shim.start(2)
    shim.stop(2, grace_s=0)
    assert shim.hear("exited")["signal"] in (signal.SIGTERM, signal.SIGKILL)


TREE = "trap 'echo bye; exit 3' TERM; sleep 1000 & echo $!; (setsid sleep 1000 & echo $!); echo $$; while :; do sleep 0.01; done"


def test_a_hang_stops_the_whole_tree_and_a_stop_gets_through(shims: Callable[..., Shim]) -> None:
    shim = shims(TREE)
    shim.start()
    pids = [shim.pid() for _ in range(3)]
    drill(shim, "hang")
    until(lambda: stand_still(descendants(shim.process.pid)), "all to stand still")
    assert set(pids) <= set(descendants(shim.process.pid))
    shim.stop()
    told = shim.hear("exited")
    assert (told["code"], told["signal"]) == (3, 0) and text_of(told).endswith("bye\n")
    assert shim.hear("stopped")["left"] == [] and all(map(is_gone, pids))


def test_a_stop_after_slurm_s_own_sigterm_wakes_who_stands_still(shims: Callable[..., Shim]) -> None:
    shim = shims(TREE)
    shim.start()
    pids = [shim.pid() for _ in range(3)]
    drill(shim, "hang")
    until(lambda: stand_still(pids), "all to stand still")
    os.kill(pids[2], signal.SIGTERM)
    shim.say(t="stop", attempt=1, grace_s=1.0, kill_wait_s=SOON_S, asked=True)
    assert shim.hear("exited")["code"] == 3


def test_a_hang_ends_when_the_drill_does(shims: Callable[..., Shim]) -> None:
    shim = shims(TREE)
    shim.start()
    pids = [shim.pid() for _ in range(3)]
    drill(shim, "hang")
    until(lambda: stand_still(pids), "all to stand still")
    drill(shim, "end")
    until(lambda: "stopped" not in map(state_of, pids), "all to go on")


BUSY = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: pass"


def cpu_share(pid: int, for_s: float) -> float:
    def ticks() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    began, before = time.monotonic(), ticks()
    time.sleep(for_s)  # the measurement itself
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)


def test_a_slow_rank_runs_its_share_of_the_time(shims: Callable[..., Shim]) -> None:
    shim = shims(*python(BUSY))
    shim.start()
    pid = shim.pid()
    drill(shim, "slow", share=0.2)
    time.sleep(0.2)
    slow = cpu_share(pid, 1.5)
    assert 0.02 < slow < 0.35
    drill(shim, "end")
    until(lambda: state_of(pid) == "R", "it to run")
    assert cpu_share(pid, 1.0) > slow
    assert {state_of(pid) for _ in range(50) if not time.sleep(0.005)} == {"R"}


@pytest.mark.parametrize("how", ["stop", "end", "hang up", "crash"])
def test_a_slow_rank_can_be_stopped(shims: Callable[..., Shim], how: str) -> None:
    shim = shims(TREE)
    shim.start()
    pids = [shim.pid() for _ in range(3)]
    drill(shim, "slow", share=0.01)
    until(lambda: stand_still(pids), "all to stand still")
    if how == "stop":
        shim.stop()
        assert shim.hear("exited")["code"] == 3 and shim.hear("stopped")["left"] == []
    elif how == "end":
        shim.end(0)
    elif how == "hang up":
        shim.hang_up()
        shim.process.wait(SOON_S)
    else:
        drill(shim, "crash", status=9)
        assert shim.hear("exited")["code"] == 9
        time.sleep(0.3)  # three cycles
        assert "stopped" not in map(state_of, pids[:2]), "the drill is over with the attempt"
        shim.stop()
        shim.hear("stopped")
    assert all(map(is_gone, pids))


def test_a_lost_rank_is_gone_without_a_word(shims: Callable[..., Shim]) -> None:
    shim = shims(TREE)
    shim.start()
    pids = [shim.pid() for _ in range(3)]
    drill(shim, "lost")
    assert shim.process.wait(SOON_S) == -signal.SIGKILL
    assert shim.sock.recv(100) == b""
    until(lambda: all(map(is_gone, pids)), "all to be gone")


def test_a_drill_before_the_command_runs_does_nothing(shims: Callable[..., Shim]) -> None:
    shim = shims("echo ran; exit 0")
    drill(shim, "crash", status=5)
    drill(shim, "hang")
    drill(shim, "end")
    shim.start()
    assert shim.hear("exited")["code"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"what": "dance"}, {"what": "crash"}, {"what": "crash", "status": 1, "signal": 9}, {"what": "crash", "status": 256},
        {"what": "crash", "status": True}, {"what": "crash", "status": "1"}, {"what": "crash", "signal": 65}, {"what": "slow"},
        {"what": "slow", "share": 0}, {"what": "slow", "share": 1.0}, {"what": "slow", "share": "0.5"}, {"what": ["hang"]},
    ],
)  # fmt: skip
def test_a_drill_that_makes_no_sense_breaks_the_connection(shims: Callable[..., Shim], fields: dict[str, Any]) -> None:
    shim = shims("echo $$; " + SLEEP, stderr=subprocess.PIPE)
    shim.start()
    pid = shim.pid()
    shim.say(t="drill", **fields)
    shim.process.wait(SOON_S)
    assert is_gone(pid) and shim.process.stderr is not None and b"cannot understand ftrun" in shim.process.stderr.read()


def test_a_complaint_does_not_wait_for_a_reader(shims: Callable[..., Shim]) -> None:
    """Who does not read the output does not hold up the end of a rank whose controller has gone mad."""
    reading, writing = os.pipe()
    shim = shims("yes & echo $!; wait", stdout=writing, stderr=writing)
    os.close(writing)
    shim.start()
    blocked(shim)
    left = descendants(shim.process.pid)
    shim.say(t="dance")
    until(lambda: all(map(is_gone, left)), "the rank to end")
    os.close(reading)
    shim.process.wait(SOON_S)

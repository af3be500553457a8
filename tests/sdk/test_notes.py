"""Notes of a rank: written whole and bounded, read with suspicion."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.sdk import notes
from tests.sdk.conftest import ROOT
from tests.sdk.reading import read_notes


@pytest.fixture
def path(page_path: str) -> str:
    return page_path + notes.SUFFIX


def test_every_kind_comes_back_as_it_was_said(path: str) -> None:
    whys = [
        notes.write_message(path, "the loss\nis NaN"),
        notes.write_control(path, "exclude", "ECC errors"),
        notes.write_retriable(path, ["connect timeout", " ", "error_yyy"]),
        notes.limits(path, 10.0, None, 30.5, {"step": 5.0, "setup": None}),
        notes.write_setting(path, "job_exit_hang_interval", 600),
        notes.write_setting(path, "c4d_log_level", "Info"),
    ]
    assert whys == [""] * 6
    found, offset = read_notes(path, 0)
    assert offset == os.path.getsize(path) and stat.S_IMODE(os.stat(path).st_mode) == 0o600
    said = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert {(one["pid"], one["rank"]) for one in said} == {(os.getpid(), 3)} and said[0]["at"] > 1.7e9
    assert found == (
        notes.Note("message", ("the loss is NaN",)),
        notes.Note("exclude", ("ECC errors",)),
        notes.Note("retriable", ("connect timeout", "error_yyy")),
        notes.Note(
            "limits", ("first beat 10 s", "out of section 30.5 s", "section step 5 s"),
            notes.Limits(10.0, None, 30.5, (("step", 5.0),)),
        ),
        notes.Note("setting", ("job_exit_hang_interval", "600.0")),
        notes.Note("setting", ("c4d_log_level", "Info")),
    )  # fmt: skip
    notes.write_message(path, "more")
    assert [note.words for note in read_notes(path, offset)[0]] == [("more",)]


def test_what_is_long_is_cut_and_lists_have_room(path: str) -> None:
    assert notes.write_message(path, "字" * 5000) == ""
    assert notes.write_retriable(path, [f"{number:03}" + "语" * 60 for number in range(64)]) == ""
    assert notes.write_retriable(path, [f"{number:03}" + "语" * 150 for number in range(64)]) == "it is too long"
    assert notes.limits(path, 1.0, 2.0, 3.0, {f"{number:02}" + "n" * 200: 1.0 for number in range(48)}) == ""
    with open(path, "rb") as file:
        assert max(len(line) for line in file) <= notes.LINE_BYTES
    found, _ = read_notes(path, 0)
    assert sum(len(note.words) for note in found if note.what == "retriable") == 64
    told = [note.limits for note in found if note.limits]
    assert sum(len(note.sections) for note in told) == 48 and all(note.beat_s == 2.0 for note in told)


def test_a_program_that_talks_too_much_can_still_be_controlled(path: str) -> None:
    for _ in range(200):
        why = notes.write_message(path, "x" * 1000)
    assert why == "this rank has already said as much as it may" and os.path.getsize(path) <= notes.MESSAGES_BYTES
    assert notes.write_control(path, "shutdown", "diverged") == ""
    for _ in range(200):
        why = notes.write_control(path, "continue", "y" * 1000)
    assert why and os.path.getsize(path) <= notes.NOTES_BYTES


def test_lines_of_many_processes_stay_whole(path: str, rank_env: dict[str, str]) -> None:
    source = "from ftslurm.sdk import client as c\nfor n in range(40): c.message('z' * 200)"
    env = {**rank_env, "PYTHONPATH": str(ROOT)}
    ranks = [subprocess.Popen([sys.executable, "-c", source], env=env) for _ in range(4)]
    assert [rank.wait(60) for rank in ranks] == [0] * 4
    found, _ = read_notes(path, 0)
    assert len(found) == 160


def test_only_whole_lines_are_read(path: str) -> None:
    notes.write_message(path, "first")
    size = os.path.getsize(path)
    with open(path, "ab") as file:
        file.write(b'{"t":"message","at":1,"pi')
        file.flush()
        found, offset = read_notes(path, 0)
        assert (len(found), offset) == (1, size)
        file.write(b'd":5,"text":"second"}\n')
        file.flush()
    assert read_notes(path, offset)[0] == (notes.Note("message", ("second",)),)


@pytest.mark.parametrize("line", [
    "", "null", "[]", "{}", "17", '"t"', "{" * 3000, "[" * 3000, "\x00", "{\"t\":[]}",
    '{"t":"control","at":1,"pid":1,"action":"reboot","reason":""}',
    '{"t":"control","at":1,"pid":1,"action":["shutdown"],"reason":""}',
    '{"t":"message","at":1,"pid":1,"text":7}',
    '{"t":"message","at":1,"pid":1,"text":"' + "x" * 3000 + '"}',
    '{"t":"retriable","at":1,"pid":1,"words":"all"}',
    '{"t":"retriable","at":1,"pid":1,"words":[]}',
    '{"t":"retriable","at":1,"pid":1,"words":[1]}',
    '{"t":"limits","at":1,"pid":1,"beat":-5}',
    '{"t":"limits","at":1,"pid":1,"beat":1e999}',
    '{"t":"limits","at":1,"pid":1,"beat":' + "9" * 400 + "}",
    '{"t":"limits","at":1,"pid":1,"beat":"5"}',
    '{"t":"limits","at":1,"pid":1,"sections":{"a":0}}',
    '{"t":"limits","at":1,"pid":1,"sections":[["a",1]]}',
    '{"t":"setting","at":1,"pid":1,"name":"a","value":[1]}',
    '{"t":"setting","at":1,"pid":1,"name":5,"value":1}',
])  # fmt: skip
def test_lines_that_make_no_sense_are_passed_over(path: str, line: str) -> None:
    notes.write_message(path, "before")
    with open(path, "ab") as file:
        file.write(line.encode() + b"\n")
    notes.write_message(path, "after")
    found, offset = read_notes(path, 0)
    assert [note.words for note in found] == [("before",), ("after",)] and offset == os.path.getsize(path)


@given(st.one_of(st.binary(max_size=300), st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text()),
    lambda some: st.one_of(st.lists(some), st.dictionaries(st.text(), some)),
).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_no_line_makes_the_reader_stumble(line: bytes) -> None:
    notes.parse_note(line)


@given(st.fixed_dictionaries({
    "t": st.sampled_from(["message", "control", "retriable", "limits", "setting"]), "at": st.just(1), "pid": st.just(1),
    "text": st.text(), "action": st.text(), "reason": st.text(), "words": st.lists(st.text()), "name": st.text(),
    "value": st.one_of(st.text(), st.floats()), "initial": st.floats(), "sections": st.dictionaries(st.text(), st.floats()),
}))  # fmt: skip
def test_nor_does_a_line_that_is_nearly_right(told: dict[str, object]) -> None:
    note = notes.parse_note(json.dumps(told).encode())
    assert note is None or all(part.isprintable() for part in note.words)


def test_a_line_without_end_is_left_behind(path: str) -> None:
    notes.write_message(path, "x")
    with open(path, "wb") as file:
        file.write(b"x" * 20_000)
    found, offset = read_notes(path, 0)
    assert found == () and offset == 20_000


def test_nothing_beyond_the_bound_is_read(path: str) -> None:
    notes.write_message(path, "x")
    line = b'{"t":"message","at":1,"pid":5,"text":"flood"}\n'
    with open(path, "wb") as file:
        file.write(line * 100_000)
    found, offset = read_notes(path, 0)
    assert len(found) <= notes.NOTES_BYTES // len(line) and offset <= notes.NOTES_BYTES
    assert len(read_notes(path, offset)[0]) <= 1


def test_what_is_no_file_is_neither_written_nor_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "victim").write_text("precious\n")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "folder", "fifo", "nul\0"):
        assert notes.write_message(str(tmp_path / name), "hello")
        assert read_notes(str(tmp_path / name), 5) == ((), 5)
    assert read_notes(str(tmp_path / "none"), 5) == ((), 5)
    assert (tmp_path / "victim").read_text() == "precious\n"


def test_odd_offsets_are_no_news(path: str) -> None:
    notes.write_message(path, "x")
    for offset in (-1, 1 << 70, 10_000):
        assert read_notes(path, offset)[0] == ()


def test_what_cannot_be_written_does_no_harm(path: str) -> None:
    class Rude:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert notes.limits(path, float("nan"), None, None, {})
    assert notes.write_retriable(path, []) and notes.write_retriable(path, ["", "  "]) and notes.write_retriable(path, 5)  # type: ignore[arg-type]
    assert not os.path.exists(path)
    assert notes.write_message(path, Rude()) == ""  # type: ignore[arg-type]
    assert read_notes(path, 0)[0][0].words[0] == "(Rude that cannot be printed)"

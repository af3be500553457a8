"""Traces of many languages: what they quote, which error they end with, and where in the user's own code it arose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.policies.diagnose.traces import LOOKED_BYTES, Raised, outline

PYTHON = """step 1
Traceback (most recent call last):
  File "/home/u/train.py", line 3, in <module>
    x = "" if check(1) else "CUDA error: uncorrectable ECC error encountered"
              ^^^^^^^^
  File "/opt/venv/lib/python3.11/site-packages/torch/x.py", line 4, in f
    return self.go(
        "Connection refused"
    )
MyError: boom
step 2
"""
CHAINED = """Traceback (most recent call last):
  File "/home/u/data.py", line 70, in read
    return file.read(size)
OSError: [Errno 116] Stale file handle

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/u/data.py", line 75, in read
    self.retry(offset)
UnboundLocalError: no offset
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/a/t.py", line 3, in <module>
  |     raise ExceptionGroup("x", [e])
  | ExceptionGroup: x (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/a/t.py", line 1, in <module>
    |     1/0
    | ZeroDivisionError: division by zero
    +------------------------------------
"""
TWO_PROCESSES = """(EngineCore_0 pid=12) ERROR 03-25 06:14:02 [core.py:880] Traceback (most recent call last):
(EngineCore_0 pid=12) ERROR 03-25 06:14:02 [core.py:880]   File "/opt/vllm/core.py", line 70, in read
(APIServer pid=13) INFO 03-25 06:14:02 [x.py:2] hello
(EngineCore_0 pid=12) ERROR 03-25 06:14:03 [core.py:880]     return "Connection refused"
(EngineCore_0 pid=12) ERROR 03-25 06:14:03 [core.py:880] ValueError: bad heads
"""
JAVA = """Exception in thread "main" java.lang.RuntimeException: bad
\tat java.base/java.util.X.y(X.java:3)
\tat com.me.App.main(App.java:12)
Caused by: java.io.IOException: disk
\tat com.me.Io.go(Io.java:3)
\t... 12 more
"""
GO = """panic: runtime error: index out of range [3] with length 3

goroutine 1 [running]:
main.main()
\t/home/u/app/main.go:12 +0x1d
"""
RUST = """thread 'main' panicked at src/main.rs:4:5:
index out of bounds: the len is 3
stack backtrace:
   0: rust_begin_unwind
             at /rustc/abc/library/std/src/panicking.rs:617:5
   1: app::main
"""
JULIA = """ERROR: LoadError: DomainError with -1.0:
sqrt was called with a negative real argument
Stacktrace:
 [1] throw_complex_domainerror(f::Symbol, x::Float64)
   @ Base.Math ./math.jl:33
 [2] top-level scope
   @ /home/u/train.jl:3
in expression starting at /home/u/train.jl:3
"""
JAVASCRIPT = """/app/x.js:3
    throw new Error("CUDA error: uncorrectable ECC error encountered");
    ^

TypeError: msg
    at foo (/app/x.js:3:11)
    at node:internal/main:1:1
"""
CPP = """terminate called after throwing an instance of 'std::runtime_error'
  what():  bad thing
frame #0: c10::Error::Error(std::string) + 0x57 (0x7f in /opt/libc10.so)
"""
GLOG = """F1121 13:07:59.290000 28195 a.cc:12] Check failed: x == 1
*** Check failure stack trace: ***
    @     0x7f0000000000  google::LogMessage::Fail()
    @     0x7f0000000001  CUDA error: uncorrectable ECC error encountered
"""


def told(text: str) -> list[tuple[str, str, str]]:
    return [(raised.kind, raised.message, raised.place) for raised in outline(text.encode()).raised]


def left(text: str) -> list[str]:
    """The lines that are not blank once what is quoted is blanked."""
    return [line.strip() for line in outline(text.encode()).said.decode().split("\n") if line.strip()]


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        (PYTHON, [("MyError", "boom", "/home/u/train.py:3")]),
        (CHAINED, [("OSError", "[Errno 116] Stale file handle", "/home/u/data.py:70"), ("UnboundLocalError", "no offset", "/home/u/data.py:75")]),
        (GROUP, [("ExceptionGroup", "x (1 sub-exception)", "/a/t.py:3"), ("ZeroDivisionError", "division by zero", "/a/t.py:1")]),
        (TWO_PROCESSES, [("ValueError", "bad heads", "/opt/vllm/core.py:70")]),
        (JAVA, [("java.lang.RuntimeException", "bad", ""), ("java.io.IOException", "disk", "")]),
        (GO, [("panic", "runtime error: index out of range [3] with length 3", "")]),
        (RUST, [("panic", "index out of bounds: the len is 3", "src/main.rs:4")]),
        ("thread 'w' panicked at 'no', src/a.rs:7:1\n", [("panic", "no", "src/a.rs:7")]),
        (JULIA, [("LoadError", "DomainError with -1.0:", "")]),
        (JAVASCRIPT, [("TypeError", "msg", "")]),
        (CPP, [("std::runtime_error", "bad thing", "")]),
        ("run.sh: line 12: trian: command not found\n", [("shell", "trian: command not found", "run.sh:12")]),
        ('  File "/a.py", line 3\n    x = (\n        ^\nSyntaxError: never closed\n', [("SyntaxError", "never closed", "/a.py:3")]),
        ("step 3 loss: 2.1\nall is well\n", []),
        ("", []),
    ],
    ids=lambda value: value.strip().split("\n")[0][:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_errors_are_told_with_their_place_in_the_user_s_own_code(text: str, raised: list[tuple[str, str, str]]) -> None:
    assert told(text) == raised


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PYTHON, ["step 1", "MyError: boom", "step 2"]),
        (JAVA, ['Exception in thread "main" java.lang.RuntimeException: bad', "Caused by: java.io.IOException: disk"]),
        (JAVASCRIPT, ["TypeError: msg"]),
        (GLOG, ["F1121 13:07:59.290000 28195 a.cc:12] Check failed: x == 1", "*** Check failure stack trace: ***"]),
        (CPP, ["terminate called after throwing an instance of 'std::runtime_error'", "what():  bad thing"]),
        (" 12 |   let x = \"CUDA error\";\n    |           ^^^^\nerror: no\n", ["error: no"]),
        ("a\n```\nb\n```\nc\n", ["a", "c"]),
        ("```\n[n1:7] Transport retry count exceeded on mlx5_0\n```\nc\n", ["[n1:7]", "c"]),
    ],
)  # fmt: skip
def test_what_a_trace_quotes_is_blanked(text: str, said: list[str]) -> None:
    assert left(text) == said


def test_each_process_has_its_own_trace_though_they_write_at_once() -> None:
    mixed = "".join(
        f"[rank{rank}]:   {line}\n" for line in ('File "/a.py", line 1, in f', '  x("Connection refused")') for rank in (0, 1)
    )
    text = "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n" + mixed
    assert told(text + "[rank1]: KeyError: 'b'\n[rank0]: KeyError: 'a'\n") == [
        ("KeyError", "'b'", "/a.py:1"),
        ("KeyError", "'a'", "/a.py:1"),
    ]
    assert "Connection refused" not in outline(text.encode()).said.decode()


def test_frames_of_compiled_libraries_and_of_ftslurm_are_not_the_user_s_own() -> None:
    text = b"""Traceback (most recent call last):
  File "/home/u/train.py", line 6, in <module>
    cupy.cuda.Device().synchronize()
  File "/opt/ftslurm/sdk/probe.py", line 578, in watched
    return call(*args)
  File "cupy_backends/cuda/api/runtime.pyx", line 146, in cupy_backends.cuda.api.runtime.check_status
cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMisalignedAddress: misaligned address
"""
    assert [raised.place for raised in outline(text).raised] == ["/home/u/train.py:6"]


def test_what_the_runtime_itself_ignores_is_ignored() -> None:
    text = "Exception ignored in: <function X.__del__>\n" + PYTHON.split("\n", 1)[1]
    (raised,) = outline(text.encode()).raised
    assert raised.ignored and "boom" not in outline(text.encode()).said.decode()


@pytest.mark.parametrize(
    ("line", "thrown"),
    [("raise MyError()", True), ("if x: raise MyError()", True), ("assert x", True), ("go()", False), ("praise()", False)],
)
def test_an_error_that_the_program_threw_itself_is_known_by_its_source(line: str, thrown: bool) -> None:
    (raised,) = outline(
        f'Traceback (most recent call last):\n  File "/home/u/a.py", line 1, in f\n    {line}\nMyError: x\n'.encode()
    ).raised
    assert raised.thrown is thrown


def test_a_library_that_throws_does_not_make_it_the_program() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.11/a.py", line 1, in f\n    raise MyError()\nMyError: x\n'
    )
    assert [raised.thrown for raised in outline(text.encode()).raised] == [False]


def test_ordinary_lines_in_between_are_no_error() -> None:
    text = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n    go()\n0: ok\nINFO: next\ndone\nbatch of 3\nMyOwnError: x\n'
    assert told(text) == [("MyOwnError", "x", "/a.py:1")]


def test_a_trace_within_json_is_read() -> None:
    text = 'x\n   File \\"/a.py\\", line 140, in collate\n     batch[\\"CUDA error\\"]\n TypeError: none\n'
    assert told(text) == [("TypeError", "none", "/a.py:140")]


@given(
    st.lists(
        st.sampled_from([*(PYTHON + JAVA + GO + RUST + JULIA + JAVASCRIPT + CPP + GROUP + CHAINED).split("\n"), "```", "^", "x"]),
        max_size=40,
    )
)
def test_any_lines_can_be_walked_through(lines: list[str]) -> None:
    text = "\n".join(lines).encode()
    found = outline(text)
    assert len(found.said) == len(text) and found.said.count(b"\n") == text.count(b"\n")
    assert [raised.offset for raised in found.raised] == sorted(raised.offset for raised in found.raised)
    assert all(isinstance(raised, Raised) and raised.offset <= len(text) for raised in found.raised)


@given(st.binary(max_size=400))
def test_any_bytes_can_be_walked_through(text: bytes) -> None:
    for each in (text, b"Traceback (most recent call last):\n" + text, b'  File "a", line 1\n' + text):
        assert len(outline(each).said) == len(each)


def test_the_work_grows_with_the_text_and_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in bytes that are looked at, not in seconds."""
    import ftslurm.policies.diagnose.traces as traces

    looked: list[int] = []
    walk_line = traces._Walk._line

    def counted(walk: traces._Walk, start: int, stop: int) -> None:
        looked.append(min(stop - start, LOOKED_BYTES) + 1)
        walk_line(walk, start, stop)

    monkeypatch.setattr(traces._Walk, "_line", counted)
    for hostile in (
        PYTHON,
        "```\n",
        "^\n",
        "panic: \n",
        'File "a", line 1\n',
        "\n```\n\n",
        "Traceback (most recent call last):\n",
    ):
        for times in (100, 1000):
            looked.clear()
            outline((hostile * times).encode())
            assert sum(looked) <= 3 * times * len(hostile) + 200


def test_a_trace_in_a_frame_is_quoted_and_the_error_stands_below_it() -> None:
    text = (
        "[rank0]: \u256d\u2500\u2500 Traceback (most recent call last) \u2500\u2500\u256e\n"
        "[rank0]: \u2502 /home/user/train.py:298 in init        \u2502\n"
        "[rank0]: \u2502 \u2771 298   raise RuntimeError('CUDA error: uncorrectable ECC error') \u2502\n"
        "[rank0]: \u2570\u2500\u2500\u2500\u256f\n"
        "[rank0]: CommError: the service timed out\n"
    )
    seen = outline(text.encode())
    assert b"uncorrectable" not in seen.said and b"CommError" in seen.said
    assert [(each.kind, each.message, each.place) for each in seen.raised] == [
        ("CommError", "the service timed out", "/home/user/train.py:298")
    ]


def test_a_table_drawn_with_the_same_lines_is_no_trace() -> None:
    text = "\u2502 step \u2502 loss \u2502\n\u2502 12 \u2502 CUDA error: out of memory \u2502\n"
    assert outline(text.encode()).said == text.encode()

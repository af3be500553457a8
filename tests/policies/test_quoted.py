"""Words that are not said: whatever programs print of errors that are quoted, guessed at or somebody else's, no node is blamed for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Blame, Confidence, Piece, RankEnd, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from ftslurm.policies.diagnose.findings import ends_of_runs, findings
from ftslurm.policies.diagnose.lines import is_evidence, is_mild

ECC = "CUDA error: uncorrectable ECC error encountered"
TRACE = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 7, in step\n{}\n'


@cache
def book() -> PatternBook:
    return load_pattern_book(()).of_ranks()


def of_devices() -> list[str]:
    """A line for each kind that speaks against a node, and each name and text of a device's error."""
    lines = [pattern.sample for pattern in book().patterns if pattern.blame is not Blame.NO]
    for word in book().vocabulary.words:
        if word.family in ("cuda", "hip", "acl"):
            lines += [f"RuntimeError: {name}" for name in word.names]
            lines += [f"CUDA error: {text}" for text in word.texts if word.family == "cuda"]
    return [line for line in lines if not set("\"'`\\\n") & set(line)]


LINES = of_devices()


def said(text: str) -> list[str]:
    return [found.pattern.id for found in findings(text.encode(), book())]


# --- one by one

QUOTED = [
    TRACE.format('    x = "" if check(1) else "{line}"'),
    TRACE.format('    x = "" if check(1) else "{line}"\n         ^^^^^^^^'),
    TRACE.format("    # {line}"),
    '  File "/a/b.py", line 3\n    x = ("{line}"\n        ^\n',
    '/app/x.js:3\n    throw new Error("{line}");\n    ^\n',
    'src/main.rs:3:5\n   |\n 3 |     panic!("{line}");\n   |     ^^^^^^\n',
    "    raise RuntimeError('{line}')\n",
    'eval sample 3: The log said "{line}", so the engineer replaced the node.\n',
    "eval sample 3: The log said `{line}`\n",
    '{{"text": "{line}", "label": 3}}\n',
    "user: what does `{line}` mean?\n",
    "> {line}\n",
    "# {line}\n",
    "```\n{line}\n```\n",
    '  --retry-on TEXT       retry on "{line}" (default: never)\n',
    "If you see {line}, replace the GPU.\n",
    "This may be caused by {line}\n",
    "Possible causes:\n  1. {line}\n  2. the cable\n",
    "There are some potential root causes. (1) {line}. (2) the cable\n",
    "Common reasons:\n- the cable\n- {line}\n",
    "assert message == '{line}'\n",
    'KNOWN = ["{line}",\n',
    TRACE.format('    raise Retry("{line}") from e'),
    "+ grep -q '{line}' /var/log/syslog\n",
    "++ grep -c '{line}' /var/log/syslog\n",
    "+ echo '{line}'\n",
    'sample 7: {{"prompt": "what is this: {line}", "answer": "a broken GPU"}}\n',
    "Question: My job prints {line}\nAnswer: replace it\n",
    "Example 3: {line}\n",
    "such as the following, e.g. {line}\n",
    "usage: train.py\n\noptions:\n  --on-ecc ACTION  what to do at {line}\n",
    "Known issues:\n - {line}\n - slow start\n",
    "retry handler: would retry on {line}\n",
    "INFO loaded 2 retry patterns: ['{line}', 'Timeout']\n",
]
# Ways in which the same text comes into an output.
DRESSES: dict[str, Callable[[str], str]] = {
    "of Windows": lambda text: text.replace("\n", "\r\n"),
    "of UTF-16": lambda text: text.encode("utf-16").decode("utf-8", "replace"),
    "in colour": lambda text: by_line("\x1b[1;31m{}\x1b[0m", text),
    "by torchrun": lambda text: by_line("[rank1]: {}", text),
    "by srun --label": lambda text: by_line("1: {}", text),
    "by Ray": lambda text: by_line("(Worker pid=1201) {}", text),
    "after a progress bar": lambda text: by_line(" 42%|####   | 42/100 [00:01<00:02]\r{}", text),
    "after a line without end": lambda text: "0.123, " * 20_000 + "\n" + text,
    "with a time": lambda text: by_line("2026-11-23 12:00:01 INFO {}", text),
    "with a time and a place": lambda text: by_line("[2026-11-23 12:00:01,123] [ERROR] [trainer.py:33:log] {}", text),
    "in JSON": lambda text: "".join(json.dumps({"level": "INFO", "msg": line}) + "\n" for line in text.splitlines()),
}
# There a list's or a code block's lines look like any other message: loggers write `INFO - said`, too; and a list ends where
# something else is printed.
LOGGED = frozenset({"with a time", "with a time and a place", "in JSON", "after a progress bar"})
ONLY_TOGETHER = re.compile(r"(?i)^\W*```|\b(?:causes|reasons|issues|options):\n|^\+\+")


def by_line(form: str, text: str) -> str:
    return "".join(form.format(line) + "\n" for line in text.splitlines())


@pytest.mark.parametrize("form", QUOTED)
def test_what_is_quoted_is_not_said(form: str) -> None:
    assert "cuda-ecc-uncorrectable" not in said(form.format(line=ECC))
    assert "cuda-ecc-uncorrectable" not in said("step 1\n" + form.format(line=f"RuntimeError: {ECC}") + "step 2\n")


@pytest.mark.parametrize("dress", DRESSES)
def test_nor_is_it_however_it_comes_into_the_output(dress: str) -> None:
    for form in QUOTED:
        if dress not in LOGGED or not ONLY_TOGETHER.search(form):
            text = DRESSES[dress](f"step 1\n{form.format(line=f'RuntimeError: {ECC}')}step 2\n")
            v = verdict(["", text, "", ""])
            assert v.suspects == () and "cuda" not in v.signature, (form, v.what)


# What a campaign of random outputs has found: each of these had blamed a node.
@pytest.mark.parametrize(
    "text",
    [
        "such as the following, e.g. OSError: [Errno 113] No route to host\n",
        "such as the following, e.g. CUDA error: uncorrectable NVLink error detected during the execution\n",
        "such as the following, e.g. dcmi model initialized failed, because the device is used. ret is -8020\n",
        "Question: My job prints ra hdc message process failed ret(-67)\nAnswer: replace it\n",
        "INFO loaded 2 patterns: ['dcmi model initialized failed, because the device is used. ret is -8020', 'x']\n",
        "2026-11-23 12:00:01 INFO + grep -q 'NPU function error: HBM MULTI BIT ECC ERROR' /var/log/syslog\n",
    ],
)
def test_these_are_quoted_too(text: str) -> None:
    assert verdict(["", text, "", ""]).suspects == ()


@pytest.mark.parametrize("dress", ["of Windows", "in colour", "in JSON"])
def test_an_output_may_be_cut_anywhere(dress: str) -> None:
    text = DRESSES[dress](f"> RuntimeError: {ECC}\nValueError: bad\n")
    told = set()
    for cut in range(len(text) + 1):
        output = tuple(Piece(at, "err", part) for at, part in ((98.0, text[:cut]), (99.0, text[cut:])))
        v = diagnose([RankEnd(0, "n1", ExitStatus(1), 100.0, output=output), *others(1)], Facts(), book())
        told.add((v.signature, v.suspects))
    assert told == {("py-value", ())}


def test_what_a_program_is_doing_is_no_exception() -> None:
    cut_off = TRACE.format("    x = 1") + "Downloading: 42%\n"
    v = verdict(["", cut_off + TRACE.format("    go()") + "RuntimeError: ACLNN_ERR_RUNTIME_ERROR\n", "", ""])
    assert v.signature == "acl-inner"


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("line", [ECC, "CUDA out of memory. Tried to allocate 2.00 GiB", "the table is wrong"])
@pytest.mark.parametrize("before", ["", "step 1\n", "```\nx = 1\n```\n", "x = 1\n```\nstep 2\n", "> quoted\n"])
def test_but_what_is_said_is_heard_however_it_comes(dress: str, line: str, before: str) -> None:
    text = before + TRACE.format("    loss.backward()") + f"RuntimeError: {line}\n"
    plainly, dressed = (
        verdict(["", TRACE.format("    loss.backward()") + f"RuntimeError: {line}\n", "", ""]),
        verdict(["", DRESSES[dress](text), "", ""]),
    )
    assert (dressed.error_class, len(dressed.suspects)) == (plainly.error_class, len(plainly.suspects)), dressed.what


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n```\n{}",  # the beginning of the block is lost
        "[rank1]: ```\n[rank1]: x = 1\n[rank1]: ```\n{}",
        "x = 1\n```\n{}```python\ny = 2\n```\n",
        "a program may print ``` as well\n```\n{}",
    ],
)
def test_a_fence_that_encloses_nothing_hides_nothing(text: str) -> None:
    assert said(text.format(f"RuntimeError: {ECC}\n")) == ["cuda-ecc-uncorrectable"]


@pytest.mark.parametrize(
    "line",
    [
        f"2026-11-23 12:00:01,123 - trainer - ERROR - {ECC}",
        f"2026-11-23 12:00:01.123 | ERROR    | __main__:main:12 - {ECC}",
        f"[rank3]: 2026-11-23 12:00:01 - ERROR - {ECC}",
        f'{{"level": "ERROR", "msg": "step 3 failed: \\"{ECC}\\""}}',
        f"RuntimeError: {ECC}",
        f"[rank3]: torch.AcceleratorError: {ECC}",
        "NCCL WARN Cuda failure 'uncorrectable ECC error encountered'",
        f'{{"level": "ERROR", "msg": "RuntimeError: {ECC}"}}',
        f"[E ProcessGroupNCCL.cpp:1895] Process group watchdog thread terminated with exception: {ECC}",
        f"OSError(5, 'x'); then {ECC}",
        f"  what():  {ECC}",
        f"2026-11-21 03:02:14,550 ERROR trainer: step 3 failed: {ECC}",
        f"Exception from worker: RuntimeError('{ECC}')",
        f"A first sentence may guess. {ECC}",
        f"{ECC}. If the error persists, the GPU may be broken.",
    ],
)
def test_but_what_is_said_is_heard(line: str) -> None:
    assert said(line + "\n") == ["cuda-ecc-uncorrectable"]


def test_of_a_line_s_patterns_the_next_one_counts_where_the_first_only_guesses() -> None:
    text = "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n"
    assert said(text) == ["hccl-EJ0001"]


@pytest.mark.parametrize(
    ("line", "mild"),
    [
        ("WARNING: torch.OutOfMemoryError: CUDA out of memory. Retrying with batch size 16", True),
        ("2026-11-21 03:02:14 WARNING hub: Connection refused", True),
        ("UserWarning: Permission denied: '/x'", True),
        ("Connection refused, retrying in 5 s", True),
        ("NCCL WARN Cuda failure 2 'out of memory'", False),
        ("RuntimeError: CUDA out of memory", False),
        ("[rank0]:[E1121 03:27:10 ProcessGroupNCCL.cpp:1895] CUDA error: x", False),
    ],
)
def test_a_warning_is_a_mild_word(line: str, mild: bool) -> None:
    assert is_mild(line.encode()) is mild


def test_a_warning_is_a_cause_only_where_nobody_speaks_of_an_error() -> None:
    warned = "WARNING: Permission denied: '/home/u/.cache'\n"
    assert verdict([warned + "ValueError: bad\n", "", "", ""]).signature == "py-value"
    assert verdict([warned, "", "", ""]).signature == "fs-permission"


def test_words_that_the_program_throws_itself_blame_no_node() -> None:
    own = TRACE.format(f'    if bad: raise RuntimeError("{ECC}")') + f"RuntimeError: {ECC}\n"
    device = TRACE.format("    loss.backward()") + f"RuntimeError: {ECC}\n"
    assert verdict([own, "", "", ""]).suspects == ()
    assert [s.blame for s in verdict([device, "", "", ""]).suspects] == [Blame.YES]


def test_what_a_rank_went_on_after_convicts_nobody() -> None:
    later = (Piece(60.0, "err", f"RuntimeError: {ECC}\n"), Piece(99.0, "err", "KeyError: 'x'\n"))
    at_once = (Piece(98.0, "err", f"RuntimeError: {ECC}\n"), Piece(99.0, "err", "KeyError: 'x'\n"))
    for output, blame in ((later, Blame.SUSPECT), (at_once, Blame.YES)):
        ends = [RankEnd(0, "n1", ExitStatus(1), 100.0, output=output), *others(1)]
        assert [s.blame for s in diagnose(ends, Facts(), book()).suspects] == [blame]


# --- at random


def others(first: int) -> list[RankEnd]:
    return [RankEnd(rank, f"n{rank // 2 + 1}", ExitStatus(0, 15), 101.0, stopped=True) for rank in range(first, 4)]


def verdict(texts: list[str], status: int = 1) -> Verdict:
    ends = []
    for rank, text in enumerate(texts):
        output = (Piece(99.0, "err", text),) if text else ()
        failed = bool(text)
        ends.append(
            RankEnd(
                rank,
                f"n{rank // 2 + 1}",
                ExitStatus(status if failed else 0, 0 if failed else 15),
                100.0,
                stopped=not failed,
                output=output,
            )
        )
    return diagnose(ends, Facts(), book())


quoted = st.builds(lambda form, line: form.format(line=line), st.sampled_from(QUOTED), st.sampled_from(LINES))
ordinary = st.sampled_from(["step 3 loss: 2.1\n", "loading shard 7\n", "\n", "rank 3 starts\n", "Downloading: 42%\n"])
ending = st.sampled_from(["", TRACE.format("    go()") + "MyOwnError: the table is wrong\n", "Error: no such recipe\n"])
texts = st.builds(lambda parts, end: "".join(parts) + end, st.lists(quoted | ordinary, min_size=1, max_size=8), ending)


@settings(max_examples=300, deadline=None)
@given(st.lists(texts | st.just(""), min_size=4, max_size=4).filter(any))
def test_quoted_words_never_blame_a_node(outputs: list[str]) -> None:
    v = verdict(outputs)
    assert v.suspects == () and v.confidence is not Confidence.FACT, (v, outputs)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=5), st.integers(0, 3))
def test_somebody_else_s_log_convicts_nobody(lines: list[str], rank: int) -> None:
    """Shown as it is, with no mark at all, half a minute before the rank dies of an error of its own."""
    shown = Piece(70.0, "out", "".join(f"{line}\n" for line in lines))
    died = Piece(99.0, "err", TRACE.format("    go()") + "MyOwnError: the table is wrong\n")
    ends = [each for each in others(0) if each.rank != rank]
    ends.append(RankEnd(rank, f"n{rank // 2 + 1}", ExitStatus(1), 100.0, output=(shown, died)))
    v = diagnose(sorted(ends, key=lambda end: end.rank), Facts(), book())
    assert v.confidence is not Confidence.FACT
    assert not [s for s in v.suspects if s.blame is Blame.YES], (v, lines)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([line.encode() for line in LINES]), st.binary(max_size=100))
def test_any_line_is_evidence_or_not(before: bytes, line: bytes, after: bytes) -> None:
    text = before + line + after
    assert is_evidence(text, 0, text, len(before)) in (True, False)
    assert is_mild(text) in (True, False)


@settings(max_examples=100, deadline=None)
@given(st.lists(texts | st.sampled_from(LINES).map(lambda line: f"{line}\n" * 4), min_size=1, max_size=6))
def test_of_lines_of_one_kind_the_first_and_the_last_are_kept_and_read_in_full(parts: list[str]) -> None:
    text = "".join(parts).encode()
    every, kept = findings(text, book()), ends_of_runs(text, book())
    assert [found for found in every if found in kept] == kept
    for before, found, after in zip(every, every[1:], every[2:], strict=False):
        assert found in kept or before.pattern.id == found.pattern.id == after.pattern.id

"""The parsers of catalogues, and what looks things up in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from hypothesis import strategies as st

from ftslurm.catalogs.codes import CodeBook
from ftslurm.catalogs.pattern_files import SiteFile, codes_laid_over, patterns_laid_over
from ftslurm.catalogs.patterns import ExitMeaning, Found, Pattern, PatternBook
from ftslurm.config import catalog_files
from ftslurm.model.devices import CodeMeaning, Severity
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Piece, RankEnd, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from ftslurm.policies.hang.hints import Hint, hints
from tests.fuzz.files import written
from tests.fuzz.hold import Parser
from tests.fuzz.inputs import (
    YAML_WORDS,
    any_text,
    as_bytes,
    as_json,
    laughs,
    mutated,
    mutated_trees,
)


@cache
def code_book() -> CodeBook:
    return catalog_files.load_code_book()


@cache
def pattern_book() -> PatternBook:
    book = catalog_files.load_pattern_book()
    book.scan(b"x"), book.hints(b"x")  # sets its automatons up
    return book


@cache
def _sample(name: str) -> Any:
    """The first entries of each table that ships: a file that is right, and small enough to be read often."""
    return _head(yaml.load(files("ftslurm.catalogs").joinpath(name).read_text(), yaml.CSafeLoader), name)


def _head(data: Any, name: str) -> Any:
    most = 400 if name in ("sources", "buckets", "layout", "rules") else 4
    if isinstance(data, dict):
        whole = most > 4 or name.endswith(".yaml")
        return {key: _head(value, str(key)) for key, value in (list(data.items()) if whole else list(data.items())[:12])}
    return [_head(item, name) for item in data[:most]] if isinstance(data, list) else data


SITE: Sequence[Any] = [
    {
        "schema_version": 1,
        "devices": {"ascend": {"80E01801": {"class": "RestartNPU", "name": "ours"}}, "amd": {"THERMAL": {"remedy": "log"}}},
    },
    {
        "devices": {"nvidia": {79: {"remedy": "replace_node", "program": True}, "Xid 31": {"remedy": "log"}}},
        "remove": ["cuda-no-device"],
    },
    {
        "patterns": [
            {"id": "ours", "name": "ours", "class": "hardware", "retriable": "yes", "needs": "flux", "pattern": "flux .* (low|out)",
             "sample": "the flux is low", "isolate": "suspect"},
            {"id": "cuda-no-device", "name": "other", "class": "user-code", "retriable": False, "pattern": "no GPU", "sample": "no GPU"},
        ],
        "exit_codes": {3: {"meaning": "data ran out", "class": "data", "retriable": "no"}},
    },
]  # fmt: skip
REGULAR = (
    "(", ")*", "[", "[^", "a{1000}", "(a{1000}){1000}", "(a*)*b", "(?i)", "(?P<x>", "\\1", "\\Q", "\\C", "(?=x)", ".*", "x{0,999}",
    "\\pL", "[[:alpha:]]", "\\x{10ffff}", "^$", "|", "||", "(|a)",
)  # fmt: skip
SITE_LAUGHS = laughs(
    ("a0: &a0 [x, y]", "remove: &a0 [cuda-no-device]", "devices: &a0 {amd: {THERMAL: {remedy: log}}}"),
    ("{here}: &{here} [{many}]", "devices: &{here} {{<<: [{many}]}}", "remove: &{here} [{many}]"),
)
SITE_FILES = as_bytes(
    mutated([yaml.safe_dump(tree) for tree in SITE], (*YAML_WORDS, *REGULAR)) | SITE_LAUGHS | as_json(mutated_trees(SITE))
)


def _site(data: bytes) -> tuple[SiteFile, CodeBook, PatternBook]:
    path = written(data, "site.yaml")
    site = catalog_files.read_catalog(path)
    return site, codes_laid_over(code_book(), site, "site.yaml"), patterns_laid_over(pattern_book(), site, "site.yaml")


def _meanings(given: tuple[str, str, Severity]) -> CodeMeaning:
    kind, code, severity = given
    return code_book().meaning(kind, code, severity)


def _found(text: bytes) -> tuple[list[Found], list[Found], Pattern | None]:
    book = pattern_book()
    found, hints = book.scan(text), book.hints(text)
    for each in (*found, *hints):
        assert text[each.offset : each.offset + len(each.line)] == each.line and book.named(each.pattern.id)
    return found, hints, book.line(text)


def is_utf8(text: str) -> bool:
    return text.encode("utf-8", "replace").decode() == text


def _keywords(given: tuple[list[str], bytes]) -> list[Found]:
    words, text = given
    return pattern_book().with_keywords(words).scan(text)


def _ends(printed: Sequence[tuple[str, int]]) -> tuple[RankEnd, ...]:
    pieces = [(Piece(1000.0 + rank, "err", text), Piece(1001.0, "out", text[:9])) for rank, (text, _) in enumerate(printed)]
    return tuple(
        RankEnd(rank, f"n{rank // 2}", ExitStatus(code % 256), 1002.0, output=pieces[rank])
        for rank, (_, code) in enumerate(printed)
    )


def _verdict(printed: Sequence[tuple[str, int]]) -> tuple[Verdict, tuple[Hint, ...]]:
    ends = _ends(printed)
    stacks = {f"n{rank}": text for rank, (text, _) in enumerate(printed)}
    return diagnose(ends, Facts((), {}), pattern_book()), hints(ends, stacks, catalog_files.load_hang_hints())


PATTERN_SAMPLES = [pattern["sample"] for pattern in _sample("log-patterns.yaml")["patterns"]] + [
    "RuntimeError: NCCL error: unhandled system error",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "ValueError: x",
    "Traceback (most recent call last):",
]
HINT_SAMPLES = ["Channel 0 via NET/IB/0/GDRDMA", "via NET/IB/1 ", "Got completion with status=12", "epoch: 3 step 5", "SeqNum=77"]
LOG_WORDS = (*HINT_SAMPLES, *PATTERN_SAMPLES, "\nerror: ", "CUDA error: ", "Xid (", "\x1b[31m", "\r", "E" * 5000, "rror" * 2000)
LOGS = as_bytes(mutated(["\n".join(PATTERN_SAMPLES), *PATTERN_SAMPLES], LOG_WORDS)) | st.binary(max_size=200)
LONG_LOGS = st.builds(lambda log, times: log * times, LOGS, st.sampled_from((1, 1, 1, 30)))
PRINTED = st.lists(
    st.tuples(mutated([*PATTERN_SAMPLES, *HINT_SAMPLES, "\n".join(PATTERN_SAMPLES)], LOG_WORDS), st.integers(0, 255)), max_size=4
)
CODES = mutated(
    ["80E01801", "0x80e01801", "XID 79", "XID 144 RLW 0x00000000", "RECOVERY 1", "SXID 10001", "THERMAL", "[0x00f1fef5,1,cpu,na]"]
)
Laid = tuple[SiteFile, CodeBook, PatternBook]
Scanned = tuple[list[Found], list[Found], Pattern | None]

CATALOGS = [
    Parser("a site's catalogue", SITE_FILES, _site, Laid),
    Parser(
        "fault code",
        st.tuples(st.sampled_from(("ascend", "nvidia", "amd")) | any_text, CODES, st.sampled_from(Severity)),
        _meanings,
        CodeMeaning,
    ),
    Parser("exit status", st.integers(-(2**70), 2**70), lambda status: pattern_book().exit(status), ExitMeaning),
    Parser("classification", PRINTED, _verdict, tuple[Verdict, tuple[Hint, ...]]),
    Parser("PATTERN scan", LONG_LOGS, _found, Scanned),
    Parser("PATTERN scan, keywords", st.tuples(st.lists(any_text.filter(is_utf8), max_size=3), LOGS), _keywords, list[Found]),
]

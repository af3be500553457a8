"""The corpus of failing runs is well-formed, says of each run what the classifier is asked, and has each kind of run."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ftslurm.model.verdict import ErrorClass, Retriable
from tests.each import each

CORPUS = Path(__file__).parent / "corpus"
OWN_FILES = sorted(CORPUS.glob("*.yaml"))
PUBLIC_FILES = sorted((CORPUS / "public").glob("*.yaml"))
FILES = OWN_FILES + PUBLIC_FILES
KEYS = {"what", "source", "made_by", "recipe", "after", "nodes", "ranks", "faults", "bad_nodes", "expect", "why"}
PUBLIC_KEYS = (KEYS - {"after"}) | {"url", "found", "thread", "decisive", "decisive_rank"}
RANK_KEYS = {"rank", "status", "signal", "at", "stopped", "lost", "oom", "log"}
EXPECT_KEYS = {"class", "retriable", "suspects", "isolate", "program", "signature", "open"}
# Beginnings of names: what a corpus without them could not show.
KINDS = (
    "import-", "exception-", "nan-", "gloo-", "segfault-", "checkpoint-", "loader-", "retry-noise", "torchrun-", "nccl-timeout-silent",
    "ib-", "cuda-oom-", "cuda-illegal-access-everywhere", "hccl-", "npu-", "xid-79", "xid-31", "slurm-", "status-137", "status-127-one",
    "storage-", "hostile-", "noise-",
)  # fmt: skip


# What a thread may have shown and a file must not repeat: addresses of people and machines, tokens.
EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.(?!cpp|hpp|cxx)[a-z]{2,}")  # `main@grid.cpp:85` is a frame of a stack
TOKEN = re.compile(r"\b(?:hf|ghp|gho|sk|xox[bp])[_-][A-Za-z0-9]{16,}")
ADDRESS = re.compile(r"(?<![\w.=-])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")


@cache
def read(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return told


@cache
def loader() -> ModuleType:
    """tests/corpus/load.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("corpus_load", CORPUS / "load.py")
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stem(path: Path) -> str:
    return path.stem


def test_each_file_is_well_formed() -> None:
    each(FILES, well_formed, stem)


def well_formed(path: Path) -> None:
    told = read(path)
    nodes, expect = told["nodes"], told["expect"]
    ranks = [rank for ranks in nodes.values() for rank in ranks]
    assert set(told) <= (PUBLIC_KEYS if path in PUBLIC_FILES else KEYS) and told["what"] and told["why"]
    of_source = {"recorded": {"made_by", "recipe"}, "written": {"after"}, "public": set()}
    assert of_source[told["source"]] <= set(told)
    assert told["source"] in ({"public", "recorded"} if path in PUBLIC_FILES else {"recorded", "written"})
    assert sorted(ranks) == list(range(len(ranks)))
    listed = [rank["rank"] for rank in told["ranks"]]
    assert set(listed) <= set(ranks) and len(set(listed)) == len(listed)
    for rank in told["ranks"]:
        assert set(rank) <= RANK_KEYS
        assert rank.get("lost") or (rank["at"] >= 0 and not (rank["status"] and rank["signal"]))
        assert all(at >= 0 and stream in ("out", "err") and text for at, stream, text in rank["log"])
        assert [piece[0] for piece in rank["log"]] == sorted(piece[0] for piece in rank["log"])
    assert all(set(fault) == {"node", "device", "code", "at"} and fault["node"] in nodes for fault in told.get("faults", []))
    assert set(told.get("bad_nodes", {})) <= set(nodes)
    assert set(expect) <= EXPECT_KEYS and set(expect.get("open", [])) <= EXPECT_KEYS - {"open"}
    assert expect["class"] in {one.value for one in ErrorClass} and expect["retriable"] in {one.value for one in Retriable}
    assert set(expect["isolate"]) <= set(expect["suspects"]) <= set(nodes)
    assert isinstance(expect["program"], bool) and not (expect["program"] and expect["suspects"])


def test_each_public_run_tells_its_thread_and_the_line_that_decides() -> None:
    each(PUBLIC_FILES, tells_thread_and_line, stem)


def tells_thread_and_line(path: Path) -> None:
    told = read(path)
    url = told.get("url", "")
    assert url.startswith("https://") or told.get("found") or told["source"] == "recorded"
    if re.search(r"^https://github\.com/.*/(?:issues|pull|discussions)/", url):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", told.get("thread", ""))
    if "decisive" in told:
        words = {rank["rank"]: "".join(text for _, _, text in rank["log"]) for rank in told["ranks"]}
        facts = [fault["code"] for fault in told.get("faults", [])] + list(told.get("bad_nodes", {}).values())
        parts = [told["decisive"]] if isinstance(told["decisive"], str) else told["decisive"]
        assert any(part in line for part in parts for line in words.get(told.get("decisive_rank"), "").splitlines() or facts)
        lines = [line for text in words.values() for line in text.splitlines()] + facts  # several ranks may tell it as well
        assert parts and all(part and any(part in line for line in lines) for part in parts)


def test_no_public_run_names_anybody() -> None:
    each(PUBLIC_FILES, names_nobody, stem)


def names_nobody(path: Path) -> None:
    text = path.read_text()
    assert not EMAIL.findall(text) and not TOKEN.findall(text)
    public = [at[0] for at in ADDRESS.finditer(text) if not private(*map(int, at[0].split(".")))]
    assert not public


def private(first: int, second: int, *rest: int) -> bool:
    """Of an address that says nothing of anybody; or no address at all, but a version."""
    return (
        first in (0, 10, 127)
        or first > 239
        or max(second, *rest) > 255
        or (first, second) in {(192, 168), (169, 254)}
        or (first == 172 and 16 <= second <= 31)
    )


def test_in_each_somebody_failed_of_itself() -> None:
    each(FILES, failed_of_itself, stem)


def failed_of_itself(path: Path) -> None:
    told = read(path)
    own = [rank for rank in told["ranks"] if not rank.get("stopped")]
    assert any(rank.get("lost") or rank["status"] or rank["signal"] for rank in own)


def test_each_file_is_read_into_the_classifiers_values() -> None:
    each(FILES, gives_values, stem)


def gives_values(path: Path) -> None:
    told, case = read(path), loader().load(path)
    assert [end.rank for end in case.ends] == list(range(sum(map(len, told["nodes"].values()))))
    assert all((end.status is None) == end.lost for end in case.ends)
    assert case.expect.error_class.value == told["expect"]["class"]


def test_the_corpus_has_each_kind_of_run() -> None:
    names = [path.stem for path in OWN_FILES]
    sources = Counter(read(path)["source"] for path in OWN_FILES)
    classes = Counter(read(path)["expect"]["class"] for path in OWN_FILES)
    assert len(OWN_FILES) >= 80 and sources["recorded"] >= 25
    assert set(classes) == {one.value for one in ErrorClass}
    assert not [kind for kind in KINDS if not any(name.startswith(kind) for name in names)]


def test_no_two_runs_have_one_name() -> None:
    assert len({path.stem for path in FILES}) == len(FILES)


def test_no_thread_is_told_twice() -> None:
    """Of two runs of one thread one could be seen and the other unseen."""
    urls = (read(path).get("url", "") for path in PUBLIC_FILES)
    told = Counter(url.replace("/pull/", "/issues/").lower() for url in urls if url)
    assert not [url for url, times in told.items() if times > 1]


def test_a_hash_of_the_name_draws_the_half_of_a_public_run() -> None:
    drawn = [(name, loader().half_of(name)) for name in ("one-run", "another-run", "third-run", "fourth-run")]
    assert drawn == [("one-run", "seen"), ("another-run", "unseen"), ("third-run", "unseen"), ("fourth-run", "seen")]


def test_nothing_of_the_recording_machine_is_left() -> None:
    """What others posted may hold such paths of theirs."""
    marks = (str(CORPUS.parent.parent), "/tmp/run-", ".pyenv")
    assert not [path.name for path in OWN_FILES if any(mark in path.read_text() for mark in marks)]

"""The corpus of failing runs is well-formed, says of each run what the classifier is asked, and has each kind of run."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ftslurm.model.verdict import ErrorClass, Retriable

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(CORPUS.glob("*.yaml"))
KEYS = {"what", "source", "made_by", "recipe", "after", "nodes", "ranks", "faults", "bad_nodes", "expect", "why"}
RANK_KEYS = {"rank", "status", "signal", "at", "stopped", "lost", "oom", "log"}
EXPECT_KEYS = {"class", "retriable", "suspects", "isolate", "program", "signature", "open"}
# Beginnings of names: what a corpus without them could not show.
KINDS = (
    "import-", "exception-", "nan-", "gloo-", "segfault-", "checkpoint-", "loader-", "retry-noise", "torchrun-", "nccl-timeout-silent",
    "ib-", "cuda-oom-", "cuda-illegal-access-everywhere", "hccl-", "npu-", "xid-79", "xid-31", "slurm-", "status-137", "status-127-one",
    "storage-", "hostile-", "noise-",
)  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return told


def loader() -> ModuleType:
    """tests/corpus/load.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("corpus_load", CORPUS / "load.py")
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_well_formed(path: Path) -> None:
    told = read(path)
    nodes, expect = told["nodes"], told["expect"]
    ranks = [rank for ranks in nodes.values() for rank in ranks]
    assert set(told) <= KEYS and told["what"] and told["why"]
    assert ("made_by" in told and "recipe" in told) if told["source"] == "recorded" else (told["source"] == "written" and told["after"])
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_somebody_failed_of_itself(path: Path) -> None:
    told = read(path)
    own = [rank for rank in told["ranks"] if not rank.get("stopped")]
    assert any(rank.get("lost") or rank["status"] or rank["signal"] for rank in own)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_read_into_the_classifiers_values(path: Path) -> None:
    told, case = read(path), loader().load(path)
    assert [end.rank for end in case.ends] == list(range(sum(map(len, told["nodes"].values()))))
    assert all((end.status is None) == end.lost for end in case.ends)
    assert case.expect.error_class.value == told["expect"]["class"]


def test_the_corpus_has_each_kind_of_run() -> None:
    names = [path.stem for path in FILES]
    sources = Counter(read(path)["source"] for path in FILES)
    classes = Counter(read(path)["expect"]["class"] for path in FILES)
    assert len(FILES) >= 80 and sources["recorded"] >= 25
    assert set(classes) == {one.value for one in ErrorClass}
    assert not [kind for kind in KINDS if not any(name.startswith(kind) for name in names)]


def test_nothing_of_the_recording_machine_is_left() -> None:
    marks = (str(CORPUS.parent.parent), "/tmp/run-", ".pyenv")
    assert not [path.name for path in FILES if any(mark in path.read_text() for mark in marks)]

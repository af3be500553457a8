"""The parsers of the files that ftslurm keeps for itself."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

from hypothesis import strategies as st
from rich.console import Console

from ftslurm.ledger.journal import Contents, Journal, from_line, to_line
from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.ledger.store import Identity, Store
from ftslurm.model.folds.history import History, fold
from ftslurm.model.folds.node_memory import Remembered, Told, remembered, suspects_to
from ftslurm.model.record import KINDS, Drill, Record
from ftslurm.report import text as report
from ftslurm.report import view
from tests.fuzz.files import folder, written
from tests.fuzz.hold import Parser
from tests.fuzz.inputs import (
    any_text,
    as_bytes,
    as_json,
    mutated,
    mutated_trees,
)

_EXAMPLES: Mapping[Any, Any] = {
    int: 3, float: 1795257741.5, str: "n[1-2]", bool: True, bool | None: True, Mapping[str, int]: {"max_restarts": 8}, Mapping[str, str]: {"n1": "why"},
    tuple[int, ...]: (3, 4), tuple[str, ...]: ("n1", "n2"), tuple[tuple[str, str], ...]: (("hang-restart", "not now"),),
    tuple[tuple[str, str, str], ...]: (("hang-restart", "hang.restart", "false"),),
    Drill | None: Drill("slow-rank", 3, share=0.5),
}  # fmt: skip


def example_of(kind: type) -> Any:
    hints = get_type_hints(kind)
    return kind(**{field.name: _EXAMPLES[hints[field.name]] for field in fields(kind)})


RECORDS: list[Record] = [example_of(kind) for kind in KINDS.values()]
RECORD_LINES = [to_line(record).decode().rstrip() for record in RECORDS]
LEDGER_LINES = as_bytes(mutated(RECORD_LINES, ("NaN", "Infinity", "1e400", "true", "[]", "{}"))) | as_bytes(
    as_json(mutated_trees([json.loads(line) for line in RECORD_LINES]))
)
LEDGERS = st.lists(LEDGER_LINES | st.sampled_from(RECORD_LINES).map(str.encode), max_size=14).map(b"\n".join)
Past = tuple[Contents, History, view.Status | None, list[view.AttemptView]]


def _past(data: bytes) -> Past:
    contents = Journal(written(data, "cluster.1.jsonl")).read()
    return contents, fold(contents.records), view.status_of(contents.records), view.attempts(contents.records)


def _printed(data: bytes) -> str:
    contents, _, status, attempts = _past(data)
    console = Console(file=io.StringIO(), width=100)
    if status is not None:
        report.print_status(console, status, 0.0)
        report.print_history(console, status, attempts, 0.0)
    return str(contents.damaged)


NODE_LINES = [
    '{"v":2,"kind":"left","at":1795257741.5,"cluster":"c","node":"n1","job":"7","why":"a fault"}',
    '{"v":2,"kind":"left","at":1795257742,"cluster":"c","node":"n1","job":"8","why":""}',
    '{"v":2,"kind":"reinstated","at":1795257742.5,"cluster":"c","node":"n1","job":"8","why":"it is the program"}',
    '{"v":2,"kind":"cleared","at":1795257743.5,"cluster":"c","node":"n1"}',
]
NODE_FILES = st.lists(
    as_bytes(mutated(NODE_LINES, ("NaN", "[]", "{}", "1e400")))
    | as_bytes(as_json(mutated_trees([json.loads(line) for line in NODE_LINES])))
    | st.sampled_from(NODE_LINES).map(str.encode),
    max_size=8,
).map(b"\n".join)
Memory = tuple[tuple[Told, ...], tuple[Remembered, ...], Mapping[str, str]]


def _memory(data: bytes) -> Memory:
    records = NodeMemory(written(data, "nodes.jsonl").parent).read()
    known = remembered(records, 1795257800.0, 86400.0)
    return records, known, suspects_to(known, "c", "7")


FILE_NAMES = mutated(["local.1", "c.12_3", "local.2.was.1", "12"], ("local.²", "local.٣", "local.", "²")).map(
    lambda text: text.translate({ord(char): "-" for char in "/\0"})[:60].encode("utf-8", "replace").decode()
)


def _store(given: tuple[list[str], str]) -> tuple[int, str]:
    """A state folder that holds files of any names, and a cluster and job of any name."""
    names, odd = given
    with TemporaryDirectory(dir=folder()) as state:
        root = Path(state)
        (root / "jobs").mkdir(mode=0o700)
        for name in names:
            (root / "jobs" / f"{name}.jsonl").touch(mode=0o600)
        store = Store(root)
        number, _ = store.new_local()
        journal, _ = store.open(Identity(odd, odd, 0, 0, odd))
        assert journal.path.parent == root / "jobs"
        return number, journal.path.name


LEDGER = [
    Parser("ledger line", LEDGER_LINES | st.binary(max_size=60), from_line, Record | None),
    Parser("ledger", LEDGERS, _past, Past),
    Parser("ledger, printed", LEDGERS, _printed, str),
    Parser("nodes.jsonl", NODE_FILES, _memory, Memory),
    Parser("state folder", st.tuples(st.lists(FILE_NAMES, max_size=3), any_text), _store, tuple[int, str]),
]

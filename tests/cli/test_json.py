"""Each form of JSON that commands print is what its schema says (tools/schemas.py, docs/reference/json.md)."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemas
from click.testing import CliRunner

from ftslurm.cli.ftslurm import group
from ftslurm.ledger.journal import to_line
from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.ledger.store import private_folder
from ftslurm.model.folds.node_memory import NodeLeft
from tests import json_schemas
from tests.report.ledgers import big_job
from tests.report.test_view import long_story

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Ledgers of stories, of real jobs, and of one with requests; a memory of nodes; no Slurm."""
    jobs = private_folder(private_folder(tmp_path / "state") / "jobs")
    ledgers = {"c.7": long_story().ledger, "alps.4711": big_job()}
    for name, records in ledgers.items():
        (jobs / f"{name}.jsonl").write_bytes(b"".join(map(to_line, records)))
    for ledger in (ROOT / "tests/recorded/ledgers").glob("local.*.jsonl"):
        shutil.copy(ledger, jobs)
    NodeMemory(tmp_path / "state").add(
        [NodeLeft(time.time(), "c", "n1", job, "Xid 79: GPU fell off the bus") for job in ("7", "8")]
    )
    (tmp_path / "run.out").write_text("[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n")
    (tmp_path / "faults.yaml").write_text(
        "job: {nodes: 4, until: 2d}\nfaults:\n- {at: 1h, kind: crash}\n- {at: 2h, kind: hang}\n"
    )
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


WORDS = {
    "JOB": ["4711", "7", "1"],
    "CODE": ["Xid 79", "exit 137", "no such thing at all"],
    "WORD": ["stop.grace", "in-place-restart"],
}
MORE = {
    "ftslurm status --json": ["--all"], "ftslurm history --json": ["--since", "10000d"],
    "ftslurm report --format json": ["--since", "10000d"], "ftslurm status --all-users --json": ["--all"],
}  # fmt: skip
CALLS = [(verb, call) for verb, forms in schemas.SHAPES.items() for call in forms]


@pytest.mark.parametrize(("verb", "call"), CALLS, ids=[call for _, call in CALLS])
def test_what_it_prints_is_what_its_schema_says(state: Path, verb: str, call: str) -> None:
    if "--all-users" in call and os.geteuid() != 0:
        pytest.skip("only root sees the jobs of all users")
    argv = call.split()[1:]
    slot = next((word for word in WORDS if word in argv), "")
    for given in WORDS.get(slot, [""]):
        words = [{slot: given, "LOG": "run.out", "TRACE": "faults.yaml"}.get(word, word) for word in argv]
        done = CliRunner().invoke(group, [*words, *MORE.get(call, [])])
        assert done.exit_code in (0, 1) and done.stdout, (words, done.output, done.exception)
        json_schemas.check(verb, json.loads(done.stdout), call)

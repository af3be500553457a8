"""Traces as people write them, right and wrong, and the command that plays them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftslurm.cli.ftslurm import group, main
from ftslurm.errors import PolicyError, UsageError
from ftslurm.simulation.command import named
from ftslurm.simulation.trace import FaultKind, JobPlan, rate_of, read_trace

ROOT = Path(__file__).parents[2]
YAML = """\
job:
  nodes: 4
  until: 1d
faults:
  - {at: 2h, kind: device, node: 2, code: 80E01801}
  - at: 1h
    kind: crash
    rank: 3
    retriable: no
"""


def test_yaml_and_json_lines_say_the_same() -> None:
    lines = [
        {"job": {"nodes": 4, "until": 86400}},
        {"at": 7200, "kind": "device", "node": 2, "code": "80E01801"},
        {"at": "1h", "kind": "crash", "rank": 3, "retriable": False},
    ]
    one, other = read_trace(YAML, "t.yaml"), read_trace("\n".join(map(json.dumps, lines)), "t.jsonl")
    assert one.plan == other.plan == JobPlan(nodes=4, until_s=86400.0)
    assert [fault.kind for fault in one.faults] == [FaultKind.CRASH, FaultKind.DEVICE], "in the order of time"
    assert [fault.line for fault in one.faults] == [6, 5] and [fault.line for fault in other.faults] == [3, 2]
    assert one.faults[0].retriable == other.faults[0].retriable == "no"


@pytest.mark.parametrize(("text", "told"), [
    ("faults:\n  - {at: 1h, kind: crush}", "t, line 2: kind: `crush` is not one of .*did you mean `crash`"),
    ("faults:\n\n  - {kind: crash}", "t, line 3: a fault needs `at`"),
    ("faults:\n  - {at: 5, kind: crash}", "t, line 2: at: `5` is not a duration"),
    ("faults:\n  - {at: 1h, kind: hang, code: x}", "t, line 2: a fault of kind hang has no `code`"),
    ("faults:\n  - {at: 1h, kind: device, node: 1}", "t, line 2: a device fault needs its `code`"),
    ("faults:\n  - {at: 1h, kind: node-death}", "t, line 2: it does not say where"),
    ("faults:\n  - {at: 1h, kind: crash, status: [1]}", "t, line 2: `status` is one value"),
    ("faults:\n  - 7", "t, line 2: names and values"),
    ("faults: 7", "t, line 1: `faults` is a list"),
    ("job: {nodes: 0}", "t, line 1: nodes: 0 is out of range"),
    ("job: {nodse: 3}", "t, line 1: the job has no `nodse`; did you mean `nodes`"),
    ("job: {step: 0s}", "t, line 1: step: it takes some time"),
    ("job: {}\njob: {}", "t, line 2: `job` is here twice"),
    ("fault: []", "t, line 1: `fault` is not a part of a trace; did you mean `faults`"),
    ("faults: {", "t, line 2: not YAML"),
    ("- 1", "t, line 1: a trace has `job` and `faults`"),
    ('{"job": {}}\n{"at": 1', "t, line 2: not JSON"),
    ('{"job": 3}', "t, line 1: `job` is an object"),
    ('{"job": {}}\n[]', "t, line 2: a line of a trace is an object"),
    ('{"at": NaN, "kind": "crash"}', "t, line 1: at: `nan` is out of range"),
])  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        read_trace(text, "t")


def test_an_empty_trace_is_a_job_without_faults() -> None:
    assert read_trace("", "t").faults == () and read_trace("", "t").until == 86400.0


def test_policies_by_name() -> None:
    assert named("a:ladder=hang-restart,fail,max_restarts=3") == ("a", {"ladder": "hang-restart,fail", "max_restarts": "3"})
    for wrong in ("a", "a:", ":max_restarts=3", "a:max_restarts"):
        with pytest.raises(UsageError):
            named(wrong)


def test_rates() -> None:
    assert rate_of("crash=0.5") == ("crash", 0.5)
    for wrong in ("crush=1", "crash", "crash=-1", "crash=nan", "crash=x"):
        with pytest.raises(UsageError):
            rate_of(wrong)


# --- the command


def run(*words: str) -> str:
    found = CliRunner().invoke(group, ["simulate", *words], catch_exceptions=False)
    return found.output


def test_the_example_of_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "simulating.md").read_text()
    trace, shown = (re.findall(rf"```{language}[^\n]*\n(.*?)```", text, re.DOTALL)[0] for language in ("yaml", "text"))
    monkeypatch.chdir(tmp_path)
    Path("faults.yaml").write_text(trace)
    told = run("faults.yaml", "--with", "alone:rungs.hang-restart.enabled=false")
    assert told == shown and max(map(len, told.splitlines())) <= 60


def test_for_programs(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(YAML)
    found = json.loads(run(str(tmp_path / "t.yaml"), "--with", "other:max_restarts=1", "--json"))
    first, other = found["policies"]
    assert (first["name"], other["name"]) == ("in force", "other") and other["budgets"]["max_restarts"][1] == 1
    assert sum(first["parts_s"].values()) == pytest.approx(first["wall_s"])
    assert [(one["fault"]["line"], one["answers"][0][0]) for one in first["faults"]] == [
        (6, "in-place-restart"), (5, "in-place-restart"),
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "status", "told"), [
    ((), 64, "nothing to simulate"),
    (("no-such-file",), 65, "cannot be read"),
    (("t", "t"), 64, "more than one trace"),
    (("t", "--job", "nodes"), 64, "no value"),
    (("t", "--job", "nodes=1"), 65, "t, line 6: the job has no rank 3"),
    (("v",), 65, "v, line 1: the cluster has no node 2"),
    (("t", "--set", "mode=async"), 64, "cannot be simulated"),
    (("t", "--set", "max_restart=1"), 65, "max_restarts"),
    (("t", "--with", "a:max_restarts=1", "--with", "a:max_restarts=2"), 64, "two policies"),
    (("u",), 65, "no catalogue knows the code"),
    (("--random", "crash=1000", "--job", "nodes=1000"), 64, "more than"),
])  # fmt: skip
def test_bad_input(
    words: tuple[str, ...], status: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("t").write_text(YAML)
    Path("u").write_text("faults: [{at: 1h, kind: device, node: 1, code: nonsense}]")
    Path("v").write_text("faults: [{at: 1h, kind: crash, node: 2}]")
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    shown = capsys.readouterr().err
    assert ended.value.code == status and told in shown and "Traceback" not in shown

"""A job in numbers: what is counted, that Prometheus reads it back, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families as parse

from ftslurm.cli.site import metrics as door
from ftslurm.errors import StateError, UsageError
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import Identity, Store
from ftslurm.model import record as rec
from ftslurm.model.folds.summary import summarise
from ftslurm.model.plain import to_plain
from ftslurm.report.measures import PHASES, JobOf, Measures, Pulse, measure, measures_in
from ftslurm.system.files import replace_file
from ftslurm.system.owner import Owner, start_as
from ftslurm.wrapper import all_ledgers as as_user
from ftslurm.wrapper.all_ledgers import jobs_in
from ftslurm.wrapper.exposition import JOB, JOBS, NAMES, exposition
from ftslurm.wrapper.metrics import MODE, TextFile, file_of, sweep
from tests.cli.test_ftrun import command

RUN = rec.RunBegan(100.0, "r", "7", "c", 0, "k", "train.py", "n[1-2]", budgets={"max_restarts": 8, "crash_restarts": 0})
RECORDS: tuple[rec.Record, ...] = (
    RUN,
    rec.AttemptBegan(105.0, "r", 1, 0, "k", 1, "n[1-2]", 16),
    rec.FaultSeen(200.0, "n2", "0.0", "80E01801", "HBM", "isolate"),
    rec.FaultSeen(201.0, "n2", "0.0", "x", "?", "a class of nobody's\n"),
    rec.TroubleSeen(205.0, 1, "device", "n2 0.0 is broken"),
    rec.AttemptEnded(225.0, 1),
    rec.Decided(
        227.0, "r-1", 1, "isolated-requeue", "device", "why", isolate={"n2": "80E01801"}, exclude=("n2",), cost="max_restarts"
    ),
    rec.Finished(230.0, "r", 75, "requeued"),
    rec.RunBegan(260.0, "s", "7", "c", 1, "k", "train.py", "n[1,3]", budgets={"max_restarts": 8}),
    rec.AttemptBegan(264.0, "s", 2, 1, "k", 1, "n[1,3]", 16),
    rec.ProgramSaid(300.0, 2, 0, "message", "half way"),
    rec.HangSeen(320.0, 2, "stall", "they stand still"),
    rec.RunBegan(400.0, "t", "7", "c", 2, "k", "train.py", "n[1,3]", budgets={"max_restarts": 8}),
)


def names() -> dict[str, tuple[str, ...]]:
    """Each metric's name in a query, with its labels."""
    own = {f"{name}_total" if kind is CounterMetricFamily else name: (*JOB, *more) for name, kind, _, more, _ in NAMES}
    return {**own, JOBS: ("cluster", "user", "state")}


def measured(records: tuple[rec.Record, ...] = RECORDS, now: float = 500.0) -> Measures:
    job = summarise(records)
    assert job is not None
    return measure(records, job, now)


def test_what_is_counted() -> None:
    m = measured()
    assert (m.attempts, m.schedulings, m.tasks, m.excluded, m.messages, m.nodes) == (2, 3, 16, 1, 1, 2)
    assert m.restarts == (("isolated-requeue", "device", 1), ("requeue-by-slurm", "outside", 1))
    assert m.faults == {"isolate": 1, "other": 1} and m.hangs == {"stall": 1} and m.budgets == {"max_restarts": 7}
    assert m.seconds == {
        "starting": 5 + 4 + 100, "training": 100, "unknown": 136, "stopping": 20, "deciding": 2, "waiting": 33,
    }  # fmt: skip
    assert sum(m.seconds.values()) == 400 and m.seconds.keys() <= {*PHASES}


def test_a_job_that_is_over_takes_no_more_time() -> None:
    done = (*RECORDS[:2], rec.Finished(110.0, "r", 0, "ended"))
    assert measured(done).seconds == {"starting": 5, "training": 5}


def test_prometheus_reads_it_back_and_every_name_is_of_the_list() -> None:
    pulse = Pulse(40, 499.0, 16, 1200)
    found = {family.name: family for family in parse(exposition([JobOf("me", measured(), pulse)]))}
    for family in found.values():
        assert family.documentation.endswith(".") and family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert {*sample.labels} == {*names()[sample.name]}
            assert not re.search(r"_(ms|minutes|hours|percent)(_|$)", sample.name), "base units"
    assert {sample.name for family in found.values() for sample in family.samples} == names().keys()
    (beats,) = found["ftslurm_job_beats"].samples
    assert beats.value == 40 and beats.labels == {"cluster": "c", "user": "me", "job_id": "7"}
    restarts = {(s.labels["rung"], s.labels["cause"]): s.value for s in found["ftslurm_job_restarts"].samples}
    assert restarts == {("isolated-requeue", "device"): 1.0, ("requeue-by-slurm", "outside"): 1.0}


def test_a_thousand_failures_make_no_series_more() -> None:
    many = tuple(
        rec.Decided(300.0 + n, f"r-{n}", 1, f"rung {n}", f"cause {n}", "why", isolate={f"n{n}": "x"}) for n in range(1000)
    )  # fmt: skip
    assert len(exposition([JobOf("me", measured((*RECORDS, *many)))]).splitlines()) < 80


def test_what_another_user_s_ledgers_say_is_bounded() -> None:
    good = measured()
    job, body = list(summarise(RECORDS) or ()), to_plain(good)
    assert [measures for _, measures in jobs_in(json.dumps([[job, body]] * 2).encode())] == [good, good]
    for wrong in (
        {"job": "a\nb"},
        {"attempts": -1},
        {"attempts": 1e300},
        {"seconds": []},
        {"restarts": 3},
        {"cluster": ""},
        {"at": "1"},
    ):
        assert measures_in(body | wrong) is None
    rows = [["a", "b", 1]] * 99 + [["shrink", "other", 1]] * 99  # two lines of the same labels would break the whole page
    odd = measures_in(body | {"state": "}", "restarts": rows, "seconds": {"x": 1}})
    assert odd is not None and odd.state == "other" and odd.restarts == (("shrink", "other", 1),) and odd.seconds == {}
    for wrong in (b"[", b"7", b"[[[[", b"[7]", b"[[7]]", b"[[7, 8]]", json.dumps([[job[1:], body]]).encode()):
        assert jobs_in(wrong) == []


# --- the file for node_exporter


def test_the_file_is_replaced_whole_by_a_name_nobody_can_lay(tmp_path: Path) -> None:
    path = file_of(tmp_path, 1000, "c/../x", "7")
    assert path.parent == tmp_path and path.name == "ftslurm-1000-c----x-7.prom"
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path.symlink_to(victim)
    replace_file(path, b"one\n", MODE)
    assert victim.read_text() == "mine" and not path.is_symlink() and path.read_text() == "one\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 and sorted(p.name for p in tmp_path.iterdir()) == [path.name, "victim"]


def test_what_nobody_writes_any_more_is_removed(tmp_path: Path) -> None:
    old, young, other = (file_of(tmp_path, user, "c", job) for user, job in ((os.getuid(), "1"), (os.getuid(), "2"), (77, "3")))
    for path in (old, young, other):
        path.write_text("")
    for path in (old, other):
        os.utime(path, (100.0, 100.0))
    young_at = young.stat().st_mtime
    sweep(tmp_path, os.getuid(), young_at + 1)
    assert not old.exists() and young.exists() and other.exists()


def test_it_is_written_at_once_and_at_the_end_or_removed(tmp_path: Path) -> None:
    said: list[str] = []
    texts = iter(["began\n", "ended\n", "again\n"])
    file = TextFile(tmp_path / "a.prom", lambda: next(texts), said.append)
    file.end(remove=False)
    assert (tmp_path / "a.prom").read_text() == "ended\n"
    TextFile(tmp_path / "a.prom", lambda: next(texts), said.append).end(remove=True)
    assert not (tmp_path / "a.prom").exists() and said == []
    TextFile(tmp_path / "no" / "a.prom", lambda: "", said.append).end(remove=False)
    assert len(said) == 1 and "cannot be written" in said[0] and "No such file" in said[0]


def test_a_job_writes_its_file_and_ends_as_it_would_without(tmp_path: Path) -> None:
    folder = tmp_path / "prom"
    folder.mkdir()
    argv = ("--ft-launcher", "local", "-n2", "sh", "-c", "[ $FTSLURM_ATTEMPT = 2 ]")
    done = command("ftslurm", *argv, home=tmp_path, FTRUN_METRICS_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    (path,) = folder.iterdir()
    seen = {sample.name: sample for family in parse(path.read_text()) for sample in family.samples}
    assert seen["ftslurm_job_state"].labels["state"] == "completed" and seen["ftslurm_job_attempts_total"].value == 2
    assert seen["ftslurm_job_restarts_total"].labels["rung"] == "in-place-restart"


# --- the door


def ledger(home: Path, job: str) -> Journal:
    journal, _ = Store(home / ".ftslurm").open(Identity("c", job, 0, 0, ""))
    return journal


def test_the_door_tells_of_all_jobs_or_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("FTSLURM_STATE_DIR", raising=False)
    over = rec.Finished(time.time() - 2 * 86400, "r", 0, "ended")
    ledger(tmp_path, "7").append(RECORDS)
    ledger(tmp_path, "8").append([rec.RunBegan(100.0, "r", "8", "c", 0, "k", "x", "n1"), over])

    def jobs(*argv: str) -> set[str]:
        done = CliRunner().invoke(door, argv)
        assert done.exception is None, done.exception
        return {
            sample.labels["job_id"] for family in parse(done.stdout) for sample in family.samples if "job_id" in sample.labels
        }

    assert jobs() == {"7"} and jobs("--since", "3d") == {"7", "8"} and jobs("8") == {"8"} and jobs("--limit", "1") == {"7"}
    assert isinstance(CliRunner().invoke(door, ["--since", "x"]).exception, UsageError)
    assert isinstance(CliRunner().invoke(door, ["--all-users", "7"]).exception, UsageError)


def test_what_a_user_s_program_says_is_cut_off_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Owner(os.geteuid(), os.getegid(), "root" if os.geteuid() == 0 else "me", tmp_path)
    monkeypatch.setattr(as_user, "people", lambda first, also=(): [me])

    def ask(program: str, limit_s: float = 60.0, limit: int = 1000) -> bytes | str:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{program}\n")
        script.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(script))
            ((_, said),) = as_user.asked_of_all(0, ["{home}"], "jobs", (0, 1), limit_s, limit)
        return said if isinstance(said, bytes) else str(said)

    assert ask("printf 'x\\nwhole\\n'") == b"x"
    assert "more than" in ask("head -c 2000 /dev/zero; printf '\\nwhole\\n'")
    assert ask("printf 'x\\033[2J'") == "x?[2J" and "nothing can be read" in ask("exit 3")
    began = time.monotonic()
    assert "has not ended" in ask("while :; do :; done", 0.3) and time.monotonic() - began < 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become others")
def test_what_is_read_for_a_user_is_read_with_the_user_s_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = Owner(65534, 65534, "nobody", Path("/nowhere"))
    monkeypatch.setenv("ROOTS_TOKEN", "a secret")
    group = start_as(nobody, ["sh", "-c", "id -u; id -g; id -G; tty; env; ls -l /proc/self/fd; cat /etc/shadow"], 10_000)
    assert group.has_ended(60.0)
    told = group.end().stdout
    assert told.startswith("65534\n65534\n65534\nnot a tty\n") and "ROOTS_TOKEN" not in told and "Permission denied" in told
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1)
        with pytest.raises(StateError, match="only root"):
            start_as(nobody, ["id"], 100)


def test_a_user_who_tells_of_a_job_twice_spoils_nobody_s_metrics() -> None:
    """The collector drops a file in which a series stands twice."""
    hers = [measured(now=time.time())] * 2
    shown = exposition([JobOf(user, each) for user in ("ann", "eve") for each in hers])
    series = [(sample.name, *sorted(sample.labels.items())) for family in parse(shown) for sample in family.samples]
    assert (
        len(hers) == 2
        and len(series) == len(set(series))
        and {"ann", "eve"} == {dict(one[1:]).get("user", "ann") for one in series}
    )


# --- the dashboard

BOARD = json.loads((Path(__file__).parents[2] / "monitoring" / "grafana-dashboard.json").read_text())


def queries() -> list[str]:
    asked = [variable["query"]["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"]
    return [*asked, *(target["expr"] for panel in BOARD["panels"] for target in panel["targets"])]


def test_the_dashboard_asks_for_what_there_is() -> None:
    known = names()
    asked: set[str] = set()
    for query in queries():
        metrics = re.findall(r"\bftslurm_\w+", query)
        assert metrics and {*metrics} <= known.keys(), query
        labels = {label for metric in metrics for label in known[metric]}
        used = {*re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)}
        used |= {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        assert used <= labels, query
        asked |= {*metrics}
    assert {
        "ftslurm_job_restarts_total",
        "ftslurm_job_phase_seconds",
        "ftslurm_job_beats_total",
        "ftslurm_job_excluded_nodes",
    } <= asked
    named = {
        label
        for panel in BOARD["panels"]
        for target in panel["targets"]
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"])
    }
    assert named <= {label for labels in known.values() for label in labels}


ALERTS = Path(__file__).parents[2] / "monitoring" / "alerts.yaml"


def test_the_alerts_ask_for_what_there_is() -> None:
    assert {*re.findall(r"\bftslurm_\w+", ALERTS.read_text())} <= names().keys()


PROMTOOL = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.defpath}:{os.environ['PATH']}")


@pytest.mark.skipif(PROMTOOL is None and os.getuid() != 0, reason="no promtool (Debian's package prometheus)")
def test_prometheus_itself_takes_the_alerts() -> None:
    for words in (("check", "rules", str(ALERTS)), ("test", "rules", str(ALERTS.with_name("alerts.test.yaml")))):
        assert PROMTOOL is not None, "tools/setup test VENV brings promtool"
        done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert BOARD["schemaVersion"] >= 36 and BOARD["title"] and BOARD["uid"] and "id" not in BOARD
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}" and all(
            t["datasource"] == panel["datasource"] for t in panel["targets"]
        )
        grid = panel["gridPos"]
        cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert not cells & taken and grid["x"] + grid["w"] <= 24
        taken |= cells

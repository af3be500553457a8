"""Real jobs, played again: what happened in them is what a simulation under their own policy says, and their ledgers tell no more
than they know. `tests/recorded/ledgers` holds jobs of the local launcher: ranks that wait for each other at each step of 0.1 s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftslurm.cli.ftslurm import group, main
from ftslurm.config.settings_files import profile_layers, profile_names
from ftslurm.errors import FtslurmError, UsageError
from ftslurm.ledger.journal import Journal, to_line
from ftslurm.model import record as rec
from ftslurm.model.settings.tree import Settings, as_policy, resolve, settings_told
from ftslurm.simulation.clockwork import TimePart
from ftslurm.simulation.command import PlayAsked, replay
from ftslurm.simulation.past import Replayed, past
from ftslurm.simulation.show import as_replay
from ftslurm.simulation.trace import FaultKind
from tests.docs.blocks import ROOT
from tests.report.ledgers import big_job, hostile

RECORDED = ROOT / "tests" / "recorded" / "ledgers"
REAL = {"1": "in-place-restart", "2": "node-replacement", "3": "unconditional-requeue", "4": "isolated-requeue"}
# Agents read the steps of their ranks once a second, so a ledger knows no better when work began to be new.
STEPS_S = 1.0
# Of all else: whole seconds of a real job are milliseconds of waiting for processes.
REST_S = 0.15


def records_of(job: str) -> tuple[rec.Record, ...]:
    return Journal(RECORDED / f"local.{job}.jsonl").read().records


def played(records: Sequence[rec.Record], *others: str, job: Sequence[str] = ()) -> Replayed:
    (found,) = replay(PlayAsked(others=tuple(others), job=tuple(job)), [past(records, records[-1].at)], {})
    assert sum(found.past.truth.parts.values()) == pytest.approx(found.past.truth.wall_s)
    return found


@pytest.mark.parametrize("job", REAL)
def test_a_real_job_played_under_its_own_policy_is_what_happened(job: str) -> None:
    was = past(records_of(job), 0.0)
    assert was.settings is not None
    (found,) = replay(PlayAsked(job=("tasks_per_node=1",)), [was], {})
    truth, same = found.past.truth, found.outcomes[0]
    assert [rung for one in truth.faults for rung, _ in one.answers] == [REAL[job]] == list(truth.rungs)
    assert [rung for one in same.faults for rung, _ in one.answers] == [REAL[job]]
    assert (same.ended, same.starts, same.requeues, same.excluded) == (
        truth.ended, truth.starts, truth.requeues, truth.excluded,
    )  # fmt: skip
    assert (
        same.budgets == {name: same.budgets[name] for name in truth.budgets}
        and same.budgets["max_restarts"] == (truth.budgets["max_restarts"])
    )
    for part in TimePart:
        limit = STEPS_S if part in (TimePart.REDONE, TimePart.STARTING) else REST_S
        assert same.parts[part] == pytest.approx(truth.parts[part], abs=limit), part
    assert same.at == pytest.approx(truth.at, abs=STEPS_S)


def test_restarts_of_the_whole_job_count_in_what_happened() -> None:
    limited = [
        replace(each, budgets={"max_job_restarts": 5}) if isinstance(each, rec.RunBegan) else each for each in records_of("3")
    ]
    assert past(limited, 0.0).truth.budgets == {"max_job_restarts": (4, 5)}


def test_the_example_of_the_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "simulating.md").read_text()
    shown = re.findall(r"```text\n(.*?)```", text, re.DOTALL)[1]
    told_now = run(state(tmp_path, monkeypatch), "--from-job", "4", "--with", "spare:nodes.spares=1")
    assert told_now == shown and max(map(len, told_now.splitlines())) <= 60


def test_a_big_job_with_an_outage_of_every_kind() -> None:
    found = played(big_job(), "hangs:rungs.hang-restart.enabled=true", job=["tasks_per_node=1"])
    truth = found.past.truth
    assert [(one.fault.kind, [rung for rung, _ in one.answers]) for one in truth.faults] == [
        (FaultKind.DEVICE, ["in-place-restart"]), (FaultKind.CRASH, ["in-place-restart"]), (FaultKind.HANG, ["node-replacement"]),
        (FaultKind.CRASH, ["isolated-requeue"]), (FaultKind.CRASH, ["unconditional-requeue"]),
    ]  # fmt: skip
    assert found.trace.names[0] == "n1" and found.trace.plan.nodes == 64
    assert [one.hit for one in found.outcomes[0].faults] == [True] * 5
    text = as_replay([found])
    assert "not node-replacement: switched off" in text and "which" not in text.partition("What is not known")[0]
    assert "Kept by in force, hangs, though the job left it: n12." in " ".join(text.split())
    assert "The ledger does not hold the job's policy. It had node_replacements 2, not 0." in " ".join(text.split())


def old(record: rec.Record) -> rec.Record:
    """As versions before wrote it: without what has been added."""
    news = {"settings", "launched", "since", "stopped", "reason", "dead", "batch_node", "started", "launcher", "start_time"}
    changes = {one.name: type(getattr(record, one.name))() for one in fields(record) if one.name in news}
    return replace(record, **changes)


def test_an_older_ledger_says_less_and_is_played() -> None:
    for job, rung in REAL.items():
        found = played([old(record) for record in records_of(job)])
        assert list(found.past.truth.rungs) == [rung] and found.past.settings is None
        assert [outcome.name for outcome in found.outcomes] == ["in force"] and found.outcomes[0].ended == "completed"
        assert any("does not hold the job's policy" in note for note in found.notes)
        assert any("assumed" in note for note in found.notes)


def test_every_beginning_of_a_ledger_can_be_read() -> None:
    whole = big_job()
    for size in range(1, len(whole)):
        try:
            found = past(whole[:size], whole[size - 1].at + 60.0)
        except UsageError:
            assert not any(isinstance(record, rec.AttemptBegan) for record in whole[:size])
            continue
        assert sum(found.truth.parts.values()) == pytest.approx(found.truth.wall_s)


def crashing(times: int) -> list[rec.Record]:
    """Five seconds after each start."""
    run = rec.RunBegan(1000.0, "r0", "7", "c", 0, "k", "train", "n[1-2]", launcher="srun")
    records: list[rec.Record] = [run]
    at = 1001.0
    for number in range(1, times + 1):
        what = "rank 1 on n2 exited with status 3"
        records += [
            rec.AttemptBegan(at, f"r{number - 1}", number, number - 1, "k", number, "n[1-2]", 2, launched=at - 0.5),
            rec.TroubleSeen(at + 5, number, "crash", what),
            rec.AttemptEnded(at + 5.5, number, {"exited with status 3": 1}, stopped=at + 5.2),
            rec.Diagnosed(at + 6, number, "exit 3", "unknown", "unknown", "weak", what, rank=1),
        ]
        last = number == times
        rung, what = ("fail", "the job fails") if last else ("unconditional-requeue", "requeued")
        records.append(rec.Decided(at + 6, f"d{number}", number, rung, "crash", what, status=3))
        records.append(rec.Finished(at + 6, f"r{number - 1}", 3 if last else 75, what))
        at += 20
        if not last:
            records.append(replace(run, at=at - 1, run=f"r{number}", schedule=number))
    return records


def test_crashes_come_as_long_after_each_start_as_they_did() -> None:
    asked = PlayAsked(
        others=("patient:rungs.unconditional-requeue.in_a_row=8",), job=("requeue=200s", "program_start=1s"),
    )  # fmt: skip
    (found,) = replay(asked, [past(crashing(4), 1066.0)], {"FTRUN_IN_PLACE_RESTART_CRASH_RESTARTS": "0"})
    truth, in_force, patient = found.past.truth, found.outcomes[0], found.outcomes[1]
    assert truth.ended == in_force.ended == "failed" and truth.rungs == in_force.rungs
    assert [one.hit for one in patient.faults] == [True] * 4 and patient.ended == "trains"
    gaps = [later.at - one.at for one, later in zip(patient.faults, patient.faults[1:], strict=False)]
    assert all(gap > 200 for gap in gaps), "the real ones came every 20 s, while this job waits in the queue"
    assert "patient: unconditional-requeue" in as_replay([found])


@pytest.mark.parametrize("profile", profile_names())
def test_the_policy_in_a_ledger_is_the_policy(profile: str) -> None:
    settings = resolve(profile_layers(profile, "here")).settings
    assert settings_told(as_policy(settings)) == (settings, ())


def test_a_policy_is_told_without_secrets_and_a_later_one_is_not_guessed() -> None:
    assert as_policy(Settings()) == {"max_restarts": "8"}
    assert settings_told({"max_restarts": "3", "from.tomorrow": "1"}) == (Settings(max_restarts=3), ("from.tomorrow",))
    assert settings_told({"max_restarts": "many"})[1] == ("max_restarts",)


# --- the command


def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "state" / "jobs").mkdir(parents=True)
    for path in RECORDED.iterdir():
        (tmp_path / "state" / "jobs" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


def run(_: Path, *words: str) -> str:
    found = CliRunner().invoke(group, ["simulate", *words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def test_several_jobs_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = state(tmp_path, monkeypatch)
    whole = run(here, "--from-job", "all")
    assert whole.startswith("4 jobs together") and whole.count("\njob ") == 4
    assert whole == run(here, "--from-job", "state") == run(here, *(w for job in "1234" for w in ("--from-job", job)))
    assert max(map(len, whole.splitlines())) <= 60
    found = json.loads(run(here, "--from-job", "1", "--from-job", "state/jobs/local.3.jsonl", "--json"))
    assert [one["job"] for one in found["jobs"]] == ["1", "3"]
    first = found["jobs"][0]
    assert first["truth"]["rungs"] == first["policies"][0]["rungs"] == {"in-place-restart": 1}
    assert first["measured"]["heal_s"] == 1 and first["plan"]["heal_s"] < 1 and first["unknown"]


def test_what_an_enemy_has_written_is_refused_or_shown_without_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = state(tmp_path, monkeypatch)
    words = {rec.Decided: ("why", "reason"), rec.TroubleSeen: ("what",), rec.Diagnosed: ("signature", "what", "node")}
    for number, ledger in enumerate((hostile(big_job()), hostile(records_of("4")), records_of("4"))):
        lines = [
            replace(record, **dict.fromkeys(words.get(type(record), ()), "\x1b]0;pwned\x07 on n1")) if number == 2 else record
            for record in ledger
        ]
        (here / "jobs" / "c.77.jsonl").write_bytes(b"".join(to_line(record) for record in lines))
        found = CliRunner().invoke(group, ["simulate", "--from-job", "77", "--job", "tasks_per_node=1"])
        assert found.exit_code == 0 if number == 2 else isinstance(found.exception, FtslurmError | SystemExit)
        assert "\x1b" not in found.output and "\x07" not in found.output


def test_a_ledger_that_cannot_be_played_is_left_out_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = state(tmp_path, monkeypatch)
    (here / "jobs" / "local.9.jsonl").write_text("nonsense\n")
    found = CliRunner().invoke(group, ["simulate", "--from-job", "all"], catch_exceptions=False)
    assert (
        found.exit_code == 0
        and "4 jobs together" in found.stdout
        and "job local.9: " in found.stderr
        and ": skipped" in found.stderr
    )


@pytest.mark.parametrize(("words", "status", "told_"), [
    (("--from-job", "77"), 66, "no ledger of job 77"),
    (("--from-job", "no/such"), 66, "there is no ledger no/such"),
    (("--from-job", "9"), 64, "its ledger is empty"),
    (("--from-job", "1", "--random", "crash=1"), 64, "goes without TRACE"),
    (("--from-job", "1", "t.yaml"), 64, "goes without TRACE"),
    (("--from-job", "4", "--job", "nodes=1", "--job", "other_nodes=0"), 65, "there is no local2"),
    (("--from-job", "1", "--set", "mode=async"), 64, "cannot be simulated"),
])  # fmt: skip
def test_bad_input(
    words: tuple[str, ...], status: int, told_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    here = state(tmp_path, monkeypatch)
    (here / "jobs" / "local.9.jsonl").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    shown = capsys.readouterr().err
    assert ended.value.code == status and told_ in shown and "Traceback" not in shown

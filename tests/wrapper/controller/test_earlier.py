"""What ftrun finds of the one before it in the same job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.model.decisions import TellOthers
from ftslurm.model.folds.node_memory import NodeLeft, NodeReinstated
from ftslurm.model.record import RunBegan
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.phases import RunFacts
from ftslurm.sdk.page import start_ticks
from ftslurm.system.processes import pid_space
from ftslurm.wrapper.controller.facts import ftrun_is_gone, suspects, tell_others


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def began(process: subprocess.Popen[bytes]) -> RunBegan:
    run = RunBegan(0.0, "r", "7", "c", 0, "", "train", "n1", host=socket.gethostname(), pid=process.pid, pid_space=pid_space())
    return replace(run, started=start_ticks(process.pid) or 0)


def test_one_that_runs_is_not_gone_and_one_that_nobody_has_waited_for_is(process: subprocess.Popen[bytes]) -> None:
    run = began(process)
    assert run.started and not ftrun_is_gone(run) and not ftrun_is_gone(replace(run, started=0))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert ftrun_is_gone(run), "a zombie does nothing any more"
    process.wait()
    assert ftrun_is_gone(run)


def test_a_number_that_is_another_process_s_now_is_not_that_one(process: subprocess.Popen[bytes]) -> None:
    run = began(process)
    assert ftrun_is_gone(replace(run, started=run.started - 1))


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"pid_space": "pid:[1]"}])
def test_nobody_knows_of_one_elsewhere(elsewhere: dict[str, str], process: subprocess.Popen[bytes]) -> None:
    run = replace(began(process), **elsewhere)  # type: ignore[arg-type]
    process.kill()
    process.wait()
    assert not ftrun_is_gone(run)


def test_what_this_job_has_told_of_a_node_is_taken_back_when_it_is_reinstated(tmp_path: Path) -> None:
    memory, facts = NodeMemory(tmp_path / "state"), RunFacts("r", "7", "c", 0, "", "train", ("n1", "n2"))
    tell_others(memory, facts, TellOthers({"n1": "Slurm says DOWN"}))
    tell_others(memory, facts, TellOthers({}, ("n1", "n2")))
    assert [(type(told), told.node) for told in memory.read()] == [(NodeLeft, "n1"), (NodeReinstated, "n1")]


def test_a_memory_of_an_older_version_did_not_know_facts_from_words_and_counts_for_nothing(tmp_path: Path) -> None:
    memory = NodeMemory(tmp_path / "state")
    memory.add([NodeLeft(1.0, "c", "n1", "7", "Slurm says DOWN")])
    line = memory.path.read_text()
    memory.path.write_text(line.replace('"v":2', '"v":1') + line)
    assert len(memory.read()) == 1


def test_people_hear_that_a_memory_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    memory, facts = NodeMemory(tmp_path), RunFacts("r", "7", "c", 0, "", "train", ("n1",))
    memory.path.mkdir()
    assert suspects(memory, facts, Settings()) == {}
    assert "not a plain file: this job avoids no node that an earlier one excluded" in capfd.readouterr().err.replace(
        " (check its owner and rights)", ""
    )

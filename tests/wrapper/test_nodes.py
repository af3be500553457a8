"""Nodes that jobs left or that are drained for us: who, why, until when, and what a person can do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftslurm.catalogs.codes import CodeAsked
from ftslurm.cli.site import nodes as door
from ftslurm.config.catalog_files import load_code_book
from ftslurm.errors import UnknownJob, UsageError
from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.model.folds.node_memory import NodeLeft
from ftslurm.model.settings.tree import Settings
from ftslurm.report.site import print_nodes
from ftslurm.slurm.parse import parse_nodes
from ftslurm.system.owner import Owner
from ftslurm.wrapper import all_ledgers as as_user
from ftslurm.wrapper import nodes as look
from tests.fakes.slurm import FakeSlurm

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm"
HBM = "80E3A201 (voltage scaling) on device 0.0 of n2"
ADVISE = look.adviser(Settings())


@pytest.mark.parametrize(("reason", "advice"), [
    ("XID 79 (GPU fell off the bus) on device 0 of n1", "a reboot of the node may help; if it comes back, have the hardware inspected"),
    ("ftslurm: kernel log: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU fell off", "a reboot of the node may help; if it comes back"),
    (HBM, "replace the device, if a reboot does not mend it"),
    ("80E01801 (HBM multi-bit ECC) on device 0.0 of n2", "nothing to do: a restart of the processes is enough"),
    ("80E01801 (HBM multi-bit ECC) on device 0.0 of n2, again and again", "reset the device while no job uses it"),
    (f"80E01801 (HBM) on device 0.0 of n2; {HBM}", "replace the device"),
    ("ftslurm: command: /scratch is not mounted, met by job 12", "mend what the site's health command complains about"),
    ("ftslurm: device: 7 of 8 ascend devices are there", "power-cycle the node"),
    ("ftslurm: kernel log: EXT4-fs error (device sda1)", "reboot the node"),
    ("Slurm says DOWN", "see whether it is up: power, network, slurmd"),
    ("the moon", ""),
])  # fmt: skip
def test_advice_is_the_catalogues(reason: str, advice: str) -> None:
    told = ADVISE(reason)
    assert told.startswith(advice) and bool(told) == bool(advice)


def test_words_that_look_like_codes_are_none() -> None:
    book = load_code_book()
    assert book.in_sentence("dead beef deadbeef on n2, 7 of 8 thermal devices, job 12345678x") == []
    assert set(book.in_sentence("80e3a201 and 80E3A201; Xid 79; GPU-LOST")) == {
        CodeAsked("ascend", "80E3A201"),
        CodeAsked("nvidia", "XID 79"),
        CodeAsked("nvidia", "GPU-LOST"),
        CodeAsked("amd", "GPU-LOST"),
    }


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_who_drained_a_node_and_when_is_read_from_slurm(release: str) -> None:
    views = {view.name: view for view in parse_nodes((RECORDED / release / "nodes.txt").read_text())}
    assert views["n2"].reason == "ftslurm: x  [y] z" and views["n2"].reason_by == "root" and views["n2"].reason_at > 1_795_000_000
    assert (views["n1"].reason_by, views["n1"].reason_at) == ("", 0)


def test_what_users_left_and_what_slurm_drained_meet_in_one_report(capsys: pytest.CaptureFixture[str]) -> None:
    views = parse_nodes((RECORDED / "22.05" / "nodes.txt").read_text())
    slurm = look.SlurmSays(
        "c", views, {"HealthCheckProgram": "/usr/local/lib/ftslurm/health_check", "HealthCheckInterval": "300 sec"}
    )
    told = {
        "ann": look.remembered([NodeLeft(5.0, "c", "n2", "7", HBM), NodeLeft(6.0, "c", "n2", "8", HBM)], 10.0, 100.0),
        "bob": look.remembered(
            [NodeLeft(7.0, "c", "n2", "9", "Slurm says DOWN"), NodeLeft(7.0, "c", "n4", "9", HBM)], 10.0, 100.0
        ),
    }
    two, four = look.reports(told, slurm, ADVISE)
    assert (two.node, two.state, two.reason, two.reason_by) == ("n2", "ALLOCATED+DRAIN", "ftslurm: x  [y] z", "root")
    assert [(by.user, by.jobs, by.suspect) for by in two.left] == [("bob", ("9",), False), ("ann", ("7", "8"), True)]
    assert two.comes_back == "as soon as the health check (every 300 s) finds it well"
    assert two.advice == "see whether it is up: power, network, slurmd; replace the device, if a reboot does not mend it"
    assert (four.node, four.reason) == (
        "n4",
        "bad chip State=IDLE",
    ) and four.comes_back == "when whoever took it out of service says so"
    print_nodes([two, four], with_users=True)
    shown = capsys.readouterr().out
    assert "n2 on c: allocated+drain, suspect\n" in shown and "excluded by  ann: 7, 8\n" in shown
    by_hand = look.reports({}, look.SlurmSays("c", views, {}), ADVISE)
    assert [node.comes_back for node in by_hand] == ["by hand: scontrol update NodeName=n2 State=RESUME"]


def test_a_slurm_that_does_not_answer_is_told() -> None:
    slurm = FakeSlurm()
    slurm.away = True
    assert look.ask_slurm({}, slurm).silent


def test_a_set_of_nodes_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FTSLURM_STATE_DIR", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    now = look_now()
    NodeMemory(tmp_path / ".ftslurm").add([NodeLeft(now, "c", node, "7", HBM) for node in ("n1", "n2", "n3")])
    told = CliRunner().invoke(door, ["--clear", "n[1-2,9]"])
    assert told.stdout == "n[1-2]: forgotten, excluded by 7; no job had excluded n9\n"
    assert "n3 on c: excluded once\n" in CliRunner().invoke(door, []).stdout
    assert isinstance(CliRunner().invoke(door, ["--clear", "n1"]).exception, UnknownJob)
    assert isinstance(CliRunner().invoke(door, ["--clear", "n[1-"]).exception, UsageError)


def look_now() -> float:
    import time

    return time.time()


def test_root_sees_and_clears_what_everybody_s_jobs_remember(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = [Owner(os.geteuid(), os.getegid(), name, tmp_path / name) for name in ("ann", "bob", "eve")]
    monkeypatch.setattr(as_user, "people", lambda first, also=(): owners)
    monkeypatch.setattr(os, "geteuid", lambda: owners[0].user_id)
    now = look_now()
    for owner, nodes in zip(owners, (("n1", "n2"), ("n2",), ()), strict=True):
        owner.home.mkdir()
        if nodes:
            NodeMemory(owner.home / ".ftslurm").add([NodeLeft(now, "c", node, "7", HBM) for node in nodes])
    (owners[2].home / ".ftslurm").mkdir()
    os.mkfifo(owners[2].home / ".ftslurm" / "nodes.jsonl")  # would hold up whoever opens it
    heard: list[str] = []
    ledgers = ("{home}/.ftslurm",)
    told = look.of_all(ledgers, 1000, Settings(), now, heard.append)
    assert {user: [node.node for node in nodes] for user, nodes in told.items()} == {"ann": ["n1", "n2"], "bob": ["n2"]}
    assert len(heard) == 1 and heard[0].startswith("what jobs of eve remember cannot be read: ")
    if os.getuid() == 0:
        assert look.clear_for_all(ledgers, 1000, "n[2-3]", now) == ["ann", "bob"]
        assert list(look.of_all(ledgers, 1000, Settings(), now, heard.append)) == ["ann"]

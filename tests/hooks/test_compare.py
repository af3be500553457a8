"""`ftslurm install-hooks --check`: every node's hooks beside this machine's, with folders of their own for nodes of one machine."""

from __future__ import annotations

import re
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner

import ftslurm
from ftslurm.cli.ftslurm import group
from ftslurm.errors import UsageError
from ftslurm.hooks import install as compare
from ftslurm.hooks.scripts import KEYS, scripts
from ftslurm.slurm.client import NodeState, NodeView

# What stands for a login to a node: a node's files are below its name, n4's sshd is not there, and n5 answers no more.
LOGIN = """#!/bin/sh
echo "Welcome to $1"
case $1 in n4) echo "ssh: connect to host n4 port 22: Connection refused" >&2; exit 255 ;; n5) sleep 60 ;; esac
exec sh -c "$(printf '%s' "$2" | sed "s#/opt/hooks#{base}/$1/hooks#g; s#/etc/hooks.yaml#{base}/$1/hooks.yaml#g")" | sed "s#{base}/$1/hooks.yaml#/etc/hooks.yaml#; s#{base}/$1/hooks#/opt/hooks#"
"""
OLD = """#!/bin/sh
echo ftslurm 0.0.9
"""


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """n1 and n2 are as they should be, n3 lacks a script and has other settings, n6 starts another version, n7 has no hooks."""
    made = scripts("/opt/hooks", sys.executable, "/etc/hooks.yaml", "", "")
    old = tmp_path / "python-of-old"
    old.write_text(OLD)
    old.chmod(0o755)
    for node in ("n1", "n2", "n3", "n6", "ctl"):
        folder = tmp_path / node / "hooks"
        folder.mkdir(parents=True)
        for script in made:
            (folder / script.name).write_text(script.text.replace(sys.executable, str(old)) if node == "n6" else script.text)
    (tmp_path / "n3/hooks/epilog").unlink()
    (tmp_path / "n3/hooks.yaml").write_text("limit: 30s\n")

    class Slurm:
        def config(self) -> dict[str, str]:
            return {"SlurmctldHost[0]": "ctl(10.0.0.1)"}

        def nodes(self) -> tuple[NodeView, ...]:
            return tuple(NodeView(f"n{number}", NodeState.GOOD) for number in range(1, 8))

    monkeypatch.setattr(compare, "SlurmClient", Slurm)
    monkeypatch.setattr(compare, "ANSWER_S", 5.0)
    script = tmp_path / "login"
    script.write_text(LOGIN.format(base=tmp_path))
    script.chmod(0o755)
    return f"{script} %h"


def told(*argv: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(group, ["install-hooks", "/opt/hooks", "--config", "/etc/hooks.yaml", "--check", *argv])
    return done.exit_code, done.output.splitlines()


def test_each_node_stands_in_a_row_with_those_like_it(login: str) -> None:
    status, lines = told("--rsh", login)
    assert status == 1 and lines[0].startswith(f"compared with ftslurm {ftslurm.__version__} on ")
    rows = {row.split()[0]: " ".join(row.split()[1:]) for row in lines[2:]}
    assert rows["ctl,n[1-2]"] == f"equal {ftslurm.__version__} equal"
    assert re.fullmatch(rf"missing: epilog {re.escape(ftslurm.__version__)} only there \([0-9a-f]{{7}}\)", rows["n3"])
    assert rows["n4"] == "unknown: ssh: connect to host n4 port 22: Connection refused - -"
    assert rows["n5"] == "unknown: no answer in 5 s - -"
    assert rows["n6"] == f"differ: {', '.join(sorted(KEYS))} 0.0.9 equal"
    assert rows["n7"] == "none - -"
    assert lines[-1] == f"more than one version: {ftslurm.__version__} here, 0.0.9 there"


def test_only_the_nodes_that_are_asked_for(login: str) -> None:
    assert told("--rsh", login, "--nodes", "n[1-2]")[0] == 0
    with pytest.raises(UsageError, match="nothing stands for the node"):
        compare.compare_nodes(Path("/opt/hooks"), Path("/etc/hooks.yaml"), "", ["n1"], "ssh")


@pytest.mark.parametrize(("there", "row"), [
    ({"/h/prolog": "a", "/c": "x"}, compare.Row("equal", "1", "equal")),
    ({"/h/prolog": "b", "/c": "y"}, compare.Row("differ: prolog", "1", "differ (y)")),
    ({"/h/prolog": "a"}, compare.Row("equal", "1", "none there")),
    ({}, compare.Row("none", "-", "-")),
])  # fmt: skip
def test_two_machines(there: dict[str, str], row: compare.Row) -> None:
    assert compare.compared(compare.Hooks("1", {"/h/prolog": "a", "/c": "x"}), compare.Hooks("1", there), "/c") == row


def test_the_same_scripts_that_start_another_version_are_told() -> None:
    here = compare.Hooks("2", {"/h/prolog": "a"})
    assert compare.compared(here, compare.Hooks("1", here.sums), "/c").hooks == "start another version"
    assert compare.compared(here, compare.Hooks("", here.sums), "/c").hooks == "start a Python without ftslurm"


def test_an_answer_is_read_between_other_lines() -> None:
    digest = sha256(b"").hexdigest()
    assert compare.read_node_answer(f"motd\n{digest}  /h/prolog\nftslurm 0.1.0\n") == compare.Hooks(
        "0.1.0", {"/h/prolog": digest}
    )

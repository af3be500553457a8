"""What the search has found, in its smallest form."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ftslurm.config.settings_files import MAX_PLAIN_CHARS, policy_layers
from ftslurm.errors import PolicyError, SlurmUnavailable, UsageError
from ftslurm.launchers.placement import parse_multi_prog
from ftslurm.ledger.journal import from_line
from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.ledger.store import Store
from ftslurm.model.nodes import MOST_NODES, expand, fold_nodes
from ftslurm.slurm.parse import node_names, parse_job, parse_nodes, unix_time

RECORDED = Path(__file__).parents[1] / "recorded/slurm/24.11"

# --- node lists


@pytest.mark.parametrize(
    "text",
    [
        "n[0-9999999]",  # took minutes, and all memory
        "n[0-999999999999]",
        "n[1-9][1-9][1-9][1-9][1-9][1-9]",
        "n[1-60000],m[1-60000]",
        "n[" + "9" * 5000 + "-1]",
        "n[1-" + "9" * 5000 + "]",
    ],
)
def test_a_short_list_of_very_many_nodes_is_refused_before_it_is_unfolded(text: str) -> None:
    for read in (expand, node_names):
        with pytest.raises(UsageError):
            read(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1[9-10]", ("n19", "n110")),
        ("n[1-2]99999999999", ("n199999999999", "n299999999999")),
        ("n[1-2]0[09-10]", ("n1009", "n1010", "n2009", "n2010")),
        ("n[3,1]", ("n3", "n1")),
    ],
)
def test_names_are_those_of_scontrol_show_hostnames(text: str, names: tuple[str, ...]) -> None:
    """`n11[1-65536]`, 65,536 names, became more than a million, and took seconds."""
    assert expand(text) == names


def test_a_list_of_as_many_nodes_as_slurm_allows_is_unfolded() -> None:
    assert len(expand(f"n11[1-{MOST_NODES}]")) == MOST_NODES
    assert len(expand(f"r[1-256]c[1-{MOST_NODES // 256}]")) == MOST_NODES


@pytest.mark.parametrize(
    "text", ["@all,n1", "n1,@';touch x;'", "n[1-3]!n2", "n[1-9/2]", "n[1-3]&n2", "n[1-3]^n2", "n1,*", "n 1,n2"]
)
def test_what_clustershell_alone_would_take_for_a_list_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hands the names of groups to a shell as they are."""
    monkeypatch.setattr(subprocess, "Popen", _no_program)
    with pytest.raises(UsageError):
        expand(text)


@pytest.mark.parametrize(
    "odd", ["@all", "@';touch x;'", "n[1-", "[", "n[1-999999999]", "n1!n2", "²", "n,m", "n" * 300, "*", "a b"]
)
def test_names_of_a_damaged_ledger_are_printed_as_they_are(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", _no_program)
    assert fold_nodes([odd, "n1", "n2", ""]) == f"n[1-2],{odd}"


def _no_program(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a program was run")


# --- Slurm's answers


@pytest.mark.parametrize("number", ["٣", "9" * 30, "9" * 5000, "-1", "1_0", "+1"])
def test_a_number_that_slurm_does_not_print_is_none(number: str) -> None:
    text = (RECORDED / "job-running.txt").read_text()
    for key in ("Priority", "Restarts", "StartTime", "NumNodes"):
        begin, _, rest = text.partition(f"{key}=")
        changed = f"{begin}{key}={number} {rest.partition(' ')[2]}"
        with pytest.raises(SlurmUnavailable, match="cannot be read"):
            parse_job(changed, 1)
    with pytest.raises(ValueError):
        unix_time(number)


@pytest.mark.parametrize(
    "text", ["NodeName=", "NodeName= State=IDLE", "NodeName=\x1fn1 State=IDLE", "NodeName=n1\nNodeName= Reason=x"]
)
def test_a_node_without_a_name_is_no_node(text: str) -> None:
    with pytest.raises(SlurmUnavailable, match="no name"):
        parse_nodes(text)


# --- files of ours that were damaged


@pytest.mark.parametrize("at", ["NaN", "Infinity", "-Infinity", "1e300", "18446744073709551616", "1" + "0" * 400])
def test_a_record_of_no_time_is_kept_out(at: str) -> None:
    """`ftslurm report` ended with it."""
    assert from_line(f'{{"v":1,"kind":"Finished","at":{at},"run":"r","status":0,"what":"x"}}'.encode()) is None


def test_a_number_that_cannot_be_printed_once_it_has_grown_is_kept_out() -> None:
    assert from_line(b'{"v":1,"kind":"Finished","at":1,"run":"r","status":' + b"9" * 4300 + b',"what":"x"}') is None


LEFT = {"v": 2, "kind": "left", "at": 1.0, "cluster": "c", "node": "n1", "job": "7", "why": "x"}


@pytest.mark.parametrize(
    "change", [{"kind": []}, {"kind": {}}, {"at": True}, {"node": None}, {"node": 5}, {"cluster": ["c"]}, {"why": {}}, {"job": 7}]
)
def test_a_line_about_a_node_that_is_nearly_right_is_passed_over(tmp_path: Path, change: dict[str, Any]) -> None:
    lines = [json.dumps({**LEFT, **change}), json.dumps(LEFT)]
    (tmp_path / "nodes.jsonl").write_text("\n".join(lines))
    assert [record.node for record in NodeMemory(tmp_path).read()] == ["n1"]


@pytest.mark.parametrize("name", ["local.².jsonl", "local.٣.jsonl", "local.x.jsonl", "local..jsonl"])
def test_a_ledger_of_an_odd_name_is_no_local_job(tmp_path: Path, name: str) -> None:
    (tmp_path / "jobs").mkdir(mode=0o700)
    (tmp_path / "jobs" / name).touch()
    number, _ = Store(tmp_path).new_local()
    assert number == 1


# --- what people write


@pytest.mark.parametrize("ranks", ["²", "٣", "9" * 5000, "0-" + "9" * 5000, "1-", "-1", "", "1,,2"])
def test_ranks_that_are_no_numbers_are_named_with_their_line(ranks: str) -> None:
    with pytest.raises(UsageError, match=r"^prog\.conf, line 1: "):
        parse_multi_prog(f"{ranks} ./a.out\n* b\n", "prog.conf", (), 2)


def complaint(tmp_path: Path, text: str) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError) as caught:
        policy_layers(path)
    return str(caught.value)


def chain(first: str, template: str, count: int) -> str:
    lines = [template.format(here=f"&a{number}", one=f"*a{number - 1}") for number in range(1, count)]
    return "\n".join([f"k0: &a0 {first}", *(f"k{number}: {line}" for number, line in enumerate(lines, 1))])


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        chain("[x, x]", "{here} [{one}, {one}, {one}, {one}]", 40),
        chain("{p: 1}", "{here} {{p: {one}, q: {one}, r: {one}}}", 40),
        chain("{p: 1}", "{here} {{<<: [{one}, {one}, {one}]}}", 40),
        "k: &a " + "x" * 2000 + "\nmax_restarts: [" + "*a, " * 1000 + "*a]",
        "k: &a [*a, *a]",
        "k: &a {p: *a, q: *a}",
    ],
    ids=["lists", "tables", "merged", "words", "itself", "itself, a table"],
)
def test_aliases_that_stand_for_more_than_a_policy_may_hold_are_refused(tmp_path: Path, text: str) -> None:
    assert "with its aliases written out" in complaint(tmp_path, text) or "recursion depth" in complaint(tmp_path, text)


def test_aliases_are_read_where_they_stand_for_little(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "stop: &s\n  grace: &g 5s\n  kill_wait: *g\nrungs:\n  hang-restart: {enabled: &y yes}\n  node-replacement: {enabled: *y}\n"
    )
    (layer,) = policy_layers(path)
    assert layer.values["stop.kill_wait"] == "5s" and layer.values["rungs.node-replacement.enabled"] is True


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["1" + ":1" * 400_000, "x" * (MAX_PLAIN_CHARS + 1), "0x" + "f" * 5000])
def test_a_value_of_no_end_is_refused_unread(tmp_path: Path, text: str) -> None:
    """YAML takes the first for a number to the base of 60, and needs minutes to count it together."""
    assert ", line 2: a value of more than" in complaint(tmp_path, f"launcher: auto\nmax_restarts: {text}\n")


@pytest.mark.parametrize(
    "value",
    [
        '!!int ""',
        '!!float ""',
        "!!bool maybe",
        "!!timestamp soon",
        "1" + ":1" * 300 + ".5",
        "0x" + "f" * 2000,
        "2026-13-45",
        "[" * 100_000,
    ],
)
def test_a_value_that_yaml_s_reader_chokes_on_is_named(tmp_path: Path, value: str) -> None:
    assert complaint(tmp_path, f"launcher: auto\nmax_restarts: {value}\n").startswith(str(tmp_path))


def test_a_profile_that_is_merged_in_is_a_profile(tmp_path: Path) -> None:
    """It has no line of its own."""
    assert ", line 1: there is no profile `modelart`" in complaint(tmp_path, "<<: {profile: modelart}\n")

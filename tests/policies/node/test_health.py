"""What is found on a node, what it means, and what the health check does about it."""

from __future__ import annotations

import pytest

from ftslurm.model.devices import CodeMeaning, DeviceHealth, DeviceReport, FaultClass, ProbeAnswer, Severity
from ftslurm.policies.node import (
    MAX_REASON_CHARS,
    Drain,
    Leave,
    NodeFinding,
    NodeHealth,
    NodeVerdict,
    Undrain,
    command_finding,
    device_findings,
    drain_reason,
    judge,
    missing_kinds,
    next_step,
    turned_away,
)

GOOD, BAD, UNKNOWN = NodeHealth.GOOD, NodeHealth.BAD, NodeHealth.UNKNOWN
OURS = "ftslurm: command: fan"


def meaning(kind: str, code: str, severity: Severity) -> CodeMeaning:
    classes = {"DEAD": FaultClass.ISOLATE, "USER": FaultClass.ISOLATE, "HEALS": FaultClass.SELF_HEALING}
    return CodeMeaning(code, "name", classes.get(code, FaultClass.UNKNOWN), user_induced=code == "USER")


def report(*codes: str, health: DeviceHealth = DeviceHealth.FAULTY) -> ProbeAnswer:
    return ProbeAnswer((DeviceReport("0.0", "ascend", health, codes=codes),))


@pytest.mark.parametrize(
    ("said", "health"),
    [
        ([], GOOD),
        ([GOOD, GOOD], GOOD),
        ([GOOD, UNKNOWN], UNKNOWN),
        ([UNKNOWN, BAD, GOOD], BAD),
    ],
)
def test_one_proof_is_enough_and_a_doubt_is_none(said: list[NodeHealth], health: NodeHealth) -> None:
    assert judge(NodeFinding("x", each, "y") for each in said).health is health


@pytest.mark.parametrize(
    ("answer", "expected", "health"),
    [
        (ProbeAnswer(error="the tool hangs"), 8, UNKNOWN),
        (report("DEAD"), 0, BAD),
        (report("USER"), 0, GOOD),
        (report("HEALS"), 0, GOOD),
        (report("NEW"), 0, GOOD),
        (report(health=DeviceHealth.UNKNOWN), 0, UNKNOWN),
        (report(health=DeviceHealth.GOOD), 1, GOOD),
        (report(health=DeviceHealth.GOOD), 2, BAD),
        (ProbeAnswer(), 1, BAD),
        (ProbeAnswer(report("HEALS").reports + report("NEW").reports), 2, BAD),  # two reports of one device
    ],
)
def test_devices(answer: ProbeAnswer, expected: int, health: NodeHealth) -> None:
    assert judge(device_findings("ascend", answer, expected, meaning)).health is health


def test_a_tool_that_is_not_there_is_no_proof() -> None:
    assert judge(missing_kinds({"ascend": 8}, [])).health is UNKNOWN
    assert missing_kinds({"ascend": 8}, ["ascend"]) == ()


@pytest.mark.parametrize(
    ("status", "health"),
    [(0, GOOD), (1, BAD), (125, BAD), (126, UNKNOWN), (127, UNKNOWN), (137, UNKNOWN), (-9, UNKNOWN), (None, UNKNOWN)],
)
def test_the_site_s_command(status: int | None, health: NodeHealth) -> None:
    assert command_finding(status, "a\n\n  /scratch is gone \n", 9.0).health is health


def test_the_last_line_is_the_reason_whatever_stands_in_it() -> None:
    said = command_finding(3, "checking\nfan `reboot` $(x) \x1b[31m'stands'\n\n", 9.0)
    assert drain_reason(judge([said])) == "ftslurm: command: fan reboot (x) ?[31m stands"
    assert len(drain_reason(judge([command_finding(3, "x" * 9999, 9.0)]), "12345")) <= MAX_REASON_CHARS


def test_a_job_knows_the_node_that_its_own_prolog_drained() -> None:
    reason = drain_reason(NodeVerdict(BAD, "command: fan"), "12")
    assert turned_away(reason, "12")
    assert not turned_away(reason, "2") and not turned_away("new fan, met by job 12", "12")
    assert turned_away(drain_reason(NodeVerdict(BAD, "x" * 500), "12_3"), "12_3")


@pytest.mark.parametrize(
    ("health", "drained", "down", "reboots", "reason", "step"),
    [
        (BAD, False, False, False, "", Drain),
        (BAD, True, False, False, OURS, Leave),
        (BAD, True, False, False, "new fan", Leave),
        (BAD, False, True, False, "", Leave),
        (BAD, False, False, True, "", Drain),
        (GOOD, True, False, False, OURS, Undrain),
        (GOOD, True, False, False, "new fan", Leave),
        (GOOD, False, False, False, OURS, Leave),
        (GOOD, True, True, False, OURS, Leave),
        (GOOD, True, False, True, OURS, Leave),
        (UNKNOWN, True, False, False, OURS, Leave),
        (UNKNOWN, False, False, False, "", Leave),
    ],
)
def test_what_the_health_check_does(
    health: NodeHealth, drained: bool, down: bool, reboots: bool, reason: str, step: type
) -> None:
    assert type(next_step(NodeVerdict(health, "command: fan"), drained, down, reboots, reason)) is step

"""What an Epilog could not see to its end is remembered, and the next Prolog tries again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftslurm.errors import SlurmUnavailable
from ftslurm.hooks import leftovers, prolog
from ftslurm.hooks.hook_inputs import HookMemory, Memory, Unfinished
from ftslurm.hooks.node_look import Looked
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.policies.node import NodeFinding, NodeHealth
from ftslurm.system.remains import File
from tests.hooks.test_leftovers import ME, OTHER, SELF, Admin, Node

OWED = Unfinished(ME, "5")


class Silent(Admin):
    """slurmctld does not answer."""

    def __init__(self) -> None:
        super().__init__([])

    def jobs_on(self, node: str) -> Sequence[tuple[int, int, str]]:
        raise SlurmUnavailable("slurmctld does not answer")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    return Node(monkeypatch, tmp_path)


def memory(node: Node) -> Memory:
    return Memory(node.settings.state, "n1")


def owed(node: Node) -> tuple[Unfinished, ...]:
    return memory(node).read().unfinished


def begin_job(monkeypatch: pytest.MonkeyPatch, node: Node, admin: Admin, limit_s: float = 20.0) -> tuple[bool, str]:
    """The Prolog of job 7, on a node of which nothing else speaks."""
    monkeypatch.setattr(
        prolog, "look_at_node", lambda settings, name, known: Looked((NodeFinding("command", NodeHealth.GOOD),), known)
    )
    for module in (prolog, leftovers):
        monkeypatch.setattr(module, "SlurmAdmin", lambda timeout_s: admin)
    env = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1001"}
    return prolog.check(HookSettings(state=node.settings.state, limit_s=limit_s, kill_wait_s=0.0, kill_grace_s=0.0), env)


def test_what_stays_for_want_of_an_answer_is_cleared_by_the_next_prolog(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    node.looks, node.files = [[20]], (File("a", 1),)
    assert "which stay: slurmctld does not answer" in node.clear(Silent())
    assert owed(node) == (OWED,) and not node.ended
    node.looks = [[20], []]
    fit, said = begin_job(monkeypatch, node, Admin([]))
    assert fit and "good" in said and node.ended == [[20]] and node.removed == [File("a", 1)] and not owed(node)


def test_so_is_what_an_epilog_that_was_cut_off_left(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    def cut_off(*_: object) -> None:
        raise SystemExit(137)

    node.looks = [[20]]
    with monkeypatch.context() as killed:
        killed.setattr(leftovers.procs, "end_processes", cut_off)
        with pytest.raises(SystemExit):
            node.clear(Admin([SELF]))
    assert owed(node) == (OWED,)
    node.looks = [[20], []]
    begin_job(monkeypatch, node, Admin([]))
    assert node.ended == [[20]] and not owed(node)


def test_an_epilog_that_comes_to_its_end_leaves_nothing_to_remember(node: Node) -> None:
    node.looks = [[20], []]
    assert node.clear(Admin([SELF])).endswith("are gone") and not owed(node)


def test_a_later_epilog_that_finds_nothing_left_settles_it(node: Node) -> None:
    memory(node).change(HookMemory(memory(node).read().boot), HookMemory(memory(node).read().boot, unfinished=(OWED,)))
    node.looks = [[]]
    assert node.clear(Admin([SELF])) == "nothing was left" and not owed(node)


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        (Admin([OTHER]), "job 6 of the same user is here"),
        (Admin([SELF]), "job 5 of the same user is here"),  # its Epilog is still at it
        (Silent(), "slurmctld does not answer"),
    ],
)
def test_the_prolog_touches_no_user_who_has_a_job_here_and_says_what_stays(
    monkeypatch: pytest.MonkeyPatch, node: Node, jobs: Admin, why: str
) -> None:
    node.looks = [[20]]
    node.clear(Silent())
    fit, said = begin_job(monkeypatch, node, jobs)
    assert fit and f"unknown: leftover: 1 process, 0 files and 0 segments of shared memory of job 5 stay: {why}" in said
    assert not node.ended and owed(node) == (OWED,)


def test_a_prolog_without_time_leaves_it_to_the_next(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    node.looks = [[20]]
    node.clear(Silent())
    fit, said = begin_job(monkeypatch, node, Admin([]), limit_s=2.0)
    assert fit and "no time was left" in said and not node.ended and owed(node) == (OWED,)


def test_behind_its_time_it_does_not_even_look(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    node.looks = [[20]]
    node.clear(Silent())
    node.looks = [[]]
    begin_job(monkeypatch, node, Admin([]), limit_s=0.0)
    assert owed(node) == (OWED,)


def test_what_outlives_sigkill_turns_the_node_away_and_is_remembered(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    node.looks, node.stuck = [[20]], {20}
    node.clear(Silent())
    admin = Admin([])
    fit, said = begin_job(monkeypatch, node, admin)
    assert not fit and "process 20 (sleep) of job 5 outlives SIGKILL" in said
    assert admin.drained.endswith("outlives SIGKILL, met by job 7")
    now = memory(node).read()
    assert [process.pid for process in now.stuck] == [20] and now.drained and now.unfinished == (OWED,)


def test_a_site_that_wants_nothing_cleared_away_has_it_so(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    node.looks = [[20]]
    node.clear(Silent())
    settings = HookSettings(state=node.settings.state, leftovers=False)
    assert leftovers.try_again(settings, "n1", memory(node), owed(node), time.monotonic() + 60.0).findings == ()
    assert not node.ended

"""The Epilog's look at leftovers: as often as it takes, and with Slurm asked before each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ftslurm.hooks import epilog, leftovers
from ftslurm.hooks.hook_inputs import JobFacts
from ftslurm.model.exits import Process
from ftslurm.model.job import JobId
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.policies.node import LeftoversOf
from ftslurm.system.remains import File

ME = 1000
FACTS = JobFacts(JobId(5), ME, "c", "n1")
SELF, OTHER = (5, ME, "COMPLETING"), (6, ME, "RUNNING")


def process(pid: int) -> Process:
    return Process(pid, 1, ME, "sleep", float(pid))


class Admin:
    def __init__(self, *answers: Sequence[tuple[int, int, str]]) -> None:
        self.answers = list(answers)
        self.drained = ""
        self.slurms = 64030

    def jobs_on(self, node: str) -> Sequence[tuple[int, int, str]]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def slurm_user(self) -> int:
        return self.slurms

    def drain_unless_drained(self, node: str, reason: str, ours: str) -> None:
        self.drained = reason


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    return Node(monkeypatch, tmp_path)


class Node:
    """looks: the pids that each look finds; the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
        self.looks: list[list[int]] = [[]]
        self.files: tuple[File, ...] = ()
        self.ended: list[list[int]] = []
        self.removed: list[File] = []
        self.stuck: set[int] = set()
        self.of_a_user = False
        self.settings = HookSettings(state=str(state), leftovers_limit_s=30.0, kill_wait_s=0.0)
        monkeypatch.setattr(leftovers, "AGAIN_S", 0.0)
        monkeypatch.setattr(leftovers, "_end_at_one_stroke", self._end)
        monkeypatch.setattr(leftovers.procs, "stuck_among", lambda left: tuple(one for one in left if one.pid in self.stuck))
        monkeypatch.setattr(leftovers.procs, "all_processes", self._look)
        monkeypatch.setattr(leftovers.remains, "abort_fuse", lambda *_: 0)
        monkeypatch.setattr(leftovers.remains, "are_users_doing", lambda _: self.of_a_user)
        monkeypatch.setattr(leftovers.procs, "end_processes", lambda doomed, *_: self.ended.append([one.pid for one in doomed]))
        monkeypatch.setattr(leftovers.remains, "files_of", lambda user_id: self.files)
        monkeypatch.setattr(leftovers.remains, "segments_of", lambda user_id: ())
        monkeypatch.setattr(leftovers.remains, "remove_files", self._remove)

    def _look(self) -> Mapping[int, Process]:
        pids = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return {pid: process(pid) for pid in pids}

    def _end(self, whose: LeftoversOf) -> tuple[Process, ...]:
        """Gives what is there after it."""
        left = leftovers.rules.leftover_processes(self._look(), whose)
        if left:
            self.ended.append([one.pid for one in left])
        return left

    def _remove(self, files: Sequence[File], user_id: int, deadline: float) -> int:
        self.removed += files
        return len(files)

    def clear(self, admin: Admin) -> str:
        return leftovers.clear_leftovers(self.settings, FACTS, admin)  # type: ignore[arg-type]


def test_those_that_others_have_started_meanwhile_go_too(node: Node) -> None:
    node.looks, node.files = [[20], [21, 22], [23], []], (File("a", 1),)
    said = node.clear(Admin([SELF]))
    assert said.endswith("are gone") and node.ended == [[20], [21, 22], [23]] and node.removed == [File("a", 1)]


def test_what_outlives_it_all_in_uninterruptible_sleep_drains_the_node(node: Node) -> None:
    node.looks, node.stuck = [[20, 21], [20]], {20}
    admin = Admin([SELF])
    assert "process 20 (sleep) of job 5 outlives SIGKILL: drained" in node.clear(admin)
    assert admin.drained.startswith("ftslurm: leftover: process 20") and node.removed == []


def test_what_sleeps_because_of_a_user_drains_nothing(node: Node) -> None:
    node.looks, node.stuck, node.of_a_user = [[20]], {20}, True
    admin = Admin([SELF])
    assert "a file system or memory that a user's program serves" in node.clear(admin) and not admin.drained


@pytest.mark.parametrize("looks", [[[20], [20]], [[20], [21], [22], [23], [20, 24]]])
def test_no_user_drains_a_node_by_processes_that_are_merely_still_there(node: Node, looks: list[list[int]]) -> None:
    """New ones, or held by one who traces them: only uninterruptible sleep is proof."""
    node.looks, node.settings = looks, HookSettings(state=node.settings.state, leftovers_limit_s=0.5, kill_wait_s=0.0)
    admin = Admin([SELF])
    assert "none is proven to outlive SIGKILL" in node.clear(admin) and not admin.drained


def test_slurmuser_s_daemons_are_nobody_s_leftovers(node: Node) -> None:
    node.looks, node.files = [[20]], (File("a", 1),)
    admin = Admin([SELF])
    admin.slurms = ME
    assert "which stay: the user is SlurmUser" in node.clear(admin) and not node.ended and not node.removed


def test_a_job_that_begins_meanwhile_is_not_touched(node: Node) -> None:
    node.looks = [[20], [21]]
    assert "job 6 of the same user is here" in node.clear(Admin([SELF], [SELF, OTHER]))
    assert node.ended == [[20]]


def test_nor_is_its_shared_memory(node: Node) -> None:
    node.looks, node.files = [[20], []], (File("a", 1),)
    assert "shared memory stays: job 6 of the same user is here" in node.clear(Admin([SELF], [SELF], [SELF, OTHER]))
    assert node.removed == []


def test_more_files_than_one_look_shows_all_go_before_they_are_said_to_be_gone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers.remains, "MAX_FILES", 2)
    rest = [tuple(File(name, 1) for name in names) for names in ("ab", "cd", "e", "")]
    monkeypatch.setattr(leftovers.remains, "files_of", lambda user_id: rest.pop(0))
    said = node.clear(Admin([SELF]))
    assert "2 or more files" in said and said.endswith("are gone") and [file.name for file in node.removed] == list("abcde")


def test_without_a_place_for_the_record_it_is_done_all_the_same(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    node.settings = HookSettings(state=str(tmp_path / "file"))
    node.looks = [[20], []]
    assert node.clear(Admin([SELF])).endswith("are gone")


def test_one_part_of_the_epilog_keeps_no_other_from_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise RecursionError("too deep")

    monkeypatch.setattr(epilog, "clear_leftovers", fails)
    monkeypatch.setattr(epilog, "_site_cleanup", lambda *_: "the site's clean-up ended with status 0")
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "n1"}
    fit, said = epilog.clean(HookSettings(cleanup=(("/bin/true",),)), env)
    assert fit and said == "job 5 on n1: leftovers: not done: too deep; the site's clean-up ended with status 0"

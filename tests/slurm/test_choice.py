"""Which client serves."""

from __future__ import annotations

import pytest

from ftslurm.errors import CommandMissing, SlurmUnavailable, UsageError
from ftslurm.slurm import choice
from ftslurm.slurm.cli_client import CliSlurmClient
from ftslurm.slurm.pyslurm_child import ChildSlurmClient


def no_pyslurm(client: ChildSlurmClient) -> None:
    raise CommandMissing("pyslurm cannot be used")


def slow_pyslurm(client: ChildSlurmClient) -> None:
    raise SlurmUnavailable("pyslurm did not come up")


def test_the_command_line_serves_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_is_installed", lambda module: False)
    assert isinstance(choice.choose_client("auto"), CliSlurmClient)
    assert isinstance(choice.choose_client("cli"), CliSlurmClient)


def test_pyslurm_serves_where_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_is_installed", lambda module: True)
    monkeypatch.setattr(ChildSlurmClient, "start", lambda client: None)
    assert isinstance(choice.choose_client("auto"), ChildSlurmClient)


@pytest.mark.parametrize("start", [no_pyslurm, slow_pyslurm])
def test_a_pyslurm_that_does_not_answer_is_passed_over(monkeypatch: pytest.MonkeyPatch, start: object) -> None:
    monkeypatch.setattr(choice, "_is_installed", lambda module: True)
    monkeypatch.setattr(ChildSlurmClient, "start", start)
    assert isinstance(choice.choose_client("auto"), CliSlurmClient)
    with pytest.raises(CommandMissing):
        choice.choose_client("pyslurm")


def test_knows_no_other_client() -> None:
    with pytest.raises(UsageError, match="auto, cli, pyslurm"):
        choice.choose_client("rest")

"""ft_launcher's own flags on ftrun's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.cli.ftrun import FLAGS
from ftslurm.cli.ftrun import FT_LAUNCHER_FLAGS as FT_SWITCHES
from ftslurm.cli.ftrun_options import parse_ftrun, split_ft_launcher
from ftslurm.errors import PolicyError
from ftslurm.launchers.srun_options import Component, split_command_line


def test_they_are_told_from_ours_and_joined_with_their_file(tmp_path: Path) -> None:
    file = tmp_path / "ft.yaml"
    file.write_text("exp:\n  fault_tolerance: {rank_heartbeat_timeout: 60, safety_factor: 2}\n")
    words = (
        "--ft-max-restarts=3",
        f"--ft-cfg-path={file}",
        "--ft-param-rank_heartbeat_timeout=5",
        "--ft-rank-section-timeouts=step:9",
    )
    mine, theirs = split_ft_launcher(words)
    assert mine == ("--ft-max-restarts=3",)
    values, place = theirs["fault_tolerance"]
    assert values["rank_heartbeat_timeout"] == 5 and values["safety_factor"] == 2 and place == "the command line"
    assert values["rank_section_timeouts"] == {"step": 9.0}


def test_its_launcher_s_own_flags_are_accepted_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--ft-log-server-port=1", "--ft_attribution_llm_model=x", "--ft-rdzv-impl=barrier", "--ft-grace=3s")
    assert split_ft_launcher(words) == (("--ft-grace=3s",), {})
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3 and all(line.startswith("ftrun: --ft-") and " has no effect here: " in line for line in told)


@pytest.mark.parametrize("spelled", ["--ft-ignore-missing-cfg", "--ft_ignore_missing_cfg", "--ignore-missing-fault-tol-cfg"])
def test_a_bare_switch_takes_no_word(spelled: str) -> None:
    line = split_command_line((spelled, "-n2", "train"), FLAGS | FT_SWITCHES)
    assert (line.ft, line.components) == ((spelled,), (Component(("-n2",), ("train",)),))


def test_a_switch_with_underscores_takes_its_value_and_the_program_is_not_it() -> None:
    line = split_command_line(("--ft_enable_dist_storage_healthcheck", "true", "train"), FLAGS | FT_SWITCHES)
    assert line.components[0].command == ("train",)
    assert split_ft_launcher(line.ft)[1]["fault_tolerance"][0] == {"enable_dist_storage_healthcheck": True}


def test_options_of_ours_may_have_underscores_as_well() -> None:
    assert parse_ftrun(("--ft-restart_policy=min-healthy", "--ft_set=python=/a_b"))["ft_restart_policy"] == "min-healthy"
    assert parse_ftrun(("--ft_set=python=/a_b",))["ft_set"] == ("python=/a_b",)


def test_its_flags_bring_our_client(tmp_path: Path) -> None:
    """There is no monitor that the real one could call."""
    assert split_ft_launcher(("--ft-rank-heartbeat-timeout=5",))[1]["sdk.provide"] == ("nvrx", "the command line")


def test_without_any_nothing_is_read() -> None:
    assert split_ft_launcher(("--ft-dry-run",)) == (("--ft-dry-run",), {})


@pytest.mark.parametrize(
    ("word", "named"),
    [("--ft-param-rank_heartbeat_timeout=soon", "rank_heartbeat_timeout"), ("--ft-param-heart=5", "--ft-param-heart"),
     ("--ft-cfg-path=/nonexistent.yaml", "/nonexistent.yaml")],
)  # fmt: skip
def test_what_is_wrong_is_named(word: str, named: str) -> None:
    with pytest.raises(PolicyError) as caught:
        split_ft_launcher((word,))
    assert named in str(caught.value)

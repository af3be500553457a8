"""ft_launcher's own flags on ftrun's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.cli.ftrun_options import FT_LAUNCHER_FLAGS, split_ft_launcher
from ftslurm.errors import PolicyError
from ftslurm.model.ft_config import CONFIG_FLAGS, FLAG_NAMES, IGNORED_FLAGS, KEYS


def test_the_list_of_flags_is_that_of_the_keys() -> None:
    keys = {f"--ft-{name.replace('_', '-')}" for name in (*KEYS, *FLAG_NAMES)}
    assert keys | {*CONFIG_FLAGS, IGNORED_FLAGS[0]} == FT_LAUNCHER_FLAGS


def test_they_are_told_from_ours_and_joined_with_their_file(tmp_path: Path) -> None:
    file = tmp_path / "ft.yaml"
    file.write_text("exp:\n  fault_tolerance: {rank_heartbeat_timeout: 60, safety_factor: 2}\n")
    words = ("--ft-max-restarts=3", f"--ft-cfg-path={file}", "--ft-param-rank_heartbeat_timeout=5", "--ft-rank-section-timeouts=step:9")
    mine, theirs = split_ft_launcher(words)
    assert mine == ("--ft-max-restarts=3",)
    values, place = theirs["fault_tolerance"]
    assert values["rank_heartbeat_timeout"] == 5 and values["safety_factor"] == 2 and place == "the command line"
    assert values["rank_section_timeouts"] == {"step": 9.0}


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

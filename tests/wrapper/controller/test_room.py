"""Whether ftrun may open a connection for each rank and agent is known before the step starts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ftslurm.config.settings_files import SettingsAsked
from ftslurm.errors import LaunchFailed
from ftslurm.launchers.srun_options import Component
from ftslurm.model.job import Reading
from ftslurm.wrapper.controller.facts import call_read, check_descriptors
from ftslurm.wrapper.controller.survey import Order


@pytest.mark.parametrize(("components", "env", "needs"), [
    (["-n8000"], {}, 9000),
    (["--ntasks-per-node=8"], {}, 9000),
    (["-N500", "--ntasks-per-node=8"], {"SLURM_NTASKS": "8000"}, 5000),
    (["-N2-4"], {"SLURM_NTASKS": "8000"}, 1001),  # one task on each is the least that srun makes of it
    ([""], {"SLURM_NTASKS": "8000"}, 9000),
    ([""], {}, 2000),
    (["-n2", "-n3"], {}, 1005),
])  # fmt: skip
def test_what_is_certain_is_counted(components: list[str], env: Mapping[str, str], needs: int) -> None:
    several = components if components == ["-n2", "-n3"] else [" ".join(components)]
    order = Order(tuple(Component(tuple(one.split()), ("train",)) for one in several), SettingsAsked(), env)
    check_descriptors(needs, order, 1000)
    with pytest.raises(LaunchFailed, match=f"need {needs} connections to ftrun, which may open {needs - 1} here"):
        check_descriptors(needs - 1, order, 1000)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_shell_at_a_terminal_is_not_started_again(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`exit` behind a command that failed ends it with that status; without a terminal it is a line copied into a script."""
    monkeypatch.setattr("os.isatty", lambda descriptor: terminal)
    monkeypatch.setattr("ftslurm.wrapper.controller.facts.callers", lambda own: ())
    read = call_read((Component(("--pty",), ("bash",)),))
    assert (read.reading is Reading.ANSWER) is terminal, read

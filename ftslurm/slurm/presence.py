"""Does this machine have a Slurm? Used outside an allocation only."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.errors import CommandMissing
from ftslurm.system.commands import CommandResult, Runner
from ftslurm.system.programs import find_program

# No DNS record and no file of the usual names; or one that is no configuration.
_NONE = ("Could not establish a configuration source", "Unable to process configuration file")


def why_no_slurm(run: Runner, env: Mapping[str, str], timeout_s: float) -> str:
    """Why there is no Slurm, in words; empty if there is one, even one whose slurmctld does not answer now.

    Raises: CalledItself.
    """
    try:
        find_program("salloc", env)
        return no_configuration(run(("scontrol", "ping"), timeout_s, env=env))
    except CommandMissing as error:
        return error.message


def no_configuration(pinged: CommandResult) -> str:
    """Only a Slurm that has no configuration is none. What is said of a slurmctld says that there is one.

    Source: scontrol(1), ping; its status is 1 for a slurmctld that is down as well (22.05 to 26.05).
    """
    words = next((words for words in _NONE if words in pinged.stderr), "")
    return f"Slurm has no configuration ({words})" if pinged.status not in (0, None) and words else ""

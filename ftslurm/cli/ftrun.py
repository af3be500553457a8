"""The door of `ftrun`: takes the command line apart, calls one function, ends with its status."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ftslurm
from ftslurm.errors import CommandMissing, FtslurmError, LaunchFailed, UsageError
from ftslurm.launchers.srun_options import TORCHRUN_OPTIONS, CommandLine, has_flag, join_components, split_command_line
from ftslurm.model.text import visible
from ftslurm.system.commands import become, mistaken_for

# Which of our own options take no value, or one by `=` alone; ftrun_options.py has them all, and a test holds the two together.
# Named here so that a command line without any of ours, the most frequent one, is read without loading click (25 ms).
FLAGS = frozenset(
    {"--ft-dry-run", "--ft-plain", "--ft-warm", "--ft-verbose", "--ft-version", "--ft-help", "--ft-resume-at-limit"}
)
# Of ft_launcher's, those that are bare switches there.
FT_LAUNCHER_FLAGS = frozenset({"--ft-ignore-missing-cfg", "--ignore-missing-fault-tol-cfg"})

COMPLETE = "_FTRUN_COMPLETE"


def main(argv: Sequence[str] | None = None) -> None:
    """Ends the process with the exit status."""
    if COMPLETE in os.environ:  # a shell asks what could stand there (`ftslurm completion`)
        from ftslurm.cli.ftrun_options import options

        options.main(prog_name="ftrun", complete_var=COMPLETE)
    try:
        status = run(tuple(sys.argv[1:] if argv is None else argv), os.environ)
    except FtslurmError as error:
        print(f"ftrun: {visible(error)}", file=sys.stderr)
        status = error.exit_status
    sys.exit(status)


def run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Raises: FtslurmError."""
    if tried := mistaken_for(env):
        _give_way(Path(tried[-1]).name, argv, env)
    line = split_command_line(argv, FLAGS | FT_LAUNCHER_FLAGS)
    if torchrun := [word for word in line.unknown if word.replace("_", "-").removeprefix("--") in TORCHRUN_OPTIONS]:
        raise UsageError(
            f"{torchrun[0]} is an option of torchrun and ft_launcher, not of srun or ftrun",
            hint=f"`ft_launcher {torchrun[0]} ...` takes it; with ftrun write -N, --ntasks-per-node, --ft-max-restarts",
        )
    asked, values = _own(line)
    if asked.get("ft_help") or tuple(argv) in (("--help",), ("-h",)):
        from ftslurm.cli.ftrun_options import help_text

        print(help_text())
        return 0
    if asked.get("ft_version"):
        print(f"ftslurm {ftslurm.__version__}")
        return 0
    if not line.components[0].command:
        return _no_command(line, env)
    if any(has_flag(component.options, "test-only", "help", "usage", "version") for component in line.components):
        become("srun", join_components(line.components), env)  # nothing would run
    _folder_is_there()
    return _run(line, asked, values, env)


def _give_way(program: str, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Another ftrun wanted `program` of Slurm's and got us, through a wrapper of that name: become the real one.

    What the wrapper added for ftrun is left out. Raises: CalledItself where there is no other.
    """
    if program == "srun":
        argv = join_components(split_command_line(argv, FLAGS | FT_LAUNCHER_FLAGS).components)
    become(program, argv, env)


def _folder_is_there() -> None:
    """srun refuses as well: ranks could not start here either. Raises: LaunchFailed."""
    try:
        os.getcwd()  # noqa: PTH109 -- only whether there is one
    except OSError as error:
        raise LaunchFailed(
            f"the current folder cannot be found ({error.strerror}), so srun would start no ranks in it",
            hint="somebody removed or moved it: cd to a folder that exists",
        ) from None


def _own(line: CommandLine) -> tuple[Mapping[str, Any], Mapping[str, tuple[Any, str]]]:
    """Our options as click read them, and the settings among them."""
    if not line.ft:
        return {}, {}
    from ftslurm.cli.ftrun_options import parse_ftrun, split_ft_launcher, values_of

    mine, theirs = split_ft_launcher(line.ft)
    asked = parse_ftrun(mine)
    return asked, theirs | values_of(asked)


def _run(line: CommandLine, asked: Mapping[str, Any], values: Mapping[str, tuple[Any, str]], env: Mapping[str, str]) -> int:
    from ftslurm.config.settings_files import SettingsAsked
    from ftslurm.wrapper.controller.run import run_job
    from ftslurm.wrapper.controller.survey import Order

    if asked.get("ft_state_dir"):
        env = {**env, "FTSLURM_STATE_DIR": asked["ft_state_dir"]}
    verbose = asked.get("ft_verbose") or env.get("FTRUN_VERBOSE", "") not in ("", "0")
    if verbose:
        import logging

        logging.basicConfig(level=logging.DEBUG, format="ftrun: %(asctime)s %(message)s", stream=sys.stderr)
    request = SettingsAsked(
        asked.get("ft_policy") or "", asked.get("ft_profile") or "", asked.get("ft_annotations") or "", values,
        asked.get("ft_aimaster") or "",
    )  # fmt: skip
    order = Order(line.components, request, dict(env), bool(verbose), line.ft)
    if asked.get("ft_dry_run"):
        from ftslurm.wrapper.controller.run import dry_run

        print(visible(dry_run(order), lines=True))
        return 0
    return run_job(order)


def _no_command(line: CommandLine, env: Mapping[str, str]) -> int:
    """`ftrun --version`, `ftrun --usage`, or a command forgotten (`ftrun $UNSET`): srun's to answer, with its own status."""
    try:
        become("srun", join_components(line.components), env)
    except (OSError, CommandMissing):
        raise UsageError("no command to run", hint="ftrun [options] COMMAND [ARGS]; `ftrun --ft-help`") from None


if __name__ == "__main__":
    main()

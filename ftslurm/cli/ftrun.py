"""The door of `ftrun`: takes the command line apart, calls one function, ends with its status."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

import ftslurm
from ftslurm.errors import FtslurmError, UsageError
from ftslurm.launchers.srun_options import CommandLine, split_command_line

# Options that are a setting under another name: --ft-NAME -> leaf.
_LEAVES = {
    "max_restarts": "max_restarts",
    "launcher": "launcher",
    "local_nodes": "local_nodes",
    "restart_via": "restart_via",
    "rendezvous": "rendezvous",
    "grace": "stop.grace",
}


@click.command(
    "ftrun",
    add_help_option=False,
    options_metavar="[--ft-OPTIONS] [SRUN OPTIONS]",
    context_settings={"max_content_width": 100},
    epilog="All other options are srun's own; see srun --help. Every setting has a variable FTRUN_NAME as well; "
    "`ftslurm explain` lists settings, values and where they come from. "
    "Own exit statuses: 64 usage, 65 policy, 69 Slurm does not answer, 71 launch failed, 72 no srun, 73 state folder, "
    "75 requeued, 77 Slurm refused; any other is the program's.",
)
@click.option("--ft-policy", metavar="FILE", help="Ladder and budgets, YAML.  [FTRUN_POLICY]")
@click.option("--ft-profile", metavar="NAME", help="A ladder that ships: modelarts, ft-launcher.  [FTRUN_PROFILE]")
@click.option("--ft-annotations", metavar="FILE", help="fault-tolerance/* annotations, JSON.  [FTRUN_ANNOTATIONS]")
@click.option("--ft-max-restarts", metavar="N", help="Requeues the job may cost, 1 to 128.")
@click.option("--ft-launcher", metavar="srun|local", help="Default: srun inside an allocation, else local.")
@click.option("--ft-local-nodes", metavar="N", help="Nodes the local launcher simulates.")
@click.option("--ft-restart-via", metavar="shim|step", help="step: a new srun a restart, for MPI and PMIx.")
@click.option("--ft-rendezvous", metavar="torch", help="Set MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, ...")
@click.option("--ft-grace", metavar="TIME", help="From SIGTERM to SIGKILL when ranks are stopped, e.g. 20s.")
@click.option("--ft-set", metavar="NAME=VALUE", multiple=True, help="Any setting, e.g. requeue.start_in=10s.")
@click.option("--ft-state-dir", metavar="DIR", help="Where ledgers are kept.  [FTSLURM_STATE_DIR; ~/.ftslurm]")
@click.option("--ft-dry-run", is_flag=True, help="Print what would run, and end.")
@click.option("--ft-verbose", is_flag=True, help="Log events and decisions on stderr.  [FTRUN_VERBOSE=1]")
@click.option("--ft-version", is_flag=True, help="Print the version, and end.")
@click.option("--ft-help", is_flag=True, help="Print this, and end.")
@click.argument("command", nargs=-1, metavar="COMMAND [ARGS]")
def options(**_: Any) -> None:
    """Run COMMAND as srun does, and keep it alive: restart in place, requeue elsewhere, or fail with a reason."""


def main(argv: Sequence[str] | None = None) -> None:
    """Ends the process with the exit status."""
    try:
        status = run(tuple(sys.argv[1:] if argv is None else argv), os.environ)
    except FtslurmError as error:
        print(f"ftrun: {error}", file=sys.stderr)
        status = error.exit_status
    sys.exit(status)


def run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Raises: FtslurmError."""
    line = split_command_line(argv, _flags())
    asked = _parse(line.ft)
    if asked["ft_help"] or argv in (("--help",), ("-h",), ()):
        click.echo(options.get_help(click.Context(options, info_name="ftrun", max_content_width=100)))
        return 0
    if asked["ft_version"]:
        click.echo(f"ftslurm {ftslurm.__version__}")
        return 0
    if not line.components[0].command:
        return _no_command(argv, line)
    return _run(line, asked, env)


def _run(line: CommandLine, asked: Mapping[str, Any], env: Mapping[str, str]) -> int:
    from ftslurm.wrapper.settings_files import Request
    from ftslurm.wrapper.wiring import Order, dry_run, run_job

    if asked["ft_state_dir"]:
        env = {**env, "FTSLURM_STATE_DIR": asked["ft_state_dir"]}
    verbose = asked["ft_verbose"] or env.get("FTRUN_VERBOSE", "") not in ("", "0")
    if verbose:
        import logging

        logging.basicConfig(level=logging.DEBUG, format="ftrun: %(asctime)s %(message)s", stream=sys.stderr)
    request = Request(
        asked["ft_policy"] or "", asked["ft_profile"] or "", asked["ft_annotations"] or "", _values(asked)
    )
    order = Order(line.components, request, dict(env), verbose)
    if asked["ft_dry_run"]:
        click.echo(dry_run(order))
        return 0
    return run_job(order)


def _flags() -> frozenset[str]:
    return frozenset(p.opts[0] for p in options.params if isinstance(p, click.Option) and p.is_flag)


def _parse(words: Sequence[str]) -> Mapping[str, Any]:
    """Raises: UsageError in click's words, which name the option and the nearest that exists."""
    try:
        return options.make_context("ftrun", list(words)).params
    except click.UsageError as error:
        raise UsageError(error.format_message(), hint="`ftrun --ft-help` lists the options") from None


def _values(asked: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """leaf -> (value, option as given), for the settings among the options."""
    values = {}
    for name, leaf in _LEAVES.items():
        if asked[f"ft_{name}"] is not None:
            values[leaf] = (asked[f"ft_{name}"], f"--ft-{name.replace('_', '-')}")
    for pair in asked["ft_set"]:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--ft-set {pair}: no value", hint="write --ft-set NAME=VALUE")
        values[name] = (value, f"--ft-set {name}")
    return values


def _no_command(argv: Sequence[str], line: CommandLine) -> int:
    """`ftrun --version`, `ftrun --usage`, or a command forgotten: srun's to answer, in its own words."""
    if line.ft:
        raise UsageError("no command to run", hint="ftrun [options] COMMAND [ARGS]; `ftrun --ft-help`")
    try:
        os.execvp("srun", ["srun", *argv])
    except OSError:
        raise UsageError("no command to run", hint="ftrun [options] COMMAND [ARGS]; `ftrun --ft-help`") from None


if __name__ == "__main__":
    main()

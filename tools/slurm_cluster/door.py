"""The command line: which verbs there are, and what they take."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slurm_cluster import commands
from slurm_cluster.folder import absolute, default_folder
from slurm_cluster.trouble import EX_USAGE, BootFailed, Trouble, say

LOG_TAIL_LINES = 15


class Parser(argparse.ArgumentParser):
    """argparse that ends with 64 and not 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(EX_USAGE, f"{self.prog}: {message}\n")


def folder_argument(text: str) -> Path:
    return absolute(Path(text).absolute())


def number_argument(smallest: int, largest: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not smallest <= value <= largest:
            raise argparse.ArgumentTypeError(f"{value} is not between {smallest} and {largest}")
        return value

    return number


def conf_argument(text: str) -> str:
    if not re.fullmatch(r"\w+=[^\n]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form Key=Value")
    return text


def name_argument(text: str) -> str:
    if text and not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot begin a host name")
    return text


COMMANDS: tuple[tuple[str, Callable[[argparse.Namespace], int], str], ...] = (
    ("up", commands.up, "boot a cluster and wait until all nodes are idle"),
    ("down", commands.down, "stop all that belongs to the cluster and remove its folder"),
    ("status", commands.status, "daemons, pids and node states"),
    ("env", commands.env, "print the line that points a shell at the cluster"),
    ("shell", commands.shell, "a shell, or the command after --, on the cluster"),
    ("node-down", commands.node_down, "kill -9 a node's slurmd; its steps and tasks live on"),
    ("node-freeze", commands.node_freeze, "stop (SIGSTOP) a node's slurmd, steps and tasks: it is as if it were cut off"),
    ("node-thaw", commands.node_thaw, "let a frozen node go on, as if it were back"),
    ("node-crash", commands.node_crash, "kill -9 a node's slurmd, steps and tasks, as a power cut would"),
    ("node-up", commands.node_up, "start a node's slurmd again, switch it on where it is off, and wait until it has registered"),
    ("node-cut", commands.node_cut, "cut a node's cable"),
    ("node-mend", commands.node_mend, "mend a cable that was cut or slowed"),
    ("node-slow", commands.node_slow, "let a node's cable carry no more than RATE, such as 10mbit"),
    ("node-shell", commands.node_shell, "a shell, or the command after --, on a node, as root"),
    ("epilog", commands.epilog, "let every Epilog from now on take SECONDS"),
    ("ctld-stop", commands.ctld_stop, "stop slurmctld"),
    ("ctld-start", commands.ctld_start, "start slurmctld again with what it had saved"),
    ("install", commands.install, "install Slurm's Debian packages (root)"),
)


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = Parser(prog="slurm-cluster", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for name, function, words in COMMANDS:
        command = verbs.add_parser(name, help=words, description=words)
        command.set_defaults(function=function)
        if function is not commands.install:
            command.add_argument(
                "--dir",
                type=folder_argument,
                default=absolute(default_folder()),
                metavar="DIR",
                help="the cluster's folder (default: %(default)s)",
            )
        if name.startswith("node-"):
            command.add_argument("node", metavar="NAME")
        if function is commands.node_slow:
            command.add_argument("rate", metavar="RATE")
        if function is commands.epilog:
            command.add_argument("seconds", metavar="SECONDS", type=float)
        if function is commands.install:
            command.add_argument("--accounting", action="store_true", help="slurmdbd and MariaDB as well")
        if function is commands.up:
            add_up_arguments(command)
    return parser


def add_up_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--nodes", type=number_argument(1, 99), default=6, help="default: %(default)s")
    command.add_argument("--cpus", type=number_argument(1, 1024), default=8, help="of each node (default: %(default)s)")
    command.add_argument(
        "--port-base", type=number_argument(1024, 65000), help="slurmctld's port, the slurmds' follow; chosen if not given"
    )
    command.add_argument(
        "--conf",
        type=conf_argument,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a line for slurm.conf; may be repeated. An empty value takes a line out",
    )
    command.add_argument(
        "--flat",
        action="store_true",
        help="nodes that are processes of this machine, nothing confined or counted: what there is for whoever is not root",
    )
    command.add_argument("--accounting", action="store_true", help="slurmdbd on MariaDB; associations, limits and QOS hold")
    command.add_argument(
        "--file",
        type=folder_argument,
        action="append",
        default=[],
        metavar="PATH",
        help="a file to be copied beside slurm.conf, such as a job_container.conf; may be repeated",
    )
    command.add_argument("--configless", action="store_true", help="nodes have no slurm.conf and ask slurmctld for it")
    command.add_argument(
        "--host-names",
        default="",
        metavar="PREFIX",
        type=name_argument,
        help="the host name of node n3 is PREFIX3; by default it is n3",
    )
    command.add_argument("--backup", action="store_true", help="a second slurmctld, on a machine of its own named backup")
    command.add_argument("--ipv6", action="store_true", help="no other addresses")
    command.add_argument(
        "--gpus",
        type=number_argument(0, 64),
        default=4,
        help="of each node that is apart (default: %(default)s); device files without a driver",
    )
    command.add_argument(
        "--shared",
        type=folder_argument,
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder below"
        " /tmp or /dev/shm that nodes shall see: these are each node's own, all else is shared. May be repeated",
    )


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what follows `--`, untouched."""
    if "--" not in argv:
        return list(argv), []
    dashes = list(argv).index("--")
    return list(argv[:dashes]), list(argv[dashes + 1 :])


def print_logs(logs: Iterable[Path]) -> None:
    for log in logs:
        try:
            lines = log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            continue
        if lines:
            print(f"--- the end of {log}", *lines[-LOG_TAIL_LINES:], sep="\n", file=sys.stderr)


def main(argv: Sequence[str], description: str) -> int:
    """Exit status as slurm-cluster's own text (`description`) has it."""
    ours, command = split_command(argv)
    parser = make_parser(description)
    options = parser.parse_args(ours)
    if command and options.function not in (commands.shell, commands.node_shell):
        parser.error("only `shell` and `node-shell` take a command after --")
    options.command = command
    os.umask(0o022)  # other users must be able to read slurm.conf and to enter spool, whatever this shell's umask is
    try:
        return int(options.function(options))
    except Trouble as trouble:
        if isinstance(trouble, BootFailed):
            print_logs(trouble.logs)
        say(str(trouble))
        return trouble.status

"""ftrun's own options, for click: names, help, and what they set."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from ftslurm.cli import suggestions as complete
from ftslurm.errors import UsageError
from ftslurm.model.text import visible

# Options that are a setting under another name: --ft-NAME -> leaf.
LEAVES = {
    "max_restarts": "max_restarts",
    "launcher": "launcher",
    "local_nodes": "local_nodes",
    "restart_via": "restart_via",
    "rendezvous": "rendezvous",
    "grace": "stop.grace",
    "mode": "mode",
    "restart_policy": "mode",
    "provide": "sdk.provide",
    "watch": "hang.watch",
    "spares": "nodes.spares",
    "min_nodes": "nodes.min",
    "resume_at_limit": "time_limit.resume",
}


@click.command(
    "ftrun",
    add_help_option=False,
    options_metavar="[--ft-OPTIONS] [SRUN OPTIONS]",
    context_settings={"max_content_width": 100},
    epilog="All other options are srun's own; see srun --help. Every setting has a variable FTRUN_NAME as well; "
    "`ftslurm explain` lists settings, values and where they come from. "
    "Own exit statuses: 64 usage, 65 policy, 69 Slurm does not answer, 71 launch failed, 72 no srun, 73 state folder, "
    "75 requeued, 77 Slurm refused, 78 the only srun is ftrun; any other is the program's.",
)
@click.option("--ft-policy", metavar="FILE", shell_complete=complete.files, help="Ladder and budgets, YAML.  [FTRUN_POLICY]")
@click.option(
    "--ft-profile", metavar="NAME", shell_complete=complete.profiles,
    help="Built-in settings: modelarts, aimaster-sync, aimaster-async, ft-launcher.  [FTRUN_PROFILE]",
)  # fmt: skip
@click.option(
    "--ft-annotations",
    metavar="FILE",
    shell_complete=complete.files,
    help="fault-tolerance/* annotations, JSON.  [FTRUN_ANNOTATIONS]",
)
@click.option("--ft-aimaster", metavar="FLAGS", help='AIMaster\'s own flags in one word: "--job-execution-mode=Sync ...".')
@click.option(
    "--ft-mode",
    metavar="sync|async|min-healthy|independent",
    shell_complete=complete.known_words("sync", "async", "min-healthy", "independent"),
    help="A failed rank restarts: all ranks (sync) or itself (async, independent); min-healthy: see nodes.min_healthy.",
)
@click.option(
    "--ft-restart-policy", metavar="any-failed|min-healthy",
    help="any-failed: a failed rank restarts all; min-healthy: only below nodes.min_healthy nodes.",
)  # fmt: skip
@click.option(
    "--ft-watch",
    metavar="L0|L1|L2",
    shell_complete=complete.known_words("L0", "L1", "L2"),
    help="Watch Python ranks with a probe, to tell which one hangs.",
)
@click.option("--ft-provide", metavar="nvrx,aimaster", help="Use ftslurm's own implementation of these packages.")
@click.option("--ft-retry-keyword", metavar="WORD", multiple=True, help="Retry the job if a failed rank printed WORD.")
@click.option("--ft-max-restarts", metavar="N", help="Requeues allowed for the job, 0 to 128.")
@click.option("--ft-spares", metavar="N", help="Keep N nodes of the allocation as spares for bad ones.")
@click.option("--ft-min-nodes", metavar="N", help="Continue with at least N nodes if a bad one cannot be replaced.")
@click.option(
    "--ft-resume-at-limit",
    metavar="[TIME]",
    is_flag=False,
    flag_value="auto",
    help="Requeue the job before its time limit; the ranks are told TIME before.",
)
@click.option(
    "--ft-launcher",
    metavar="srun|local",
    shell_complete=complete.known_words("auto", "srun", "local"),
    help="Default: srun if Slurm is there, else local.",
)
@click.option("--ft-local-nodes", metavar="N", help="Nodes the local launcher simulates.")
@click.option(
    "--ft-restart-via",
    metavar="shim|step",
    shell_complete=complete.known_words("shim", "step"),
    help="step: a new srun for each restart, for MPI and PMIx.",
)
@click.option(
    "--ft-rendezvous",
    metavar="torch",
    shell_complete=complete.known_words("none", "torch"),
    help="Set MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, ...",
)
@click.option("--ft-warm", is_flag=True, help="Restart Python ranks in place without importing numpy, torch, ... again.")
@click.option("--ft-grace", metavar="TIME", help="From SIGTERM to SIGKILL when ranks are stopped, e.g. 20s.")
@click.option(
    "--ft-set",
    metavar="NAME=VALUE",
    multiple=True,
    shell_complete=complete.settings,
    help="Any setting, e.g. requeue.start_in=10s.",
)
@click.option(
    "--ft-state-dir",
    metavar="DIR",
    shell_complete=complete.folders,
    help="Where ledgers are kept.  [FTSLURM_STATE_DIR; ~/.ftslurm]",
)
@click.option("--ft-plain", is_flag=True, help="Supervise the step as srun does; start nothing again.")
@click.option("--ft-dry-run", is_flag=True, help="Print what would run, and exit.")
@click.option("--ft-verbose", is_flag=True, help="Log events and decisions on stderr.  [FTRUN_VERBOSE=1]")
@click.option("--ft-version", is_flag=True, help="Print the version, and exit.")
@click.option("--ft-help", is_flag=True, help="Print this help, and exit.")
@click.argument("command", nargs=-1, metavar="COMMAND [ARGS]", shell_complete=complete.files)
def options(**_: Any) -> None:
    """Run COMMAND as srun does, and keep it alive: restart in place, requeue elsewhere, or fail with a reason."""


def help_text() -> str:
    return options.get_help(click.Context(options, info_name="ftrun", max_content_width=100))


def parse_ftrun(words: Sequence[str]) -> Mapping[str, Any]:
    """With _ for - as well. Raises: UsageError in click's words, which name the option and the nearest that exists."""
    parts = [word.partition("=") for word in words]
    try:
        return options.make_context("ftrun", [flag.replace("_", "-") + equals + value for flag, equals, value in parts]).params
    except click.UsageError as error:
        raise UsageError(error.format_message(), hint="`ftrun --ft-help` lists the options") from None


def split_ft_launcher(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, tuple[Any, str]]]:
    """Ours, and what ft_launcher's own flags and its YAML file set. Raises: PolicyError."""
    mine = tuple(word for word in words if not _is_ft_launcher(word))
    if len(mine) == len(words):
        return mine, {}
    from ftslurm.config.ft_launcher import from_flags, without_effect

    theirs = [word for word in words if _is_ft_launcher(word)]
    found, path = from_flags(theirs, "the command line")
    for sentence in without_effect(theirs):
        _say(sentence)
    return mine, fault_tolerance(found, path, _say) if found or path else {}


def fault_tolerance(found: Mapping[str, Any], path: str, say: Callable[[str], None]) -> dict[str, tuple[Any, str]]:
    """ft_launcher's configuration by its flags, over that of its YAML file, as settings. path: empty for none. say: is told what
    of the file is passed over. Our client serves the ranks then. Raises: PolicyError.
    """
    from ftslurm.model.settings.ft_config import checked_values

    values: dict[str, Any] = {}
    if path:
        from ftslurm.config.ft_launcher import from_file
        from ftslurm.config.settings_files import read_tree

        values, remarks = from_file(read_tree(path, "the fault tolerance configuration"), path)
        for remark in remarks:
            say(remark)
    given = checked_values(found, "the command line")
    place = path if path and not found else "the command line"
    return {"fault_tolerance": ({**values, **given}, place), "sdk.provide": ("nvrx", place)}


def _say(text: str) -> None:
    print(f"ftrun: {visible(text)}", file=sys.stderr, flush=True)


def _is_ft_launcher(word: str) -> bool:
    """One that is not ours: what is, is known without loading theirs."""
    flag = word.partition("=")[0].replace("_", "-")
    if any(flag in each.opts for each in options.params):
        return False
    from ftslurm.config.ft_launcher import is_flag

    return is_flag(flag)


def values_of(asked: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """leaf -> (value, option as given), for the settings among the options."""
    values: dict[str, tuple[Any, str]] = {}
    if asked["ft_retry_keyword"]:
        values["retry.keywords"] = (asked["ft_retry_keyword"], "--ft-retry-keyword")
    if asked["ft_warm"]:
        values["warm.restart"] = ("true", "--ft-warm")
    if asked["ft_plain"]:
        values["plain"] = ("true", "--ft-plain")
    for name, leaf in LEAVES.items():
        if asked[f"ft_{name}"] is not None:
            values[leaf] = (asked[f"ft_{name}"], f"--ft-{name.replace('_', '-')}")
    return values | values_set("--ft-set", asked["ft_set"])


def values_set(option: str, pairs: Iterable[str]) -> dict[str, tuple[Any, str]]:
    """Of an option that takes NAME=VALUE: the same. Raises: UsageError."""
    values: dict[str, tuple[Any, str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{option} {pair}: no value", hint=f"write {option} NAME=VALUE")
        values[name] = (value, f"{option} {name}")
    return values

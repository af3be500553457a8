"""ftrun's own options, for click: names, help, and what they set."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from ftslurm.cli import suggestions as complete
from ftslurm.errors import UsageError
from ftslurm.model.text import visible


class Setting(click.Option):
    """An option that is a setting under another name. words: to suggest."""

    def __init__(self, option: Sequence[str], leaf: str, words: tuple[str, ...] = (), **rest: Any) -> None:
        super().__init__(option, shell_complete=complete.known_words(*words) if words else None, **rest)
        self.leaf = leaf


_sets = partial(click.option, cls=Setting)


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
    "--ft-annotations", metavar="FILE", shell_complete=complete.files,
    help="fault-tolerance/* annotations, JSON.  [FTRUN_ANNOTATIONS]",
)  # fmt: skip
@click.option("--ft-aimaster", metavar="FLAGS", help='AIMaster\'s own flags in one word: "--job-execution-mode=Sync ...".')
@_sets(
    "--ft-mode", leaf="mode", metavar="sync|async|min-healthy|independent", words=("sync", "async", "min-healthy", "independent"),
    help="A failed rank restarts: all ranks (sync) or itself (async, independent); min-healthy: see nodes.min_healthy.",
)  # fmt: skip
@_sets(
    "--ft-restart-policy", leaf="mode", metavar="any-failed|min-healthy",
    help="any-failed: a failed rank restarts all; min-healthy: only below nodes.min_healthy nodes.",
)  # fmt: skip
@_sets(
    "--ft-watch", leaf="hang.watch", metavar="L0|L1|L2", words=("L0", "L1", "L2"),
    help="Watch Python ranks with a probe, to tell which one hangs.",
)  # fmt: skip
@_sets("--ft-provide", leaf="sdk.provide", metavar="nvrx,aimaster", help="Use ftslurm's own implementation of these packages.")
@_sets("--ft-retry-keyword", leaf="retry.keywords", metavar="WORD", multiple=True, help="Retry if a failed rank printed WORD.")
@_sets("--ft-max-restarts", leaf="max_restarts", metavar="N", help="Requeues allowed for the job, 0 to 128.")
@_sets("--ft-spares", leaf="nodes.spares", metavar="N", help="Keep N nodes of the allocation as spares for bad ones.")
@_sets("--ft-min-nodes", leaf="nodes.min", metavar="N", help="Continue with at least N nodes if a bad one cannot be replaced.")
@_sets(
    "--ft-resume-at-limit", leaf="time_limit.resume", metavar="[TIME]", is_flag=False, flag_value="auto",
    help="Requeue the job before its time limit; the ranks are told TIME before.",
)  # fmt: skip
@_sets(
    "--ft-launcher", leaf="launcher", metavar="srun|local", words=("auto", "srun", "local"),
    help="Default: srun if Slurm is there, else local.",
)  # fmt: skip
@_sets("--ft-local-nodes", leaf="local_nodes", metavar="N", help="Nodes the local launcher simulates.")
@_sets(
    "--ft-restart-via", leaf="restart_via", metavar="shim|step", words=("shim", "step"),
    help="step: a new srun for each restart, for MPI and PMIx.",
)  # fmt: skip
@_sets(
    "--ft-rendezvous", leaf="rendezvous", metavar="torch", words=("none", "torch"),
    help="Set MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, ...",
)  # fmt: skip
@_sets(
    "--ft-warm", leaf="warm.restart", is_flag=True,
    help="Restart Python ranks in place without importing numpy, torch, ... again.",
)  # fmt: skip
@_sets("--ft-grace", leaf="stop.grace", metavar="TIME", help="From SIGTERM to SIGKILL when ranks are stopped, e.g. 20s.")
@click.option(
    "--ft-set", metavar="NAME=VALUE", multiple=True, shell_complete=complete.settings,
    help="Any setting, e.g. requeue.start_in=10s.",
)  # fmt: skip
@click.option(
    "--ft-state-dir", metavar="DIR", shell_complete=complete.folders,
    help="Where ledgers are kept.  [FTSLURM_STATE_DIR; ~/.ftslurm]",
)  # fmt: skip
@_sets("--ft-plain", leaf="plain", is_flag=True, help="Supervise the step as srun does; start nothing again.")
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
    from ftslurm.config.ft_launcher import from_flags

    found, path, remarks = from_flags([word for word in words if _is_ft_launcher(word)], "the command line")
    for sentence in remarks:
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
    own = ((each, asked[str(each.name)]) for each in options.params if isinstance(each, Setting))
    # A flag that is not there is False, and of an option that may be repeated there is an empty tuple.
    given = ((each, "true" if value is True else value) for each, value in own if value not in (None, False, ()))
    values = {each.leaf: (value, each.opts[0]) for each, value in given}
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

"""The command line of ft_launcher (nvidia_resiliency_ext 0.7.0, and what 0.4 and 0.5 called otherwise) and torchrun: every
option of theirs, in every spelling of theirs (catalogs/ft-launcher.yaml).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ftslurm.config.ft_launcher import flags_of, spellings, surface
from ftslurm.errors import UsageError
from ftslurm.model.settings.features import local_ranks, streams
from ftslurm.model.settings.ft_config import KEYS

_KINDS: Mapping[str, Any] = {"text": str, "whole": int, "number": float}


class Launch(argparse.Namespace):
    """What was asked for; fields without a comment as the options of that name."""

    command: tuple[str, ...]
    nodes: int  # that the ranks need
    spares: int  # more that are to be held back
    nproc_per_node: str  # ranks a node, or cpu, gpu, auto
    max_restarts: int
    term_timeout: float
    workers_stop_timeout: float
    monitor_interval: float
    role: str
    rdzv_id: str
    ft_no_restart_exit_code: int
    log_dir: str
    redirects: str
    tee: str
    local_ranks_filter: str
    line_prefix: str  # torchrun's variable for what --tee prints
    applog_prefix: str
    policy: str  # any-failed or min-healthy
    module: bool
    with_python: bool
    config: str  # the path of its YAML file
    given: Mapping[str, Any]  # ft_launcher's configuration from flags
    unused: Mapping[str, str]  # option or variable -> why it has no effect
    ft_set: Sequence[str]
    ft_policy: str
    ft_state_dir: str
    ft_dry_run: bool
    ft_verbose: bool

    @property
    def width(self) -> int:
        """Nodes that ranks run on: under min-healthy there are no spares, but nodes that may be lost."""
        return self.nodes + self.spares if self.policy == "min-healthy" else self.nodes


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint="`ft_launcher --help` lists the options")


def parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """env: PET_NAME has the default of an option of torchrun's, as there."""
    made = _Parser(
        "ft_launcher", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="ft_launcher [options] training_script [its arguments]",
        description="ft_launcher's and torchrun's command line, run by ftrun: in an allocation on its nodes, elsewhere here.",
        epilog="Every setting of ftrun can be given as well, as --ft-set NAME=VALUE or FTRUN_NAME.\n"
        "Exit status: 0 for success; 1 for any failure; 2 for a wrong command line;\n"
        "93 (--ft-no-restart-exit-code) if no restart can help.",
    )  # fmt: skip
    theirs = made.add_argument_group("torchrun's options")
    reasons = surface().ignored_by_ft_launcher()
    for name, option in surface().options.items():
        words, given = [*([option.short] if option.short else []), *spellings(name)], env.get(_variable(name))
        if option.takes == "nothing":
            theirs.add_argument(*words, dest=_dest(name), action="store_true", default=given == "1")
            continue
        kind = _KINDS[option.takes]
        theirs.add_argument(
            *words, dest=_dest(name), type=kind, default=kind(option.default) if given is None else _of_env(name, given, kind),
            choices=option.choices or None, help=f"no effect: {reasons[name]}" if name in reasons else "",
        )  # fmt: skip
    fault = made.add_argument_group("ft_launcher's options")
    fault.add_argument(
        *spellings("ft-cfg-path"), *spellings("fault-tol-cfg-path"), dest="config", default=env.get("PET_FT_CFG_PATH", "")
    )
    fault.add_argument(*spellings("ft-ignore-missing-cfg"), *spellings("ignore-missing-fault-tol-cfg"), action="store_true")
    fault.add_argument(
        *spellings("ft-restart-policy"), "--restart-policy", "--restart_policy", dest="policy",
        choices=("any-failed", "min-healthy"), default="any-failed",
    )  # fmt: skip
    prefix = env.get("PET_FT_PER_CYCLE_APPLOG_PREFIX", "")
    fault.add_argument(*spellings("ft-per-cycle-applog-prefix"), dest="applog_prefix", default=prefix)
    for key in KEYS:
        words = [word for name in flags_of(key) for word in spellings(name)]
        fault.add_argument(*dict.fromkeys(words), dest=f"key_{key}", default=None)
    for name, why in reasons.items():
        if name not in surface().options:
            fault.add_argument(*spellings(name), dest=_dest(name), default=None, help=f"no effect: {why}")
    ours = made.add_argument_group("ours")
    ours.add_argument("--ft-set", action="append", default=[], metavar="NAME=VALUE")
    ours.add_argument("--ft-policy", default="", metavar="FILE")
    ours.add_argument("--ft-state-dir", default="", metavar="DIR")
    ours.add_argument("--ft-dry-run", action="store_true")
    ours.add_argument("--ft-verbose", action="store_true")
    ours.add_argument("--version", action="store_true", help="Alone: whose ft_launcher this is, and where NVIDIA's own is.")
    made.add_argument("training_script")
    made.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return made


def read_options(argv: Sequence[str], env: Mapping[str, str]) -> Launch:
    """Raises: UsageError."""
    launch = parser(env).parse_args(list(argv), Launch())
    if launch.version:
        raise UsageError("--version stands alone", hint="`ft_launcher --version` says whose it is")
    least, most = _node_bounds(launch.nnodes)
    _check(launch)
    launch.nodes, launch.spares = least, most - least
    launch.command = (launch.training_script, *launch.training_script_args)
    launch.with_python = not launch.no_python or launch.run_path
    launch.line_prefix = env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "")
    launch.given = {key: value for key in KEYS if (value := getattr(launch, f"key_{key}")) is not None}
    words = {word.partition("=")[0] for word in argv[: len(argv) - len(launch.training_script_args)]}
    launch.unused = {name: "NVIDIA's own launcher reads it" for name in env if name.startswith("NVRX_")} | {
        f"--{name}": why
        for name, why in surface().ignored_by_ft_launcher().items()
        if words.intersection(spellings(name)) or _variable(name) in env
    }
    return launch


def _variable(name: str) -> str:
    return f"PET_{_dest(name).upper()}"


def _of_env(name: str, text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{_variable(name)}={text}: invalid value for --{name}", hint="correct it, or unset it") from None


def _dest(name: str) -> str:
    return name.replace("-", "_")


def _node_bounds(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    bounds = [int(part) for part in (low, high if colon else low) if part.isascii() and part.isdecimal()]
    if len(bounds) < 2 or not 0 < bounds[0] <= bounds[1]:
        raise UsageError(f"--nnodes={text}: neither N nor MIN:MAX", hint="write --nnodes=4, or --nnodes=4:5 for a spare node")
    return bounds[0], bounds[1]


def _check(args: Launch) -> None:
    if args.module and args.no_python:
        raise UsageError("--module and --no-python exclude each other", hint="leave one out")
    if args.rdzv_backend.lower() != "c10d":
        raise UsageError(f"--rdzv-backend={args.rdzv_backend}: only c10d is supported", hint="leave it out")
    if args.applog_prefix and not args.applog_prefix.startswith("/"):
        raise UsageError(f"--ft-per-cycle-applog-prefix={args.applog_prefix}: not an absolute path", hint="begin it with /")
    for name in ("max_restarts", "term_timeout", "workers_stop_timeout", "monitor_interval"):
        if not 0 <= getattr(args, name) < 1e9:
            raise UsageError(f"--{name.replace('_', '-')}={getattr(args, name)}: out of range", hint="0 or more")
    if not 0 < args.ft_no_restart_exit_code < 256:
        raise UsageError(f"--ft-no-restart-exit-code={args.ft_no_restart_exit_code}: not an exit status", hint="1 to 255")
    for name, kind in (("redirects", streams), ("tee", streams), ("local_ranks_filter", local_ranks)):
        try:
            kind(getattr(args, name))
        except ValueError as error:
            raise UsageError(f"--{name.replace('_', '-')}: {error}", hint="3 is both streams of all local ranks") from None

"""The command line of ft_launcher (nvidia_resiliency_ext 0.7.0, and what 0.4 and 0.5 called otherwise) and torchrun: every
option of theirs, in every spelling of theirs, and what has no effect here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ftslurm.errors import UsageError
from ftslurm.model.settings.features import local_ranks, streams
from ftslurm.model.settings.ft_config import FLAG_NAMES, KEYS, WITHOUT_EFFECT
from ftslurm.model.values import Value

_MEETING = "the ranks meet by MASTER_ADDR and MASTER_PORT, which are chosen at each start"
# Options of torchrun's that ask for what is otherwise done here, and why.
_UNUSED: Mapping[str, str] = {
    "rdzv-backend": _MEETING, "rdzv-endpoint": _MEETING, "rdzv-conf": _MEETING, "local-addr": _MEETING,
    "master-addr": _MEETING, "master-port": _MEETING,
    "node-rank": "Slurm numbers the nodes",
    "start-method": "ranks are programs, not functions",
    "logs-specs": "it names code of torch; --redirects, --tee and --ft-per-cycle-applog-prefix are built in",
}  # fmt: skip
_BUILT_IN = ("ft-per-cycle-applog-prefix", "ft-no-restart-exit-code")
_ALSO_UNUSED = {name: why for name, why in WITHOUT_EFFECT.items() if name not in _BUILT_IN}
# name -> what it takes, its default.
_VALUES: Mapping[str, tuple[Any, Any]] = {
    "nnodes": (str, "1:1"), "nproc-per-node": (str, "1"), "max-restarts": (int, 0), "term-timeout": (float, 1800.0),
    "workers-stop-timeout": (float, 15.0), "role": (str, "default"), "rdzv-id": (str, "none"), "log-dir": (str, None),
    "redirects": (str, "0"), "rdzv-backend": (str, "c10d"), "rdzv-endpoint": (str, ""), "rdzv-conf": (str, ""),
    "local-addr": (str, None), "master-addr": (str, None), "master-port": (int, None), "node-rank": (int, 0),
    "monitor-interval": (float, 0.3), "ft-no-restart-exit-code": (int, 93), "start-method": (str, "spawn"),
    "tee": (str, "0"), "local-ranks-filter": (str, ""),
    "logs-specs": (str, None),
}  # fmt: skip
_SWITCHES = ("standalone", "module", "no-python", "run-path")
_SHORT = {"module": "-m", "redirects": "-r", "tee": "-t"}
_CHOICES = {"start-method": ("spawn", "fork", "forkserver")}
# Ours, for what ft_launcher has no word for. Everything else of ours goes by FTRUN_* variables.
_OURS = ("set", "policy", "state-dir")


class Launch(Value):
    """What was asked for; fields without a comment as the options of that name."""

    command: tuple[str, ...]
    nodes: int  # that the ranks need
    spares: int  # more that are to be held back
    per_node: str  # ranks a node, or cpu, gpu, auto
    max_restarts: int
    term_timeout_s: float
    stop_timeout_s: float
    interval_s: float
    role: str
    run_id: str
    no_restart_status: int
    log_dir: str
    redirects: str
    tee: str
    shown_ranks: str  # --local-ranks-filter
    line_prefix: str  # torchrun's variable for what --tee prints
    applog_prefix: str
    policy: str  # any-failed or min-healthy
    module: bool
    with_python: bool
    config: str  # the path of its YAML file
    given: Mapping[str, Any]  # ft_launcher's configuration from flags
    unused: Mapping[str, str]  # option -> why it has no effect
    own: Mapping[str, Any]
    dry_run: bool
    verbose: bool

    @property
    def width(self) -> int:
        """Nodes that ranks run on: under min-healthy there are no spares, but nodes that may be lost."""
        return self.nodes + self.spares if self.policy == "min-healthy" else self.nodes


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint="`ft_launcher --help` lists the options")


def spellings(name: str) -> list[str]:
    """`--ft-rank-heartbeat-timeout` as it may be written: with - or _ anywhere, as --ft-param-KEY."""
    plain = name.removeprefix("--")
    found = [f"--{plain}", f"--{plain.replace('-', '_')}"]
    if plain.startswith("ft-"):
        rest = plain.removeprefix("ft-").replace("-", "_")
        found += [f"--ft-{rest}", f"--ft-param-{rest}", f"--ft-param-{rest.replace('_', '-')}", f"--ft_param_{rest}"]
    return list(dict.fromkeys(found))


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
    for name, (kind, default) in _VALUES.items():
        words = [*([_SHORT[name]] if name in _SHORT else []), *spellings(name)]
        given = env.get(f"PET_{_dest(name).upper()}")
        theirs.add_argument(
            *words, dest=_dest(name), type=kind, default=default if given is None else _of_env(name, given, kind),
            choices=_CHOICES.get(name), help=_UNUSED.get(name, "") and f"no effect: {_UNUSED[name]}",
        )  # fmt: skip
    for name in _SWITCHES:
        words = [*([_SHORT[name]] if name in _SHORT else []), *spellings(name)]
        theirs.add_argument(*words, dest=_dest(name), action="store_true", default=env.get(f"PET_{_dest(name).upper()}") == "1")
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
        names = [key, *(flag for flag, of in FLAG_NAMES.items() if of == key)]
        words = [word for name in names for word in spellings(f"ft-{name.replace('_', '-')}")]
        fault.add_argument(*dict.fromkeys(words), dest=f"key_{key}", default=None)
    for name, why in _ALSO_UNUSED.items():
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
    args = parser(env).parse_args(list(argv))
    if args.version:
        raise UsageError("--version stands alone", hint="`ft_launcher --version` says whose it is")
    least, most = _node_bounds(args.nnodes)
    _check(args)
    given = {key: getattr(args, f"key_{key}") for key in KEYS if getattr(args, f"key_{key}") is not None}
    words = {word.partition("=")[0] for word in argv[: len(argv) - len(args.training_script_args)]}
    unused = {
        name: why
        for name, why in {**_UNUSED, **_ALSO_UNUSED}.items()
        if words & {*spellings(name), _SHORT.get(name, "--")} or f"PET_{_dest(name).upper()}" in env
    }
    return Launch(
        command=(args.training_script, *args.training_script_args), nodes=least, spares=most - least,
        per_node=args.nproc_per_node, max_restarts=args.max_restarts, term_timeout_s=args.term_timeout,
        stop_timeout_s=args.workers_stop_timeout, interval_s=args.monitor_interval, role=args.role,
        run_id=args.rdzv_id, no_restart_status=args.ft_no_restart_exit_code, log_dir=args.log_dir or "",
        redirects=args.redirects, tee=args.tee, shown_ranks=args.local_ranks_filter, applog_prefix=args.applog_prefix or "",
        line_prefix=env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""), policy=args.policy, module=args.module,
        with_python=not args.no_python or args.run_path, config=args.config, given=given, unused=unused,
        own={"policy": args.ft_policy, "state_dir": args.ft_state_dir, "set": args.ft_set}, dry_run=args.ft_dry_run,
        verbose=args.ft_verbose,
    )  # fmt: skip


def _of_env(name: str, text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(
            f"PET_{_dest(name).upper()}={text}: invalid value for --{name}", hint="correct it, or unset it"
        ) from None


def _dest(name: str) -> str:
    return name.replace("-", "_")


def _node_bounds(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    bounds = [int(part) for part in (low, high if colon else low) if part.isascii() and part.isdecimal()]
    if len(bounds) < 2 or not 0 < bounds[0] <= bounds[1]:
        raise UsageError(f"--nnodes={text}: neither N nor MIN:MAX", hint="write --nnodes=4, or --nnodes=4:5 for a spare node")
    return bounds[0], bounds[1]


def _check(args: argparse.Namespace) -> None:
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

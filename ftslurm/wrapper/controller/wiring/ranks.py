"""What the ranks are started with, beside their environment: programs, ft_launcher's configuration, files of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ftslurm
from ftslurm.errors import LaunchFailed, UsageError
from ftslurm.launchers.placement import parse_multi_prog
from ftslurm.launchers.srun_options import Component, has_flag, option_value
from ftslurm.model.settings.tree import Settings
from ftslurm.model.text import counted, whole
from ftslurm.system.bundle import PACKAGES
from ftslurm.wrapper.controller.orders import RankSetup
from ftslurm.wrapper.controller.wiring.survey import Order

if TYPE_CHECKING:
    from ftslurm.launchers.rank_logs import RankLogs


def rank_setup(order: Order, settings: Settings, logs: RankLogs | None, bundle: str = "", alone: bool = False) -> RankSetup:
    """bundle: see Site. alone: see RankSetup. Raises: UsageError, PolicyError."""
    hang = settings.hang
    return RankSetup(
        _programs(order.components),
        partial(_logs_of, logs, order.env.get("ROLE_NAME", "default")) if logs is not None else None,
        settings.logs.tail_bytes, hang.interval_s if hang.log_silence else 0.0, _inject_folder(settings, bundle),
        _spare(settings), alone, beat_config(settings),
    )  # fmt: skip


def rank_logs_of(settings: Settings) -> RankLogs | None:
    """Files of their own for the ranks; None, and nothing is loaded for it, where nobody has asked for any."""
    if not (settings.logs.folder or settings.logs.cycle_files or settings.logs.local_ranks):
        return None
    from ftslurm.launchers.rank_logs import rank_logs

    return rank_logs(settings)


def _logs_of(logs: RankLogs, role: str, rank: int, place: tuple[int, int], size: int, cycle: int) -> dict[str, Any]:
    """For the rank's shim: `folder` to be made, empty for none, and the streams."""
    from ftslurm.launchers.rank_logs import told

    return {"folder": logs.rank_folder(*place, cycle), **told(logs.streams(rank, place, size, cycle, role))}


def _programs(components: tuple[Component, ...]) -> Callable[[int], Mapping[int, tuple[str, ...]]]:
    """For --multi-prog: how many tasks -> rank -> argv. Raises: UsageError when the file cannot be read."""
    first = components[0]
    if not has_flag(first.options, "multi-prog"):
        return lambda tasks: {}
    if len(components) > 1:
        raise UsageError("--multi-prog in a heterogeneous step is not supported", hint="give each component its program")
    file, *arguments = first.command
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--multi-prog: {file} cannot be read: {error}", hint="correct the path") from None
    return lambda tasks: parse_multi_prog(text, file, tuple(arguments), tasks)


def _inject_folder(settings: Settings, bundle: str) -> str:
    package = Path(bundle, PACKAGES, "ftslurm") if bundle else Path(ftslurm.__file__).resolve().parent
    return str(package / "sdk" / "inject") if settings.sdk.inject else ""


def _spare(settings: Settings) -> Mapping[str, object]:
    warm = settings.warm
    asked = {"after_s": warm.after_s, "memory": warm.memory << 20, "packages": ",".join(warm.packages)}
    return asked if warm.restart else {}


# --- ft_launcher's configuration


def _given(settings: Settings) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(settings.fault_tolerance) if settings.fault_tolerance else {}
    return values


def beat_config(settings: Settings) -> dict[str, Any]:
    """As it was given, and checked. Raises: PolicyError."""
    from ftslurm.model.settings.ft_config import limits_from

    values = _given(settings)
    limits_from(values)
    return values


def cycle_info_dir(settings: Settings) -> str:
    """Empty for none."""
    given = _given(settings).get("cycle_info_dir")
    return given if isinstance(given, str) and given.lower() not in ("none", "null") else ""


def keys_without_effect(settings: Settings) -> tuple[str, ...]:
    """A sentence for each."""
    from ftslurm.model.settings.ft_config import why_ignored

    return why_ignored(_given(settings))


def sdk_env(settings: Settings) -> dict[str, str]:
    """What the program interface in the ranks has to know. Raises: PolicyError."""
    from ftslurm.model.settings.ft_config import rank_env

    provide = {"FTSLURM_PROVIDE": ",".join(settings.sdk.provide)} if settings.sdk.provide else {}
    watch = {"FTSLURM_WATCH": settings.hang.watch} if settings.hang.watch != "L0" else {}
    return {**rank_env(beat_config(settings)), **provide, **watch}


def check_room(most: int, order: Order, nodes: int) -> None:
    """Each rank and each node's agent keeps a connection to ftrun. most: connections that ftrun may have at the same time.

    Raises: LaunchFailed before anything starts: ranks that cannot connect would name a firewall as the cause.
    """
    ranks = sum(_ranks_at_least(component.options, order.env, nodes) for component in order.components)
    if ranks + nodes > most:
        raise LaunchFailed(
            f"{ranks} ranks on {counted(nodes, 'node')} need {ranks + nodes} connections to ftrun, which may open {most} here",
            hint="raise the hard limit of open files where ftrun runs (`ulimit -Hn`; LimitNOFILE of slurmd)",
        )


def _ranks_at_least(options: Sequence[str], env: Mapping[str, str], nodes: int) -> int:
    """By what was said of their number; srun may make more of them."""
    if tasks := whole(option_value(options, "ntasks") or ""):
        return tasks
    said = any(has_flag(options, name) for name in ("nodes", "nodelist", "ntasks-per-node"))
    if not said and (tasks := whole(env.get("SLURM_NTASKS", ""))):
        return tasks
    wide = whole(option_value(options, "nodes") or "") or (1 if has_flag(options, "nodes") else nodes)
    return wide * (whole(option_value(options, "ntasks-per-node") or "") or 1)

"""AIMaster's own flags, as they stand in a DLC job's ErrorMonitoringArgs. Source: AIMaster, fault tolerance monitoring."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.settings.kinds import Layer, choice, count, share, suggestion, switch, value_of
from ftslurm.model.settings.tree import from_others
from ftslurm.model.values import dataclass

HINT = "AIMaster's flags are written --name=value"


@dataclass(frozen=True, slots=True)
class Flag:
    """kind: text in, value out, ValueError otherwise. default: AIMaster's own. leaf: what it sets; empty: see `_joined`."""

    kind: Callable[[Any], Any]
    default: Any
    leaf: str = ""


def seconds(value: Any) -> str:
    """A positive whole number of seconds, as a duration of the settings."""
    return f"{count(1, 100_000_000)(value)}s"


def pairs(value: Any) -> tuple[str, ...]:
    """`NAME=VALUE,NAME=VALUE`."""
    words = tuple(word.strip() for word in str(value).split(",") if word.strip())
    for word in words:
        name, equals, _ = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"`{word}` is not NAME=VALUE")
    return words


SYNC_ONLY = ("enable-job-hang-detection", "enable-job-exit-hang-detection")
# How long a job may make no progress, by whatever rule: its `job-hang-interval`.
INTERVALS = ("hang.detect_time", "hang.stall", "hang.stall_at_work", "hang.start")

FLAGS: Mapping[str, Flag] = {
    "job-execution-mode": Flag(choice("Sync", "Async"), "Sync", "mode"),
    "enable-job-restart": Flag(switch, False),
    "max-num-of-job-restart": Flag(count(1, 128), 3),
    "enable-job-hang-detection": Flag(switch, False, "hang.detection"),
    "job-hang-interval": Flag(seconds, "1800s", "hang.interval"),
    "enable-c4d-hang-detection": Flag(switch, False),
    "enable-job-exit-hang-detection": Flag(switch, False, "hang.exit_detection"),
    "job-exit-hang-interval": Flag(seconds, "600s", "hang.exit_interval"),
    "fault-tolerant-policy": Flag(choice("ExitCodeAndErrorMsg", "OnFailure", "Never"), "ExitCodeAndErrorMsg", "retry.policy"),
    "max-num-of-same-error": Flag(count(1, 100_000), 10, "retry.same_error"),
    "max-tolerated-failure-rate": Flag(share, -1.0, "retry.failure_rate"),
    "c4d-log-level": Flag(choice("Info", "Warning", "Error"), "Warning", "hang.c4d_level"),
    "c4d-common-envs": Flag(pairs, ()),
}


def parse(text: str, place: str) -> Layer:
    """The flags in `text`, with AIMaster's defaults for those not given, as a settings layer.

    Raises: PolicyError naming `place` and the flag: unknown, twice, or of no such value.
    """
    given = dict(_words(text, place))
    values = {name: given.get(name, flag.default) for name, flag in FLAGS.items()}
    for name in SYNC_ONLY:
        if values["job-execution-mode"] == "Async" and values[name]:
            raise PolicyError(f"{place}: --{name} is for Sync jobs only", hint="omit it, or pass --job-execution-mode=Sync")
    leaves = {flag.leaf: values[name] for name, flag in FLAGS.items() if flag.leaf}
    # Of C4D's variables two say when; the others are for its own library.
    when = from_others(
        dict(word.split("=", 1) for word in values["c4d-common-envs"]), f"{place}: --c4d-common-envs", "C4D_"
    ).values
    both = {**_joined(values), **when}
    return Layer(leaves | both, dict.fromkeys([*leaves, *both], place))


def _words(text: str, place: str) -> list[tuple[str, Any]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PolicyError(f"{place}: {error}", hint="close the quotation") from None
    found: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        name, equals, raw = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in FLAGS:
            raise PolicyError(f"{place}: AIMaster has no flag `{word}`{suggestion(name, FLAGS)}", hint=HINT)
        if not equals:
            if not words or words[0].startswith("--"):
                raise PolicyError(f"{place}: --{name} has no value", hint=f"write --{name}=VALUE")
            raw = words.pop(0)
        if name in found:
            raise PolicyError(f"{place}: --{name} is there twice", hint="keep one")
        found[name] = value_of(FLAGS[name].kind, raw, f"{place}: --{name}")
    return list(found.items())


def _joined(values: Mapping[str, Any]) -> dict[str, Any]:
    """A job restart starts all instances again: in place where that can work, without a bad node where it cannot.

    Not asked for, nothing is restarted but, in Async jobs, the instance that failed. A hang is no reason to restart a job
    that must not be restarted, and no rule of ours calls a hang what the job's own interval allows. One count holds for
    all restarts of the job, whatever their cause.
    """
    on, times = values["enable-job-restart"], values["max-num-of-job-restart"]
    hangs, exits = values["enable-job-hang-detection"], values["enable-job-exit-hang-detection"]
    return {
        "max_restarts": times,
        "max_job_restarts": times,
        "rungs.in-place-restart.enabled": on,
        "rungs.in-place-restart.crash_restarts": times if on else 0,
        "rungs.isolated-requeue.enabled": on,
        "rungs.unconditional-requeue.enabled": False,
        "rungs.node-replacement.enabled": False,
        "rungs.hang-restart.enabled": on and (hangs or exits),
        "rungs.hang-restart.in_a_row": times,
        "hang.log_silence": hangs,
        "hang.c4d": hangs and values["enable-c4d-hang-detection"],
        **dict.fromkeys(INTERVALS, values["job-hang-interval"]),
    }

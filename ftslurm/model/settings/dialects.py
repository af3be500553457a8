"""What others call our settings: ModelArts' annotations and variables, AIMaster's flags, C4D's variables. Text in, a layer of
settings out. ft_launcher's configuration, which its client reads too, is in ft_config.py.

Sources: ModelArts, fault recovery and hang detection; AIMaster, fault tolerance monitoring; Alibaba Cloud PAI, "Use C4D".
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.settings.kinds import Layer, choice, count, lead, share, suggestion, switch, value_of
from ftslurm.model.values import Value

# --- the four fault-tolerance annotations of ModelArts, as they stand in a job's JSON, and one of ours

PREFIX = "fault-tolerance/"
RETRY, UNCONDITIONAL, HANG, POD = (
    f"{PREFIX}{name}" for name in ("job-retry-num", "job-unconditional-retry", "hang-retry", "pod-retry-num")
)
# Ours, also without the others: TIME, or auto.
RESUME = f"{PREFIX}resume-at-limit"
_ANNOTATIONS: Mapping[str, Callable[[Any], Any]] = {
    RESUME: lead,
    RETRY: count(1, 128),
    UNCONDITIONAL: switch,
    HANG: switch,
    POD: count(1, 128),
}


def looks_like(text: str) -> bool:
    """Does a job's comment carry annotations? Any other comment is nobody's mistake."""
    return PREFIX in text and text.lstrip().startswith("{")


def unread(comment: str) -> str:
    """What to tell people of a job's comment that names annotations and is none, empty for any other: a shell eats the quotes and
    braces of `--comment={"...":"8"}`, and sbatch the double quotes of its directives."""
    if looks_like(comment) or not any(name in comment for name in _ANNOTATIONS):
        return ""
    return f"""the job's comment names annotations and is no JSON, so it sets nothing; write --comment='{{"{RETRY}": "8"}}'"""


def from_annotations(text: str, place: str) -> Layer:
    """The annotations in `text` (a bare map, or a whole job with metadata.annotations) as a settings layer.

    As in ModelArts, what is not asked for is off. Raises: PolicyError naming `place` and the annotation.
    """
    given = {key: value for key, value in _annotations(text, place).items() if key.startswith(PREFIX)}
    values = {key: _annotation(key, raw, place) for key, raw in given.items()}
    resume = {"time_limit.resume": given[RESUME]} if RESUME in values else {}
    if values.keys() <= {RESUME}:
        return Layer(resume, dict.fromkeys(resume, place))
    if RETRY not in values:
        raise PolicyError(
            f"{place}: {sorted(values.keys() - {RESUME})[0]} works only together with {RETRY}",
            hint=f'add "{RETRY}": "8" (1 to 128)',
        )
    leaves = {
        **resume,
        "max_restarts": values[RETRY],
        "rungs.in-place-restart.enabled": True,
        "rungs.in-place-restart.crash_restarts": 0,
        "rungs.isolated-requeue.enabled": True,
        "rungs.unconditional-requeue.enabled": values.get(UNCONDITIONAL, False),
        "rungs.hang-restart.enabled": values.get(HANG, False),
        "rungs.node-replacement.enabled": POD in values,
        "rungs.node-replacement.budget": values.get(POD, 0),
    }
    if values.get(UNCONDITIONAL):
        leaves["retry.policy"] = "OnFailure"  # there a job is rebuilt for whatever status but 0 it ended with
    return Layer(leaves, dict.fromkeys(leaves, place))


def _annotations(text: str, place: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        # The likely mistake: sbatch strips double quotes from its directives.
        hint = f"""write '{{"{RETRY}": "8"}}', in #SBATCH --comment with the single quotes"""
        raise PolicyError(f"{place}: not JSON: {error}", hint=hint) from None
    if isinstance(tree, dict) and isinstance(tree.get("metadata"), dict):
        tree = tree["metadata"].get("annotations", {})
    if not isinstance(tree, dict):
        raise PolicyError(f"{place}: annotations are a JSON object", hint=f'write {{"{RETRY}": "8"}}')
    return tree


def _annotation(key: str, raw: Any, place: str) -> Any:
    if key not in _ANNOTATIONS:
        raise PolicyError(
            f"{place}: unknown annotation {key}{suggestion(key, _ANNOTATIONS)}", hint=f"known: {', '.join(_ANNOTATIONS)}"
        )
    return value_of(_ANNOTATIONS[key], raw, f"{place}: {key}")


# --- variables


def _number_of(unit: str, unit_s: float = 1.0, also: str = "") -> Callable[[str], str]:
    """A number above 0 of that unit as a duration of ours, or the word `also` as it is."""

    def parse(raw: str) -> str:
        try:
            number = float(raw)
        except ValueError:
            number = 0.0
        if raw != also and not 0 < number < 1e6:
            raise ValueError(f"not a number of {unit}")
        return raw if raw == also else f"{number * unit_s:.3f}s"

    return parse


# Variable -> our setting, its value, and what to do about a wrong one.
_OTHERS: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "MA_HANG_DETECT_TIME": ("hang.detect_time", _number_of("minutes", 60.0), "write minutes, such as 30"),
    "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": (
        "requeue.cleanup_grace", _number_of("seconds, or -1", also="-1"), "write seconds, or -1, such as 10",
    ),
    "C4D_HANG_TIMEOUT": ("hang.c4d_timeout", _number_of("seconds"), "correct C4D_HANG_TIMEOUT, or unset it"),
    "C4D_HANG_TIMES": ("hang.c4d_times", count(1, 100_000), "correct C4D_HANG_TIMES, or unset it"),
}  # fmt: skip


def from_others(env: Mapping[str, str], place: str = "environment", prefix: str = "") -> Layer:
    """The variables of others as a layer. prefix: of those that count. Raises: PolicyError."""
    values, places = {}, {}
    for variable, (name, parse, hint) in _OTHERS.items():
        if variable.startswith(prefix) and (raw := env.get(variable, "").strip()):
            values[name] = value_of(parse, raw, f"{place}: {variable}={raw}", hint)
            places[name] = f"{place} {variable}"
    return Layer(values, places)


# --- AIMaster's own flags, as they stand in a DLC job's ErrorMonitoringArgs

HINT = "AIMaster's flags are written --name=value"


class Flag(Value):
    """kind: text in, value out, ValueError otherwise. default: AIMaster's own. leaf: what it sets; empty: see `_joined`."""

    kind: Callable[[Any], Any]
    default: Any
    leaf: str = ""


def _seconds(value: Any) -> str:
    """A positive whole number of seconds, as a duration of the settings."""
    return f"{count(1, 100_000_000)(value)}s"


def _pairs(value: Any) -> tuple[str, ...]:
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
    "job-hang-interval": Flag(_seconds, "1800s", "hang.interval"),
    "enable-c4d-hang-detection": Flag(switch, False),
    "enable-job-exit-hang-detection": Flag(switch, False, "hang.exit_detection"),
    "job-exit-hang-interval": Flag(_seconds, "600s", "hang.exit_interval"),
    "fault-tolerant-policy": Flag(choice("ExitCodeAndErrorMsg", "OnFailure", "Never"), "ExitCodeAndErrorMsg", "retry.policy"),
    "max-num-of-same-error": Flag(count(1, 100_000), 10, "retry.same_error"),
    "max-tolerated-failure-rate": Flag(share, -1.0, "retry.failure_rate"),
    "c4d-log-level": Flag(choice("Info", "Warning", "Error"), "Warning", "hang.c4d_level"),
    "c4d-common-envs": Flag(_pairs, ()),
}


def from_aimaster(text: str, place: str) -> Layer:
    """The flags in `text`, with AIMaster's defaults for those not given, as a settings layer.

    Raises: PolicyError naming `place` and the flag: unknown, twice, or of no such value.
    """
    given = dict(_flags(text, place))
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


def _flags(text: str, place: str) -> list[tuple[str, Any]]:
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

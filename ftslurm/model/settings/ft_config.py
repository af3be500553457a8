"""ft_launcher's fault tolerance configuration: its 34 keys (nvidia_resiliency_ext 0.7.0), and what follows from their values.

A value that is wrong is refused: there the whole file is dropped then without a word, and with it every timeout. Which keys ftrun
does in another way, or has no need of, is in catalogs/ft-launcher.yaml; their defaults are in sdk/nvrx_config.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.exits import signal_name
from ftslurm.model.settings.kinds import choice, count, suggestion, switch, value_of
from ftslurm.model.values import Value, field

RANK_VARIABLE = "FTSLURM_FT_CONFIG"  # as JSON, for the client in the rank
SECTIONS_MAX, NAME_BYTES = 48, 255  # what a rank's page can tell
HINT = "see ft_launcher's documentation of the key"


class BeatLimits(Value):
    """Seconds after which a rank that reports is overdue; None: not checked.

    initial_s: from the program's init to its first heartbeat. beat_s: between two. out_of_section_s: while no section is
    open. sections: while that section is open. warmup_steps: as many steps have the limit of the section `warmup`,
    if there is one.
    """

    initial_s: float | None = None
    beat_s: float | None = None
    out_of_section_s: float | None = None
    sections: Mapping[str, float | None] = field(default_factory=dict)
    warmup_steps: int = 5


# --- kinds of values


def quantity(least: float, most: float, wanted: str) -> Callable[[Any], float]:
    """least, most: both included. wanted: for people."""

    def parse(value: Any) -> float:
        number = _number(value)
        if not least <= number <= most:
            raise ValueError(f"`{value}` is out of range: {wanted}")
        return number

    return parse


_ABOVE_0 = math.ulp(0.0)
seconds = quantity(_ABOVE_0, 1e9, "more than 0 s")
factor = quantity(_ABOVE_0, 1e6, "more than 0")
amount = quantity(0, 1e12, "0 or more")


def limit(value: Any) -> float | None:
    """Seconds; null, `none` or nothing: not checked."""
    return None if _is_none(value) else seconds(value)


def sections(value: Any) -> dict[str, float | None]:
    """A mapping of names to seconds, or `name:seconds,name:none`."""
    if isinstance(value, str):
        pairs = [pair.rpartition(":") for pair in value.split(",") if pair.strip()]
        if missing := [name for _, colon, name in pairs if not colon]:
            raise ValueError(f"`{missing[0].strip()}` is not name:seconds")
        value = {name.strip(): text for name, _, text in pairs}
    if not isinstance(value, Mapping):
        raise ValueError("it is not a mapping of section names to seconds")
    if len(value) > SECTIONS_MAX:
        raise ValueError(f"there are {len(value)} sections; at most {SECTIONS_MAX} can be watched")
    found: dict[str, float | None] = {}
    for name, timeout in value.items():
        if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES:
            raise ValueError(f"`{name}` is not a valid section name")
        try:
            found[name] = limit(timeout)
        except ValueError as error:
            raise ValueError(f"section `{name}`: {error}") from None
    return found


def signal(value: Any) -> str:
    """A number or a name, as a name."""
    names = [signal_name(number) for number in range(1, 32)]
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 32:
        return names[value - 1]
    if str(value).upper() not in names:
        raise ValueError(f"`{value}` is not a signal")
    return str(value).upper()


def level(value: Any) -> int:
    names = {"DEBUG": 10, "DBG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50}
    if isinstance(value, int) and not isinstance(value, bool) and 10 <= value <= 50:
        return value
    if str(value).upper() not in names:
        raise ValueError(f"`{value}` is not a log level")
    return names[str(value).upper()]


def _text(value: Any) -> str | None:
    if not _is_none(value) and not isinstance(value, str):
        raise ValueError(f"`{value}` is not text")
    return None if _is_none(value) else value


def whole_or_none(value: Any) -> int | None:
    return None if _is_none(value) else count(1, 1_000_000)(value)


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null", ""))


def _number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"`{value}` is not a number")
    return number


def stop_action(value: Any) -> str | None:
    return None if _is_none(value) else choice("log", "no-restart")(value)


_BY_KIND: Mapping[Callable[[Any], Any], str] = {
    seconds: "workload_check_interval node_health_check_interval restart_check_interval gpu_memory_poll_interval",
    limit: "initial_rank_heartbeat_timeout rank_heartbeat_timeout rank_out_of_section_timeout",
    sections: "rank_section_timeouts",
    factor: "safety_factor",
    signal: "rank_termination_signal",
    level: "log_level",
    switch: "enable_nic_monitor enable_nic_healthcheck enable_dist_storage_healthcheck skip_section_response numa_bind_strict"
    " check_remaining_processes install_exception_hook",
    _text: "storage_healthcheck_path pci_topo_file link_down_path_template link_state_path_template checkpoint_iteration_file"
    " attribution_endpoint attribution_export_url cycle_info_dir segment_health_check_dir",
    whole_or_none: "segment",
    amount: "gpu_memory_reclaim_timeout gpu_memory_tolerance_mb",
    count(-1_000_000, 1_000_000): "max_no_progress_cycles",
    count(0, 1_000_000_000): "min_progress_iterations",
    count(0, 1_000_000): "num_warmup_iterations",
    stop_action: "attribution_stop_action",
}
KEYS: Mapping[str, Callable[[Any], Any]] = {name: kind for kind, names in _BY_KIND.items() for name in names.split()}
# Of earlier versions; without meaning here.
FORMER_KEYS = ("max_no_progress_restarts", "progress_update_interval", "attrsvc_host", "attrsvc_port")


# --- what was configured


_LIMITS = {
    "initial_rank_heartbeat_timeout": "initial_s",
    "rank_heartbeat_timeout": "beat_s",
    "rank_out_of_section_timeout": "out_of_section_s",
    "rank_section_timeouts": "sections",
    "num_warmup_iterations": "warmup_steps",
}


def limits_from(values: Mapping[str, Any], place: str = "the fault tolerance configuration") -> BeatLimits:
    """The limits in force. Raises: PolicyError naming `place` and the key: unknown, or of no such value."""
    known = checked_values(values, place)
    return BeatLimits(**{field_: known[key] for key, field_ in _LIMITS.items() if key in known})


def checked_values(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Each value as its key's kind has it. Raises: PolicyError."""
    found = {}
    for name, raw in values.items():
        if name in FORMER_KEYS:
            found[name] = raw
        elif kind := KEYS.get(name):
            found[name] = value_of(kind, raw, f"{place}: {name}")
        else:
            raise PolicyError(f"{place}: ft_launcher has no key `{name}`{suggestion(str(name), KEYS)}", hint=HINT)
    return found


_CALCULATED = {
    "first beat": "initial_rank_heartbeat_timeout",
    "beat": "rank_heartbeat_timeout",
    "out of section": "rank_out_of_section_timeout",
}


def calculated(words: Iterable[str]) -> dict[str, Any]:
    """What a program has calculated, as its client tells it (`beat 30 s`, `section step 12.5 s`), as values of the keys.

    What makes no sense is passed over.
    """
    found: dict[str, Any] = {}
    inside: dict[str, float] = {}
    for word in words:
        name, _, number = word.removesuffix(" s").rpartition(" ")
        try:
            value = seconds(number)
        except ValueError:
            continue
        if name in _CALCULATED:
            found[_CALCULATED[name]] = value
        elif name.startswith("section "):
            inside[name.removeprefix("section ")] = value
    return found | ({"rank_section_timeouts": inside} if inside else {})


def with_calculated(values: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with what was calculated later; of sections those that were not stay."""
    both = {**values, **later}
    if "rank_section_timeouts" in later:
        both["rank_section_timeouts"] = {**(values.get("rank_section_timeouts") or {}), **later["rank_section_timeouts"]}
    return both


def rank_env(values: Mapping[str, Any], place: str = "the fault tolerance configuration") -> dict[str, str]:
    """What the client in each rank has to know of it. Raises: PolicyError."""
    known = {name: value for name, value in checked_values(values, place).items() if name in KEYS}
    return {RANK_VARIABLE: json.dumps(known, separators=(",", ":"))} if known else {}

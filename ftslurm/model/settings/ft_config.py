"""ft_launcher's fault tolerance configuration: its 34 keys (nvidia_resiliency_ext 0.7.0), from YAML and from flags.

In a file a key that is not known is passed over, as there, and said; a section that is empty or missing leaves the defaults,
and null as a value its own. A value that is wrong is refused: there the whole file is dropped then without a word, and with
it every timeout. What ftrun does in another way, or has no need of, is accepted and named by `ignored`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.exits import signal_name
from ftslurm.model.settings.kinds import choice, count, suggestion, switch, value_of
from ftslurm.model.values import Value, field

RANK_VARIABLE = "FTSLURM_FT_CONFIG"  # as JSON, for the client in the rank
CONFIG_FLAGS = ("--ft-cfg-path", "--fault-tol-cfg-path")
IGNORED_FLAGS = ("--ft-ignore-missing-cfg", "--ignore-missing-fault-tol-cfg")
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


class Key(Value):
    """kind: raw value in, value out, ValueError otherwise. used: by ftrun or by the client in the rank."""

    kind: Callable[[Any], Any]
    default: Any
    used: bool = False


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


def anything(value: Any) -> Any:
    return value


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


KEYS: Mapping[str, Key] = {
    "workload_check_interval": Key(seconds, 5.0),  # here a page is looked at all the time
    "initial_rank_heartbeat_timeout": Key(limit, None, used=True),
    "rank_heartbeat_timeout": Key(limit, None, used=True),
    "rank_section_timeouts": Key(sections, {}, used=True),
    "rank_out_of_section_timeout": Key(limit, None, used=True),
    "node_health_check_interval": Key(seconds, 5.0),  # devices.poll
    "safety_factor": Key(factor, 5.0, used=True),
    "rank_termination_signal": Key(signal, "SIGKILL"),  # ranks are stopped by SIGTERM, grace, SIGKILL: stop.grace
    "log_level": Key(level, 20),
    "restart_check_interval": Key(seconds, 60.0),  # no effect there either
    "enable_nic_monitor": Key(switch, False),
    "enable_nic_healthcheck": Key(switch, True),
    "enable_dist_storage_healthcheck": Key(switch, False),
    "storage_healthcheck_path": Key(_text, None),
    "pci_topo_file": Key(_text, None),
    "link_down_path_template": Key(_text, None),
    "link_state_path_template": Key(_text, None),
    "skip_section_response": Key(switch, True),  # there is no response
    "segment": Key(whole_or_none, None),
    "numa_bind_strict": Key(switch, True),
    "gpu_memory_reclaim_timeout": Key(amount, 50.0),
    "gpu_memory_tolerance_mb": Key(amount, 512.0),
    "gpu_memory_poll_interval": Key(seconds, 2.0),
    "check_remaining_processes": Key(switch, False),  # it is proven that none is left
    "max_no_progress_cycles": Key(count(-1_000_000, 1_000_000), 3, used=True),
    "min_progress_iterations": Key(count(0, 1_000_000_000), 1, used=True),
    "checkpoint_iteration_file": Key(_text, None, used=True),
    "install_exception_hook": Key(switch, False, used=True),
    "num_warmup_iterations": Key(count(0, 1_000_000), 5, used=True),
    "attribution_endpoint": Key(_text, None),
    "attribution_stop_action": Key(lambda value: None if _is_none(value) else choice("log", "no-restart")(value), None),
    "attribution_export_url": Key(_text, None),
    "cycle_info_dir": Key(_text, None, used=True),
    "segment_health_check_dir": Key(_text, None),
}
# Keys without effect here, and why.
_SITES_CHECK = "the site's own check looks at the nodes (nodes.health_command)"
_NO_PROCESS_LEFT = "a start waits until it is proven that no process is left"
_NO_SERVICE = "failures are explained by codes and patterns, without a service (`ftslurm history JOB`, `ftslurm analyze LOG`)"
_NOT_USED: Mapping[str, str] = {
    "workload_check_interval": "the ranks' pages are looked at many times a second",
    "node_health_check_interval": "devices.poll says how often devices are looked at",
    "rank_termination_signal": "all ranks get SIGTERM, and SIGKILL after --workers-stop-timeout (stop.grace)",
    "log_level": "--ft-verbose (FTRUN_VERBOSE=1) tells more, and the ledger has it all",
    **dict.fromkeys(
        ("enable_nic_monitor", "enable_nic_healthcheck", "pci_topo_file", "link_down_path_template", "link_state_path_template",
         "enable_dist_storage_healthcheck", "storage_healthcheck_path"), _SITES_CHECK),
    **dict.fromkeys(("segment", "segment_health_check_dir"), "Slurm's topology places the nodes"),
    "numa_bind_strict": "Slurm binds (srun's --cpu-bind and --mem-bind)",
    **dict.fromkeys(
        ("gpu_memory_reclaim_timeout", "gpu_memory_tolerance_mb", "gpu_memory_poll_interval", "check_remaining_processes"),
        _NO_PROCESS_LEFT),
    **dict.fromkeys(
        ("attribution_endpoint", "attribution_export_url"), _NO_SERVICE),
    "attribution_stop_action": "ft_launcher --ft-attribution-endpoint=localhost takes it; for ftrun, retry.policy says it",
    "skip_section_response": "a section is written into memory, and nobody answers",
    "restart_check_interval": "it has none in ft_launcher either",
}  # fmt: skip
_FORMER = "it is of an earlier ft_launcher"
# The launcher's own flags beside the keys, and why they have no effect here.
_NO_LOG_SERVER = (
    "no server is needed: each rank appends to the file of --ft-per-cycle-applog-prefix, and what ftslurm has to tell is in its"
    " ledger (`ftslurm history JOB -v`)"
)
WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        ("ft-nvrx-logfile", "ft-enable-log-server", "ft-log-server-port", "ft-log-aggregator-count",
         "ft-log-leaf-max-queue-chunks", "ft-log-server-log-prefix", "ft-log-server-graceful-shutdown-timeout"), _NO_LOG_SERVER),
    **dict.fromkeys(
        ("ft-attribution-startup-timeout", "ft-attribution-llm-api-key-file", "ft-attribution-llm-base-url",
         "ft-attribution-llm-model", "ft-attribution-log-level", "ft-attribution-analysis-backend"), _NO_SERVICE),
    "ft-node-health-check-endpoint": "nodes.health_command checks the nodes",
    "ft-no-restart-exit-code": "ftrun ends with the program's status; `--ft-set no_restart_status=N` names another",
    "ft-per-cycle-applog-prefix": "srun's --output and --error name the files; logs.cycle_files makes one an attempt",
    "ft-rdzv-impl": "the ranks meet by MASTER_ADDR and MASTER_PORT, which are chosen at each start",
}  # fmt: skip
# Of earlier versions; without meaning here.
FORMER_KEYS = ("max_no_progress_restarts", "progress_update_interval", "attrsvc_host", "attrsvc_port")
# Flags whose name is not that of their key.
FLAG_NAMES = {"storage_health_check_path": "storage_healthcheck_path"}


# --- what was configured


def limits_from(values: Mapping[str, Any], place: str = "the fault tolerance configuration") -> BeatLimits:
    """The limits in force. Raises: PolicyError naming `place` and the key: unknown, or of no such value."""
    known = checked_values(values, place)
    return BeatLimits(
        initial_s=known.get("initial_rank_heartbeat_timeout"),
        beat_s=known.get("rank_heartbeat_timeout"),
        out_of_section_s=known.get("rank_out_of_section_timeout"),
        sections=known.get("rank_section_timeouts", {}),
        warmup_steps=known.get("num_warmup_iterations", KEYS["num_warmup_iterations"].default),
    )


def checked_values(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Each value as its key's kind has it. Raises: PolicyError."""
    found = {}
    for name, raw in values.items():
        key = Key(anything, None) if name in FORMER_KEYS else KEYS.get(name)
        if key is None:
            raise PolicyError(f"{place}: ft_launcher has no key `{name}`{suggestion(str(name), KEYS)}", hint=HINT)
        found[name] = value_of(key.kind, raw, f"{place}: {name}")
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


def ignored(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys among them that have no effect under ftrun, in order."""
    return tuple(sorted(name for name in values if name in FORMER_KEYS or (name in KEYS and not KEYS[name].used)))


def why_ignored(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each reason why keys among them have no effect."""
    by_reason: dict[str, list[str]] = {}
    for name in ignored(values):
        by_reason.setdefault(_NOT_USED.get(name, _FORMER), []).append(name)
    have = {True: "has", False: "have"}
    return tuple(f"{', '.join(names)} {have[len(names) == 1]} no effect here: {why}" for why, names in by_reason.items())


def rank_env(values: Mapping[str, Any], place: str = "the fault tolerance configuration") -> dict[str, str]:
    """What the client in each rank has to know of it. Raises: PolicyError."""
    known = {name: value for name, value in checked_values(values, place).items() if name in KEYS}
    return {RANK_VARIABLE: json.dumps(known, separators=(",", ":"))} if known else {}


def from_file(tree: Any, place: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values under `fault_tolerance` in a YAML tree, at whatever depth, and what of them is passed over, in sentences.

    Raises: PolicyError for a section that is no mapping, and for a value that is wrong.
    """
    sections_there = list(_sections(tree))
    if not sections_there:
        return {}, (f"{place}: it has no section `fault_tolerance`, so it sets nothing",)
    found = next((section for section in sections_there if section), None) or {}
    if not isinstance(found, Mapping):
        raise PolicyError(f"{place}: `fault_tolerance` is not a mapping of keys", hint="put the keys below `fault_tolerance:`")
    unknown = [name for name in found if name not in KEYS and name not in FORMER_KEYS]
    remarks = (f"{place}: ft_launcher has no key `{name}`{suggestion(str(name), KEYS)}: it is ignored" for name in unknown)
    known = {name: value for name, value in found.items() if name not in unknown and value is not None}
    return checked_values(known, place), tuple(remarks)


def _sections(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        if "fault_tolerance" in tree:
            yield tree["fault_tolerance"]
            return
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from _sections(item)


def from_flags(words: Sequence[str], place: str) -> tuple[dict[str, Any], str]:
    """ft_launcher's own flags: the values they give, still unchecked, and the path of the YAML file, empty if none.

    `--ft-param-<key>` (0.4) and `--ft-<key>`, with `-` or `_` in the key, a value after `=` or as the next word; a switch
    may stand alone. Raises: PolicyError for a flag that is none, or stands twice, or has no value.
    """
    left, found, path = list(words), {}, ""
    while left:
        word = left.pop(0)
        flag, equals, raw = word.partition("=")
        if flag.replace("_", "-") in IGNORED_FLAGS:
            continue
        if _launchers(flag):
            if not equals and left and not left[0].startswith("--"):
                left.pop(0)
            continue
        name = "" if flag.replace("_", "-") in CONFIG_FLAGS else _key_of(flag, place)
        if not equals:
            if left and not left[0].startswith("--"):
                raw = left.pop(0)
            elif name and KEYS[name].kind is switch:
                raw = "true"
            else:
                raise PolicyError(f"{place}: {flag} has no value", hint=f"write {flag}=VALUE")
        if name in found or (not name and path):
            raise PolicyError(f"{place}: {flag} is there twice", hint="keep one")
        if name:
            found[name] = raw
        else:
            path = raw
    return found, path


def is_flag(flag: str) -> bool:
    """Is it one of ft_launcher's, or may it be (`--ft-param-KEY`)? flag: with `-` for `_`."""
    known = (f"--{name}" for name in (*WITHOUT_EFFECT, *(f"ft-{key}".replace("_", "-") for key in (*KEYS, *FLAG_NAMES))))
    return flag.startswith("--ft-param-") or flag in (*CONFIG_FLAGS, *IGNORED_FLAGS, *known)


def _launchers(flag: str) -> str:
    """The name in WITHOUT_EFFECT that a flag is, else nothing."""
    name = flag.replace("_", "-").removeprefix("--").replace("ft-param-", "ft-", 1)
    return name if name in WITHOUT_EFFECT else ""


def without_effect(words: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each flag of the launcher's own among `words` that has no effect."""
    names = [name for word in words if (name := _launchers(word.partition("=")[0]))]
    return tuple(f"--{name} has no effect here: {WITHOUT_EFFECT[name]}" for name in dict.fromkeys(names))


def _key_of(flag: str, place: str) -> str:
    """The key that a flag sets. Raises: PolicyError."""
    words = flag.replace("_", "-")
    for prefix in ("--ft-param-", "--ft-"):
        if words.startswith(prefix):
            name = words.removeprefix(prefix).replace("-", "_")
            name = FLAG_NAMES.get(name, name)
            if name in KEYS:
                return name
    known = [f"--ft-{name.replace('_', '-')}" for name in KEYS]
    raise PolicyError(f"{place}: ft_launcher has no flag `{flag}`{suggestion(flag, known)}", hint=HINT)

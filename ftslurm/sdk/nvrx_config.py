"""FaultToleranceConfig of nvidia_resiliency_ext 0.7.0: its 34 keys, where they come from, how they are written.

Under ftrun it is ftrun that watches, so most keys say nothing to a rank; they are kept for programs that read them.
"""

# ruff: noqa: UP035, UP045 -- these types are looked up at runtime, where Python may be 3.8

from __future__ import annotations

import dataclasses
import logging
import os
import signal
from typing import Any, Mapping, Optional

# What ftrun was given as ft_launcher's configuration, as JSON: the keys that are not at their defaults.
VARIABLE = "FTSLURM_FT_CONFIG"
EVERY_SECTION = "every_section"  # in it: nothing was given, and it holds only what an earlier start has calculated
LEVELS = {
    "DEBUG": logging.DEBUG, "DBG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "WARN": logging.WARNING,
    "ERROR": logging.ERROR, "CRITICAL": logging.CRITICAL,
}  # fmt: skip


@dataclasses.dataclass
class FaultToleranceConfig:
    """Timeouts in seconds; None: not checked. Raises: ValueError for a signal or a log level that is none."""

    workload_check_interval: float = 5.0
    initial_rank_heartbeat_timeout: Optional[float] = None
    rank_heartbeat_timeout: Optional[float] = None
    rank_section_timeouts: Mapping[str, Optional[float]] = dataclasses.field(default_factory=dict)
    rank_out_of_section_timeout: Optional[float] = None
    node_health_check_interval: float = 5.0
    safety_factor: float = 5.0
    rank_termination_signal: signal.Signals = signal.SIGKILL
    log_level: int = logging.INFO
    restart_check_interval: float = 60.0
    enable_nic_monitor: bool = False
    enable_nic_healthcheck: bool = True
    enable_dist_storage_healthcheck: bool = False
    storage_healthcheck_path: Optional[str] = None
    pci_topo_file: Optional[str] = None
    link_down_path_template: Optional[str] = None
    link_state_path_template: Optional[str] = None
    skip_section_response: bool = True
    segment: Optional[int] = None
    numa_bind_strict: bool = True
    gpu_memory_reclaim_timeout: float = 50.0
    gpu_memory_tolerance_mb: float = 512.0
    gpu_memory_poll_interval: float = 2.0
    check_remaining_processes: bool = False
    max_no_progress_cycles: int = 3
    min_progress_iterations: int = 1
    checkpoint_iteration_file: Optional[str] = None
    install_exception_hook: bool = False
    num_warmup_iterations: int = 5
    attribution_endpoint: Optional[str] = None
    attribution_stop_action: Optional[str] = None
    attribution_export_url: Optional[str] = None
    cycle_info_dir: Optional[str] = None
    segment_health_check_dir: Optional[str] = None

    def __post_init__(self) -> None:
        self.rank_termination_signal = _signal(self.rank_termination_signal)
        self.log_level = _level(self.log_level)

    @property
    def is_progress_tracking_enabled(self) -> bool:
        return self.max_no_progress_cycles > 0

    @staticmethod
    def from_kwargs(ignore_not_recognized: bool = True, **kwargs: Any) -> FaultToleranceConfig:
        """Raises: ValueError for keys that are none of the 34, unless they are to be ignored."""
        unknown = {name: value for name, value in kwargs.items() if name not in KEYS}
        if unknown and not ignore_not_recognized:
            raise ValueError(f"Not recognized args: {unknown}")
        return FaultToleranceConfig(**{name: value for name, value in kwargs.items() if name in KEYS})

    @staticmethod
    def from_yaml_file(cfg_path: str, ignore_not_recognized: bool = True) -> FaultToleranceConfig:
        """From the `fault_tolerance` section of the file, at whatever depth it stands.

        Raises: ValueError if there is none; ImportError if this Python has no PyYAML.
        """
        yaml = _yaml("read")
        with open(cfg_path) as file:
            found = find_section(yaml.safe_load(file))
        if not found:
            raise ValueError(f"'fault_tolerance' section not found in config file {cfg_path}")
        return FaultToleranceConfig.from_kwargs(ignore_not_recognized, **found)

    @staticmethod
    def from_args(args: Any) -> FaultToleranceConfig:
        """From parsed arguments: defaults, over them the file in `ft_cfg_path`, over that `ft_<key>`.

        Also by their names in 0.4: `fault_tol_cfg_path`, `ft_param_<key>`. A file without the section is complained about.
        """
        config = FaultToleranceConfig()
        path = getattr(args, "ft_cfg_path", None) or getattr(args, "fault_tol_cfg_path", None)
        if path is not None:
            try:
                config = FaultToleranceConfig.from_yaml_file(path)
            except ValueError as error:
                logging.getLogger(__name__).warning("%s is not used: %s", path, error)
        for name in KEYS:
            value = getattr(args, f"ft_{name}", None)
            value = getattr(args, f"ft_param_{name}", None) if value is None else value
            if value is not None:
                setattr(config, name, _from_text(name, value))
        config.__post_init__()
        return config

    def to_yaml_file(self, cfg_path: str) -> None:
        """Raises: ImportError if this Python has no PyYAML."""
        yaml = _yaml("write")
        self.__post_init__()
        values = dataclasses.asdict(self)
        values["rank_termination_signal"] = self.rank_termination_signal.name
        values["rank_section_timeouts"] = dict(values["rank_section_timeouts"])
        with open(cfg_path, "w") as file:
            yaml.dump({"fault_tolerance": values}, file)


KEYS = tuple(field.name for field in dataclasses.fields(FaultToleranceConfig))
# Of these, text on a command line is a number, or `none`, `null` or nothing for None.
NUMBERS = [field.name for field in dataclasses.fields(FaultToleranceConfig) if field.type in ("float", "Optional[float]")]


def given_by_ftrun(env: Mapping[str, str] = os.environ) -> FaultToleranceConfig | None:
    """What ftrun was configured with; None if it was given nothing, or nothing that can be read."""
    text = env.get(VARIABLE, "")
    if not text:
        return None
    try:
        import json

        return FaultToleranceConfig.from_kwargs(**json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        logging.getLogger(__name__).warning("%s is not used: %s", VARIABLE, error)
        return None


def takes_every_section(env: Mapping[str, str] = os.environ) -> bool:
    """Is there no configuration? What an earlier start has calculated is none."""
    text = env.get(VARIABLE, "")
    return not text or f'"{EVERY_SECTION}":true' in text


def find_section(tree: Any) -> dict[str, Any] | None:
    """The mapping under the key `fault_tolerance`, in mappings and lists of any depth."""
    if isinstance(tree, dict):
        if "fault_tolerance" in tree:
            found = tree["fault_tolerance"]
            return found if isinstance(found, dict) else None
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            found = find_section(item)
            if found:
                return found
    return None


def _from_text(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name == "rank_section_timeouts":
        pairs = (pair.rpartition(":") for pair in value.split(",") if pair.strip())
        return {section.strip(): _number(seconds) for section, _, seconds in pairs}
    return _number(value) if name in NUMBERS else value


def _number(text: str) -> float | None:
    return None if text.strip().lower() in ("none", "null", "") else float(text)


def _signal(value: Any) -> signal.Signals:
    if isinstance(value, str):
        if value.upper() not in signal.Signals.__members__:
            raise ValueError(f"Invalid rank_termination_signal string: {value}")
        return signal.Signals[value.upper()]
    if isinstance(value, int):
        return signal.Signals(value)
    raise ValueError(f"Invalid value for rank_termination_signal: {value}")


def _level(value: Any) -> int:
    level = LEVELS.get(value.upper(), -1) if isinstance(value, str) else value
    if not isinstance(level, int) or not logging.DEBUG <= level <= logging.CRITICAL:
        raise ValueError(f"Invalid value for log_level: {value}")
    return level


def _yaml(verb: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError(f"PyYAML, which is needed to {verb} a config file, is not installed: pip install pyyaml") from None
    return yaml

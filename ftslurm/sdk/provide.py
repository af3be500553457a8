"""Makes `nvidia_resiliency_ext.fault_tolerance` and `aimaster.job_monitor` importable where they are not installed.

One finder at the end of sys.meta_path: it is asked for what nobody else has. A second one at the beginning, for the
packages that FTSLURM_PROVIDE names (`nvrx`, `aimaster`, with a comma between): there ours stand in front of the real
ones. FTSLURM_PROVIDE=off: of others' nothing is provided, only ftslurm itself. Loaded in every Python process of a
rank, so it imports nothing, not even `__future__`.
"""

import sys

TYPE_CHECKING = False  # to import it would cost each process 10 ms
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "FTSLURM_PROVIDE"
ROOT = __file__.rpartition("/")[0].rpartition("/")[0]  # the folder of the package ftslurm

_NVRX = "nvidia_resiliency_ext"
_FT = f"{_NVRX}.fault_tolerance"
_CLIENT = "RankMonitorClient RankMonitorClientError"
_STATES = "InvalidStateTransitionException RankMonitorState RankMonitorStateMachine"
# Module -> the word in FTSLURM_PROVIDE that asks for it, our module, the names it has.
MODULES = {
    _FT: (
        "nvrx",
        "nvrx",
        f"FaultToleranceConfig {_CLIENT} RankMonitorServer WorkloadAction WorkloadControlRequest {_STATES}",
    ),
    f"{_FT}.config": ("nvrx", "nvrx", "FaultToleranceConfig"),
    f"{_FT}.data": (
        "nvrx",
        "nvrx",
        "FT_LAUNCHER_IPC_SOCKET_ENV_VAR FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR HeartbeatTimeouts RankInfo SectionAction"
        " SectionTimeouts WorkloadAction WorkloadControlRequest",
    ),
    f"{_FT}.rank_monitor_client": ("nvrx", "nvrx", _CLIENT),
    f"{_FT}.rank_monitor_server": ("nvrx", "nvrx", "RankMonitorServer"),
    f"{_FT}.rank_monitor_state_machine": ("nvrx", "nvrx", _STATES),
    f"{_FT}.timeouts_calc": ("nvrx", "nvrx", "TimeoutsCalc TimeoutsCalcError"),
    "aimaster.job_monitor": ("aimaster", "aimaster", "Monitor PyTorchConfig Status TFConfig hang_detect"),
}
# Packages that only hold others, where there is no real one.
PARENTS = (_NVRX, "aimaster")
# Ours, for a training environment that ftslurm is not installed in, or an older one.
OWN = {"ftslurm": ROOT, "ftslurm.sdk": f"{ROOT}/sdk"}


class _Loader:
    """Fills a module with names of one of ours."""

    def __init__(self, ours: str = "", names: str = "") -> None:
        self._ours = ours
        self._names = names.split()

    def create_module(self, spec: "ModuleSpec") -> None:
        return None

    def exec_module(self, module: "ModuleType") -> None:
        if not self._ours:
            return
        import importlib

        ours = importlib.import_module(f"ftslurm.sdk.{self._ours}")
        module.__doc__ = ours.__doc__
        module.__dict__.update({name: getattr(ours, name) for name in self._names}, __all__=list(self._names))


class Finder:
    """asked: it stands first, for these words of FTSLURM_PROVIDE; none: it stands last, for all that is missing.

    others: not only ftslurm itself.
    """

    def __init__(self, asked: "Sequence[str]" = (), others: bool = True) -> None:
        self.asked = tuple(asked)
        self._others = others

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if not name.startswith(("nvidia_resiliency_ext", "aimaster", "ftslurm")):
            return None
        from importlib.machinery import ModuleSpec

        if name in MODULES and self._others:
            word, ours, names = MODULES[name]
            if self.asked and word not in self.asked:
                return None
            return ModuleSpec(name, _Loader(ours, names), is_package=name == _FT)  # type: ignore[arg-type]
        if self.asked:
            return None
        if name in PARENTS and self._others:
            return ModuleSpec(name, _Loader(), is_package=True)  # type: ignore[arg-type]
        if name in OWN:
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, f"{OWN[name]}/__init__.py", submodule_search_locations=[OWN[name]])
        return None


def install(env: "Mapping[str, str]") -> None:
    """Once a process. FTSLURM_PROVIDE with a word that is none of ours is the same as without it."""
    words = [word.strip() for word in env.get(VARIABLE, "").split(",")]
    if any(type(finder).__name__ == "Finder" and hasattr(finder, "asked") for finder in sys.meta_path):
        return
    asked = [word for word in words if word in ("nvrx", "aimaster")]
    if asked and "off" not in words:
        sys.meta_path.insert(0, Finder(asked))
    sys.meta_path.append(Finder(others="off" not in words))

"""Makes `nvidia_resiliency_ext.fault_tolerance` and `aimaster.job_monitor` importable where they are not installed.

One finder at the end of sys.meta_path: it is asked for what nobody else has. A second one at the beginning, for the
packages that FTSLURM_PROVIDE names (`nvrx`, `aimaster`, with a comma between): it puts our names into the real modules,
as soon as they are loaded. What of nvidia_resiliency_ext is neither ours nor installed is missing with a sentence.
Loaded in every Python process of a rank, so it imports nothing, not even `__future__`.
"""

import sys

TYPE_CHECKING = False  # to import it would cost each process 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

VARIABLE = "FTSLURM_PROVIDE"
ROOT = __file__.rpartition("/")[0].rpartition("/")[0]  # the folder of the package ftslurm

_NVRX = "nvidia_resiliency_ext"
_FT = f"{_NVRX}.fault_tolerance"
_CLIENT = "RankMonitorClient RankMonitorClientError"
_STATES = "InvalidStateTransitionException RankMonitorState RankMonitorStateMachine"
# Module -> our module, which is also the word in FTSLURM_PROVIDE that asks for it, and the names it has.
MODULES = {
    _FT: ("nvrx", f"FaultToleranceConfig {_CLIENT} RankMonitorServer WorkloadAction WorkloadControlRequest {_STATES}"),
    f"{_FT}.config": ("nvrx", "FaultToleranceConfig"),
    f"{_FT}.data": (
        "nvrx",
        "FT_LAUNCHER_IPC_SOCKET_ENV_VAR FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR HeartbeatTimeouts RankInfo"
        " SectionTimeouts WorkloadAction WorkloadControlRequest",
    ),
    f"{_FT}.rank_monitor_client": ("nvrx", _CLIENT),
    f"{_FT}.rank_monitor_server": ("nvrx", "RankMonitorServer"),
    f"{_FT}.rank_monitor_state_machine": ("nvrx", _STATES),
    f"{_FT}.timeouts_calc": ("nvrx", "TimeoutsCalc TimeoutsCalcError"),
    "aimaster.job_monitor": ("aimaster", "Monitor PyTorchConfig Status TFConfig hang_detect"),
}
# Packages that only hold others, where there is no real one.
PARENTS = (_NVRX, "aimaster")
# Ours, for a training environment that ftslurm is not installed in, or an older one.
OWN = {"ftslurm": ROOT, "ftslurm.sdk": f"{ROOT}/sdk"}


class _Loader:
    """Fills a module with names of one of ours. real: what loads the one that they go into; None where there is none."""

    def __init__(self, ours: str = "", names: str = "", real: "Any" = None) -> None:
        self._ours = ours
        self._names = names.split()
        self._real = real

    def create_module(self, spec: "ModuleSpec") -> None:
        return None

    def exec_module(self, module: "ModuleType") -> None:
        if not self._ours:
            return
        import importlib

        ours = importlib.import_module(f"ftslurm.sdk.{self._ours}")
        if self._real is not None:
            self._real.exec_module(module)
        else:
            module.__dict__.update(__all__=list(self._names), __doc__=ours.__doc__, __getattr__=_missing(module.__name__))
        module.__dict__.update({name: getattr(ours, name) for name in self._names})


def _missing(ours: str) -> "Callable[[str], object]":
    """For what the module has no name for."""

    def getattr_(name: str) -> object:
        why = f": ftslurm stands in for its client only, and {_NVRX} is not installed"
        raise AttributeError(name if name.startswith("__") else f"module {ours!r} has no {name!r}{why}")

    return getattr_


class Finder:
    """asked: it stands first, for these words of FTSLURM_PROVIDE; none: it stands last, for all that is missing."""

    def __init__(self, asked: "Sequence[str]" = ()) -> None:
        self.asked = tuple(asked)

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if not name.startswith(("nvidia_resiliency_ext", "aimaster", "ftslurm")):
            return None
        from importlib.machinery import ModuleSpec

        if name in MODULES:
            ours, names = MODULES[name]
            if self.asked and ours not in self.asked:
                return None
            return self._ours(name, path, ours, names)
        if self.asked:
            return None
        if name in PARENTS:
            return ModuleSpec(name, _Loader(), is_package=True)  # type: ignore[arg-type]
        if name in OWN:
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, f"{OWN[name]}/__init__.py", submodule_search_locations=[OWN[name]])
        if name.startswith(f"{_NVRX}.") and _is_missing():
            why = f"No module named {name!r}: {_NVRX} is not installed, and ftslurm stands in for the client of {_FT} only"
            raise ModuleNotFoundError(why, name=name)
        return None

    def _ours(self, name: str, path: object, ours: str, names: str) -> "ModuleSpec":
        """One of ours, or the real one with our names."""
        from importlib.machinery import ModuleSpec

        real = _real_spec(name, path) if self.asked else None
        if real is None:
            return ModuleSpec(name, _Loader(ours, names), is_package=name == _FT)  # type: ignore[arg-type]
        real.loader = _Loader(ours, names, real.loader)  # type: ignore[assignment]
        return real


def _real_spec(name: str, path: object) -> "ModuleSpec | None":
    """Of the module that our names go into; None where it is not installed."""
    for finder in sys.meta_path:
        found = None if isinstance(finder, Finder) else finder.find_spec(name, path, None)  # type: ignore[arg-type]
        if found is not None:
            return found
    return None


def _is_missing() -> bool:
    """Is the whole package ours?"""
    spec = getattr(sys.modules.get(_NVRX), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _Loader)


def install(env: "Mapping[str, str]") -> None:
    """To be called once a process. FTSLURM_PROVIDE with a word that is none of ours is the same as without it."""
    words = [word.strip() for word in env.get(VARIABLE, "").split(",")]
    asked = [word for word in words if word in ("nvrx", "aimaster")]
    if asked:
        sys.meta_path.insert(0, Finder(asked))
    sys.meta_path.append(Finder())

"""Makes `nvidia_resiliency_ext.fault_tolerance` and `aimaster.job_monitor` importable where they are not installed.

One finder at the end of sys.meta_path: it is asked for what nobody else has. A second one at the beginning, for the
packages that FTSLURM_PROVIDE names (`nvrx`, `aimaster`, with a comma between): there ours stand in front of the real
ones, with their names alone: every other name and module is the real one's. What of nvidia_resiliency_ext is neither ours
nor installed is missing with a sentence. FTSLURM_PROVIDE=off: of others' nothing is provided, only ftslurm itself.
Loaded in every Python process of a rank, so it imports nothing, not even `__future__`.
"""

import sys

TYPE_CHECKING = False  # to import it would cost each process 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

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
        "FT_LAUNCHER_IPC_SOCKET_ENV_VAR FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR HeartbeatTimeouts RankInfo SectionAction"
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
    """Fills a module with names of one of ours. real: gives the module that ours stands in for, None where there is none."""

    def __init__(self, ours: str = "", names: str = "", real: "Callable[[], ModuleType | None]" = lambda: None) -> None:
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
        module.__doc__ = ours.__doc__
        module.__dict__.update({name: getattr(ours, name) for name in self._names}, __all__=list(self._names))
        module.__dict__["__getattr__"] = _rest(module.__name__, self._real)


def _rest(ours: str, real: "Callable[[], ModuleType | None]") -> "Callable[[str], object]":
    """For what the module has no name for. The real module is loaded when the first such name is asked for."""
    loaded: list[object] = []

    def getattr_(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if not loaded:
            loaded.append(real())
        try:
            return getattr(loaded[0], name)
        except AttributeError:
            where = "the installed one has none" if loaded[0] is not None else f"{_NVRX} is not installed"
            text = f"module {ours!r} has no {name!r}: ftslurm stands in for its client only, and {where}"
            raise AttributeError(text) from None

    return getattr_


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
            ours, names = MODULES[name]
            if self.asked and ours not in self.asked:
                return None
            return self._ours(name, path, ours, names)
        if self.asked:
            return None
        if name in PARENTS and self._others:
            return ModuleSpec(name, _Loader(), is_package=True)  # type: ignore[arg-type]
        if name in OWN:
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, f"{OWN[name]}/__init__.py", submodule_search_locations=[OWN[name]])
        if name.startswith(f"{_NVRX}.") and self._others and _is_missing() and _is_import():
            why = f"No module named {name!r}: {_NVRX} is not installed, and ftslurm stands in for the client of {_FT} only"
            raise ModuleNotFoundError(why, name=name)
        return None

    def _ours(self, name: str, path: object, ours: str, names: str) -> "ModuleSpec":
        """One of ours; where it is a package its other modules are found where those of the real one are."""
        from importlib.machinery import ModuleSpec

        real = _real_spec(name, path) if self.asked else None
        loader = _Loader(ours, names, lambda: None if real is None else _loaded(real))
        spec = ModuleSpec(name, loader, is_package=name == _FT)  # type: ignore[arg-type]
        if name == _FT and real is not None and real.submodule_search_locations is not None:
            spec.submodule_search_locations = list(real.submodule_search_locations)
        return spec


def _real_spec(name: str, path: object) -> "ModuleSpec | None":
    """Of the module that ours stands in for; None where it is not installed."""
    for finder in sys.meta_path:
        found = None if isinstance(finder, Finder) else finder.find_spec(name, path, None)  # type: ignore[arg-type]
        if found is not None:
            return found
    return None


def _loaded(spec: "ModuleSpec") -> "ModuleType":
    """The real module, beside ours and not in sys.modules. Raises: what it raises."""
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def _is_missing() -> bool:
    """Is the whole package ours?"""
    spec = getattr(sys.modules.get(_NVRX), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _Loader)


def _is_import() -> bool:
    """Does an import ask, and not importlib.util.find_spec(), which wants to know whether there is one?"""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in ("find_spec", "_find_spec") and "_bootstrap" in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code.co_name == "_find_and_load_unlocked"


def install(env: "Mapping[str, str]") -> None:
    """To be called once a process. FTSLURM_PROVIDE with a word that is none of ours is the same as without it."""
    words = [word.strip() for word in env.get(VARIABLE, "").split(",")]
    asked = [word for word in words if word in ("nvrx", "aimaster")]
    if asked and "off" not in words:
        sys.meta_path.insert(0, Finder(asked))
    sys.meta_path.append(Finder(others="off" not in words))

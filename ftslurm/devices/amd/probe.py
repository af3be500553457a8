"""AMD GPUs, by amdsmi."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ftslurm.devices.amd import facts as amd_facts
from ftslurm.devices.gpu.library_child import LibraryChild, NoAnswer
from ftslurm.devices.gpu.looks import GpuLook, ResetAnswer
from ftslurm.devices.gpu.probe import Facts, GpuProbe, is_library_here
from ftslurm.system.commands import Runner

LIBRARY = "libamd_smi.so"


class Amd:
    """What is AMD's own in a GpuProbe. dev: where device nodes are."""

    kind = amd_facts.KIND
    facts: Facts = amd_facts
    library = "amdsmi"
    python_module = "amdsmi"
    extra = "amd"
    child = "ftslurm.devices.amd.child"
    visible: tuple[str, ...] = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    # GPUs of one XGMI hive: AMD does not promise that a reset of one leaves the others alone.
    shares_resets = True

    def __init__(self, env: Mapping[str, str], dev: Path = Path("/dev")) -> None:
        self._env = env
        self._dev = dev

    def here(self) -> bool:
        """/dev/kfd alone is no sign: the graphics of a desktop processor have it, and nothing could look at them."""
        rocm = self._env.get("ROCM_HOME") or self._env.get("ROCM_PATH") or "/opt/rocm"
        return is_library_here(LIBRARY, self._env, (f"{rocm}/lib",))

    def certain(self) -> bool:
        return (self._dev / "kfd").exists()

    def order_reset(self, look: GpuLook, child: LibraryChild, timeout_s: float) -> ResetAnswer:
        try:
            return amd_facts.read_reset(child.ask({"ask": "reset", "bus": look.bus}, timeout_s, lambda heard: None))
        except NoAnswer as silence:
            return ResetAnswer(None, f"reset: {silence}")


class AmdProbe(GpuProbe):
    """Reads the AMD GPUs of this node and heals them. run: not needed, there to be made like its neighbours."""

    def __init__(
        self,
        run: Runner,
        env: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        dev: Path = Path("/dev"),
    ) -> None:
        super().__init__(Amd(env, dev), env, sleep, clock)

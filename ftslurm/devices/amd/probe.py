"""AMD GPUs, by amdsmi."""

from __future__ import annotations

from ftslurm.devices.amd import facts as amd_facts
from ftslurm.devices.gpu.library_child import NoAnswer
from ftslurm.devices.gpu.looks import GpuLook, ResetAnswer
from ftslurm.devices.gpu.probe import Facts, GpuProbe, is_library_here

LIBRARY = "libamd_smi.so"


class AmdProbe(GpuProbe):
    """Reads the AMD GPUs of this node and heals them."""

    kind = amd_facts.KIND
    facts: Facts = amd_facts
    library = "amdsmi"
    python_module = "amdsmi"
    extra = "amd"
    child = "ftslurm.devices.amd.child"
    visible = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    # GPUs of one XGMI hive: AMD does not promise that a reset of one leaves the others alone.
    shares_resets = True

    def present(self) -> bool:
        """/dev/kfd alone is no sign: the graphics of a desktop processor have it, and nothing could look at them."""
        rocm = self._env.get("ROCM_HOME") or self._env.get("ROCM_PATH") or "/opt/rocm"
        return is_library_here(LIBRARY, self._env, (f"{rocm}/lib",))

    def certain(self) -> bool:
        return (self._dev / "kfd").exists()

    def order_reset(self, look: GpuLook, timeout_s: float) -> ResetAnswer:
        try:
            return amd_facts.read_reset(self._child.ask({"ask": "reset", "bus": look.bus}, timeout_s, lambda heard: None))
        except NoAnswer as silence:
            return ResetAnswer(None, f"reset: {silence}")

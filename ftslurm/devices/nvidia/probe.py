"""NVIDIA GPUs, by NVML through nvidia-ml-py, and nvidia-smi for the reset."""

from __future__ import annotations

from ftslurm.devices.gpu.looks import GpuLook, ResetAnswer
from ftslurm.devices.gpu.probe import Facts, GpuProbe, is_library_here
from ftslurm.devices.nvidia import nvml_facts
from ftslurm.errors import FtslurmError

LIBRARY = "libnvidia-ml.so.1"
TOOL = "nvidia-smi"


class NvidiaProbe(GpuProbe):
    """Reads the NVIDIA GPUs of this node and heals them."""

    kind = nvml_facts.KIND
    facts: Facts = nvml_facts
    library = "NVML"
    python_module = "pynvml"
    extra = "nvidia"
    child = "ftslurm.devices.nvidia.nvml_child"
    visible = ("CUDA_VISIBLE_DEVICES",)
    # The driver refuses to reset a GPU without the ones it is linked to.
    shares_resets = False

    def present(self) -> bool:
        """NVML makes the device nodes itself where nobody has yet, so the library is a sign of its own."""
        return self.certain() or is_library_here(LIBRARY, self._env)

    def certain(self) -> bool:
        return any(self._dev.glob("nvidia[0-9]*"))

    def order_reset(self, look: GpuLook, timeout_s: float) -> ResetAnswer:
        """By the PCI address, which nvidia-smi takes like a number: numbers shift when a GPU is missing."""
        self._child.close()
        argv = (TOOL, "--gpu-reset", "-i", look.bus or str(look.index))
        try:
            result = self._run(argv, timeout_s, env=dict(self._env))
        except (FtslurmError, OSError) as error:
            return ResetAnswer(False, f"not reset: {error}")
        return nvml_facts.parse_reset(result.status, result.stdout + "\n" + result.stderr)

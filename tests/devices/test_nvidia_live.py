"""The NVIDIA probe on a real GPU. Skipped, and saying so, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ftslurm.devices.nvidia import NvidiaProbe
from ftslurm.devices.probe import choose_probes
from ftslurm.model.devices import DeviceHealth
from ftslurm.system.commands import run

LOOK_S = 60.0  # without a persistence daemon the first look sets up every GPU


def gpus() -> list[str]:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]


GPUS = gpus()
pytestmark = pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU on this machine")


@pytest.fixture
def probe() -> Iterator[NvidiaProbe]:
    probe = NvidiaProbe(run, dict(os.environ))
    yield probe
    probe.close()


def test_the_gpus_that_nvidia_smi_lists_are_good(probe: NvidiaProbe) -> None:
    assert probe.present()
    assert "nvidia" in [kind.kind for kind in choose_probes(dict(os.environ), run)]
    answer = probe.read(LOOK_S)
    assert answer.error == ""
    assert [report.device for report in answer.reports] == [str(number) for number in range(len(GPUS))]
    for report, line in zip(answer.reports, GPUS, strict=True):
        assert (report.health, report.codes) == (DeviceHealth.GOOD, ())
        assert line.split("UUID: ")[1].rstrip(")") in report.detail
        assert "no events" not in report.detail


def test_a_look_costs_little(probe: NvidiaProbe) -> None:
    probe.read(LOOK_S)
    began = time.monotonic()
    probe.read(LOOK_S)
    assert time.monotonic() - began < 2


def test_utilisation_is_within_bounds(probe: NvidiaProbe) -> None:
    told = probe.utilisation(LOOK_S)
    assert [use.device for use in told] == [str(number) for number in range(len(GPUS))]
    for use in told:
        assert use.percent is not None and 0 <= use.percent <= 100
        assert use.memory_percent is not None and 0 <= use.memory_percent <= 100
        assert use.power_w is not None and 1 < use.power_w < 2000


def test_healing_an_idle_gpu_of_nothing(probe: NvidiaProbe) -> None:
    assert probe.heal("0", ("XID 31",), False, 5, 0).healed is True


# Writes far outside of everything, in the driver's own language: no toolkit is needed, the driver compiles it.
WILD_WRITE = r"""
import ctypes, sys
ptx = b'''.version 6.0
.target sm_60
.address_size 64
.visible .entry wild() { .reg .b64 %a; .reg .b32 %v; mov.u64 %a, 0xdead00000; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }
'''
cuda = ctypes.CDLL("libcuda.so.1")
context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
for status in (
    cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
    cuda.cuModuleLoadData(ctypes.byref(module), ptx), cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"wild"),
    cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None),
):
    if status:
        sys.exit(f"CUDA says {status} before the fault")
print(cuda.cuCtxSynchronize())
"""


def test_a_wild_write_is_an_xid_and_over_when_its_process_is(probe: NvidiaProbe) -> None:
    probe.read(LOOK_S)
    done = subprocess.run([sys.executable, "-c", WILD_WRITE], capture_output=True, text=True, timeout=180, check=False)
    if done.returncode != 0:
        pytest.skip(f"no CUDA to do wrong with: {done.stderr.strip()}")
    assert done.stdout.strip() in ("700", "719"), "an illegal address is what CUDA was to find"
    codes: tuple[str, ...] = ()
    for _ in range(20):
        codes = probe.read(LOOK_S).reports[0].codes
        if codes:
            break
        time.sleep(0.5)
    assert codes and set(codes) <= {"XID 31", "XID 13", "XID 43", "XID 45"}
    result = probe.heal("0", codes, False, 30, 0)
    assert result.healed is True, result.how
    assert probe.read(LOOK_S).reports[0].health is DeviceHealth.GOOD

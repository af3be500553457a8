"""What is said of failures that a real GPU, its driver and its libraries report, in their own words and frames.

Each program does one thing wrong; whose fault it is was written down before the first run. Skipped where no GPU is, or the
library that the program calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices.test_nvidia_live import GPUS

pytestmark = [pytest.mark.skipif(not GPUS, reason="no NVIDIA GPU on this machine"), pytest.mark.timeout(400)]

RUN_S = 300.0

# Name: (class, ranks, program).
WRONG = {
    "an index outside of its table, in a kernel": (
        "user-code",
        1,
        """
import torch
table, at = torch.zeros(4, device="cuda"), torch.tensor([9], device="cuda")
print(table[at].sum().item())
""",
    ),
    "a write outside of everything": (
        "user-code",
        1,
        """
import cupy
kernel = cupy.RawKernel('extern "C" __global__ void wild() { *(int *)0xdead00000 = 1; }', "wild")
kernel((1,), (1,), ())
cupy.cuda.Device().synchronize()
""",
    ),
    "a write to an odd address": (
        "user-code",
        1,
        """
import cupy
room = cupy.zeros(64, dtype=cupy.uint8)
kernel = cupy.RawKernel('extern "C" __global__ void odd(char *p) { *(double *)(p + 1) = 1.0; }', "odd")
kernel((1,), (1,), (room,))
cupy.cuda.Device().synchronize()
""",
    ),
    "a wild write that torch finds": (
        "user-code",
        1,
        """
import cupy, torch
torch.zeros(4, device="cuda")
kernel = cupy.RawKernel('extern "C" __global__ void wild() { *(int *)0xdead00000 = 1; }', "wild")
kernel((1,), (1,), ())
torch.cuda.synchronize()
""",
    ),
    "blocks that are too large": (
        "user-code",
        1,
        """
import cupy
kernel = cupy.RawKernel('extern "C" __global__ void nothing() { }', "nothing")
kernel((1,), (4096,), ())
""",
    ),
    "more memory than there is": (
        "oom",
        1,
        """
import torch
torch.empty(300 << 30, dtype=torch.uint8, device="cuda")
""",
    ),
    "more and more memory": (
        "oom",
        1,
        """
import torch
held = []
while True:
    held.append(torch.empty(4 << 30, dtype=torch.uint8, device="cuda"))
""",
    ),
    "cupy has more memory than there is": (
        "oom",
        1,
        """
import cupy
cupy.empty(300 << 30, dtype=cupy.uint8)
""",
    ),
    "JAX has more memory than there is": (
        "oom",
        1,
        """
import jax.numpy
print(jax.numpy.ones((300 << 30,), dtype=jax.numpy.int8).sum())
""",
    ),
    "no memory is left for a handle": (
        "oom",
        1,
        """
import torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (20 << 20), dtype=torch.uint8, device="cuda")
x = held[:65536].view(torch.float16).view(128, 256)
y = held[65536:131072].view(torch.float16).view(256, 128)
print((x @ y).sum().item())
""",
    ),
    "a GPU that is not there": (
        "user-code",
        1,
        """
import torch
torch.cuda.set_device(7)
""",
    ),
    "no GPU is visible": (
        "user-code",
        1,
        """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
torch.zeros(4, device="cuda")
""",
    ),
    "two ranks on one GPU": (
        "user-code",
        2,
        """
import os, torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl", rank=int(os.environ["SLURM_PROCID"]), world_size=2)
dist.all_reduce(torch.ones(4, device="cuda"))
torch.cuda.synchronize()
""",
    ),
    "shapes that do not fit": (
        "user-code",
        1,
        """
import torch
print(torch.ones(2, 3, device="cuda") @ torch.ones(4, 5, device="cuda"))
""",
    ),
    "tensors on two devices": (
        "user-code",
        1,
        """
import torch
print(torch.ones(3, device="cuda") + torch.ones(3))
""",
    ),
    "a kernel that does not compile": (
        "user-code",
        1,
        """
import cupy
cupy.RawKernel('extern "C" __global__ void bad() { no_such_thing(); }', "bad")((1,), (1,), ())
""",
    ),
    "a matrix that has no factor": (
        "user-code",
        1,
        """
import torch
torch.linalg.cholesky(-torch.eye(4, device="cuda"))
""",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_program_s_own_fault_on_a_gpu(name: str, tmp_path: Path) -> None:
    expected, ranks, text = WRONG[name]
    program = tmp_path / "program.py"
    program.write_text(text)
    said = verdict(program, ranks, tmp_path)
    if "ModuleNotFoundError" in said:
        pytest.skip(said.splitlines()[-1])
    print(said)
    first, rungs = judged(tmp_path)
    assert first == expected, said
    assert "isolated-requeue" not in rungs, "no healthy node is left for it"


def test_memory_that_somebody_else_holds(tmp_path: Path) -> None:
    hold = "import torch; free, _ = torch.cuda.mem_get_info(); x = torch.empty(free - (6 << 30), dtype=torch.uint8, device='cuda'); print('held', flush=True); input()"
    program = tmp_path / "program.py"
    program.write_text("import torch\ntorch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n")
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        said = verdict(program, 1, tmp_path)
    finally:
        holder.kill()
        holder.wait()
    print(said)
    assert judged(tmp_path)[0] == "oom", said


def judged(home: Path) -> tuple[str, list[str]]:
    """Of the run's ledger: the class of the first attempt's failure, and the rungs taken."""
    (ledger,) = (home / ".ftslurm/jobs").glob("*.jsonl")
    records = [json.loads(line) for line in ledger.read_text().splitlines()]
    classes = [each["error_class"] for each in records if each["kind"] == "Diagnosed"]
    return classes[0], [each["rung"] for each in records if each["kind"] == "Decided"]


def verdict(program: Path, ranks: int, home: Path) -> str:
    """What ftrun prints of a run that fails, on three nodes of its own that share this machine's GPU."""
    argv = [sys.executable, "-m", "ftslurm.cli.ftrun", "--ft-launcher", "local", "--ft-local-nodes", "3", "-N1", f"-n{ranks}",
            sys.executable, str(program)]  # fmt: skip
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(argv, env={**os.environ, "HOME": str(home), "PYTHONPATH": path}, cwd=home, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_S, check=False)  # fmt: skip
    assert done.returncode != 0, done.stdout
    return done.stdout

"""The parsers of what programs print: device tools and Slurm."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from ftslurm.devices import nvidia
from ftslurm.devices.ascend import npu_smi
from ftslurm.devices.gpu_looks import GpuLook, chosen
from ftslurm.devices.gpu_looks import ResetAnswer as GpuResetAnswer
from ftslurm.model import nodes
from ftslurm.model.devices import DeviceHealth, Severity
from ftslurm.model.job import Allocation
from ftslurm.slurm import parse, states
from ftslurm.slurm.cli_client import read_answer
from ftslurm.slurm.client import JobState, JobView, NodeState, NodeView
from ftslurm.slurm.env import read_allocation
from ftslurm.slurm.retries import COMPLAINTS, Complaint, parse_error
from ftslurm.system.commands import CommandResult
from tests.fuzz.hold import Parser
from tests.fuzz.inputs import (
    any_text,
    mutated,
    mutated_env,
)

RECORDED = Path(__file__).parents[1] / "recorded"


def texts(pattern: str) -> list[str]:
    found = [path.read_text() for path in sorted(RECORDED.glob(pattern))]
    assert found, f"nothing was recorded as {pattern}"
    return found


# --- npu-smi, nvidia-smi

NPU_SMI = mutated(texts("npu-smi/*.txt"), ("| NPU", "Health", "Bus-Id", "| 0 ", "Error Code", "Chip ID", "Status", "Message : "))
# `GPU 00000000:3B:00.0 was successfully reset.` and its like are nvidia-smi's own words.
NVIDIA_RESET = mutated(
    ["GPU 00000000:3B:00.0 was successfully reset.\nAll done.\n", "Unable to reset GPU: insufficient permissions.\n"],
    ("in use by another", "Successfully Reset"),
)
LONGEST_NUMBER = 4300  # that int() reads
LOOKS = (GpuLook(0, "GPU-1b2c"), GpuLook(1, "GPU-1b2d"), GpuLook(7, ""))


def _gpu_reset(given: tuple[int | None, str]) -> GpuResetAnswer:
    return nvidia.parse_reset(*given)


DEVICES = [
    Parser("npu-smi info", NPU_SMI, npu_smi.parse_info, npu_smi.InfoTable),
    Parser("npu-smi processes", NPU_SMI, npu_smi.parse_processes, npu_smi.ProcessTable),
    Parser("npu-smi health", NPU_SMI, npu_smi.parse_health, npu_smi.HealthBlock | None),
    Parser("npu-smi reset", NPU_SMI, npu_smi.parse_npu_reset, npu_smi.NpuResetAnswer),
    Parser(
        "npu-smi words",
        mutated(["OK", "Warning", "Alarm"]),
        lambda word: (npu_smi.health_of(word), npu_smi.severity_of(word)),
        tuple[DeviceHealth, Severity],
    ),
    Parser("nvidia-smi reset", st.tuples(st.none() | st.integers(-64, 255), NVIDIA_RESET), _gpu_reset, GpuResetAnswer),
    Parser(
        "CUDA_VISIBLE_DEVICES",
        mutated(["0", "0,1", "GPU-1b2c", "GPU-1b2d,7", "-1", "none"]).filter(lambda text: len(text) <= LONGEST_NUMBER),
        lambda text: chosen(text, LOOKS),
        frozenset[str] | None,
    ),
]

# --- Slurm

JOB_WORDS = ("JobId=1 ", "   JobState=", "   Comment=", "   NodeList=n[1-2]", "   NumNodes=", "ArrayTaskId=", "EndTime=", "(5)")
JOBS = mutated(texts("slurm/*/job-*.txt"), JOB_WORDS)
NODES = mutated(
    texts("slurm/*/nodes.txt"), ("NodeName=", " State=", " Reason=", " Comment=", " [root@1]", " Partitions=", "+DRAIN")
)
ENVIRONMENTS = [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in texts("slurm/*/env-*.txt")]
NODE_LISTS = mutated(
    ["n[1-3,7]", "n1", "gpu-a,gpu-b", "r[1-2]c[01-12]", "n[09-11],m2", "(null)", ""],
    ("[1-9]", "[0-65535]", "[1-65536]", "[0001-99999999]", "[1-9/2]", "!n2", "@*", "&", "^", "%d", "[a-z]", "[1-9]" * 9, ",,"),
)


def _job(text: str) -> JobView:
    number = text.partition("JobId=")[2][:12].split(" ")[0]
    return parse.parse_job(text, int(number) if number.isascii() and number.isdigit() else 1)


def _job_state(given: tuple[str, str, bool]) -> JobState:
    return states.job_state(*given)


def _answer(given: tuple[int | None, str, str]) -> str:
    return read_answer(CommandResult(("scontrol", "show"), *given))


WORDS = mutated(["RUNNING", "COMPLETING", "IDLE+DRAIN", "MIXED*", "alloc$-", "DOWN+NOT_RESPONDING"], ("+", "*", "~", "#"))
COMPLAINT_TEXTS = mutated(
    [f"slurm_load_jobs error: {each.words}\n" for each in COMPLAINTS] + ["1_2: No error\n1_3: Job is over\n"]
)
SLURM = [
    Parser("scontrol show job", JOBS, _job, JobView),
    Parser("scontrol show node", NODES, parse.parse_nodes, tuple[NodeView, ...]),
    Parser("scontrol show config", mutated(texts("slurm/*/config.txt")), parse.parse_config, dict[str, str]),
    Parser("node list of Slurm", NODE_LISTS, parse.node_names, tuple[str, ...]),
    Parser(
        "time of Slurm",
        mutated(["2026-11-21T12:00:00", "1795257741", "Unknown"]),
        parse.unix_time,
        int,
        raises=(ValueError,),
    ),
    Parser("state of a node", WORDS, states.node_state, NodeState),
    Parser("state of a job", st.tuples(WORDS, any_text, st.booleans()), _job_state, JobState),
    Parser("complaint of Slurm", COMPLAINT_TEXTS, parse_error, Complaint),
    Parser("answer of scontrol", st.tuples(st.none() | st.integers(-64, 255), JOBS, COMPLAINT_TEXTS), _answer, str),
    Parser(
        "SLURM_*",
        mutated_env(ENVIRONMENTS, sorted({name for env in ENVIRONMENTS for name in env})),
        read_allocation,
        Allocation | None,
    ),
    Parser("node list", NODE_LISTS, nodes.expand, tuple[str, ...]),
    Parser("node list, folded", st.lists(NODE_LISTS, max_size=5), nodes.fold_nodes, str),
]

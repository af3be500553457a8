"""Faults of devices, told to the stand-in for npu-smi."""

from __future__ import annotations

from tests.chaos.job import Job
from tests.chaos.victims import any_node, room_to_isolate

SELF_HEALING, CRITICAL = ("80C98008", "80E01801"), "80E18402"


def device_heals(job: Job) -> str:
    return fault(job, job.rng.choice(SELF_HEALING))


def device_heals_by_itself(job: Job) -> str:
    return fault(job, job.rng.choice(SELF_HEALING), "--heals-after", f"{job.rng.uniform(0.5, 3.0):.1f}")


def device_critical(job: Job) -> str:
    room_to_isolate(job)
    return fault(job, CRITICAL)


def device_thrice(job: Job) -> str:
    room_to_isolate(job)
    return fault(job, SELF_HEALING[0], "--times", "9", "--again-after", "1.5")


def device_does_not_heal(job: Job) -> str:
    room_to_isolate(job)
    return fault(job, SELF_HEALING[1], "--reset", job.rng.choice(["refused", "fail", "keeps"]))


def fault(job: Job, code: str, *options: str) -> str:
    node = any_node(job)
    device = f"{job.rng.randrange(2)}.0"
    npu(job, "inject", "--node", node, "--device", device, "--code", code, *options)
    return f"{code} on device {device} of {node}"


def device_tool_hangs(job: Job) -> str:
    node = any_node(job)
    npu(job, "tool", "hang", "--node", node)
    job.undo_in(job.rng.uniform(2.0, 8.0), lambda: npu(job, "tool", "ok", "--node", node))
    return f"npu-smi on {node}"


def npu(job: Job, *argv: str) -> None:
    job.world.cluster.answer(["npu-sim", *argv], env=job.told.env)

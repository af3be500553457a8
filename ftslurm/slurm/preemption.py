"""What Slurm does to a job at the end of the grace of a preemption: read from its answers. Pure.

Source: slurm_job_preempt_mode() and slurm_job_check_grace() of 22.05. With preempt/partition_prio the job's partition has the
mode, and with preempt/qos its QOS, or slurm.conf where that says nothing. A job that may not be requeued is cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftslurm.model.events import Preempted
from ftslurm.slurm.client import JobView
from ftslurm.slurm.parse import pairs


def end_of_grace(job: JobView, partition: str) -> int:
    """Unix seconds; 0 where nobody tells. partition: the answer of `scontrol show partition --oneliner`."""
    grace = dict(pairs(partition)).get("GraceTime", "")
    return job.preempt_time + int(grace) if re.fullmatch("[1-9][0-9]{0,8}", grace) else 0


def preempted(job: JobView, config: Mapping[str, str], partition: str, qos: str) -> Preempted | None:
    """None for a job that is not being preempted. config: Slurm's. qos: the answer of `scontrol show assoc_mgr flags=qos`."""
    if not job.preempt_time:
        return None
    if not job.requeue:
        return Preempted.ENDED
    by_qos = config.get("PreemptType", "") == "preempt/qos"
    mode = _of_qos(job.qos, qos) if by_qos else dict(pairs(partition)).get("PreemptMode", "")
    words = {*(mode or config.get("PreemptMode", "")).upper().split(",")}
    if "REQUEUE" in words:
        return Preempted.REQUEUED
    return Preempted.ENDED if "CANCEL" in words else Preempted.UNKNOWN


def _of_qos(name: str, text: str) -> str:
    """Its PreemptMode, empty where it has none or nothing tells: `OFF` means that slurm.conf decides."""
    blocks = re.split(r"^QOS=", text, flags=re.MULTILINE)
    block = next((block for block in blocks if block.startswith(f"{name}(")), "")
    mode = re.search(r"^\s*PreemptMode=(\S*)", block, re.MULTILINE)
    return "" if mode is None or mode[1] == "OFF" else mode[1]

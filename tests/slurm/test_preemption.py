"""What Slurm does at the end of the grace of a preemption, by its own answers (22.05)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.model.events import Preempted
from ftslurm.slurm.client import JobState, JobView
from ftslurm.slurm.parse import end_of_grace, preempted

JOB = JobView(7, JobState.RUNNING, requeue=True, qos="cheap", preempt_time=1000)
LOW = "PartitionName=low AllowGroups=ALL GraceTime=40 Hidden=NO OverTimeLimit=NONE PreemptMode=%s State=UP"
BY_PARTITION = {"PreemptType": "preempt/partition_prio", "PreemptMode": "GANG,CANCEL"}
BY_QOS = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
QOS = """Current Association Manager state

QOS Records

QOS=normal(1)
    MinTRESPJ=
    PreemptMode=OFF
    Priority=0
QOS=cheap(2)
    MinTRESPJ=
    PreemptMode=%s
    Priority=0
"""


@pytest.mark.parametrize(
    ("config", "mode", "found"),
    [
        (BY_PARTITION, "REQUEUE", Preempted.REQUEUED),
        (BY_PARTITION, "CANCEL", Preempted.ENDED),
        (BY_PARTITION, "", Preempted.ENDED),  # slurm.conf's
        (BY_QOS, "CANCEL", Preempted.ENDED),
        (BY_QOS, "OFF", Preempted.REQUEUED),  # slurm.conf's
        (BY_QOS, "WITHIN", Preempted.UNKNOWN),
    ],
)
def test_partition_or_qos_has_the_mode(config: dict[str, str], mode: str, found: Preempted) -> None:
    assert preempted(JOB, config, LOW % (mode if config is BY_PARTITION else "OFF"), QOS % mode) is found


def test_a_job_that_may_not_be_requeued_is_ended_and_one_that_is_not_preempted_neither() -> None:
    assert preempted(replace(JOB, requeue=False), BY_PARTITION, LOW % "REQUEUE", "") is Preempted.ENDED
    assert preempted(replace(JOB, preempt_time=0), BY_PARTITION, LOW % "REQUEUE", "") is None


def test_the_grace_is_the_partitions() -> None:
    assert end_of_grace(JOB, LOW % "REQUEUE") == 1040 and end_of_grace(JOB, "") == 0

"""Reports for programs. `version` grows when a name changes its meaning or goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from ftslurm.report.account.job import JobAccount
from ftslurm.report.account.jobs import JobsAccount

VERSION = 1


def of_job(job: JobAccount) -> dict[str, Any]:
    """Times in Unix seconds, durations in seconds. parts: seconds by part, which add up to whole_s."""
    return {"version": VERSION, "kind": "job", **_job(job)}


def of_jobs(jobs: JobsAccount) -> dict[str, Any]:
    """parts: seconds times GPUs or nodes (unit)."""
    body = {one.name: plain(getattr(jobs, one.name)) for one in fields(jobs) if one.name != "jobs"}
    short = [
        {key: value for key, value in _job(job).items() if key not in ("attempts", "failures", "events", "stretches")}
        for job in jobs.jobs
    ]
    return {"version": VERSION, "kind": "jobs", **body, "jobs": short}


def _job(job: JobAccount) -> dict[str, Any]:
    body = {one.name: plain(getattr(job, one.name)) for one in fields(job) if one.name not in ("spent", "failures")}
    failures = [
        {**plain(one), "lost_s": one.lost_s, "failed": one.outage.failed, "rung": one.outage.rung} for one in job.failures
    ]
    time = {
        "parts": plain(job.spent.parts), "whole_s": job.spent.whole_s, "lost_s": job.lost_s, "ettr": plain(job.ettr),
        "stretches": plain(job.spent.stretches), "rank_restarts": job.spent.rank_restarts,
        "tells_steps": job.spent.tells_steps,
    }  # fmt: skip
    return {**body, **time, "failures": failures}


def plain(value: Any) -> Any:
    """What json.dumps takes."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [plain(one) for one in value]
    return value

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
    failures = [{**plain(one), "lost_s": one.lost_s, "failed": one.outage.failed, "remedy": one.remedy} for one in job.failures]
    more = {"attempts": job.attempts, "events": job.events, "stretches": job.spent.stretches, "notes": job.notes}
    return {"version": VERSION, "kind": "job", **_short(job), **plain(more), "failures": failures}


def of_jobs(jobs: JobsAccount) -> dict[str, Any]:
    """parts: seconds times GPUs or nodes (unit)."""
    body = {one.name: plain(getattr(jobs, one.name)) for one in fields(jobs) if one.name != "jobs"}
    return {"version": VERSION, "kind": "jobs", **body, "jobs": [_short(job) for job in jobs.jobs]}


_LONG = frozenset({"spent", "failures", "attempts", "events", "notes"})


def _short(job: JobAccount) -> dict[str, Any]:
    body = {one.name: plain(getattr(job, one.name)) for one in fields(job) if one.name not in _LONG}
    time = {
        "parts": job.spent.parts, "whole_s": job.spent.whole_s, "lost_s": job.lost_s, "ettr": job.ettr,
        "rank_restarts": job.spent.rank_restarts, "tells_steps": job.spent.tells_steps,
        "failed": sum(one.outage.failed for one in job.failures), "interrupted": len(job.failures),
    }  # fmt: skip
    return {**body, **plain(time)}


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

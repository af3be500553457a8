"""Metrics as Prometheus reads them. Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` for counters.
No rank, node, code or message is a label: one job gives some dozens of series, whatever happens to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ftslurm.report.measures import JobOf

# Not `job`: Prometheus itself gives every series a label of that name.
JOB = ("cluster", "user", "job_id")


GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily
# name without `_total`, kind, help, further labels, field of Measures or Pulse
NAMES: tuple[tuple[str, type[CounterMetricFamily] | type[GaugeMetricFamily], str, tuple[str, ...], str], ...] = (
    ("ftslurm_job_state", GAUGE, "1 for the state that the job is in.", ("state",), "state"),
    ("ftslurm_job_start_time_seconds", GAUGE, "When the first ftrun of the job began, Unix time.", (), "began"),
    ("ftslurm_job_updated_timestamp_seconds", GAUGE, "Of the last entry in the job's ledger, Unix time.", (), "at"),
    ("ftslurm_job_attempts", COUNTER, "Starts of all ranks.", (), "attempts"),
    ("ftslurm_job_schedulings", COUNTER, "How often Slurm has started the job (MA_SCHEDULE_CNT).", (), "schedulings"),
    ("ftslurm_job_restarts", COUNTER, "Remedies, by rung of the ladder and cause.", ("rung", "cause"), "restarts"),
    # A gauge: the ledger may learn later that work was repeated.
    ("ftslurm_job_phase_seconds", GAUGE, "Where the job's time went, from its first ftrun on.", ("phase",), "seconds"),
    ("ftslurm_job_device_faults", COUNTER, "Fault codes of devices seen, by what they ask for.", ("fault_class",), "faults"),
    ("ftslurm_job_hangs", COUNTER, "Hangs seen, by what they were noticed.", ("sign",), "hangs"),
    ("ftslurm_job_messages", COUNTER, "Messages of the program to people.", (), "messages"),
    ("ftslurm_job_nodes", GAUGE, "Nodes that the job runs on.", (), "nodes"),
    ("ftslurm_job_tasks", GAUGE, "Ranks of the last attempt.", (), "tasks"),
    ("ftslurm_job_excluded_nodes", GAUGE, "Nodes that the job excludes.", (), "excluded"),
    ("ftslurm_job_budget_left", GAUGE, "What is left of a budget.", ("budget",), "budgets"),
    ("ftslurm_job_beats", COUNTER, "Signs of life of ranks and agents that have reached this ftrun.", (), "beats"),
    ("ftslurm_job_last_beat_timestamp_seconds", GAUGE, "When the last of them came, Unix time.", (), "beat_at"),
    ("ftslurm_job_connected_ranks", GAUGE, "Ranks that are in touch with this ftrun.", (), "ranks"),
    ("ftslurm_job_training_step", GAUGE, "The training step that the program has told.", (), "step"),
)
JOBS = "ftslurm_jobs"
# Of Pulse, that are 0 as long as nobody has told them.
NONE_YET = ("beat_at", "step")


def exposition(jobs: Sequence[JobOf], with_totals: bool = True) -> str:
    """The metrics in Prometheus' text format. with_totals: also the number of jobs in each state."""
    registry: Any = SimpleNamespace(collect=lambda: families(jobs, with_totals))  # nothing else of one is asked
    return generate_latest(registry).decode()


def families(jobs: Sequence[JobOf], with_totals: bool = True) -> list[Metric]:
    """The metrics that have values. Each job appears once: Prometheus rejects a whole file in which a series appears twice, so
    one user who reports a job twice would suppress everybody's metrics.
    """
    jobs = list({(job.user, job.measures.cluster, job.measures.job): job for job in jobs}.values())
    found: dict[str, Metric] = {name: kind(name, doc, labels=(*JOB, *more)) for name, kind, doc, more, _ in NAMES}
    for job in jobs:
        who = (job.measures.cluster, job.user, job.measures.job)
        for name, *_, field in NAMES:
            for more, value in _values(job, field):
                found[name].add_metric((*who, *more), value)  # type: ignore[attr-defined]
    told = [family for family in found.values() if family.samples]
    return [*told, _totals(jobs)] if with_totals else told


def _values(job: JobOf, field: str) -> list[tuple[tuple[str, ...], float]]:
    """Further labels, and the number; none for what is not known."""
    value = getattr(job.measures if hasattr(job.measures, field) else job.pulse, field, None)
    if isinstance(value, str):
        return [((value,), 1)]
    if isinstance(value, Mapping):
        return [((label,), number) for label, number in sorted(value.items())]
    if isinstance(value, tuple):
        return [(labels, number) for *labels, number in sorted(value)]
    return [] if value is None or (value == 0 and field in NONE_YET) else [((), value)]


def _totals(jobs: Sequence[JobOf]) -> Metric:
    family = GaugeMetricFamily(JOBS, "Jobs under ftrun, by state.", labels=("cluster", "user", "state"))
    for who, many in sorted(Counter((job.measures.cluster, job.user, job.measures.state) for job in jobs).items()):
        family.add_metric(who, many)
    return family

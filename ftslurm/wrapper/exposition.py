"""Metrics as Prometheus reads them. Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` for counters.
No rank, node, code or message is a label: one job gives some dozens of series, whatever happens to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ftslurm.report.measures import JobOf, Measures, Pulse

# Not `job`: Prometheus itself gives every series a label of that name.
JOB = ("cluster", "user", "job_id")


# name without `_total`, kind, help, further labels
NAMES: tuple[tuple[str, type[CounterMetricFamily] | type[GaugeMetricFamily], str, tuple[str, ...]], ...] = (
    ("ftslurm_job_state", GaugeMetricFamily, "1 for the state that the job is in.", ("state",)),
    ("ftslurm_job_start_time_seconds", GaugeMetricFamily, "When the first ftrun of the job began, Unix time.", ()),
    ("ftslurm_job_updated_timestamp_seconds", GaugeMetricFamily, "Of the last entry in the job's ledger, Unix time.", ()),
    ("ftslurm_job_attempts", CounterMetricFamily, "Starts of all ranks.", ()),
    ("ftslurm_job_schedulings", CounterMetricFamily, "How often Slurm has started the job (MA_SCHEDULE_CNT).", ()),
    ("ftslurm_job_restarts", CounterMetricFamily, "Remedies, by rung of the ladder and cause.", ("rung", "cause")),
    # A gauge: the ledger may learn later that work was repeated.
    ("ftslurm_job_phase_seconds", GaugeMetricFamily, "Where the job's time went, from its first ftrun on.", ("phase",)),
    ("ftslurm_job_device_faults", CounterMetricFamily, "Fault codes of devices seen, by what they ask for.", ("fault_class",)),
    ("ftslurm_job_hangs", CounterMetricFamily, "Hangs seen, by what they were noticed.", ("sign",)),
    ("ftslurm_job_messages", CounterMetricFamily, "Messages of the program to people.", ()),
    ("ftslurm_job_nodes", GaugeMetricFamily, "Nodes that the job runs on.", ()),
    ("ftslurm_job_tasks", GaugeMetricFamily, "Ranks of the last attempt.", ()),
    ("ftslurm_job_excluded_nodes", GaugeMetricFamily, "Nodes that the job excludes.", ()),
    ("ftslurm_job_budget_left", GaugeMetricFamily, "What is left of a budget.", ("budget",)),
    ("ftslurm_job_beats", CounterMetricFamily, "Signs of life of ranks and agents that have reached this ftrun.", ()),
    ("ftslurm_job_last_beat_timestamp_seconds", GaugeMetricFamily, "When the last of them came, Unix time.", ()),
    ("ftslurm_job_connected_ranks", GaugeMetricFamily, "Ranks that are in touch with this ftrun.", ()),
    ("ftslurm_job_training_step", GaugeMetricFamily, "The training step that the program has told.", ()),
)
JOBS = "ftslurm_jobs"


def exposition(jobs: Sequence[JobOf], with_totals: bool = True) -> str:
    """The metrics in Prometheus' text format. with_totals: also the number of jobs in each state."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families(jobs, with_totals)))
    return generate_latest(registry).decode()


def families(jobs: Sequence[JobOf], with_totals: bool = True) -> list[Metric]:
    """The metrics that have values. Each job appears once: Prometheus rejects a whole file in which a series appears twice, so
    one user who reports a job twice would suppress everybody's metrics.
    """
    jobs = list({(job.user, job.measures.cluster, job.measures.job): job for job in jobs}.values())
    found: dict[str, Metric] = {name: kind(name, doc, labels=(*JOB, *more)) for name, kind, doc, more in NAMES}
    for job in jobs:
        who = (job.measures.cluster, job.user, job.measures.job)
        for name, more, value in (*_of_measures(job.measures), *_of_pulse(job.pulse)):
            found[name].add_metric((*who, *more), value)  # type: ignore[attr-defined]
    told = [family for family in found.values() if family.samples]
    return [*told, _totals(jobs)] if with_totals else told


def _of_measures(m: Measures) -> Iterable[tuple[str, tuple[str, ...], float]]:
    yield "ftslurm_job_state", (m.state,), 1
    yield "ftslurm_job_start_time_seconds", (), m.began
    yield "ftslurm_job_updated_timestamp_seconds", (), m.at
    yield "ftslurm_job_attempts", (), m.attempts
    yield "ftslurm_job_schedulings", (), m.schedulings
    yield "ftslurm_job_messages", (), m.messages
    yield "ftslurm_job_nodes", (), m.nodes
    yield "ftslurm_job_tasks", (), m.tasks
    yield "ftslurm_job_excluded_nodes", (), m.excluded
    for rung, cause, many in sorted(m.restarts):
        yield "ftslurm_job_restarts", (rung, cause), many
    for name, counts in (
        ("ftslurm_job_phase_seconds", m.seconds), ("ftslurm_job_device_faults", m.faults), ("ftslurm_job_hangs", m.hangs),
        ("ftslurm_job_budget_left", m.budgets),
    ):  # fmt: skip
        values: Mapping[str, float] = counts
        for label, value in sorted(values.items()):
            yield name, (label,), value


def _of_pulse(pulse: Pulse | None) -> Iterable[tuple[str, tuple[str, ...], float]]:
    if pulse is None:
        return
    yield "ftslurm_job_beats", (), pulse.beats
    yield "ftslurm_job_connected_ranks", (), pulse.ranks
    if pulse.beat_at:
        yield "ftslurm_job_last_beat_timestamp_seconds", (), pulse.beat_at
    if pulse.step:
        yield "ftslurm_job_training_step", (), pulse.step


def _totals(jobs: Sequence[JobOf]) -> Metric:
    family = GaugeMetricFamily(JOBS, "Jobs under ftrun, by state.", labels=("cluster", "user", "state"))
    for who, many in sorted(Counter((job.measures.cluster, job.user, job.measures.state) for job in jobs).items()):
        family.add_metric(who, many)
    return family


class _Families:
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found

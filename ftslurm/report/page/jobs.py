"""Many jobs as a document. Pure."""

from __future__ import annotations

from ftslurm.model.text import counted
from ftslurm.report.account.job import ASSUMPTION
from ftslurm.report.account.jobs import METHOD, JobsAccount, Mtbf
from ftslurm.report.account.parts import LOST
from ftslurm.report.page import document as doc
from ftslurm.report.page import plots
from ftslurm.report.page.job import part_rows
from ftslurm.report.words import day, moment, span

JOBS_MOST = 500


def jobs_document(jobs: JobsAccount, now: float, title: str = "Training jobs") -> doc.Document:
    return doc.Document(
        doc.cell(f"{title}, {day(jobs.began)} to {day(jobs.ended)}"), f"{counted(len(jobs.jobs), 'job')} that ran under ftrun",
        _figures(jobs),
        (_summary(jobs), _time(jobs), _kinds(jobs), _nodes(jobs), _mtbf(jobs), _remedies(jobs), _jobs(jobs), _method(jobs)),
        f"ftslurm report, {moment(now)} {doc.zone()}; from ledgers alone",
    )  # fmt: skip


def _figures(jobs: JobsAccount) -> tuple[doc.Figures, ...]:
    whole, lost, mean = sum(jobs.parts.values()), sum(jobs.parts[part] for part in LOST), jobs.by_job.mean_s
    saved = doc.hours(jobs.saved.gpu_s) if jobs.saved.gpu_s else span(jobs.saved.seconds)
    unit = "GPU-hours saved" if jobs.saved.gpu_s else "Saved"
    return (
        doc.share_of("Goodput", jobs.goodput, f"{doc.hours(whole)} {jobs.unit}-hours"),
        doc.Figures("Lost", doc.hours(lost), f"{jobs.unit}-hours"),
        doc.Figures("Failures", str(jobs.failures), f"mean time between: {span(mean) if mean else '-'}"),
        doc.Figures(unit, saved, f"against {jobs.saved.outages} plain requeues"),
    )


def _summary(jobs: JobsAccount) -> doc.Section:
    states = ", ".join(f"{state} {count}" for state, count in sorted(jobs.states.items(), key=lambda item: -item[1]))
    return doc.Section("summary", "Summary", (
        doc.facts(
            ("from", moment(jobs.began)), ("to", moment(jobs.ended)), ("jobs", f"{len(jobs.jobs)} ({states})"),
            ("interruptions", f"{jobs.interruptions} by people or Slurm, and {jobs.drills} drills: no failures"),
            ("not read", f"{len(jobs.passed_over)} of the ledgers" if jobs.passed_over else ""),
        ),
    ))  # fmt: skip


def _time(jobs: JobsAccount) -> doc.Section:
    rows = part_rows(jobs.parts, doc.hours)
    return doc.Section("time", "Where the time went", (
        *plots.parts_of(f"{jobs.unit}-hours of all jobs, by what they went for.", jobs.parts, lambda of: f"{doc.hours(of)} h"),
        *plots.bins(jobs),
        doc.table_of(("part", f"{jobs.unit}-hours", "share", "what it is"), rows, (1, 2)),
    ))  # fmt: skip


def _kinds(jobs: JobsAccount) -> doc.Section:
    rows = [
        (
            kind.name, kind.error_class, kind.count, len(kind.jobs), _few(kind.nodes), span(kind.lost_s),
            ", ".join(f"{rung} {count}" for rung, count in kind.rungs.items()), moment(kind.last_at), kind.example,
        )
        for kind in jobs.kinds
    ]  # fmt: skip
    head = ("what", "whose", "times", "jobs", "nodes", "lost", "answered by", "last", "for example")
    return doc.Section("kinds", "What failed most", (
        *plots.kinds(jobs),
        doc.table_of(head, rows, (2, 3, 5), empty="nothing has failed", most=100),
    ))  # fmt: skip


def _few(names: tuple[str, ...], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _nodes(jobs: JobsAccount) -> doc.Section:
    rows = [
        (line.node, line.failures, line.faults, line.excluded, line.reinstated, _few(line.jobs), moment(line.last_at), line.why)
        for line in jobs.nodes
    ]
    head = ("node", "failures", "device faults", "excluded", "reinstated", "jobs", "last", "why")
    return doc.Section("nodes", "Nodes", (
        *plots.nodes(jobs),
        doc.table_of(head, rows, (1, 2, 3, 4), empty="nothing is held against any node"),
    ))  # fmt: skip


def _mtbf(jobs: JobsAccount) -> doc.Section:
    rows = [("any failure, of a running job", *_row(jobs.by_job)), ("a node or a device failed, by node", *_row(jobs.by_node))]
    if jobs.by_gpu is not None:
        rows.append(("a node or a device failed, by GPU", *_row(jobs.by_gpu)))
    percent_ = f"{100 * jobs.by_job.level:g} %"
    return doc.Section("mtbf", "Mean time between failures", (
        doc.table_of(("of what", "failures", "in hours", "mean", f"{percent_} interval"), rows, (1, 2)),
        doc.Text(f"The hours are those in which ranks ran, times the nodes or GPUs they had. {METHOD[0].upper()}{METHOD[1:]}."),
    ))  # fmt: skip


def _row(found: Mtbf) -> tuple[str, ...]:
    high = span(found.high_s) if found.high_s is not None else "no upper end"
    mean = span(found.mean_s) if found.mean_s is not None else "none came"
    interval = f"{span(found.low_s)} to {high}" if found.exposure_s else "-"
    return str(found.count), doc.hours(found.exposure_s), mean, interval


def _remedies(jobs: JobsAccount) -> doc.Section:
    rows = [(line.rung, line.taken, line.back, span(line.median_s) if line.median_s is not None else "-") for line in jobs.rungs]
    head = ("remedy", "taken", "ranks ran again", "median time until then")
    return doc.Section("remedies", "Remedies", (doc.table_of(head, rows, (1, 2, 3), empty="none were needed"),))


def _jobs(jobs: JobsAccount) -> doc.Section:
    several = any(job.user for job in jobs.jobs)
    rows = [
        (
            ".".join(filter(None, (job.summary.cluster, job.summary.job))), *((job.user,) if several else ()), job.summary.state,
            moment(job.began), span(job.spent.whole_s), job.gpus if job.gpus > 0 else "-", job.starts,
            sum(one.outage.failed for one in job.failures), doc.ratio(job.spent.ettr), span(job.lost_s), job.summary.command,
        )
        for job in jobs.jobs
    ]  # fmt: skip
    head = (
        "job", *(("user",) if several else ()), "state", "from", "time", "GPUs", "attempts", "failures", "effective", "lost",
        "command",
    )  # fmt: skip
    first = 3 + several
    return doc.Section("jobs", "Jobs, those that lost most first", (
        doc.table_of(head, rows, range(first, first + 6), empty="none", most=JOBS_MOST),
        *((doc.table_of(("not read",), ((why,) for why in jobs.passed_over)),) if jobs.passed_over else ()),
    ))  # fmt: skip


def _method(jobs: JobsAccount) -> doc.Section:
    known = "each GPU counts the same" if jobs.unit == "GPU" else "GPUs are not known for all jobs: each node counts the same"
    notes = list(dict.fromkeys(note for job in jobs.jobs for note in job.notes))[:6]
    texts = (
        f"Goodput: time in which ranks did new work, of all time of all jobs in the period ({known}). Starts, work done again "
        "and every wait count as lost, also in the queue of a requeue. Where something is not known it is a range.",
        f"Saved: {ASSUMPTION}.",
        *notes,
    )
    return doc.Section("method", "How this was computed", tuple(doc.Text(text) for text in texts))

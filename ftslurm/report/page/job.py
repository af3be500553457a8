"""One job as a document. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftslurm.model.folds.history import counters_of_attempt
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.text import counted
from ftslurm.report.account.job import ASSUMPTION, FAILURES_SHOWN, Failure, JobAccount, Saved
from ftslurm.report.account.parts import LOST, UNSURE, Part
from ftslurm.report.moments import exits, hang_words
from ftslurm.report.page import document as doc
from ftslurm.report.page import plots
from ftslurm.report.page.plots import MEANINGS, SHORT
from ftslurm.report.view import AttemptView
from ftslurm.report.words import budgets, moment, span


def job_document(job: JobAccount, now: float, evidence: Mapping[str, str] | None = None) -> doc.Document:
    """evidence: name of a file (attempt-3.n2.txt) -> what hung ranks were doing."""
    where = f" on {job.summary.cluster}" if job.summary.cluster else ""
    return doc.Document(
        doc.cell(f"Job {job.summary.job}{where}"), doc.cell(job.summary.command, 400), _figures(job),
        tuple(section for section in (
            _summary(job), _time(job), _timeline(job), _outages(job), _failures(job, evidence or {}), _attempts(job), _nodes(job),
            _method(job),
        ) if section.blocks),
        f"ftslurm report, {moment(now)} {doc.zone()}; from the job's ledger alone",
    )  # fmt: skip


def _figures(job: JobAccount) -> tuple[doc.Figures, ...]:
    failed = sum(one.outage.failed for one in job.failures)
    others = len(job.failures) - failed
    gpu_lost = sum(each.seconds * max(0, each.gpus) for each in job.spent.stretches if each.part in LOST)
    starts = counted(len(job.attempts), "attempt")
    return (
        doc.share_of("Effective training time", job.spent.ettr, span(job.spent.whole_s)),
        doc.Figures("Lost", span(job.lost_s), f"{doc.hours(gpu_lost)} GPU-hours" if gpu_lost else f"over {starts}"),
        doc.Figures("Failures", str(failed), counted(others, "other interruption") if others else starts),
        doc.Figures("Saved", span(job.saved.seconds), _against(job.saved)) if job.saved.outages else
        doc.Figures("Attempts", str(len(job.attempts)), "starts of all ranks"),
    )  # fmt: skip


def _against(known: Saved) -> str:
    gpus = f"{doc.hours(known.gpu_s)} GPU-hours, " if known.gpu_s else ""
    return f"{gpus}against {counted(known.outages, 'plain requeue')}"


def _summary(job: JobAccount) -> doc.Section:
    size = counted(job.tasks, "rank") + (f", {counted(job.gpus, 'GPU')}" if job.gpus > 0 else "")
    rungs = ", ".join(f"{rung} {count}" for rung, count in sorted(job.rungs.items(), key=lambda item: -item[1]))
    return doc.Section("summary", "Summary", (
        doc.facts(
            ("state", job.summary.words), ("user", job.user), ("name", job.summary.name), ("nodes", f"{job.nodes} ({size})"),
            ("from", moment(job.began)), ("to", moment(job.ended) if job.summary.over else f"{moment(job.ended)}, it goes on"),
            ("queued before", span(job.queued_s) if job.queued_s >= 0 else ""),
            ("remedies", rungs or "none were needed"),
            ("budgets", budgets(job.budgets)),
            ("excluded nodes", fold_nodes(job.excluded) or "none"), ("reinstated", fold_nodes(job.reinstated)),
        ),
    ))  # fmt: skip


def part_rows(parts: Mapping[Part, float], show: Callable[[float], str]) -> list[tuple[str, ...]]:
    """What each part took, its share, and what it is; the last row is the sum."""
    whole = sum(parts.values())
    rows = [(part.value, show(parts[part]), doc.percent(parts[part] / whole), MEANINGS[part]) for part in MEANINGS if parts[part]]
    return [*rows, ("all", show(whole), "100 %" if whole else "-", "")]


def _time(job: JobAccount) -> doc.Section:
    rows = part_rows(job.spent.parts, span)
    return doc.Section("time", "Where the time went", (
        *plots.parts_of("Every second of the job, by what it went for.", job.spent.parts, span),
        doc.table_of(("part", "time", "share", "what it is"), rows, (1, 2)),
    ))  # fmt: skip


def _timeline(job: JobAccount) -> doc.Section:
    return doc.Section("timeline", "Attempts over nodes", plots.timeline(job))


def _outages(job: JobAccount) -> doc.Section:
    rows = [
        (
            one.number, moment(one.outage.at), one.name, one.remedy,
            *(span(one.cost[part]) if one.cost.get(part) else "·" for part in SHORT),
            span(one.unsure_s) if one.unsure_s else "·", span(one.lost_s),
        )
        for one in reversed(job.failures)
    ]  # fmt: skip
    head = ("#", "when", "what", "remedy", *SHORT.values(), "unknown", "lost")
    if not rows:
        return doc.Section("outages", "What each outage cost", (doc.Text("Nothing has failed."),))
    return doc.Section("outages", "What each outage cost", (
        *plots.outages(job),
        doc.table_of(head, rows, (0, *range(4, len(head)))),
    ))  # fmt: skip


def _failures(job: JobAccount, evidence: Mapping[str, str]) -> doc.Section:
    shown = job.failures[-FAILURES_SHOWN:]
    views = {view.number: view for view in job.attempts}
    cards = tuple(_leaf(one, views.get(one.outage.attempt), evidence) for one in reversed(shown))
    return doc.Section(
        "failures", "What failed, and what was done", (doc.Cards(cards, len(job.failures) - len(shown)),) if cards else ()
    )


def _leaf(one: Failure, view: AttemptView | None, evidence: Mapping[str, str]) -> doc.CardBlock:
    outage, card = one.outage, one.card
    title = card.title if card is not None else outage.what
    rows = [(label, doc.cell(value, 1000)) for label, value in (card.rows(1000) if card is not None else ()) if label]
    rows = [("when", moment(outage.at)), *(row for row in rows if row[0] != "next")]
    if one.nodes:
        rows.append(("node", doc.cell(fold_nodes(one.nodes))))
    if outage.back and card is None:
        rows.append(("back", f"after {span(outage.back - (outage.began or outage.at))}"))
    details: list[tuple[str, str]] = []
    last_words = "\n".join(outage.verdict.evidence) if outage.verdict is not None else ""
    if last_words and not any(last_words in value for _, value in rows):
        details.append(("Last words and other evidence", doc.long_text(last_words)))
    for decided in outage.decided:
        passed = "\n".join(f"not {rung}: {why}" for rung, why in decided.passed)
        if passed:
            summary = doc.cell(f"Why {decided.rung}, and not a rung before it", 120)
            details.append((summary, doc.long_text(f"{decided.why}\n\n{passed}")))
    if view is not None and view.hangs:
        told = "\n".join(line for hang in view.hangs for line in (hang_words(hang), *(f"  {piece}" for piece in hang.evidence)))
        details.append(("What was seen of the hang", doc.long_text(told)))
    for name, text in evidence.items():
        if name.startswith(f"attempt-{outage.attempt}."):
            details.append((doc.cell(f"Stacks: {name.removesuffix('.txt').partition('.')[2]}", 120), doc.long_text(text)))
    return doc.CardBlock(f"failure-{one.number}", doc.cell(f"{one.number}. {title}", 600), tuple(rows), tuple(details))


def _attempts(job: JobAccount) -> doc.Section:
    rows = []
    for view in reversed(job.attempts):
        began, counts = view.began, counters_of_attempt(view.began)
        runs = not view.ended and not job.summary.over and view is job.attempts[-1]
        lasted = span(view.ended.at - began.at) if view.ended else "runs" if runs else "end not recorded"
        remedy = view.remedies[-1].decided.rung if view.remedies else ""
        told = began.nodes, began.tasks, f"{counts.schedule}/{counts.starts}", exits(view.exits), remedy
        rows.append((view.number, moment(began.at), lasted, *told))
    head = ("attempt", "began", "lasted", "nodes", "ranks", "counters", "how the ranks ended", "answer")
    return doc.Section("attempts", "Attempts", (
        doc.table_of(head, rows, (0, 4), caption="counters: MA_SCHEDULE_CNT / MA_PROC_START_CNT"),
    ))  # fmt: skip


def _nodes(job: JobAccount) -> doc.Section:
    events = [(moment(event.at), event.node, event.what, event.why) for event in reversed(job.events)]
    return doc.Section("nodes", "Nodes", (
        doc.table_of(("excluded node", "why"), job.excluded.items(), empty="no node is excluded"),
        *((doc.table_of(("when", "node", "what", "why"), events),) if events else ()),
    ))  # fmt: skip


def _method(job: JobAccount) -> doc.Section:
    ettr = (
        "Effective training time ratio: time in which ranks did new work, of all time from the first ftrun on; starts, work done "
        "again and every wait count as lost, also in the queue of a requeue. "
    )
    unsure = " and ".join(f"“{part.value}”" for part in UNSURE)
    texts = [f"{ettr}Where {unsure} occur the ratio is a range: none or all of that time."]
    if job.saved.outages:
        texts.append(f"Saved: {ASSUMPTION}; {span(job.saved.plain_s)} for this job.")
    return doc.Section("method", "How this was computed", tuple(doc.Text(text) for text in (*texts, *job.notes)))

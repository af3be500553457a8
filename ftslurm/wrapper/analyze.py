"""Applies ftrun's classification to the log of any job: reads it, classifies it by the same rules, reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model import record as rec
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Confidence, Retriable, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from ftslurm.policies.diagnose.joblog import NO_RANK, JobLog, JobLogBook, Part, read_log, without_the_rest
from ftslurm.policies.hang.hints import dumped_stacks, hints
from ftslurm.policies.weigh.spread import BEGUN_S, with_spread
from ftslurm.report.analysis import Analysis, undecided
from ftslurm.wrapper.output.large_files import LogFile, read_logs


def analyze(paths: Sequence[str], settings: Settings, status: int | None = None) -> Analysis:
    """Analyse the logs. status: the job's exit status, if known. Raises: LogUnreadable, UsageError, PolicyError for a site's
    catalogue.
    """
    files = read_logs(paths)
    parts: list[Part] = [part for file in files for part in file.parts]
    log = read_log(parts, status)
    book = JobLogBook(load_pattern_book(settings.catalogs).of_job_logs().with_keywords(settings.retry.keywords))
    verdict = _verdict(log, book)
    if verdict.lead.rank != NO_RANK and any(end.rank == NO_RANK for end in log.ends):
        log = without_the_rest(log)  # the number of ranks is known by then
        verdict = _verdict(log, book)
    nothing = log.assumed and verdict.confidence is Confidence.NONE
    if log.assumed and _by_status(verdict):
        verdict = undecided(verdict)
    if status == 0:
        verdict, nothing = replace(verdict, retriable=Retriable.NO), True
    rank = verdict.lead.rank if verdict.lead.rank != NO_RANK else log.first
    own = next((end.status for end in log.ends if end.rank == rank and not end.stopped and not log.assumed), None)
    return Analysis(
        _name(paths, files), verdict, failed=not nothing, place="" if nothing else _place(files, verdict),
        read=sum(file.size for file in files), skipped=sum(file.skipped for file in files), rank=rank,
        node=log.told.get(rank, ""), status=log.status if rank in (NO_RANK, log.first) else own,
        hang=_reasons_to_hang(files, log) if nothing and status is None else (),
    )  # fmt: skip


def _reasons_to_hang(files: Sequence[LogFile], log: JobLog) -> tuple[rec.Advised, ...]:
    """A log that tells of no failure may be that of a job that hangs."""
    stacks = {file.path: found for file in files if (found := "".join(dumped_stacks(part.text) for part in file.parts))}
    return tuple(rec.Advised(0.0, 1, hint.name, hint.what, hint.advice, hint.evidence) for hint in hints(log.ends, stacks))


def _verdict(log: JobLog, book: JobLogBook) -> Verdict:
    found = diagnose(log.ends, Facts(bad_nodes=log.bad_nodes), book)
    return with_spread(found, log.ends, progressed=log.lasted_s >= BEGUN_S)


def _by_status(verdict: Verdict) -> bool:
    """Is the verdict based on how a rank ended, and not on a pattern or a runtime's error?"""
    weak = verdict.confidence in (Confidence.NONE, Confidence.WEAK)
    return weak and (verdict.signature.startswith(("exit ", "SIG")) or verdict.retriable is Retriable.UNKNOWN)


def _name(paths: Sequence[str], files: Sequence[LogFile]) -> str:
    if len(paths) == 1:
        return files[0].path if len(files) == 1 else paths[0]
    return f"{paths[0]} and {len(paths) - 1} more"


def _place(files: Sequence[LogFile], verdict: Verdict) -> str:
    """The place of the decisive text: file and line."""
    words = verdict.lead.said.split(" ... ")[0].removeprefix("... ")[:80].strip()
    mine = [file for file in files if len(files) == 1 or file.rank == verdict.lead.rank]
    for file in mine:
        if line := file.line_of(words):
            return f"{file.path}:{line}"
    return mine[0].path if len(mine) == 1 else ""

"""Applies ftrun's classification outside a job: to the log of any job, and to words that people give to `ftslurm explain`."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.catalogs.codes import CodeAsked, CodeBook
from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.catalog_files import load_code_book, load_hang_hints, load_pattern_book
from ftslurm.errors import own_statuses
from ftslurm.model import record as rec
from ftslurm.model.devices import Severity
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import replace
from ftslurm.model.verdict import Confidence, Retriable, Verdict
from ftslurm.policies import outlook
from ftslurm.policies.diagnose import Facts, diagnose, explain
from ftslurm.policies.diagnose.findings import Finding
from ftslurm.policies.diagnose.joblog import NO_RANK, JobLog, LogPart, read_log, without_the_rest
from ftslurm.policies.hang.hints import dumped_stacks, hints
from ftslurm.policies.node_advice import KnownCode
from ftslurm.policies.weigh import BEGUN_S, with_spread
from ftslurm.report.analysis import Analysis, diagnosed, undecided
from ftslurm.report.explain.code import Explained, of_device, of_exit, of_line, unknown_line
from ftslurm.wrapper.logs import LogFile, read_logs


def analyze_logs(paths: Sequence[str], settings: Settings, status: int | None = None) -> Analysis:
    """Analyse the logs. status: the job's exit status, if known. Raises: LogUnreadable, UsageError, PolicyError for a site's
    catalogue.
    """
    files = read_logs(paths)
    log = read_log([LogPart(file.rank, file.stream, file.text) for file in files], status)
    book = load_pattern_book(settings.catalogs).of_job_logs().with_keywords(settings.retry.keywords)
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
        _name(paths, files), diagnosed(verdict), failed=not nothing, line="" if nothing else _place(files, verdict),
        bytes=sum(file.size for file in files), skipped=sum(file.skipped for file in files), rank=rank if rank >= 0 else None,
        node=log.told.get(rank, ""), status=log.status if rank in (NO_RANK, log.first) else own,
        hang=_reasons_to_hang(files, log) if nothing and status is None else (),
    )  # fmt: skip


def _reasons_to_hang(files: Sequence[LogFile], log: JobLog) -> tuple[rec.Advised, ...]:
    """A log that tells of no failure may be that of a job that hangs."""
    stacks = {file.path: found for file in files if (found := dumped_stacks(file.text))}
    told = hints(log.ends, stacks, load_hang_hints())
    return tuple(rec.Advised(0.0, 1, hint.name, hint.what, hint.advice, hint.evidence) for hint in told)


def _verdict(log: JobLog, book: PatternBook) -> Verdict:
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


# More different lines explain nothing, and the end of a longer text is not read.
MAX_LINES = 20
MAX_TEXT_BYTES = 1 << 20
# Characters of a line that the answer repeats.
MAX_SHOWN = 500


class Explainer:
    """The catalogues, with the site's own on top. Raises: PolicyError when made, if one is wrong."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._codes: CodeBook = load_code_book(settings.catalogs, user_induced=settings.devices.user_induced)
        self._patterns: PatternBook = load_pattern_book(settings.catalogs).with_keywords(settings.retry.keywords)
        self._ids = {pattern.id.lower(): pattern for pattern in self._patterns.patterns}

    def words(self, words: Sequence[str]) -> list[Explained]:
        """Codes, or a line of output, as given on a command line."""
        if any("\n" in word for word in words):
            return self._text(" ".join(words))
        return [found for each in self._codes.asked(words, self._ids) for found in self._one(each, " ".join(words))]

    def text(self, data: bytes) -> list[Explained]:
        """Lines of output: what is known about them, each kind once, in order."""
        return self._text(data.decode("utf-8", "surrogateescape"))

    def known_in(self, reason: str) -> list[KnownCode]:
        """What the catalogues tell a person to do about the codes that a sentence of ours names; unknown ones are left out."""
        known = []
        for code in dict.fromkeys((*self._patterns.codes_in(reason), *self._codes.in_sentence(reason))):
            found, meaning = self.device(code.kind, code.words), self._codes.meaning(code.kind, code.words, Severity.UNKNOWN)
            known += [KnownCode(found.code, meaning.remedy, found.note)] if found.known else []
        return known

    def kind_of(self, code: str) -> str:
        """The kind of device that has such codes."""
        found = self._codes.asked((code,), self._ids)
        return next((each.kind for each in found if each.kind in self._codes.catalogs), next(iter(self._codes.catalogs)))

    def _one(self, each: CodeAsked, line: str) -> list[Explained]:
        if each.kind == "exit":
            return [self._exit(int(each.words))]
        if each.kind == "line":
            return self._text(each.words)
        if each.kind == "pattern":
            pattern = self._ids[each.words]
            return [of_line(pattern.sample, pattern, self._sources(pattern.sources), outlook.of_line(pattern, self._settings))]
        return [self.device(each.kind, each.words)]

    def _text(self, text: str) -> list[Explained]:
        found = explain(text, self._patterns)[:MAX_LINES]
        first = text.strip().partition("\n")[0]
        return [each for hit in found for each in self._found(hit)] or [
            unknown_line(first[:MAX_SHOWN], outlook.of_unknown(self._settings))
        ]

    def _found(self, found: Finding) -> list[Explained]:
        line = found.line.decode("utf-8", "replace").strip()
        codes = [self.device(each.kind, each.words) for each in self._patterns.codes_in(line)]
        named = codes[0].code if codes else ""
        sources = self._sources(found.pattern.sources)
        part = str(found.word) if found.word else found.place
        does = outlook.of_line(found.pattern, self._settings)
        return [of_line(line[:MAX_SHOWN], found.pattern, sources, does, named, part), *codes]

    def _exit(self, status: int) -> Explained:
        m = self._patterns.exit(status)
        own = own_statuses().get(status, "")
        return of_exit(m, self._sources(m.sources), outlook.of_exit(m, self._settings), own)

    def device(self, kind: str, code: str) -> Explained:
        """A code of a kind of device."""
        meaning = self._codes.meaning(kind, code, Severity.UNKNOWN)
        return of_device(code, meaning, self._codes.catalogs[kind], outlook.of_fault(meaning, self._settings))

    def _sources(self, words: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._patterns.sources.get(word, word) for word in words)

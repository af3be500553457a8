"""What a job's log tells, as a card and for programs. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from rich.filesize import decimal

from ftslurm.model import record as rec
from ftslurm.model.exits import ExitStatus
from ftslurm.model.text import visible
from ftslurm.model.values import Value, fields, replace
from ftslurm.model.verdict import Confidence, Retriable, Verdict
from ftslurm.report.card import Card, fault_of, meaning_of, more_of, what_of
from ftslurm.report.words import KILLED_BY

# What a node is called that nobody knows, and how a rank that nobody knows stands in a sentence (policies/diagnose/joblog.py).
NO_NODE = "?"
_NOBODY = re.compile(r"\brank -1 on \S+?(: | (?=exited|was)|$)|(?<=rank )-1 on \?")
_NOWHERE = re.compile(r"(?<=\d) on \?(?=\W|$)")
AGAIN: Mapping[Retriable, str] = {
    Retriable.YES: "yes: the failure may not recur",
    Retriable.ONCE: "yes, once more: if it recurs, it is permanent",
    Retriable.NO: "no: it would fail the same way",
    Retriable.UNKNOWN: "not known: nothing in the log tells",
}


# Signature -> what became of the job, and is another try worth it, where nothing failed (catalogs/log-patterns.yaml).
ENDED: Mapping[str, tuple[str, str]] = {
    "slurm-cancel": ("the job or its step was cancelled", "nothing failed: if it was a mistake, submit it again"),
    "slurm-time-limit": ("the job reached its time limit", "not as it is: nothing failed, and the time does not suffice"),
    "slurm-preempt": ("the job was preempted", "yes: nothing failed"),
}


class Analysis(Value):
    """What is known of a job by its log alone."""

    log: str  # its name, for people
    verdict: rec.Diagnosed  # as the ledger of a job would have it
    failed: bool  # does it tell of a failure at all?
    line: str = ""  # file and line of the decisive words
    bytes: int = 0
    skipped: int = 0  # of them, not read
    rank: int | None = None  # rank, node, status: who failed first, as far as the log tells
    node: str = ""
    status: ExitStatus | None = None
    hang: tuple[rec.Advised, ...] = ()  # what may keep the job from going on, where nothing has failed

    @property
    def card(self) -> Card:
        if not self.failed:
            well = self.status is not None and self.status.ok
            what = "the job ended well (status 0)" if well else "nothing in it tells of a failure"
            return Card(
                0.0, "", f"{self.log}: {what}", why=self._hang(), again="" if well else self._again(),
                hint="; ".join(hint.advice for hint in self.hang), log=self._log(),
            )  # fmt: skip
        v, ended = self.verdict, self.verdict.signature in ENDED
        more = more_of(v, [v.said, *v.said.split("; ", 1)[1:], "exited with status", "was killed by"])
        meaning, whose = ("", []) if ended else (meaning_of(v), [fault_of(v)])
        return Card(
            0.0, "", f"{self.log}: {self._who()}", what_of(v), meaning, v.place, "; ".join([*whose, *more]),
            again=self._again(), hint=v.advice, log=self._log(), next=self._next(v),
        )  # fmt: skip

    def _hang(self) -> str:
        """What may keep the job from going on; empty if the log does not tell."""
        seen = [f"{hint.what} ({_plain(', '.join(hint.evidence))})" if hint.evidence else hint.what for hint in self.hang]
        return f"if the job hangs: {'; '.join(seen)}" if seen else ""

    def _who(self) -> str:
        if self.verdict.signature in ENDED:
            return ENDED[self.verdict.signature][0]
        where = f" on {self.node}" if self.node else ""
        who = f"rank {self.rank}{where}" if self.rank is not None else "the job"
        return f"{who} {self.status}" if self.status is not None else f"{who} failed"

    def _again(self) -> str:
        again = ENDED.get(self.verdict.signature, ("", AGAIN[Retriable(self.verdict.retriable)]))[1]
        unproven = self.verdict.signature in KILLED_BY and self.verdict.retriable == Retriable.NO.value
        return "no, if memory ran out; else the failure may not recur" if unproven else again

    def _log(self) -> str:
        gap = f" (of {decimal(self.bytes)} the middle {decimal(self.skipped)} were not read)" if self.skipped else ""
        return f"{self.line or self.log}{gap}"

    def _next(self, v: rec.Diagnosed) -> str:
        path, colon, line = self.line.rpartition(":")
        if colon and line.isdecimal():
            pager = "zless" if path.endswith(".gz") else "less"
            return f"{pager} +{line} {shlex.quote(path)}" if path != "stdin" else ""
        known = self.status is not None and re.fullmatch(r"exit \d+|SIG[A-Z0-9]+", v.signature)
        return f"ftslurm explain {v.signature}" if known else ""


def diagnosed(verdict: Verdict) -> rec.Diagnosed:
    """As it would stand in a ledger, with what nobody knows left out."""
    lead = verdict.lead
    return rec.Diagnosed(
        0.0, 1, verdict.signature, verdict.error_class.value, verdict.retriable.value, verdict.confidence.value,
        _plain(verdict.what), tuple(_plain(piece) for piece in verdict.evidence),
        suspects={s.node: _plain(s.why) for s in verdict.suspects if s.node != NO_NODE}, program=verdict.program,
        rank=lead.rank, node=lead.node,
        said=_plain(lead.said), meaning=lead.meaning, place=lead.place, spread=lead.spread, advice=lead.advice,
    )  # fmt: skip


def _plain(text: str) -> str:
    return visible(_NOWHERE.sub("", _NOBODY.sub("", text)))


def undecided(verdict: Verdict) -> Verdict:
    """Where it goes by an exit status that was only assumed, it knows nothing."""
    return replace(verdict, retriable=Retriable.UNKNOWN, confidence=Confidence.NONE)


class AnalysisTold(Analysis):
    """For programs."""

    another_try: bool | None = None  # null where nobody knows
    card: Card = Card(0.0, "", "")


def analysis_as_json(a: Analysis) -> AnalysisTold:
    again = {Retriable.YES.value: True, Retriable.ONCE.value: True, Retriable.NO.value: False}.get(a.verdict.retriable)
    return AnalysisTold(**{each.name: getattr(a, each.name) for each in fields(a)}, another_try=again, card=a.card)

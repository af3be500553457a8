"""The decisions of a job as `ftslurm explain JOB` prints them, and as values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ftslurm.model.nodes import fold
from ftslurm.model.rungs import Rung
from ftslurm.model.text import counted
from ftslurm.report.explain.decisions import DEFAULT, Evidence, Explanation, Explanations, SettingRead
from ftslurm.report.name_values import print_facts, printable
from ftslurm.report.text import clock, moment
from ftslurm.report.view import Status
from ftslurm.report.words import span

# Pieces of evidence of one decision in the list of all.
MOST_EVIDENCE = 4
MORE = " (--decision N shows all)"
NOT_RECORDED = "not recorded: an older ftslurm wrote this ledger"


def as_json(job: Status, found: Explanations, only: Explanation | None = None) -> dict[str, Any]:
    decisions = [asdict(each) for each in ([only] if only else found.decisions)]
    return {"job": job.job, "cluster": job.cluster, "command": job.command, "state": job.state, "decisions": decisions} | (
        {} if only else {"since": [asdict(each) for each in found.since]}
    )


def print_decisions(console: Console, job: Status, found: Explanations) -> None:
    """All of them, what matters most of each."""
    _print_head(console, job)
    if not found.decisions:
        console.print(printable("no decision so far: nothing has failed, and nobody has asked for anything"))
    for each in found.decisions:
        _print_one(console, each, whole=False)
    if found.since:
        console.print(printable("since then", style="cyan"))
        print_facts(console, _known(found.since, 2 * MOST_EVIDENCE, ""), 3)
    console.print(printable(f"now: {job.state}", style="bold"))
    if found.decisions:
        console.print(printable(f"one decision in full: ftslurm explain {job.job} --decision {found.decisions[-1].number}"))


def print_decision(console: Console, job: Status, one: Explanation) -> None:
    """One, with each rung that was asked and all that it looked at."""
    _print_head(console, job)
    _print_one(console, one, whole=True)


def _print_head(console: Console, job: Status) -> None:
    console.print(printable(f"job {job.job} on {job.cluster or '?'}: {job.command}", style="bold"))


def _print_one(console: Console, e: Explanation, whole: bool) -> None:
    console.print(printable(f"{e.number}. {moment(e.at)}  {e.rung}, after attempt {e.attempt} ({e.cause})", style="cyan"))
    facts = [("what", e.what)]
    facts += _known(e.evidence, len(e.evidence) if whole else MOST_EVIDENCE, e.what)
    facts += [("why", e.why)]
    facts += _whole_ladder(e) if whole else _ladder(e)
    facts += [("isolated", why if node in why else f"{node}: {why}") for node, why in e.isolate.items()]
    facts += [("without", fold(e.exclude))] if e.exclude else []
    facts += [("cost", _cost(e)), ("then", _then(e))]
    print_facts(console, facts, 3)


def _known(evidence: Sequence[Evidence], most: int, what: str) -> list[tuple[str, str]]:
    """The latest, without what stands above already: the verdict comes last."""
    told = [each for each in evidence if each.what != what]
    rows = [("known", f"{clock(each.at)} {each.source}: {each.what}") for each in told[-most:]]
    left = len(told) - len(rows)
    return [("known", f"{left} earlier{MORE if what else ''}"), *rows] if left else rows


def _ladder(e: Explanation) -> Iterator[tuple[str, str]]:
    """Each rung passed, and the settings of the one that decided."""
    if e.passed is None:
        yield "not", NOT_RECORDED
    for rung, why in e.passed or ():
        yield "not", f"{rung}: {why}"
    if e.settings is None:
        yield "settings", NOT_RECORDED
        return
    read = e.of(e.decisive)
    own = f"rungs.{e.decisive}."
    shown = [each for each in read if each.place != DEFAULT or each.name.startswith(own) or each.name in e.cost]
    for number, each in enumerate(shown):
        yield "" if number else "settings", _setting(each)
    if left := len(read) - len(shown):
        yield "" if shown else "settings", f"{'and ' if shown else ''}{counted(left, 'default')}{MORE}"


def _whole_ladder(e: Explanation) -> Iterator[tuple[str, str]]:
    """Each rung that was asked, with what it looked at."""
    if e.passed is None:
        yield "not", NOT_RECORDED
    for rung, why in e.passed or ():
        yield "not", f"{rung}: {why}"
        for read in e.of(rung):
            yield "", f"  {_setting(read)}"
    yield "chosen", f"{e.rung}: {e.why}"
    if e.settings is None:
        yield "settings", NOT_RECORDED
    for read in e.of(e.rung):
        yield "", f"  {_setting(read)}"


def _setting(read: SettingRead) -> str:
    return f"{read.name} = {read.value}  [{read.place or DEFAULT}]"


def _cost(e: Explanation) -> str:
    if e.rung == Rung.FAIL:
        return ""
    if not e.cost:
        return "nothing"
    return ", ".join(f"one of {name}{f', {used} of {limit} used' if limit else ''}" for name, (used, limit) in e.cost.items())


def _then(e: Explanation) -> str:
    told = [("" if e.ok else "failed: " if e.ok is False else "begun: ") + "; ".join(e.outcome)] if e.outcome else []
    if e.rung == Rung.FAIL:
        told.append(f"the job ended with status {e.status}")
    elif e.attempt_after:
        told.append(f"attempt {e.attempt_after} began{f' {span(e.back_s)} after the trouble' if e.back_s is not None else ''}")
    elif not e.outcome:
        told.append("not carried out yet, or nobody lived to write it down")
    return "; ".join(told)

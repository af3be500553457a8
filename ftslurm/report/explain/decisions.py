"""Why each decision of a job was taken: what was known and from whom, which rungs were asked, which settings they looked at, what
it cost and what became of it. Pure: records in, values out. All of it stands in the ledger; what an older ledger does not tell is
told as not recorded, and never worked out again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rich.console import Console

from ftslurm.model import record as rec
from ftslurm.model.folds.summary import Answer, JobSummary, Story
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.rungs import RUNG_NAMES, Budget, Rung
from ftslurm.model.text import counted
from ftslurm.model.values import Value
from ftslurm.report.moments import moments
from ftslurm.report.text import print_facts, print_title, safe_text
from ftslurm.report.view import Remedy
from ftslurm.report.words import budgets, clock, moment, span

DEFAULT = "default"


class Evidence(Value):
    """One thing that was known. at: Unix seconds. source: who told it."""

    at: float
    source: str
    what: str


class SettingRead(Value):
    """A setting that `rung` looked at. place: where it was set, or `default`."""

    rung: str
    name: str
    value: str
    place: str


class Explanation(Remedy):
    """One decision, with what was known."""

    number: int  # from 1
    what: str  # the trouble that it answers
    why: str  # what the rung says for itself
    evidence: tuple[Evidence, ...]
    settings: tuple[SettingRead, ...] | None  # that each rung which was asked looked at; None where the ledger does not say
    cost: Mapping[str, tuple[int, int]]  # budget -> (used by now, with this decision; limit, 0 if not told)
    back_s: float | None  # seconds from the trouble until the ranks ran again; None: they did not, or not yet
    attempt_after: int  # theirs

    def of(self, rung: str) -> list[SettingRead]:
        """What that rung looked at."""
        return [read for read in self.settings or () if read.rung == rung]


class Explanations(Value):
    """since: what has become known since the last decision."""

    summary: JobSummary
    decisions: Sequence[Explanation]
    since: tuple[Evidence, ...]


def explanations(records: Sequence[rec.Record], summary: JobSummary) -> Explanations:
    """Every decision in order. summary: of the same job."""
    story = Story(records)
    places = {record.run: record.places for record in records if isinstance(record, rec.SettingsFrom)}
    answers = [each for each in story.told if isinstance(each, Answer)]
    numbers = {answer.decided.id: number for number, answer in enumerate(answers, 1)}

    def known(since: Iterable[rec.Record]) -> tuple[Evidence, ...]:
        found: dict[str, Evidence] = {}
        for record in since:
            for each in _evidence(record, story.by_slurm, numbers):
                found.setdefault(each.what, each)
        return tuple(found.values())

    told = [_explanation(number, answer, known(answer.since), places) for number, answer in enumerate(answers, 1)]
    return Explanations(summary, told, known(story.since))


def _evidence(record: rec.Record, by_slurm: Collection[str], numbers: Mapping[str, int]) -> Iterator[Evidence]:
    """What a decision may go by."""
    yield from (Evidence(each.at, each.source, each.what) for each in moments(record) if each.source and each.what)
    match record:
        case rec.RunBegan() if record.run in by_slurm:
            yield Evidence(record.at, "Slurm", "the job was requeued, and ftrun had not decided that")
        case rec.CarriedOut(ok=False) if record.id in numbers:
            yield Evidence(record.at, f"decision {numbers[record.id]}", f"failed: {record.what}")
        case _:
            pass


def _explanation(
    number: int, answer: Answer, known: tuple[Evidence, ...], places: Mapping[str, Mapping[str, str]]
) -> Explanation:
    d, run = answer.decided, answer.known.run
    recorded = d.reason or d.rung not in RUNG_NAMES  # no rung is asked where a person or Slurm decides
    mine = places.get(run.run, {}) if run is not None else {}
    read = tuple(SettingRead(rung, name, value, mine.get(name, DEFAULT)) for rung, name, value in d.settings)
    trouble, again = answer.known.trouble, answer.again
    return Explanation(
        d, answer.done, number, d.why.removesuffix(f"; {d.reason}") if d.reason else d.why, d.reason or d.why, known,
        read if recorded else None, _charged(answer),
        max(0.0, again.at - (trouble.since or trouble.at)) if again is not None and trouble is not None else None,
        again.attempt if again is not None else 0,
    )  # fmt: skip


def _charged(answer: Answer) -> dict[str, tuple[int, int]]:
    limits = answer.known.run.budgets if answer.known.run is not None else {}
    charged = [answer.decided.cost] if answer.decided.cost else []
    if answer.past.budgets.job_restarts > answer.before.budgets.job_restarts and limits.get(Budget.JOB_RESTARTS, 0):
        charged.append(Budget.JOB_RESTARTS.value)
    return {name: (answer.past.budgets.used(name), limits.get(name, 0)) for name in charged}


def wanted_ones(found: Sequence[Explanation], wanted: int) -> Explanation | None:
    """wanted: from 1; from -1 for the last backwards."""
    at = wanted - 1 if wanted > 0 else wanted
    return found[at] if -len(found) <= at < len(found) and wanted else None


# --- the decisions of a job as `ftslurm explain JOB` prints them

# Pieces of evidence of one decision in the list of all.
MOST_EVIDENCE = 4
MORE = " (--decision N shows all)"
NOT_RECORDED = "not recorded: an older ftslurm wrote this ledger"


def print_decisions(console: Console, found: Explanations) -> None:
    """All of them, what matters most of each."""
    job = found.summary
    print_title(console, job)
    if not found.decisions:
        console.print(safe_text("no decision so far: nothing has failed, and nobody has asked for anything"))
    for each in found.decisions:
        _print_one(console, each, whole=False)
    if found.since:
        console.print(safe_text("since then", style="cyan"))
        print_facts(console, _known(found.since, 2 * MOST_EVIDENCE, ""), 3)
    console.print(safe_text(f"now: {job.words}", style="bold"))
    if found.decisions:
        console.print(safe_text(f"one decision in full: ftslurm explain {job.job} --decision {found.decisions[-1].number}"))
        console.print(safe_text("how to change a rung or a setting: ftslurm explain NAME"))


def print_decision(console: Console, job: JobSummary, one: Explanation) -> None:
    """One, with each rung that was asked and all that it looked at."""
    print_title(console, job)
    _print_one(console, one, whole=True)


def _print_one(console: Console, e: Explanation, whole: bool) -> None:
    d = e.decided
    console.print(safe_text(f"{e.number}. {moment(d.at)}  {d.rung}, after attempt {d.attempt} ({d.cause})", style="cyan"))
    facts = [("what", e.what)]
    facts += _known(e.evidence, len(e.evidence) if whole else MOST_EVIDENCE, e.what)
    facts += [("why", e.why), *_ladder(e, whole)]
    facts += [("isolated", why if node in why else f"{node}: {why}") for node, why in d.isolate.items()]
    facts += [("without", fold_nodes(d.exclude)), ("cost", _cost(e)), ("then", _then(e))]
    print_facts(console, facts, 3)


def _known(evidence: Sequence[Evidence], most: int, what: str) -> list[tuple[str, str]]:
    """The latest, without what stands above already: the verdict comes last."""
    told = [each for each in evidence if each.what != what]
    rows = [("known", f"{clock(each.at)} {each.source}: {each.what}") for each in told[-most:]]
    left = len(told) - len(rows)
    return [("known", f"{left} earlier{MORE if what else ''}"), *rows] if left else rows


def _ladder(e: Explanation, whole: bool) -> Iterator[tuple[str, str]]:
    """Each rung that was asked and passed. Of the settings that they looked at: those that somebody has set, those of the rung
    that decided and the limit that was met; whole: all of them."""
    for rung, why in e.decided.passed:
        yield "not", f"{rung}: {why}"
        yield from (("", f"  {_setting(read)}") for read in e.of(rung) if whole)
    if e.settings is None:
        yield "settings", NOT_RECORDED
        return
    rung = e.decided.rung
    if whole:
        yield "chosen", f"{rung}: {e.why}"
        yield from (("", f"  {_setting(read)}") for read in e.of(rung))
        return
    known = {each.name: each for each in (e.settings if rung == Rung.FAIL else e.of(rung))}
    needed = {*e.cost, e.decided.limit}
    shown = [each for name, each in known.items() if each.place != DEFAULT or name.startswith(f"rungs.{rung}.") or name in needed]
    for number, each in enumerate(shown):
        yield "" if number else "settings", _setting(each)
    if left := len(known) - len(shown):
        yield "" if shown else "settings", f"{'and ' if shown else ''}{counted(left, 'default')}{MORE}"


def _setting(read: SettingRead) -> str:
    return f"{read.name} = {read.value}  [{read.place or DEFAULT}]"


def _cost(e: Explanation) -> str:
    if e.decided.rung == Rung.FAIL:
        return ""
    return budgets({name: (limit - used, limit) for name, (used, limit) in e.cost.items()}) or "nothing"


def _then(e: Explanation) -> str:
    ok, done = e.done[-1].ok if e.done else None, "; ".join(dict.fromkeys(each.what for each in e.done if each.what))
    told = [f"{'' if ok else 'failed: ' if ok is False else 'begun: '}{done}"] if done else []
    if e.decided.rung == Rung.FAIL:
        told.append(f"the job ended with status {e.decided.status}")
    elif e.attempt_after:
        told.append(f"attempt {e.attempt_after} began{f' {span(e.back_s)} after the trouble' if e.back_s is not None else ''}")
    elif not done:
        told.append("not carried out yet, or nobody lived to write it down")
    return "; ".join(told)

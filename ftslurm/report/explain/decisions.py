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
from ftslurm.report.words import clock, moment, span

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


class Explanation(Value, frozen=False):
    """One decision."""

    number: int  # from 1
    id: str
    at: float  # Unix seconds
    attempt: int
    rung: str
    cause: str
    what: str  # the trouble that it answers
    why: str  # what the rung says for itself
    evidence: tuple[Evidence, ...]
    # each rung that was asked before, and why not that one; None where the ledger does not say
    passed: tuple[tuple[str, str], ...] | None
    settings: tuple[SettingRead, ...] | None  # likewise
    cost: Mapping[str, tuple[int, int]]  # budget -> (used by now, with this decision; limit, 0 if not told)
    isolate: Mapping[str, str]  # those that this decision adds, node -> why
    exclude: tuple[str, ...]  # all nodes that the next scheduling may not use
    status: int
    ok: bool | None = None  # was it carried out? None: open, or never told
    outcome: tuple[str, ...] = ()  # what became of it
    back_s: float | None = None  # seconds from the trouble until the ranks ran again; None: they did not, or not yet
    attempt_after: int = 0  # theirs

    def of(self, rung: str) -> tuple[SettingRead, ...]:
        """What that rung looked at."""
        return tuple(read for read in self.settings or () if read.rung == rung)

    @property
    def decisive(self) -> str:
        """The rung whose reason is that of the decision: of `fail`, one that was passed. Empty where nobody knows."""
        if self.rung != Rung.FAIL:
            return self.rung
        return next((rung for rung, why in reversed(self.passed or ()) if self.why in (why, f"{rung} is switched off")), "")


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
    old = not d.settings
    first = d.rung not in RUNG_NAMES  # nobody was asked
    mine = places.get(run.run, {}) if run is not None else {}
    read = tuple(SettingRead(rung, name, value, mine.get(name, DEFAULT)) for rung, name, value in d.settings)
    trouble, again = answer.known.trouble, answer.again
    return Explanation(
        number, d.id, d.at, d.attempt, d.rung, d.cause, d.why.removesuffix(f"; {d.reason}") if d.reason else d.why,
        d.reason or d.why, known, None if old and not (d.passed or first) else d.passed, None if old and not first else read,
        _charged(answer), d.isolate, d.exclude, d.status,
        answer.done[-1].ok if answer.done else None, tuple(dict.fromkeys(done.what for done in answer.done if done.what)),
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
    console.print(safe_text(f"{e.number}. {moment(e.at)}  {e.rung}, after attempt {e.attempt} ({e.cause})", style="cyan"))
    facts = [("what", e.what)]
    facts += _known(e.evidence, len(e.evidence) if whole else MOST_EVIDENCE, e.what)
    facts += [("why", e.why)]
    facts += _whole_ladder(e) if whole else _ladder(e)
    facts += [("isolated", why if node in why else f"{node}: {why}") for node, why in e.isolate.items()]
    facts += [("without", fold_nodes(e.exclude))] if e.exclude else []
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

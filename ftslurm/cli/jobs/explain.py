"""The doors of `ftslurm explain` and `ftslurm analyze`: decisions, codes, the ladder, and a log that anybody wrote."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.others import for_users
from ftslurm.cli.output import NoLedgerHere, find_ledger, latest_job, print_json, tasks_of
from ftslurm.errors import UnknownJob, UsageError
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.settings.tree import Resolved
from ftslurm.model.text import visible
from ftslurm.model.values import replace
from ftslurm.model.verdict import Retriable

if TYPE_CHECKING:
    from ftslurm.report.explain.terms import Term


# As Slurm and ftslurm number jobs; a number may be an exit status or a fault code, too.
_JOB = re.compile(r"\d{1,10}(_\d+)?(\.\d+)?|local\.\d+")
_STATUS = re.compile(r"\d{1,3}")
# A name: no number, and no line of output.
_WORD = re.compile(r"[A-Za-z][A-Za-z_/-]*(\.[A-Za-z_-]+)*")
LAST = "last"


@click.command(short_help="Explain the decisions of JOB, or a CODE; without, show the ladder.")
@click.argument("what", nargs=-1, metavar="[JOB|CODE]...", shell_complete=complete.jobs)
@click.option("--last", is_flag=True, help="The decisions of the latest job, or of the one that this runs in.")
@click.option("--decision", "number", metavar="N", default="", help="One decision in full: a number, -1, last.")
@click.option("--policy", metavar="FILE", default="", shell_complete=complete.files, help="As ftrun --ft-policy.")
@click.option("--profile", metavar="NAME", default="", shell_complete=complete.profiles, help="As ftrun --ft-profile.")
@click.option("--annotations", metavar="FILE", default="", shell_complete=complete.files, help="As ftrun --ft-annotations.")
@click.option(
    "--job", metavar="JOB", default="", shell_complete=complete.jobs,
    help="Show the ladder of this job, and the rungs that `ftslurm control JOB hold` skips.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@for_users("what")
def explain(
    what: tuple[str, ...], last: bool, number: str, policy: str, profile: str, annotations: str, job: str, as_json: bool
) -> None:
    """Explain why ftrun decided as it did in JOB: what it knew and from whom, which rungs it passed over and why, which
    settings led to it and where they were set, what it cost, what became of it. JOB is a number, an array (28,
    28_[1-10]), or a ledger file.

    Or explain a word of ftslurm: a setting (stop.grace), a rung, a variable, a state, a hang, a notice, a column of `watch`.

    Or explain what CODE means, whose fault it is and what ftrun does about it. CODE is a fault code (80E01801, Xid 79), an
    exit status (exit 137, SIGSEGV) or a line of output in quotes; - reads lines from stdin. A bare number is a job if there
    is one with a ledger.

    Without both: show the ladder in force, and where each of its values comes from.
    """
    if (number and not what) or last:
        if what:
            raise UsageError("--last does not go with JOB or CODE", hint="name the job, or leave it out")
        what = (latest_job(),)
    tasks = tasks_of(what[0]) if len(what) == 1 else []
    if tasks and not (number or as_json):
        return _of_array(tasks)
    missing: UnknownJob | None = None
    if number or (len(what) == 1 and (_JOB.fullmatch(what[0]) or _is_file(what[0]) or last)):
        if len(what) != 1:
            raise UsageError("--decision takes one JOB", hint="such as: ftslurm explain 4711 --decision 2")
        try:
            journal, contents = find_ledger(what[0])
        except UnknownJob as error:
            missing = error
            if number or last or tasks or _is_file(what[0]):
                raise
        else:
            if _STATUS.fullmatch(what[0]) and not number:
                click.echo(visible(f"of job {what[0]}; for the exit status: ftslurm explain exit {what[0]}"), err=True)
            return _decisions(what[0], journal, contents, number, as_json)
    resolved = _in_force(policy, profile, annotations)
    if what and _term(what, resolved, as_json):
        return
    if what:
        return _code(what, resolved, as_json, missing)
    _ladder(resolved, job, policy or profile or annotations, as_json)


def _of_array(tasks: list[str]) -> None:
    for place, task in enumerate(tasks):
        if place:
            click.echo()
        _decisions(task, *find_ledger(task), "", as_json=False)


def _is_file(word: str) -> bool:
    return word.endswith(".jsonl")


def _in_force(policy: str, profile: str, annotations: str) -> Resolved:
    """Raises: PolicyError."""
    from ftslurm.config.settings_files import SettingsAsked, settings_in_force

    return settings_in_force(SettingsAsked(policy, profile, annotations), os.environ)


def _decisions(job: str, journal: Journal, contents: Contents, number: str, as_json: bool) -> None:
    """Raises: UsageError for a decision that there is not."""
    from ftslurm.cli.jobs.status import summary_now
    from ftslurm.report.explain.decisions import explanations, print_decision, print_decisions, wanted_ones
    from ftslurm.report.text import console

    found = explanations(contents.records, summary_now(journal, contents))
    if not number:
        return print_json(found) if as_json else print_decisions(console(), found)
    one = wanted_ones(found.decisions, _number(number))
    if one is None:
        count = len(found.decisions)
        there = f"there {'is' if count == 1 else 'are'} {count}" if count else "there is none"
        raise UsageError(f"job {found.summary.job} has no decision {number}: {there}", hint=f"`ftslurm explain {job}` lists them")
    if as_json:
        return print_json(replace(found, decisions=[one], since=()))
    print_decision(console(), found.summary, one)


def _number(text: str) -> int:
    """Raises: UsageError."""
    if text == LAST:
        return -1
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise UsageError(f"--decision {text}: not a number", hint="1 is the first, -1 or last the last")
    return int(text)


def _ladder(resolved: Resolved, job: str, asked: str, as_json: bool) -> None:
    """asked: a policy or the like was named: that one is shown, and not the job's."""
    from ftslurm.config.catalog_files import load_glossary
    from ftslurm.model.folds.history import fold
    from ftslurm.report.explain.terms import ladder_as_json, print_ladder, terms_of_job
    from ftslurm.report.text import console
    from ftslurm.report.view import held as held_by
    from ftslurm.report.words import moment

    held: dict[str, str] = {}
    if job:
        records = find_ledger(job)[1].records
        held = held_by(fold(records).control, moment)
        known = None if asked else terms_of_job(records)
        if known is not None:
            resolved, unknown = known
            if unknown:
                click.echo(f"of another version of ftslurm, left out: {visible(', '.join(unknown))}", err=True)
        elif not asked:
            click.echo("the ledger does not record the job's settings: this is what is in force here", err=True)
    if as_json:
        return print_json(ladder_as_json(resolved, load_glossary(), held))
    print_ladder(console(), resolved, load_glossary(), held)


def _term(words: tuple[str, ...], resolved: Resolved, as_json: bool) -> bool:
    """False where it is no word of ftslurm."""
    from ftslurm.report.explain.terms import print_term
    from ftslurm.report.text import console

    if len(words) != 1 or (term := _terms(resolved).get(words[0])) is None:
        return False
    print_json(term) if as_json else print_term(console(), term)
    return True


def _terms(resolved: Resolved) -> dict[str, Term]:
    from ftslurm.config.catalog_files import load_glossary
    from ftslurm.notify.outbox import KINDS
    from ftslurm.report.explain.terms import terms

    return terms(resolved, load_glossary(), KINDS)


def _code(code: tuple[str, ...], resolved: Resolved, as_json: bool, missing: UnknownJob | None) -> None:
    """missing: it looks like a job, and there is none: raised unless it is a known code.

    Raises: UsageError for a single word that nothing is known of, with the nearest that there is.
    """
    from ftslurm.report.explain import code as show
    from ftslurm.report.text import console
    from ftslurm.wrapper.explain_code import MAX_TEXT_BYTES, Explainer

    explainer = Explainer(resolved.settings)
    found = explainer.text(sys.stdin.buffer.read(MAX_TEXT_BYTES)) if code == ("-",) else explainer.words(code)
    a_word = len(code) == 1 and _WORD.fullmatch(code[0]) and not any(each.known for each in found)
    if a_word and (near := suggestion(code[0], _terms(resolved))):
        raise UsageError(f"`{code[0]}` is no code and no word of ftslurm{near}", hint="quote a line of output as a whole")
    if missing is not None:
        known = any(each.known for each in found)
        # Eight digits may be an Ascend code. Three are most often meant as a status, whatever job had the number.
        a_job = isinstance(missing, NoLedgerHere) and not known and not _STATUS.fullmatch(code[0])
        if a_job or all(each.kind == show.LINE for each in found):
            raise missing
        click.echo(visible(f"there is no ledger of a job {code[0]}; as a code:"), err=True)
    if as_json:
        return print_json(found)
    show.print_explained(console(), found)


# --- the door of `ftslurm analyze`: the diagnosis on a log that anybody wrote

# What a script asks for: is another try worth it? Kept clear of what ftslurm ends with when it cannot read (64 to 66), and of
# what a shell makes of a signal.
WORTH_IT, NOT_WORTH_IT, NOT_KNOWN = 0, 1, 3
STATUS = {
    Retriable.YES.value: WORTH_IT, Retriable.ONCE.value: WORTH_IT, Retriable.NO.value: NOT_WORTH_IT,
    Retriable.UNKNOWN.value: NOT_KNOWN,
}  # fmt: skip


@click.command(short_help="Tell why a job failed, from its log.")
@click.argument("log", nargs=-1, required=True)
@click.option("--status", type=click.IntRange(0, 255), default=None, help="The job's exit status, if it is known.")
@click.option("--policy", metavar="FILE", default="", help="As ftrun --ft-policy.")
@click.option("--profile", metavar="NAME", default="", help="As ftrun --ft-profile.")
@click.option("--annotations", metavar="FILE", default="", help="As ftrun --ft-annotations.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def analyze(log: tuple[str, ...], status: int | None, policy: str, profile: str, annotations: str, as_json: bool) -> NoReturn:
    """Tell why the job that wrote LOG failed, by the rules of ftrun, whatever launched it.

    LOG is a job's output (slurm-7.out, with labels or without), the files of its ranks, a folder (torchrun's --log-dir), all
    these as .gz, too, what journalctl prints, or - for stdin. Of huge logs the head and the tail are read.

    Exit status: 0 if another try is worth it, 1 if it is not, 3 if the log does not tell, 64 for wrong usage, 66 for a log
    that cannot be read.
    """
    from ftslurm.report.analysis import analysis_as_json as for_programs
    from ftslurm.report.text import console, print_card
    from ftslurm.wrapper.explain_code import analyze_logs as judge

    found = judge(log, _in_force(policy, profile, annotations).settings, status)
    if as_json:
        print_json(for_programs(found))
    else:
        print_card(console(), found.card)
    sys.exit(STATUS[found.verdict.retriable])

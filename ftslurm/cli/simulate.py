"""The door of `ftslurm simulate`: a failure trace against one policy or several."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.output import passed_over, print_json, store
from ftslurm.errors import UsageError
from ftslurm.ledger.store import named_ledgers
from ftslurm.model.text import visible

if TYPE_CHECKING:
    from ftslurm.simulation.command import PlayAsked


@click.command(short_help="Play a failure trace against a policy: what would it cost?")
@click.argument("trace", nargs=-1, shell_complete=complete.files)
@click.option(
    "--from-job",
    "jobs",
    metavar="JOB",
    multiple=True,
    shell_complete=complete.jobs,
    help="Replay what failed in this job; also a ledger file or folder, or all.",
)
@click.option("--random", "rates", metavar="KIND=RATE", multiple=True, help="Add random faults: so many per node and day.")
@click.option("--seed", metavar="N", type=int, default=1, show_default=True, help="Seed of the random faults.")
@click.option("--job", metavar="NAME=VALUE", multiple=True, help="Change the trace's job: nodes=1000, until=30d.")
@click.option("--policy", metavar="FILE", default="", shell_complete=complete.files, help="As ftrun --ft-policy.")
@click.option("--profile", metavar="NAME", default="", shell_complete=complete.profiles, help="As ftrun --ft-profile.")
@click.option("--annotations", metavar="FILE", default="", shell_complete=complete.files, help="As ftrun --ft-annotations.")
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, shell_complete=complete.settings, help="As ftrun --ft-set."
)
@click.option("--with", "others", metavar="NAME:KEY=VALUE,...", multiple=True, help="Compare with this policy, by changes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the answer to each fault.")
def simulate(
    trace: tuple[str, ...], jobs: tuple[str, ...], rates: tuple[str, ...], seed: int, job: tuple[str, ...], policy: str,
    profile: str, annotations: str, settings: tuple[str, ...], others: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Play failures against the settings in force, and report useful and lost time: those in TRACE, those of a real job, or
    random ones.

    ftrun's own decisions are used, on a simulated clock and cluster. TRACE is YAML or JSON Lines; the documentation has its
    format ("Simulating failures").
    """
    from ftslurm.cli.ftrun_options import values_set
    from ftslurm.config.settings_files import SettingsAsked
    from ftslurm.simulation import show
    from ftslurm.simulation.command import PlayAsked
    from ftslurm.simulation.command import play_trace as played

    if len(trace) > 1:
        raise UsageError("more than one trace", hint="name one file")
    base = SettingsAsked(policy, profile, annotations, values_set("--set", settings))
    asked = PlayAsked(trace[0] if trace else "", rates, seed, job, base, others)
    if jobs:
        return _replayed(asked, jobs, as_json)
    found = played(asked, os.environ)
    if as_json:
        return print_json(show.outcomes_as_json(*found))
    click.echo(visible(show.outcomes_as_text(*found), lines=True), nl=False)


def _replayed(asked: PlayAsked, jobs: tuple[str, ...], as_json: bool) -> None:
    from ftslurm.simulation import show
    from ftslurm.simulation.command import replay
    from ftslurm.simulation.past import past

    now, found = time.time(), []
    for name, contents in named_ledgers(store(), jobs, passed_over):
        try:
            found.append(past(contents.records, now, contents.damaged))
        except UsageError as error:
            if jobs == (name,):
                raise UsageError(f"job {name}: {error.message}", hint=error.hint) from None
            passed_over(f"job {name}: {error.message}")
    if not found:
        raise UsageError("no job is left to replay", hint="`ftslurm status` lists the jobs that have a ledger")
    made = replay(asked, found, os.environ)
    if as_json:
        return print_json(show.replay_as_json(made))
    click.echo(visible(show.as_replay(made), lines=True), nl=False)

"""The door of `ftslurm simulate`: a failure trace against one policy or several."""

from __future__ import annotations

import os

import click

from ftslurm.cli import completion as complete
from ftslurm.cli.output import print_json
from ftslurm.errors import UsageError
from ftslurm.model.text import visible


@click.command(short_help="Play a failure trace against a policy: what would it cost?")
@click.argument("trace", nargs=-1, shell_complete=complete.files)
@click.option("--random", "rates", metavar="KIND=RATE", multiple=True, help="Add random faults: so many per node and day.")
@click.option("--seed", metavar="N", type=int, default=1, show_default=True, help="Of the random faults.")
@click.option("--job", metavar="NAME=VALUE", multiple=True, help="Change the trace's job: nodes=1000, until=30d.")
@click.option("--policy", metavar="FILE", default="", shell_complete=complete.files, help="As ftrun --ft-policy.")
@click.option("--profile", metavar="NAME", default="", shell_complete=complete.profiles, help="As ftrun --ft-profile.")
@click.option("--annotations", metavar="FILE", default="", shell_complete=complete.files, help="As ftrun --ft-annotations.")
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, shell_complete=complete.settings, help="As ftrun --ft-set."
)
@click.option("--with", "others", metavar="NAME:KEY=VALUE,...", multiple=True, help="Compare with this policy, by changes.")
@click.option(
    "--against", "files", metavar="FILE", multiple=True, shell_complete=complete.files, help="Compare with this policy file."
)
@click.option("--json", "as_json", is_flag=True, help="For programs, with the answer to each fault.")
def simulate(
    trace: tuple[str, ...], rates: tuple[str, ...], seed: int, job: tuple[str, ...], policy: str, profile: str, annotations: str,
    settings: tuple[str, ...], others: tuple[str, ...], files: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Play the failures in TRACE, or random ones, against the settings in force, and report useful and lost time.

    ftrun's own decisions are used, on a simulated clock and cluster. TRACE is YAML or JSON Lines; the documentation has its
    format ("Simulating failures").
    """
    from ftslurm.config.settings_files import Request
    from ftslurm.simulation import show
    from ftslurm.simulation.command import Asked
    from ftslurm.simulation.command import simulate as played

    if len(trace) > 1:
        raise UsageError("more than one trace", hint="name one file")
    base = Request(policy, profile, annotations, _values(settings))
    found = played(Asked(trace[0] if trace else "", rates, seed, job, base, others, files), os.environ)
    if as_json:
        return print_json(show.as_json(*found))
    click.echo(visible(show.as_text(*found), lines=True), nl=False)


def _values(settings: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Setting -> value, and the option as given. Raises: UsageError."""
    found = {}
    for pair in settings:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--set {pair}: no value", hint="write --set NAME=VALUE")
        found[name] = (value, f"--set {name}")
    return found

"""The door of `ftslurm analyze`: the diagnosis on a log that anybody wrote."""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

import click

from ftslurm.model.verdict import Retriable

# What a script asks for: is another try worth it? Kept clear of what ftslurm ends with when it cannot read (64 to 66), and of
# what a shell makes of a signal.
WORTH_IT, NOT_WORTH_IT, NOT_KNOWN = 0, 1, 3
STATUS = {Retriable.YES: WORTH_IT, Retriable.ONCE: WORTH_IT, Retriable.NO: NOT_WORTH_IT, Retriable.UNKNOWN: NOT_KNOWN}


@click.command(short_help="Tell why a job failed, from its log.")
@click.argument("log", nargs=-1, required=True)
@click.option("--status", type=click.IntRange(0, 255), default=None, help="The job's exit status, if it is known.")
@click.option("--policy", metavar="FILE", default="", help="As ftrun --ft-policy.")
@click.option("--profile", metavar="NAME", default="", help="As ftrun --ft-profile.")
@click.option("--annotations", metavar="FILE", default="", help="As ftrun --ft-annotations.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def analyze(log: tuple[str, ...], status: int | None, policy: str, profile: str, annotations: str, as_json: bool) -> NoReturn:
    """Tell why the job that wrote LOG failed, by the rules of ftrun, whatever launched it.

    LOG is a job's output (slurm-7.out, with labels or without), the files of its ranks, a folder (torchrun's --log-dir), or - for
    stdin. Of huge logs the head and the tail are read.

    Exit status: 0 if another try is worth it, 1 if it is not, 3 if the log does not tell, 64 for wrong usage, 66 for a log
    that cannot be read.
    """
    from ftslurm.config.settings_files import Request, settings_in_force
    from ftslurm.report.analysis import as_json as for_programs
    from ftslurm.report.text import console, print_card
    from ftslurm.wrapper.analyze import analyze as judge

    settings = settings_in_force(Request(policy, profile, annotations), os.environ).settings
    found = judge(log, settings, status)
    if as_json:
        click.echo(json.dumps(for_programs(found), indent=2, sort_keys=True))
    else:
        print_card(console(), found.card)
    sys.exit(STATUS[found.verdict.retriable])

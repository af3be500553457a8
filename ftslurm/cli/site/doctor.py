"""The door of `ftslurm doctor`: what on this cluster stands in the way of ftrun, and the line to change."""

from __future__ import annotations

import os

import click

from ftslurm.cli import suggestions as complete


@click.command(short_help="Check this cluster, and name the lines to change.")
@click.option("-v", "--verbose", is_flag=True, help="Show the source of each check, also of those that are ok.")
@click.option(
    "--policy",
    metavar="FILE",
    default="",
    shell_complete=complete.files,
    help="Policy file, as for ftrun --ft-policy; slurm.bin is read from it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(verbose: bool, policy: str, as_json: bool) -> None:
    """Check which settings of this cluster and of this machine hinder ftrun.

    Each check is `blocks` (a rung cannot be used), `costs` (works, but costs more), `unknown` (not visible from here) or `ok`,
    with the line to change and who can change it. Run it on a login node and inside an allocation: they may differ. As root
    or SlurmUser it checks the settings of the hooks as well. The exit status is 1 if something blocks.
    """
    from ftslurm.cli.output import print_json
    from ftslurm.config.settings_files import Request, settings_in_force
    from ftslurm.policies.site.examine import blocks, examine
    from ftslurm.report.doctor import as_json as for_programs
    from ftslurm.report.doctor import print_findings
    from ftslurm.report.text import console
    from ftslurm.wrapper.site_look import look

    settings = settings_in_force(Request(policy), os.environ).settings
    site = look(os.environ, settings.slurm_bin, _hook_settings)
    findings = examine(site)
    if as_json:
        print_json(for_programs(findings))
    else:
        cluster, release = site.config.get("ClusterName", ""), site.config.get("SLURM_VERSION", "")
        head = f"cluster {cluster}, Slurm {release}, seen from {os.uname().nodename}" if site.config else site.silent
        print_findings(console(), findings, head, verbose)
    if blocks(findings):
        click.get_current_context().exit(1)


def _hook_settings() -> str:
    """What is wrong with the settings of the hooks, empty if nothing is."""
    from ftslurm.cli.output import site_settings
    from ftslurm.errors import FtslurmError

    try:
        site_settings()
    except FtslurmError as error:
        return str(error)
    return ""

"""The door of `ftslurm nodes`: which nodes jobs left for a fault, which are drained for one, and what can be done about it."""

from __future__ import annotations

import os
import time
from dataclasses import asdict

import click

from ftslurm.model.text import visible


@click.command(short_help="List the nodes that jobs excluded because of a fault.")
@click.option("--clear", metavar="NODES", default="", help="Forget the faults of NODES: n3, or n[1-4],m7.")
@click.option("--all-users", is_flag=True, help="Include nodes that ftslurm drained; as root, other users' nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def nodes(clear: str, all_users: bool, as_json: bool) -> None:
    """List the nodes that your jobs excluded because of a fault: which fault, how long it counts, and what you can do.

    A node that two jobs excluded is suspect to the next ones, which avoid it at a requeue.
    """
    from ftslurm.cli.output import print_json, site_settings
    from ftslurm.config.settings_files import Request, settings_in_force
    from ftslurm.ledger.store import state_folder
    from ftslurm.report.nodes import print_nodes
    from ftslurm.wrapper import nodes as look
    from ftslurm.wrapper.measuring.live import user_name

    root, settings, now = state_folder(os.environ), settings_in_force(Request(), os.environ).settings, time.time()
    if clear and all_users:
        site = site_settings()
        users = look.clear_for_all(site.ledgers, site.first_user_id, clear, now)
        return click.echo(visible(f"{clear}: forgotten for {', '.join(users)}" if users else f"no job remembers {clear}"))
    known = {user_name(os.getuid()): look.of_me(root, settings, now)}
    if clear:
        return click.echo(visible(look.clear(root, known.popitem()[1], clear, now)))
    slurm = look.ask_slurm(os.environ) if all_users else look.SlurmSays()
    if all_users and os.geteuid() == 0:
        site = site_settings()
        known |= look.of_all(site.ledgers, site.first_user_id, settings, now, _passed_over)
    if as_json and not all_users:
        return print_json([asdict(node) for nodes in known.values() for node in nodes])
    found = look.reports(known, slurm, look.adviser(settings)) if any(known.values()) or slurm.nodes else []
    if as_json:
        print_json([asdict(node) for node in found])
    else:
        print_nodes(found, with_users=all_users)
    if all_users:
        _say_what_is_missing(slurm.silent)
    if not found and not as_json:
        click.echo(visible(_NOBODY_S if all_users else _NONE), err=True)


_NONE = "none of your jobs has excluded a node because of a fault"
_NOBODY_S = "ftslurm has drained no node, and no job has excluded one because of a fault"


def _say_what_is_missing(silent: str) -> None:
    if silent:
        click.echo(f"drained nodes are not shown, because Slurm does not answer:  {visible(silent)}", err=True)
    if os.geteuid() != 0:
        click.echo("only nodes that your own jobs excluded are shown; root sees everybody's", err=True)


def _passed_over(text: str) -> None:
    click.echo(f"ftslurm: {visible(text)}: skipped", err=True)

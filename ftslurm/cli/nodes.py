"""The door of `ftslurm nodes`: which nodes your jobs left for a fault."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict

import click

from ftslurm.errors import UnknownJob


@click.command()
@click.option("--clear", metavar="NODE", default="", help="Forget what is remembered of NODE.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def nodes(clear: str, as_json: bool) -> None:
    """The nodes that jobs of yours left for a fault; those left by two are suspect to the next, and avoided at a requeue."""
    from ftslurm.config.settings_files import Request, settings_in_force
    from ftslurm.ledger.nodes import NodeMemory
    from ftslurm.ledger.store import state_folder
    from ftslurm.model.node_memory import NodeCleared, remembered
    from ftslurm.model.text import visible
    from ftslurm.report.nodes import print_nodes

    memory, settings = NodeMemory(state_folder(os.environ)), settings_in_force(Request(), os.environ).settings
    known = remembered(memory.read(), time.time(), settings.memory_s, settings.memory_jobs)
    if clear:
        found = [node for node in known if node.node == clear]
        if not found:
            raise UnknownJob(f"nothing is remembered of node {clear}", hint="`ftslurm nodes` lists what is")
        memory.add([NodeCleared(time.time(), node.cluster, node.node) for node in found])
        click.echo(visible(f"node {clear}: forgotten, it was left by {', '.join(job for node in found for job in node.jobs)}"))
    elif as_json:
        click.echo(json.dumps([asdict(node) for node in known], indent=2, sort_keys=True))
    elif known:
        print_nodes(known)
    else:
        click.echo("no job of yours has left a node for a fault", err=True)

"""The door of `ftslurm install-hooks`: for administrators."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command("install-hooks", short_help="Write Slurm's hook scripts, and show how to enable them.")
@click.argument("folder", default="/usr/local/lib/ftslurm")
@click.option("--config", default="/etc/ftslurm/hooks.yaml", show_default=True, help="The settings of the hooks.")
@click.option("--dry-run", is_flag=True, help="Only print the lines for slurm.conf.")
def install_hooks(folder: str, config: str, dry_run: bool) -> None:
    """Write Prolog, Epilog, TaskProlog, EpilogSlurmctld and HealthCheckProgram into FOLDER, and print the lines for slurm.conf.

    FOLDER is the same path on all nodes. Run it as root, from an installation that nobody else can write.
    """
    from ftslurm.hooks.install import install as hook_install
    from ftslurm.model.text import visible

    said = hook_install.install_hooks(Path(folder), Path(config), os.environ.get("SLURM_CONF", ""), dry_run)
    click.echo(visible(said, lines=True))

"""The door of `ftslurm completion`: the script that lets a shell ask for suggestions (suggestions.py)."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ftslurm.cli.ftrun_options import options

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the script that completes commands in SHELL.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, settings and job numbers of ftrun and ftslurm.

    For one session: eval "$(ftslurm completion bash)". For all: write it to
    ~/.local/share/bash-completion/completions/ftslurm (bash), a folder of $fpath as _ftslurm (zsh) or
    ~/.config/fish/completions/ftslurm.fish.
    """
    made = get_completion_class(shell)
    assert made is not None, "click knows all of SHELLS"
    group = click.get_current_context().find_root().command
    for command, name in ((group, "ftslurm"), (options, "ftrun")):
        click.echo(made(command, {}, name, f"_{name.upper()}_COMPLETE").source())

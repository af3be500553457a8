"""Command lines of ftslurm, read by the parsers that read them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ftslurm.cli.ftslurm import group


def takes(words: Sequence[str]) -> bool:
    """Whether `ftslurm WORDS` is whole; False if only something is missing. Raises: click.UsageError."""
    context: click.Context | None = None
    command: click.Command = group
    words = list(words)
    while True:
        try:
            context = command.make_context(command.name, words, parent=context)
        except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
            return False
        except click.exceptions.Exit:
            return True  # --help
        if not isinstance(command, click.Group) or not (rest := [*context._protected_args, *context.args]):
            return True
        _, found, words = command.resolve_command(context, rest)
        assert found is not None
        command = found

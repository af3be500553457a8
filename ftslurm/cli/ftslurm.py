"""The door of `ftslurm`: what people ask about a job, and what they do for it by hand."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import get_completion_class

import ftslurm
from ftslurm.cli import suggestions as complete
from ftslurm.cli.ftrun_options import options
from ftslurm.cli.others import WORDS
from ftslurm.cli.output import store
from ftslurm.errors import FtslurmError, StateError, UsageError
from ftslurm.model.text import visible

# A ledger and what is told of it have no circles; to look for some again and again was half of the time that a long one took.
COLLECTED = 100_000, 50, 1000
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

# Which module has them, loaded when one is asked for: `status` would load the words of all others.
VERBS: Mapping[str, str] = {
    **dict.fromkeys(("analyze", "explain"), "jobs.explain"), **dict.fromkeys(("control", "drill"), "jobs.control"),
    **dict.fromkeys(("history", "status"), "jobs.status"), "logs": "jobs.logs", "report": "jobs.report", "watch": "jobs.watch",
    "simulate": "simulate", **dict.fromkeys(("doctor", "install-hooks", "metrics", "nodes", "notify", "plugins"), "site"),
}  # fmt: skip


class Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*VERBS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS and cmd_name not in self.commands:
            self.add_command(getattr(import_module(f"ftslurm.cli.{VERBS[cmd_name]}"), cmd_name.replace("-", "_")))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        ctx.meta[WORDS] = list(args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """`ftslurm history 5 | head` is no error. click and rich end with status 1 there."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            return _discard_output()
        except SystemExit as end:
            if not isinstance(end.__context__, BrokenPipeError):
                raise
            return _discard_output()
        return result


@click.group(
    "ftslurm", cls=Group, invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)  # fmt: skip
@click.version_option(ftslurm.__version__, prog_name="ftslurm")
@click.pass_context
def group(context: click.Context) -> None:
    """Look at your jobs under ftrun, steer them, and learn what ftrun did, would do, or leaves to you.

    Without COMMAND: list the jobs, as `ftslurm status`.
    """
    if context.invoked_subcommand is None:
        status = group.get_command(context, "status")
        assert status is not None
        context.invoke(status)
        click.echo("`ftslurm status JOB` shows one job, `ftslurm --help` lists the commands", err=True)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Ends the process with the exit status; bad input gets one sentence."""
    gc.set_threshold(*COLLECTED)
    if sys.stdout is None:  # closed by whoever called (`>&-`)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- as long as the process
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        asked_for = group.main(words, prog_name="ftslurm", standalone_mode=False, obj=words)
        status = asked_for if isinstance(asked_for, int) else 0  # of `context.exit`; no command returns a number
    except FtslurmError as error:
        print(f"ftslurm: {visible(error)}", file=sys.stderr)
        status = error.exit_status
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status = UsageError.exit_status
    except click.UsageError as error:
        click.UsageError(visible(error.format_message()), error.ctx).show()
        status = UsageError.exit_status
    except (click.Abort, KeyboardInterrupt):
        status = 130
    except PermissionError as error:  # of which nobody has said more
        print(visible(f"ftslurm: {error.filename}: {error.strerror} (check its owner and rights)"), file=sys.stderr)
        status = StateError.exit_status
    except OSError as error:
        if error.errno not in NO_SPACE or error.filename is not None:
            raise
        _discard_output()
        print(f"ftslurm: the output cannot be written: {error.strerror}", file=sys.stderr)
        status = StateError.exit_status
    sys.exit(status)


def _discard_output() -> None:
    """What is left in buffers would be written as the interpreter ends, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@group.command(short_help="Finish a requeue that the job could not finish.")
@click.argument("job", shell_complete=complete.jobs)
@click.option("--finish", is_flag=True, required=True, help="Finish a requeue that the job itself could not finish.")
def requeue(job: str, finish: bool) -> None:
    """Finish the requeue that ftrun decided for JOB and could not finish: exclude the nodes, set the start, release."""
    from ftslurm.wrapper.control import finish_requeue

    click.echo(visible(finish_requeue(store(), job, os.environ)))


@group.command(short_help="Print shell lines that set the counters in a script.")
def env() -> None:
    """Print shell lines that set the counters in a batch script: eval "$(ftslurm env)"."""
    from ftslurm.wrapper.batch_env import export_lines

    click.echo(export_lines(store(), os.environ), nl=False)


SHELLS = ("bash", "zsh", "fish")


@group.command(short_help="Print the script that completes commands in SHELL.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, settings and job numbers of ftrun and ftslurm.

    For one session: eval "$(ftslurm completion bash)". For all: write it to
    ~/.local/share/bash-completion/completions/ftslurm (bash), a folder of $fpath as _ftslurm (zsh) or
    ~/.config/fish/completions/ftslurm.fish.
    """
    made = get_completion_class(shell)
    assert made is not None, "click knows all of SHELLS"
    for command, name in ((group, "ftslurm"), (options, "ftrun")):
        click.echo(made(command, {}, name, f"_{name.upper()}_COMPLETE").source())


if __name__ == "__main__":
    main()

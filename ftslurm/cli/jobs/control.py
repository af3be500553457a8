"""The doors of `ftslurm control` and `ftslurm drill`: what one asks of a running job, and a fault on purpose in it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.output import print_json, store
from ftslurm.errors import UnknownJob, UsageError
from ftslurm.ledger.store import state_folder
from ftslurm.model.exits import signal_name
from ftslurm.model.folds import control as ctl
from ftslurm.model.nodes import expand
from ftslurm.model.record import Drill, Requested
from ftslurm.model.text import visible

if TYPE_CHECKING:
    from ftslurm.wrapper.explain_code import Explainer

F = TypeVar("F", bound=Callable[..., Any])
WAIT_S = 15.0
DRILL_WAIT_S = 60.0  # whoever orders one looks at what follows
FARTHEST_S = 366 * 86400.0


@click.group(
    short_help="Control JOB while it runs, or at its next attempt.",
    invoke_without_command=True,
    options_metavar="",
    subcommand_metavar="[VERB [ARGS]...]",
)
@click.argument("job", shell_complete=complete.jobs)
@click.pass_context
def control(context: click.Context, job: str) -> None:
    """Control JOB while it runs, or at its next attempt. Without VERB: list the requests so far.

    ftslurm writes the request into the job's ledger, and the job's ftrun answers within about two seconds, even while it waits
    for something. Exit status: 0 accepted; 1 refused, with the reason; 3 recorded, but not answered yet (the next attempt
    answers it).
    """
    words = context.find_root().obj or ["control", job]
    context.obj = job
    if _of_another_user(job):
        from ftslurm.wrapper.control import as_owner

        words = _from_here(words[words.index("control") + 1 :])
        context.exit(as_owner(job, words, os.environ, lambda text: click.echo(visible(text, lines=True), nl=False)))
    if context.invoked_subcommand is None:
        context.invoke(list_requests, as_json=False)


def _from_here(words: Sequence[str]) -> list[str]:
    """A relative pattern means this folder, also where another process reads it."""
    here, found = os.getcwd(), list(words)  # noqa: PTH109 -- a pattern is no path
    for number, word in enumerate(found):
        name, equals, value = word.partition("=")
        if name == "--files" and equals:
            found[number] = f"--files={os.path.join(here, value)}"  # noqa: PTH118
        elif number and found[number - 1] == "--files":
            found[number] = os.path.join(here, word)  # noqa: PTH118
    return found


def _of_another_user(job: str) -> bool:
    """root has no ledger of the job; what is not root's own is not even looked into."""
    if os.geteuid() != 0:
        return False
    try:
        if state_folder(os.environ).lstat().st_uid != 0:
            return True
        store().find(job)
    except (FileNotFoundError, UnknownJob):
        return True
    return False


def _verb(name: str, short_help: str | None = None) -> Callable[[F], click.Command]:
    """A command that asks for `name`; its function makes what the request is about. short_help: for the list of commands, where
    the first sentence is too long for it."""

    def decorate(function: F) -> click.Command:
        @functools.wraps(function)
        def ask(context: click.Context, /, wait_s: float, **given: Any) -> None:
            from ftslurm.wrapper.control import order

            asked = Requested(0.0, 0, "", name, **function(**given))
            click.echo(visible(order(store(), context.obj, asked, os.environ, wait_s)))

        wait = click.option(
            "--wait", "wait_s", type=click.FloatRange(0, 600), default=WAIT_S, show_default=True, metavar="S",
            help="Seconds to wait for the answer.",
        )  # fmt: skip
        return control.command(name, short_help=short_help)(wait(click.pass_context(ask)))

    return decorate


def _when(function: F) -> F:
    for option in (
        click.option("--files", metavar="PATTERN", default="", help="Files or folders that a checkpoint creates or changes."),
        click.option("--by", metavar="TIME", help="Latest time: 14:30, 2026-11-23T14:30, or 90m. Alone: at that time."),
        click.option("--after", metavar="TIME", help="Count only checkpoints from this time on."),
        click.option("--checkpoints", type=click.IntRange(1, 10**6), metavar="N", help="After the next N checkpoints."),
        click.option("--after-checkpoint", is_flag=True, help="After the next checkpoint."),
    ):
        function = option(function)
    return function


def _conditions(after_checkpoint: bool, checkpoints: int | None, after: str | None, by: str | None, files: str) -> dict[str, Any]:
    """Raises: UsageError."""
    number = checkpoints or int(after_checkpoint or bool(after))
    if files and not number:
        raise UsageError("--files describes a checkpoint, but the request waits for none", hint="add --after-checkpoint")
    if "**" in files:
        raise UsageError(f"--files {files}: `**` is not supported", hint="name each level: 'run/*/step_*'")
    now = time.time()
    return {
        "checkpoints": number, "files": os.path.join(os.getcwd(), files) if files else "",  # noqa: PTH109, PTH118 -- a pattern
        "after": read_moment("--after", after, now) if after else 0.0, "until": read_moment("--by", by, now) if by else 0.0,
    }  # fmt: skip


def read_moment(option: str, text: str, now: float) -> float:
    """Unix seconds of `14:30` (the next one), a date and time, both local, or a time from now. Raises: UsageError."""
    from ftslurm.report.jobs import moment_of

    found = moment_of(text.strip(), now, ahead=True)
    if found is None:
        raise UsageError(f"{option} {text}: not a time", hint="14:30, 2026-11-23T14:30, or 90m from now")
    if not now - 1 <= found <= now + FARTHEST_S:
        raise UsageError(f"{option} {text}: {'that time has passed' if found < now else 'it is too far ahead'}", hint="")
    return found


def _nodes(words: tuple[str, ...]) -> tuple[str, ...]:
    """`n2`, `n[3-5]`, `n2,n3`. Raises: UsageError."""
    return tuple(sorted({node for word in words for node in expand(word)}))


@_verb(ctl.STOP, "End the job; start nothing again.")
@_when
def stop(**when: Any) -> dict[str, Any]:
    """End the job: send SIGTERM to the ranks, wait for the grace time, and start nothing again.

    Now, after a checkpoint (--after-checkpoint), or at a time (--by). ftrun exits with the status of the ranks, or with 143 if it
    had to kill them.
    """
    return _conditions(**when)


@_verb(ctl.RESTART)
@_when
def restart(**when: Any) -> dict[str, Any]:
    """Restart the ranks in place: on the same nodes, in the same allocation. This spends no budget.

    They get SIGTERM and the grace, and ftrun starts the command again at once.
    """
    return _conditions(**when)


@_verb(ctl.REQUEUE)
@click.option("--without", metavar="NODES", multiple=True, help="Exclude these nodes, too.")
@_when
def requeue(without: tuple[str, ...], **when: Any) -> dict[str, Any]:
    """Requeue the job: it starts again some seconds later. This spends no budget."""
    return {"nodes": _nodes(without), **_conditions(**when)}


@_verb(ctl.EXCLUDE)
@click.argument("nodes", nargs=-1, required=True)
@click.option("--later", is_flag=True, help="Take effect at the next start; stop nothing now.")
@_when
def exclude(nodes: tuple[str, ...], later: bool, **when: Any) -> dict[str, Any]:
    """Exclude NODES. Ranks that run there move at once: to a spare, to fewer nodes, or by a requeue. This spends no budget.

    The job does not use these nodes again until `reinstate`. ftrun refuses if the job cannot go on without them.
    """
    conditions = _conditions(**when)
    if later and (conditions["checkpoints"] or conditions["until"]):
        raise UsageError("--later stops nothing, so it takes no condition", hint="omit --later or the condition")
    return {"nodes": _nodes(nodes), "later": later, **conditions}


@_verb(ctl.REINSTATE, "Let the job use NODES again.")
@click.argument("nodes", nargs=-1, required=True)
def reinstate(nodes: tuple[str, ...]) -> dict[str, Any]:
    """Let the job use NODES again, no matter whether you or ftrun excluded them."""
    return {"nodes": _nodes(nodes)}


@_verb(ctl.HOLD)
@click.argument("rung", type=click.Choice(ctl.HOLDABLE))
def hold(rung: str) -> dict[str, Any]:
    """Skip RUNG of the ladder until `release`."""
    return {"rung": rung}


@_verb(ctl.RELEASE)
@click.argument("rung", type=click.Choice(ctl.HOLDABLE))
def release(rung: str) -> dict[str, Any]:
    """Use RUNG of the ladder again."""
    return {"rung": rung}


@_verb(ctl.NO_RESTARTS)
def no_restarts() -> dict[str, Any]:
    """Restart nothing any more: the next failure ends the job."""
    return {}


@_verb(ctl.ALLOW_RESTARTS)
def allow_restarts() -> dict[str, Any]:
    """Answer failures by the ladder again."""
    return {}


@_verb(ctl.UNDO)
@click.argument("number", type=click.IntRange(1), required=False)
def undo(number: int | None) -> dict[str, Any]:
    """Undo request NUMBER, or the last one that can be undone."""
    return {"target": number or 0}


@control.command("list", short_help="List all requests and their outcomes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_requests(context: click.Context, as_json: bool) -> None:
    """List all requests: who asked for what and when, and the outcome."""
    from ftslurm.model.folds.history import fold
    from ftslurm.report.view import request_lines
    from ftslurm.report.words import moment

    found = tuple(fold(store().find(context.obj)[1].records).control.requests.values())
    if as_json:
        return print_json(found)
    if not found:
        return click.echo("no requests so far", err=True)
    click.echo(visible("\n".join(request_lines(found, moment)), lines=True))


# --- the door of `ftslurm drill`: a fault on purpose, in a running job of one's own


@click.group(short_help="Inject a fault into a running job of yours.")
def drill() -> None:
    """Inject a fault into one of your running jobs, and see how ftrun answers it.

    The ledger and `ftslurm history` mark it as a drill; the remedy is real and costs what it always costs.
    """


def _run(job: str, drill: Drill) -> None:
    from ftslurm.wrapper.control import order

    answer = order(store(), job, Requested(0.0, 0, "", ctl.DRILL, drill=drill), os.environ, DRILL_WAIT_S)
    click.echo(visible(f"job {job}: {drill.fault} on {drill.target}: {answer}"))


_RANK = click.option("--rank", required=True, type=click.IntRange(0), help="As SLURM_PROCID.")
_NODE = click.option("--node", required=True, help="A node of the job.")


@drill.command("device-fault")
@click.argument("job", shell_complete=complete.jobs)
@_NODE
@click.option("--device", default="0", help="As the device's tool numbers it: 0.0 for card 0, chip 0; 3 for GPU 3.")
@click.option("--code", required=True, help="80E01801, or 'XID 79'.")
@click.option("--kind", help="Of device: ascend, nvidia, amd or a plugin's. Default: as the code's catalogue says.")
@click.option(
    "--severity", type=click.Choice(["hint", "minor", "major", "critical"]), default="major", help="For codes without one."
)
@click.option("--stays", is_flag=True, help="Healing fails. Otherwise it removes the fault.")
def device_fault(job: str, node: str, device: str, code: str, kind: str | None, severity: str, stays: bool) -> None:
    """Make a device of NODE report CODE."""
    from ftslurm.model.settings.kinds import suggestion
    from ftslurm.system.plugins import DEVICES, find

    if kind and kind not in (vendors := find(DEVICES)):
        raise UsageError(f"--kind {kind}: no plugin reads such devices{suggestion(kind, vendors)}", hint="see `ftslurm plugins`")
    known = _explainer(job)
    order = Drill(
        "device-fault", node=node, device=device, code=code.upper(), kind=kind or known.kind_of(code), severity=severity,
        heals=not stays,
    )  # fmt: skip
    _run(job, order)
    expected = "; ".join(step.what for step in known.device(order.kind, order.code).does)
    click.echo(visible(f"expect: {expected}; `ftslurm status {job}` shows it"))


def _explainer(job: str) -> Explainer:
    """With the job's own settings."""
    from ftslurm.config.settings_files import SettingsAsked, settings_in_force
    from ftslurm.report.explain.terms import terms_of_job
    from ftslurm.wrapper.explain_code import Explainer

    in_force, _ = terms_of_job(store().find(job)[1].records) or (settings_in_force(SettingsAsked(), os.environ), ())
    return Explainer(in_force.settings)


@drill.command("rank-crash")
@click.argument("job", shell_complete=complete.jobs)
@_RANK
@click.option("--status", type=click.IntRange(1, 255), help="Exit status of the rank.  [1]")
@click.option("--signal", help="Signal that kills the rank: SEGV, KILL, 9.")
def rank_crash(job: str, rank: int, status: int | None, signal: str | None) -> None:
    """Make rank RANK fail, with a status or by a signal."""
    if signal and status:
        raise UsageError("--status and --signal exclude each other", hint="give one of them")
    number = _signal(signal) if signal else 0
    _run(job, Drill("rank-crash", rank=rank, status=0 if number else status or 1, signal=number))


def _signal(name: str) -> int:
    word = name.upper().removeprefix("SIG")
    for number in range(1, 65):
        if word in (str(number), signal_name(number).removeprefix("SIG")):
            return number
    raise UsageError(f"--signal {name}: there is no such signal", hint="SEGV, KILL, 9")


@drill.command()
@click.argument("job", shell_complete=complete.jobs)
@_RANK
def hang(job: str, rank: int) -> None:
    """Stop rank RANK until ftrun ends it, or until `drill end`."""
    _run(job, Drill("hang", rank=rank))


@drill.command("slow-rank")
@click.argument("job", shell_complete=complete.jobs)
@_RANK
@click.option("--share", type=click.FloatRange(0.01, 0.99), default=0.25, show_default=True, help="CPU share left to the rank.")
def slow_rank(job: str, rank: int, share: float) -> None:
    """Slow rank RANK down until `drill end`."""
    _run(job, Drill("slow-rank", rank=rank, share=share))


@drill.command("lost-node", short_help="Kill all tasks on NODE, as if the node were lost.")
@click.argument("job", shell_complete=complete.jobs)
@_NODE
def lost_node(job: str, node: str) -> None:
    """Kill all tasks on NODE without a word, so that ftrun takes the node for lost. (Slurm still considers it healthy.)"""
    _run(job, Drill("lost-node", node=node))


@drill.command()
@click.argument("job", shell_complete=complete.jobs)
@_RANK
def end(job: str, rank: int) -> None:
    """End the hang or slowness of rank RANK."""
    _run(job, Drill("end", rank=rank))

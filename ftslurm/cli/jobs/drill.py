"""The door of `ftslurm drill`: a fault on purpose, in a running job of one's own."""

from __future__ import annotations

import os
import signal as signals
from typing import Any

import click

from ftslurm.cli import suggestions as complete
from ftslurm.errors import UsageError
from ftslurm.model.events import DrillAsked
from ftslurm.model.text import visible, whole


@click.group(short_help="Inject a fault into a running job of yours.")
def drill() -> None:
    """Inject a fault into one of your running jobs, and see how ftrun answers it.

    The ledger and `ftslurm history` mark it as a drill; the remedy is real and costs what it always costs.
    """


def _run(job: str, order: DrillAsked) -> None:
    from ftslurm.ledger.store import Store, state_folder
    from ftslurm.wrapper.drill import order_drill, target_of

    target = target_of(Store(state_folder(os.environ)), job)
    where = order.node or f"rank {order.rank}"
    click.echo(visible(f"job {job}: {order.fault} on {where}: {order_drill(target, order, os.environ)}"))


_RANK = click.option("--rank", required=True, type=click.IntRange(0), help="As SLURM_PROCID.")
_NODE = click.option("--node", required=True, help="A node of the job.")


@drill.command("device-fault")
@click.argument("job", shell_complete=complete.jobs)
@_NODE
@click.option("--device", default="0", help="As the device's tool numbers it: 0.0 for card 0, chip 0; 3 for GPU 3.")
@click.option("--code", required=True, help="80E01801, or 'XID 79'.")
@click.option("--kind", type=click.Choice(["ascend", "nvidia", "amd"]), help="Default: as the code's catalogue says.")
@click.option(
    "--severity", type=click.Choice(["hint", "minor", "major", "critical"]), default="major", help="For codes without one."
)
@click.option("--stays", is_flag=True, help="Healing fails. Otherwise it removes the fault.")
def device_fault(job: str, node: str, device: str, code: str, kind: str | None, severity: str, stays: bool) -> None:
    """Make a device of NODE report CODE."""
    chosen = kind or ("nvidia" if code.upper().startswith(("XID", "SXID", "RECOVERY", "ROW")) else "ascend")
    order = DrillAsked(
        0, "device-fault", node=node, device=device, code=code.upper(), kind=chosen, severity=severity, heals=not stays
    )
    _run(job, order)


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
    _run(job, DrillAsked(0, "rank-crash", rank=rank, status=0 if number else status or 1, signal=number))


def _signal(name: str) -> int:
    word = name.upper().removeprefix("SIG")
    known: Any = {one.name.removeprefix("SIG"): int(one) for one in signals.Signals}
    if word in known:
        return int(known[word])
    if 1 <= (number := whole(word) or 0) <= 64:
        return number
    raise UsageError(f"--signal {name}: there is no such signal", hint="SEGV, KILL, 9")


@drill.command()
@click.argument("job", shell_complete=complete.jobs)
@_RANK
def hang(job: str, rank: int) -> None:
    """Stop rank RANK until ftrun ends it, or until `drill end`."""
    _run(job, DrillAsked(0, "hang", rank=rank))


@drill.command("slow-rank")
@click.argument("job", shell_complete=complete.jobs)
@_RANK
@click.option("--share", type=click.FloatRange(0.01, 0.99), default=0.25, show_default=True, help="CPU share left to the rank.")
def slow_rank(job: str, rank: int, share: float) -> None:
    """Slow rank RANK down until `drill end`."""
    _run(job, DrillAsked(0, "slow-rank", rank=rank, share=share))


@drill.command("lost-node", short_help="Kill all tasks on NODE, as if the node were lost.")
@click.argument("job", shell_complete=complete.jobs)
@_NODE
def lost_node(job: str, node: str) -> None:
    """Kill all tasks on NODE without a word, so that ftrun takes the node for lost. (Slurm still considers it healthy.)"""
    _run(job, DrillAsked(0, "lost-node", node=node))


@drill.command()
@click.argument("job", shell_complete=complete.jobs)
@_RANK
def end(job: str, rank: int) -> None:
    """End the hang or slowness of rank RANK."""
    _run(job, DrillAsked(0, "end", rank=rank))

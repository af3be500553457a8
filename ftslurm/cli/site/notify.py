"""The door of `ftslurm notify`: who is told of what, a test of it, and what could not be sent from a node without a way out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftslurm.errors import PolicyError, StateError
from ftslurm.model.text import counted, visible

if TYPE_CHECKING:
    from ftslurm.notify.deliver import Destination


@click.command(short_help="Show who is notified of which events of your jobs.")
@click.option("--test", is_flag=True, help="Send a test message to each address, and report the result.")
@click.option("--pending", is_flag=True, help="Send the notices that jobs could not send; for a machine with network access.")
@click.option("--to", "names", multiple=True, metavar="NAME", help="With --test: only to this address.")
@click.option("--policy", metavar="FILE", default="", help="As ftrun --ft-policy.")
def notify(test: bool, pending: bool, names: tuple[str, ...], policy: str) -> None:
    """Show who is notified of which events of your jobs. The addresses are in notify.yaml in the state folder, mode 0600."""
    from ftslurm.config.settings_files import Request, settings_in_force
    from ftslurm.ledger.store import state_folder
    from ftslurm.model.settings.tree import suggestion
    from ftslurm.notify.deliver import read_destinations
    from ftslurm.wrapper.telling.notices import FILE, place_of
    from ftslurm.wrapper.telling.teller import routes

    settings, root = settings_in_force(Request(policy), os.environ).settings, state_folder(os.environ)
    file = place_of(settings, root)
    if file is None:
        raise PolicyError(
            "nobody is notified of your jobs: there is no notify file", hint=f"write NAME: ADDRESS into {root / FILE}, mode 0600"
        )
    known = read_destinations(file)
    for name in names:
        if name not in known:
            raise PolicyError(f"there is no address `{name}` in {file}{suggestion(name, known)}", hint="correct it")
    if test:
        return _test(file, [known[name] for name in names or known])
    if pending:
        return _send_pending(root, file, settings.notify_burst, settings.notify_window_s)
    told = routes(settings, list(known), lambda text: click.echo(f"ftslurm: {visible(text)}", err=True))
    for name, destination in known.items():
        kinds = ", ".join(kind for kind in told if name in told[kind] and kind != "test")
        click.echo(visible(f"{name} ({destination.what}): {kinds or 'nothing'}"))


def _test(file: Path, destinations: Sequence[Destination]) -> None:
    """Raises: StateError where one did not take it."""
    import socket
    import time

    from ftslurm.notify.deliver import deliver
    from ftslurm.notify.outbox import Notice

    failed = []
    text = f"This is a test by `ftslurm notify --test` on {socket.gethostname()}: notices of your jobs arrive here."
    for each in destinations:
        if why := deliver(each, Notice("test", time.time(), "", "test", "ftslurm: a test", text)):
            failed.append(each.name)
        click.echo(visible(f"{each.name} ({each.what}): {why or 'sent'}"))
    if failed:
        raise StateError(f"{', '.join(failed)} did not get the test", hint=f"see {file}, or try a machine with network access")


def _send_pending(root: Path, file: Path, burst: int, window_s: float) -> None:
    from ftslurm.notify.deliver import read_destinations
    from ftslurm.notify.outbox import Outbox, Pace
    from ftslurm.notify.sender import lines_to, send_all

    outbox, known = Outbox(root, file), read_destinations(file)
    waiting = {name: len(outbox.waiting(name)) for name in known}
    said: list[str] = []
    send_all(lines_to(known, outbox, Pace(burst, window_s), said.append), lambda: False)
    for name, many in waiting.items():
        if many:
            left = len(outbox.waiting(name))
            click.echo(visible(f"{name}: {many - left} of {counted(many, 'notice')} sent"))
    taken = {name: found for name in known if (found := outbox.being_sent(name))[0]}
    for name, (many, wait_s) in taken.items():
        click.echo(
            visible(f"{name}: {counted(many, 'notice')} still with a job's sender; if it has died, ask again in {wait_s:.0f} s")
        )
    if not any(waiting.values()) and not taken:
        click.echo("no notices are waiting", err=True)
    if said:
        raise StateError("; ".join(said), hint="they are kept for a day")

"""The doors for those who run a site: install-hooks, doctor, nodes, metrics, notify, plugins."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftslurm.cli import suggestions as complete
from ftslurm.errors import PolicyError, StateError, UsageError
from ftslurm.model.text import counted, visible

if TYPE_CHECKING:
    from ftslurm.notify.deliver import Destination
    from ftslurm.system.plugins import Plugin


@click.command("install-hooks", short_help="Write Slurm's hook scripts, and show how to enable them.")
@click.argument("folder", default="/usr/local/lib/ftslurm")
@click.option("--config", default="/etc/ftslurm/hooks.yaml", show_default=True, help="The settings of the hooks.")
@click.option("--dry-run", is_flag=True, help="Only print the lines for slurm.conf.")
@click.option("--check", is_flag=True, help="Only compare every node with this machine; status 1 if one differs or is unknown.")
@click.option("-w", "--nodes", metavar="NODES", default="", help="With --check: only these, such as n[1-64].")
@click.option("--rsh", metavar="COMMAND", default="", help="With --check: how to run a command on %h, in place of ssh.")
def install_hooks(folder: str, config: str, dry_run: bool, check: bool, nodes: str, rsh: str) -> None:
    """Write Prolog, Epilog, TaskProlog, EpilogSlurmctld and HealthCheckProgram into FOLDER, and print the lines for slurm.conf.

    FOLDER is the same path on all nodes. Run it as root, from an installation that nobody else can write.
    """
    from ftslurm.hooks import install as hook_install

    conf = os.environ.get("SLURM_CONF", "")
    if check:
        from ftslurm.model.nodes import expand

        told, well = hook_install.compare_nodes(Path(folder), Path(config), conf, expand(nodes), rsh or hook_install.RSH)
        click.echo(visible(told, lines=True))
        click.get_current_context().exit(0 if well else 1)
    said = hook_install.write_hooks(Path(folder), Path(config), conf, dry_run)
    click.echo(visible(said, lines=True))


# --- the door of `ftslurm doctor`: what on this cluster stands in the way of ftrun, and the line to change


@click.command(short_help="Check this cluster, and name the lines to change.")
@click.option("-v", "--verbose", is_flag=True, help="Show the source of each check, also of those that are ok.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(verbose: bool, as_json: bool) -> None:
    """Check which settings of this cluster and of this machine hinder ftrun.

    Each check is `blocks` (a rung cannot be used), `costs` (works, but costs more), `unknown` (not visible from here) or `ok`,
    with the line to change and who can change it. Run it on a login node and inside an allocation: they may differ. As root
    or SlurmUser it checks the settings of the hooks as well. The exit status is 1 if something blocks.
    """
    from ftslurm.cli.output import print_json
    from ftslurm.config.catalog_files import load_site_checks
    from ftslurm.config.settings_files import SettingsAsked, settings_in_force
    from ftslurm.policies.site import blocks, examine
    from ftslurm.report.site import print_findings
    from ftslurm.report.site import site_as_json as for_programs
    from ftslurm.report.text import console
    from ftslurm.wrapper.site_look import look_at_site

    settings = settings_in_force(SettingsAsked(), os.environ).settings
    site = look_at_site(os.environ, settings.slurm.bin, _hook_settings)
    findings = examine(site, load_site_checks())
    if as_json:
        print_json(for_programs(findings))
    else:
        cluster, release = site.config.get("ClusterName", ""), site.config.get("SLURM_VERSION", "")
        head = f"cluster {cluster}, Slurm {release}, seen from {os.uname().nodename}" if site.config else site.silent
        print_findings(console(), findings, head, verbose)
        pages = Path(sys.prefix) / "share" / "doc" / "ftslurm"  # as a wheel brings them, under `make dist`
        if pages.is_dir():
            click.echo(f"docs/ is {visible(str(pages))}")
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


# --- the door of `ftslurm nodes`: which nodes jobs left for a fault, which are drained for one, and what can be done about it


@click.command(short_help="List the nodes that jobs excluded because of a fault.")
@click.option("--clear", metavar="NODES", default="", help="Forget the faults of NODES: n3, or n[1-4],m7.")
@click.option("--all-users", is_flag=True, help="Include nodes that ftslurm drained; as root, other users' nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def nodes(clear: str, all_users: bool, as_json: bool) -> None:
    """List the nodes that your jobs excluded because of a fault: which fault, how long it counts, and what you can do.

    A node that two jobs excluded is suspect to the next ones, which avoid it at a requeue.
    """
    from ftslurm.cli.output import passed_over, print_json, site_settings
    from ftslurm.config.settings_files import SettingsAsked, settings_in_force
    from ftslurm.ledger.store import state_folder
    from ftslurm.report.site import print_nodes
    from ftslurm.system.owner import user_name
    from ftslurm.wrapper import nodes as look

    root, settings, now = state_folder(os.environ), settings_in_force(SettingsAsked(), os.environ).settings, time.time()
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
        known |= look.of_all(site.ledgers, site.first_user_id, settings, now, passed_over)
    if as_json and not all_users:
        return print_json([node for nodes in known.values() for node in nodes])
    found = look.reports(known, slurm, look.adviser(settings)) if any(known.values()) or slurm.nodes else []
    if as_json:
        print_json(found)
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


# --- the door of `ftslurm metrics`: jobs in numbers, as Prometheus reads them, and as traces for OpenTelemetry


@click.command(short_help="Print metrics of jobs for Prometheus, or send a trace.")
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("--since", default="1d", show_default=True, metavar="TIME", help="Include jobs that ended since then.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Only the latest jobs.")
@click.option("--all-users", is_flag=True, help="As root: jobs of every user who has ledgers.")
@click.option("--otlp", is_flag=True, help="Send traces instead, to --endpoint or OTEL_EXPORTER_OTLP_ENDPOINT.")
@click.option("--endpoint", metavar="URL", default="", help="As http://collector:4318/v1/traces.")
def metrics(job: str | None, since: str, limit: int, all_users: bool, otlp: bool, endpoint: str) -> None:
    """Jobs, attempts, restarts by rung and cause, seconds by phase, excluded nodes: on stdout, in Prometheus' text format.

    For JOB, or for all jobs that run or ended within --since. ftrun writes the same for node_exporter while the job runs, with
    its beats (metrics.dir).
    """
    if otlp:
        return _send(job, endpoint)
    try:
        from ftslurm.wrapper.exposition import exposition
    except ImportError:
        from ftslurm.system.plugins import pip_line

        raise UsageError("this needs prometheus-client, which is not installed", hint=pip_line("metrics")) from None
    from ftslurm.cli.output import passed_over, site_settings
    from ftslurm.report.jobs import parse_moment
    from ftslurm.report.measures import JobOf
    from ftslurm.wrapper.all_ledgers import jobs_of_all, jobs_of_me

    oldest = parse_moment(since, time.time())
    if all_users and job:
        raise UsageError("--all-users and JOB exclude each other", hint="omit one of them")
    if all_users:
        site = site_settings()
        told = jobs_of_all(oldest, limit, passed_over, site.ledgers, site.first_user_id)
        found = [JobOf(user, measures) for user, _, measures in told]
    else:
        found = jobs_of_me(job, oldest, limit, passed_over)
    click.echo(visible(exposition(found), lines=True), nl=False)


def _send(job: str | None, endpoint: str) -> None:
    from ftslurm.cli.output import store
    from ftslurm.wrapper.metrics import otlp_exporter, send, spans_of

    if not job:
        raise UsageError("--otlp sends the trace of one job", hint="ftslurm metrics --otlp JOB")
    if not (endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        raise UsageError("no endpoint is given for the trace", hint="--endpoint http://collector:4318/v1/traces")
    journal, _ = store().read(job)
    found = spans_of(journal.path)
    if not found:
        raise StateError(f"the ledger of job {job} is empty: nothing has begun", hint="try again in a moment")
    send(found, otlp_exporter(endpoint))
    click.echo(f"{visible(len(found))} spans of job {visible(job)} sent")


# --- the door of `ftslurm notify`: who is told of what, a test of it, and what could not be sent from a node without a way out


@click.command(short_help="Show who is notified of which events of your jobs.")
@click.option("--test", is_flag=True, help="Send a test message to each address, and report the result.")
@click.option("--pending", is_flag=True, help="Send the notices that jobs could not send; for a machine with network access.")
def notify(test: bool, pending: bool) -> None:
    """Show who is notified of which events of your jobs. The addresses are in notify.yaml in the state folder, mode 0600."""
    from ftslurm.config.settings_files import SettingsAsked, settings_in_force
    from ftslurm.ledger.store import state_folder
    from ftslurm.notify.deliver import read_destinations
    from ftslurm.wrapper.controller.people import FILE, place_of
    from ftslurm.wrapper.controller.teller import routes

    settings, root = settings_in_force(SettingsAsked(), os.environ).settings, state_folder(os.environ)
    file = place_of(settings, root)
    if file is None:
        raise PolicyError(
            "nobody is notified of your jobs: there is no notify file", hint=f"write NAME: ADDRESS into {root / FILE}, mode 0600"
        )
    known = read_destinations(file)
    if test:
        return _test(file, list(known.values()))
    if pending:
        return _send_pending(root, file, settings.notify.burst, settings.notify.window_s)
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


# --- the door of `ftslurm plugins`


@click.command(short_help="List the device vendors, notifiers and catalogues that are found.")
def plugins() -> None:
    """List the device vendors, notifiers and catalogues that are found here: kind, name, package, and whether it can be loaded.

    A plugin that cannot be loaded is left out, and jobs run without it. The exit status is 1 if there is one.
    """
    from ftslurm.system.plugins import OURS, find

    well = True
    for plugin in (each for group in OURS for each in find(group).values()):
        why = _why_left_out(plugin)
        well = well and not why
        state = f"left out: {why}" if why else "ok"
        click.echo(visible(f"{plugin.kind:13}  {plugin.name:10}  {plugin.package:20}  {state}"))
    if not well:
        click.get_current_context().exit(1)


def _why_left_out(plugin: Plugin) -> str:
    from ftslurm.config.catalog_files import read_catalog
    from ftslurm.errors import FtslurmError
    from ftslurm.system.plugins import CATALOGS

    try:
        found = plugin.load()
        if plugin.group == CATALOGS:
            read_catalog(found)
    except FtslurmError as error:
        return str(error)
    return ""

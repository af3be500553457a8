"""What ftrun was asked to do, and where it finds itself: the settings in force, the allocation, or none."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from itertools import chain, repeat

from ftslurm.config.settings_files import SettingsAsked, settings_in_force
from ftslurm.errors import FtslurmError, UsageError
from ftslurm.launchers.python import BUNDLE, Python, Runtime, in_bundle, own_python, runtimes_of
from ftslurm.launchers.srun import are_independent
from ftslurm.launchers.srun_options import Component, option_value
from ftslurm.ledger.store import state_folder
from ftslurm.model.job import Allocation
from ftslurm.model.settings.dialects import unread
from ftslurm.model.settings.tree import Resolved, Settings
from ftslurm.model.text import visible
from ftslurm.model.values import Value, replace
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import JobView
from ftslurm.slurm.conf_file import read_conf
from ftslurm.slurm.env import read_allocation
from ftslurm.slurm.retries import Retries
from ftslurm.system.bundle import bundle_in
from ftslurm.system.commands import run as run_command
from ftslurm.system.commands import with_folder
from ftslurm.system.meanwhile import Meanwhile

# For scontrol: the job runs on this cluster, and nobody is asked whether it belongs to a federation. Source: scontrol(1).
HERE = {"SCONTROL_LOCAL": "1"}
# After this long without an answer people are told so. A busy slurmctld, which takes longer, is then asked with its full time.
TOLD_AFTER_S = 10.0


class Order(Value):
    """What ftrun was asked to do: the user's components, the settings request, and the world it runs in."""

    components: tuple[Component, ...]
    request: SettingsAsked
    env: Mapping[str, str]
    verbose: bool = False
    own: tuple[str, ...] = ()  # our options, as given

    @property
    def command(self) -> str:
        """For people, and to tell one ftrun of a script from another."""
        return " : ".join(shlex.join(component.command) for component in self.components)


class Place(Enum):
    """Where ftrun finds itself."""

    ALLOCATION = "in an allocation"
    OUTSIDE = "where one can be asked for"
    LOCAL = "where tasks are processes of this machine"


class JobSite(Value):
    """Where the job runs. env: for all that is started there. allocation, client, view, config: in an allocation, else None.
    no_slurm: why the local launcher serves though nobody has asked for it. bundle: the path of the interpreter that comes along,
    empty where the nodes' own serves."""

    resolved: Resolved
    env: Mapping[str, str]
    place: Place
    allocation: Allocation | None = None
    client: SlurmClient | None = None
    view: JobView | None = None
    config: Callable[[], Mapping[str, str]] | None = None  # raises FtslurmError where nobody tells
    no_slurm: str = ""
    bundle: str = ""

    @property
    def settings(self) -> Settings:
        return self.resolved.settings

    @property
    def local(self) -> bool:
        return self.place is Place.LOCAL

    @property
    def python(self) -> Python:
        """The interpreter of shims and agents, with the folder of our own package."""
        return in_bundle(self.bundle) if self.settings.python == BUNDLE else own_python(self.settings.python)


def survey(order: Order, beside: Callable[[], object] = lambda: None) -> JobSite:
    """Settings in force and the allocation, if any. beside: is called while Slurm is asked. Raises: FtslurmError."""
    site = _survey(replace(order, request=request_of(order)), beside)
    return replace(site, bundle=_bundle(order, site))


def request_of(order: Order) -> SettingsAsked:
    """The settings asked for, with what options and variables of srun's ask for."""
    if not all(are_independent(one.options, order.env) for one in order.components):
        return order.request
    return replace(order.request, srun={"mode": ("independent", "srun's --kill-on-bad-exit=0")})


def _bundle(order: Order, site: JobSite) -> str:
    """Named, so that nothing but ranks in containers of pyxis begins without it."""
    contained = not site.settings.python and not site.local and Runtime.PYXIS in runtimes_of(order.components, site.env)
    return str(bundle_in(state_folder(site.env))) if contained or site.settings.python == BUNDLE else ""


def _survey(order: Order, beside: Callable[[], object]) -> JobSite:
    resolved = settings_in_force(order.request, order.env)
    settings = resolved.settings
    env = _of_job_named(order, with_folder(order.env, settings.slurm.bin))
    if settings.launcher == "local":
        return JobSite(resolved, env, Place.LOCAL)
    site = JobSite(resolved, env, Place.ALLOCATION, read_allocation(env))
    if site.allocation is None:
        return _survey_outside(site)
    client = SlurmClient(timeout_s=settings.slurm.timeout_s, env=env)
    number = site.allocation.job.number
    config = _config(client, env)
    limits = chain((min(TOLD_AFTER_S, settings.slurm.timeout_s),), repeat(settings.slurm.timeout_s))
    clients = (SlurmClient(timeout_s=limit_s, env={**env, **HERE}) for limit_s in limits)
    asked = Meanwhile(lambda: Retries(settings.slurm.patience_s).ask(lambda left_s: next(clients).job(number), say))
    beside()  # not in the thread: there each 4 kB of memory are a system call of their own
    view = asked.answer()
    resolved = settings_in_force(order.request, order.env, view.comment)
    if passed_over := unread(view.comment):
        say(passed_over)
    allocation = replace(
        site.allocation, cluster=_cluster(order, site.allocation, config),
        nodes=view.nodes or site.allocation.nodes, restarts=view.restarts, start_time=view.start_time,
        end_time=view.end_time, batch=view.batch, granted=site.allocation.nodes, submit_time=view.submit_time,
    )  # fmt: skip
    return replace(site, resolved=resolved, allocation=allocation, client=client, view=view, config=config)


def attaches(order: Order, site: JobSite) -> bool:
    """Does --jobid name a job that is not ours: one that runs a script of its own, or another one than that in which we run?"""
    number = option_value(order.components[0].options, "jobid")
    if not number or site.view is None or number == order.env.get("SLURM_JOB_ID"):
        return False
    return "SLURM_JOB_ID" in order.env or site.view.batch


def _config(client: SlurmClient, env: Mapping[str, str]) -> Callable[[], Mapping[str, str]]:
    """Where the file of this node does not tell, slurmctld is asked beside the job, which takes it as long."""
    known = read_conf(env)
    return (lambda: known) if known else Meanwhile(client.config).answer


def _cluster(order: Order, allocation: Allocation, config: Callable[[], Mapping[str, str]]) -> str:
    """One name for every ftrun of the job, in its script and outside of it; empty where neither slurmd nor slurmctld tells it."""
    if allocation.cluster and "SLURM_JOB_ID" in order.env:
        return allocation.cluster
    with suppress(FtslurmError):
        return config().get("ClusterName", "")
    return allocation.cluster


def say(text: str) -> None:
    """To people, before there is a controller that does, and beside it."""
    print(f"ftrun: {visible(text)}", file=sys.stderr, flush=True)


def _of_job_named(order: Order, env: Mapping[str, str]) -> Mapping[str, str]:
    """--jobid puts the step into a job that runs, wherever srun is called from; it is named by the program, and not by ours."""
    component = order.components[0]
    number = option_value(component.options, "jobid")
    if not number or "SLURM_JOB_ID" in env:
        return env
    return {"SLURM_JOB_NAME": component.command[0].rpartition("/")[2], **env, "SLURM_JOB_ID": number}


def _survey_outside(site: JobSite) -> JobSite:
    """Raises: UsageError where an allocation is wanted and nobody can give one."""
    from ftslurm.slurm.env import why_no_slurm

    why = why_no_slurm(run_command, site.env, site.settings.slurm.timeout_s)
    if not why:
        return replace(site, place=Place.OUTSIDE)
    if site.settings.launcher == "srun":
        raise UsageError(f"--ft-launcher srun needs Slurm: {why}", hint="run ftrun where you submit jobs, or omit --ft-launcher")
    return replace(site, place=Place.LOCAL, no_slurm=why)

"""Collects what `ftslurm doctor` judges, from Slurm and this machine. Changes nothing, except one file that it creates and
removes.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from ftslurm.devices.probe import choose_probes
from ftslurm.errors import CalledItself, FtslurmError, StateError
from ftslurm.ledger.store import state_folder
from ftslurm.model.site import Folder, Ledgers, Machine, OwnJob, Partition, Program, Site
from ftslurm.model.text import whole
from ftslurm.slurm.cli_client import SlurmClient, read_answer
from ftslurm.slurm.commands import ANSWER_ENV, SHOW_PARTITIONS
from ftslurm.slurm.env import no_configuration
from ftslurm.slurm.parse import parse_partitions, slurm_user_id
from ftslurm.system.commands import Runner, find_slurm_program, run, with_folder
from ftslurm.system.files import is_there, raise_limit, room
from ftslurm.wrapper.wire import DESCRIPTORS_KEPT

# A person waits for this.
ASK_S = 10.0
_SCRIPTS = re.compile(r"(Prolog|Epilog|TaskProlog|EpilogSlurmctld|HealthCheckProgram)(\[\d+\])?")


def look_at_site(
    env: Mapping[str, str], slurm_bin: str, hook_settings: Callable[[], str], client: SlurmClient | None = None, run: Runner = run
) -> Site:
    """The facts. env: of the caller. slurm_bin: the setting slurm.bin. hook_settings: what is wrong with hooks.yaml, empty if
    nothing.

    Never raises if Slurm is away: `silent` says why.
    """
    env = with_folder(env, slurm_bin)
    asked = client or SlurmClient(run, ASK_S, env)
    if nothing := _no_configuration(env, run):
        return Site(silent=nothing, machine=machine(env, {}, run))
    try:
        config = asked.config()
    except FtslurmError as error:
        return Site(silent=error.message, machine=machine(env, {}, run))
    admin = os.geteuid() in (0, slurm_user_id(config))
    return Site(
        config=config, partitions=_partitions(env, run), nodes=_nodes(asked), job=_own_job(asked, env), admin=admin,
        machine=machine(env, config, run, hook_settings() if admin else ""),
    )  # fmt: skip


def _no_configuration(env: Mapping[str, str], run: Runner) -> str:
    """Why there is no Slurm to ask, in words; otherwise the client would repeat the request until its time limit."""
    try:
        return no_configuration(run(("scontrol", "ping"), ASK_S, env=env))
    except FtslurmError:
        return ""


def _partitions(env: Mapping[str, str], run: Runner) -> tuple[Partition, ...] | None:
    try:
        told = parse_partitions(read_answer(run(SHOW_PARTITIONS, ASK_S, env={**env, **ANSWER_ENV})))
    except FtslurmError:
        return None
    return tuple(Partition(each.name, each.exclusive, each.nodes) for each in told)


def _nodes(client: SlurmClient) -> int | None:
    try:
        return len(client.nodes())
    except FtslurmError:
        return None


def _own_job(client: SlurmClient, env: Mapping[str, str]) -> OwnJob | None:
    number = env.get("SLURM_JOB_ID", "")
    if not re.fullmatch(r"[1-9]\d{0,9}", number):
        return None
    try:
        job = client.job(int(number))
    except FtslurmError:
        return None
    return OwnJob(job.number, job.batch, job.requeue)


# --- this machine


def machine(env: Mapping[str, str], config: Mapping[str, str], run: Runner = run, hook_settings: str = "") -> Machine:
    """The facts of this machine. config: Slurm's, for the scripts that it names."""
    probes = choose_probes(env, run)
    named = {value for key, value in config.items() if _SCRIPTS.fullmatch(key) and value.startswith("/") and "*" not in value}
    first = shutil.which("srun", path=env.get("PATH")) or ""
    srun, stands_in = _srun(env, first)
    return Machine(
        python=sys.executable,
        version=sys.version_info[:2],
        installed=file_system_of(Path(sys.executable).parent),
        ftrun=Program(shutil.which("ftrun", path=env.get("PATH")) or ""),
        srun=srun,
        first_srun=first,
        stands_in=stands_in,
        ledgers=_ledgers(env),
        tools=tuple(probe.kind for probe in probes),
        deaf={probe.kind: extra for probe in probes if (extra := probe.missing_extra())},
        scripts={path: os.access(path, os.X_OK) for path in sorted(named)},
        hook_settings=hook_settings,
        on_node="SLURM_JOB_ID" in env,
        connections=_connections(env),
    )


def _connections(env: Mapping[str, str]) -> tuple[int, int]:
    """See Machine. ftrun raises its limit as well."""
    raise_limit()
    nodes = whole(env.get("SLURM_NNODES", "")) or 0
    return (whole(env.get("SLURM_NTASKS", "")) or nodes) + nodes, room() - DESCRIPTORS_KEPT


def _srun(env: Mapping[str, str], first: str) -> tuple[Program, bool]:
    """Slurm's own srun; and whether the srun on PATH is another program, namely ftrun."""
    try:
        path = find_slurm_program("srun", env)
    except CalledItself as error:
        return Program(why=str(error)), True
    except FtslurmError as error:
        return Program(why=str(error)), False
    own = with_folder(env, "")
    try:
        return Program(path), bool(first) and not os.path.samefile(find_slurm_program("srun", own), first)  # noqa: PTH121
    except CalledItself:
        return Program(path), True
    except (FtslurmError, OSError):
        return Program(path), False


def file_system_of(path: Path) -> Folder:
    """The file system of `path`: the longest mount point above it, the latest if several are mounted there."""
    real = os.path.realpath(path)
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        mounts = []
    above = [each for each in mounts if each.mountpoint == "/" or f"{real}/".startswith(f"{each.mountpoint}/")]
    if not above:
        return Folder(str(path), "", frozenset())
    best = sorted(above, key=lambda each: len(each.mountpoint))[-1]
    return Folder(str(path), best.fstype, frozenset(best.opts.split(",")))


def _ledgers(env: Mapping[str, str]) -> Ledgers:
    try:
        wanted = state_folder(env)
    except StateError as error:
        return Ledgers(trouble=error.message)
    there = next((folder for folder in (wanted, *wanted.parents) if is_there(folder)), Path("/"))
    place = Folder(str(wanted), file_system_of(there).kind, file_system_of(there).options)
    try:
        if there == wanted and not (wanted.is_dir() and wanted.stat().st_uid == os.geteuid()):
            return Ledgers(place, "it is not a folder of yours")
        with tempfile.TemporaryFile(dir=there, prefix=".ftslurm-doctor-") as file:
            return Ledgers(place, "", _lock(file.fileno()), _sync(file.fileno()))
    except OSError as error:
        return Ledgers(place, error.strerror or str(error))


def _lock(fd: int) -> str:
    """Try a lock as the ledger uses it. Gives what is wrong, in words."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _sync(fd: int) -> float:
    """Seconds that one fsync takes. Raises: OSError."""
    began = time.monotonic()
    os.write(fd, b"ftslurm doctor\n")
    os.fsync(fd)
    return time.monotonic() - began

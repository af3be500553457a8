"""The argv of every request to Slurm. Pure. The job's owner needs scontrol and scancel only, which every submit host has.

Source: scontrol(1), scancel(1); each form was used on real Slurm 22.05 and 26.05.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from ftslurm.errors import SlurmRefused, UsageError
from ftslurm.model.job import JobId, unfold_counts
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.text import whole
from ftslurm.slurm.client import JobView

# Unix seconds in every answer. The default is local time, ambiguous for an hour each autumn and wrong for
# whoever has another TZ. Source: scontrol(1), ENVIRONMENT VARIABLES.
ANSWER_ENV = {"SLURM_TIME_FORMAT": "%s"}

# parse_time() takes nothing below this for Unix seconds; it lies in January 1970.
_FIRST_UNIX_S = 1_000_000

# Slurm shows a job without limit with an end in a year (its INFINITE).
_NO_END_S = 300 * 86400.0

# --all: also jobs and nodes of partitions that are hidden from the caller.
SHOW = ("scontrol", "--all", "show")
SHOW_CONFIG = (*SHOW, "config")
SHOW_PARTITIONS = (*SHOW, "partition", "--oneliner")  # one a line
SHOW_QOS = (*SHOW, "assoc_mgr", "flags=qos")
SHOW_TOPOLOGY = ("scontrol", "show", "topology")  # prints nothing where there is none (22.05 to 26.05)


def show_job_argv(number: int) -> tuple[str, ...]:
    """In the form of several lines: `parse_job` says why.

    Raises: UsageError for a number that is none; `scontrol show job` would take it for something else.
    """
    if number <= 0:
        raise UsageError(f"{number} is not a job", hint="give Slurm's job id, a positive number")
    return (*SHOW, "job", str(number))


def show_node_argv(node: str) -> tuple[str, ...]:
    return (*SHOW, "node", _node(node), "--oneliner")


def drain_argv(node: str, reason: str) -> tuple[str, ...]:
    return ("scontrol", "update", f"NodeName={_node(node)}", "State=DRAIN", f"Reason={reason}")


def undrain_argv(node: str) -> tuple[str, ...]:
    """Not RESUME, which would also bring a node back that is down. Source: scontrol(1), UNDRAIN."""
    return ("scontrol", "update", f"NodeName={_node(node)}", "State=UNDRAIN")


def jobs_on_argv(node: str) -> tuple[str, ...]:
    """Number, user id and state of every job that has resources there, also of hidden partitions."""
    states = "RUNNING,SUSPENDED,CONFIGURING,COMPLETING,STOPPED,SIGNALING,STAGE_OUT"
    return ("squeue", "--noheader", "--all", f"--nodelist={_node(node)}", f"--states={states}", "--format=%A|%U|%T")


def jobs_argv(user_id: int) -> tuple[str, ...]:
    """Every job of the user that Slurm remembers, one a line, as `parse_jobs` reads it."""
    return ("squeue", "--noheader", "--all", "--states=all", f"--user={user_id}", "--format=%A|%T|%S|%Q|%e|%r")


def ended_argv(numbers: Iterable[int]) -> tuple[str, ...]:
    """Jobs that slurmctld has forgotten, as slurmdbd knows them, one a line, as `parse_ended` reads it. A requeued job has one
    line, its last. Source: sacct(1), --jobs, --duplicates.
    """
    jobs = ",".join(map(str, numbers))
    return ("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={jobs}", "--format=JobIDRaw,State,End")


def steps_argv(number: int) -> tuple[str, ...]:
    """Id and name of every step, one a line, as `parse_steps` reads it."""
    return ("squeue", "--noheader", "--all", "--steps", f"--jobs={number}", "--format=%i %j")


def _node(name: str) -> str:
    """The name. Raises: UsageError unless it names one node: a list would drain them all."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,255}", name):
        raise UsageError(f"`{name[:40]}` is not a node", hint="slurmd sets SLURMD_NODENAME for its scripts")
    return name


def show_reservation_argv(name: str) -> tuple[str, ...]:
    return (*SHOW, "reservation", name, "--oneliner")


def batch_script_argv(number: int) -> tuple[str, ...]:
    """The job's script, on stdout. Source: scontrol(1), write batch_script."""
    return ("scontrol", "write", "batch_script", str(number), "-")


def show_partition_argv(name: str) -> tuple[str, ...]:
    return (*SHOW, "partition", name, "--oneliner")


def update_argv(job: JobId, **changes: object) -> tuple[str, ...]:
    """ExcNodeList and ReqNodeList replace the list, and clear it when empty; Comment is seen by `squeue -o %k` and outlives a
    requeue."""
    return ("scontrol", "update", f"JobId={job}", *(f"{key}={value}" for key, value in changes.items()))


def start_time(unix_s: int | None) -> str:
    """None is now.

    Source: `uts` followed by Unix seconds in Slurm's parse_time(), there from 2.x to 26.05 though no manual tells;
    seen on 22.05 and 26.05. Local time, the documented form, is ambiguous for an hour each autumn.
    """
    return "now" if unix_s is None else f"uts{max(int(unix_s), _FIRST_UNIX_S)}"


# A comment that begins so is ours; any other is the user's or the site's, and annotations may stand in it.
COMMENT_PREFIX = "ftslurm: "


def donor_name(number: int) -> str:
    """The job name of donors for job `number`."""
    return f"ftslurm-donor-{number}"


def donors_argv(number: int) -> tuple[str, ...]:
    """Numbers of the donors of job `number` that wait or run, one a line."""
    states = "PENDING,CONFIGURING,RUNNING,SUSPENDED"
    return ("squeue", "--noheader", "--all", "--me", f"--name={donor_name(number)}", f"--states={states}", "--format=%A")


def shape_of(ours: JobView, env: Mapping[str, str]) -> tuple[str, ...]:
    """CPUs and memory of a node like those of ours: where our job has its nodes for itself, or that is not known, all its CPUs.

    env: of the batch script. With threads left out CPUs are counted in another way than --cpus-per-task does.
    Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    """
    cpus = unfold_counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    whole_node = ours.exclusive or not cpus or not {"SLURM_HINT", "SLURM_THREADS_PER_CORE"}.isdisjoint(env)
    options = {"--mem": "SLURM_MEM_PER_NODE", "--mem-per-cpu": "SLURM_MEM_PER_CPU", "--mem-per-gpu": "SLURM_MEM_PER_GPU"}
    memory = next((f"{option}={env[name]}" for option, name in options.items() if whole(env.get(name, ""))), "--mem=0")
    return ("--exclusive" if whole_node else f"--cpus-per-task={max(cpus)}", memory)


def options(values: Mapping[str, object]) -> Iterator[str]:
    """Of those that say something."""
    return (f"--{name}={value}" for name, value in values.items() if value)


def more_cpus(job: JobView) -> int:
    """For --mincpus; 0 where one will do."""
    return job.needs.min_cpus if job.needs.min_cpus > 1 else 0


def donor_argv(
    ours: JobView, gres: str, exclude: Iterable[str], time_left_s: float, inherited: Mapping[str, str], further: Iterable[str],
    shape: Iterable[str] = ("--exclusive", "--mem=0"),
) -> tuple[str, ...]:  # fmt: skip
    """A job of one node like those of ours, its script from stdin. time_left_s: of our own job, 0 if that has no end.

    gres: see `gres_of`. shape: see `shape_of`. inherited: option -> value, as of our own job. further: options of the user's,
    which win, but for the name, by which a donor job is known later.
    """
    minutes = max(1, math.ceil(time_left_s / 60))
    return (
        "sbatch", "--parsable", "--nodes=1", "--ntasks=1", *shape, "--no-requeue",
        f"--exclude={fold_nodes(exclude)}", "--output=/dev/null", "--chdir=/tmp",
        *options({
            "partition": ours.partition, "constraint": ours.needs.features, "gres": gres, "mincpus": more_cpus(ours),
            "time": minutes if 0 < time_left_s < _NO_END_S else "", **inherited,
        }), *further, f"--job-name={donor_name(ours.number)}",
    )  # fmt: skip


def gres_of(ours: JobView, env: Mapping[str, str]) -> str:
    """What a node like those of ours has, as --gres takes it. env: of the batch script.

    GPUs that were asked for by job or by task (--gpus, --gpus-per-task) are not among those that the job asks for on each
    node; of them the batch node's count. Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
    """
    count = env.get("SLURM_GPUS_ON_NODE", "")
    if not re.fullmatch("[1-9][0-9]{0,3}", count) or any(word.partition(":")[0] == "gpu" for word in ours.needs.gres.split(",")):
        return ours.needs.gres
    asked = env.get("SLURM_GPUS_PER_TASK") or env.get("SLURM_GPUS") or ""
    found = re.fullmatch("([A-Za-z0-9_.-]+):[0-9]+", asked)
    return ",".join(filter(None, (ours.needs.gres, f"gpu:{found[1]}:{count}" if found else f"gpu:{count}")))


def submitted(status: int | None, stdout: str, stderr: str) -> int:
    """The number of the new job. Raises: SlurmRefused."""
    number = stdout.strip().partition(";")[0]
    if status == 0 and number.isascii() and number.isdecimal():
        return int(number)
    why = "no answer in time" if status is None else (stderr or stdout).strip()
    raise SlurmRefused(f"a donor job was refused: {why}", hint="nodes.donor_options gives its sbatch further options")


def address(view: JobView) -> JobId:
    """What to call the job in a request that changes it.

    The number will not do for a task of a job array. The last task to start has the number of the array
    itself, and Slurm takes a request for that number as one for every task: `scontrol requeuehold 14`, where
    14 is 14_3, requeued 14_1 and 14_2 too (seen on 22.05). 14_3 means that task alone.

    Raises: SlurmRefused for a job array whose tasks wait undivided: that is many jobs under one number.
    """
    if view.array_job is not None and view.array_task is None:
        raise SlurmRefused(f"job {view.number} is a job array, not one job", hint=f"name a task: {view.array_job}_TASK")
    return JobId(view.number, view.array_job, view.array_task)

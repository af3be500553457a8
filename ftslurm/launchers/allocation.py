"""What srun would ask slurmctld for outside an allocation, as the command line of a salloc. Pure.

srun gives one command line to two requests, for an allocation and for a step in it. Here it is divided: most options shape
both (`-N2 -n8 --gres=gpu:4`), some mean the allocation alone (`--partition`), others the step alone (`--label`).
Source: srun(1) and salloc(1) of 22.05 to 26.05; a test asks the installed salloc which options it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import PLUGIN_OPTIONS, SRUN_OPTIONS, Component, Takes, option_value, parse_options, without
from ftslurm.model.text import whole
from ftslurm.model.values import dataclass

# salloc does not know them, or (chdir, container) would do at once what only the tasks shall do. Plugins' options, too.
STEP_ONLY = frozenset("""
    accel-bind async autocomplete bcast bcast-exclude chdir compress container container-id cpu-bind cpu_bind
    debugger-test disable-status epilog error exact export external-launcher het-group ignore-signals input interactive jobid
    kill-on-bad-exit label mem-update mpi msg-timeout multi-prog no-allocate open-mode output overlap pack-group parsable
    preserve-env prolog propagate pty quit-on-interrupt relative resv-ports send-libs slurmd-debug task-epilog task-prolog
    test-only threads treewidth unbuffered wait wait-for-children whole
""".split())  # fmt: skip
# A step has none of this, or --exclusive would mean something else there.
ALLOCATION_ONLY = frozenset("""
    account bb bbf begin cluster-constraint clusters comment constraint contiguous deadline delay-boot dependency exclusive
    extra gid hold immediate licenses mail-type mail-user mcs-label mincpus nice oversubscribe partition power prefer priority
    qos reboot reservation segment signal spread-job stepmgr switches time time-min tmp uid use-min-nodes wckey x11
""".split())  # fmt: skip
# What srun reads for want of an option, where it asks for an allocation; salloc has other names. Source: srun(1), INPUT
# ENVIRONMENT VARIABLES.
INPUTS: Mapping[str, str] = {
    "SLURM_ACCOUNT": "account", "SLURM_ACCTG_FREQ": "acctg-freq", "SLURM_BURST_BUFFER": "bb", "SLURM_CLUSTERS": "clusters",
    "SLURM_CONSTRAINT": "constraint", "SLURM_CORE_SPEC": "core-spec", "SLURM_CPUS_PER_GPU": "cpus-per-gpu",
    "SRUN_CPUS_PER_TASK": "cpus-per-task", "SLURM_DELAY_BOOT": "delay-boot", "SLURM_DEPENDENCY": "dependency",
    "SLURM_DISTRIBUTION": "distribution", "SLURM_EXCLUSIVE": "exclusive", "SLURM_GPU_BIND": "gpu-bind",
    "SLURM_GPU_FREQ": "gpu-freq", "SLURM_GPUS": "gpus", "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task", "SLURM_GRES": "gres", "SLURM_GRES_FLAGS": "gres-flags", "SLURM_HINT": "hint",
    "SLURM_IMMEDIATE": "immediate", "SLURM_JOB_NAME": "job-name", "SLURM_MEM_BIND": "mem-bind",
    "SLURM_MEM_PER_CPU": "mem-per-cpu", "SLURM_MEM_PER_GPU": "mem-per-gpu", "SLURM_MEM_PER_NODE": "mem",
    "SLURM_NETWORK": "network", "SLURM_NNODES": "nodes", "SLURM_JOB_NUM_NODES": "nodes", "SLURM_NO_KILL": "no-kill",
    "SLURM_NPROCS": "ntasks", "SLURM_NTASKS": "ntasks", "SLURM_NTASKS_PER_CORE": "ntasks-per-core",
    "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu", "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_NTASKS_PER_SOCKET": "ntasks-per-socket", "SLURM_OVERCOMMIT": "overcommit", "SLURM_PARTITION": "partition",
    "SLURM_POWER": "power", "SLURM_PROFILE": "profile", "SLURM_QOS": "qos", "SLURM_REQ_SWITCH": "switches",
    "SLURM_RESERVATION": "reservation", "SLURM_SIGNAL": "signal", "SLURM_SPREAD_JOB": "spread-job",
    "SLURM_THREAD_SPEC": "thread-spec", "SLURM_THREADS_PER_CORE": "threads-per-core", "SLURM_TIMELIMIT": "time",
    "SLURM_TRES_PER_TASK": "tres-per-task", "SLURM_USE_MIN_NODES": "use-min-nodes", "SLURM_WCKEY": "wckey",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewAllocation:
    """salloc: its options. env: for it and all that runs in the allocation. component: what the step then is."""

    salloc: tuple[str, ...]
    env: Mapping[str, str]
    component: Component


def new_allocation(component: Component, env: Mapping[str, str], spares: int) -> NewAllocation:
    """What `srun OPTIONS COMMAND` asks for. spares: nodes beyond those of the step. Raises: UsageError."""
    options = component.options
    given = without(options, *STEP_ONLY, *_plugins(options))
    asked = (*_from_env(options, env), *_named(options, env, component.command), *given)
    if spares:
        asked = _with_spares(asked, spares)
    return NewAllocation(
        asked,
        # What the user has set for salloc is not meant for what stands where srun stood.
        {name: value for name, value in env.items() if not name.startswith("SALLOC_")},
        Component(_of_step(options), component.command),
    )


def _from_env(options: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """The variables as options. One that is given as an option counts less, as for srun."""
    given = {name for name, _ in parse_options(options)}
    for variable, option in INPUTS.items():
        if (value := env.get(variable)) and option not in given:
            yield f"--{option}" if SRUN_OPTIONS[option] is Takes.NOTHING else f"--{option}={value}"


def _named(options: Sequence[str], env: Mapping[str, str], command: Sequence[str]) -> tuple[str, ...]:
    """The job's name is the program's, unless it was given one; salloc would take ours."""
    if option_value(options, "job-name") or env.get("SLURM_JOB_NAME"):
        return ()
    return (f"--job-name={command[0].rpartition('/')[2]}",)


def _plugins(options: Sequence[str]) -> tuple[str, ...]:
    """Options of known and unknown plugins; srun itself refuses what is no option."""
    return tuple(name for name, _ in parse_options(options) if name in PLUGIN_OPTIONS or name not in SRUN_OPTIONS)


def _of_step(options: Sequence[str]) -> tuple[str, ...]:
    """The step's options: as many nodes as were granted for `-N2-4`, else what the user asked for."""
    kept = without(options, *ALLOCATION_ONLY)
    return kept if whole(option_value(kept, "nodes") or "") else without(kept, "nodes")


def _with_spares(options: Sequence[str], spares: int) -> tuple[str, ...]:
    """The options for `spares` more nodes with as many tasks each. Raises: UsageError if the number of nodes is not given."""
    nodes = whole(option_value(options, "nodes") or "")
    if not nodes:
        raise UsageError("spare nodes (nodes.spares) need a number of nodes", hint="write -N4, or omit --ft-spares")
    tasks = whole(option_value(options, "ntasks") or "")
    room = (f"--ntasks={math.ceil(tasks / nodes) * (nodes + spares)}",) if tasks else ()
    return (*without(options, "nodes", "ntasks"), f"--nodes={nodes + spares}", *room)

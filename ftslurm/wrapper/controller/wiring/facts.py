"""The facts that do not change during one ftrun, for the judge."""

from __future__ import annotations

import os
import socket
import sys
from hashlib import blake2s
from pathlib import Path

import ftslurm
from ftslurm.launchers.placement import step_width, why_not_over_two_jobs, why_not_placed
from ftslurm.launchers.script_place import Place, read_calls
from ftslurm.launchers.srun import wait_s
from ftslurm.launchers.srun_options import by_cpu
from ftslurm.model.folds.history import History
from ftslurm.model.job import Allocation, Call
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.told import places_told
from ftslurm.model.settings.tree import Resolved
from ftslurm.policies.environment import hiding_variable, of_rendezvous, of_the_job
from ftslurm.policies.judge.phases import Environments, OwnProcess, RunFacts, WhyNot
from ftslurm.sdk.page import start_ticks
from ftslurm.system.callers import callers
from ftslurm.system.processes import pid_space
from ftslurm.wrapper.controller.wiring.ranks import sdk_env
from ftslurm.wrapper.controller.wiring.survey import Order

_COMMAND_MAX = 2000  # characters of it that are told


def facts_of(
    order: Order, allocation: Allocation, launcher: str, can: frozenset[Capability], resolved: Resolved, mpi_default: str = ""
) -> RunFacts:
    """can: of the launcher, whatever this step rules out. mpi_default: see placement. Raises: UsageError, PolicyError."""
    command, settings = order.command, resolved.settings
    wide = step_width(order.components, allocation.size, settings.nodes.spares)
    no_swap = why_not_placed(order.components)
    no_donor = why_not_over_two_jobs(order.components[0].options, order.env, mpi_default)
    read = call_read() if launcher == "srun" else Call()
    return RunFacts(
        run=os.urandom(4).hex(),
        job=str(allocation.job),
        cluster=allocation.cluster,
        schedule=allocation.restarts,
        step_key=step_key(command),
        command=command[:_COMMAND_MAX],
        nodes=allocation.nodes,
        start_time=allocation.start_time,
        name=allocation.name,
        launcher=launcher,
        number=allocation.job.number,
        can=can - ({Capability.REPLACE} if no_swap else set()),
        why_not=WhyNot(
            no_donor if launcher == "srun" else "there is no Slurm",
            no_swap,
            no_donor if by_cpu(order.components[0].options, order.env) else "",
        ),
        width=wide,
        batch_node=order.env.get("SLURMD_NODENAME", ""),
        granted=allocation.granted,
        submit_time=allocation.submit_time,
        ends_at=allocation.end_time if allocation.batch else 0,
        process=OwnProcess(
            ftslurm.__version__,
            socket.gethostname(),
            os.getpid(),
            pid_space(),
            start_ticks(os.getpid()) or 0,
            read,
            max(wait_s(component.options, order.env) for component in order.components),
        ),
        env=Environments(
            of_the_job(order.env), frozenset(order.env), sdk_env(settings), of_rendezvous(order.env), hiding_variable(order.env)
        ),
        places=places_told(resolved),
    )


def call_read() -> Call:
    """How whoever called this ftrun takes a failure of its step."""
    own = frozenset({"ftrun", Path(sys.argv[0]).name})
    places = [Place(each.text, each.offset, _script_name(each.name)) for each in callers(own)]
    return read_calls(places, own, sys.argv[1:])


def _script_name(name: str) -> str:
    return "" if name == "slurm_script" else name  # Slurm's own, which says nothing


def step_key(command: str) -> str:
    """Which ftrun of a script: the same command is the same step."""
    return blake2s(command.encode(errors="surrogateescape"), digest_size=6).hexdigest()


def ran_before(order: Order, history: History, now: int) -> bool:
    """In an earlier scheduling: then its files hold what must not be overwritten. Again in this one it is the script that repeats
    it, and the files begin anew, as srun's do."""
    key = step_key(order.command)
    return any(step == key and schedule < now for schedule, step in history.slots.starts)

"""The Slurm launcher: one srun for the user's tasks, another for the agents beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftslurm.launchers.python import Python
from ftslurm.launchers.srun_options import Component, has_flag, join_components, option_value, without
from ftslurm.launchers.step import ProcessStep
from ftslurm.model.nodes import fold

CHANNEL_VARIABLE = "FTSLURM_CHANNEL"
# The site's KillOnBadExit and WaitTime would end the step behind our back; a failed task is for the ladder.
_OURS = ("--kill-on-bad-exit=0", "--wait=0")
# What the batch environment says about the shape of the user's step does not hold for a step of ours.
_SHAPES = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER", "SLURM_MEM_", "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION", "SLURM_GPUS", "SLURM_GPU_", "SLURM_GRES", "SLURM_TRES", "SLURM_EXCLUSIVE", "SLURM_OVERLAP",
    "SLURM_EXACT", "SLURM_THREADS", "SLURM_HINT", "SLURM_EXPORT_ENV", "SLURM_LABELIO", "SLURM_STDINMODE",
    "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_MPI_TYPE", "SLURM_PROLOG", "SLURM_EPILOG", "SLURM_TASK_PROLOG",
    "SLURM_TASK_EPILOG", "SLURM_WAIT", "SLURM_KILL_BAD_EXIT", "SLURM_STEP_", "SLURM_CORE_SPEC", "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES", "SLURM_CONTAINER", "SLURM_NETWORK", "SLURM_MULTI_PROG", "SLURM_UNBUFFEREDIO", "SRUN_",
)  # fmt: skip


def own_step_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for an srun of ours inside the user's job."""
    return {name: value for name, value in env.items() if not name.startswith(_SHAPES)}


def beside_argv(nodes: Sequence[str], name: str, argv: Sequence[str]) -> tuple[str, ...]:
    """An srun that runs `argv` once on each of `nodes`, beside whatever runs there and without taking from it.

    --no-kill: where a node dies in a job that goes on, it goes on on the others.
    """
    count = str(len(nodes))
    return (
        "srun", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={fold(nodes)}",
        "--no-kill", "--cpus-per-task=1", "--mem=0", *_OURS, "--input=none", "--mpi=none", "--cpu-bind=none",
        f"--job-name={name}", "--quiet", *argv,
    )  # fmt: skip


def exported(options: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """`options` such that the channel's variable reaches the tasks even where the user exports little or nothing.

    It is named there, never given with its value: command lines can be read by everybody.
    """
    wanted = option_value(options, "export") or env.get("SLURM_EXPORT_ENV")
    words = (wanted or "ALL").split(",")
    if "ALL" in words:
        return tuple(options)
    kept = [word for word in words if word not in ("NONE", "NIL")]
    return (*without(options, "export"), "--export=" + ",".join([*kept, CHANNEL_VARIABLE]))


@dataclass(frozen=True, slots=True)
class SrunLauncher:
    """components: the user's srun options and command, one or several (heterogeneous step)."""

    components: tuple[Component, ...]
    env: Mapping[str, str]
    python: Python
    poll_s: float = 10.0

    def step_argv(self) -> tuple[str, ...]:
        return ("srun", *join_components(self._component(component) for component in self.components))

    def _component(self, component: Component) -> Component:
        options = exported(without(component.options, "multi-prog", "kill-on-bad-exit", "wait"), self.env)
        command = () if has_flag(component.options, "multi-prog") else component.command
        return Component((*options, *_OURS), self.python.shim_argv(command))

    def watch_argv(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return beside_argv(nodes, "ftslurm-agent", self.python.agent_argv(self.poll_s))

    def launch(self, channel: str) -> ProcessStep:
        return ProcessStep(self.step_argv(), {**self.env, CHANNEL_VARIABLE: channel})

    def watch(self, nodes: Sequence[str], channel: str) -> ProcessStep:
        return ProcessStep(self.watch_argv(nodes), {**own_step_env(self.env), CHANNEL_VARIABLE: channel}, quiet=True)

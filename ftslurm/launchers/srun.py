"""The Slurm launcher: one srun for the user's tasks, another for the agents beside them."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from ftslurm.launchers import placement
from ftslurm.launchers.placement import NOT_WHEN_PLACED, StepPart
from ftslurm.launchers.python import CONTAINER_VARIABLES, Python, Runtime, in_bundle, runtime_of, with_mount
from ftslurm.launchers.srun_options import REPLACED, Component, has_flag, join_components, option_value, said, same_share, without
from ftslurm.launchers.step import JoinedSteps, ProcessStep
from ftslurm.model.collectives import unfold_ranks
from ftslurm.model.job import Layout, Share
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.text import whole
from ftslurm.model.values import Value, field, replace
from ftslurm.system.commands import MARK

# --- `--bcast`: the user's program goes to the nodes by sbcast. srun would copy what it starts, our interpreter

_OPTIONS = ("bcast", "bcast-exclude", "compress", "send-libs")
# As srun reads them. Source: srun(1), INPUT ENVIRONMENT VARIABLES.
BCAST_VARIABLES = ("SLURM_BCAST", "SLURM_BCAST_EXCLUDE", "SLURM_COMPRESS", "SLURM_SEND_LIBS")
_NO = ("no", "false", "0")


class Delivery(Value):
    """component: as its step runs it. argv: of the sbcast before it, empty where nothing is copied."""

    component: Component
    argv: tuple[str, ...] = ()


def delivery(component: Component, env: Mapping[str, str], job: int) -> Delivery:
    """Without a place to copy to the program runs from where it is (`--bcast` alone means the current folder, which nodes share).
    Source: srun(1), --bcast and --send-libs."""
    rest = without(component.options, *_OPTIONS)
    stays, to = Delivery(Component(rest, component.command)), said(component.options, env, "bcast")
    if not to or has_flag(rest, "multi-prog"):
        return stays
    from shutil import which  # rarely asked for

    if (source := which(component.command[0], path=env.get("PATH"))) is None:
        return stays
    if to.endswith("/"):
        to = f"{to}slurm_bcast_{job}"
    exclude, compress, libs = (said(component.options, env, name) for name in _OPTIONS[1:])
    carried = libs is not None and libs.lower() not in _NO
    options = (
        *((f"--exclude={exclude}",) if exclude else ()),
        *((f"--compress={compress}" if compress else "--compress",) if compress is not None else ()),
        *(("--send-libs",) if carried else ()),
    )
    command = (to, *component.command[1:])
    if carried:
        found = ":".join(filter(None, (f"{to}_libs", env.get("LD_LIBRARY_PATH", ""))))
        command = ("env", f"LD_LIBRARY_PATH={found}", *command)
    return Delivery(Component(rest, command), ("sbcast", "--force", f"--jobid={job}", *options, source, to))


# --- one srun for the tasks, another for the agents

CHANNEL_VARIABLE = "FTSLURM_CHANNEL"
# The site's KillOnBadExit and WaitTime would end the step behind our back; a failed task is for the ladder.
_OURS = ("--kill-on-bad-exit=0", "--wait=0")


# In a name of --input. Source: src/srun/libsrun/fname.c, 22.05 to 26.05.
_BY_TASK = re.compile(r"%\d*[tnNu]")


def are_independent(options: Sequence[str], env: Mapping[str, str]) -> bool:
    """Did the user say that a rank that fails ends no other? Source: srun(1), --kill-on-bad-exit and SLURM_KILL_BAD_EXIT."""
    return said(options, env, "kill-on-bad-exit") == "0"


def wait_s(options: Sequence[str], env: Mapping[str, str]) -> float:
    """How long after the end of the first rank the others are ended, 0 for never. Source: srun(1), --wait and SLURM_WAIT."""
    return float(whole(said(options, env, "wait") or "") or 0)


def overruled(options: Sequence[str], others_end: bool) -> tuple[str, ...]:
    """A sentence for each of the user's options that ftrun does not follow.

    others_end: whether a rank that fails ends the others.
    """
    if not others_end or option_value(options, "kill-on-bad-exit") != "0":
        return ()
    return ("without effect: --kill-on-bad-exit=0: a rank that fails ends the others; omit --ft-mode, and it does not",)


# What the batch environment says about the shape of the user's step does not hold for a step of ours.
_SHAPES = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER", "SLURM_MEM_", "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION", "SLURM_GPUS", "SLURM_GPU_", "SLURM_GRES", "SLURM_TRES", "SLURM_EXCLUSIVE", "SLURM_OVERLAP",
    "SLURM_EXACT", "SLURM_THREADS", "SLURM_HINT", "SLURM_EXPORT_ENV", "SLURM_LABELIO", "SLURM_STDINMODE",
    "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_MPI_TYPE", "SLURM_PROLOG", "SLURM_EPILOG", "SLURM_TASK_PROLOG",
    "SLURM_TASK_EPILOG", "SLURM_WAIT", "SLURM_KILL_BAD_EXIT", "SLURM_STEP_", "SLURM_CORE_SPEC", "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES", "SLURM_NETWORK", "SLURM_MULTI_PROG", "SLURM_UNBUFFEREDIO", "SRUN_",
    "SLURM_DEBUG",  # srun refuses it beside --quiet
)  # fmt: skip


def own_step_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for an srun of ours inside the user's job. Without the mark of commands.py: an agent has it from ftrun, and
    would without the number of its step be taken for one that stands in for srun."""
    shapes = (*_SHAPES, *CONTAINER_VARIABLES)
    return {name: value for name, value in env.items() if not name.startswith(shapes) and name != MARK}


def beside_argv(nodes: Sequence[str], name: str, argv: Sequence[str], job: int = 0) -> tuple[str, ...]:
    """An srun that runs `argv` once on each of `nodes`, while other steps run there, and takes no resources from them.

    job: the donor job that they belong to, 0 for our own. --no-kill: where a node dies in a job that goes on, it goes on on
    the others.
    """
    count = str(len(nodes))
    return (
        "srun", *((f"--jobid={job}",) if job else ()), "--overlap", f"--nodes={count}", f"--ntasks={count}",
        "--ntasks-per-node=1", f"--nodelist={fold_nodes(nodes)}",
        "--no-kill", "--cpus-per-task=1", "--mem=0", *_OURS, "--input=none", "--mpi=none", "--cpu-bind=none",
        f"--job-name={name}", "--quiet", *argv,
    )  # fmt: skip


def exported(options: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """`options` such that the channel's variable reaches the tasks even where the user exports little or nothing.

    It is named there, never given with its value: command lines can be read by everybody.
    """
    words = (said(options, env, "export") or "ALL").split(",")
    if "ALL" in words:
        return tuple(options)
    kept = [word for word in words if word not in ("NONE", "NIL")]
    return (*without(options, "export"), "--export=" + ",".join([*kept, CHANNEL_VARIABLE]))


# What of the user's job shapes a step of it on a node that another job lends; all else there is the donor's own.
_KEPT_ABROAD = (
    "SLURM_CONF", "SLURM_CPUS_PER", "SLURM_CPU_BIND", "SLURM_GPUS_PER", "SLURM_GPU_BIND", "SLURM_EXPORT_ENV", "SLURM_MPI_TYPE",
    "SLURM_TASK_PROLOG", "SLURM_TASK_EPILOG", "SLURM_NETWORK", "SLURM_HINT", "SLURM_THREADS", "SLURM_UNBUFFEREDIO",
)  # fmt: skip


def abroad_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for an srun of ours in a donor job."""
    foreign = ("SLURM_", "SBATCH_", "SALLOC_")
    return {name: value for name, value in env.items() if name.startswith(_KEPT_ABROAD) or not name.startswith(foreign)}


def beside_env(env: Mapping[str, str], job: int) -> dict[str, str]:
    """The environment for `beside_argv`. job: the donor job, 0 for our own."""
    return own_step_env(abroad_env(env) if job else env)


class SrunLauncher(Value):
    """components: the user's srun options and command, one or several (heterogeneous step). granted: nodes of the allocation.
    width: of the step, 0 where that is srun's to say. again: the command ran in an earlier scheduling of the job. bundle: the
    interpreter that containers get mounted, empty where they have one.
    """

    components: tuple[Component, ...]
    env: Mapping[str, str]
    python: Python
    poll_s: float = 10.0
    granted: int = 0
    width: int = 0
    launched: list[int] = field(default_factory=list)
    again: bool = False
    bundle: str = ""

    @property
    def srun(self) -> tuple[str, ...]:
        return ("srun",)

    def step_argvs(self, layout: Layout | None = None) -> tuple[tuple[str, ...], ...]:
        return tuple(argv for argv, _ in self._rendered(layout))

    def _rendered(self, layout: Layout | None, shares: Sequence[Share] = ()) -> list[tuple[tuple[str, ...], StepPart]]:
        if layout is None:
            argv = (*self.srun, *join_components(self._component(component, component.options) for component in self.components))
            return [(argv, StepPart(0, ()))]
        (component,) = self.components
        found = placement.step_parts(component.options, self.env, layout, self.granted, self.width, shares)
        return [((*self.srun, *join_components([self._component(component, part.options)])), part) for part in found]

    def _component(self, component: Component, placed: Sequence[str]) -> Component:
        options = exported(without(placed, "multi-prog", "kill-on-bad-exit", "wait"), self.env)
        # A step that is launched again would begin the files of the one before anew; whoever asks for that means other jobs'.
        again = ("--open-mode=append",) if self.launched or self.again else ()
        command = () if has_flag(component.options, "multi-prog") else component.command
        python = self.python
        if self.bundle and runtime_of(options, self.env) is Runtime.PYXIS:
            options, python = with_mount(options, self.env, self.bundle), in_bundle(self.bundle)
        return Component((*options, *again, *_OURS), python.shim_argv(command))

    def watch_argv(self, nodes: Sequence[str], job: int = 0) -> tuple[str, ...]:
        agent = self.python.module_argv("ftslurm.wrapper.agent.agent", f"{self.poll_s:g}")
        return (*self.srun, *beside_argv(nodes, "ftslurm-agent", agent, job)[1:])

    def launch(
        self, channel: str, layout: Layout | None = None, overlap: bool = False, shares: Sequence[Share] = ()
    ) -> JoinedSteps:
        parts = []
        launcher = self._overlapping(shares) if overlap else self
        for argv, part in launcher._rendered(layout, shares):
            env = dict(abroad_env(self.env) if part.job else self.env)
            unsaid = NOT_WHEN_PLACED if layout is not None else REPLACED if overlap else ()
            env = {name: value for name, value in env.items() if name not in unsaid}
            env[CHANNEL_VARIABLE] = placed_channel(channel, part.place)
            ranks = unfold_ranks(part.place.partition("/")[2]) if part.place else ()
            parts.append((self._process(argv, env, unread=self.inputs_by_task()), ranks))
        self.launched.append(len(parts))
        return JoinedSteps(parts)

    def _process(self, argv: Sequence[str], env: Mapping[str, str], quiet: bool = False, unread: bool = False) -> ProcessStep:
        """An ftrun that is killed leaves no srun. It is as if srun itself had been killed: its child has the step killed, and
        what comes next in the script need not wait. One of agents whose node is out of reach would wait on, beyond the job's
        end where Slurm tracks processes without cgroups; with --no-kill the agents outlive it (seen on 22.05)."""
        return ProcessStep(argv, env, quiet, orphaned=signal.SIGKILL, unread=unread)

    def inputs_by_task(self) -> bool:
        """Does slurmstepd open a file for each task? srun reads its own stdin all the same, and slurmstepd crashes over what srun
        sends of it, its end as well, while a task runs (docs/slurm-facts.md, "Exit statuses of srun").
        """
        return all(_BY_TASK.search(said(each.options, self.env, "input") or "") is not None for each in self.components)

    def _overlapping(self, shares: Sequence[Share]) -> SrunLauncher:
        """Of several components nobody knows which nodes are whose."""
        alike = shares if len(self.components) == 1 and len({share.cpus for share in shares}) == 1 else ()
        components = [
            replace(each, options=(*same_share(each.options, self.env, alike), "--overlap")) for each in self.components
        ]
        return replace(self, components=tuple(components))

    def watch(self, nodes: Sequence[str], channel: str, lent: Mapping[str, int]) -> JoinedSteps:
        steps = []
        for job in sorted({lent.get(node, 0) for node in nodes}):
            argv = self.watch_argv([node for node in nodes if lent.get(node, 0) == job], job)
            env = {**beside_env(self.env, job), CHANNEL_VARIABLE: channel}
            steps.append((self._process(argv, env, quiet=True), ()))
        return JoinedSteps(steps)


# Of the steps that ftslurm starts for itself. They take nothing from others.
OWN_STEPS = "ftslurm-"


def placed_channel(channel: str, place: str) -> str:
    """As Channel in shim/connection.py reads it."""
    return f"2:{place}:{channel.removeprefix('1:')}" if place else channel

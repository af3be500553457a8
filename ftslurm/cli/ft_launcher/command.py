"""The door of `ft_launcher`: its command line and its exit statuses, with ftrun's machinery behind them.

Where a Slurm allocation is, the ranks run on its nodes, whoever starts this: the batch script, or srun on each node, as
ft_launcher is started; then the one of rank 0 leads and the others end at once. Elsewhere they run on this machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ftslurm
from ftslurm.cli.ft_launcher.options import Launch, read_options
from ftslurm.config.ft_launcher import in_sentences
from ftslurm.errors import FtslurmError, UsageError
from ftslurm.launchers.srun import own_step_env
from ftslurm.launchers.srun_options import Component
from ftslurm.model.settings.kinds import count
from ftslurm.model.text import visible

USAGE_STATUS = 2  # argparse's
# More than anybody waits for; the budget's own limit.
RESTARTS_MOST = 1000
# A signal waits no longer than this; the ends of ranks are seen at once in any case.
INTERVAL_MOST_S = 5.0
# Both packages have a script of this name: in one environment the one that was installed last has it. Each can be called as a
# module, whoever has the script.
THEIRS = "nvidia_resiliency_ext.fault_tolerance.launcher"
ABOUT = f"""\
ft_launcher of ftslurm {ftslurm.__version__}: the command line of NVIDIA's 0.7.0 and of torchrun, run by ftrun; also
python -m ftslurm.cli.ft_launcher. NVIDIA's own, where it is installed: python -m {THEIRS}"""


def main(argv: Sequence[str] | None = None) -> None:
    """Ends the process with ft_launcher's status: 0, 1 for whatever has failed, 93 where no restart can help, 2 for a wrong
    command line."""
    env, status = os.environ, USAGE_STATUS
    words = tuple(sys.argv[1:] if argv is None else argv)
    try:
        if env.get("FTSLURM_FT_LAUNCHER") == "nvidia":
            raise UsageError("FTSLURM_FT_LAUNCHER is no longer read", hint=f"`python -m {THEIRS}` is NVIDIA's own")
        if words == ("--version",):
            print(ABOUT)
            sys.exit(0)
        launch = read_options(words, env)
        status = 1
        ended = run(launch, env)
        status = ended if ended in (0, launch.ft_no_restart_exit_code) else 1
    except FtslurmError as error:
        _say(str(error))
    sys.exit(status)


def run(launch: Launch, env: Mapping[str, str]) -> int:
    """The status of the job, as ftrun has it. Raises: FtslurmError."""
    for sentence in in_sentences(launch.unused):
        _say(sentence)
    in_job, in_step = "SLURM_JOB_ID" in env, env.get("SLURM_STEP_ID", "").isdecimal() and "SLURM_PROCID" in env
    if in_job and in_step and launch.nodes + launch.spares > 1 and env["SLURM_PROCID"] != "0":
        _say(f"the ranks of this node are started by the ft_launcher of task 0 of step {env['SLURM_STEP_ID']}")
        return 0
    local = not in_job or (in_step and launch.nodes + launch.spares == 1)
    if local and launch.width > 1 and not env.get("FTRUN_LOCAL_NODES"):
        raise UsageError(
            f"--nnodes={launch.width}, outside a Slurm allocation: ft_launchers on several machines cannot find each other",
            hint=f"start it in a job of Slurm; `python -m {THEIRS}` is NVIDIA's own, FTRUN_LOCAL_NODES=N plays N nodes here",
        )
    from ftslurm.config.settings_files import SettingsAsked
    from ftslurm.wrapper.controller.run import run_job
    from ftslurm.wrapper.controller.survey import Order

    per_node = _ranks_per_node(launch.nproc_per_node, env)
    options = _shape(launch, per_node, overlap=in_step and not local)
    component = Component(options, _command(launch, env))
    request = SettingsAsked(policy=launch.ft_policy, profile="ft-launcher", values=settings_of(launch, local) | _logs(launch))
    order = Order((component,), request, _environment(launch, env, in_step, local), launch.ft_verbose)
    if launch.ft_verbose:
        import logging

        logging.basicConfig(level=logging.DEBUG, format="ft_launcher: %(asctime)s %(message)s", stream=sys.stderr)
    if launch.ft_dry_run:
        from ftslurm.wrapper.controller.run import dry_run

        print(visible(dry_run(order), lines=True))
        return 0
    return run_job(order)


def _say(text: str) -> None:
    print(f"ft_launcher: {visible(text)}", file=sys.stderr, flush=True)


def settings_of(launch: Launch, local: bool) -> dict[str, tuple[Any, str]]:
    """leaf -> (value, option), over the profile. Raises: PolicyError, UsageError."""
    from ftslurm.cli.ftrun_options import fault_tolerance, values_set

    if launch.max_restarts > RESTARTS_MOST:
        _say(f"--max-restarts={launch.max_restarts}: {RESTARTS_MOST} is the most for a job")
    values: dict[str, tuple[Any, str]] = {
        "max_job_restarts": (min(launch.max_restarts, RESTARTS_MOST), "--max-restarts"),
        "mode": (launch.policy, "--ft-restart-policy"),
        "rendezvous": ("torch", "ft_launcher"),
        "stop.grace": (f"{launch.workers_stop_timeout}s", "--workers-stop-timeout"),
        "stop.after_signal": (f"{max(launch.term_timeout, 0.001)}s", "--term-timeout"),
        "stop.signal_delay": (f"{min(launch.monitor_interval, INTERVAL_MOST_S)}s", "--monitor-interval"),
        "no_restart_status": (launch.ft_no_restart_exit_code, "--ft-no-restart-exit-code"),
        "launcher": ("local" if local else "srun", "ft_launcher"),
    }
    if launch.policy == "min-healthy":
        values["nodes.min_healthy"] = (launch.nodes, "--nnodes")
    elif launch.spares:
        values["nodes.spares"] = (launch.spares, "--nnodes")
    if launch.config or launch.given:
        values |= fault_tolerance(launch.given, launch.config, _say)
        config = values["fault_tolerance"][0]
        if config.get("attribution_endpoint") and config.get("attribution_stop_action") == "no-restart":
            # Their service reads the log and says that another try is hopeless; ours does by codes and patterns.
            values["retry.policy"] = ("Evidence", "--ft-attribution-stop-action")
            told = {key: value for key, value in config.items() if key not in ("attribution_endpoint", "attribution_stop_action")}
            values["fault_tolerance"] = (told, values["fault_tolerance"][1])
    return values | values_set("--ft-set", launch.ft_set)


def _ranks_per_node(text: str, env: Mapping[str, str]) -> int:
    """Raises: UsageError."""
    if text == "cpu":
        return os.cpu_count() or 1
    if text in ("gpu", "auto"):
        gpus = _gpus(env)
        if not gpus and text == "gpu":
            raise UsageError("--nproc-per-node=gpu: there is no GPU here", hint="give a number")
        return gpus or os.cpu_count() or 1
    try:
        return count(1, 4096)(text)
    except ValueError as error:
        raise UsageError(f"--nproc-per-node={text}: {error}", hint="a number, cpu, gpu or auto") from None


def _gpus(env: Mapping[str, str]) -> int:
    """Of NVIDIA's, that programs here may use."""
    if visible_ones := env.get("CUDA_VISIBLE_DEVICES"):
        return len([one for one in visible_ones.split(",") if one.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])


def _shape(launch: Launch, per_node: int, overlap: bool) -> tuple[str, ...]:
    """srun's options. overlap: with the step that we are in, whose processors nobody else uses."""
    shape = (f"--nodes={launch.width}", f"--ntasks={launch.width * per_node}", f"--ntasks-per-node={per_node}")
    return (*shape, "--overlap") if overlap else shape


def _logs(launch: Launch) -> dict[str, tuple[Any, str]]:
    """Settings for what is to be written into files. Raises: UsageError for a folder that cannot be made."""
    found: dict[str, tuple[Any, str]] = {}
    if launch.applog_prefix:
        found["logs.cycle_files"] = (launch.applog_prefix, "--ft-per-cycle-applog-prefix")
    elif launch.log_dir or launch.redirects != "0" or launch.tee != "0":
        # As tempfile would, and the same on every node: a name that nobody could lay there before us.
        root = Path(launch.log_dir).absolute() if launch.log_dir else Path(f"/tmp/torchelastic_{os.urandom(8).hex()}")  # noqa: S108
        if launch.log_dir:
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"--log-dir: {root} cannot be made: {error.strerror}", hint="name another folder") from None
        # As there each node has a folder of its own, with its local ranks.
        folder = f"{root}/{launch.rdzv_id}_{os.getpid()}".replace("%", "%%") + (".%n" if launch.width > 1 else "")
        found["logs.folder"] = (folder, "--log-dir")
        found["logs.redirects"] = (launch.redirects, "--redirects")
        found["logs.tee"] = (launch.tee, "--tee")
        if launch.line_prefix:
            found["logs.line_prefix"] = (launch.line_prefix, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
        _say(f"log directory: {folder.replace('.%n', '.NODE_RANK').replace('%%', '%')}/attempt_N/LOCAL_RANK")
    if launch.local_ranks_filter:
        found["logs.local_ranks"] = (launch.local_ranks_filter, "--local-ranks-filter")
    return found


def _command(launch: Launch, env: Mapping[str, str]) -> tuple[str, ...]:
    if not launch.with_python:
        return launch.command
    return (_python(env), "-u", *(("-m",) if launch.module else ()), *launch.command)


def _python(env: Mapping[str, str]) -> str:
    """That of the environment in use; ft_launcher is installed there, and ftslurm may be installed elsewhere."""
    folders = [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    known = [f"{folder}/bin/python" for folder in folders]
    return env.get("PYTHON_EXEC") or next((path for path in known if os.access(path, os.X_OK)), sys.executable)


# Of a step of our own what srun's tasks are told of theirs must not count.
_OF_THE_TASK = (
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP", "SLURM_LABELIO",
    "SLURM_DISTRIBUTION", "SLURM_EXPORT_ENV", "SLURM_OPEN_MODE", "SLURM_STD", "SLURM_UNBUFFEREDIO", "SLURM_REMOTE_CWD",
    "SLURM_WORKING_DIR", "SRUN_",
)  # fmt: skip


def _environment(launch: Launch, env: Mapping[str, str], in_step: bool, local: bool) -> dict[str, str]:
    """For all that is started."""
    found = dict(env)
    if in_step:
        found = own_step_env(found)
    if local:
        found = {name: value for name, value in found.items() if not name.startswith(_OF_THE_TASK)}
    for name, value in (("ROLE_NAME", launch.role), ("TORCHELASTIC_RUN_ID", launch.rdzv_id)):
        if value not in ("default", "none"):
            found[name] = value
    if launch.ft_state_dir:
        found["FTSLURM_STATE_DIR"] = launch.ft_state_dir
    return found

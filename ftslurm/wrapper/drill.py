"""Delivers the order for a drill to the ftrun of a running job, from a step of that job.

It uses the job's own endpoint: the secret is in the environment of the job's shims and agents, which only the job's owner (and
root) can read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ftslurm.errors import CommandMissing, FtslurmError, LaunchFailed, SlurmRefused, WireError
from ftslurm.launchers.python import own_python
from ftslurm.launchers.srun import beside_argv, own_step_env
from ftslurm.ledger.store import Store
from ftslurm.model import record as rec
from ftslurm.model.events import DrillAsked
from ftslurm.model.messages import drill_order, read_hello
from ftslurm.model.nodes import expand
from ftslurm.model.text import visible
from ftslurm.model.values import Value
from ftslurm.system.commands import run
from ftslurm.wrapper.script_look import environments
from ftslurm.wrapper.shim.connection import CHANNEL_VARIABLE, Channel, connect
from ftslurm.wrapper.shim.messages import LinkError

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 20.0
STEP_TIMEOUT_S = 60.0
OURS = "ftslurm: "  # how a line of `main` begins


class _Target(Value):
    """The running step, as the ledger names it. step: `123.0`."""

    local: bool
    number: int
    step: str
    node: str


def target_of(store: Store, job: str) -> _Target:
    """The target of a drill. Raises: UnknownJob; SlurmRefused if nothing of the job runs."""
    records = store.find(job)[1].records
    began = [record for record in records if isinstance(record, rec.AttemptBegan)]
    run = next((record for record in reversed(records) if isinstance(record, rec.RunBegan)), None)
    ended = run is not None and any(isinstance(record, rec.Finished) and record.run == run.run for record in records)
    if run is None or not began or ended:
        raise SlurmRefused(f"job {job} does not run under ftrun now", hint="`ftslurm status` shows what does")
    nodes = expand(began[-1].nodes)
    if not nodes:
        raise SlurmRefused(f"the ledger does not say where job {job} runs", hint="`ftslurm history` shows what it says")
    return _Target(run.launcher == "local", run.number, began[-1].step, nodes[0])


def order_drill(target: _Target, order: DrillAsked, env: Mapping[str, str]) -> str:
    """Order the drill. Gives the result, in words. Raises: FtslurmError."""
    if target.local:
        return _ask(order, target.step)
    words = ("ftslurm.wrapper.drill", target.step, json.dumps(drill_order(order)))
    argv = beside_argv([target.node], "ftslurm-drill", own_python().module_argv(*words), target.number)
    try:
        done = run(argv, STEP_TIMEOUT_S, env=own_step_env(env))
    except CommandMissing:
        raise LaunchFailed("there is no srun here", hint="run `ftslurm drill` where you submit jobs") from None
    if done.timed_out:
        raise LaunchFailed(f"no step of job {target.number} came up in {STEP_TIMEOUT_S:g} s", hint="is its node well?")
    if done.status == SlurmRefused.exit_status:
        raise SlurmRefused(_refusal(done.stderr), hint="see `ftslurm status`")
    if done.status:
        raise LaunchFailed(f"the step that carries the drill failed: {done.stderr.strip()[:500]}", hint="does the job run?")
    return done.stdout.strip()


def _refusal(errors: str) -> str:
    """What `main` printed, without what srun says of its status."""
    return next((line for line in errors.splitlines() if line.startswith(OURS)), errors.strip()).removeprefix(OURS)


def _ask(order: DrillAsked, step: str, conf: str = "") -> str:
    """Send the order to the controller of `step`, whose shims run on this machine. conf: SLURM_CONF of its cluster, empty if
    none. Raises: FtslurmError.
    """
    for channel, env in _channels(step, conf):
        try:
            sock, link = connect(channel, env, CONNECT_TIMEOUT_S)
        except OSError as error:
            raise LaunchFailed(f"ftrun cannot be reached: {error}", hint="does the job still run?") from None
        sock.settimeout(ANSWER_TIMEOUT_S)
        try:
            sock.sendall(link.pack(drill_order(order)))
            answers: list[dict[str, Any]] = []
            while not answers and (data := sock.recv(65536)):
                answers = link.feed(data)
        except (OSError, LinkError) as error:
            raise LaunchFailed(f"ftrun did not answer: {error}", hint="look at the job's own output") from None
        finally:
            sock.close()
        if not answers:
            raise LaunchFailed("ftrun hung up", hint="look at the job's own output")
        if not answers[0].get("ok"):
            raise SlurmRefused(str(answers[0].get("text")), hint="nothing was injected")
        return str(answers[0].get("text"))
    raise LaunchFailed(f"no task of step {step} runs here", hint="is the job yours, and does it run?")


def _channels(step: str, conf: str) -> list[tuple[Channel, dict[str, str]]]:
    """The endpoints of every shim of `step` that we may read. Steps of several clusters on one machine may have one number: then
    only those of our cluster.
    """
    found = list(_shims(step))
    return [each for each in found if each[1].get("SLURM_CONF", "") == conf] or found


def _shims(step: str) -> Iterator[tuple[Channel, dict[str, str]]]:
    for _, env in environments():
        if CHANNEL_VARIABLE in env and f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}" == step:
            try:
                yield Channel(env[CHANNEL_VARIABLE]), env
            except ValueError:
                continue


def main() -> None:
    """Runs in a step. Arguments: step, order as JSON."""
    step, text = sys.argv[1:]
    try:
        order = read_hello(json.loads(text))
        if not isinstance(order, DrillAsked):
            raise WireError("not an order for a drill")
        print(visible(_ask(order, step, os.environ.get("SLURM_CONF", ""))))
    except FtslurmError as error:
        print("ftslurm:", visible(error.message), file=sys.stderr)
        sys.exit(error.exit_status)

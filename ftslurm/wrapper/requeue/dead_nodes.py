"""Before a requeue the job gives its dead nodes back, and Slurm is asked whether it takes changes of a job that lost nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from ftslurm.errors import FtslurmError
from ftslurm.model.folds.history import History
from ftslurm.model.nodes import expand, fold_nodes
from ftslurm.model.values import Value, replace
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import JobState, JobView, NodeState
from ftslurm.slurm.parse import conf_seconds

# A job gives its dead nodes back before it is requeued, so that its next start does not wait until Slurm marks them DOWN.
#
# A requeued job starts when all its nodes are clean, and Slurm waits for a dead one for SlurmdTimeout (300 s by default), up
# to twice that. A running job may give nodes back, keeps its size for the next scheduling, and is then clean within seconds.
# Slurm before 23.02.2 also starts a job without its GPUs if the last node that it waited for went down instead of becoming
# clean, and counts these GPUs as allocated forever (its bug 16121; seen on 22.05).
#
# A node that is given back is free for other jobs. So Slurm must know first that it does not answer: a signal to the job's
# steps makes slurmctld call all its nodes, and a silent one is NOT_RESPONDING after MessageTimeout and gets no job (seen on
# 22.05 and 26.05). SIGCONT has no effect on a process that is not stopped.
#
# Without slurmdbd, 22.05 accepts no change of a job that gave nodes back until the job is clean, so nobody could exclude a
# node that returns meanwhile. Such a job keeps its dead nodes, and waits; so do most exclusive jobs: a node that one gives back
# is idle for some time after each later job (docs/slurm-facts.md, "Nodes for a running job").

# With a slurmdbd, 22.05 accepts changes some 5 s after a node was given back, and each refusal takes 5 s itself. Without one it
# accepts none while the job runs, so one question is enough.
DATABASE_S = 15.0
# MessageTimeout if Slurm does not tell it, and what slurmctld needs in addition to see that it has passed.
MESSAGE_S, BESIDES_S = 10.0, 10.0
LOOK_AGAIN_S = 0.5
# Slurm's own words for the state of a node.
SILENT = ("NOT_RESPONDING", "DOWN")

# The release that fixed Slurm's bug 16121.
KEEPS_GPUS = (23, 2, 2)

STAYS = "stays in the job until Slurm marks it down"
OWN_NODES = "the job is exclusive, and Slurm would still count a node that it gives back as allocated"
NO_CHANGES = "it has lost nodes, and Slurm accepts no change to it"
NO_CHANGES_AFTER = "it has given nodes back, and since then Slurm accepts no change to it"


class Prepared(Value):
    """done: has the job left its dead nodes? what: that, or why not, in words; empty if there was nothing to do. plain: why the
    job is requeued without any change, empty if it is not: if it were held, nobody could release it.
    """

    done: bool = False
    what: str = ""
    plain: str = ""


class Before(Value):
    """What comes before the requeue of a job that runs, in this order. ask: whether Slurm takes changes of it, as it lacks nodes.
    leave: dead nodes to give back. stays: why dead nodes stay in the job, in words.
    """

    ask: bool = False
    leave: tuple[str, ...] = ()
    stays: str = ""


def plan_before(job: JobView, history: History, dead: Collection[str], config: Mapping[str, str]) -> Before:
    """Pure. dead: known to be so. config: Slurm's."""
    run = history.last_run
    had = max(len(expand(run.nodes)) if run is not None else 0, history.slots.size)
    ask = bool(history.slots.nodes) or len(job.nodes) < had
    gone = can_give_back(job, dead, run.batch_node if run is not None else "")
    if not gone or not keeps_accounts(config):
        return Before(ask)
    why = stays(job, config)
    return Before(ask, stays=f"{fold_nodes(gone)} {STAYS}: {why}") if why else Before(ask, gone)


def prepare_requeue(
    client: SlurmClient, job: JobView, history: History, dead: Collection[str], config: Mapping[str, str]
) -> Prepared:  # fmt: skip
    """Carry out `plan_before`; of a job that lost nodes a refusal decides how it is requeued. Raises: FtslurmError."""
    plan, patience_s = plan_before(job, history, dead, config), DATABASE_S if keeps_accounts(config) else 0.0
    if plan.ask and not client.takes_changes(job.number, patience_s):
        return Prepared(plain=NO_CHANGES)
    prepared = give_dead_back(client, job, plan.leave, config) if plan.leave else Prepared(what=plan.stays)
    if prepared.done and not client.takes_changes(job.number, patience_s):
        return replace(prepared, plain=NO_CHANGES_AFTER)
    return prepared


def give_dead_back(
    client: SlurmClient, job: JobView, gone: Collection[str], config: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep,
) -> Prepared:  # fmt: skip
    """Give the dead nodes back. job: its state. gone: nodes of it to give back. config: Slurm's. clock: any seconds. pause: waits
    for the given number of seconds.
    """
    stays = f"{fold_nodes(gone)} {STAYS}"
    limit_s = (conf_seconds(config.get("MessageTimeout", "")) or MESSAGE_S) + BESIDES_S
    try:
        if not _noticed(client, job.number, gone, limit_s, clock, pause):
            return Prepared(what=f"{stays}: Slurm has not noticed that it does not respond")
        client.keep_nodes(job.number, [node for node in job.nodes if node not in gone])
    except FtslurmError as error:
        return Prepared(what=f"{stays}: {error.message}")
    return Prepared(True, f"{fold_nodes(gone)} given back to Slurm, which knows that nothing responds there")


def _noticed(
    client: SlurmClient, number: int, gone: Iterable[str], limit_s: float,
    clock: Callable[[], float], pause: Callable[[float], None],
) -> bool:  # fmt: skip
    """Does Slurm itself know that it reaches none of them? No if it is unknown, because nodes are hidden from users; no for a
    node that is marked for another reason: it may answer.
    """
    until, called = clock() + limit_s, False
    while True:
        nodes = {node.name: node for node in client.nodes() if node.name in gone}
        silent = {name for name, node in nodes.items() if any(word in node.words for word in SILENT)}
        if silent >= {*gone}:
            return True
        ill = any(node.state is NodeState.BAD and name not in silent for name, node in nodes.items())
        if not nodes or ill or clock() >= until:
            return False
        if not called:
            client.signal_steps(number, "CONT")
            called = True
        pause(LOOK_AGAIN_S)


def can_give_back(job: JobView, dead: Collection[str], batch_node: str) -> tuple[str, ...]:
    """The nodes of `dead` that the job can give back: not the first node, where Slurm starts the script."""
    gone = tuple(sorted({*dead} & {*job.nodes}))
    script = {batch_node, *job.nodes[:1]}
    return gone if job.state is JobState.RUNNING and not job.expedited and not script & {*gone} else ()


def stays(job: JobView, config: Mapping[str, str]) -> str:
    """Why a dead node stays in a job that is requeued, in words; empty: the job gives it back.

    A node that an exclusive job gives back is idle after every later job. With Slurm's bug 16121 a dead node that stays costs
    more: the job starts without its GPUs, and those of all its nodes count as allocated until slurmctld restarts.
    """
    return OWN_NODES if job.exclusive and not may_lose_gpus(config) else ""


def may_lose_gpus(config: Mapping[str, str]) -> bool:
    """Does this Slurm have bug 16121? An unreadable release counts as one with it: a job without its GPUs is the worse damage. An
    exclusive job has all GPUs of its nodes, so it is enough that the cluster counts GPUs.
    """
    release = re.match(r"(\d+)\.(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    mended = release is not None and tuple(int(part) for part in release.groups()) >= KEEPS_GPUS
    return not mended and "gpu" in config.get("GresTypes", "").split(",")


def keeps_accounts(config: Mapping[str, str]) -> bool:
    """Is there a slurmdbd? config: Slurm's."""
    return "slurmdbd" in config.get("AccountingStorageType", "")

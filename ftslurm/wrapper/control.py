"""Delivers a request of the job's owner to the job's ftrun, and waits for its answer. The way it takes: ledger/live.py.

root may make requests to any job, as with scancel: a process with the owner's rights then writes the request, so that nothing a
user has put into a ledger can harm root.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from ftslurm.config.settings_files import SettingsAsked, settings_in_force
from ftslurm.errors import FtslurmError, NotTaken, RequestRefused, SlurmRefused, UnknownJob, UsageError
from ftslurm.launchers.python import own_python
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.live import NODES_MAX, answer_to, ask_ftrun
from ftslurm.ledger.shared_file import known_clean_ups
from ftslurm.ledger.store import VARIABLE, Store
from ftslurm.model.folds.control import ROOT, UNDO, not_undoable
from ftslurm.model.folds.history import History, fold
from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.nodes import expand
from ftslurm.model.record import Record, RequestAnswered, Requested, RunBegan
from ftslurm.model.text import whole
from ftslurm.model.values import replace
from ftslurm.policies.start_time import plan_start
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.system.commands import with_folder
from ftslurm.system.owner import PATH, owner_of, run_as, user_name
from ftslurm.wrapper.jobs import job_now
from ftslurm.wrapper.requeue.finish import finish_open_requeue, is_up_to_date

# --- `ftslurm requeue --finish`: a person finishes, from outside the job, a requeue that the job could not finish itself.


def finish_requeue(store: Store, job: str, env: Mapping[str, str]) -> str:
    """Finish the open requeue. Gives what was done, in one sentence; empty if none was open. Raises: FtslurmError."""
    journal, contents = store.find(job)
    history = fold(contents.records)
    run = history.last_run
    if history.requeues.open is None or run is None:
        return f"job {job}: no requeue is open; nothing to do"
    if run.launcher == "local":
        raise SlurmRefused(f"job {job} is a local one: only its own ftrun could requeue it", hint="start it again")
    settings = settings_in_force(SettingsAsked(), env).settings
    client = SlurmClient(timeout_s=settings.slurm.timeout_s, env=with_folder(env, settings.slurm.bin))
    restarts = client.job(run.number).restarts
    if not is_up_to_date(restarts, run.schedule):
        raise SlurmRefused(
            f"job {job} has been requeued {restarts} times but the ledger's decision is from scheduling {run.schedule}",
            hint=f"nothing was done; see `ftslurm status {job}`",
        )
    start = plan_start(settings.requeue, True, known_clean_ups(store.root, run.cluster, history))
    allow_first = settings.requeue.even_if_no_requeue
    return f"job {job}: {finish_open_requeue(client, run.number, journal, history, start, allow_first, 'from outside')}"


# Who asked, if root asks through a process of the owner. A user who sets it fakes only their own ledger.
BY_VARIABLE = "FTSLURM_CONTROL_BY"
LOOK_S = 0.2
SLURM_S = 5.0
# For root: added to the wait of the owner's process.
AS_OWNER_S = 660.0
_NO_FTRUN = frozenset({"pending", "held", "requeued", "completing"})


def who(env: Mapping[str, str]) -> str:
    if env.get(BY_VARIABLE) == ROOT:
        return ROOT
    return user_name(os.geteuid())


def order(store: Store, job: str, wanted: Requested, env: Mapping[str, str], wait_s: float) -> str:
    """Record the request and wait for the answer; gives ftrun's words. Fills in at, number, by, host, schedule of `wanted`.

    Raises: RequestRefused, NotTaken, UnknownJob, UsageError, StateError.
    """
    journal, contents = store.find(job)
    state = job_now(journal, contents, env)
    if state is None:
        raise UsageError(f"the ledger of job {job} is empty: nothing has begun", hint="try again in a moment")
    if state.over:
        raise RequestRefused(f"job {job} is over: {state.words}")
    _check_nodes(wanted, contents.records, state, env)

    def make(history: History) -> Requested:
        if wanted.drill and not history.beside:
            raise RequestRefused(f"job {job} does not run under ftrun now")
        schedule = history.last_run.schedule if history.last_run else 0
        found = replace(wanted, at=time.time(), by=who(env), host=socket.gethostname(), schedule=schedule)
        return replace(found, target=_target(history, wanted.target)) if wanted.verb == UNDO else found

    asked = ask_ftrun(journal, make)
    answer = _await(journal, asked.number, 0.0 if state.state in _NO_FTRUN else wait_s)
    if answer is None:
        raise NotTaken(_not_taken(asked, state, wait_s), hint=f"`ftslurm control {job} list` shows what becomes of it")
    if not answer.ok:
        raise RequestRefused(f"request {asked.number} is refused by {_of(answer)}: {answer.text}")
    return f"request {asked.number} is taken by {_of(answer)}: {answer.text}"


def _of(answer: RequestAnswered) -> str:
    return f"attempt {answer.attempt}{f' on {answer.node}' if answer.node else ''}" if answer.attempt else "ftrun"


def _not_taken(asked: Requested, state: JobSummary, wait_s: float) -> str:
    if state.state in _NO_FTRUN:
        why = f"no ftrun of the job runs now ({state.words})"
        return f"request {asked.number} is recorded; {why}, and its next attempt answers it"
    return f"request {asked.number} is recorded, but ftrun has not answered within {wait_s:g} s"


def _await(journal: Journal, number: int, wait_s: float) -> RequestAnswered | None:
    until = time.monotonic() + wait_s
    while True:
        if journal.grown() and (answer := answer_to(journal, number)) is not None:
            return answer
        if time.monotonic() >= until:
            return None
        time.sleep(LOOK_S)


def _target(history: History, number: int) -> int:
    """The request that `cancel` names, the last one for 0. Raises: RequestRefused."""
    control = history.control
    target = control.get(number) if number else control.undoable()
    if target is None:
        raise RequestRefused(f"there is no request {number}" if number else "there is no request that could be undone")
    if why := not_undoable(target):
        raise RequestRefused(why)
    return target.number


def _check_nodes(wanted: Requested, records: Sequence[Record], job: JobSummary, env: Mapping[str, str]) -> None:
    """Check the node names: an unknown name would make Slurm refuse the next requeue. Raises: UsageError."""
    if not wanted.nodes:
        return
    if len(wanted.nodes) > NODES_MAX:
        raise UsageError(f"{len(wanted.nodes)} nodes are too many for one request", hint=f"at most {NODES_MAX}")
    known = {node for record in records if isinstance(record, RunBegan) for node in expand(record.nodes)}
    if not job.local and not known.issuperset(wanted.nodes):
        known |= _nodes_of_slurm(env)
    if unknown := [node for node in wanted.nodes if node not in known]:
        raise UsageError(f"there is no node {unknown[0]} that the job could have", hint="as `sinfo -N` names it; or n[3-5]")


def _nodes_of_slurm(env: Mapping[str, str]) -> set[str]:
    try:
        return {node.name for node in SlurmClient(timeout_s=SLURM_S, env=env).nodes()}
    except FtslurmError:
        return set()


def as_owner(job: str, words: Sequence[str], env: Mapping[str, str], say: Callable[[str], object]) -> int:
    """root makes a request to another user's job. Gives the exit status. Raises: UnknownJob, CommandMissing."""
    number = whole(job.partition("_")[0])
    try:
        user_id = SlurmClient(timeout_s=SLURM_S, env=env).job(number).user_id if number is not None else None
    except FtslurmError as error:
        why = f"root has no ledger of job {job}, and Slurm does not say whose job it is: {error.message}"
        raise UnknownJob(why, hint="run it as the job's owner, or check `scontrol ping`") from None
    if user_id is None:
        raise UnknownJob(f"root has no ledger of job {job}", hint="name another user's job by its Slurm job id")
    owner = owner_of(user_id)
    kept = {name: env[name] for name in (VARIABLE, "SLURM_CONF", "TZ") if name in env}
    own_env = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": str(owner.home), "USER": owner.name, BY_VARIABLE: ROOT, **kept}
    python = own_python()
    done = run_as(owner, python.module_argv("ftslurm.cli.ftslurm", "control", *words), AS_OWNER_S, own_env)
    say(done.stdout)
    return 1 if done.status is None else done.status

"""The state of all jobs of a user: from the ledgers, and from Slurm for jobs that are not over."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError
from ftslurm.ledger.index import Index
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.ledger.store import state_folder
from ftslurm.model import record as rec
from ftslurm.model.folds.summary import JobSummary, SlurmWord, by_slurm, summarise
from ftslurm.model.text import whole
from ftslurm.policies.lease import is_gone
from ftslurm.sdk.page import start_ticks
from ftslurm.slurm.cli_client import read_answer
from ftslurm.slurm.commands import ANSWER_ENV, SHOW_CONFIG, ended_argv, jobs_argv, show_job_argv
from ftslurm.slurm.parse import parse_config, parse_ended, parse_job, parse_jobs
from ftslurm.system.commands import Runner, run
from ftslurm.system.owner import user_name
from ftslurm.system.processes import pid_space

# A person waits for this, and a slurmctld that is away must not hide what the ledgers say.
ASK_S = 5.0
# For so long an ftrun whose job has ended may still write: Slurm kills it after KillWait, 30 s unless a site changed it.
KEEP_AFTER_S = 60.0
# Jobs that slurmdbd is asked about at once, the latest: their numbers are one word of a command line.
MOST_ASKED = 2000


def all_jobs(
    root: Path, env: Mapping[str, str], run: Runner = run, passed_over: Callable[[StateError], None] = lambda error: None
) -> tuple[dict[Path, JobSummary], str]:
    """Every job with a ledger below `root`, by that, and why Slurm could not be asked about some; empty if it could.

    passed_over: is called with each unreadable ledger. Raises: StateError.
    """
    named = {root / "jobs" / name: known for name, known in Index(root).named(passed_over).items()}
    if not named:
        return {}, ""
    jobs, silent = with_slurms_word(list(named.values()), root.stat().st_uid, env, run)
    found = dict(zip(named, jobs, strict=True))
    for path in [path for path in named if found[path] != named[path]]:
        _keep(path, found[path])
    return found, silent


def job_now(
    journal: Journal,
    contents: Contents,
    env: Mapping[str, str],
    run: Runner = run,
    silent: Callable[[str], None] = lambda why: None,
) -> JobSummary | None:
    """Where the job stands: by its ledger, and by Slurm, which knows of a requeued job that was cancelled while it waited and of
    an ftrun that was killed. None for a ledger in which nothing has begun. silent: is told why Slurm could not be asked.
    """
    known = summarise(contents.records)
    if known is None:
        return None
    (now,), why = with_slurms_word([known], journal.path.stat().st_uid, env, run)
    if why:
        silent(why)
    if now != known and journal.path.parent == state_folder(env) / "jobs":  # and no copy of a ledger
        _keep(journal.path, now)
    return now


def _keep(path: Path, job: JobSummary) -> None:
    """Slurm forgets a job after minutes (MinJobAge), so its word on the end goes into the ledger. Only the owner writes there."""
    if not job.over or job.local or job.state == "gone" or time.time() - job.at < KEEP_AFTER_S:
        return
    with suppress(StateError, OSError):
        if path.stat().st_uid == os.geteuid():
            Journal(path).append([rec.JobEnded(job.at, job.state, job.what)])


def with_slurms_word(
    jobs: Sequence[JobSummary], user_id: int, env: Mapping[str, str], run: Runner = run
) -> tuple[list[JobSummary], str]:  # fmt: skip
    """The jobs with Slurm's state: one request, and only for jobs whose state the ledger cannot know."""
    seen = [_if_it_lives(job) for job in jobs]
    open_ = {job.cluster for job in seen if not (job.over or job.local)}
    if not open_:
        return seen, ""
    try:
        cluster = _cluster(env, run)
        said = parse_jobs(_ask(jobs_argv(user_id), env, run), time.time()) if cluster in open_ else {}
    except FtslurmError as error:
        return seen, str(error)
    if forgotten := [job.number for job in seen if job.cluster == cluster and not (job.over or job.local or job.number in said)]:
        with suppress(FtslurmError):  # no slurmdbd, or it does not answer
            said |= parse_ended(_ask(ended_argv(sorted(forgotten)[-MOST_ASKED:]), env, run))
    return [by_slurm(job, said) if job.cluster == cluster and not job.local else job for job in seen], ""


def not_begun(job: str, user_id: int, env: Mapping[str, str], run: Runner = run) -> SlurmWord | None:
    """The state of a pending or running job that has no ledger yet; None if Slurm knows no such job, or does not tell."""
    if (number := whole(job)) is None:
        return None
    try:
        said = parse_jobs(_ask(jobs_argv(user_id), env, run), time.time()).get(number)
    except FtslurmError:
        return None
    return said if said is not None and said.state in _TO_COME else None


def why_no_ledger(job: str, user_id: int, env: Mapping[str, str], run: Runner = run) -> str:
    """What Slurm knows of a job that has no ledger here, in words; empty if it knows no such job, or does not tell."""
    if (number := whole(job.partition("_")[0])) is None or number <= 0:
        return ""
    try:
        view = parse_job(_ask(show_job_argv(number), env, run), number)
    except FtslurmError:
        return ""
    if view.user_id == user_id:
        return f"job {job} is yours, but no ftrun has begun in it, or its ledger is in another folder"
    return f"job {job} belongs to {user_name(view.user_id)}, and its ledger lies with them: only they and root can read it"


_TO_COME = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED"})


def _if_it_lives(job: JobSummary) -> JobSummary:
    """A local job: only its ftrun could report the end, and it may have been killed."""
    if job.over or not job.local or not is_gone(job, socket.gethostname(), pid_space(), start_ticks(job.pid)):
        return job
    return job._replace(state="gone", what="its ftrun was killed", over=True)


def _cluster(env: Mapping[str, str], run: Runner) -> str:
    """The cluster that the Slurm commands talk to. Raises: FtslurmError."""
    return env.get("SLURM_CLUSTER_NAME") or parse_config(_ask(SHOW_CONFIG, env, run)).get("ClusterName", "")


def _ask(argv: Sequence[str], env: Mapping[str, str], run: Runner) -> str:
    return read_answer(run(argv, ASK_S, env={**env, **ANSWER_ENV}))

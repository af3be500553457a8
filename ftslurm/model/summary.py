"""A job in one line: what a list of all jobs shows of it, made of its ledger's records. Pure.

A list is made of thousands of ledgers, so this is a small thing that an index can keep (ledger/index.py): no fold of the whole
past, and a tuple, which is made a hundred times sooner than the values of the judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftslurm.model import record as rec
from ftslurm.model.history import REQUEUES
from ftslurm.model.values import dataclass

# Slurm's states of a job that is ending by somebody's will but ours, and how ftrun puts it in its last record.
ENDING_STATES = {
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the time limit was reached",
    "PREEMPTED": "the job was preempted",
    "PENDING": "the job was requeued by somebody else",
    "NODE_FAIL": "Slurm ended the job because a node failed",
    "FAILED": "Slurm ended the job",
    "COMPLETED": "Slurm ended the job",
    "COMPLETING": "Slurm is ending the job",
}
# Last words of an ftrun after which the job itself may go on.
_MAY_GO_ON = frozenset({"requeued", *(ENDING_STATES[word] for word in ("PREEMPTED", "PENDING", "NODE_FAIL", "COMPLETING"))})
_ENDS = {ENDING_STATES["CANCELLED"]: "cancelled", ENDING_STATES["TIMEOUT"]: "timeout"}
# States of jobs that are over.
OVER = frozenset({"completed", "failed", "cancelled", "timeout", "gone"})


class JobSummary(NamedTuple):
    """state: one word of the table below. what: more of it, for people. over: nothing of it can follow any more, as far as the
    ledger knows. local: without Slurm. attempt: the last one. schedule_count: as MA_SCHEDULE_CNT. rung, cause: of the last
    decision. began, at: of the first and the last record, Unix seconds. number: of the job, as scontrol takes it. host,
    pid_space, pid, started: of the ftrun (RunBegan).

    starting, running, recovering, hanging, requeued: it goes on. completed, failed, cancelled, timeout: it is over.
    By Slurm's word besides (report/jobs.py): pending, held, suspended, completing, gone.
    """

    job: str
    cluster: str
    local: bool
    command: str
    state: str
    what: str
    over: bool
    attempt: int
    schedule_count: int
    nodes: str
    rung: str
    cause: str
    began: float
    at: float
    requeue_open: bool
    number: int
    host: str
    pid_space: str
    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class SlurmWord:
    """What Slurm says of a job now. state: JobState's word. start_time: of one that waits, Unix seconds; 0: unknown."""

    state: str
    reason: str = ""
    start_time: int = 0
    held: bool = False


def summarise(records: Sequence[rec.Record]) -> JobSummary | None:
    """None for a ledger in which nothing has begun."""
    run: rec.RunBegan | None = None
    last: rec.AttemptBegan | None = None
    decided: rec.Decided | None = None
    attempt, open_requeue = 0, ""
    for record in records:
        if isinstance(record, rec.RunBegan):
            if run is not None and record.schedule > run.schedule:
                open_requeue = ""
            run = record
        elif isinstance(record, rec.AttemptBegan):
            last, attempt = record, max(attempt, record.attempt)
        elif isinstance(record, rec.RankBegan):
            attempt = max(attempt, record.attempt)
        elif isinstance(record, rec.Decided):
            decided = record
            open_requeue = record.id if record.rung in REQUEUES else ""
        elif isinstance(record, rec.CarriedOut) and record.id == open_requeue:
            open_requeue = ""
    if run is None:
        return None
    state, what, over = _state(records, decided)
    nodes = last.nodes if last is not None and last.schedule == run.schedule else run.nodes
    return JobSummary(
        run.job, run.cluster, run.launcher == "local", run.command[:200], state, what[:300], over, attempt, run.schedule + 1,
        nodes, decided.rung if decided else "", decided.cause if decided else "", records[0].at, records[-1].at,
        bool(open_requeue), run.number, run.host, run.pid_space, run.pid, run.started,
    )  # fmt: skip


def _state(records: Sequence[rec.Record], decided: rec.Decided | None) -> tuple[str, str, bool]:
    """State, more of it, and whether the job is over: from the last record that tells."""
    why = decided.why if decided is not None else ""
    for record in reversed(records):
        match record:
            case rec.Finished():
                return _ended(record, why)
            case rec.CarriedOut():
                return "requeued" if record.ok and record.what.startswith("requeued") else "recovering", why, False
            case rec.Decided():
                return "requeued" if record.rung in REQUEUES else "recovering", why, False
            case rec.TroubleSeen():
                return "recovering", record.what, False
            case rec.HangSeen():
                return "hanging", record.what, False
            case rec.AttemptBegan():
                return "running", "", False
            case rec.RunBegan():
                return "starting", "", False
    return "starting", "", False


def _ended(record: rec.Finished, why: str) -> tuple[str, str, bool]:
    if record.what in _MAY_GO_ON:
        return "requeued", why if record.what == "requeued" else record.what, False
    if record.what in _ENDS:
        return _ENDS[record.what], "", True
    return ("completed", "", True) if record.status == 0 else ("failed", f"status {record.status}: {record.what}", True)


def by_slurm(job: JobSummary, said: Mapping[int, SlurmWord]) -> JobSummary:
    """What the ledger could not know: ftrun writes nothing while the job waits, or after it was killed.

    said: of every job of the user that Slurm remembers; one that is not there is over, nobody knows how.
    """
    if job.over:
        return job
    word = said.get(job.number)
    if word is None:
        return job._replace(state="gone", what=f"Slurm knows it no more; it was {job.state} then", over=True)
    if word.state == "PENDING":
        return _waiting(job, word)
    if word.state == "RUNNING":
        return job._replace(state="starting") if job.state == "requeued" else job
    if word.state == "SUSPENDED":
        return job._replace(state="suspended")
    if word.state == "UNKNOWN":
        return job
    state = {"COMPLETED": "completed", "CANCELLED": "cancelled", "TIMEOUT": "timeout"}.get(word.state, "failed")
    what = f"{word.state}: {word.reason}" if state == "failed" and word.reason not in ("", "None") else ""
    return job._replace(state=state, what=what, over=True)


def _waiting(job: JobSummary, word: SlurmWord) -> JobSummary:
    if word.held and job.requeue_open:
        return job._replace(state="held", what=f"a requeue was not finished: ftslurm requeue --finish {job.job}")
    if word.held:
        return job._replace(state="held", what=word.reason)
    return job._replace(state="pending", what=f"requeued, waits: {word.reason}" if word.reason else "requeued")

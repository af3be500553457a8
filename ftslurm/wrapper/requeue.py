"""Giving a job back to Slurm so that it runs again soon and elsewhere: the one recipe, whoever follows it.

Slurm takes a new ExcNodeList and start time only of a pending job, and a requeue sends SIGTERM to all of it. Hence:
requeue it held (from here the scheduler cannot take it), exclude, set the start time, release. The start time must lie
ahead when the clean-up ends, or Slurm adds its 121 s. Seen on 22.05, 24.11 and 26.05.

An expedited job (`sbatch --requeue=expedite`, 25.11 and later) has no such delay: without a start time it runs again a
tenth of a second after the clean-up. Source: slurmctld's batch_requeue_fini(); seen on 26.05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ftslurm.errors import SlurmRefused, SlurmUnavailable
from ftslurm.model.history import History
from ftslurm.slurm.client import JobState, JobView, SlurmClient
from ftslurm.slurm.states import is_over

# For a job whose clean-up is over there is nothing to wait for; but one that starts again on a node within the second in
# which it was killed there finds its credential revoked and fails for good (seen on 22.05 and 24.11, never with 2 s).
SOON_S = 2

AS_IT_IS = "requeued; Slurm took no other change of the job, so it starts by Slurm's own delay"
RUNS_AGAIN = "requeued already, and it runs again"


@dataclass(frozen=True, slots=True)
class Plan:
    """exclude: nodes to keep the job off. ours: nodes a former requeue of ours kept it off, which may come back.

    schedule: the scheduling that the requeue was decided in (RunBegan), None if nobody knows.
    """

    exclude: frozenset[str]
    ours: frozenset[str]
    start_in_s: float
    allow_first: bool = False
    schedule: int | None = None


def plan_for(history: History, exclude: Iterable[str], start_in_s: float, allow_first: bool) -> Plan:
    schedule = history.last_run.schedule if history.last_run is not None else None
    return Plan(frozenset(exclude), frozenset(history.isolated), start_in_s, allow_first, schedule)


def runs_again(job: JobView, plan: Plan) -> bool:
    """Has somebody requeued it since the plan was made, and it waits no more? Another requeue would end a healthy job."""
    return plan.schedule is not None and job.restarts > plan.schedule and job.state is not JobState.PENDING


def give_back(client: SlurmClient, number: int, plan: Plan, clock: Callable[[], float]) -> str:
    """Follow the recipe from wherever the job stands; gives what was done, in words. clock: Unix seconds.

    Raises: SlurmRefused, SlurmUnavailable, UnknownJob. A job left on the way is held, not back on a bad node.
    """
    job = client.job(number)
    if is_over(job):  # Slurm itself would requeue a job that was cancelled, as long as it remembers it
        raise SlurmRefused(f"job {number} is over ({job.state.value})", hint="submit it again")
    if runs_again(job, plan):
        return RUNS_AGAIN
    start_in_s = max(plan.start_in_s, SOON_S)
    if job.state is not JobState.PENDING:
        _hold(client, job, plan)
    elif not job.completing:
        start_in_s = SOON_S
    excluded = (job.excluded - plan.ours) | plan.exclude
    named = job.required & plan.exclude  # by the user; Slurm would let the job wait for them for ever
    if named:
        client.require(number, sorted(job.required - named))
    if excluded != job.excluded:
        client.exclude(number, sorted(excluded))
    # From here, not from the beginning: on a busy machine each word with Slurm takes its time. It counts whole seconds.
    said = "" if job.expedited else _start_at(client, number, int(clock() + start_in_s))
    if client.job(number).held:
        client.release(number)
    without = f" without {', '.join(sorted(plan.exclude))}" if plan.exclude else ""
    taken = f" ({', '.join(sorted(named))} taken off its --nodelist)" if named else ""
    return f"requeued{without}{taken}{said}"


def takes_changes(client: SlurmClient, number: int) -> bool:
    """Does Slurm take changes of a running job now? Asked by one that changes nothing.

    Where it has cut a dead node out of a job with --no-kill it refuses all of them, those that end a hold as well: without
    slurmdbd for as long as the job runs, and after five seconds each (seen on 22.05). A requeue that holds would be its end.
    It says that this will pass, so the client has asked again and again by then. Raises: SlurmUnavailable where it says nothing.
    """
    try:
        client.allow_requeue(number)
    except SlurmRefused:
        return False
    except SlurmUnavailable:
        client.job(number)
        return False
    return True


def _hold(client: SlurmClient, job: JobView, plan: Plan) -> None:
    if not job.requeue and plan.allow_first:
        client.allow_requeue(job.number)
    client.requeue_held(job.number)


def _start_at(client: SlurmClient, number: int, start: int) -> str:
    """A refusal costs two minutes, not the job."""
    try:
        client.start_at(number, start)
    except SlurmRefused as refusal:
        return f", starts by Slurm's own delay ({refusal.message})"
    return ""

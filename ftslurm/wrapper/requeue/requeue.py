"""Giving a job back to Slurm so that it runs again soon and elsewhere: the one recipe, whoever follows it.

Slurm takes a new ExcNodeList and start time only of a pending job, and a requeue sends SIGTERM to all of it. Hence:
requeue it held (from here the scheduler cannot take it), exclude, set the start time, release. The start time must lie
ahead when the clean-up ends, or Slurm adds its 121 s. Where nothing is known of the clean-up's length it is set safely late
first; the nodes that are not clean yet stand in the job's NodeList, and when only our own is left the start is moved to what
that one still needs. Seen on 22.05, 24.11 and 26.05: docs/slurm-facts.md, "The 121 seconds" and "Changes to a requeued job".

An expedited job (`sbatch --requeue=expedite`, 25.11 and later) has no such delay: without a start time it runs again a
tenth of a second after the clean-up. Source: slurmctld's batch_requeue_fini(); seen on 26.05.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping

from ftslurm.errors import SlurmRefused
from ftslurm.model.decisions import Start
from ftslurm.model.folds.history import History
from ftslurm.model.values import dataclass
from ftslurm.policies.ladder.start_time import after_watch, for_slowness
from ftslurm.slurm.client import AS_OF, JobState, JobView, SlurmClient
from ftslurm.slurm.states import is_over

# For a job whose clean-up is over there is nothing to wait for; but one that starts again on a node within the second in
# which it was killed there finds its credential revoked and fails for good (seen on 22.05 and 24.11, never with 2 s).
SOON_S = 2
# While the other nodes are watched; of whoever is killed meanwhile this start stays, which costs less than what Slurm would add.
WATCHED_START_S = 100.0
LOOK_AGAIN_S = 0.1
# Of the two clocks: Slurm tells whole seconds, and a request takes a moment.
AGREE_S = 2.0

# since (Unix seconds by slurmctld's clock), watched_s, others_clean: as in CleanUpBegan.
Began = Callable[[float, float, bool], object]

AS_IT_IS = "requeued; Slurm took no other change of the job, so it starts by Slurm's own delay"
RUNS_AGAIN = "requeued already, and it runs again"


def _tell_nobody(since: float, watched_s: float, others_clean: bool) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Plan:
    """exclude: nodes to keep the job off. ours: nodes a former requeue of ours kept it off, which may come back.

    schedule: the scheduling that the requeue was decided in (RunBegan), None if nobody knows. here: the node of the job that
    whoever follows the recipe is on, and which is not clean before that has ended; empty: none of them.
    """

    exclude: frozenset[str]
    ours: frozenset[str]
    start: Start
    allow_first: bool = False
    schedule: int | None = None
    here: str = ""


def plan_for(history: History, exclude: Iterable[str], start: Start, allow_first: bool, here: str = "") -> Plan:
    schedule = history.last_run.schedule if history.last_run is not None else None
    return Plan(frozenset(exclude), history.ours, start, allow_first, schedule, here)


def runs_again(job: JobView, plan: Plan) -> bool:
    """Has somebody requeued it since the plan was made, and it waits no more? Another requeue would end a healthy job."""
    return plan.schedule is not None and job.restarts > plan.schedule and job.state is not JobState.PENDING


def give_back(
    client: SlurmClient, number: int, plan: Plan, clock: Callable[[], float],
    began: Began = _tell_nobody, pause: Callable[[float], None] = time.sleep,
) -> str:  # fmt: skip
    """Follow the recipe from wherever the job stands; gives what was done, in words.

    clock: Unix seconds, slurmctld's (`slurms_clock`). began: is told what CleanUpBegan holds. pause: waits for so many seconds.
    Raises: SlurmRefused, SlurmUnavailable, UnknownJob. A job left on the way is held, not back on a bad node.
    """
    first = clock()
    job = client.job(number)
    if is_over(job):  # Slurm itself would requeue a job that was cancelled, as long as it remembers it
        raise SlurmRefused(f"job {number} is over ({job.state.value})", hint="submit it again")
    if runs_again(job, plan):
        return RUNS_AGAIN
    held_now = job.state is not JobState.PENDING
    if held_now:
        _hold(client, job, plan)
        job = client.job(number)
    since = clock()
    if held_now:
        began(since, 0.0, False)
    excluded = (job.excluded - plan.ours) | plan.exclude
    named = job.required & plan.exclude  # by the user; Slurm would let the job wait for them for ever
    if named:
        client.require(number, sorted(job.required - named))
    if excluded != job.excluded:
        client.exclude(number, sorted(excluded))
    watch = plan.start.watch_s > 0 and bool({*job.cleaning} - {plan.here}) and not job.expedited
    said = "" if job.expedited else _start_in(client, job, plan, clock, first, since, watch)
    if client.job(number).held:
        client.release(number)
    if watch and not said:
        said = _watch(client, job, plan, clock, since, pause, began if held_now else _tell_nobody)
    without = f" without {', '.join(sorted(plan.exclude))}" if plan.exclude else ""
    taken = f" ({', '.join(sorted(named))} taken off its --nodelist)" if named else ""
    return f"requeued{without}{taken}{said}"


def slurms_clock(config: Mapping[str, str]) -> Callable[[], float]:
    """slurmctld's clock, in Unix seconds: ours, moved by what `config`, just asked for, shows of the difference.

    Start times are compared with it, and the nodes of a cluster need not agree to the second.
    """
    ahead_s = slurms_lead_s(config)
    return (lambda: time.time() + ahead_s) if ahead_s else time.time


def slurms_lead_s(config: Mapping[str, str]) -> float:
    """How far slurmctld's clock is ahead of ours, by `config`, just asked for; 0 where they agree or nothing shows it."""
    shown = config.get(AS_OF, "")
    ahead_s = int(shown) + 0.5 - time.time() if shown.isdigit() else 0.0
    return ahead_s if abs(ahead_s) >= AGREE_S else 0.0


def _start_in(
    client: SlurmClient, job: JobView, plan: Plan, clock: Callable[[], float], first: float, since: float, watch: bool
) -> str:  # fmt: skip
    """Safely late where other nodes are watched first. since: when the clean-up began, which its length is counted from. On a
    busy machine each request takes its time, and so does the clean-up."""
    if not job.completing:
        start = clock() + SOON_S
    elif watch:
        start = clock() + WATCHED_START_S
    else:
        start = max(since + plan.start.in_s + for_slowness(clock() - first), clock() + SOON_S)
    return _start_at(client, job.number, start)


def _watch(
    client: SlurmClient, job: JobView, plan: Plan, clock: Callable[[], float], since: float,
    pause: Callable[[float], None], began: Began,
) -> str:  # fmt: skip
    """Until the other nodes are clean, or for as long as the plan allows; then the start is moved to what our own still needs."""
    asked_s, late = 0.0, clock() + WATCHED_START_S
    while True:
        before = clock()
        view = client.job(job.number)
        now = clock()
        asked_s, watched_s = max(asked_s, now - before), now - since
        clean = not view.completing or not {*view.cleaning} - {plan.here}
        if clean or watched_s >= plan.start.watch_s:
            break
        if late - now < WATCHED_START_S / 2:
            late = now + WATCHED_START_S
            _start_at(client, job.number, late)
        pause(max(LOOK_AGAIN_S, watched_s / 20))
    began(since, watched_s, clean)
    if clean and plan.here not in view.cleaning:
        in_s = float(SOON_S)
    else:
        in_s = after_watch(plan.start, watched_s, clean) + for_slowness(asked_s)
    return _start_at(client, job.number, clock() + in_s)


def start_when_clean(client: SlurmClient, number: int, watch_s: float, clock: Callable[[], float]) -> str:
    """For a job that is on its way, by somebody who is on none of its nodes; what was done, in words, empty for nothing.

    Raises: SlurmRefused, SlurmUnavailable, UnknownJob.
    """
    job = client.job(number)
    if job.state is not JobState.PENDING or job.held or not job.completing or job.expedited:
        return ""
    plan = Plan(frozenset(), frozenset(), Start(float(SOON_S), watch_s))
    refused = _watch(client, job, plan, clock, clock(), time.sleep, _tell_nobody)
    return f"its nodes are clean{refused or ', it starts now'}"


def _hold(client: SlurmClient, job: JobView, plan: Plan) -> None:
    if not job.requeue and plan.allow_first:
        client.allow_requeue(job.number)
    client.requeue_held(job.number)


def _start_at(client: SlurmClient, number: int, start: float) -> str:
    """Slurm counts whole seconds. A refusal costs two minutes, not the job."""
    try:
        client.start_at(number, math.ceil(start))
    except SlurmRefused as refusal:
        return f", starts by Slurm's own delay ({refusal.message})"
    return ""

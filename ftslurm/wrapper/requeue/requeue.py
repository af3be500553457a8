"""Requeues a job so that it soon runs again on other nodes: the one recipe that all callers follow.

Slurm accepts a new ExcNodeList and start time only for a pending job, and a requeue sends SIGTERM to the whole job. So: requeue
it, exclude nodes, set the start time. A step of the job does this, and the scheduler cannot start the job before that step has
ended. Anybody else requeues it held, and releases it at the end; then Slurm computes its priority anew, also one that an operator
has set (a requeue alone keeps it).

The start time must be in the future when the clean-up ends, or Slurm adds its 121 s. If the length of the clean-up is unknown, a
safely late time is set first; the job's NodeList shows the nodes that are not clean yet, and when only our own remains, the start
time is moved to what that one still needs. Seen on 22.05, 24.11 and 26.05: docs/slurm-facts.md, "The 121 seconds" and "Changes to
a requeued job".

An expedited job (`sbatch --requeue=expedite`, 25.11 and later) has no such delay: without a start time it runs again a tenth of a
second after the clean-up. Source: slurmctld's batch_requeue_fini(); seen on 26.05.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import SlurmRefused
from ftslurm.model.decisions import Start
from ftslurm.model.folds.history import History
from ftslurm.model.values import Value, replace
from ftslurm.policies.start_time import after_watch, for_slowness
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import AS_OF, JobState, JobView
from ftslurm.slurm.states import is_over
from ftslurm.system.processes import all_processes

# --- Steps that have ended and that slurmctld has not heard of, because it was away: a requeue waits for them.
#
# A slurmstepd whose last message to slurmctld fails sends it again 60 s later, and its node is not clean before: a clean-up
# that takes 4 s otherwise takes up to 65 s then, and a start time for 4 s costs Slurm's 121 s. What is waited for here the
# clean-up would wait for too. Source: docs/slurm-facts.md, "How long a clean-up takes".
#
# Slurm may list such a step no more: where it has read the message and could not answer, it is the slurmstepd that waits. The
# first node of a step reports for all of it, so on our own node the slurmstepds tell exactly. Of a step that reports from
# another node only Slurm's list tells, where steps that still run stand too: of those in it only ours count, and only after
# an outage for sure.

# Until the message is sent again, and is understood.
RESEND_S = 60.0 + 5.0
# An answer in less shows that slurmctld was there. A busy one may need more, so then only slurmstepds count.
LATE_S = 2.0
# A question that fails takes this long (MessageTimeout, 10 s by default, and as long where the connection is refused), so an
# answer in less was one to the first try.
AWAY_S = 9.0
LOOK_AGAIN_STEPS_S = 0.5

_STEPD = rb"slurmstepd: \[(\d+)\.(\d+)\]"


class StepsHere(Value):
    """Numbered steps of the job, `7.0`, whose slurmstepd is on this node; those hidden from us are not found."""

    ended: frozenset[str]
    running: frozenset[str]


def steps_here(
    job: int, proc: Path = Path("/proc"), parents: Callable[[], Collection[int]] | None = None, owners: Collection[int] = ()
) -> StepsHere:
    """parents: pids of those that have children, as a slurmstepd has as long as its step runs. owners: users whose processes
    count, root and we ourselves if empty: anybody may call a process so.
    """
    found: dict[int, str] = {}
    trusted = owners or (0, os.geteuid())
    for entry in proc.glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if entry.stat().st_uid in trusted and (named := re.match(_STEPD, entry.read_bytes())) and int(named[1]) == job:
                found[int(entry.parent.name)] = f"{job}.{int(named[2])}"
    asked = parents or (lambda: {process.parent for process in all_processes().values()})
    busy = asked() if found else ()
    running = frozenset(step for pid, step in found.items() if pid in busy)
    return StepsHere(frozenset(step for pid, step in found.items() if pid not in busy), running)


class SlurmOutage:
    """Whether slurmctld was away a short while ago. clock: any seconds; unix: Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, unix: Callable[[], float] = time.time) -> None:
        self._clock, self._unix = clock, unix
        self._back: float | None = None
        self._sure = False

    def note(self, asked: float, answered: bool, up_since: int = 0) -> None:
        """Of one question. asked: when, by `clock`. up_since: of slurmctld, Unix seconds; 0: not told."""
        took_s = self._clock() - asked
        sure = not answered or took_s >= AWAY_S or bool(up_since and self._unix() - up_since < RESEND_S)
        if sure or took_s >= LATE_S:
            self._back, self._sure = self._clock(), self._sure or sure

    def await_steps(
        self, ended: Callable[[], Collection[str]], listed: Callable[[], Collection[str] | None], pause: Callable[[float], None]
    ) -> bool:
        """Wait until no step that has ended is left, for as long as one may be late. Gives whether there was any.

        ended: those known to be left. listed: those that may be, None: nobody knows; asked for after an outage for sure. pause:
        waits for the given number of seconds.
        """
        waited = False
        while self._back is not None and self._clock() - self._back < RESEND_S:
            steps = ended() or (listed() if self._sure else ())
            if steps is not None and not steps:
                break
            waited = True
            pause(LOOK_AGAIN_STEPS_S)
        self._back, self._sure = None, False
        return waited


# A clean job has nothing to wait for; but one that starts again on a node within the second in which it was killed there finds
# its credential revoked and fails for good (seen on 22.05 and 24.11, never with 2 s).
SOON_S = 2
# The start time while other nodes are watched. If the watcher is killed, this time stays, which costs less than Slurm's delay.
WATCHED_START_S = 100.0
LOOK_AGAIN_S = 0.1
# Difference of the two clocks: Slurm tells whole seconds, and a request takes a moment.
AGREE_S = 2.0

# Arguments: since (Unix seconds by slurmctld's clock), watched_s, others_clean: as in CleanUpBegan.
Began = Callable[[float, float, bool], object]

AS_IT_IS = "requeued without changes, so it starts after Slurm's own delay (usually 121 s)"
RUNS_AGAIN = "requeued already, and it runs again"


# Could this job, which waits, ever start without these nodes? None: not known.
Fits = Callable[[JobView, frozenset[str]], "bool | None"]


class Plan(Value):
    """exclude: nodes to exclude. ours: nodes that an earlier requeue of ours excluded, which may be used again.

    schedule: the scheduling in which the requeue was decided (RunBegan), None if unknown. here: the node of the job on which the
    caller runs, and which is not clean before the caller has ended; empty: none. fits: asks Slurm. in_step: the caller is a step
    of the job, which no requeue ends at once, so that the job cannot start before the caller has ended.
    """

    exclude: frozenset[str]
    ours: frozenset[str]
    start: Start
    allow_first: bool = False
    schedule: int | None = None
    here: str = ""
    fits: Fits = lambda job, without: None
    in_step: bool = False


class Requeued(Value):
    """what: was done, in words. let_in: nodes to exclude without which the job could never start, so that it keeps them."""

    what: str
    let_in: frozenset[str] = frozenset()


def plan_for(
    history: History, exclude: Iterable[str], start: Start, allow_first: bool, here: str = "",
    fits: Fits = lambda job, without: None, in_step: bool = False,
) -> Plan:  # fmt: skip
    schedule = history.last_run.schedule if history.last_run is not None else None
    return Plan(frozenset(exclude), history.exclusions.ours, start, allow_first, schedule, here, fits, in_step)


def runs_again(job: JobView, plan: Plan) -> bool:
    """Has the job been requeued since the plan was made, and does it run? Another requeue would end a healthy job."""
    return plan.schedule is not None and job.restarts > plan.schedule and job.state is not JobState.PENDING


def follow_recipe(
    client: SlurmClient, number: int, plan: Plan, clock: Callable[[], float],
    began: Began | None = None, pause: Callable[[float], None] = time.sleep,
) -> Requeued:  # fmt: skip
    """Follow the recipe from any state of the job.

    clock: Unix seconds, slurmctld's (`slurms_clock`). began: is called with what CleanUpBegan holds. pause: waits for the given
    number of seconds. Raises: SlurmRefused, SlurmUnavailable, UnknownJob. If it stops half-way, the job is held, not back on a
    bad node, unless Slurm no longer answers a step of the job: then it comes back by Slurm's own delay.
    """
    first = clock()
    job = client.job(number)
    if is_over(job):  # Slurm would requeue even a cancelled job as long as it remembers it
        raise SlurmRefused(f"job {number} is over ({job.state.value})", hint="submit it again")
    if runs_again(job, plan):
        return Requeued(RUNS_AGAIN)
    requeued_now, stays_held = job.state is not JobState.PENDING, job.to_be_held
    if requeued_now:
        _requeue(client, job, plan)
        job = client.job(number)
    since = clock()
    if began and requeued_now:
        began(since, 0.0, False)
    let_in = _never_without(job, plan)
    plan = replace(plan, exclude=plan.exclude - let_in)
    named = job.required & plan.exclude  # nodes that the user required; Slurm would let the job wait for them forever
    try:
        _exclude(client, job, plan, named)
    except SlurmRefused:
        client.requeue_held(number)  # just held, where it waits already
        raise
    watch = plan.start.watch_s > 0 and bool({*job.cleaning} - {plan.here}) and not job.expedited
    said = "" if job.expedited else _start_in(client, job, plan, clock, first, since, watch)
    if stays_held:
        said += f"; it stays held, as somebody has held it while it ran (`scontrol release {number}`)"
    elif client.job(number).held:
        client.release(number)
    if watch and not said and not stays_held:
        said = _watch(client, job, plan, clock, since, pause, began if requeued_now else None)
    without = f" without {', '.join(sorted(plan.exclude))}" if plan.exclude else ""
    taken = f" ({', '.join(sorted(named))} taken off its --nodelist)" if named else ""
    kept = f"; {', '.join(sorted(let_in))} not excluded: Slurm could never start the job without" if let_in else ""
    return Requeued(f"requeued{without}{taken}{kept}{said}", let_in)


def _never_without(job: JobView, plan: Plan) -> frozenset[str]:
    """Nodes that would be excluded now, and for which the job would wait for ever. A job that waits shows all that it asks for:
    this is known better than when the requeue was decided."""
    new = plan.exclude - job.excluded
    asked = replace(job, excluded=job.excluded - plan.ours)
    return new if new and plan.fits(asked, plan.exclude) is False else frozenset()


def slurms_clock(config: Mapping[str, str]) -> Callable[[], float]:
    """slurmctld's clock in Unix seconds: ours, corrected by the difference that a fresh `config` shows.

    Slurm compares start times with its clock, and the clocks of a cluster may differ by seconds.
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
    """Set the start time, safely late if other nodes are watched first; gives what Slurm says against it, in words. since: when
    the clean-up began. On a busy machine each request takes time, and so does the clean-up.
    """
    if not job.completing:
        start = clock() + SOON_S
    elif watch:
        start = clock() + WATCHED_START_S
    else:
        start = max(since + plan.start.in_s + for_slowness(clock() - first), clock() + SOON_S)
    return _start_at(client, job.number, start)


def _watch(
    client: SlurmClient, job: JobView, plan: Plan, clock: Callable[[], float], since: float,
    pause: Callable[[float], None], began: Began | None,
) -> str:  # fmt: skip
    """Wait until the other nodes are clean, or for as long as the plan allows; then move the start
    to what our own still needs.
    """
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
    if began:
        began(since, watched_s, clean)
    if clean and plan.here not in view.cleaning:
        in_s = float(SOON_S)
    else:
        in_s = after_watch(plan.start, watched_s, clean) + for_slowness(asked_s)
    return _start_at(client, job.number, clock() + in_s)


def start_when_clean(client: SlurmClient, number: int, watch_s: float, clock: Callable[[], float]) -> str:
    """Move the start of a job that is being requeued, from a machine that is none of its nodes. Gives what was done, in words,
    empty for nothing.

    Raises: SlurmRefused, SlurmUnavailable, UnknownJob.
    """
    job = client.job(number)
    if job.state is not JobState.PENDING or job.held or not job.completing or job.expedited:
        return ""
    plan = Plan(frozenset(), frozenset(), Start(float(SOON_S), watch_s))
    refused = _watch(client, job, plan, clock, clock(), time.sleep, None)
    return f"its nodes are clean{refused or ', it starts now'}"


def _requeue(client: SlurmClient, job: JobView, plan: Plan) -> None:
    if not job.requeue and plan.allow_first:
        client.allow_requeue(job.number)
    if plan.in_step:
        client.requeue(job.number)
    else:
        client.requeue_held(job.number)


def _exclude(client: SlurmClient, job: JobView, plan: Plan, named: frozenset[str]) -> None:
    excluded = (job.excluded - plan.ours) | plan.exclude
    if named:
        client.require(job.number, sorted(job.required - named))
    if excluded != job.excluded:
        client.exclude(job.number, sorted(excluded))


def _start_at(client: SlurmClient, number: int, start: float) -> str:
    """Set the start time; Slurm counts whole seconds. A refusal costs two minutes, not the job."""
    try:
        client.start_at(number, math.ceil(start))
    except SlurmRefused as refusal:
        return f", starts by Slurm's own delay ({refusal.message})"
    return ""

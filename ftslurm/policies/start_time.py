"""When a job that is given back shall start again: behind its clean-up, or Slurm adds 121 s, and not much later.

How long the clean-up takes is measured (the SubmitTime of a requeued job is when it ended), written to the ledger and
remembered for the user's next jobs on the cluster. Until it is known the other nodes are watched, where there are any.
Source: docs/slurm-facts.md, "The 121 seconds" and "How long a clean-up takes".
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.model.averages import median
from ftslurm.model.decisions import Start
from ftslurm.model.folds.history import CleanUpTook
from ftslurm.model.settings.features import RequeueSettings

# As long as nothing is known. With proctrack/cgroup the processes of a plain script are gone after 0.7 to 3.7 s (seen on 22.05).
NO_EPILOG_S, EPILOG_S = 6.0, 45.0
# What Slurm adds to a start time that has passed when the clean-up ends: cred_expire (120 s) and 1, slurm.conf(5), AuthInfo.
SLURMS_OWN_S = 121.0
# slurmd looks every second whether the job's processes are gone, and every ten seconds after the first ten; whoever watches
# until then keeps its own node from being clean soon after. Source: slurmd's _pause_for_job_completion(), 22.05 and 26.05.
WATCH_S = 9.0
EACH_SECOND_UNTIL_S = 10.67
# What the own node needs when whoever watched has ended: its step, and slurmd's next look (up to 2.9 s on a busy machine, 22.05).
OWN_S = 4.0
# Slurm's times are whole seconds: a clean-up is known to have been up to this much shorter than measured, and a start is set
# to the later one.
WHOLE_S = 1.0
# Of one or two clean-ups nobody knows how much they differ.
MARGIN_S = 0.5
FEW = 2
# After the first ten seconds slurmd looks every ten whether the own node's processes are gone.
NEXT_LOOK_S = 10.0
# Of the latest this many clean-ups the longest counts.
KNOWN_MAX = 10
# The requests of the recipe take 0.1 s on a quiet machine. One that is slow to answer is slow to clean up.
QUIET_S, SLOW_FACTOR = 0.25, 4.0


def plan_start(requeue: RequeueSettings, epilog: bool, known: Sequence[CleanUpTook]) -> Start:
    """epilog: has the site one, or may it have? known: earlier clean-ups, the latest last."""
    grace_s = _behind_grace_s(requeue.cleanup_grace_s) if epilog else 0.0
    if told_s := max(requeue.start_in_s, behind(known), grace_s):
        return Start(told_s, epilog=epilog)
    return Start(EPILOG_S if epilog else NO_EPILOG_S, WATCH_S, epilog)


def plan_finish(least_s: float, known: Sequence[CleanUpTook], watch_s: float) -> Start:
    """For EpilogSlurmctld, which finishes a requeue in the place of its job. least_s: what the site sets. watch_s: for how long
    the nodes can be watched from outside until they are clean; 0: not at all, and the start is a guess."""
    return Start(max(least_s, behind(known) or (0.0 if watch_s else EPILOG_S)), watch_s, epilog=True)


def elsewhere_in_s(least_s: float, clean: bool) -> float:
    """Seconds until a job that the Prolog turned away starts elsewhere. clean: its nodes are; else nobody watches them."""
    return least_s if clean else max(least_s, EPILOG_S)


def behind(known: Sequence[CleanUpTook]) -> float:
    """Seconds within which the next clean-up ends, if it is like those before; 0 where there was none.

    One that took so much longer than the usual one that Slurm's own delay is cheaper is not waited for. Rough ones count
    until there is a better one.
    """
    if not known:
        return 0.0
    exact = [took.seconds for took in known if not took.rough]
    rough = [took.seconds for took in known if took.rough]
    if not exact:
        return _behind_rough(max(rough[-KNOWN_MAX:]))
    usual_s = median(exact)
    counted = [seconds for seconds in exact[-KNOWN_MAX:] if seconds <= usual_s + SLURMS_OWN_S]
    longest_s, spread_s = max(counted), max(counted) - min(counted)
    margin_s = max(MARGIN_S, min(spread_s, max(WHOLE_S, longest_s / 4 + MARGIN_S)))
    if len(counted) == 1:
        agrees = any(longest_s <= seconds <= longest_s + NEXT_LOOK_S + WHOLE_S for seconds in rough)
        margin_s += longest_s / (8 if agrees else 4)  # one is no proof that the next is like it
    return longest_s - _of_whole_seconds(spread_s) + margin_s + (MARGIN_S if len(counted) <= FEW else 0.0)


def _behind_rough(seconds: float) -> float:
    """Mostly such a clean-up counts up to NEXT_LOOK_S that the watch itself cost: the margin of a single one is in it already."""
    return max(seconds, 1.25 * (seconds - NEXT_LOOK_S)) + WHOLE_S


def _of_whole_seconds(spread_s: float) -> float:
    """What of the longest may be no length at all, but Slurm's whole seconds: clean-ups that differ by less than one may all
    have been as short as the shortest. The more they differ beyond that, the less."""
    return min(spread_s, max(0.0, 2 * WHOLE_S - spread_s))


def after_watch(start: Start, watched_s: float, all_clean: bool) -> float:
    """Seconds from now, when the other nodes were watched for `watched_s` and are clean, or `all_clean` is False: for what the
    own node still needs. An Epilog takes as long there as it took on the others, and has not begun there while we watch; nor
    before slurmd's next look, where our own end may come too late for those of each second."""
    if not all_clean:
        return max(start.in_s + NEXT_LOOK_S + OWN_S if start.epilog else start.in_s, 2 * watched_s)
    in_time = watched_s + OWN_S <= EACH_SECOND_UNTIL_S
    own_s = OWN_S if in_time else EACH_SECOND_UNTIL_S + NEXT_LOOK_S + WHOLE_S - watched_s
    return own_s + (1.25 * watched_s if start.epilog else 0.0)


def for_slowness(requests_s: float) -> float:
    """Seconds more, on a machine on which the requests so far took `requests_s`."""
    return SLOW_FACTOR * max(0.0, requests_s - QUIET_S)


def _behind_grace_s(grace_s: float) -> float:
    """For an Epilog that waits for the site's clean-up as long as the job lets it; 0 where that is not to be waited for.

    Most clean-ups are shorter: to start behind a grace longer than Slurm's own delay would cost more than it could save.
    """
    behind_s = grace_s + 8.0
    return behind_s if grace_s > 0 and behind_s < SLURMS_OWN_S else 0.0

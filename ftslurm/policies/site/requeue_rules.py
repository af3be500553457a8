"""Checks of what a requeue, and a node that dies, cost on this site."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from ftslurm.model.site import Site
from ftslurm.policies.site import reading as conf
from ftslurm.policies.site.reading import Holds, holds

# The delay that Slurm adds to a requeue whose start time has passed: cred_expire (120 s) and 1 s.
SLURMS_OWN_S = 121
# Slurm notices a dead node after 1.5 to 2 times SlurmdTimeout; with this value that stays within the 121 s.
SHORT_TIMEOUT_S = 60
DEFAULT_MESSAGE_S = 10
# The step that carries out a requeue watches the other nodes for 9 s, and ends 3 s before SIGKILL: `wrapper/requeue`.
KILL_WAIT_S = 12
# slurm.conf(5), SchedulerParameters.
SCHED_INTERVAL_S, BF_INTERVAL_S = 60, 30
QUICK_INTERVAL_S = 10
LOSES_GPUS_BEFORE, EXPEDITES_FROM = (23, 2, 2), (25, 11, 0)
TRIED = ((22, 5), (26, 5))
SOME_BAD_NODES = 5


def _release(site: Site) -> Holds:
    found = conf.release(site.config)
    tried = TRIED[0] <= found[:2] <= TRIED[1]
    outcome = "not tried" if not tried else "well" if found >= LOSES_GPUS_BEFORE else _gpus(site.config)
    return holds(outcome, name=site.config["SLURM_VERSION"])


def _gpus(config: conf.Config) -> str:
    if "GresTypes" not in config:
        raise conf.NotSaid("Slurm does not show GresTypes")
    return "loses GPUs" if conf.has(config, "GresTypes", "gpu") else "without GPUs"


def _own_job(site: Site) -> Holds | None:
    job = site.job
    if job is None:
        return None
    return holds("no script" if not job.batch else "well" if job.requeue else "no requeue", job=job.number)


def _start(site: Site) -> Holds:
    named = conf.programs(site.config, "EpilogSlurmctld")
    if named:
        return holds("ours" if any(map(conf.is_ours, named)) else "another")
    return holds("not set", first=45 if conf.programs(site.config, "Epilog") else 6)


def _expedited(site: Site) -> Holds | None:
    if conf.release(site.config) < EXPEDITES_FROM:
        return None
    key, word = "SlurmctldParameters", "enable_expedited_requeue"
    if conf.has(site.config, key, word):
        return holds("allowed")
    return holds("not allowed", line=conf.line_with(site.config, key, word))


def _batch_requeues(site: Site) -> Holds | None:
    if not any(conf.programs(site.config, "Prolog")):
        return None
    if "MaxBatchRequeue" not in site.config:
        raise conf.NotSaid("Slurm does not show MaxBatchRequeue")
    most = conf.option({"": f"n={site.config['MaxBatchRequeue']}"}, "", "n", 0)
    return holds("well" if most >= SOME_BAD_NODES else "few", most=most)


def _exit_statuses(key: str, site: Site) -> Holds:
    listed = conf.words_said(site.config, key)
    return holds("listed" if listed else "well", statuses=", ".join(listed))


def _pace(site: Site) -> Holds:
    key = "SchedulerParameters"
    main = conf.option(site.config, key, "sched_interval", SCHED_INTERVAL_S)
    backfill = conf.option(site.config, key, "bf_interval", BF_INTERVAL_S) if "backfill" in site.config["SchedulerType"] else -1
    each = min((every for every in (main, backfill) if every > 0), default=math.inf)
    if each <= QUICK_INTERVAL_S:
        return holds("quick", often=f"every {each:g} s")
    often = f"at least every {each:g} s" if each < math.inf else "only when other jobs come and go"
    words = (f"sched_interval={QUICK_INTERVAL_S}", f"bf_interval={QUICK_INTERVAL_S}")
    return holds("slow", often=often, line=conf.line_with(site.config, key, *words))


def _completing(site: Site) -> Holds:
    wait = conf.seconds_said(site.config, "CompleteWait")
    return holds("waits" if wait else "well", wait=wait)


def _kill_wait(site: Site) -> Holds:
    wait = conf.seconds_said(site.config, "KillWait")
    return holds("well" if wait >= KILL_WAIT_S else "short", wait=wait, watched=max(0.0, wait - 3))


# --- nodes that die


def _waits(config: conf.Config) -> str:
    """How long a job waits for Slurm to notice a dead node, in words. Raises: NotSaid."""
    if "SlurmdTimeout" not in config:
        raise conf.NotSaid("Slurm does not show SlurmdTimeout")
    limit = conf.seconds_said(config, "SlurmdTimeout")
    return f"{1.5 * limit:g} to {2 * limit:g} s" if 0 < limit < math.inf else "for ever"


def _slurmd_timeout(site: Site) -> Holds:
    limit = conf.seconds_said(site.config, "SlurmdTimeout")
    outcome = "never" if not 0 < limit < math.inf else "well" if limit <= SHORT_TIMEOUT_S else "late"
    return holds(outcome, waits=_waits(site.config))


def _shrink(site: Site) -> Holds:
    key, word = "SchedulerParameters", "disable_job_shrink"
    if not conf.has(site.config, key, word):
        return holds("well")
    return holds("disabled", waits=_waits(site.config), line=conf.line_without(site.config, key, word))


def _accounts(site: Site) -> Holds:
    if "slurmdbd" in site.config["AccountingStorageType"]:
        return holds("well")
    return holds("none, no start" if conf.release(site.config) < (23, 0, 0) else "none", waits=_waits(site.config))


def _exclusive(site: Site) -> Holds:
    if site.partitions is None:
        raise conf.NotSaid("Slurm does not show its partitions")
    names = [each.name for each in site.partitions if each.exclusive]
    if not names:
        return holds("none")
    shown = f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
    return holds("some", shown=shown, first=names[0], waits=_waits(site.config))


def _message_timeout(site: Site) -> Holds:
    limit = conf.seconds_said(site.config, "MessageTimeout")
    if limit <= DEFAULT_MESSAGE_S:
        return holds("well", from_=limit + 1, to=limit + 3)
    return holds("long", more=limit - DEFAULT_MESSAGE_S)


def _private(site: Site) -> Holds:
    words = conf.words_said(site.config, "PrivateData")
    kept = [word for word in words if word.lower() != "nodes"]
    if len(kept) == len(words):
        return holds("well")
    return holds("hidden", waits=_waits(site.config), kept=",".join(kept) or "none")


def _unkillable(site: Site) -> Holds:
    limit = conf.seconds_said(site.config, "UnkillableStepTimeout")
    return holds("well" if limit <= SLURMS_OWN_S else "long", limit=limit)


JUDGES: Mapping[str, Callable[[Site], Holds | None]] = {
    "Slurm's release": _release, "this job": _own_job,
    "JobRequeue": lambda site: holds("well" if site.config["JobRequeue"] == "1" else "refused"),
    "EpilogSlurmctld": _start, "expedited requeue": _expedited, "MaxBatchRequeue": _batch_requeues,
    "RequeueExit": partial(_exit_statuses, "RequeueExit"), "RequeueExitHold": partial(_exit_statuses, "RequeueExitHold"),
    "scheduling interval": _pace, "CompleteWait": _completing, "KillWait": _kill_wait,
    "JobFileAppend": lambda site: holds("well" if site.config["JobFileAppend"] == "1" else "truncates"),
    "SlurmdTimeout": _slurmd_timeout, "disable_job_shrink": _shrink, "slurmdbd": _accounts, "exclusive partitions": _exclusive,
    "MessageTimeout": _message_timeout, "PrivateData": _private,
    "ReturnToService": lambda site: holds("well" if site.config["ReturnToService"] != "0" else "stays down"),
    "UnkillableStepTimeout": _unkillable,
}  # fmt: skip

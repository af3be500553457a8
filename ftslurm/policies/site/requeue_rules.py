"""Rules about what a requeue, and a node that dies, cost on this site."""

from __future__ import annotations

import math

from ftslurm.model.rungs import RUNG_NAMES, Rung
from ftslurm.model.site import Change, Said, Site, SiteLevel, Whose
from ftslurm.policies.site import reading as conf

REQUEUES = tuple(rung for rung in map(Rung, RUNG_NAMES) if rung.is_requeue)
FACTS = "docs/slurm-facts.md"
HOOKS = conf.shell_line("ftslurm install-hooks --dry-run", Whose.ADMIN)

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


def _release(site: Site) -> Said:
    found = conf.release(site.config)
    name = site.config["SLURM_VERSION"]
    if not TRIED[0] <= found[:2] <= TRIED[1]:
        return Said(SiteLevel.UNKNOWN, f"ftslurm was not tested on Slurm {name} (tested: 22.05 to 26.05)")
    if found >= LOSES_GPUS_BEFORE:
        return Said(SiteLevel.OK, f"Slurm {name} has none of the bugs that ftslurm works around")
    if "GresTypes" not in site.config:
        raise conf.NotSaid("Slurm does not show GresTypes")
    if not conf.has(site.config, "GresTypes", "gpu"):
        return Said(
            SiteLevel.OK, f"Slurm {name} may start a requeued job without its GPUs (bug 16121), but this cluster has no GPUs"
        )
    return Said(
        SiteLevel.COSTS,
        f"Slurm {name} starts a requeued job without its GPUs if one of its nodes went down during the clean-up (bug 16121)",
        "one more requeue; the GPUs of the job's nodes count as allocated until slurmctld restarts",
        changes=(Change(Whose.ADMIN, "packages", "Slurm 23.02.2 or later"),),
    )


def _job_requeue(site: Site) -> Said:
    if site.config["JobRequeue"] == "1":
        return Said(SiteLevel.OK, "Slurm may requeue a batch job unless it was submitted with --no-requeue")
    return Said(
        SiteLevel.BLOCKS,
        "Slurm refuses to requeue a batch job that was submitted without --requeue",
        "",
        REQUEUES,
        (conf.job_line("--requeue"), conf.policy_line("requeue.even_if_no_requeue: true"), conf.set_to("JobRequeue", "1")),
    )


def _own_job(site: Site) -> Said | None:
    job = site.job
    if job is None:
        return None
    if not job.batch:
        return Said(
            SiteLevel.BLOCKS,
            f"job {job.number} has no batch script (salloc), and Slurm requeues only batch jobs",
            "",
            REQUEUES,
            (conf.shell_line("sbatch job.sh"),),
        )
    if not job.requeue:
        return Said(
            SiteLevel.BLOCKS,
            f"job {job.number} was submitted with --no-requeue",
            "",
            REQUEUES,
            (conf.job_line("--requeue"), conf.policy_line("requeue.even_if_no_requeue: true")),
        )
    return Said(SiteLevel.OK, f"job {job.number} is a batch job that may be requeued")


def _start(site: Site) -> Said:
    named = conf.programs(site.config, "EpilogSlurmctld")
    if any(map(conf.is_ours, named)):
        return Said(
            SiteLevel.OK,
            "a requeued job starts 2 s after its nodes are clean, and EpilogSlurmctld finishes an interrupted requeue",
        )
    if named:
        return Said(
            SiteLevel.UNKNOWN,
            "EpilogSlurmctld names another program; ftslurm cannot see whether that program also runs ftslurm's",
            "",
            changes=(HOOKS,),
        )
    first = 45 if conf.programs(site.config, "Epilog") else 6
    return Said(
        SiteLevel.COSTS,
        "without EpilogSlurmctld ftrun estimates the start of a requeued job from earlier clean-ups",
        f"a job on one node starts {first} s after its first requeue; a clean-up that takes longer costs {SLURMS_OWN_S} s once;"
        " an interrupted requeue waits until somebody runs `ftslurm requeue --finish`",
        changes=(conf.set_to("EpilogSlurmctld", "/usr/local/lib/ftslurm/epilog_slurmctld"), HOOKS),
    )


def _expedited(site: Site) -> Said | None:
    if conf.release(site.config) < EXPEDITES_FROM:
        return None
    if conf.has(site.config, "SlurmctldParameters", "enable_expedited_requeue"):
        return Said(
            SiteLevel.OK,
            "a job that asks for it starts again 0.1 s after its clean-up",
            changes=(conf.job_line("--requeue=expedite"),),
        )
    return Said(
        SiteLevel.COSTS,
        "the site does not allow expedited requeue, so ftrun sets a start time after the expected end of the clean-up",
        "5.7 s for a requeue instead of the clean-up (2.9 s) and 0.1 s, on a quiet cluster without an Epilog",
        changes=(
            conf.with_words(site.config, "SlurmctldParameters", "enable_expedited_requeue"),
            conf.job_line("--requeue=expedite"),
        ),
    )


def _batch_requeues(site: Site) -> Said | None:
    if not any(conf.programs(site.config, "Prolog")):
        return None
    if "MaxBatchRequeue" not in site.config:
        raise conf.NotSaid("Slurm does not show MaxBatchRequeue")
    most = conf.option({"": f"n={site.config['MaxBatchRequeue']}"}, "", "n", 0)
    if most >= SOME_BAD_NODES:
        return Said(
            SiteLevel.OK,
            f"Slurm holds a job after it has requeued it by itself {most:g} times, for example after a failed Prolog",
        )
    return Said(
        SiteLevel.COSTS,
        f"Slurm holds a job after it has requeued it by itself only {most:g} times, for example after a failed Prolog",
        "such a job waits until an administrator releases it",
        changes=(conf.set_to("MaxBatchRequeue", f"{SOME_BAD_NODES}"),),
    )


def _exit_statuses(key: str, what: str, cost: str) -> conf.Rule:
    def judge(site: Site) -> Said:
        listed = conf.words_said(site.config, key)
        if not listed:
            return Said(SiteLevel.OK, f"Slurm {what} no job for its exit status")
        return Said(
            SiteLevel.COSTS,
            f"Slurm itself {what} a job that ends with {', '.join(listed)}, even if the ladder has decided `fail`",
            cost,
            changes=(conf.set_to(key, ""),),
        )

    return conf.Rule(key, (key,), f'{FACTS}, "Exit statuses of srun"', judge)


def _pace(site: Site) -> Said:
    main = conf.option(site.config, "SchedulerParameters", "sched_interval", SCHED_INTERVAL_S)
    backfill = conf.option(site.config, "SchedulerParameters", "bf_interval", BF_INTERVAL_S)
    if "backfill" not in site.config["SchedulerType"]:
        backfill = -1
    each = min((every for every in (main, backfill) if every > 0), default=math.inf)
    if each <= QUICK_INTERVAL_S:
        return Said(SiteLevel.OK, f"the scheduler looks at waiting jobs at least every {each:g} s")
    often = f"at least every {each:g} s" if each < math.inf else "only when other jobs come and go"
    return Said(
        SiteLevel.COSTS,
        f"the scheduler looks at waiting jobs {often}, and sooner only if other jobs start or end",
        "on an idle cluster a requeue takes longer: 16 to 22 s with sched_interval=60,bf_interval=30",
        changes=(
            conf.with_words(
                site.config, "SchedulerParameters", f"sched_interval={QUICK_INTERVAL_S}", f"bf_interval={QUICK_INTERVAL_S}"
            ),
        ),
    )


def _completing(site: Site) -> Said:
    wait = conf.seconds_said(site.config, "CompleteWait")
    if not wait:
        return Said(SiteLevel.OK, "Slurm starts waiting jobs while others are cleaned up")
    return Said(
        SiteLevel.COSTS,
        "Slurm starts no job while another one is cleaned up",
        f"up to {wait:g} s for each requeue and each donor job",
        changes=(conf.set_to("CompleteWait", "0"),),
    )


def _kill_wait(site: Site) -> Said:
    wait = conf.seconds_said(site.config, "KillWait")
    if wait >= KILL_WAIT_S:
        return Said(SiteLevel.OK, f"the step that carries out a requeue has {wait:g} s before SIGKILL, which is enough")
    watched = max(0.0, wait - 3)
    return Said(
        SiteLevel.COSTS,
        f"SIGKILL follows {wait:g} s after the SIGTERM of a requeue, so the step that carries out the requeue watches the"
        f" clean-up for {watched:g} s instead of 9 s",
        f"ftrun estimates the start less exactly; a start that is too early costs {SLURMS_OWN_S} s",
        changes=(conf.set_to("KillWait", "30"),),
    )


def _append(site: Site) -> Said:
    if site.config["JobFileAppend"] == "1":
        return Said(SiteLevel.OK, "Slurm appends to the output file of a requeued job")
    return Said(
        SiteLevel.COSTS,
        "Slurm truncates the output file of a requeued job, unless the job sets --open-mode=append",
        "ftrun saves 16 MB of each file (logs.keep_bytes), which `ftslurm logs` shows; the rest is lost",
        changes=(conf.job_line("--open-mode=append"), conf.set_to("JobFileAppend", "1")),
    )


# --- nodes that die


def _waits(config: conf.Config) -> str:
    """How long a job waits for Slurm to notice a dead node, in words. Raises: NotSaid."""
    if "SlurmdTimeout" not in config:
        raise conf.NotSaid("Slurm does not show SlurmdTimeout")
    limit = conf.seconds_said(config, "SlurmdTimeout")
    return f"{1.5 * limit:g} to {2 * limit:g} s" if 0 < limit < math.inf else "for ever"


def _slurmd_timeout(site: Site) -> Said:
    limit = conf.seconds_said(site.config, "SlurmdTimeout")
    shorter = (conf.set_to("SlurmdTimeout", f"{SHORT_TIMEOUT_S}"),)
    if not 0 < limit < math.inf:
        return Said(
            SiteLevel.BLOCKS,
            "Slurm never marks a node that does not answer as down, so a job that cannot give it back waits for ever",
            "",
            (Rung.ISOLATED_REQUEUE,),
            shorter,
        )
    if limit <= SHORT_TIMEOUT_S:
        return Said(SiteLevel.OK, f"Slurm notices a dead node after {_waits(site.config)}")
    return Said(
        SiteLevel.COSTS,
        "a requeue waits until Slurm notices a dead node if the job cannot give it back: the batch node, a node of an"
        " exclusive job, and without slurmdbd any node",
        f"{_waits(site.config)} for each such requeue",
        changes=shorter,
    )


def _shrink(site: Site) -> Said:
    if not conf.has(site.config, "SchedulerParameters", "disable_job_shrink"):
        return Said(SiteLevel.OK, "the site allows jobs to give nodes back")
    return Said(
        SiteLevel.COSTS,
        "the site does not allow jobs to give nodes back, so a job keeps its dead nodes, even if it has replaced them or"
        " continues with fewer",
        f"{_waits(site.config)} for a requeue away from a dead node; after a replacement or a shrink Slurm ends a job without"
        " --no-kill when it notices",
        changes=(conf.job_line("--no-kill"), conf.without_word(site.config, "SchedulerParameters", "disable_job_shrink")),
    )


def _accounts(site: Site) -> Said:
    if "slurmdbd" in site.config["AccountingStorageType"]:
        return Said(SiteLevel.OK, "with slurmdbd Slurm accepts changes to a job that has lost a node")
    more = (
        f"; after a job has lost a node, ftrun cannot set a start time for its requeue: {SLURMS_OWN_S} s"
        if conf.release(site.config) < (23, 0, 0)
        else ""
    )
    return Said(
        SiteLevel.COSTS,
        "without slurmdbd a job keeps its dead node until Slurm notices",
        f"{_waits(site.config)} for a requeue away from a dead node, instead of seconds{more}",
        changes=(conf.set_to("AccountingStorageType", "accounting_storage/slurmdbd"),),
    )


def _exclusive(site: Site) -> Said:
    if site.partitions is None:
        raise conf.NotSaid("Slurm does not show its partitions")
    names = [each.name for each in site.partitions if each.exclusive]
    if not names:
        return Said(
            SiteLevel.OK, "no partition makes jobs exclusive; a job can give a dead node back unless it asked for --exclusive"
        )
    shown = f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
    return Said(
        SiteLevel.COSTS,
        f"jobs of {shown} are exclusive (OverSubscribe=EXCLUSIVE) and keep a dead node until Slurm notices",
        f"{_waits(site.config)} for a requeue away from it; Slurm ends a job without --no-kill that has replaced one",
        changes=(conf.job_line("--no-kill"), Change(Whose.ADMIN, "slurm.conf", f"PartitionName={names[0]} OverSubscribe=NO")),
    )


def _message_timeout(site: Site) -> Said:
    limit = conf.seconds_said(site.config, "MessageTimeout")
    if limit <= DEFAULT_MESSAGE_S:
        return Said(SiteLevel.OK, f"slurmctld notices {limit + 1:g} to {limit + 3:g} s after a call that a node does not answer")
    return Said(
        SiteLevel.COSTS,
        "slurmctld waits longer than by default (MessageTimeout) before it notices that a node does not answer",
        f"{limit - DEFAULT_MESSAGE_S:g} s more for each requeue away from a dead node",
        changes=(conf.set_to("MessageTimeout", f"{DEFAULT_MESSAGE_S}"),),
    )


def _private(site: Site) -> Said:
    if not conf.has(site.config, "PrivateData", "nodes"):
        return Said(SiteLevel.OK, "users can see the states of nodes")
    kept = [word for word in conf.words_said(site.config, "PrivateData") if word.lower() != "nodes"]
    return Said(
        SiteLevel.COSTS,
        "users cannot see the states of nodes: ftrun recognises a dead node only by its slurmd, and keeps it in the job",
        f"{_waits(site.config)} for a requeue away from a dead node",
        changes=(conf.set_to("PrivateData", ",".join(kept) or "none"),),
    )


def _return(site: Site) -> Said:
    if site.config["ReturnToService"] != "0":
        return Said(SiteLevel.OK, "a node that was only silent returns to service by itself")
    return Said(
        SiteLevel.COSTS,
        "a node that was down stays down until an administrator resumes it, even if it was only silent",
        "replacements and requeues cannot use these nodes",
        changes=(conf.set_to("ReturnToService", "1"),),
    )


def _unkillable(site: Site) -> Said:
    limit = conf.seconds_said(site.config, "UnkillableStepTimeout")
    if limit <= SLURMS_OWN_S:
        return Said(SiteLevel.OK, f"Slurm drains a node if a process there survives SIGKILL for {limit:g} s")
    return Said(
        SiteLevel.COSTS,
        "a process that survives SIGKILL holds its node, and a requeued job, until Slurm drains the node",
        f"up to {limit:g} s",
        changes=(conf.set_to("UnkillableStepTimeout", "60"),),
    )


_REQUEUED, _121, _CLEAN_UP = (f'{FACTS}, "{name}"' for name in (
    "Changes to a requeued job", "The 121 seconds", "How long a clean-up takes",
))  # fmt: skip
_DIE, _FOR_JOB = f'{FACTS}, "Nodes that die"', f'{FACTS}, "Nodes for a running job"'

RULES = (
    conf.Rule("Slurm's release", ("SLURM_VERSION",), _CLEAN_UP, _release),
    conf.Rule("this job", (), _REQUEUED, _own_job),
    conf.Rule("JobRequeue", ("JobRequeue",), _REQUEUED, _job_requeue),
    conf.Rule("EpilogSlurmctld", ("SLURM_VERSION",), _121, _start),
    conf.Rule("expedited requeue", ("SLURM_VERSION", "SlurmctldParameters"), _121, _expedited),
    conf.Rule("MaxBatchRequeue", ("SLURM_VERSION",), "slurm.conf(5), MaxBatchRequeue", _batch_requeues),
    _exit_statuses("RequeueExit", "requeues", "such a job runs again, whatever the ladder has decided"),
    _exit_statuses("RequeueExitHold", "requeues and holds", "such a job waits until somebody releases it"),
    conf.Rule("scheduling interval", ("SchedulerParameters", "SchedulerType"), "docs/how-it-works.md, When Slurm looks", _pace),
    conf.Rule("CompleteWait", ("CompleteWait",), "slurm.conf(5), CompleteWait", _completing),
    conf.Rule("KillWait", ("KillWait",), _REQUEUED, _kill_wait),
    conf.Rule("JobFileAppend", ("JobFileAppend",), _REQUEUED, _append),
    conf.Rule("SlurmdTimeout", ("SlurmdTimeout",), _CLEAN_UP, _slurmd_timeout),
    conf.Rule("disable_job_shrink", ("SchedulerParameters",), "docs/nodes.md, A node that is cut off", _shrink),
    conf.Rule("slurmdbd", ("AccountingStorageType", "SLURM_VERSION"), _REQUEUED, _accounts),
    conf.Rule("exclusive partitions", (), _FOR_JOB, _exclusive),
    conf.Rule("MessageTimeout", ("MessageTimeout",), _DIE, _message_timeout),
    conf.Rule("PrivateData", ("PrivateData",), "docs/administrators.md, What a site sets", _private),
    conf.Rule("ReturnToService", ("ReturnToService",), "slurm.conf(5), ReturnToService", _return),
    conf.Rule("UnkillableStepTimeout", ("UnkillableStepTimeout",), _DIE, _unkillable),
)  # fmt: skip

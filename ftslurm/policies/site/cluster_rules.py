"""Rules about the site's hooks, about replacements, and about what Slurm confines, hides or limits."""

from __future__ import annotations

from ftslurm.model.rungs import LEAVES
from ftslurm.model.settings.kinds import port_range
from ftslurm.model.site import Change, Said, Site, SiteLevel, Whose
from ftslurm.policies.site import reading as conf
from ftslurm.policies.site.requeue_rules import FACTS, HOOKS

ADMINS = "docs/administrators.md"
SCRIPTS = "/usr/local/lib/ftslurm"
# Time limits of the hooks' own scripts, seconds: `hooks/scripts.py` (a test checks that they are the same).
PROLOG_S, EPILOG_S = 30, 900
# The default of nodes.replacement_wait.
REPLACEMENT_WAIT_S = 300
# LaunchParameters that do not disturb ftrun: tried (tests/live/test_sites.py), or without effect on steps.
HARMLESS = frozenset({"use_interactive_step", "enable_nss_slurm", "disable_send_gids", "send_gids", "slurmstepd_memlock"})


def _hook(key: str, does: str, lost: str, source: str, *instead: Change) -> conf.Rule:
    def judge(site: Site) -> Said:
        named = tuple(program for program in conf.programs(site.config, key) if program not in ("(null)", "none"))
        if any(map(conf.is_ours, named)):
            return Said(SiteLevel.OK, f"{key} of ftslurm {does}")
        if named:
            what = f"{key} names another program; ftslurm cannot see whether that program also runs ftslurm's {key}"
            return Said(SiteLevel.UNKNOWN, what, changes=(HOOKS,))
        ours = conf.set_to(key, f"{SCRIPTS}/{FILES[key]}")
        return Said(SiteLevel.COSTS, f"{key} is not set", lost, changes=(ours, HOOKS, *instead))

    return conf.Rule(key, ("SLURM_VERSION",), source, judge)


FILES = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task_prolog", "HealthCheckProgram": "health_check"}


def _health_interval(site: Site) -> Said | None:
    if not site.config["HealthCheckProgram"]:
        return None
    every = conf.seconds_said(site.config, "HealthCheckInterval")
    if every:
        return Said(SiteLevel.OK, f"nodes are checked every {every:g} s")
    return Said(
        SiteLevel.COSTS,
        "HealthCheckProgram is set, but Slurm never runs it (HealthCheckInterval is 0)",
        "a bad node is found only when a job fails there",
        changes=(conf.set_to("HealthCheckInterval", "300"), conf.set_to("HealthCheckNodeState", "ANY")),
    )


def _no_hold(site: Site) -> Said:
    if conf.has(site.config, "SchedulerParameters", "nohold_on_prolog_fail"):
        return Said(SiteLevel.OK, "a job that the Prolog turns away from a bad node starts on other nodes")
    if not conf.programs(site.config, "Prolog"):
        return Said(SiteLevel.OK, "Prolog is not set, so no job is turned away")
    return Said(
        SiteLevel.COSTS,
        "Slurm holds a job that the Prolog turns away from a bad node",
        "such a job waits until somebody releases it (scontrol release)",
        changes=(conf.with_words(site.config, "SchedulerParameters", "nohold_on_prolog_fail"),),
    )


def _prolog_flags(site: Site) -> Said:
    if conf.has(site.config, "PrologFlags", "Alloc") or conf.has(site.config, "PrologFlags", "Contain"):
        return Said(SiteLevel.OK, "the Prolog checks all nodes of a job, including spares, before the job begins")
    if not conf.programs(site.config, "Prolog"):
        return Said(SiteLevel.OK, "Prolog is not set, so there is no check that spares could miss")
    return Said(
        SiteLevel.COSTS,
        "Slurm does not run the Prolog on a spare node before its first step",
        "a bad spare is found only when it is needed",
        changes=(conf.with_words(site.config, "PrologFlags", "Alloc"),),
    )


def _hook_limits(site: Site) -> Said | None:
    ours = {key for key in ("Prolog", "Epilog") if any(map(conf.is_ours, conf.programs(site.config, key)))}
    if not ours:
        return None
    longest = EPILOG_S if "Epilog" in ours else PROLOG_S
    needs = {"PrologEpilogTimeout": longest, "PrologTimeout": PROLOG_S, "EpilogTimeout": EPILOG_S}
    shown = [key for key in needs if key in site.config and key.removesuffix("Timeout") in (*ours, "PrologEpilog")]
    if not shown:
        raise conf.NotSaid("Slurm does not show PrologEpilogTimeout")
    for key in shown:
        limit = conf.seconds_said(site.config, key)
        if 0 < limit <= needs[key]:
            return Said(
                SiteLevel.COSTS,
                f"Slurm drains a node whose Prolog or Epilog takes longer than {limit:g} s; the hooks of ftslurm may"
                f" take {needs[key]} s",
                "Slurm drains a healthy node when a clean-up or a reset takes long",
                changes=(conf.set_to(key, f"{needs[key] + 60}"),),
            )
    return Said(SiteLevel.OK, "the time limits of Prolog and Epilog are longer than the hooks of ftslurm may take")


# --- replacements


def _nodes(site: Site) -> Said:
    if site.nodes is None or (site.nodes == 0 and not site.admin):
        raise conf.NotSaid("Slurm shows no nodes to you")
    if site.nodes > 1:
        return Said(SiteLevel.OK, f"the cluster has {site.nodes} nodes")
    return Said(SiteLevel.BLOCKS, "the cluster has one node, so a bad one cannot be avoided", "", LEAVES)


def _small_partitions(site: Site) -> Said | None:
    if site.partitions is None:
        raise conf.NotSaid("Slurm does not show its partitions")
    if site.nodes == 1 or not (small := [each.name for each in site.partitions if each.nodes == 1]):
        return None
    return Said(
        SiteLevel.COSTS,
        f"{', '.join(small[:3])} {'has' if len(small) == 1 else 'have'} one node, so a job there cannot avoid a bad one",
        "node-replacement and isolated-requeue there",
        changes=(conf.job_line("--partition=OTHER,..."),),
    )


def _limits(site: Site) -> Said:
    enforced = conf.words_said(site.config, "AccountingStorageEnforce")
    if not {"limits", "qos", "safe"} & {word.lower() for word in enforced}:
        return Said(SiteLevel.OK, "no limit of your account or QOS forbids a donor job beside yours")
    return Said(
        SiteLevel.UNKNOWN,
        "limits of your account or QOS may forbid a donor job (one more node) beside yours; ftrun then uses the next rung",
        "node replacement by a donor job; spare nodes do not need one",
        changes=(conf.shell_line("sacctmgr show assoc user=$USER format=account,qos,maxjobs,maxsubmit,grptres"),),
    )


def _power(site: Site) -> Said:
    idle, boot = conf.seconds_said(site.config, "SuspendTime"), conf.seconds_said(site.config, "ResumeTimeout")
    if not 0 < idle < float("inf") or boot < REPLACEMENT_WAIT_S:
        return Said(SiteLevel.OK, "a node for a donor job is up within nodes.replacement_wait (default: 5 min)")
    return Said(
        SiteLevel.COSTS,
        f"a powered-down node may take {boot:g} s to boot, but ftrun waits only {REPLACEMENT_WAIT_S} s for a replacement",
        "one of node_replacements for each donor job that ftrun gives up",
        changes=(conf.policy_line(f"nodes.replacement_wait: {boot + 60:g}s"),),
    )


def _mpi(site: Site) -> Said:
    default = site.config["MpiDefault"]
    if default.lower() in ("", "none"):
        return Said(SiteLevel.OK, "a step has no MPI plugin unless it asks for one, so it can span a node of a donor job")
    return Said(
        SiteLevel.COSTS,
        f"each step uses the MPI plugin {default}; with `restart_via: step` such a step cannot span two jobs",
        "replacement by donor jobs; spare nodes still work",
        changes=(conf.job_line("--nodes=N+1"), conf.shell_line("ftrun --ft-spares 1 ...")),
    )


def _preempt(site: Site) -> Said:
    mode = site.config["PreemptMode"].upper()
    if "SUSPEND" in mode or "GANG" in mode:
        return Said(
            SiteLevel.COSTS,
            "Slurm may suspend jobs, but it does not suspend a node that a donor job has lent to the suspended job",
            "one of max_restarts, if a node is borrowed and the suspension is longer than lease.time (60 s)",
            changes=(conf.shell_line("ftrun --ft-spares 1 ..."), conf.policy_line("nodes.donor: false")),
        )
    if "CANCEL" in mode:
        return Said(
            SiteLevel.COSTS,
            "preemption ends a job, unless the job's partition or QOS sets another PreemptMode",
            "the job",
            changes=(conf.policy_line("warning.requeue: true"), conf.set_to("PreemptMode", "REQUEUE")),
        )
    return Said(SiteLevel.OK, "preemption does not end a job" if mode not in ("", "OFF") else "Slurm does not preempt jobs")


# --- network


def _ports(site: Site) -> Said:
    try:
        named = port_range(site.config["SrunPortRange"])
    except ValueError:
        raise conf.NotSaid("ftslurm cannot read SrunPortRange") from None
    if named is not None:
        return Said(SiteLevel.OK, f"ftrun listens on a port from {named[0]} to {named[1]}, as srun does")
    return Said(
        SiteLevel.UNKNOWN,
        "ftrun listens on any free port; ftslurm cannot see whether a firewall between the nodes blocks it",
        "",
        changes=(conf.policy_line("nodes.ports: 60000-60100"), conf.set_to("SrunPortRange", "60000-60100")),
    )


def _auth(site: Site) -> Said:
    if site.config["AuthType"] == "auth/munge":
        return Said(SiteLevel.OK, "ftrun sends the secret of a run as a munge credential that only you can read")
    encrypts = site.config.get("TLSType", "")
    if encrypts and not encrypts.endswith("none"):
        return Said(SiteLevel.OK, "srun sends the secret of a run, and Slurm encrypts it (TLS)")
    return Said(
        SiteLevel.COSTS,
        "Slurm does not use munge, so srun sends the secret of a run unencrypted, with the rest of the environment",
        "whoever can read the network can pretend to be your ranks",
        changes=(conf.policy_line("nodes.secret: file"), conf.set_to("TLSType", "tls/s2n")),
    )


# --- what Slurm confines


def _tracking(site: Site) -> Said:
    how = site.config["ProctrackType"].rpartition("/")[2]
    if how == "cgroup":
        return Said(SiteLevel.OK, "Slurm ends every process that a step has started (cgroups); a clean-up takes 3 to 5 s")
    if how == "linuxproc":
        return Said(
            SiteLevel.COSTS,
            "Slurm tracks processes by their parents and does not end a process that has lost its parent",
            "if a shim dies, its ranks run on until the next step on their node; a clean-up takes under 1 s instead of 3 to 5 s",
            changes=(conf.set_to("ProctrackType", "proctrack/cgroup"),),
        )
    return Said(
        SiteLevel.UNKNOWN,
        f"ftslurm was not tried with proctrack/{how}",
        changes=(conf.set_to("ProctrackType", "proctrack/cgroup"),),
    )


def _tasks(site: Site) -> Said:
    plugins = conf.words_said(site.config, "TaskPlugin")
    if any("cgroup" in each for each in plugins):
        return Said(SiteLevel.OK, "Slurm confines the tasks of a job by cgroups, as set in cgroup.conf")
    return Said(
        SiteLevel.COSTS,
        "Slurm does not confine tasks to the memory and devices of their job",
        "another job can use the memory or the devices of yours, and the failure then looks like a fault of the node",
        changes=(conf.set_to("TaskPlugin", "task/cgroup,task/affinity"),),
    )


def _confined(key: str, what: str, lost: str, gpus_only: bool) -> conf.Rule:
    def judge(site: Site) -> Said | None:
        if gpus_only and "GresTypes" in site.config and not conf.words_said(site.config, "GresTypes"):
            return None
        if not any("cgroup" in each for each in conf.words_said(site.config, "TaskPlugin")):
            return None
        if key not in site.config:
            raise conf.NotSaid(f"Slurm does not show {key} of cgroup.conf")
        if site.config[key].lower() == "yes":
            return Said(SiteLevel.OK, f"Slurm confines a job to its own {what}")
        return Said(
            SiteLevel.COSTS,
            f"Slurm does not confine a job to its own {what}",
            lost,
            changes=(Change(Whose.ADMIN, "cgroup.conf", f"{key}=yes"),),
        )

    return conf.Rule(key, ("TaskPlugin",), f"cgroup.conf(5), {key}", judge)


def _memory(site: Site) -> Said:
    counted = "MEMORY" in site.config["SelectTypeParameters"].upper()
    if not counted:
        return Said(SiteLevel.OK, "Slurm does not allocate memory, so it never refuses a second step for lack of memory")
    by_node = site.config.get("DefMemPerNode", "")
    default = by_node not in ("", "UNLIMITED", "0") or site.config.get("DefMemPerCPU", "") not in ("", "UNLIMITED", "0")
    if default:
        return Said(SiteLevel.OK, "Slurm allocates memory; ftrun asks for as much on each node as its first step had")
    return Said(
        SiteLevel.COSTS,
        "Slurm allocates memory, and a job that requests none gets all memory of each node",
        "a donor job then waits for an empty node",
        changes=(conf.job_line("--mem=SIZE"), conf.set_to("DefMemPerCPU", "MEGABYTES")),
    )


def _select(site: Site) -> Said:
    how = site.config["SelectType"].rpartition("/")[2]
    if how in ("cons_tres", "cons_res"):
        return Said(
            SiteLevel.OK, f"ftslurm was tried with select/{how}" if how == "cons_tres" else "steps share nodes by --overlap"
        )
    return Said(
        SiteLevel.UNKNOWN, f"ftslurm was not tried with select/{how}", changes=(conf.set_to("SelectType", "select/cons_tres"),)
    )


def _tmp(site: Site) -> Said:
    keys = [key for key in ("JobContainerType", "NamespaceType") if key in site.config]
    if not keys:
        raise conf.NotSaid("Slurm shows neither JobContainerType nor NamespaceType")
    if not any("tmpfs" in site.config[key] or "linux" in site.config[key] for key in keys):
        return Said(SiteLevel.OK, "files of ranks in /tmp and /dev/shm survive a restart in place")
    return Said(
        SiteLevel.COSTS,
        "each job has its own /tmp and /dev/shm; they survive a restart in place, but not a requeue",
        "on a node that a donor job lends they are new and empty",
        changes=(conf.shell_line("ftrun --ft-spares 1 ..."),),
    )


def _launch(site: Site) -> Said:
    odd = [word for word in conf.words_said(site.config, "LaunchParameters") if word not in HARMLESS]
    if odd:
        return Said(SiteLevel.UNKNOWN, f"ftslurm was not tried with LaunchParameters={','.join(odd)}")
    return Said(SiteLevel.OK, "nothing in LaunchParameters concerns ftrun")


def _bad_exit(site: Site) -> Said:
    return Said(SiteLevel.OK, f"ftrun passes --kill-on-bad-exit and --wait itself (here {site.config['KillOnBadExit'] or '0'})")


_HOOKS = f'{FACTS}, "Prolog, Epilog and TaskProlog"'
_SITE, _REPLACED = f"{ADMINS}, What a site sets", "docs/nodes.md, A node that is replaced"

RULES = (
    _hook("Prolog", "checks each node before a job begins", "a bad node is found only when a job fails there",
          f"{ADMINS}, The hooks", conf.policy_line("nodes.health_command: [/site/check]")),
    _hook("Epilog", "ends what a job leaves behind", "processes and shared memory of one job disturb the next job on the node",
          f"{ADMINS}, The hooks"),
    _hook("TaskProlog", "sets the counters in batch scripts and in steps of plain srun",
          "only ranks of ftrun have MA_SCHEDULE_CNT and MA_PROC_START_CNT", _HOOKS,
          Change(Whose.USER, "job script", 'eval "$(ftslurm env)"')),
    _hook("HealthCheckProgram", "drains bad nodes and resumes them when the fault has gone",
          "bad nodes are found only when jobs fail there, and a person must resume a drained node", f"{ADMINS}, The hooks"),
    conf.Rule("HealthCheckInterval", ("HealthCheckProgram", "HealthCheckInterval"), _HOOKS, _health_interval),
    conf.Rule("nohold_on_prolog_fail", ("SchedulerParameters", "SLURM_VERSION"), _HOOKS, _no_hold),
    conf.Rule("PrologFlags", ("PrologFlags", "SLURM_VERSION"), _HOOKS, _prolog_flags),
    conf.Rule("PrologEpilogTimeout", ("SLURM_VERSION",), _HOOKS, _hook_limits),
    conf.Rule("nodes", (), "docs/ladder.md", _nodes),
    conf.Rule("partitions of one node", (), "docs/ladder.md", _small_partitions),
    conf.Rule("limits", ("AccountingStorageEnforce",), _SITE, _limits),
    conf.Rule("power saving", ("SuspendTime", "ResumeTimeout"), _SITE, _power),
    conf.Rule("MpiDefault", ("MpiDefault",), _REPLACED, _mpi),
    conf.Rule("PreemptMode", ("PreemptMode",), "docs/nodes.md, What Slurm and people do to the job", _preempt),
    conf.Rule("SrunPortRange", ("SrunPortRange",), _SITE, _ports),
    conf.Rule("AuthType", ("AuthType",), "docs/how-it-works.md, Connections and their secret", _auth),
    conf.Rule("ProctrackType", ("ProctrackType",), "docs/nodes.md, A node that is cut off", _tracking),
    conf.Rule("TaskPlugin", ("TaskPlugin",), "slurm.conf(5), TaskPlugin", _tasks),
    _confined("ConstrainDevices", "devices", "another job can use the devices of yours", True),
    _confined("ConstrainRAMSpace", "memory",
              "another job can take the memory of yours, and the kernel then kills your ranks", False),
    conf.Rule("memory", ("SelectTypeParameters",), f'{FACTS}, "Several steps in one allocation"', _memory),
    conf.Rule("SelectType", ("SelectType",), f'{FACTS}, "Clusters for tests"', _select),
    conf.Rule("job_container", (), _SITE, _tmp),
    conf.Rule("LaunchParameters", ("LaunchParameters",), _SITE, _launch),
    conf.Rule("KillOnBadExit", ("KillOnBadExit",), f'{FACTS}, "Exit statuses of srun"', _bad_exit),
)  # fmt: skip

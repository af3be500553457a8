"""The site's hooks, replacements, and what Slurm confines, hides or limits."""

from __future__ import annotations

from ftslurm.model.rungs import Rung
from ftslurm.model.settings.tree import port_range
from ftslurm.model.site import Change, Level, Said, Site, Whose
from ftslurm.policies.site.reading import (
    has,
    is_ours,
    job_line,
    policy_line,
    programs,
    seconds,
    set_to,
    shell_line,
    with_words,
    words,
)  # fmt: skip
from ftslurm.policies.site.requeue_rules import FACTS, HOOKS
from ftslurm.policies.site.rules import NotSaid, Rule

ADMINS = "docs/administrators.md"
SCRIPTS = "/usr/local/lib/ftslurm"
# Limits that the hooks' own scripts keep, seconds: `hooks/install/scripts.py` (a test holds them together).
PROLOG_S, EPILOG_S = 30, 900
# nodes.replacement_wait, by default.
REPLACEMENT_WAIT_S = 300
# Of srun's LaunchParameters, those that do ftrun no harm: tried (tests/live/test_sites.py), or of no weight for steps.
HARMLESS = frozenset({"use_interactive_step", "enable_nss_slurm", "disable_send_gids", "send_gids", "slurmstepd_memlock"})


def _hook(key: str, does: str, lost: str, source: str, *instead: Change) -> Rule:
    def judge(site: Site) -> Said:
        named = tuple(program for program in programs(site.config, key) if program not in ("(null)", "none"))
        if any(map(is_ours, named)):
            return Said(Level.OK, f"{key} of ftslurm {does}")
        if named:
            what = f"there is another {key}, and nobody says whether it runs that of ftslurm as well"
            return Said(Level.UNKNOWN, what, changes=(HOOKS,))
        ours = set_to(key, f"{SCRIPTS}/{FILES[key]}")
        return Said(Level.COSTS, f"there is no {key}", lost, changes=(ours, HOOKS, *instead))

    return Rule(key, ("SLURM_VERSION",), source, judge)


FILES = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task_prolog", "HealthCheckProgram": "health_check"}


def _health_interval(site: Site) -> Said | None:
    if not site.config["HealthCheckProgram"]:
        return None
    every = seconds(site.config, "HealthCheckInterval")
    if every:
        return Said(Level.OK, f"nodes are checked every {every:g} s")
    return Said(
        Level.COSTS,
        "there is a HealthCheckProgram, and Slurm never runs it",
        "bad nodes are met by jobs",
        changes=(set_to("HealthCheckInterval", "300"), set_to("HealthCheckNodeState", "ANY")),
    )


def _no_hold(site: Site) -> Said:
    if has(site.config, "SchedulerParameters", "nohold_on_prolog_fail"):
        return Said(Level.OK, "a job that the Prolog turns away runs elsewhere")
    if not programs(site.config, "Prolog"):
        return Said(Level.OK, "there is no Prolog, so none turns jobs away")
    return Said(
        Level.COSTS,
        "Slurm holds a job that the Prolog turns away from a bad node",
        "such a job waits until somebody releases it",
        changes=(with_words(site.config, "SchedulerParameters", "nohold_on_prolog_fail"),),
    )


def _prolog_flags(site: Site) -> Said:
    if has(site.config, "PrologFlags", "Alloc") or has(site.config, "PrologFlags", "Contain"):
        return Said(Level.OK, "the Prolog checks all nodes of a job before it begins, spares too")
    if not programs(site.config, "Prolog"):
        return Said(Level.OK, "there is no Prolog that spares could miss")
    return Said(
        Level.COSTS,
        "a spare node runs no Prolog before its first step",
        "a bad spare is found when it is needed",
        changes=(with_words(site.config, "PrologFlags", "Alloc"),),
    )


def _hook_limits(site: Site) -> Said | None:
    ours = {key for key in ("Prolog", "Epilog") if any(map(is_ours, programs(site.config, key)))}
    if not ours:
        return None
    longest = EPILOG_S if "Epilog" in ours else PROLOG_S
    needs = {"PrologEpilogTimeout": longest, "PrologTimeout": PROLOG_S, "EpilogTimeout": EPILOG_S}
    shown = [key for key in needs if key in site.config and key.removesuffix("Timeout") in (*ours, "PrologEpilog")]
    if not shown:
        raise NotSaid("Slurm does not show PrologEpilogTimeout")
    for key in shown:
        limit = seconds(site.config, key)
        if 0 < limit <= needs[key]:
            return Said(
                Level.COSTS,
                f"Slurm drains a node whose Prolog or Epilog takes longer than {limit:g} s; the hooks of ftslurm may"
                f" take {needs[key]} s",
                "a healthy node, if a clean-up or a reset takes long",
                changes=(set_to(key, f"{needs[key] + 60}"),),
            )
    return Said(Level.OK, "Prolog and Epilog have the time that the hooks of ftslurm may take")


# --- replacements


def _nodes(site: Site) -> Said:
    if site.nodes is None or (site.nodes == 0 and not site.admin):
        raise NotSaid("Slurm shows no nodes to you")
    if site.nodes > 1:
        return Said(Level.OK, f"the cluster has {site.nodes} nodes")
    rungs = (Rung.NODE_REPLACEMENT, Rung.SHRINK, Rung.ISOLATED_REQUEUE)
    return Said(Level.BLOCKS, "the cluster has one node, so a bad one cannot be avoided", "", rungs)


def _small_partitions(site: Site) -> Said | None:
    if site.partitions is None:
        raise NotSaid("Slurm does not show its partitions")
    if site.nodes == 1 or not (small := [each.name for each in site.partitions if each.nodes == 1]):
        return None
    return Said(
        Level.COSTS,
        f"{', '.join(small[:3])} {'has' if len(small) == 1 else 'have'} one node, so a job there cannot avoid a bad one",
        "node-replacement and isolated-requeue there",
        changes=(job_line("--partition=OTHER,..."),),
    )


def _limits(site: Site) -> Said:
    enforced = words(site.config, "AccountingStorageEnforce")
    if not {"limits", "qos", "safe"} & {word.lower() for word in enforced}:
        return Said(Level.OK, "no limit of your account or QOS forbids a donor job beside yours")
    return Said(
        Level.UNKNOWN,
        "limits of your account or QOS may forbid a donor job (one node more) beside yours; the next rung is taken then",
        "node replacement by a donor; spares need none",
        changes=(shell_line("sacctmgr show assoc user=$USER format=account,qos,maxjobs,maxsubmit,grptres"),),
    )


def _power(site: Site) -> Said:
    idle, boot = seconds(site.config, "SuspendTime"), seconds(site.config, "ResumeTimeout")
    if not 0 < idle < float("inf") or boot < REPLACEMENT_WAIT_S:
        return Said(Level.OK, "a donor's node is up within nodes.replacement_wait, 5 min by default")
    return Said(
        Level.COSTS,
        f"a node that sleeps may take {boot:g} s to boot, and a replacement is waited for {REPLACEMENT_WAIT_S} s only",
        "one of node_replacements, for a donor that is given up",
        changes=(policy_line(f"nodes.replacement_wait: {boot + 60:g}s"),),
    )


def _mpi(site: Site) -> Said:
    default = site.config["MpiDefault"]
    if default.lower() in ("", "none"):
        return Said(Level.OK, "a step has no MPI plugin unless it asks for one, so it may span a donor's node")
    return Said(
        Level.COSTS,
        f"each step has the MPI plugin {default}; with `restart_via: step` it cannot span two jobs",
        "donors, not spares",
        changes=(job_line("--nodes=N+1"), shell_line("ftrun --ft-spares 1 ...")),
    )


def _preempt(site: Site) -> Said:
    mode = site.config["PreemptMode"].upper()
    if "SUSPEND" in mode or "GANG" in mode:
        return Said(
            Level.COSTS,
            "jobs may be suspended, and a node that a donor has lent is not suspended with its job",
            "one of max_restarts, where a node is borrowed and the suspension lasts longer than lease.time (60 s)",
            changes=(shell_line("ftrun --ft-spares 1 ..."), policy_line("nodes.donor: false")),
        )
    if "CANCEL" in mode:
        return Said(
            Level.COSTS,
            "a job that is preempted is over, unless its partition or QOS says otherwise",
            "the job",
            changes=(policy_line("warning.requeue: true"), set_to("PreemptMode", "REQUEUE")),
        )
    return Said(Level.OK, "preemption costs a job nothing" if mode not in ("", "OFF") else "jobs are not preempted")


# --- network


def _ports(site: Site) -> Said:
    try:
        named = port_range(site.config["SrunPortRange"])
    except ValueError:
        raise NotSaid("SrunPortRange cannot be read") from None
    if named is not None:
        return Said(Level.OK, f"ftrun listens on a port of {named[0]} to {named[1]}, as srun does")
    return Said(
        Level.UNKNOWN,
        "ftrun listens on any free port, and nobody says whether a firewall stands between nodes",
        "",
        changes=(policy_line("nodes.ports: 60000-60100"), set_to("SrunPortRange", "60000-60100")),
    )


def _auth(site: Site) -> Said:
    if site.config["AuthType"] == "auth/munge":
        return Said(Level.OK, "the secret of a run travels as a munge credential that only you can read")
    encrypts = site.config.get("TLSType", "")
    if encrypts and not encrypts.endswith("none"):
        return Said(Level.OK, "srun sends the secret of a run itself, and Slurm encrypts what it sends (TLS)")
    return Said(
        Level.COSTS,
        "Slurm does without munge, so srun sends the secret of a run as it sends all environment",
        "who can read that on the network can speak as your ranks do",
        changes=(policy_line("nodes.secret: file"), set_to("TLSType", "tls/s2n")),
    )


# --- what Slurm confines


def _tracking(site: Site) -> Said:
    how = site.config["ProctrackType"].rpartition("/")[2]
    if how == "cgroup":
        return Said(Level.OK, "Slurm ends all that a step has started (cgroups); a clean-up takes 3 to 5 s")
    if how == "linuxproc":
        return Said(
            Level.COSTS,
            "Slurm tracks processes by their parents and does not end those that have lost theirs",
            "ranks that a dead shim leaves run until the next step on their node; a clean-up takes under 1 s instead of 3 to 5 s",
            changes=(set_to("ProctrackType", "proctrack/cgroup"),),
        )
    return Said(
        Level.UNKNOWN, f"ftslurm was not tried with proctrack/{how}", changes=(set_to("ProctrackType", "proctrack/cgroup"),)
    )


def _tasks(site: Site) -> Said:
    plugins = words(site.config, "TaskPlugin")
    if any("cgroup" in each for each in plugins):
        return Said(Level.OK, "Slurm confines the tasks of a job by cgroups, as cgroup.conf says")
    return Said(
        Level.COSTS,
        "Slurm confines no task to the memory and devices of its job",
        "a rank of another job can take the memory or use the devices of yours, and the fault looks like the node's",
        changes=(set_to("TaskPlugin", "task/cgroup,task/affinity"),),
    )


def _confined(key: str, what: str, lost: str, gpus_only: bool) -> Rule:
    def judge(site: Site) -> Said | None:
        if gpus_only and "GresTypes" in site.config and not words(site.config, "GresTypes"):
            return None
        if not any("cgroup" in each for each in words(site.config, "TaskPlugin")):
            return None
        if key not in site.config:
            raise NotSaid(f"Slurm does not show {key} of cgroup.conf")
        if site.config[key].lower() == "yes":
            return Said(Level.OK, f"a job has no more than its own {what}")
        return Said(
            Level.COSTS,
            f"Slurm does not keep a job to its own {what}",
            lost,
            changes=(Change(Whose.ADMIN, "cgroup.conf", f"{key}=yes"),),
        )

    return Rule(key, ("TaskPlugin",), f"cgroup.conf(5), {key}", judge)


def _memory(site: Site) -> Said:
    counted = "MEMORY" in site.config["SelectTypeParameters"].upper()
    if not counted:
        return Said(Level.OK, "memory is not counted, so a second step is never refused for it")
    by_node = site.config.get("DefMemPerNode", "")
    default = by_node not in ("", "UNLIMITED", "0") or site.config.get("DefMemPerCPU", "") not in ("", "UNLIMITED", "0")
    if default:
        return Said(Level.OK, "memory is counted; ftrun asks for it by node, as much as its step first had")
    return Said(
        Level.COSTS,
        "memory is counted, and a job that names none gets all of each node",
        "a donor then waits for an empty node",
        changes=(job_line("--mem=SIZE"), set_to("DefMemPerCPU", "MEGABYTES")),
    )


def _select(site: Site) -> Said:
    how = site.config["SelectType"].rpartition("/")[2]
    if how in ("cons_tres", "cons_res"):
        return Said(Level.OK, f"ftslurm was tried with select/{how}" if how == "cons_tres" else "steps share nodes by --overlap")
    return Said(Level.UNKNOWN, f"ftslurm was not tried with select/{how}", changes=(set_to("SelectType", "select/cons_tres"),))


def _tmp(site: Site) -> Said:
    keys = [key for key in ("JobContainerType", "NamespaceType") if key in site.config]
    if not keys:
        raise NotSaid("Slurm shows neither JobContainerType nor NamespaceType")
    if not any("tmpfs" in site.config[key] or "linux" in site.config[key] for key in keys):
        return Said(Level.OK, "what ranks leave in /tmp and /dev/shm outlives a restart in place")
    return Said(
        Level.COSTS,
        "each job has its own /tmp and /dev/shm, which outlive a restart in place, yet not a change of job",
        "on a node that a donor lends they are new and empty",
        changes=(shell_line("ftrun --ft-spares 1 ..."),),
    )


def _launch(site: Site) -> Said:
    odd = [word for word in words(site.config, "LaunchParameters") if word not in HARMLESS]
    if odd:
        return Said(Level.UNKNOWN, f"ftslurm was not tried with LaunchParameters={','.join(odd)}")
    return Said(Level.OK, "nothing in LaunchParameters concerns ftrun")


def _bad_exit(site: Site) -> Said:
    return Said(Level.OK, f"ftrun passes --kill-on-bad-exit and --wait itself (here {site.config['KillOnBadExit'] or '0'})")


_HOOKS = f'{FACTS}, "Prolog, Epilog and TaskProlog"'
_SITE, _REPLACED = f"{ADMINS}, What a site sets", "docs/nodes.md, A node that is replaced"

RULES = (
    _hook("Prolog", "checks a node before each job", "a bad node is found by the job that fails there", f"{ADMINS}, The hooks",
          policy_line("nodes.health_command: [/site/check]")),
    _hook("Epilog", "ends what a job leaves behind", "processes and shared memory of the job before meet the next one",
          f"{ADMINS}, The hooks"),
    _hook("TaskProlog", "sets the counters in batch scripts and in steps of plain srun",
          "MA_SCHEDULE_CNT and MA_PROC_START_CNT are in the ranks of ftrun alone", _HOOKS,
          Change(Whose.USER, "job script", 'eval "$(ftslurm env)"')),
    _hook("HealthCheckProgram", "drains bad nodes and takes them back", "jobs meet bad nodes, and a drain waits for a person",
          f"{ADMINS}, The hooks"),
    Rule("HealthCheckInterval", ("HealthCheckProgram", "HealthCheckInterval"), _HOOKS, _health_interval),
    Rule("nohold_on_prolog_fail", ("SchedulerParameters", "SLURM_VERSION"), _HOOKS, _no_hold),
    Rule("PrologFlags", ("PrologFlags", "SLURM_VERSION"), _HOOKS, _prolog_flags),
    Rule("PrologEpilogTimeout", ("SLURM_VERSION",), _HOOKS, _hook_limits),
    Rule("nodes", (), "docs/ladder.md", _nodes),
    Rule("partitions of one node", (), "docs/ladder.md", _small_partitions),
    Rule("limits", ("AccountingStorageEnforce",), _SITE, _limits),
    Rule("power saving", ("SuspendTime", "ResumeTimeout"), _SITE, _power),
    Rule("MpiDefault", ("MpiDefault",), _REPLACED, _mpi),
    Rule("PreemptMode", ("PreemptMode",), "docs/nodes.md, What Slurm and people do to the job", _preempt),
    Rule("SrunPortRange", ("SrunPortRange",), _SITE, _ports),
    Rule("AuthType", ("AuthType",), "docs/how-it-works.md, Connections and their secret", _auth),
    Rule("ProctrackType", ("ProctrackType",), "docs/nodes.md, A node that is cut off", _tracking),
    Rule("TaskPlugin", ("TaskPlugin",), "slurm.conf(5), TaskPlugin", _tasks),
    _confined("ConstrainDevices", "devices", "ranks of another job can use the devices of yours", True),
    _confined("ConstrainRAMSpace", "memory", "another job can take the memory of yours, and the kernel ends ranks", False),
    Rule("memory", ("SelectTypeParameters",), f'{FACTS}, "Several steps in one allocation"', _memory),
    Rule("SelectType", ("SelectType",), f'{FACTS}, "Clusters for tests"', _select),
    Rule("job_container", (), _SITE, _tmp),
    Rule("LaunchParameters", ("LaunchParameters",), _SITE, _launch),
    Rule("KillOnBadExit", ("KillOnBadExit",), f'{FACTS}, "Exit statuses of srun"', _bad_exit),
)  # fmt: skip

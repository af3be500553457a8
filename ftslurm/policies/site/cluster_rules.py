"""Checks of the site's hooks, of replacements, and of what Slurm confines, hides or limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ftslurm.model.settings.kinds import port_range
from ftslurm.model.site import Site
from ftslurm.policies.site import reading as conf
from ftslurm.policies.site.reading import Holds, holds

# Time limits of the hooks' own scripts, seconds: `hooks/scripts.py` (a test checks that they are the same).
PROLOG_S, EPILOG_S = 30, 900
# The default of nodes.replacement_wait.
REPLACEMENT_WAIT_S = 300
# LaunchParameters that do not disturb ftrun: tried (tests/live/test_sites.py), or without effect on steps.
HARMLESS = frozenset({"use_interactive_step", "enable_nss_slurm", "disable_send_gids", "send_gids", "slurmstepd_memlock"})


def _hook(key: str, site: Site) -> Holds:
    named = tuple(program for program in conf.programs(site.config, key) if program not in ("(null)", "none"))
    if not named:
        return holds("not set")
    return holds("ours" if any(map(conf.is_ours, named)) else "another")


def _health_interval(site: Site) -> Holds | None:
    if not site.config["HealthCheckProgram"]:
        return None
    every = conf.seconds_said(site.config, "HealthCheckInterval")
    return holds("well" if every else "never", every=every)


def _no_hold(site: Site) -> Holds:
    key, word = "SchedulerParameters", "nohold_on_prolog_fail"
    if conf.has(site.config, key, word):
        return holds("well")
    if not conf.programs(site.config, "Prolog"):
        return holds("no Prolog")
    return holds("holds", line=conf.line_with(site.config, key, word))


def _prolog_flags(site: Site) -> Holds:
    key = "PrologFlags"
    if conf.has(site.config, key, "Alloc") or conf.has(site.config, key, "Contain"):
        return holds("well")
    if not conf.programs(site.config, "Prolog"):
        return holds("no Prolog")
    return holds("late", line=conf.line_with(site.config, key, "Alloc"))


def _hook_limits(site: Site) -> Holds | None:
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
            return holds("short", limit=limit, needs=needs[key], key=key, enough=needs[key] + 60)
    return holds("well")


# --- replacements


def _nodes(site: Site) -> Holds:
    if site.nodes is None or (site.nodes == 0 and not site.admin):
        raise conf.NotSaid("Slurm shows no nodes to you")
    return holds("several" if site.nodes > 1 else "one", nodes=site.nodes)


def _small_partitions(site: Site) -> Holds | None:
    if site.partitions is None:
        raise conf.NotSaid("Slurm does not show its partitions")
    if site.nodes == 1 or not (small := [each.name for each in site.partitions if each.nodes == 1]):
        return None
    return holds("some", shown=f"{', '.join(small[:3])} {'has' if len(small) == 1 else 'have'}")


def _limits(site: Site) -> Holds:
    enforced = conf.words_said(site.config, "AccountingStorageEnforce")
    return holds("enforced" if {"limits", "qos", "safe"} & {word.lower() for word in enforced} else "none")


def _power(site: Site) -> Holds:
    idle, boot = conf.seconds_said(site.config, "SuspendTime"), conf.seconds_said(site.config, "ResumeTimeout")
    late = 0 < idle < float("inf") and boot >= REPLACEMENT_WAIT_S
    return holds("late" if late else "well", boot=boot, enough=boot + 60)


def _mpi(site: Site) -> Holds:
    default = site.config["MpiDefault"]
    return holds("none" if default.lower() in ("", "none") else "some", plugin=default)


def _preempt(site: Site) -> Holds:
    mode = site.config["PreemptMode"].upper()
    if "SUSPEND" in mode or "GANG" in mode:
        return holds("suspends")
    return holds("ends" if "CANCEL" in mode else "requeues" if mode not in ("", "OFF") else "none")


# --- network


def _ports(site: Site) -> Holds:
    try:
        named = port_range(site.config["SrunPortRange"])
    except ValueError:
        raise conf.NotSaid("ftslurm cannot read SrunPortRange") from None
    return holds("any" if named is None else "set", ports=named)


def _auth(site: Site) -> Holds:
    if site.config["AuthType"] == "auth/munge":
        return holds("munge")
    encrypts = site.config.get("TLSType", "")
    return holds("tls" if encrypts and not encrypts.endswith("none") else "plain")


# --- what Slurm confines


def _by_cgroup(site: Site) -> bool:
    return any("cgroup" in each for each in conf.words_said(site.config, "TaskPlugin"))


def _confined(key: str, site: Site) -> Holds | None:
    no_gpus = "GresTypes" in site.config and not conf.words_said(site.config, "GresTypes")
    if (key == "ConstrainDevices" and no_gpus) or not _by_cgroup(site):
        return None
    if key not in site.config:
        raise conf.NotSaid(f"Slurm does not show {key} of cgroup.conf")
    return holds("confines" if site.config[key].lower() == "yes" else "not")


def _memory(site: Site) -> Holds:
    if "MEMORY" not in site.config["SelectTypeParameters"].upper():
        return holds("not counted")
    defaults = {site.config.get(key, "") for key in ("DefMemPerNode", "DefMemPerCPU")}
    return holds("default" if defaults - {"", "UNLIMITED", "0"} else "no default")


def _plugin(key: str, known: tuple[str, ...], site: Site) -> Holds:
    how = site.config[key].rpartition("/")[2]
    return holds(how if how in known else "not tried", how=how)


def _tmp(site: Site) -> Holds:
    shown = [site.config[key] for key in ("JobContainerType", "NamespaceType") if key in site.config]
    if not shown:
        raise conf.NotSaid("Slurm shows neither JobContainerType nor NamespaceType")
    return holds("own" if any("tmpfs" in each or "linux" in each for each in shown) else "none")


def _launch(site: Site) -> Holds:
    odd = [word for word in conf.words_said(site.config, "LaunchParameters") if word not in HARMLESS]
    return holds("not tried" if odd else "well", odd=",".join(odd))


JUDGES: Mapping[str, Callable[[Site], Holds | None]] = {
    **{key: partial(_hook, key) for key in ("Prolog", "Epilog", "TaskProlog", "HealthCheckProgram")},
    "HealthCheckInterval": _health_interval, "nohold_on_prolog_fail": _no_hold, "PrologFlags": _prolog_flags,
    "PrologEpilogTimeout": _hook_limits, "nodes": _nodes, "partitions of one node": _small_partitions, "limits": _limits,
    "power saving": _power, "MpiDefault": _mpi, "PreemptMode": _preempt, "SrunPortRange": _ports, "AuthType": _auth,
    "ProctrackType": partial(_plugin, "ProctrackType", ("cgroup", "linuxproc")),
    "TaskPlugin": lambda site: holds("confines" if _by_cgroup(site) else "not"),
    "ConstrainDevices": partial(_confined, "ConstrainDevices"), "ConstrainRAMSpace": partial(_confined, "ConstrainRAMSpace"),
    "memory": _memory, "SelectType": partial(_plugin, "SelectType", ("cons_tres", "cons_res")), "job_container": _tmp,
    "LaunchParameters": _launch,
    "KillOnBadExit": lambda site: holds("well", here=site.config["KillOnBadExit"] or "0"),
}  # fmt: skip

"""The lines for slurm.conf, beside what stands there already. Pure.

Source: slurm.conf(5) and src/common/read_config.c of 22.05 to 26.05: Prolog, Epilog and EpilogSlurmctld may stand there
several times from 24.05 on; Prolog and Epilog take a glob on all of them; TaskProlog and HealthCheckProgram are one program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftslurm.hooks.install.scripts import KEYS, LIMITS_S

_REPEATABLE_FROM = (24, 5)
_RECONFIGURE_IS_RESTART = (23, 11)
_REPEATABLE = frozenset({"Prolog", "Epilog", "EpilogSlurmctld"})
_GLOB = frozenset({"Prolog", "Epilog"})
_NO_HOLD = "nohold_on_prolog_fail"
_SHORT_S = 30


def head_lines(folder: str, config: str, known: Mapping[str, str] | None) -> list[str]:
    """What comes before the lines may be used, and what makes Slurm use them. known: of `scontrol show config`, None without
    an answer. Seen: slurmd drains a node on which the file that Prolog names is not there.
    """
    return [
        f"# scripts in {folder}, settings in {config}; first run this on every node and on slurmctld's host, or install into a",
        "# folder that all of them see: a node on which slurm.conf names a Prolog that is not there is drained by Slurm.",
        f"# {config} is read on each node by itself; a node without it runs on the defaults.",
        *_activation(known or {}),
    ]


def _activation(config: Mapping[str, str]) -> list[str]:
    """Until 23.11, where a reconfigure starts the daemon anew, slurmctld looks once, as it starts, whether there is an
    EpilogSlurmctld. Seen: 22.05.8 runs it only after a restart, 24.11.5 and 26.05 after a reconfigure; docs/slurm-facts.md,
    "Prolog, Epilog and TaskProlog".
    """
    named = any(re.fullmatch(r"EpilogSlurmctld(\[\d+\])?", name) and value for name, value in config.items())
    if named or _version(config) >= _RECONFIGURE_IS_RESTART:
        return ["# For slurm.conf, then `scontrol reconfigure`:"]
    before = "" if config.get("SLURM_VERSION") else "before Slurm 23.11 also "
    return [
        f"# For slurm.conf, then `scontrol reconfigure`, and {before}`systemctl restart slurmctld` (jobs go on): without",
        "# the restart this slurmctld never runs EpilogSlurmctld.",
    ]


def conf_lines(folder: str, config: Mapping[str, str] | None) -> list[str]:
    """config: of `scontrol show config`, None if Slurm did not answer. Comments say what to do where a line will not do."""
    lines = [] if config is not None else ["# Slurm did not answer, so what slurm.conf holds already is unknown"]
    known = config or {}
    for name, key in KEYS.items():
        if key:
            lines += _line(key, f"{folder}/{name}", known)
    return [*lines, *_around(known)]


def _line(key: str, ours: str, config: Mapping[str, str]) -> list[str]:
    there = [value for name, value in config.items() if re.fullmatch(rf"{key}(\[\d+\])?", name) and value]
    if ours in there:
        return [f"# already there: {key}={ours}"]
    if not there:
        return [f"{key}={ours}"]
    if key in _REPEATABLE and _version(config) >= _REPEATABLE_FROM:
        return [f"# beside {key}={', '.join(there)}, which stays: all run, in reverse alphabetical order", f"{key}={ours}"]
    if key in _GLOB:
        return [
            f"# {key}={there[0]} is there, and this Slurm takes one line: put links to both into a folder and name",
            f"#   {key}=/etc/slurm/{key.lower()}.d/*   (one that fails stops the rest)",
        ]
    return [f"# {key}={there[0]} is there, and Slurm takes one: call {ours} from it, and mind its exit status"]


def _around(config: Mapping[str, str]) -> list[str]:
    """What the scripts need around them."""
    lines = []
    if config.get("HealthCheckInterval", "0").split(" ")[0] == "0":
        lines += ["HealthCheckInterval=300", "HealthCheckNodeState=ANY"]
    parameters = config.get("SchedulerParameters", "")
    if _NO_HOLD not in parameters:
        lines += [
            "# without it a job that met a bad node waits held until somebody releases it",
            f"SchedulerParameters={parameters + ',' if parameters else ''}{_NO_HOLD}",
        ]
    if not re.search(r"\b(Alloc|Contain)\b", config.get("PrologFlags", ""), re.IGNORECASE):
        flags = config.get("PrologFlags", "")
        lines += ["# checks all nodes of a job before it begins, spares too", f"PrologFlags={f'{flags},' if flags else ''}Alloc"]
    for key, value in config.items():
        found = re.match(r"\d+", value)
        if key in ("PrologEpilogTimeout", "PrologTimeout") and found and 0 < int(found[0]) <= LIMITS_S["prolog"] < 65534:
            lines.append(f"# {key}={found[0]} is not above the Prolog's own limit of {_SHORT_S} s: Slurm would drain the node")
        if key in ("PrologEpilogTimeout", "EpilogTimeout") and found and 0 < int(found[0]) <= LIMITS_S["epilog"]:
            lines.append(f"# {key}={found[0]}: `cleanup` and `reset_wait` of the hooks' settings have to end within it")
    return lines


def sudo_lines(folder: str, slurm_user: str) -> list[str]:
    """For an EpilogSlurmctld that is not root's; it reads each ledger as the owner of the job."""
    if slurm_user in ("", "root"):
        return []
    return [
        f"# SlurmUser={slurm_user} becomes a job's owner by sudo; in /etc/sudoers.d/ftslurm on the controller's node:",
        f"#   {slurm_user} ALL=(ALL,!root) NOPASSWD: {folder}/as_owner",
    ]


def _version(config: Mapping[str, str]) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    return (int(found[1]), int(found[2])) if found else (0, 0)

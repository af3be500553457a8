"""The scripts that slurm.conf names, as text: each starts its module in ftslurm.hooks, time-boxed, and fails open.

Exit status 1 comes from one thing only: the module's own word that the node is bad. A Python that is gone, a bug, a time
limit give 0.
"""

from __future__ import annotations

import re
import shlex
from binascii import crc32
from collections.abc import Mapping

from ftslurm.model.folds.history import History, counters_of_node
from ftslurm.model.values import Value
from ftslurm.policies.environment import counters_env, restart_env

# Of a module: the node is bad. Every other status means to the script that all is well.
BAD_NODE_STATUS = 10

# Seconds. Slurm kills a health check after 60 s (slurm.conf(5)); a Prolog should end within MessageTimeout, 10 s by default, and
# takes well under one when all is well. An Epilog may have a chip to reset and a clean-up to wait for.
LIMITS_S: Mapping[str, int] = {"prolog": 30, "epilog": 900, "health_check": 50, "epilog_slurmctld": 700}
TASK_LIMIT_S = 10

# slurmctld starts one for each job that ends or is requeued, however many do at once; each of ours is two Pythons of 27 MB.
SLOTS = 4
# Where the slots are, after StateSaveLocation: the first of these that we and nobody but root may write to, on slurmctld's host.
# Without any each one looks at once.
SLOT_PLACES = "/run/slurmctld /run/slurm /run"


class Script(Value):
    """key: of slurm.conf, empty for a helper."""

    name: str
    key: str
    text: str


KEYS: Mapping[str, str] = {
    "prolog": "Prolog",
    "epilog": "Epilog",
    "task_prolog": "TaskProlog",
    "epilog_slurmctld": "EpilogSlurmctld",
    "health_check": "HealthCheckProgram",
    "as_owner": "",
}
_OWN_FORM = ("task_prolog", "epilog_slurmctld", "as_owner")


def _without_ledger() -> tuple[int, str]:
    """MA_SCHEDULE_CNT of a job that was never requeued, and the lines for a task of a job without a ledger.

    All but that one number is the same whatever happened to such a job. A requeue adds one to it (`schedule_count`), and the
    script does that itself: steps of jobs that never saw ftrun would start a Python for each task to have it added.
    """
    first = counters_of_node(History(), 0, None)
    told = {**counters_env(first), "MA_SCHEDULE_CNT": "$schedule", **restart_env("", "", "")}
    return first.schedule, "".join(f"export {name}={value}\n" for name, value in told.items())


def scripts(folder: str, python: str, config: str, slurm_conf: str, state: str = "") -> tuple[Script, ...]:
    """python: the interpreter that has ftslurm. config: the site's file. state: slurmctld's StateSaveLocation, empty if it is not
    known. Full paths.

    slurm_conf: where it is not at its usual place; slurmctld does not tell EpilogSlurmctld.
    """
    first, without_ledger = _without_ledger()
    values = {
        "folder": shlex.quote(folder), "python": shlex.quote(python), "config": shlex.quote(config),
        "conf": f"SLURM_CONF=${{SLURM_CONF:-{shlex.quote(slurm_conf)}}}\nexport SLURM_CONF\n" if slurm_conf else "",
        "owner_conf": f"SLURM_CONF={shlex.quote(slurm_conf)} " if slurm_conf else "",
        "state": shlex.quote(state) if state else "", "places": SLOT_PLACES, "slots": SLOTS,
        "mark": f"{crc32(f'{folder} {config}'.encode()):08x}",  # two clusters of one host have slots of their own
        "bad": BAD_NODE_STATUS, "first": first, "without_ledger": without_ledger,
    }  # fmt: skip
    return tuple(
        Script(
            name, key, _filled(name, {**values, "key": key or "No line", "name": name, "limit": LIMITS_S.get(name, TASK_LIMIT_S)})
        )
        for name, key in KEYS.items()
    )


def _filled(name: str, values: Mapping[str, object]) -> str:
    text = shell_file(f"{name if name in _OWN_FORM else 'hook'}.sh")
    return re.sub("@([a-z_]+)@", lambda found: str(values[found[1]]), text)


def shell_file(name: str) -> str:
    """A script with `@name@` for what is filled in, or the settings that are written for a site."""
    from importlib import resources  # the hooks themselves need none

    return resources.files("ftslurm.hooks").joinpath("shell").joinpath(name).read_text(encoding="utf-8")

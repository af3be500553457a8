"""Limits of a whole group (an association, a QOS): do they leave room for two jobs beside each other, if nobody else uses them?

Source: scontrol(1), "show assoc_mgr"; sacctmgr(1), GrpJobs and GrpTRES; squeue(1), JOB REASON CODES.
docs/slurm-facts.md, "Nodes for a running job".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

REASON = re.compile(r"(QOS|Assoc)Grp\w+")
_USER = re.compile(r" UserName=\S*\((\d+)\)")
_JOBS = re.compile(r"\bGrpJobs=(\d+)\(")
_TRES = re.compile(r"\bGrpTRES=(\S+)")
_LIMITED = re.compile(r"([\w/:.-]+)=(\d+)\(\d+\)")  # `node=2(2)`; `node=N(2)` has no limit
_RECORD = re.compile(r"^(?=ClusterName=|QOS=)", re.MULTILINE)
_JOB_TRES = re.compile(r"^ *(?:AllocTRES|ReqTRES|TRES)=(\S+)", re.MULTILINE)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
# Memory counts in MB there, and has a unit in the TRES of a job.
_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_JOB = "jobs"


def limits_argv(account: str, qos: str) -> tuple[str, ...]:
    return ("scontrol", "show", "assoc_mgr", f"accounts={account}", f"qos={qos}", "flags=assoc,qos")


def group_limits(text: str, user_id: int) -> dict[str, int]:
    """TRES, or `jobs` -> the least limit of the groups that we are in. text: what `limits_argv` prints."""
    least: dict[str, int] = {}
    for record in _RECORD.split(text):
        user = _USER.search(record.partition("\n")[0])
        if user is not None and int(user[1]) != user_id:
            continue
        found = [(_JOB, number) for number in _JOBS.findall(record)]
        found += [pair for words in _TRES.findall(record) for pair in _LIMITED.findall(words)]
        for name, number in found:
            least[name] = min(int(number), least.get(name, int(number)))
    return least


def taken(text: str) -> Counter[str]:
    """What a job takes of such limits. text: of `scontrol show job`."""
    took: Counter[str] = Counter({_JOB: 1})
    for name, count in _counts(text).items():
        took[name] += count
    return took


def _counts(text: str) -> Mapping[str, int]:
    found = _JOB_TRES.search(text)
    pairs = (word.partition("=")[::2] for word in found[1].split(",")) if found else ()
    return {name: round(float(told[1]) * _UNITS[told[2]]) for name, count in pairs if (told := _COUNT.fullmatch(count))}


def without_room(limits: Mapping[str, int], ours: Counter[str], other: Counter[str]) -> str:
    """A limit that the two jobs exceed together, as sacctmgr takes it; empty if there is none."""
    for name, limit in limits.items():
        if other[name] and ours[name] + other[name] > limit:
            return f"GrpJobs={limit}" if name == _JOB else f"GrpTRES={name}={limit}"
    return ""

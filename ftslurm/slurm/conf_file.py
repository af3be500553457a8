"""slurm.conf as srun and slurmd of this node read it, so that slurmctld need not be asked for what stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# What ftrun needs of it before its ranks start, in Slurm's spelling.
_WANTED = {key.lower(): key for key in ("AuthType", "AuthInfo", "ClusterName", "MpiDefault", "ProctrackType", "SrunPortRange")}
# ClusterName Slurm cannot do without; the default of ProctrackType is its build's. That of the others is known, or none.
_NAMED = {"ClusterName", "ProctrackType"}
# Source: slurm.conf(5), and how Slurm's own programs read it, 22.05 to 26.05: a comment, a line that goes on, pairs.
_COMMENT = re.compile(r"#(?<!\\#).*")  # a text comes first, so Python looks for that alone: 0.3 ms a MB, else 7
_GOES_ON = re.compile(r"\\[ \t\r]*\n")
_PAIR = re.compile(r'(?<!\S)(\w+)\s*=\s*(?:"([^"]*)"|(\S+))')
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)


def read_conf(env: Mapping[str, str]) -> dict[str, str]:
    """Of a few keys what `scontrol show config` says, without those that nobody has set; the latest line counts. Empty where the
    file leaves something open: slurmctld knows then. slurmd names the file in every script and rank, also where slurmctld hands
    it out (configless)."""
    try:
        pairs = list(_pairs(Path(env["SLURM_CONF"])))
    except (KeyError, OSError, ValueError):
        return {}
    known = {_WANTED[key]: value for key, value in pairs if key in _WANTED}
    if not known.keys() >= _NAMED:
        return {}
    return {**known, "ClusterName": known["ClusterName"].lower()}  # as Slurm's programs take it


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """With those of included files in their place. Raises: OSError, ValueError for a name in which Slurm would fill something."""
    for line in _GOES_ON.sub("", _COMMENT.sub("", path.read_text(errors="replace"))).split("\n"):
        if included := _INCLUDE.match(line):
            if "%" in included[1]:
                raise ValueError(included[1])
            yield from _pairs(path.parent / included[1])
        lowered = line.lower()
        if any(key in lowered for key in _WANTED):  # a large site has thousands of lines, of nodes
            for key, quoted, word in _PAIR.findall(line):
                yield key.lower(), quoted or word

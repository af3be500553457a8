"""Which nodes fit a job: asked of Slurm itself, counted where it cannot answer. Pure.

`sbatch --test-only` answers whether a request could ever start, our own job's end awaited; it knows constraints, reservations,
GRES, topology and all else that we would only count. It says the same no for nodes that are down now, and in 22.05 it does not
know the limits of accounts. Source: docs/slurm-facts.md, "Which nodes fit".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ftslurm.model.nodes import fold_nodes
from ftslurm.model.values import Value
from ftslurm.slurm.client import JobState, JobView, NodeState, NodeView
from ftslurm.slurm.commands import more_cpus, options
from ftslurm.slurm.parse import gres_counts

# States of a node that runs nothing and takes a job at once. `IDLE+POWERED_DOWN` boots first, `IDLE+RESERVED` and
# `IDLE+PLANNED` wait for somebody else. Source: sinfo(1), NODE STATE CODES.
_IDLE = frozenset({"IDLE", "IDLE+CLOUD", "IDLE+DYNAMIC_NORM"})
_RESERVED = frozenset({"IDLE+RESERVED"})


def fitting(job: JobView, nodes: Iterable[NodeView], reserved: frozenset[str] | None = None) -> frozenset[str]:
    """Nodes on which the job may run, by what it asks for; those that are down, too: they may come back while it waits.

    reserved: nodes of the job's reservation, None if it is in none or Slurm does not tell.
    """
    return frozenset(node.name for node in nodes if (reserved is None or node.name in reserved) and _fits(job, node))


def idle(job: JobView, nodes: Iterable[NodeView]) -> frozenset[str]:
    """Of `nodes` those that run nothing now."""
    words = _IDLE | (_RESERVED if job.needs.reservation else frozenset())
    return frozenset(node.name for node in nodes if node.state is NodeState.GOOD and node.words in words)


def _fits(job: JobView, node: NodeView) -> bool:
    """What nobody tells of the node does not speak against it."""
    needs, has = job.needs, node.has
    if not node.partitions & {*job.partition.split(",")}:
        return False
    if (has.cpus and needs.min_cpus > has.cpus) or (has.memory_mb and needs.memory_mb > has.memory_mb):
        return False
    if has.gres is not None and any(has.gres.get(name, 0) < number for name, number in gres_counts(needs.gres).items()):
        return False
    return has.features is None or not needs.features or satisfies(needs.features, has.features)


def satisfies(constraint: str, features: frozenset[str]) -> bool:
    """May a node with `features` be among those of a job with this --constraint? With counts ([a*2&b*3]) or a mixture of signs
    any one of the features is enough: Slurm knows better. Source: sbatch(1), --constraint.
    """
    names = {*re.findall(r"[A-Za-z_][\w.:/=-]*", constraint)}
    if "*" in constraint or ("&" in constraint and "|" in constraint):
        return not names or bool(names & features)
    return names <= features if "&" in constraint else not names or bool(names & features)


class FitAsked(Value):
    """What Slurm shows of a waiting job alone: partitions, comma-separated, and the fewest nodes with which it starts. segment:
    its --segment, which only 26.05 shows."""

    partition: str
    least: int
    segment: str = ""


def asked_of(job: JobView, script: str, env: Mapping[str, str]) -> FitAsked:
    """While the job runs Slurm shows the one partition and the number of nodes that it got; `-p small,big` and `-N2-4` stand in
    its script or in SBATCH_PARTITION. A command line of sbatch beats both, so what does not agree with the job is not taken.
    """
    said = _directives(script)
    segment = env.get("SLURM_JOB_SEGMENT_SIZE") or env.get("SBATCH_SEGMENT_SIZE") or said.get("segment", "")
    segment = segment if re.fullmatch("[1-9][0-9]{0,5}", segment) else ""
    if job.state is JobState.PENDING:
        return FitAsked(job.partition, job.node_count, segment)
    partition, nodes = env.get("SBATCH_PARTITION") or said.get("partition", ""), said.get("nodes", "")
    if job.partition not in partition.split(","):
        partition = job.partition
    found = re.fullmatch(r"([1-9]\d{0,5})-(\d{1,6})", nodes)
    inside = found is not None and int(found[1]) <= job.node_count <= int(found[2])
    return FitAsked(partition, int(found[1]) if found is not None and inside else job.node_count, segment)


def _directives(script: str) -> dict[str, str]:
    """`nodes`, `partition` and `segment` of the #SBATCH lines; nothing of a heterogeneous job's."""
    found: dict[str, str] = {}
    for line in script.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break
        if not line.startswith("#SBATCH"):
            continue
        if line.split()[1:2] in (["hetjob"], ["packjob"]):
            return {}
        for option in re.finditer(r"(?:\s-([Np])\s*|\s--(nodes|partition|segment)(?:=|\s+))([^\s\"']+)", line):
            found[option[2] or {"N": "nodes", "p": "partition"}[option[1]]] = option[3]
    return found


def fit_argv(job: JobView, asked: FitAsked, inherited: Mapping[str, str], exclude: Iterable[str]) -> tuple[str, ...]:
    """Could the job start at some time without `exclude`? Asked with what it needs on each node, and without what Slurm does not
    show or what changes with time (limits of time, licenses). The script from stdin. inherited: option -> value, as of the job.
    """
    return (
        "sbatch", "--test-only", f"--nodes={asked.least}", "--output=/dev/null", "--chdir=/tmp",
        *options({
            "partition": asked.partition,
            "segment": asked.segment if asked.segment and not asked.least % int(asked.segment) else "",
            "constraint": job.needs.features, "gres": job.needs.gres, "mincpus": more_cpus(job),
            "mem": f"{job.needs.memory_mb}M" if job.needs.memory_mb else "", "reservation": job.needs.reservation, **inherited,
            "exclude": fold_nodes(exclude),
        }),
    )  # fmt: skip


# What sbatch says of a request that can never start: ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE, those of partition and topology,
# and ESLURM_INVALID_NODE_COUNT. Source: slurm_errno.c, 22.05 to 26.05.
_NEVER = re.compile(r"Requested (?:node|partition|topology) configuration (?:is )?not available|Node count specification invalid")


def fit_answer(status: int | None, text: str) -> bool | None:
    """None: that was no answer to the question."""
    return True if status == 0 else False if status is not None and _NEVER.search(text) else None

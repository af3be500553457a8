"""A step on chosen nodes: what its srun is told in place of the user's own words about nodes and tasks. Pure.

Source: srun(1) for --distribution=arbitrary: tasks are laid out in the order of --nodelist, which may name a node several
times (seen on 22.05, 24.11 and 26.05). With it 26.05 takes no --nodes, nor the variables that mean the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import REPLACED, Component, by_cpu, has_flag, option_value, said, same_share, without
from ftslurm.model.job import Layout, Share
from ftslurm.model.settings.tree import Settings
from ftslurm.model.text import fold_numbers, whole
from ftslurm.model.values import Value, replace

# --- srun --multi-prog: a file that says which rank runs what
# Source: srun(1), MULTIPLE PROGRAM CONFIGURATION, and what multi_prog_get_argv in slurmstepd makes of it: the first line that
# names the rank counts; only whole-line comments; words are split at blanks, and single quotes and backslashes alone protect;
# %t is the rank, %o its place in the line's own list, any other %-pair is removed.

# int() refuses very long numbers, and slurmstepd has no other digits.
_RANKS = "([0-9]{1,18})(?:-([0-9]{1,18}))?"


def parse_multi_prog(text: str, place: str, arguments: tuple[str, ...], tasks: int) -> Mapping[int, tuple[str, ...]]:
    """rank -> argv. `arguments` follow each program's own, as srun does. Raises: UsageError naming place and line."""
    found: dict[int, tuple[str, ...]] = {}
    for number, line in _lines(text):
        where = f"{place}, line {number}"
        ranks, *rest = line.split(None, 1)
        if not rest:
            raise UsageError(f"{where}: a line is `RANKS PROGRAM [ARGUMENTS]`", hint="see srun(1), --multi-prog")
        for offset, rank in _ranks(ranks, tasks, where):
            if rank < tasks and rank not in found:
                found[rank] = (*_words(rest[0], rank, offset, where), *arguments)
    if uncovered := [rank for rank in range(tasks) if rank not in found]:
        raise UsageError(f"{place}: no program for rank {uncovered[0]}", hint="add a line for it, or one for `*`")
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered from 1; a backslash at the end joins the next line."""
    number = 1
    for line in re.split(r"(?<!\\)\n", text):
        joined = line.replace("\\\n", "").strip()
        if joined and not joined.startswith("#"):
            yield number, joined
        number += 1 + line.count("\n")


def _ranks(text: str, tasks: int, where: str) -> Iterator[tuple[int, int]]:
    """(offset, rank) in the order of the list."""
    if text == "*":
        yield from ((rank, rank) for rank in range(tasks))
        return
    offset = 0
    for part in text.split(","):
        bounds = re.fullmatch(_RANKS, part)
        if not bounds:
            raise UsageError(f"{where}: `{text}` is not a valid list of ranks", hint="write it as 0-3,7 or *")
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        for rank in range(low, min(high, tasks) + 1):
            yield offset + rank - low, rank
        offset += 1 + high - low


# What protects, and what is filled in outside of it.
_FILLED = r"""(?s)('[^']*'|\\.)|(%.?|")|\\$"""


def _words(program: str, rank: int, offset: int, where: str) -> tuple[str, ...]:
    known = {"%t": str(rank), "%o": str(offset), '"': r"\""}
    try:
        return tuple(shlex.split(re.sub(_FILLED, lambda found: found[1] or known.get(found[2], "''"), program)))
    except ValueError:
        raise UsageError(f"{where}: a single quote is not closed", hint="quotes come in pairs") from None


_WHERE = ("nodes", "nodelist", "nodefile", "relative", "exclude", "use-min-nodes", "contiguous")
_NAMED = ("nodelist", "nodefile", "relative", "exclude")
_HOW_MANY = ("ntasks", "distribution", "jobid")
# What an option for all tasks would mean to each srun of several by itself.
_PER_TASK = ("%t", "%n", "%s", "%j", "%J", "%A")
# Of the batch script's environment: srun takes them for --nodes and --nodelist.
NOT_WHEN_PLACED = ("SLURM_HOSTFILE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", *REPLACED)


class StepPart(Value):
    """One srun of a step. job: whose node it runs on, 0 for our own. place: `8/0-3,6`, see Channel in shim/connection.py."""

    job: int
    options: tuple[str, ...]
    place: str = ""


def step_parts(
    options: Sequence[str], env: Mapping[str, str], layout: Layout, granted: int, width: int, shares: Sequence[Share] = ()
) -> tuple[StepPart, ...]:
    """The sruns that bring up a step in `layout`. granted: nodes of the allocation. width: of the step that the user asked
    for, 0 where that is srun's to say. shares: by slot, what the ranks there are to have. Raises: UsageError."""
    shares = shares if len(shares) == len(layout.nodes) else ()
    width = width or granted
    if not (layout.lent or layout.chosen or layout.slots):
        return (StepPart(0, _first(options, env, layout, granted, width)),)
    if not layout.slots:
        tasks = _tasks(options, env, len(layout.nodes), granted, width)
        layout = replace(layout, slots=_in_blocks(tasks, len(layout.nodes)))
    found = []
    there = [(job, alike) for job, ranks in layout.parts() for alike in _alike(ranks, options, env, layout, shares)]
    for number, (job, ranks) in enumerate(there):
        names = [layout.node_of(rank) for rank in ranks]
        placed = (f"--ntasks={len(names)}", "--distribution=arbitrary", f"--nodelist={','.join(names)}", "--overlap")
        theirs = [shares[slot] for slot in sorted({layout.slots[rank] for rank in ranks})] if shares else ()
        kept = without(same_share(options, env, theirs, bool(job)), *_WHERE, *_HOW_MANY)
        place = f"{len(layout.slots)}/{fold_numbers(ranks)}" if len(there) > 1 or job else ""
        jobid = (f"--jobid={job}",) if job else ()
        unread = ("--input=none",) if (number or job) and not has_flag(options, "input") else ()
        found.append(StepPart(job, (*kept, *placed, *jobid, *unread), place))
    return tuple(found)


def _alike(
    ranks: tuple[int, ...], options: Sequence[str], env: Mapping[str, str], layout: Layout, shares: Sequence[Share]
) -> Sequence[tuple[int, ...]]:
    """One srun asks for as much memory on each of its nodes: where that is counted by CPU, and nodes have different numbers of
    those, there is one for each number, if several sruns can be one step."""
    if not shares or not by_cpu(options, env) or why_not_over_two_jobs(options, env):
        return [ranks]
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        groups.setdefault(shares[layout.slots[rank]].cpus, []).append(rank)
    return [tuple(group) for group in groups.values()]


def _first(options: Sequence[str], env: Mapping[str, str], layout: Layout, granted: int, width: int) -> tuple[str, ...]:
    count = len(layout.nodes)
    where = (f"--nodes={count}", f"--nodelist={','.join(layout.nodes)}", *_gpus(options, env, count, granted, width))
    if has_flag(options, "ntasks") and count >= width:
        return (*without(options, *_WHERE), *where)
    return (*without(options, *_WHERE, "ntasks"), *where, f"--ntasks={_tasks(options, env, count, granted, width)}")


def _gpus(options: Sequence[str], env: Mapping[str, str], count: int, granted: int, width: int) -> tuple[str, ...]:
    """The script's `--gpus` counts those of spare nodes, which the step has not. How they lie on the nodes is Slurm's choice.
    Raises: UsageError.
    """
    kind, colon, number = env.get("SLURM_GPUS", "").rpartition(":")
    total = whole(number)
    said = any(has_flag(options, name) for name in ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"))
    if said or not total or count >= granted:
        return ()
    if total % granted:
        if granted == width:  # no spares: the next rung tells what the remaining nodes had
            return ()
        raise UsageError(
            f"--gpus={kind}{colon}{total} for {granted} nodes, spares included: cannot tell how many the others have",
            hint="pass --gpus, --gpus-per-node or --gpus-per-task to ftrun",
        )
    return (f"--gpus={kind}{colon}{total // granted * count}",)


def _tasks(options: Sequence[str], env: Mapping[str, str], count: int, granted: int, width: int) -> int:
    """Of the step on `count` nodes: as said to ftrun, else as many on each node as the script asked for. Of a step that was to
    have more nodes, those that are left: where they did not come out even, as many as every node had. Raises: UsageError."""
    if tasks := whole(option_value(options, "ntasks") or ""):
        return _on_fewer(tasks, count, width)
    per_node = option_value(options, "ntasks-per-node") or env.get("SLURM_NTASKS_PER_NODE", "")
    if per_node:
        return (whole(per_node.partition("(")[0]) or 1) * count
    tasks = whole(env.get("SLURM_NTASKS", "")) or granted
    if granted == width:  # no spares: they are all the user's
        return _on_fewer(tasks, count, width)
    if not granted or tasks % granted:
        raise UsageError(
            f"{tasks} tasks for {granted} nodes, spares included: cannot tell how many run on the others",
            hint="pass -n or --ntasks-per-node to ftrun",
        )
    return tasks // granted * count


def _on_fewer(tasks: int, count: int, width: int) -> int:
    """Never more on a node than it had among `width`: it has cores and devices for no more."""
    return tasks if count >= width else max(1, tasks // width) * count


def _in_blocks(tasks: int, nodes: int) -> tuple[int, ...]:
    """The slot of each rank, as srun lays out blocks: the first nodes have one more where it does not come out even."""
    each, more = divmod(tasks, nodes)
    return tuple(slot for slot in range(nodes) for _ in range(each + (slot < more)))


def width(options: Sequence[str], granted: int, spares: int) -> int:
    """Nodes of the step; 0 where srun decides. granted: nodes of the allocation, as Slurm gave it.

    Raises: UsageError for more spares than the allocation has nodes to spare, and for nodes named beside spares.
    """
    if spares and (named := [name for name in _NAMED if has_flag(options, name)]):
        raise UsageError(
            f"--{named[0]} cannot be used with spare nodes (nodes.spares): ftrun chooses the nodes of the step",
            hint="pass it to sbatch, or omit --ft-spares",
        )
    given = option_value(options, "nodes")
    nodes = whole(given) if given else granted - spares
    if given and not nodes:
        return 0  # -N2-4
    if nodes and (tasks := whole(option_value(options, "ntasks") or "")):
        nodes = min(nodes, tasks)  # as srun does
    if not spares and (not nodes or nodes > granted):
        return 0  # srun says it in its own words
    if not nodes or nodes < 1 or nodes + spares > granted:
        raise UsageError(
            f"{spares} spare nodes and {nodes if given else 'at least 1'} for the step, but the allocation has {granted}",
            hint=f"ask sbatch for {(nodes if given and nodes else 1) + spares} nodes, or for fewer spares",
        )
    return nodes


def step_width(components: Sequence[Component], granted: int, spares: int) -> int:
    """Nodes of the step, 0 where they are not ours to choose. granted: nodes of the allocation.

    Raises: UsageError, as `width`; and for spares of a step whose nodes are srun's to choose.
    """
    if why := why_not_placed(components):
        if spares:
            raise UsageError(f"{why} can have no spare nodes (nodes.spares)", hint="omit --ft-spares")
        return 0
    return width(components[0].options, granted, spares)


def mpi_default(settings: Settings, config: Mapping[str, str]) -> str:
    """MpiDefault, for `why_not_over_two_jobs`; empty where it is of no weight. config: slurm.conf, as far as it is known.

    Of weight only for programs of which a new step each time is asked, as those with MPI need it, and where donors may come.
    Others start with it and take no notice.
    """
    if settings.restart_via != "step" or not (settings.node_replacement.enabled and settings.nodes.donor):
        return ""
    return config.get("MpiDefault", "")


def why_not_over_two_jobs(options: Sequence[str], env: Mapping[str, str], mpi_default: str = "") -> str:
    """Why no part of the step may run in a donor job; empty if it may. mpi_default: what srun takes where neither an option nor
    the environment says (MpiDefault in slurm.conf)."""
    if said(options, env, "label") is not None:
        return "srun would label its lines from 0 again (--label)"
    if said(options, env, "bcast") is not None:
        return "the program is copied to the nodes of this job alone (--bcast)"
    for name in ("output", "error", "input"):
        value = said(options, env, name) or ""
        if any(mark in value for mark in _PER_TASK):
            return f"--{name}={value} names files by task, step or job, and a donor has its own"
        if whole(value) is not None:
            return f"--{name}={value} means one task, and a donor's srun counts from 0 again"
    if mpi := _mpi(options, env, mpi_default):
        return f"an MPI step cannot span two jobs ({mpi})"
    return "a terminal belongs to one srun (--pty)" if has_flag(options, "pty") else ""


def _mpi(options: Sequence[str], env: Mapping[str, str], default: str) -> str:
    """Who has chosen one of Slurm's ways to start MPI programs; empty if nobody. Source: srun(1)."""
    said = {"--mpi": option_value(options, "mpi"), "SLURM_MPI_TYPE": env.get("SLURM_MPI_TYPE"), "MpiDefault": default}
    name, kind = next(((name, kind) for name, kind in said.items() if kind), ("", "none"))
    return "" if kind == "none" else name


def why_not_placed(components: Sequence[Component]) -> str:
    """Why the nodes of this step are not ours to choose, nor to replace; empty if they are."""
    if len(components) > 1:
        return "a heterogeneous step (`:`)"
    options = components[0].options
    return "a step of a heterogeneous job (--het-group)" if has_flag(options, "het-group") else ""

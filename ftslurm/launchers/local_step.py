"""A small srun for one machine: it starts a command once per task, on nodes that are only names.

    FTSLURM_LOCAL_NODES=local1,local2 FTSLURM_LOCAL_JOB=1 FTSLURM_LOCAL_STEP=0 \\
        python -m ftslurm.launchers.local_step [SRUN OPTIONS] -- COMMAND...

The local launcher runs it where srun would stand. It does what srun 22.05 does inside an allocation of those nodes (its
src/srun/libsrun and src/slurmd/slurmstepd, and the real one beside it in tests/live/test_local_like_srun.py), but for:

- Signals are passed on to every task. srun asks back on SIGINT and kills on SIGTERM and SIGHUP; here what follows from
  a signal is for ftrun and the shims to say. Two SIGINTs within a second kill all, as there.
- Output that nobody labels is not copied: the tasks write to our own descriptors, or to the files, themselves.
- Nodes have as many CPUs as are asked for, so a step is never too large; what asks for resources is accepted and ignored.
- `%t%n`, `%%3t` and `-i in%t` work; srun 22.05 leaves the `%n` in place, truncates the name, and crashes, in this order.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import select
import signal
import sys
import termios
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import NoReturn

from ftslurm.errors import FtslurmError, LaunchFailed, UsageError
from ftslurm.launchers.srun_options import has_flag, option_value
from ftslurm.model.exits import ExitStatus, from_returncode
from ftslurm.model.nodes import expand, fold

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ABORT_WINDOW_S = 1.0  # between two SIGINTs that mean "at once" (_handle_intr in srun_job.c)
EXIT_REPORT_DELAY_S = 0.1  # what ends on a node within this time shares a line (_wait_for_all_tasks in slurmstepd/mgr.c)
MAX_LINE_BYTES = 1024  # longer lines are labelled in pieces (MAX_MSG_LEN in io.h)
MAX_BUFFERED_BYTES = 1 << 20  # of one stream (STDIO_MAX_FREE_BUF messages of MAX_MSG_LEN)
MAX_WIDTH = 10  # of zero padding in file names (fname.c)
READ_BYTES = 1 << 16
ATOMIC_BYTES = select.PIPE_BUF  # poll(2) calls a pipe writable when it takes this much without blocking
RESCAN_S = 0.02  # between two rounds of SIGKILL: the children of the killed become ours once those are reaped
LEFTOVERS_S = 30.0  # then whatever SIGKILL did not end stays behind; Slurm's KillWait
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

# Options that srun also takes from the environment (env_vars in srun/libsrun/opt.c), weakest first. Not the number of
# nodes: whoever chose FTSLURM_LOCAL_NODES has read that.
FROM_ENVIRONMENT: Mapping[str, str] = {
    "SLURM_DISTRIBUTION": "distribution", "SLURM_EXPORT_ENV": "export", "SRUN_EXPORT_ENV": "export",
    "SLURM_LABELIO": "label", "SLURM_NPROCS": "ntasks", "SLURM_NTASKS": "ntasks", "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_OPEN_MODE": "open-mode", "SLURM_STDERRMODE": "error", "SLURM_STDINMODE": "input", "SLURM_STDOUTMODE": "output",
    "SLURM_UNBUFFEREDIO": "unbuffered", "SLURM_REMOTE_CWD": "chdir", "SLURM_WORKING_DIR": "chdir",
}  # fmt: skip
FLAGS = frozenset({"label", "unbuffered"})


class Refused(FtslurmError):
    """What srun refuses, in srun's words, line by line, and with its exit status."""

    def __init__(self, *lines: str, exit_status: int = 1) -> None:
        super().__init__("\n".join(lines))
        self.exit_status = exit_status


# --- where each task runs


@dataclass(frozen=True, slots=True)
class Place:
    """One task: its rank, its node and the slot of that, and its number there."""

    rank: int
    node: str
    slot: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class Layout:
    """nodes: of the step, one a slot. ranks: of each. per_node: --ntasks-per-node, if it holds. notes: what srun remarks."""

    nodes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    per_node: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.ranks))

    def places(self) -> list[Place]:
        """Every task, by rank."""
        slots = enumerate(zip(self.nodes, self.ranks, strict=True))
        places = [Place(rank, node, slot, i) for slot, (node, ranks) in slots for i, rank in enumerate(ranks)]
        return sorted(places, key=lambda place: place.rank)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the options say of nodes and tasks; None is not said. listed: -w as given, wanted: as a set in slot order."""

    least: int | None
    most: int | None
    tasks: int | None
    per_node: int | None
    relative: int
    distribution: str
    listed: tuple[str, ...]
    wanted: tuple[str, ...]
    excluded: tuple[str, ...]
    notes: tuple[str, ...] = ()


def lay_out(options: Sequence[str], nodes: Sequence[str], job: int) -> Layout:
    """Spread the tasks that `options` ask for over `nodes`, the allocation of `job` in slot order.

    Raises: Refused as srun does; UsageError for what is no node list.
    Source: _opt_verify in opt.c, job_step_create_allocation in srun_job.c, slurm_step_layout.c.
    """
    wish = _reconcile(_read_wish(options, nodes))
    chosen = _choose_nodes(wish, nodes, job)
    size = wish.tasks or len(chosen)
    if wish.distribution == "arbitrary":
        return Layout(chosen, _arbitrary(wish, chosen, size), wish.per_node, wish.notes)
    return Layout(chosen, distribute(size, len(chosen), wish.distribution), wish.per_node, wish.notes)


def distribute(tasks: int, nodes: int, distribution: str) -> tuple[tuple[int, ...], ...]:
    """The ranks of each node. distribution: `block`, `cyclic`, or `plane=SIZE`."""
    if distribution == "cyclic":
        return tuple(tuple(range(slot, tasks, nodes)) for slot in range(nodes))
    if distribution.startswith("plane="):
        return _planes(tasks, nodes, int(distribution.removeprefix("plane=")))
    each, more = divmod(tasks, nodes)
    starts = [slot * each + min(slot, more) for slot in range(nodes + 1)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(starts))


def _planes(tasks: int, nodes: int, size: int) -> tuple[tuple[int, ...], ...]:
    """_task_layout_plane: one to each node first, then to each a plane in turn; the numbers go round in planes."""
    counts = [1 if slot < tasks else 0 for slot in range(nodes)]
    left, room = tasks - sum(counts), size - 1
    while left:
        for slot in range(nodes):
            given = min(room, left)
            counts[slot] += given
            left -= given
        room = size
    ranks: list[list[int]] = [[] for _ in range(nodes)]
    rank = 0
    while rank < tasks:
        for slot in range(nodes):
            given = min(size, counts[slot] - len(ranks[slot]))
            ranks[slot] += range(rank, rank + given)
            rank += given
    return tuple(map(tuple, ranks))


def _arbitrary(wish: _Wish, nodes: tuple[str, ...], size: int) -> tuple[tuple[int, ...], ...]:
    if len(wish.listed) != size:
        raise Refused(f"You asked for {size} tasks but hostlist specified {len(wish.listed)} nodes")
    return tuple(tuple(rank for rank, name in enumerate(wish.listed) if name == node) for node in nodes)


def _read_wish(options: Sequence[str], nodes: Sequence[str]) -> _Wish:
    least, most = _read_node_count(option_value(options, "nodes"))
    distribution = _read_distribution(option_value(options, "distribution"))
    listed = expand(option_value(options, "nodelist") or "")
    wanted = tuple(node for node in (*nodes, *sorted(set(listed) - set(nodes))) if node in listed)
    tasks = positive(options, "ntasks")
    if distribution == "arbitrary":
        tasks = tasks or len(listed)
        least, most = (len(wanted), len(wanted)) if least is None else (least, most)
    relative = option_value(options, "relative") or "0"
    if not relative.isdigit():
        raise Refused(f'Invalid numeric value "{relative}" for --relative.')
    return _Wish(
        least, most, tasks, positive(options, "ntasks-per-node"), int(relative), distribution,
        listed, wanted, expand(option_value(options, "exclude") or ""),
    )  # fmt: skip


def positive(options: Sequence[str], name: str) -> int | None:
    """The number given for an option, None if it was not given. Raises: Refused."""
    text = option_value(options, name)
    if text is None:
        return None
    if not text.isdigit() or int(text) == 0:
        raise Refused(f'Invalid numeric value "{text}" for --{name}.')
    return int(text)


def _read_node_count(text: str | None) -> tuple[int | None, int | None]:
    """`2` or `2-4` as (least, most); 0 says nothing. Source: verify_node_count in proc_args.c."""
    if text is None:
        return None, None
    bounds = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", text)
    if not bounds:
        raise Refused(f'"{text}" is not a valid node count', exit_status=255)
    least = int(bounds[1])
    most = least if bounds[2] is None else int(bounds[2])
    if 0 < most < least:
        raise Refused(f"Maximum node count {most} is less than minimum node count {least}", exit_status=255)
    return least or None, most or None


def _read_distribution(text: str | None) -> str:
    """The part about nodes; the parts about sockets and cores, after a colon, mean nothing here, nor does packing."""
    first = re.split("[:,]", (text or "block").lower())[0]
    if first in ("*", "pack", "nopack"):
        return "block"
    if first in ("block", "cyclic", "arbitrary") or re.fullmatch(r"plane=0*[1-9]\d*", first):
        return first
    raise Refused("Invalid --distribution specification", exit_status=255)


def _reconcile(wish: _Wish) -> _Wish:
    """Nodes, tasks and node list made to agree, as far as srun does so before it looks at the allocation."""
    if wish.most and len(wish.wanted) > wish.most and wish.distribution != "arbitrary":
        note = (
            "error: Required nodelist includes more nodes than permitted by max-node count "
            f"({len(wish.wanted)} > {wish.most}). Eliminating nodes from the nodelist."
        )
        wish = replace(wish, wanted=wish.wanted[: wish.most], notes=(*wish.notes, note))
    if wish.wanted:
        wish = replace(wish, least=max(len(wish.wanted), wish.least or 0))
    if wish.least is not None and wish.tasks is not None:
        return _fit_to_tasks(wish, wish.least, wish.tasks)
    if wish.per_node and wish.tasks is None:
        return replace(wish, tasks=(wish.least or 1) * wish.per_node)
    return wish


def _fit_to_tasks(wish: _Wish, least: int, tasks: int) -> _Wish:
    """No more nodes than tasks, and no --ntasks-per-node that contradicts both."""
    most, notes = min(wish.most or tasks, tasks) if wish.most else None, list(wish.notes)
    if tasks < least:
        notes.append(f"Warning: can't run {tasks} processes on {least} nodes, setting nnodes to {tasks}")
        least = most = tasks
    per_node = wish.per_node
    if per_node and per_node != tasks // least:
        if tasks > per_node:
            notes.append(
                f"Warning: can't honor --ntasks-per-node set to {per_node} which doesn't match the requested tasks "
                f"{tasks} with the number of requested nodes {least}. Ignoring --ntasks-per-node."
            )
        per_node = None
    wanted = wish.wanted[:tasks]
    return replace(wish, least=least, most=most, per_node=per_node, wanted=wanted, notes=tuple(notes))


def _choose_nodes(wish: _Wish, nodes: Sequence[str], job: int) -> tuple[str, ...]:
    """The nodes of the step, in slot order: those asked for by name, and the first others as far as need be."""
    candidates = _candidates(wish, nodes, job)
    least = wish.least
    if least is None:
        least = min(wish.tasks or len(candidates), len(candidates))
    count = min(wish.most or least, len(candidates))
    if least > count:
        why = ("Are required nodes explicitly excluded?",) if wish.excluded else ()
        raise Refused(f"Only allocated {count} nodes asked for {least}", *why)
    others = [node for node in candidates if node not in wish.wanted]
    chosen = {*wish.wanted, *others[: max(0, count - len(wish.wanted))]}
    return tuple(node for node in candidates if node in chosen)


def _candidates(wish: _Wish, nodes: Sequence[str], job: int) -> list[str]:
    both = [node for node in wish.excluded if node in wish.wanted]
    if both:
        raise Refused(f"Requested node {both[0]} is also in the excluded list.", "Job not submitted.")
    candidates = [node for node in nodes[wish.relative :] if node not in wish.excluded]
    if wish.relative and wish.relative + (wish.least or 1) > len(nodes):
        asked = f"{wish.relative}+{wish.least or 1}>{len(nodes)}"
        raise Refused(f"--relative and --nodes option incompatible with count of allocated nodes ({asked})")
    if not candidates:
        raise Refused("Hostlist is empty!  Can't run job.")
    if not set(wish.excluded) <= set(nodes):
        raise Refused(f"Unable to create step for job {job}: Invalid node name specified")
    if not set(wish.wanted) <= set(candidates):
        raise Refused(f"Unable to create step for job {job}: Requested node configuration is not available")
    return candidates


# --- what each task is told


@dataclass(frozen=True, slots=True)
class Simulated:
    """The allocation and the step that are played, as the caller says. nodes: of the job, in slot order."""

    nodes: tuple[str, ...]
    job: int
    step: int


def read_simulated(env: Mapping[str, str]) -> Simulated:
    """Raises: UsageError where a FTSLURM_LOCAL_* variable is missing or makes no sense."""
    try:
        nodes = tuple(node for node in env["FTSLURM_LOCAL_NODES"].split(",") if node)
        return Simulated(nodes, int(env["FTSLURM_LOCAL_JOB"]), int(env["FTSLURM_LOCAL_STEP"]))
    except (KeyError, ValueError) as error:
        raise UsageError(f"the simulated allocation is not described: {error}", hint="ftrun sets FTSLURM_LOCAL_*") from None


def options_from(env: Mapping[str, str], options: Sequence[str]) -> tuple[str, ...]:
    """`options` after those that the environment gives: the last one counts."""
    given = [f"--{name}" if name in FLAGS else f"--{name}={env[key]}" for key, name in FROM_ENVIRONMENT.items() if key in env]
    return (*given, *options)


def exported(env: Mapping[str, str], export: str | None) -> dict[str, str]:
    """What --export lets through; Slurm's variables and ours always. Values given never beat the environment under ALL.

    Source: _build_user_env in launch_slurm.c, find_quote_token in env.c.
    """
    words = _split_quoted(export) if export is not None else ["ALL"]
    upper = [word.upper() for word in words]
    end = upper.index("NONE") if "NONE" in upper else len(words)
    chosen = {name: value for name, value in env.items() if name.startswith(("SLURM", "FTSLURM_"))}
    if "ALL" in upper[:end]:
        chosen = dict(env)
    asked: dict[str, str] = {}
    for word in words[:end]:
        name, equals, value = word.partition("=")
        if name and (equals or name in env):
            asked[name] = value if equals else env[name]
    return {name: value for name, value in {**asked, **chosen}.items() if not name.startswith("FTSLURM_LOCAL_")}


def _split_quoted(text: str) -> list[str]:
    """At commas outside of quotes; quotes around a whole word go."""
    words = re.findall(r"""((?:'[^']*'|"[^"]*"|[^,])+)""", text)
    return [word[1:-1] if len(word) > 1 and word[0] in "'\"" and word[-1] == word[0] else word for word in words]


def step_environ(simulated: Simulated, layout: Layout, options: Sequence[str]) -> dict[str, str]:
    """The variables that all tasks of the step share. Source: setup_env in env.c and what real tasks have."""
    counts = fold_counts(len(ranks) for ranks in layout.ranks)
    job_nodes = fold_in_order(simulated.nodes)
    shared: dict[str, object] = {
        "SLURM_JOB_ID": simulated.job, "SLURM_JOBID": simulated.job,
        "SLURM_JOB_NUM_NODES": len(simulated.nodes), "SLURM_JOB_NODELIST": job_nodes, "SLURM_NODELIST": job_nodes,
        "SLURM_STEP_ID": simulated.step, "SLURM_STEPID": simulated.step,
        "SLURM_NNODES": len(layout.nodes), "SLURM_STEP_NUM_NODES": len(layout.nodes),
        "SLURM_STEP_NODELIST": fold_in_order(layout.nodes),
        "SLURM_NTASKS": layout.size, "SLURM_NPROCS": layout.size, "SLURM_STEP_NUM_TASKS": layout.size,
        "SLURM_TASKS_PER_NODE": counts, "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_SUBMIT_DIR": Path.cwd(), "FTSLURM_LOCAL": 1,
    }  # fmt: skip
    optional = {
        "SLURM_NTASKS_PER_NODE": layout.per_node,
        "SLURM_CPUS_PER_TASK": positive(options, "cpus-per-task"),
        "SLURM_JOB_NAME": option_value(options, "job-name"),
    }
    shared |= {name: value for name, value in optional.items() if value is not None}
    return {name: str(value) for name, value in shared.items()}


def task_environ(layout: Layout, place: Place) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(place.rank), "SLURM_LOCALID": str(place.local_rank), "SLURM_NODEID": str(place.slot),
        "SLURMD_NODENAME": place.node, "SLURM_GTIDS": ",".join(map(str, layout.ranks[place.slot])),
    }  # fmt: skip


def fold_counts(counts: Iterable[int]) -> str:
    """2, 2, 1 is `2(x2),1`."""
    runs = [(count, len(list(run))) for count, run in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def fold_in_order(nodes: Sequence[str]) -> str:
    """Folded where that keeps the slots in order: who unfolds it counts on SLURM_NODEID being the index."""
    folded = fold(nodes)
    return folded if expand(folded) == tuple(nodes) else ",".join(nodes)


# --- where input comes from and output goes


class Kind(Enum):
    """What -i, -o and -e can ask for."""

    ALL = "our own stream"
    NONE = "/dev/null"
    ONE = "our own stream for one task, /dev/null for the others"
    FILE = "one file for all"
    EACH = "a file by task or node"


@dataclass(frozen=True, slots=True)
class Target:
    kind: Kind
    task: int = 0
    pattern: str = ""


def _is_other(target: Target, place: Place) -> bool:
    """Was one task named, and not this one?"""
    return target.kind is Kind.ONE and target.task != place.rank


_FIELD = re.compile(r"%(?:(%)|(\d*)([aAjJsutnNx]))")


def read_target(text: str | None, tasks: int) -> Target:
    """Source: fname_create in srun's fname.c."""
    if text is None or text[:3].lower() == "all" or text.startswith("-"):
        return Target(Kind.ALL)
    if text.lower() == "none":
        return Target(Kind.NONE)
    if text.isdigit() and int(text) < tasks:
        return Target(Kind.ONE, task=int(text))
    if "\\" in text:  # srun's way to say that nothing is a pattern
        return Target(Kind.FILE, pattern=text.replace("\\", "").replace("%", "%%"))
    each = any(found[3] in "tnNu" for found in _FIELD.finditer(text) if found[3])
    return Target(Kind.EACH if each else Kind.FILE, pattern=text)


def expand_pattern(pattern: str, values: Mapping[str, str]) -> str:
    """values: by letter. Numbers are padded with zeros to the width given, in `%J` the job's."""

    def value_of(found: re.Match[str]) -> str:
        if found[1]:
            return "%"
        first, dot, rest = values[found[3]].partition(".") if found[3] == "J" else (values[found[3]], "", "")
        width = 0 if found[3] in "uNx" else min(int(found[2] or 0), MAX_WIDTH)
        return first.zfill(width) + dot + rest

    return _FIELD.sub(value_of, pattern)


def pattern_values(env: Mapping[str, str], simulated: Simulated, place: Place, user: str) -> dict[str, str]:
    """The letters of srun(1) "FILENAME PATTERN". Where srun prints its own "no value", so do we: scripts know the names."""
    return {
        "j": str(simulated.job), "J": f"{simulated.job}.{simulated.step}", "s": str(simulated.step),
        "A": env.get("SLURM_ARRAY_JOB_ID", str(simulated.job)), "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "x": env.get("SLURM_JOB_NAME", "(null)"), "u": user,
        "t": str(place.rank), "n": str(place.slot), "N": place.node,
    }  # fmt: skip


class Labeller:
    """The output of one task, line by line behind its rank. Source: write_labelled_message.c, _task_build_message in io.c."""

    def __init__(self, rank: int, width: int, unbuffered: bool = False) -> None:
        self._prefix = b"%*d: " % (width, rank)
        self._unbuffered = unbuffered
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        *lines, self._rest = (self._rest + data).split(b"\n")
        labelled = b"".join(self._label(line + b"\n") for line in lines)
        ready = len(self._rest) if self._unbuffered else len(self._rest) // MAX_LINE_BYTES * MAX_LINE_BYTES
        labelled += self._label(self._rest[:ready])
        self._rest = self._rest[ready:]
        return labelled

    def finish(self) -> bytes:
        """The last line, if no newline ended it."""
        rest, self._rest = self._rest, b""
        return self._label(rest)

    def _label(self, text: bytes) -> bytes:
        pieces = [text[at : at + MAX_LINE_BYTES] for at in range(0, len(text), MAX_LINE_BYTES)]
        return b"".join(self._prefix + piece + (b"" if piece.endswith(b"\n") else b"\n") for piece in pieces)


class Sink:
    """A file of ours that lines go to, one whole line after the other, and never so that the loop would block."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pending = bytearray()
        self._broken = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def full(self) -> bool:
        return len(self.pending) >= MAX_BUFFERED_BYTES

    def add(self, data: bytes) -> None:
        if not self._broken:
            self.pending += data

    def write(self) -> None:
        if not self._poll.poll(0):  # stdout and stderr may be one pipe, and the other has just filled it
            return
        try:
            del self.pending[: os.write(self.fd, self.pending[:ATOMIC_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # the reader went away or the disk is full: srun lets the tasks run on, unheard
            self._broken = True
            self.pending.clear()


@dataclass(slots=True)
class Feed:
    """A task's stdout or stderr on its way to a sink."""

    fd: int
    labeller: Labeller
    sink: Sink
    ended: bool = False

    def read(self) -> None:
        try:
            data = os.read(self.fd, READ_BYTES)
        except OSError:
            data = b""  # EIO: how a pseudo terminal says that its other side is closed
        self.sink.add(self.labeller.feed(data) if data else self.labeller.finish())
        if not data:
            self.close()

    def close(self) -> None:
        if not self.ended:
            os.close(self.fd)
        self.ended = True


class Broadcast:
    """Our stdin for every task that takes it. Who lags behind stops the others only while a bounded buffer is full."""

    def __init__(self, source: int, pipes: Iterable[int]) -> None:
        self.source = source
        self._ended = False
        self._queues: dict[int, deque[bytes]] = {pipe: deque() for pipe in pipes}
        self._waiting: Counter[int] = Counter()
        for pipe in self._queues:
            os.set_blocking(pipe, False)

    @property
    def wants_input(self) -> bool:
        lagging = max((self._waiting[pipe] for pipe in self._queues), default=MAX_BUFFERED_BYTES)
        return not self._ended and lagging < MAX_BUFFERED_BYTES

    def pipes(self) -> list[tuple[int, bool]]:
        """Every pipe whose task still listens, and whether something waits to be written there."""
        return [(pipe, bool(queue)) for pipe, queue in self._queues.items()]

    def read(self) -> None:
        try:
            data = os.read(self.source, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: a terminal, and we are in the background
            data = b""
        self._ended = not data
        for pipe, queue in tuple(self._queues.items()):
            if data:
                queue.append(data)
                self._waiting[pipe] += len(data)
            elif not queue:
                self.drop(pipe)

    def write(self, pipe: int) -> None:
        queue = self._queues[pipe]
        try:
            written = os.write(pipe, queue[0])
        except BlockingIOError:
            return
        except OSError:  # the task closed its end
            self.drop(pipe)
            return
        self._waiting[pipe] -= written
        rest = queue.popleft()[written:]
        if rest:
            queue.appendleft(rest)
        if self._ended and not queue:
            self.drop(pipe)

    def drop(self, pipe: int) -> None:
        """No more for this one; a second call, for two reasons found in one look, does nothing."""
        if self._queues.pop(pipe, None) is not None:
            os.close(pipe)

    def close(self) -> None:
        for pipe in tuple(self._queues):
            self.drop(pipe)


class Stdio:
    """Opens all that the tasks read and write, before the first of them starts."""

    def __init__(self, options: Sequence[str], layout: Layout, folder: Path, name: Callable[[str, Place], str]) -> None:
        """folder: of the tasks. name: the file that a pattern means for a task. Raises: Refused for what cannot be opened."""
        self.feeds: list[Feed] = []
        self.sinks: dict[int, Sink] = {}
        self.broadcast: Broadcast | None = None
        self._layout = layout
        self._folder = folder
        self._name = name
        self._label = has_flag(options, "label")
        self._unbuffered = has_flag(options, "unbuffered")
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _open_mode(option_value(options, "open-mode"))
        self._files: dict[tuple[Path, int], int] = {}
        self._lent: list[int] = []  # the tasks' ends of what we hold the other end of
        places = layout.places()
        stdin = self._inputs(read_target(option_value(options, "input"), layout.size), places)
        outputs = [self._outputs(options, place) for place in places]
        self.of = {place.rank: (stdin[place.rank], *outputs[place.rank]) for place in places}

    def sink(self, fd: int) -> Sink:
        return self.sinks.setdefault(fd, Sink(fd))

    def started(self) -> None:
        """The tasks have theirs; ends that we kept as well would hide when a task closes its own."""
        for fd in (*self._lent, *self._files.values()):
            if fd not in self.sinks and not (self.broadcast and fd == self.broadcast.source):
                os.close(fd)

    def no_more_input(self) -> None:
        if self.broadcast:
            self.broadcast.close()

    def no_more_output(self) -> None:
        for feed in self.feeds:
            feed.close()

    @property
    def flowing(self) -> bool:
        """Is there output that has not arrived?"""
        return any(not feed.ended for feed in self.feeds) or any(sink.pending for sink in self.sinks.values())

    def _outputs(self, options: Sequence[str], place: Place) -> tuple[int, int]:
        size = self._layout.size
        out = read_target(option_value(options, "output"), size)
        asked = option_value(options, "error")
        stdout = self._output(out, 1, 1, place)
        if asked is None:  # -o 1 takes both streams of task 1 to our stdout
            return stdout, self._output(out, 2, 1 if out.kind is Kind.ONE else 2, place)
        return stdout, self._output(read_target(asked, size), 2, 2, place)

    def _output(self, target: Target, stream: int, own: int, place: Place) -> int:
        if target.kind is Kind.NONE or _is_other(target, place):
            return self._silence()
        fd = own
        if target.kind in (Kind.FILE, Kind.EACH):
            fd = self._open(self._path(target, place), self._flags, ("stdin", "stdout", "stderr")[stream])
        return self._labelled(fd, stream, target.kind is Kind.EACH, place) if self._label else fd

    def _labelled(self, fd: int, stream: int, by_node: bool, place: Place) -> int:
        # Files by task or node are written by the node, which knows of its own tasks only (io_create_local_client).
        tasks = len(self._layout.ranks[place.slot]) if by_node else self._layout.size
        reading, writing = raw_terminal() if self._unbuffered and stream == 1 else os.pipe()
        labeller = Labeller(place.rank, len(str(tasks - 1)), self._unbuffered)
        self.feeds.append(Feed(reading, labeller, self.sink(fd)))
        self._lent.append(writing)
        return writing

    def _inputs(self, target: Target, places: Sequence[Place]) -> dict[int, int]:
        if target.kind is Kind.EACH:
            return {place.rank: self._open(self._path(target, place), os.O_RDONLY, "stdin") for place in places}
        readers = [place.rank for place in places if target.kind is not Kind.NONE and not _is_other(target, place)]
        given = {place.rank: self._silence() for place in places if place.rank not in readers}
        if not readers:
            return given
        source = self._open(self._path(target, places[0]), os.O_RDONLY, "stdin") if target.kind is Kind.FILE else 0
        # srun's tasks never have the terminal itself: in their own session they could not become its foreground.
        if len(readers) == 1 and not os.isatty(source):
            return {**given, readers[0]: source}
        pipes = {rank: os.pipe() for rank in readers}
        self.broadcast = Broadcast(source, [writing for _, writing in pipes.values()])
        self._lent += [reading for reading, _ in pipes.values()]
        return {**given, **{rank: reading for rank, (reading, _) in pipes.items()}}

    def _silence(self) -> int:
        return self._open(Path(os.devnull), os.O_RDWR, "null")

    def _path(self, target: Target, place: Place) -> Path:
        """What is one for all srun opens itself, the rest slurmstepd in the folder of the tasks."""
        name = self._name(target.pattern, place)
        return self._folder / name if target.kind is Kind.EACH else Path(name).absolute()

    def _open(self, path: Path, flags: int, what: str) -> int:
        if (path, flags) not in self._files:
            try:
                self._files[path, flags] = os.open(path, flags, 0o666)
            except OSError as error:
                raise Refused(f"Could not open {what} file {path}: {error.strerror}") from None
        return self._files[path, flags]


def _open_mode(text: str | None) -> int:
    """Files are begun anew unless --open-mode says otherwise: JobFileAppend is 0 by default (slurm.conf(5))."""
    mode = {None: "t", "append": "a", "truncate": "t"}.get(text and text.lower(), text)
    if mode not in ("a", "t"):
        raise Refused("Invalid --open-mode specification", exit_status=255)
    return os.O_TRUNC if mode == "t" else 0


def raw_terminal() -> tuple[int, int]:
    """A pseudo terminal that leaves newlines alone, for --unbuffered: C libraries buffer whatever is none."""
    reading, writing = os.openpty()
    mode = termios.tcgetattr(writing)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(writing, termios.TCSANOW, mode)
    return reading, writing


# --- how tasks ended


@dataclass(frozen=True, slots=True)
class Ended:
    place: Place
    status: ExitStatus
    core: bool = False

    def __str__(self) -> str:
        if not self.status.signal:
            return f"Exited with exit code {self.status.code}"
        name = signal.strsignal(self.status.signal) or f"Unknown signal {self.status.signal}"
        return name + (" (core dumped)" if self.core else "")


def describe_exits(ended: Iterable[Ended]) -> list[str]:
    """srun's lines for tasks of one node: one a kind of end, none for success. Source: _task_finish in launch_slurm.c."""
    groups: dict[str, list[Ended]] = {}
    for one in ended:
        if not one.status.ok:
            groups.setdefault(str(one), []).append(one)
    return [
        f"error: {group[0].place.node}: {'task' if len(group) == 1 else 'tasks'} "
        f"{fold_ranks(one.place.rank for one in group)}: {how}"
        for how, group in groups.items()
    ]


def fold_ranks(ranks: Iterable[int]) -> str:
    """0, 1, 2, 5 is `0-2,5`."""
    runs = groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def step_status(statuses: Iterable[ExitStatus]) -> int:
    """srun's own: the highest signal, as 128+n, before the highest exit code."""
    statuses = list(statuses)
    killed_by = max((status.signal for status in statuses), default=0)
    return 128 + killed_by if killed_by else max((status.code for status in statuses), default=0)


class ExitReports:
    """Gathers ends by node until the node's line is due."""

    def __init__(self, layout: Layout) -> None:
        self._running = Counter(place.node for place in layout.places())
        self._ended: dict[str, list[Ended]] = {}
        self._due: dict[str, float] = {}

    def add(self, ended: Ended, now: float) -> None:
        node = ended.place.node
        self._running[node] -= 1
        self._ended.setdefault(node, []).append(ended)
        self._due.setdefault(node, now + EXIT_REPORT_DELAY_S)
        if not self._running[node]:
            self._due[node] = now

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def take(self, now: float) -> list[str]:
        ready = [node for node, due in self._due.items() if due <= now]
        lines = [line for node in ready for line in describe_exits(self._ended.pop(node))]
        for node in ready:
            del self._due[node]
        return lines


# --- at work


@dataclass(frozen=True, slots=True)
class Start:
    """What is started for each task."""

    argv: tuple[str, ...]
    folder: Path
    env: Callable[[Place], dict[str, str]]
    parent: int = field(default_factory=os.getpid)


class Step:
    """One loop over signals, children, input and output."""

    def __init__(self, layout: Layout, stdio: Stdio, start: Start) -> None:
        self._layout = layout
        self._stdio = stdio
        self._start = start
        self._libc = ctypes.CDLL(None)
        self._running: dict[int, Place] = {}
        self._statuses: list[ExitStatus] = []
        self._reports = ExitReports(layout)
        self._wakeup = -1
        self._interrupted_at = -ABORT_WINDOW_S
        self._leftovers_until: float | None = None

    def run(self) -> int:
        """The exit status of the step. Raises: LaunchFailed if not every task could be started."""
        # What a killed shim leaves behind becomes ours to end, as Slurm ends all of a step's processes with its tasks.
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._wakeup = catch_signals()
        # Until exec a child shares our handlers and their pipe: what it got there we would take for ours.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            self._spawn_all(mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._stdio.started()
        while not self._turn(time.monotonic()):
            pass
        return step_status(self._statuses)

    def _turn(self, now: float) -> bool:
        """Look at the children, then wait for something to do; True when all is done."""
        nothing_left = self._reap(now)
        for line in self._reports.take(now):
            self._say(line)
        if self._running:
            self._wait(self._reports.next_due(), now)
            return False
        return self._wind_up(nothing_left, now)

    def _wind_up(self, nothing_left: bool, now: float) -> bool:
        """All tasks have ended: end what they left behind, and let the last of their output out."""
        if self._leftovers_until is None:
            self._leftovers_until = now + LEFTOVERS_S
        late = now >= self._leftovers_until
        self._stdio.no_more_input()
        if late:  # they are beyond SIGKILL, or a process that is none of ours holds a pipe
            self._stdio.no_more_output()
        elif not nothing_left:
            for pid in children(os.getpid()):
                send_signal(pid, signal.SIGKILL)
        if (nothing_left or late) and not self._stdio.flowing:
            return True
        next_look = self._leftovers_until if nothing_left else min(self._leftovers_until, now + RESCAN_S)
        self._wait(None if late else next_look, now)
        return False

    def _wait(self, until: float | None, now: float) -> None:
        """Until something can be read or written, and deal with that."""
        poll = select.poll()
        handlers: dict[int, Callable[[], None]] = {}
        for fd, events, handler in self._interests():
            poll.register(fd, events)
            handlers[fd] = handler
        for fd, _ in poll.poll(None if until is None else max(0.0, until - now) * 1000):
            handlers[fd]()

    def _interests(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        yield self._wakeup, select.POLLIN, self._signalled
        for feed in self._stdio.feeds:
            if not feed.ended and not feed.sink.full:
                yield feed.fd, select.POLLIN, feed.read
        for sink in self._stdio.sinks.values():
            if sink.pending:
                yield sink.fd, select.POLLOUT, sink.write
        if broadcast := self._stdio.broadcast:
            if broadcast.wants_input:
                yield broadcast.source, select.POLLIN, broadcast.read
            for pipe, waiting in broadcast.pipes():
                # Also where nothing is to be written: poll tells when the task has closed its end.
                act = broadcast.write if waiting else broadcast.drop
                yield pipe, select.POLLOUT if waiting else 0, partial(act, pipe)

    def _say(self, line: str) -> None:
        self._stdio.sink(2).add(f"ftrun: {line}\n".encode())

    # --- tasks

    def _spawn_all(self, mask: Iterable[int]) -> None:
        for place in self._layout.places():
            try:
                pid = os.fork()
            except OSError as error:
                self._kill()
                raise LaunchFailed(f"task {place.rank} cannot be started: {error.strerror}", hint="see ulimit -u") from None
            if pid == 0:
                become(self._start, place, self._stdio.of[place.rank], self._libc, mask)
            self._running[pid] = place

    def _reap(self, now: float) -> bool:
        """Take in all that ended. True when no descendant is left: ECHILD of a subreaper is the proof."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if place := self._running.pop(pid, None):
                how = from_returncode(os.waitstatus_to_exitcode(status))
                self._statuses.append(how)
                self._reports.add(Ended(place, how, os.WCOREDUMP(status)), now)

    # --- signals

    def _signalled(self) -> None:
        for number in os.read(self._wakeup, 512):
            if number in FORWARDED:
                self._forward(number, time.monotonic())

    def _forward(self, number: int, now: float) -> None:
        if number == signal.SIGINT:
            if now - self._interrupted_at < ABORT_WINDOW_S:
                self._say("forcing job termination")
                self._kill()
                return
            self._interrupted_at = now
        for pid in self._running:
            send_signal(pid, number)

    def _kill(self) -> None:
        """Every task with its process group; what else it started comes to us and is ended in `_wind_up`."""
        for pid in self._running:
            send_signal(-pid, signal.SIGKILL)
            send_signal(pid, signal.SIGKILL)  # it may not have its own group yet


def become(start: Start, place: Place, fds: tuple[int, int, int], libc: ctypes.CDLL, mask: Iterable[int]) -> NoReturn:
    """In the child: a session of its own, so that a terminal's signals come through us only; then the command.

    Ends with errno where that cannot be executed, as slurmstepd does (exec_task in task.c).
    """
    status = 1
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == start.parent:  # else it died before it could tell
            for number, copy in enumerate([os.dup(fd) for fd in fds]):
                os.dup2(copy, number)
            os.chdir(start.folder)
            restore_signals(mask)
            os.execvpe(start.argv[0], start.argv, start.env(place))
    except OSError as error:
        status = error.errno or status
        text = f"ftrun: error: {place.node}: execve(): {start.argv[0]}: {os.strerror(status)}\n"
        os.write(2, text.encode())
    finally:
        os._exit(status)


def catch_signals() -> int:
    """Queue SIGCHLD and every signal we pass on into a pipe; gives its reading end. What is ignored stays ignored
    (nohup(1)), but for SIGINT, which shells make their background jobs ignore and by which ftrun ends a step."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        if number in (signal.SIGINT, signal.SIGCHLD) or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # reading a terminal from the background shall fail, not stop us
    return reading


def restore_signals(mask: Iterable[int]) -> None:
    signal.set_wakeup_fd(-1)
    # Of these two it is Python's start-up that ignores them.
    for number in (*FORWARDED, signal.SIGCHLD, signal.SIGTTIN, signal.SIGPIPE, signal.SIGXFSZ):
        if number not in FORWARDED or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already; or it changed its user (setuid), which only root could end


def children(parent: int) -> list[int]:
    """By /proc of Linux; what ends meanwhile is left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
        except (OSError, IndexError, ValueError):
            continue
    return found


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "nobody"  # uid_to_string in Slurm's uid.c


def tasks_folder(wanted: str | None) -> tuple[Path, tuple[str, ...]]:
    """Where the tasks run, and what is to be said about it. Source: slurmstepd, which goes to /tmp where it must."""
    folder = Path.cwd() / (wanted or "")
    if os.access(folder, os.X_OK) and folder.is_dir():
        return folder, ()
    why = "Permission denied" if folder.is_dir() else "Not a directory" if folder.exists() else "No such file or directory"
    return Path("/tmp"), (f"error: couldn't chdir to `{folder}': {why}: going to /tmp instead",)  # noqa: S108


def run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Lay out, open, start, and see the step through; its exit status."""
    place_of_dashes = list(argv).index("--") if "--" in argv else len(argv)
    command = tuple(argv[place_of_dashes + 1 :])
    if not command:
        raise Refused("No command given to execute.")
    options = options_from(env, argv[:place_of_dashes])
    simulated = read_simulated(env)
    layout = lay_out(options, simulated.nodes, simulated.job)
    folder, notes = tasks_folder(option_value(options, "chdir"))
    tell(*layout.notes, *notes)
    user = user_name()
    stdio = Stdio(
        options, layout, folder, lambda text, place: expand_pattern(text, pattern_values(env, simulated, place, user))
    )
    shared = exported(env, option_value(options, "export")) | step_environ(simulated, layout, options)
    return Step(layout, stdio, Start(command, folder, lambda place: shared | task_environ(layout, place))).run()


def tell(*lines: str) -> None:
    for line in lines:
        print(f"ftrun: {line}", file=sys.stderr, flush=True)


def reserve_stdio() -> None:
    """0, 1 and 2 exist, so that nothing else can get these numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    reserve_stdio()
    try:
        status = run(sys.argv[1:] if argv is None else argv, os.environ)
    except FtslurmError as error:
        tell(*(f"error: {line}" for line in str(error).splitlines()))
        status = error.exit_status
    except KeyboardInterrupt:  # before the tasks were there to be told
        status = 128 + signal.SIGINT
    sys.exit(status)


if __name__ == "__main__":
    main()

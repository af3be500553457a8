"""How a job's ranks and devices do at this moment: told by the agents, and shown to people, only while somebody watches. Pure.

Nothing here is judged by, and nothing of it is kept. What comes in was written by another process, and is checked field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftslurm.errors import WireError
from ftslurm.model.messages.fields import items, maybe, real, text, truth, whole
from ftslurm.model.values import dataclass

VERSION = 1
TEXT_MAX, NAMES_MAX, RANKS_MAX, DEVICES_MAX = 256, 8, 4096, 1024


@dataclass(frozen=True, slots=True)
class RankLive:
    """One rank. None: not known, or the program does not tell it."""

    rank: int  # as the program calls it
    task: int  # the rank of the task that it is below, another where torchrun starts several below one
    beats: int | None = None  # beats, beat_s: how many heartbeats, and seconds since the last
    beat_s: float | None = None
    step: int | None = None  # step, step_s: the last training step, and seconds since it was done
    step_s: float | None = None
    steps_per_s: float | None = None  # over the last minute at the most
    sections: tuple[str, ...] = ()  # open ones
    cores: float | None = None  # of CPU used by all of its processes
    io_bytes_s: float | None = None  # read and written by them
    collectives: int | None = None  # begun so far
    inside: str = ""  # inside, inside_s: the one it is in, and for how long
    inside_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceLive:
    """health: as DeviceHealth. percent, memory_percent, power_w: as in Utilisation."""

    device: str
    kind: str
    health: str
    codes: tuple[str, ...] = ()
    percent: float | None = None
    memory_percent: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class LiveReported:
    """What the agent of a node tells."""

    ranks: tuple[RankLive, ...]
    devices: tuple[DeviceLive, ...]


@dataclass(frozen=True, slots=True)
class StacksReported:
    """What the ranks of a node are doing, for people. asked: names the request."""

    asked: str
    text: str


@dataclass(frozen=True, slots=True)
class TaskLive:
    """As ftrun knows it. state: starting, running, stopped, `exited with status 1`, ...; connected: its shim is."""

    rank: int
    node: str
    state: str
    connected: bool = True


@dataclass(frozen=True, slots=True)
class NodeLive:
    """heard_s: seconds since anything of the node was heard. told_s: since its agent told of ranks and devices; None: not yet."""

    node: str
    heard_s: float | None
    told_s: float | None
    ranks: tuple[RankLive, ...] = ()
    devices: tuple[DeviceLive, ...] = ()


@dataclass(frozen=True, slots=True)
class Live:
    """The job as an ftrun has it. run: that ftrun (RunBegan). number: goes up with each time it is told. every_s: seconds between
    two of them. at: Unix seconds, by that node's clock. stacks: the last that were asked for, as (asked, node, text)."""

    run: str
    number: int
    at: float
    every_s: float
    tasks: tuple[TaskLive, ...]
    nodes: tuple[NodeLive, ...]
    stacks: tuple[str, str, str] = ("", "", "")


def live_message(ranks: Iterable[RankLive], devices: Iterable[DeviceLive]) -> dict[str, Any]:
    return {"t": "live", "ranks": [_row(rank) for rank in ranks], "devices": [_row(device) for device in devices]}


def live_reported(message: Mapping[str, Any]) -> LiveReported:
    """Raises: WireError."""
    return LiveReported(_ranks(message.get("ranks")), _devices(message.get("devices")))


def to_record(live: Live) -> dict[str, Any]:
    """For a file."""
    nodes = [
        [node.node, node.heard_s, node.told_s, [_row(rank) for rank in node.ranks], [_row(device) for device in node.devices]]
        for node in live.nodes
    ]
    return {
        "v": VERSION, "run": live.run, "number": live.number, "at": live.at, "every_s": live.every_s,
        "tasks": [_row(task) for task in live.tasks], "nodes": nodes, "stacks": list(live.stacks),
    }  # fmt: skip


def from_record(record: Any) -> Live:
    """Raises: WireError."""
    if not isinstance(record, Mapping) or record.get("v") != VERSION:
        raise WireError("it is of another version")
    stacks = _list(record.get("stacks"), 3, text)
    if len(stacks) != 3:
        raise WireError("its stacks are none")
    return Live(
        _text(record.get("run")), _whole(record.get("number")), _real(record.get("at")), _real(record.get("every_s")),
        tuple(_list(record.get("tasks"), 1 << 20, lambda row: TaskLive(*_fields(row, _TASK)))),
        tuple(_list(record.get("nodes"), 1 << 17, _node)), (stacks[0], stacks[1], stacks[2]),
    )  # fmt: skip


def _node(row: Any) -> NodeLive:
    name, heard_s, told_s, ranks, devices = _fields(row, (_text, maybe(_real), maybe(_real), _ranks, _devices))
    return NodeLive(name, heard_s, told_s, ranks, devices)


def _ranks(rows: Any) -> tuple[RankLive, ...]:
    return tuple(_list(rows, RANKS_MAX, lambda row: RankLive(*_fields(row, _RANK))))


def _devices(rows: Any) -> tuple[DeviceLive, ...]:
    return tuple(_list(rows, DEVICES_MAX, lambda row: DeviceLive(*_fields(row, _DEVICE))))


def _row(value: Any) -> list[Any]:
    """The fields in order. Tuples become lists, and floats short."""
    found = (getattr(value, name) for name in value.__match_args__)
    return [round(item, 3) if isinstance(item, float) else list(item) if isinstance(item, tuple) else item for item in found]


Check = Callable[[Any], Any]


def _fields(row: Any, checks: tuple[Check, ...]) -> list[Any]:
    if not isinstance(row, list) or len(row) != len(checks):
        raise WireError(f"a row of {len(checks)} fields was expected")
    return [check(item) for check, item in zip(checks, row, strict=True)]


def _list(rows: Any, most: int, check: Check) -> list[Any]:
    return [check(item) for item in items(rows, most)]


def _text(value: Any) -> str:
    return text(value)[:TEXT_MAX]


def _whole(value: Any) -> int:
    return whole(value, 0, (1 << 64) - 1)


def _real(value: Any) -> float:
    return real(value, 1e18)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_list(value, NAMES_MAX, _text))


_N, _R = maybe(_whole), maybe(_real)
_RANK: tuple[Check, ...] = (_whole, _whole, _N, _R, _N, _R, _R, _texts, _R, _R, _N, _text, _R)
_DEVICE: tuple[Check, ...] = (_text, _text, _text, _texts, _R, _R, _R)
_TASK: tuple[Check, ...] = (_whole, _text, _text, truth)

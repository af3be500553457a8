"""How a job's ranks and devices do at this moment: told by the agents, and shown to people, only while somebody watches. Pure.

Nothing here is judged by, and nothing of it is kept. What comes in was written by another process, and is checked field by field.
"""

from __future__ import annotations

from ftslurm.model.plain import Bounds
from ftslurm.model.values import dataclass

TEXT_MAX, NAMES_MAX = 256, 8  # of what a program calls something
BOUNDS = Bounds(1 << 18, 1 << 64, 1e18)  # stacks are long


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

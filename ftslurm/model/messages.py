"""Messages of shim and agent: dicts off the wire to values, and values to dicts. Framing and proof are the channel's.
With them what a controller leaves to its agents for the case that it dies with its node: all that is needed to go on without it.

What comes in was written by a process of the same user that knows the job's secret, yet is checked field by field: a
shim may be of another version, and a message that is nearly right is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ftslurm.errors import WireError
from ftslurm.model import events as ev
from ftslurm.model import plain
from ftslurm.model.collectives import EntryTimes, RankView, WaitTimes
from ftslurm.model.devices import HealResult, ProbeAnswer
from ftslurm.model.exits import ExitStatus
from ftslurm.model.job import Share, Task
from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.settings.tree import Settings
from ftslurm.model.text import counted
from ftslurm.model.values import Value, field, replace
from ftslurm.model.verdict import Piece

# --- How a job's ranks and devices do at this moment: told by the agents, and shown to people, only while somebody watches. Pure.
#
# Nothing here is judged by, and nothing of it is kept. What comes in was written by another process, and is checked field by
# field.

TEXT_MAX, NAMES_MAX = 256, 8  # of what a program calls something
BOUNDS = Bounds(1 << 18, 1 << 64, 1e18)  # stacks are long


class RankLive(Value):
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


class DeviceLive(Value):
    """health: as DeviceHealth. percent, memory_percent, power_w: as in Utilisation."""

    device: str
    kind: str
    health: str
    codes: tuple[str, ...] = ()
    percent: float | None = None
    memory_percent: float | None = None
    power_w: float | None = None


class LiveReported(Value):
    """What the agent of a node tells."""

    ranks: tuple[RankLive, ...]
    devices: tuple[DeviceLive, ...]


class StacksReported(Value):
    """What the ranks of a node are doing, for people. asked: names the request."""

    asked: str
    text: str


class TaskLive(Value):
    """As ftrun knows it. state: starting, running, stopped, `exited with status 1`, ...; connected: its shim is."""

    rank: int
    node: str
    state: str
    connected: bool = True


class NodeLive(Value):
    """heard_s: seconds since anything of the node was heard. told_s: since its agent told of ranks and devices; None: not yet."""

    node: str
    heard_s: float | None
    told_s: float | None
    ranks: tuple[RankLive, ...] = ()
    devices: tuple[DeviceLive, ...] = ()


class Live(Value):
    """The job as an ftrun has it. run: that ftrun (RunBegan). number: goes up with each time it is told. every_s: seconds between
    two of them. at: Unix seconds, by that node's clock. stacks: the last that were asked for, as (asked, node, text)."""

    run: str
    number: int
    at: float
    every_s: float
    tasks: tuple[TaskLive, ...]
    nodes: tuple[NodeLive, ...]
    stacks: tuple[str, str, str] = ("", "", "")


# --- what a controller leaves to its agents, and what shims and agents say


# So many agents stay; the nodes before one of them would all have to die as well before its turn comes.
STANDBYS = 16


class HandoverPlan(Value):
    """What a standby controller needs to know to take over from the ftrun of a dead batch node."""

    ledger: str  # its file, on the shared file system
    number: int  # number, schedule: of the job, as Slurm counts
    schedule: int
    run: str  # of this ftrun
    job: str  # its name for people
    cluster: str
    batch_node: str  # where the controller is
    nodes: tuple[str, ...]  # of the allocation, in the order of their slots
    settings: Settings
    script: int = 0  # pid of the batch script there, 0 where it is not known

    def place(self, node: str) -> int | None:
        """Of `node` among those that may succeed, from 0; None for one that may not."""
        others = [name for name in self.nodes if name != self.batch_node]
        return others.index(node) if node in others else None

    def before(self, node: str) -> tuple[str, ...]:
        """The nodes whose turn comes before that of `node`, in order."""
        others = [name for name in self.nodes if name != self.batch_node]
        return tuple(others[: others.index(node)])


def to_message(plan: HandoverPlan) -> dict[str, Any]:
    return {"t": "will", **to_plain(plan)}


def from_message(message: Mapping[str, Any]) -> HandoverPlan:
    """Raises: WireError when it is none of ours."""
    return from_plain(HandoverPlan, dict(message), Bounds(1 << 16, signed=True))


Message = Mapping[str, Any]
_ENV_MAX = 1 << 16
_PIECE_MAX = 1 << 20
EVIDENCE_MAX = 1 << 18


class ShimHello(Value):
    """talk: names the conversation, which goes on over connections; has: the last message that arrived over there. launch: of
    ftrun's launches of a step the one that brought it, counted from 1. clock: what the sender's showed, Unix seconds."""

    task: Task
    expected: int
    step: str
    talk: str = ""
    has: int = 0
    launch: int = 0
    clock: float | None = None


class AgentHello(Value):
    """See ShimHello."""

    node: str
    kinds: tuple[str, ...]
    talk: str = ""
    has: int = 0
    clock: float | None = None


class DevicesReported(Value):
    """What a node's probes said, not graded yet. asked: in answer to a `look`. there: kind -> how many devices it has."""

    answer: ProbeAnswer
    asked: bool
    there: Mapping[str, int] = field(default_factory=dict)


ShimReport = ev.RankStarted | ev.RankExited | ev.RankStopped | ev.RankUnstartable | ev.RankSilent | ev.RankWords | ev.SignalSeen
AgentReport = (
    DevicesReported | ev.HealingDone | ev.QuietSeen | ev.UseSampled | ev.EvidenceTaken | ev.BeatOverdue | ev.ProgramSaid
    | ev.StallSeen | ev.RanksCompared | ev.StageSet | ev.Progressed | ev.RanksAlive | LiveReported | StacksReported
)  # fmt: skip


def read_hello(message: Message) -> ShimHello | AgentHello:
    """The first message of a connection. Raises: WireError."""
    kind = _text(message, "t", 20)
    if kind == "agent":
        talk, has = _text(message, "talk", 64), _number(message, "a")
        kinds = tuple(plain.plain_text(item, 256) for item in _list(message, "kinds"))
        return AgentHello(_text(message, "node", 256), kinds, talk, has, sender_clock(message))
    if kind != "hello":
        raise WireError(f"a connection that began with `{kind}`")
    task = Task(
        _number(message, "rank"), _text(message, "node", 256), _number(message, "slot"), _number(message, "local"),
        _text(message, "address", 256), _number(message, "pid"), _number(message, "free_port", high=65535),
        Share(*(_number(message, name) if name in message else 0 for name in ("cpus", "gpus"))),
    )  # fmt: skip
    expected = _number(message, "expected", low=1)
    if task.rank >= expected:
        raise WireError(f"rank {task.rank} is none of a step of {counted(expected, 'task')}")
    return ShimHello(
        task, expected, _text(message, "step", 64), _text(message, "talk", 64), _number(message, "a"),
        _number(message, "launch"), sender_clock(message),
    )  # fmt: skip


def sender_clock(message: Message) -> float | None:
    """What the clock of the sender of a hello or a beat showed, Unix seconds; None if it does not tell. Raises: WireError."""
    return _maybe_seconds(message, "u")


def shim_report(rank: int, message: Message) -> ShimReport:
    """A later message of the shim of `rank`. Raises: WireError."""
    match _text(message, "t", 20):
        case "started":
            return ev.RankStarted(rank, _number(message, "attempt"), _number(message, "pid"))
        case "exited":
            ended = ExitStatus(_number(message, "code", high=255), _number(message, "signal", high=127))
            tail = tuple(_piece(piece) for piece in (_list(message, "tail") if "tail" in message else ()))
            return ev.RankExited(
                rank, _number(message, "attempt"), ended, _seconds(message, "at"), tail,
                oom if isinstance(oom := message.get("oom"), bool) else None,
                message.get("asked") is True,
            )  # fmt: skip
        case "stopped":
            port = _number(message, "free_port", high=65535)
            save = _SAVES.get(str(message.get("save")), ev.Save.NONE)
            return ev.RankStopped(rank, _number(message, "attempt"), from_plain(tuple[int, ...], message.get("left")), port, save)
        case "unstartable":
            status = _number(message, "status", high=255)
            return ev.RankUnstartable(rank, _number(message, "attempt"), status, _text(message, "why", 4096))
        case "words":
            return ev.RankWords(rank, _number(message, "attempt"), tuple(_piece(piece) for piece in _list(message, "tail")))
        case "silent":
            return ev.RankSilent(rank, _seconds(message, "for"))
        case "signal":
            return ev.SignalSeen(_number(message, "number", low=1, high=127), rank)
        case other:
            raise WireError(f"rank {rank} sent an unknown message `{other}`")


def shim_notes(message: Message) -> tuple[int, bytes]:
    """Of the report of an exit: what stands at the end of the rank's notes, and from which place on. Raises: WireError."""
    if "notes" not in message:
        return 0, b""
    place, text = _list(message, "notes") if len(_list(message, "notes")) == 2 else (0, None)
    return plain.bounded_whole(place, 0, 1 << 62, "the place of notes"), plain.plain_text(text, _ENV_MAX, "notes").encode(
        "utf-8", "replace"
    )


def agent_report(message: Message) -> AgentReport:
    """A later message of an agent; an event of a node without its name, which the receiver knows. Raises: WireError.

    attempt: see the events; an agent that watches nobody yet says 0.
    """
    match what := _text(message, "t", 20):
        case "devices":
            answer = from_plain(ProbeAnswer, dict(message), _BOUNDS)
            return DevicesReported(answer, bool(message.get("asked")), _counts(message, "there"))
        case "stall":
            _number(message, "attempt")
            stall = from_plain(ev.StallSeen, {**message, "node": "", "stage_s": None}, _BOUNDS)
            return replace(stall, stage_s=_stage(message))
        case "stage":
            return ev.StageSet(_number(message, "rank"), _stage(message), _number(message, "attempt"))
        case "alive":
            signs = from_plain(tuple[tuple[int, float, str], ...], message.get("ranks"), Bounds(64, real=1e11))
            return ev.RanksAlive("", {rank: (ago_s, what) for rank, ago_s, what in signs}, _number(message, "attempt"))
        case "live":
            return from_plain(LiveReported, dict(message), BOUNDS)
        case "stacks":
            return StacksReported(_text(message, "asked", 64), _text(message, "text", EVIDENCE_MAX))
        case "evidence":
            views = tuple(from_plain(RankView, view) for view in (_list(message, "views") if "views" in message else ()))
            return ev.EvidenceTaken("", _text(message, "text", EVIDENCE_MAX), views, _number(message, "attempt"))
        case _ if kind := _BY_FIELDS.get(what):
            if "attempt" in kind.__match_args__:
                _number(message, "attempt")
            report: AgentReport = from_plain(kind, {**message, "node": ""}, _BOUNDS)
            return report
        case _:
            raise WireError(f"an agent sent an unknown message `{what}`")


# Messages that say a value, field by field.
_BY_FIELDS: Mapping[str, Any] = {
    "healed": ev.HealingDone, "quiet": ev.QuietSeen, "use": ev.UseSampled, "overdue": ev.BeatOverdue, "said": ev.ProgramSaid,
    "compared": ev.RanksCompared, "progress": ev.Progressed,
}  # fmt: skip
_BOUNDS = Bounds(4096)
_SAVES = {each.value: each for each in ev.Save}


def devices_message(answer: ProbeAnswer, asked: bool, there: Mapping[str, int] | None = None) -> dict[str, Any]:
    reports = tuple(replace(report, detail=report.detail[:1000]) for report in answer.reports)
    return {"t": "devices", "reports": to_plain(reports), "error": answer.error[:1000], "asked": asked, "there": there or {}}


def healed_message(results: tuple[HealResult, ...]) -> dict[str, Any]:
    return {"t": "healed", "results": to_plain(tuple(replace(result, how=result.how[:1000]) for result in results))}


def evidence_message(text: str, views: Iterable[RankView] = ()) -> dict[str, Any]:
    return {"t": "evidence", "text": text[:EVIDENCE_MAX], "views": to_plain(tuple(views))}


def alive_message(signs: Mapping[int, tuple[float, str]]) -> dict[str, Any]:
    """signs: rank -> seconds since its last sign of life, and what that was."""
    return {"t": "alive", "ranks": [[rank, round(ago_s, 3), what] for rank, (ago_s, what) in sorted(signs.items())]}


def stall_message(stall: ev.StallSeen) -> dict[str, Any]:
    names = ("probed", "stalled_s", "paused_s", "begun", "usual_s", "stage_s", "reports", "left", "meets_s")
    return {"t": "stall", **{name: getattr(stall, name) for name in names}}


def compared_message(waits: Iterable[WaitTimes], enters: Iterable[EntryTimes]) -> dict[str, Any]:
    return {"t": "compared", "waits": to_plain(tuple(waits)), "enters": to_plain(tuple(enters))}


def live_message(ranks: Sequence[RankLive], devices: Sequence[DeviceLive]) -> dict[str, Any]:
    return {"t": "live", **to_plain(LiveReported(tuple(ranks), tuple(devices)))}


# --- fields


def _piece(piece: Any) -> Piece:
    """`[at, stream, text]`."""
    read = Piece(*from_plain(tuple[float, str, str], piece, Bounds(_PIECE_MAX, real=1e11)))
    if read.stream not in ("out", "err"):
        raise WireError("a malformed piece of output")
    return read


def _text(message: Message, name: str, limit: int) -> str:
    return plain.plain_text(message.get(name), limit, f"`{name}`")


def _number(message: Message, name: str, low: int = 0, high: int = 1 << 62) -> int:
    return plain.bounded_whole(message.get(name), low, high, f"`{name}`")


def _seconds(message: Message, name: str) -> float:
    return plain.real(message.get(name), 1e11, f"`{name}`")


def _maybe_seconds(message: Message, name: str) -> float | None:
    return None if message.get(name) is None else _seconds(message, name)


def _stage(message: Message) -> float | None:
    """-1: switched off."""
    return -1.0 if message.get("stage_s") == -1 else _maybe_seconds(message, "stage_s")


def _list(message: Message, name: str) -> list[Any]:
    return plain.items(message.get(name), _ENV_MAX, f"`{name}`")


def _counts(message: Message, name: str) -> dict[str, int]:
    """Kind -> how many; empty where nothing is said."""
    found = message.get(name, {})
    if not isinstance(found, dict):
        raise WireError(f"`{name}` is not a table of counts")
    return {plain.plain_text(kind, 64): _number(found, kind, low=1) for kind in found}

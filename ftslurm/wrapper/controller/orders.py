"""What shims and agents are told to do: each order goes to the callers that it concerns, as the message that they know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.model import decisions as do
from ftslurm.model.values import Value, field
from ftslurm.wrapper.controller.callers import Callers

# Of the output of all ranks together, twice as much with stderr: what they said last comes to ftrun at once when the attempt
# ends, while it has leases to renew. A rank of 8,192 keeps 8 kB; its first errors are kept beside that.
TAILS_BYTES = 64 << 20


class RankSetup(Value):
    """What a rank is started with, beside its environment; the same for the whole run."""

    programs: Callable[[int], Mapping[int, tuple[str, ...]]] = lambda tasks: {}  # tasks of the step -> rank -> its own argv
    # of a rank, its slot and local rank, the size of the step and the cycle: files of its own, for its shim
    logs: Callable[[int, tuple[int, int], int, int], dict[str, Any]] | None = None
    tail_bytes: int = 0  # of its output are kept for the diagnosis
    silence_s: float = 0.0  # of its output that is noticed, 0: none is
    inject: str = ""  # folder of what the program interface puts into its interpreter
    # a rank's spare begins `after_s` after its last import of `packages`, and may take `memory` bytes
    warm: Mapping[str, object] = field(default_factory=dict)
    alone: bool = True  # Slurm signals the shim alone, and not what is below it
    beat_limits: Mapping[str, Any] = field(default_factory=dict)  # ft_launcher's configuration


Message = Mapping[str, Any]


def _start(callers: Callers, setup: RankSetup, d: do.StartRanks) -> None:
    size = len(callers.shims)
    programs = setup.programs(size)
    same = {
        "t": "start", "attempt": d.attempt, "tail": min(setup.tail_bytes, TAILS_BYTES // max(size, 1)),
        "silence_s": setup.silence_s, "inject": setup.inject, "alone": setup.alone, "warm": dict(setup.warm),
    }  # fmt: skip
    for rank, peer in [item for item in callers.shims.items() if item[0] in d.env]:
        logs = setup.logs(rank, peer.place, size, d.cycle) if setup.logs else None
        peer.send({**same, "env": dict(d.env[rank]), "argv": programs.get(rank), "logs": logs})


def _stop(callers: Callers, _: RankSetup, d: do.StopRanks) -> None:
    told = {"attempt": d.attempt, "grace_s": d.grace_s, "kill_wait_s": d.kill_wait_s, "asked": d.asked, "saves": d.saves}
    _to_shims(callers, {"t": "stop", **told}, d.ranks)


def _signal(callers: Callers, _: RankSetup, d: do.SignalRanks) -> None:
    """Not by the launcher: srun ends a step by SIGKILL when it gets a SIGTERM (seen on 22.05)."""
    _to_shims(callers, {"t": "signal", "number": d.number, "group": d.group}, d.ranks)


def _watch_ranks(callers: Callers, setup: RankSetup, d: do.WatchRanks) -> None:
    limits = dict(setup.beat_limits)
    if d.limits:
        from ftslurm.model.settings.ft_config import with_calculated

        limits = with_calculated(limits, d.limits)
    for node, ranks in d.ranks.items():
        own = {"ranks": [list(rank) for rank in ranks], "step": d.steps.get(node, "")}
        _to_agent(callers, node, {"t": "watch", **own, "quiet_s": d.quiet_s, "limits": limits, "stall_s": d.stall_s})


def _set_intervals(callers: Callers, _: RankSetup, d: do.SetIntervals) -> None:
    _to_shims(callers, {"t": "silence", "after_s": d.silence_s})
    _to_agents(callers, {"t": "quiet", "after_s": d.quiet_s})


def _drill_ranks(callers: Callers, _: RankSetup, d: do.DrillRanks) -> None:
    """`crash` (by status or by signal), `hang`, `slow` (share of the time that a rank may run), `lost`, `end`."""
    given = {"status": d.status, "signal": d.signal, "share": d.share}
    _to_shims(callers, {"t": "drill", "what": d.what, **{name: value for name, value in given.items() if value}}, d.ranks)


def _drill_device(callers: Callers, _: RankSetup, d: do.DrillDevice) -> None:
    report = {"device": d.device, "code": d.code, "severity": d.severity, "kind": d.kind, "heals": d.heals}
    _to_agent(callers, d.node, {"t": "drill", **report})


def _look(callers: Callers, _: RankSetup, d: do.LookAtDevices) -> None:
    for node in [d.node] if d.node else [*callers.agents]:
        _to_agent(callers, node, {"t": "look"})


def _heal(callers: Callers, _: RankSetup, d: do.HealDevices) -> None:
    limits = {"may_reset": d.may_reset, "wait_s": d.wait_s, "reset_wait_s": d.reset_wait_s}
    for node, devices in d.devices.items():
        _to_agent(callers, node, {"t": "heal", "devices": [[device, list(codes)] for device, codes in devices], **limits})


def _end(callers: Callers, _: RankSetup, d: do.EndStep) -> None:
    """Then nothing that they say counts any more."""
    _to_shims(callers, {"t": "end", "status": d.status, "forget": d.forget})
    callers.farewell()


def _to_shims(callers: Callers, message: Message, ranks: Sequence[int] | None = None) -> None:
    for rank, peer in list(callers.shims.items()):
        if ranks is None or rank in ranks:
            peer.send(message)


def _to_agents(callers: Callers, message: Message) -> None:
    for peer in list(callers.agents.values()):
        peer.send(message)


def _to_agent(callers: Callers, node: str, message: Message) -> None:
    if node in callers.agents:
        callers.agents[node].send(message)


ORDERS: Mapping[type, Callable[[Callers, RankSetup, Any], None]] = {
    do.StartRanks: _start,
    do.StopRanks: _stop,
    do.SignalRanks: _signal,
    do.WatchRanks: _watch_ranks,
    do.SampleUse: lambda callers, _, d: _to_agents(callers, {"t": "use", "window_s": d.window_s}),
    do.TakeEvidence: lambda callers, _, d: _to_agents(callers, {"t": "evidence", "limit_s": d.limit_s}),
    do.AskWords: lambda callers, *_: _to_shims(callers, {"t": "words"}),
    do.CompareRanks: lambda callers, *_: _to_agents(callers, {"t": "compare"}),
    do.SetIntervals: _set_intervals,
    do.DrillRanks: _drill_ranks,
    do.DrillDevice: _drill_device,
    do.LookAtDevices: _look,
    do.HealDevices: _heal,
    do.EndStep: _end,
}

"""What shims and agents are told to do: each order goes to the callers that it concerns, as the message that they know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.model import decisions as do
from ftslurm.model import messages as wire
from ftslurm.model.values import Value, field
from ftslurm.wrapper.controller.callers import Callers
from ftslurm.wrapper.controller.sources import Sources

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
    warm: Mapping[str, object] = field(default_factory=dict)  # of spares, see wire.start_message
    alone: bool = False  # Slurm signals the shim alone, and not what is below it
    beat_limits: Mapping[str, Any] = field(default_factory=dict)  # ft_launcher's configuration


class Orders:
    def __init__(self, sources: Sources, setup: RankSetup) -> None:
        self._sources = sources
        self._setup = setup

    def give(self, order: do.Decision) -> bool:
        """False where it is none to shims or agents."""
        method = _ORDERS.get(type(order))
        if method is not None:
            method(self, order)
        return method is not None

    @property
    def _callers(self) -> Callers:
        return self._sources.callers

    def _start(self, decision: do.StartRanks) -> None:
        programs = self._setup.programs(len(self._callers.shims))
        size = len(self._callers.shims)
        tail_bytes = min(self._setup.tail_bytes, TAILS_BYTES // max(size, 1))
        for rank, peer in [item for item in self._callers.shims.items() if item[0] in decision.env]:
            argv = programs.get(rank)
            logs = self._setup.logs(rank, peer.place, size, decision.cycle) if self._setup.logs else None
            peer.send(
                wire.start_message(
                    decision.attempt,
                    decision.env[rank],
                    argv,
                    tail_bytes,
                    self._setup.silence_s,
                    self._setup.inject,
                    logs,
                    self._setup.alone,
                    self._setup.warm,
                )
            )

    def _stop(self, decision: do.StopRanks) -> None:
        d = decision
        self._to_shims(wire.stop_message(d.attempt, d.grace_s, d.kill_wait_s, d.asked, d.saves), d.ranks)

    def _signal(self, decision: do.SignalRanks) -> None:
        """Not by the launcher: srun ends a step by SIGKILL when it gets a SIGTERM (seen on 22.05)."""
        self._to_shims({"t": "signal", "number": decision.number, "group": decision.group}, decision.ranks)

    def _to_shims(self, message: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
        for rank, peer in list(self._callers.shims.items()):
            if ranks is None or rank in ranks:
                peer.send(message)

    def _watch_ranks(self, d: do.WatchRanks) -> None:
        limits = dict(self._setup.beat_limits)
        if d.limits:
            from ftslurm.model.settings.ft_config import with_calculated

            limits = with_calculated(limits, d.limits)
        for node, ranks in d.ranks.items():
            if node in self._callers.agents:
                self._callers.agents[node].send(
                    {
                        "t": "watch",
                        "ranks": [list(rank) for rank in ranks],
                        "quiet_s": d.quiet_s,
                        "step": d.steps.get(node, ""),
                        "limits": limits,
                        "stall_s": d.stall_s,
                    }
                )

    def _set_intervals(self, d: do.SetIntervals) -> None:
        self._to_shims({"t": "silence", "after_s": d.silence_s})
        self._to_agents({"t": "quiet", "after_s": d.quiet_s})

    def _to_agents(self, message: Mapping[str, Any]) -> None:
        for peer in list(self._callers.agents.values()):
            peer.send(message)

    def _drill_device(self, d: do.DrillDevice) -> None:
        if d.node in self._callers.agents:
            report = {"device": d.device, "code": d.code, "severity": d.severity, "kind": d.kind, "heals": d.heals}
            self._callers.agents[d.node].send({"t": "drill", **report})

    def _answer_drill(self, d: do.AnswerDrill) -> None:
        peer = self._callers.askers.pop(d.asker, None)
        if peer is not None:
            peer.send({"t": "drilled", "ok": d.ok, "text": d.text})

    def _heal(self, decision: do.HealDevices) -> None:
        for node, devices in decision.devices.items():
            if node in self._callers.agents:
                self._callers.agents[node].send(
                    {
                        "t": "heal",
                        "devices": [[device, list(codes)] for device, codes in devices],
                        "may_reset": decision.may_reset,
                        "wait_s": decision.wait_s,
                        "reset_wait_s": decision.reset_wait_s,
                    }
                )

    def _end(self, order: do.EndStep) -> None:
        """Then nothing that they say counts any more."""
        self._to_shims({"t": "end", "status": order.status, "forget": order.forget})
        self._callers.farewell()


_ORDERS: Mapping[type, Callable[[Orders, Any], None]] = {
    do.StartRanks: Orders._start,
    do.StopRanks: Orders._stop,
    do.SignalRanks: Orders._signal,
    do.WatchRanks: Orders._watch_ranks,
    do.SampleUse: lambda orders, d: orders._to_agents({"t": "use", "window_s": d.window_s}),
    do.TakeEvidence: lambda orders, d: orders._to_agents({"t": "evidence", "limit_s": d.limit_s}),
    do.AskWords: lambda orders, _: orders._to_shims({"t": "words"}),
    do.CompareRanks: lambda orders, _: orders._to_agents({"t": "compare"}),
    do.SetIntervals: Orders._set_intervals,
    do.DrillRanks: lambda orders, d: orders._to_shims(wire.drill_message(d.what, d.status, d.signal, d.share), d.ranks),
    do.DrillDevice: Orders._drill_device,
    do.AnswerDrill: Orders._answer_drill,
    do.LookAtDevices: lambda orders, _: orders._to_agents({"t": "look"}),
    do.HealDevices: Orders._heal,
    do.EndStep: Orders._end,
}

"""What shims and agents report, as events: a method for each of the two, and the look-up of fault codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from ftslurm.model.devices import CodeMeaning, DeviceHealth, Fault, ProbeAnswer, Severity
from ftslurm.model.events import (
    BeatOverdue,
    DevicesSeen,
    Event,
    EvidenceTaken,
    HealingDone,
    ProgramSaid,
    Progressed,
    QuietSeen,
    RankExited,
    RanksAlive,
    RanksCompared,
    RankWords,
    StageSet,
    StallSeen,
    UseSampled,
)
from ftslurm.model.messages import wire
from ftslurm.model.messages.live import LiveReported, StacksReported
from ftslurm.wrapper.wire.channel import Message

Meaning = Callable[[str, str, Severity], CodeMeaning]  # kind of device, code, severity


class Observer(Protocol):
    """Watches messages on behalf of people, and decides nothing. Called in the loop; short, and never raises."""

    def rank_said(self, rank: int, report: object) -> None: ...

    def node_said(self, node: str, report: LiveReported | StacksReported) -> None: ...

    def new_step(self) -> None: ...


class Reports:
    """meaning: looks a fault code up (and loads the catalogue then). observer (to be set): for people, who watch.
    training_step: the furthest that the program has told of, 0: none."""

    def __init__(self, meaning: Meaning) -> None:
        self.observer: Observer | None = None
        self.training_step = 0
        self._meaning = meaning

    def of(self, owner: int | str, message: Message, behind_s: float = 0.0) -> Sequence[Event]:
        """owner: a rank or a node. behind_s: its clock, against ours. Raises: WireError."""
        return self.of_rank(owner, message, behind_s) if isinstance(owner, int) else self.of_node(owner, message)

    def of_rank(self, rank: int, message: Message, behind_s: float = 0.0) -> Sequence[Event]:
        """By its shim. Raises: WireError."""
        said = _by_our_clock(wire.shim_report(rank, message), behind_s)
        if self.observer is not None:
            self.observer.rank_said(rank, said)
        return (*_last_notes(rank, message), said)

    def of_node(self, node: str, message: Message) -> Sequence[Event]:
        """By its agent. Raises: WireError."""
        report = wire.agent_report(message)
        if isinstance(report, (LiveReported, StacksReported)):
            if self.observer is not None:
                self.observer.node_said(node, report)
            return ()
        if isinstance(report, wire.HealingReported):
            return (HealingDone(node, report.results),)
        if isinstance(report, (BeatOverdue, ProgramSaid, StageSet)):
            return (report,)
        if isinstance(report, wire.QuietReported):
            return (QuietSeen(node, report.quiet_s, report.what, report.attempt),)
        if isinstance(report, wire.UseReported):
            return (UseSampled(node, report.unchanged, report.what, report.attempt),)
        if isinstance(report, wire.EvidenceReported):
            return (EvidenceTaken(node, report.text, report.views, report.attempt),)
        if isinstance(report, Progressed):
            self.training_step = max(self.training_step, report.step)
        if isinstance(report, (StallSeen, RanksCompared, Progressed, RanksAlive)):
            return (replace(report, node=node),)
        return (DevicesSeen(node, self._graded(node, report.answer), report.asked, report.answer.error, there=report.there),)

    def new_step(self) -> None:
        if self.observer is not None:
            self.observer.new_step()

    def _graded(self, node: str, answer: ProbeAnswer) -> tuple[Fault, ...]:
        """Every code of every chip that is not well, looked up."""
        faults = []
        for report in answer.reports:
            if report.health is DeviceHealth.FAULTY:
                for code in report.codes:
                    m = self._meaning(report.kind, code, report.severity)
                    faults.append(Fault(node, report.device, m.code, m.name, m.fault_class, m.user_induced))
        return tuple(faults)


def _by_our_clock(said: wire.ShimReport, behind_s: float) -> wire.ShimReport:
    """The report with its times as our clock would have them: whose failure came first is judged by them."""
    if not behind_s or not isinstance(said, (RankExited, RankWords)):
        return said
    said = replace(said, output=tuple(replace(piece, at=piece.at + behind_s) for piece in said.output))
    return replace(said, at=said.at + behind_s) if isinstance(said, RankExited) else said


def _last_notes(rank: int, message: Message) -> tuple[ProgramSaid, ...]:
    """What the program has said shortly before its end, of which its agent may know nothing yet, or never. Raises: WireError."""
    place, data = wire.shim_notes(message)
    if not data:
        return ()
    from ftslurm.sdk.notes import in_words, placed_notes

    told = [(end, in_words(note)) for end, note in placed_notes(data, place)]
    number = message.get("attempt")
    attempt = number if type(number) is int else 0
    return tuple(ProgramSaid(rank, words[0], words[1], attempt, end) for end, words in told if words is not None)

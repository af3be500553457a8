"""The cause of the failure of an attempt, or of the end of one rank: what is analysed beside the loop, and how the answer
compares with all that the job has seen before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Advise, Diagnose
from ftslurm.model.devices import Fault
from ftslurm.model.events import Now
from ftslurm.model.folds.history import History
from ftslurm.model.job import Task
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass
from ftslurm.model.verdict import Blame, RankEnd, Verdict
from ftslurm.policies.attempt import Attempt
from ftslurm.policies.judge.phases import RunFacts
from ftslurm.policies.ladder.situation import ACTS, acting
from ftslurm.policies.node.clock import CLOCKS_DIFFER_S
from ftslurm.policies.weigh.contrast import Contrast, contrast, shown_by, with_contrast
from ftslurm.policies.weigh.corrections import without_own_view
from ftslurm.policies.weigh.spread import BEGUN_S, still_on_most

# Of the ranks that show an error, at most this many are recorded in the ledger.
SHOWN_MAX = 64


@dataclass(frozen=True, slots=True)
class Weighed:
    verdict: Verdict
    record: rec.Diagnosed
    cleared: Contrast | None  # nodes that are not to blame after all, since others show the same


@dataclass(frozen=True, slots=True)
class Inquiry:
    """All that is known when the question is asked, or answered."""

    attempt: Attempt
    tasks: Mapping[int, Task]
    history: History
    settings: Settings
    facts: RunFacts
    rank: int | None = None  # ask about the end of this rank alone

    def question(self, shown: tuple[Fault, ...], bad: Mapping[str, str]) -> Diagnose:
        """The question for the cause. shown: faults that devices have shown. bad: node -> why it counts as bad."""
        attempt = self.attempt
        number = attempt.number if self.rank is None else attempt.latest([self.rank])
        ends = attempt.rank_ends(self.tasks, self.rank)
        return Diagnose(
            number, ends, acting(shown, self.history), dict(bad), attempt.own_words(), self._has_progressed(), self.rank
        )  # fmt: skip

    def hints(self) -> Advise:
        """The question for common reasons for a hang."""
        return Advise(self.attempt.number, self._before_hang(), dict(self.attempt.hang.evidence))

    def weigh(self, v: Verdict, showing: frozenset[str], now: Now) -> Weighed:
        """Weigh the verdict against what the job has seen before. showing: nodes whose devices show faults now."""
        attempt, past = self.attempt, self.history
        v = still_on_most(v, past.verdicts.last if past.verdicts.same_in_a_row else None)
        v = without_own_view(v, self.facts.env.hidden, attempt.devices.seen - showing)
        shown, since = shown_by(v), now.unix - self.settings.same_code_window_s
        cleared = contrast(v.signature, shown, past, since, past.progress.last_step, v.error_class)
        v = v if cleared is None else with_contrast(v, cleared)
        against = {
            blame: {suspect.node: suspect.why for suspect in v.suspects if suspect.blame is blame}
            for blame in (Blame.YES, Blame.SUSPECT)
        }
        ends = attempt.rank_ends(self.tasks, self.rank)
        failed = {end.rank: str(end.status) for end in ends if end.status is not None and not end.status.ok and not end.stopped}
        found = rec.Diagnosed(
            now.unix, attempt.number, v.signature, v.error_class.value, v.retriable.value, v.confidence.value, v.what, v.evidence,
            against[Blame.YES], against[Blame.SUSPECT], tuple(failed), len(attempt.ranks), v.program, bool(attempt.drills),
            {str(rank): node for rank, node in sorted(shown.items())[:SHOWN_MAX]},
            v.lead.rank, v.lead.node, v.lead.said, v.lead.meaning, v.lead.place, v.lead.spread, v.lead.advice,
            failed.get(v.lead.rank, ""), v.because,
        )  # fmt: skip
        return Weighed(v, found, cleared)

    def _before_hang(self) -> tuple[RankEnd, ...]:
        """Every rank with what it had printed before it was stopped: later output is no reason for the hang."""
        ends, until = self.attempt.rank_ends(self.tasks), self.attempt.hang.at + CLOCKS_DIFFER_S
        if not self.attempt.hang.at:
            return ends
        return tuple(replace(end, output=tuple(piece for piece in end.output if piece.at <= until)) for end in ends)

    def _has_progressed(self) -> bool:
        """Has the job ever made progress?"""
        known = max(self.attempt.program.step, self.attempt.program.saved, self.history.progress.furthest) > 0
        return known or self.history.progress.longest_s >= BEGUN_S or self.history.progress.made_at > 0


# --- the faults of the devices, and how many devices there are

Key = tuple[str, str, str]  # node, device, code


class DeviceView:
    """faults: the current faults. there: node -> kind -> the most devices that its agent has seen. left_alone: faults that no
    rung can handle, with ranks still running.
    """

    def __init__(self) -> None:
        self.faults: dict[Key, Fault] = {}
        self.there: dict[str, dict[str, int]] = {}
        self.left_alone: frozenset[Key] = frozenset()

    def see(self, event: ev.DevicesSeen) -> tuple[Fault, ...]:
        """The new faults. A failed check changes nothing."""
        for kind, count in event.there.items():
            counts = self.there.setdefault(event.node, {})
            counts[kind] = max(count, counts.get(kind, 0))
        if event.error:
            return ()
        shown = {fault.key: fault for fault in event.faults}
        new = tuple(fault for key, fault in shown.items() if key not in self.faults)
        gone = {key for key in self.faults if key[0] == event.node} - shown.keys()
        self.faults = {key: fault for key, fault in self.faults.items() if key not in gone} | shown
        return new

    @property
    def acting(self) -> dict[Key, Fault]:
        """The faults that need a remedy."""
        return {key: fault for key, fault in self.faults.items() if fault.fault_class in ACTS}

    def shown_with(self, earlier: Mapping[Key, Fault]) -> tuple[Fault, ...]:
        """The current faults with those at the beginning of the trouble: one that clears meanwhile is still the reason."""
        return tuple(fault for key, fault in (self.faults | dict(earlier)).items() if key not in self.left_alone)

    def leave_alone(self, faults: Iterable[Fault]) -> None:
        self.left_alone |= {fault.key for fault in faults}

    def look_anew(self) -> None:
        """Consider faults again that had no remedy: they may be the reason now."""
        self.left_alone = frozenset()

    def forget(self, nodes: Collection[str]) -> None:
        """Forget the nodes: their faults concern nobody, or have healed."""
        self.faults = {key: fault for key, fault in self.faults.items() if key[0] not in nodes}

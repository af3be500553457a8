"""A job's past, folded from its ledger records. The judge adds its own records to the same fold as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from ftslurm.model.record import AttemptBegan, CarriedOut, Decided, FaultSeen, Finished, Record, RunBegan

REQUEUES = frozenset({"isolated-requeue", "unconditional-requeue", "requeue-on-warning"})
# What breaks "consecutive" (seed 003): a verdict with such a cause, or a fault of such a class whatever was done about it.
EXPLICIT_FAULTS = frozenset({"device", "node"})
EXPLICIT_CLASSES = frozenset({"self-healing", "isolate"})


@dataclass(frozen=True, slots=True)
class History:
    """spent: budget name -> how much. isolated: node -> (reason, when). starts: (schedule, step key) -> runs of it.

    faults: (node, device, code) -> times seen. unconditional_in_a_row: without an explicit fault between.
    open_requeue: a requeue that was decided and of which nobody wrote that it was done.
    """

    attempts: int = 0
    last_run: RunBegan | None = None
    last_decision: Decided | None = None
    open_requeue: Decided | None = None
    finished: Finished | None = None
    decisions: int = 0
    requeues_done: int = 0
    unconditional_in_a_row: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)
    isolated: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    starts: Mapping[tuple[int, str], int] = field(default_factory=dict)
    faults: Mapping[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)

    def add(self, record: Record) -> History:
        """This history and one record more."""
        change = _ADDERS.get(type(record))
        return change(self, record) if change is not None else self

    def fault_count(self, key: tuple[str, str, str], since: float) -> int:
        """How often the same node, device and code was seen from `since` (Unix seconds) on."""
        return sum(at >= since for at in self.faults.get(key, ()))

    def kept_out(self, now: float, expires_s: float) -> tuple[str, ...]:
        """Nodes isolated and not yet expired (`expires_s` 0: never), sorted."""
        return tuple(sorted(n for n, (_, at) in self.isolated.items() if not expires_s or now - at < expires_s))

    def starts_of(self, schedule: int, step_key: str) -> int:
        return self.starts.get((schedule, step_key), 0)


def fold(records: Iterable[Record]) -> History:
    return reduce(History.add, records, History())


def _run_began(past: History, run: RunBegan) -> History:
    # A later scheduling of the job is proof that the requeue happened, whoever finished it.
    again = past.last_run is not None and run.schedule > past.last_run.schedule
    return replace(past, last_run=run, finished=None, open_requeue=None if again else past.open_requeue)


def _attempt_began(past: History, begun: AttemptBegan) -> History:
    key = (begun.schedule, begun.step_key)
    starts = {**past.starts, key: max(begun.starts, past.starts.get(key, 0))}
    return replace(past, attempts=max(past.attempts, begun.attempt), starts=starts)


def _fault_seen(past: History, fault: FaultSeen) -> History:
    key = (fault.node, fault.device, fault.code)
    row = 0 if fault.fault_class in EXPLICIT_CLASSES else past.unconditional_in_a_row
    faults = {**past.faults, key: (*past.faults.get(key, ()), fault.at)}
    return replace(past, faults=faults, unconditional_in_a_row=row)


def _decided(past: History, decided: Decided) -> History:
    spent = dict(past.spent)
    if decided.cost:
        spent[decided.cost] = spent.get(decided.cost, 0) + 1
    isolated = {**past.isolated, **{node: (why, decided.at) for node, why in decided.isolate.items()}}
    return replace(
        past,
        last_decision=decided,
        decisions=past.decisions + 1,
        open_requeue=decided if decided.rung in REQUEUES else None,
        unconditional_in_a_row=_in_a_row(past.unconditional_in_a_row, decided),
        spent=spent,
        isolated=isolated,
    )


def _in_a_row(before: int, decided: Decided) -> int:
    if decided.cause in EXPLICIT_FAULTS:
        return 0
    return before + (decided.rung == "unconditional-requeue")


def _carried_out(past: History, done: CarriedOut) -> History:
    if past.open_requeue is None or done.id != past.open_requeue.id:
        return past
    return replace(past, open_requeue=None, requeues_done=past.requeues_done + done.ok)


def _finished(past: History, finished: Finished) -> History:
    return replace(past, finished=finished)


_ADDERS: Mapping[type, Callable[..., History]] = {
    RunBegan: _run_began,
    AttemptBegan: _attempt_began,
    FaultSeen: _fault_seen,
    Decided: _decided,
    CarriedOut: _carried_out,
    Finished: _finished,
}

"""What breaks "consecutive", as ModelArts has it: a decision with an explicit cause, or an explicit fault, whatever follows it.

What ranks only printed ("hardware") does not: our own remedy for it would set the count back, and a bug never end.
"""

from __future__ import annotations

from ftslurm.model.record import Decided, FaultSeen

EXPLICIT_FAULTS = frozenset({"device", "node"})
EXPLICIT_CLASSES = frozenset({"self-healing", "isolate"})


def in_a_row(before: int, decided: Decided, one_more: bool) -> int:
    return 0 if decided.cause in EXPLICIT_FAULTS else before + one_more


def is_explicit(fault: FaultSeen) -> bool:
    return fault.fault_class in EXPLICIT_CLASSES and not fault.user_induced

"""From the catalogues' word for a remedy to the class of a fault, which the ladder asks for. One table for all vendors."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model.devices import FaultClass, Remedy

CLASS_OF: Mapping[Remedy, FaultClass] = {
    Remedy.LOG: FaultClass.IGNORE,
    Remedy.SUSPECT: FaultClass.IGNORE,  # the device still works; that it was seen stands in the ledger
    Remedy.RESTART: FaultClass.SELF_HEALING,
    Remedy.RESET: FaultClass.SELF_HEALING,  # a restart in place waits for healing, then resets
    Remedy.AVOID: FaultClass.AVOID,
    Remedy.REPLACE: FaultClass.ISOLATE,
    Remedy.FAIL: FaultClass.ISOLATE,  # this node cannot serve: other software or firmware is needed on it
    Remedy.UNKNOWN: FaultClass.UNKNOWN,
}

# From mild to hard: where several are possible, the last one counts.
ORDER = (
    Remedy.UNKNOWN,
    Remedy.LOG,
    Remedy.SUSPECT,
    Remedy.RESTART,
    Remedy.RESET,
    Remedy.AVOID,
    Remedy.REPLACE,
    Remedy.FAIL,
)

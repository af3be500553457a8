"""Words that all reports share."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model import record as rec
from ftslurm.model.verdict import ErrorClass

FAULT: Mapping[ErrorClass, str] = {
    ErrorClass.HARDWARE: "the hardware's",
    ErrorClass.NETWORK: "the network's",
    ErrorClass.USER_CODE: "the program's",
    ErrorClass.OOM: "the program's: it needs more memory than there is",
    ErrorClass.DATA: "the data's, or the numbers of the training",
    ErrorClass.STORAGE: "the storage's",
    ErrorClass.UNKNOWN: "not known from this alone",
}


def span(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `5 h 2 min`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def experiment(ended: rec.ExperimentEnded) -> str:
    becomes = "is excluded from this job" if ended.excluded else "may be used again"
    return f"{ended.node} {becomes}: {ended.why}"

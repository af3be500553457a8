"""Words that all reports share: durations, moments, whose a fault is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ftslurm.model import record as rec
from ftslurm.model.events import Save
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

# Who sent SIGKILL is not known from it: what stands instead, and the signatures that tell of nothing more.
KILLED = "the program's, if memory ran out; the kernel log tells"
KILLED_BY = frozenset({"SIGKILL", "exit 137", "exit 247", "dataloader-killed"})


def span(seconds: float) -> str:
    """`0 s`, `0.4 s`, `12 s`, `3 min 20 s`, `5 h 2 min`, `2 d 7 h`; negative ones with their sign."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < 60:
        return f"{seconds:.{0 if seconds >= 10 or not seconds else 1}f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def age(seconds: float) -> str:
    """`12 s`, `3 min`, `5 h`, `2 d`: to one digit of its unit, in six letters."""
    for limit, unit_s, unit in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / unit_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def moment(at: float) -> str:
    """Local time, to the second: what people compare with their own logs and Slurm's."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "-"


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at)) if at else "?"


def day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at)) if at else "-"


def saves(told: Mapping[str, str]) -> Iterator[str]:
    """What became of the checkpoints that ranks were writing when they were told to stop. told: AttemptEnded.saves."""
    became = {Save.WHOLE.value: "written whole", Save.CUT.value: "cut off"}
    for save, ranks in told.items():
        if save in became:
            who = f"ranks {ranks} were" if "-" in ranks or "," in ranks else f"rank {ranks} was"
            yield f"{who} saving when it was to stop: the checkpoint was {became[save]}"


def budgets(left: Mapping[str, tuple[int, int]]) -> str:
    """left: name -> (left, limit; 0 if not told)."""
    return ", ".join(f"{name} {rest} of {limit} left" if limit else f"one of {name}" for name, (rest, limit) in left.items())


def experiment(ended: rec.ExperimentEnded) -> str:
    becomes = "is excluded from this job" if ended.excluded else "may be used again"
    return f"{ended.node} {becomes}: {ended.why}"

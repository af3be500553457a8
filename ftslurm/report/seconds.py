"""Where a job's seconds went, by phase. Pure. Phases are named after the parts of report/account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ftslurm.model import record as rec
from ftslurm.model.summary import MAY_GO_ON

PHASES = ("training", "redone", "new_or_redone", "noticing", "stopping", "deciding", "waiting", "starting", "outside", "unknown")
# In these nothing new was learned.
LOST = ("redone", "noticing", "stopping", "deciding", "waiting", "starting")


def seconds_by_phase(records: Sequence[rec.Record], now: float, over: bool) -> Mapping[str, float]:
    """phase -> seconds, of those that occurred. over: the last record is the end. now: Unix seconds."""
    found: dict[str, float] = {}
    moments = [*_moments(records)]
    end = records[-1].at if records and over else now
    for (begin, phase), (until, _) in pairwise([*moments, (end, "")]):
        if until > begin:
            found[phase] = found.get(phase, 0.0) + until - begin
    return found


def _moments(records: Sequence[rec.Record]) -> Iterator[tuple[float, str]]:
    """When each phase began."""
    for record in records:
        match record:
            case rec.RunBegan():
                yield record.at, "starting"
            case rec.AttemptBegan():
                yield record.at, "new_or_redone"
            case rec.TroubleSeen():
                yield record.at, "stopping"
            case rec.AttemptEnded():
                yield record.at, "deciding"
            case rec.Decided():
                yield record.at, "waiting" if record.rung != "rank-restart" else "new_or_redone"
            case rec.Finished():
                yield record.at, "waiting" if record.what in MAY_GO_ON else "outside"

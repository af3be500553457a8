"""Does whoever called ftrun want a remedy for a failed step, or the status?"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model.job import Call, Reading
from ftslurm.policies.ladder.ladder import Situation

# A question to the cluster (`test -d`, `hostname`, a ping of a server) is over by then; a training has seldom begun.
QUICK_S = 10.0


def with_call(s: Situation, call: Call, step_key: str) -> Situation:
    """The situation, and how the caller takes a failure. call: as it was read. In doubt it is an answer where the step was over
    within seconds on its first start, and something follows it in its script."""
    if not s.settings.answers:
        return s
    first = sum(starts for (_, key), starts in s.history.slots.starts.items() if key == step_key) <= 1
    if call.reading is Reading.DOUBT and first and not call.last and s.history.progress.lived_s <= QUICK_S:
        call = replace(call, reading=Reading.ANSWER, why=f"{call.why}; it was over within {QUICK_S:g} s")
    return replace(s, wish=replace(s.wish, call=call))

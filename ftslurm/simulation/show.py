"""A simulation for people and for programs. No line is wider than 60 columns, so that it can be read in a pipe."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.model.text import counted
from ftslurm.simulation.clockwork import Part
from ftslurm.simulation.play import Answered, Outcome
from ftslurm.simulation.trace import Trace

WIDTH, LABEL, BESIDE = 60, 24, 3
_COLUMN = (WIDTH - LABEL) // BESIDE
_ENDED = {
    "completed": "completed", "failed": "failed", "trains": "trains on", "hangs": "hangs", "pending": "has no nodes",
}  # fmt: skip
Line = tuple[str, Callable[[Outcome], str]]


def as_text(trace: Trace, outcomes: Sequence[Outcome]) -> str:
    plan, faults = trace.plan, counted(len(trace.faults), "fault")
    head = f"{trace.place}: {counted(plan.nodes, 'node')} of {plan.cluster}, {span(trace.until)}, {faults}"
    lines = textwrap.wrap(head, WIDTH)
    for start in range(0, len(outcomes), BESIDE):
        lines += ["", *_table(outcomes[start : start + BESIDE])]
    for outcome in outcomes:
        lines += ["", *_answers(outcome)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [_row("", [_cut(outcome.name) for outcome in outcomes])]
    lines += [_row(label, [value(outcome) for outcome in outcomes]) for label, value in _lines(outcomes)]
    return lines


def _lines(outcomes: Sequence[Outcome]) -> list[Line]:
    found: list[Line] = [
        ("at the end it", lambda o: _ENDED[o.ended]),
        ("after", lambda o: span(o.at)),
        ("useful share of time", lambda o: f"{o.goodput:.2%}"),
        ("of time of all nodes", lambda o: f"{o.node_goodput:.2%}"),
    ]
    for group in ("useful", "lost", "waiting", "ended"):
        for part in Part:
            if part.group == group and any(o.parts[part] >= 0.05 for o in outcomes):
                found.append((_SHORT[part], lambda o, part=part: span(o.parts[part])))  # type: ignore[misc]
    for kind in sorted({kind for o in outcomes for kind, lost in o.lost_to.items() if kind and lost}):
        found.append((f"lost to {kind}", lambda o, kind=kind: span(o.lost_to.get(kind, 0.0))))  # type: ignore[misc]
    for rung in sorted({rung for o in outcomes for rung in o.rungs}):
        found.append((rung, lambda o, rung=rung: str(o.rungs.get(rung, 0))))  # type: ignore[misc]
    for budget in sorted({name for o in outcomes for name, (_, limit) in o.budgets.items() if limit}):
        found.append((f"{budget} left", lambda o, budget=budget: _left(o, budget)))  # type: ignore[misc]
    return [*found, ("starts of the ranks", lambda o: str(o.starts)), ("requeues", lambda o: str(o.requeues))]


_SHORT: Mapping[Part, str] = {
    Part.USEFUL: "useful training", Part.REDONE: "work lost, done anew", Part.SAVING: "saving checkpoints",
    Part.NOTICING: "fault not noticed yet", Part.SETTLING: "stopping, deciding", Part.HEALING: "healing devices",
    Part.REPLACING: "replacing nodes", Part.STARTING: "starting", Part.QUEUE: "in Slurm's queue",
    Part.ENDED: "after it has failed",
}  # fmt: skip


def _row(label: str, values: Sequence[str]) -> str:
    return label[: LABEL - 1].ljust(LABEL) + "".join(value.rjust(_COLUMN) for value in values)


def _cut(name: str) -> str:
    return name if len(name) < _COLUMN else f"{name[: _COLUMN - 2]}~"


def _answers(outcome: Outcome) -> list[str]:
    """The same answer to the same kind of fault once, with how often it came."""
    found = Counter(_told(fault) for fault in outcome.faults)
    lines = [f"{outcome.name}: what answered the faults"]
    for (what, answers), times in found.most_common():
        lines += textwrap.wrap(f"{times} x {what}: {answers}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    if outcome.ended == "failed" and outcome.why:
        lines += textwrap.wrap(f"It failed: {outcome.why}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    return lines if len(lines) > 1 else []


def _told(one: Answered) -> tuple[str, str]:
    what = f"{one.fault.kind.value} {one.fault.code or one.fault.signature}".strip()
    if not one.hit:
        return what, "not in the job's way"
    told = [f"{rung} ({_of_its_node(why, one.node)})" for rung, why in one.answers]
    return what, "; then ".join(told) or "no rung (Slurm or a person)"


def span(seconds: float) -> str:
    """`5.0 s`, `31.0 min`, `7.5 h`, `12.1 d`."""
    for size, unit, from_s in ((86400.0, "d", 172800.0), (3600.0, "h", 7200.0), (60.0, "min", 120.0)):
        if seconds >= from_s:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def as_json(trace: Trace, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    plan = trace.plan
    return {
        "trace": {"place": trace.place, "nodes": plan.nodes, "cluster": plan.cluster, "until_s": trace.until,
                  "faults": len(trace.faults)},
        "policies": [_outcome(outcome) for outcome in outcomes],
    }  # fmt: skip


def _outcome(o: Outcome) -> dict[str, Any]:
    return {
        "name": o.name, "ended": o.ended, "why": o.why, "at_s": o.at, "wall_s": o.wall_s, "useful_share": o.goodput,
        "useful_share_of_nodes": o.node_goodput, "parts_s": {part.name.lower(): seconds for part, seconds in o.parts.items()},
        "lost_to_s": {kind or "first start": seconds for kind, seconds in o.lost_to.items()}, "rungs": dict(o.rungs),
        "budgets": {name: {"left": left, "limit": limit} for name, (left, limit) in o.budgets.items()},
        "starts": o.starts, "requeues": o.requeues, "excluded": list(o.excluded),
        "faults": [
            {"at_s": one.at, "kind": one.fault.kind.value, "line": one.fault.line, "node": one.node, "met": one.hit,
             "answers": [{"rung": rung, "why": why} for rung, why in one.answers]}
            for one in o.faults
        ],
    }  # fmt: skip


def _left(outcome: Outcome, budget: str) -> str:
    left, limit = outcome.budgets[budget]
    return f"{left} of {limit}" if limit else "none"


def _of_its_node(why: str, node: str) -> str:
    """So that the same answer to the same fault of many nodes reads alike."""
    return re.sub(rf"\b{re.escape(node)}\b", "its node", why) if node else why

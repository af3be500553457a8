"""A simulation for people and for programs. No line is wider than 60 columns, so that it can be read in a pipe."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import TypedDict

from ftslurm.model.text import counted, cut
from ftslurm.simulation.clockwork import TimePart
from ftslurm.simulation.measured import Answered, PolicyOutcome
from ftslurm.simulation.past import TRUTH, Replayed, same_fault
from ftslurm.simulation.trace import JobPlan, Trace

WIDTH, LABEL, BESIDE = 60, 24, 3
# Of one job, in a page of text.
MOST_DIFFERENCES = 12
_COLUMN = (WIDTH - LABEL) // BESIDE
_ENDED = {
    "completed": "completed", "failed": "failed", "trains": "trains on", "hangs": "hangs", "pending": "has no nodes",
}  # fmt: skip
Line = tuple[str, Callable[[PolicyOutcome], str]]


def as_replay(found: Sequence[Replayed]) -> str:
    """Real jobs against policies: one in full, or the sum of several and where their answers differ."""
    lines: list[str] = []
    for one in found:
        lines += [*([""] if lines else []), *_replayed(one)]
    if len(found) > 1:
        lines = [*_sum(found), "", *lines]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _replayed(one: Replayed) -> list[str]:
    plan, truth = one.trace.plan, one.past.truth
    head = (
        f"{one.trace.place}: {counted(plan.nodes, 'node')}, {_span(truth.at)}, {counted(len(one.trace.faults), 'fault')} played"
    )
    lines = textwrap.wrap(head, WIDTH)
    columns = (truth, *one.outcomes)
    for start in range(1, len(columns), BESIDE - 1):
        lines += ["", *_table((truth, *columns[start : start + BESIDE - 1]))]
    lines += ["", *_answers(truth), *([""] if truth.faults else []), *_differences(one)]
    for outcome in one.outcomes:
        if outcome.ended == "failed" and outcome.why:
            lines += _hang(f"{outcome.name} failed: {outcome.why}")
    if one.notes:
        lines += ["", "What is not known"]
        for note in one.notes:
            lines += _hang(note)
    return lines


def _hang(text: str, indent: int = 2) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4))


def _differences(one: Replayed) -> list[str]:
    """Where a policy would have taken other rungs than the job did, and why not the job's."""
    lines: list[str] = []
    found = 0
    for was in one.past.truth.faults:
        others = [(outcome, same_fault(outcome, was)) for outcome in one.outcomes]
        differ = [(outcome, now) for outcome, now in others if now is None or not now.hit or _way(was) != _way(now)]
        if not differ:
            continue
        found += 1
        if found > MOST_DIFFERENCES:
            continue
        lines += _hang(f"{_span(was.at)}: {_what(was)} on {was.node or f'rank {was.fault.rank}'}")
        lines += _hang(f"{TRUTH}: {', then '.join(_way(was)) or 'no rung (Slurm or a person)'}", 4)
        for outcome, now in differ:
            lines += _hang(f"{outcome.name}: {_told(now)[1] if now is not None else 'it had ended by then'}", 4)
            last = was.answers[-1][0] if was.answers else ""
            if now is not None and last in now.passed and last not in _way(now):
                lines += _hang(f"not {last}: {_of_its_node(now.passed[last], now.node)}", 8)
    if found > MOST_DIFFERENCES:
        lines += _hang(f"and {counted(found - MOST_DIFFERENCES, 'fault')} more (--json has all)")
    return ["Where the answers differ", *lines] if lines else [f"Each policy answers each fault as {TRUTH} did."]


def _way(one: Answered) -> list[str]:
    return [rung for rung, _ in one.answers]


def _sum(found: Sequence[Replayed]) -> list[str]:
    """All jobs as one: their times and counts added up."""
    names = [TRUTH, *(outcome.name for outcome in found[0].outcomes)]
    rows = [(one.past.truth, *one.outcomes) for one in found]
    summed = [_added(name, [row[place] for row in rows]) for place, name in enumerate(names)]
    lines = [f"{counted(len(found), 'job')} together"]
    for start in range(1, len(summed), BESIDE - 1):
        lines += ["", *_table((summed[0], *summed[start : start + BESIDE - 1]), len(found))]
    return lines


def _added(name: str, outcomes: Sequence[PolicyOutcome]) -> PolicyOutcome:
    """ended: how many were completed."""
    parts, lost_to, rungs = dict.fromkeys(TimePart, 0.0), Counter[str](), Counter[str]()
    for one in outcomes:
        for part, seconds in one.parts.items():
            parts[part] += seconds
        for kind, lost in one.lost_to.items():
            lost_to[kind] += lost  # type: ignore[assignment]
        rungs.update(one.rungs)
    done, failed = (sum(one.ended == word for one in outcomes) for word in ("completed", "failed"))
    return PolicyOutcome(
        name, f"{done}", f"{failed}", sum(one.at for one in outcomes), sum(one.wall_s for one in outcomes), parts, lost_to,
        rungs, {}, (), sum(one.starts for one in outcomes), sum(one.requeues for one in outcomes),
        tuple(node for one in outcomes for node in one.excluded), sum(one.node_s for one in outcomes),
        0,
    )  # fmt: skip


def outcomes_as_text(trace: Trace, outcomes: Sequence[PolicyOutcome]) -> str:
    plan, faults = trace.plan, counted(len(trace.faults), "fault")
    head = f"{trace.place}: {counted(plan.nodes, 'node')} of {plan.cluster}, {_span(trace.until)}, {faults}"
    lines = textwrap.wrap(head, WIDTH)
    for start in range(0, len(outcomes), BESIDE):
        lines += ["", *_table(outcomes[start : start + BESIDE])]
    for outcome in outcomes:
        lines += ["", *_answers(outcome)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _table(outcomes: Sequence[PolicyOutcome], jobs: int = 0) -> list[str]:
    """jobs: of which each column is the sum; 0: it is one."""
    lines = [_row("", [cut(outcome.name, _COLUMN - 1) for outcome in outcomes])]
    lines += [_row(label, [value(outcome) for outcome in outcomes]) for label, value in _lines(outcomes, jobs)]
    return lines


def _lines(outcomes: Sequence[PolicyOutcome], jobs: int) -> list[Line]:
    found: list[Line] = [("at the end it", lambda o: _ENDED.get(o.ended, o.ended)), ("after", lambda o: _span(o.at))]
    if jobs:
        found = [("completed", lambda o: f"{o.ended} of {jobs}"), ("failed", lambda o: o.why), ("time", lambda o: _span(o.at))]
    found.append(("useful share of time", _share))
    if not jobs:
        found.append(("of time of all nodes", lambda o: f"{o.node_goodput:.2%}"))
    for group in ("useful", "unsure", "lost", "waiting", "ended"):
        for part in TimePart:
            if part.group == group and any(o.parts[part] >= 0.05 for o in outcomes):
                found.append((part.value, lambda o, part=part: _span(o.parts[part])))  # type: ignore[misc]
    for kind in sorted({kind for o in outcomes for kind, lost in o.lost_to.items() if kind and lost}):
        found.append((f"lost to {kind}", lambda o, kind=kind: _span(o.lost_to.get(kind, 0.0))))  # type: ignore[misc]
    for rung in sorted({rung for o in outcomes for rung in o.rungs}):
        found.append((rung, lambda o, rung=rung: str(o.rungs.get(rung, 0))))  # type: ignore[misc]
    for budget in sorted({name for o in outcomes for name, (_, limit) in o.budgets.items() if limit}):
        found.append((f"{budget} left", lambda o, budget=budget: _left(o, budget)))  # type: ignore[misc]
    return [
        *found, ("starts of the ranks", lambda o: str(o.starts)), ("requeues", lambda o: str(o.requeues)),
        ("nodes left", lambda o: str(len(o.excluded))),
    ]  # fmt: skip


def _share(o: PolicyOutcome) -> str:
    """Of a real job that does not know what it did twice, within bounds."""
    unsure = o.parts[TimePart.UNSURE]
    if unsure < 0.005 * o.wall_s or not o.wall_s:
        return f"{o.goodput:.2%}"
    return f"{o.goodput:.0%} to {(o.useful_s + unsure) / o.wall_s:.0%}"


def _row(label: str, values: Sequence[str]) -> str:
    return label[: LABEL - 1].ljust(LABEL) + "".join(value.rjust(_COLUMN) for value in values)


def _answers(outcome: PolicyOutcome) -> list[str]:
    """The same answer to the same kind of fault once, with how often it came."""
    found = Counter(_told(fault) for fault in outcome.faults)
    lines = [f"{outcome.name}: what answered the faults"]
    for (what, answers), times in found.most_common():
        lines += textwrap.wrap(f"{times} x {what}: {answers}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    if outcome.ended == "failed" and outcome.why:
        lines += textwrap.wrap(f"It failed: {outcome.why}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    return lines if len(lines) > 1 else []


def _what(one: Answered) -> str:
    return f"{one.fault.kind.value} {one.fault.code or one.fault.signature}".strip()


def _told(one: Answered) -> tuple[str, str]:
    what = _what(one)
    if not one.hit:
        return what, "not in the job's way"
    told = [f"{rung} ({_of_its_node(why, one.node)})" for rung, why in one.answers]
    return what, "; then ".join(told) or "no rung (Slurm or a person)"


def _span(seconds: float) -> str:
    """`5.0 s`, `31.0 min`, `7.5 h`, `12.1 d`."""
    for size, unit, from_s in ((86400.0, "d", 172800.0), (3600.0, "h", 7200.0), (60.0, "min", 120.0)):
        if seconds >= from_s:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


# --- for programs


class TraceTold(TypedDict):
    place: str
    nodes: int
    cluster: int
    until_s: float
    faults: int


class PolicyTold(TypedDict):
    """One policy. ended: completed, failed, trains (until the end of the trace), hangs, pending."""

    name: str
    ended: str
    why: str
    at_s: float
    wall_s: float
    useful_share: float
    useful_share_of_nodes: float
    parts_s: Mapping[str, float]
    lost_to_s: Mapping[str, float]
    rungs: Mapping[str, int]
    budgets: Mapping[str, tuple[int, int]]  # what is left, of how many
    starts: int
    requeues: int
    excluded: Sequence[str]
    faults: Sequence[Answered]


class SimulationTold(TypedDict):
    trace: TraceTold
    policies: Sequence[PolicyTold]


class ReplayTold(SimulationTold):
    """A real job. truth: what happened. unknown: what its ledger does not tell. measured: fields of the plan, how often each."""

    job: str
    truth: PolicyTold
    unknown: Sequence[str]
    plan: JobPlan
    measured: Mapping[str, int]


class ReplaysTold(TypedDict):
    jobs: Sequence[ReplayTold]


def outcomes_as_json(trace: Trace, outcomes: Sequence[PolicyOutcome]) -> SimulationTold:
    plan = trace.plan
    return {
        "trace": {"place": trace.place, "nodes": plan.nodes, "cluster": plan.cluster, "until_s": trace.until,
                  "faults": len(trace.faults)},
        "policies": [_outcome(outcome) for outcome in outcomes],
    }  # fmt: skip


def replay_as_json(found: Sequence[Replayed]) -> ReplaysTold:
    return {"jobs": [_replay(one) for one in found]}


def _replay(one: Replayed) -> ReplayTold:
    return {
        **outcomes_as_json(one.trace, one.outcomes), "job": one.past.job, "truth": _outcome(one.past.truth), "unknown": one.notes,
        "plan": one.trace.plan, "measured": one.past.known,
    }  # fmt: skip


def _outcome(o: PolicyOutcome) -> PolicyTold:
    return {
        "name": o.name, "ended": o.ended, "why": o.why, "at_s": o.at, "wall_s": o.wall_s, "useful_share": o.goodput,
        "useful_share_of_nodes": o.node_goodput, "parts_s": {part.name.lower(): seconds for part, seconds in o.parts.items()},
        "lost_to_s": {kind or "first start": seconds for kind, seconds in o.lost_to.items()}, "rungs": o.rungs,
        "budgets": o.budgets, "starts": o.starts, "requeues": o.requeues, "excluded": o.excluded, "faults": o.faults,
    }  # fmt: skip


def _left(outcome: PolicyOutcome, budget: str) -> str:
    if budget not in outcome.budgets:
        return "not told"  # by the ledger of a real job
    left, limit = outcome.budgets[budget]
    return f"{left} of {limit}" if limit else "none"


def _of_its_node(why: str, node: str) -> str:
    """So that the same answer to the same fault of many nodes reads alike."""
    return re.sub(rf"\b{re.escape(node)}\b", "its node", why) if node else why

"""What has to hold of every job, whatever struck it: pure functions from the evidence to complaints in words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from ftslurm.model import record as rec
from ftslurm.model.folds.history import fold
from ftslurm.model.rungs import REQUEUES
from tests.chaos.evidence import Blow, Evidence
from tests.chaos.program import chain
from tests.live.overlap import overlaps

# A blow may have worked a moment before it is written down, and what is told of it some time later.
SLACK_S = 2.0
# What a blow leaves behind (a lost connection, a thawed node) may end an attempt that began after it.
AFTERMATH_S = 60.0


# Slurm starts a requeued job 121 s later where the clean-up took longer than `requeue.start_in`: of a node that is out of reach,
# beside a slurmctld that was away, and wherever the requeue is not ours. And a requeue stays half done, the job held, where
# whoever carried it out died with it. A person then does once what he would do anyway; after anything else he must not have to.
OUT_OF_REACH = frozenset(
    {"node-freeze", "node-freeze-long", "batch-node-freeze", "node-kill", "batch-node-kill", "slurmd-restart", "node-down"}
)
AWAY = frozenset({"ctld-restart", "ctld-kill", "ctld-kill-unsaved"})
NEEDS_HELP: Mapping[str, frozenset[str]] = {
    "start": OUT_OF_REACH | AWAY | {"operator-requeue"},
    "held": AWAY | {"batch-node-kill", "ftrun-kill"},
}
# From the blow to the help: leases are waited for in between.
HELP_WITHIN_S = 120.0


def right_end(e: Evidence) -> Iterator[str]:
    """The state in Slurm, exit status and reason that the plan says."""
    want = e.plan.expect
    if e.state != want.state:
        yield f"the job ended as {e.state or 'nothing: it had to be ended by force'}, not as {want.state}"
        return
    status = want.status if want.status >= 0 else next((blow.status for blow in reversed(e.blows) if blow.status), 0)
    if e.status != status:
        yield f"it ended with status {e.status}, not {status}"
    last = fold(e.ledger).finished
    if want.reason:
        told = [f"{decided.why} {decided.passed}" for decided in kind(e, rec.Decided) if decided.rung == "fail"]
        if not any(want.reason in words for words in told):
            yield f"no decision to fail says {want.reason!r}: {told}"
    if want.finished and (last is None or last.status != e.status):
        yield f"the ledger's last word is {last}, not status {e.status}"


def right_result(e: Evidence) -> Iterator[str]:
    """Every step was made once, on the state before it."""
    ranks = e.plan.nodes * e.plan.tasks
    furthest = max([step.step for step in e.steps] + ([e.result[0]] if e.result else []), default=0)
    digests = chain(furthest, ranks)
    for step in e.steps:
        if step.digest != digests[step.step]:
            yield f"rank {step.rank} in attempt {step.attempt} came to a wrong digest at step {step.step}"
    if e.plan.expect.state == "COMPLETED" and e.state == "COMPLETED":
        if e.result is None:
            yield "there is no result"
        elif e.result[1] != digests[e.result[0]]:
            yield f"the result of step {e.result[0]} is wrong"
        elif e.result[0] < furthest:
            yield f"the result is of step {e.result[0]}, and step {furthest} had been made"


def steps_made_once(e: Evidence) -> Iterator[str]:
    """No checkpoint was written twice, nor over somebody else's; an attempt goes on where the last one had come to."""
    yield from (f"conflict: {words}" for words in e.conflicts)
    attempt, furthest = 0, 0
    for number, step in e.commits:
        if number < attempt:
            yield f"attempt {number} wrote step {step} when attempt {attempt} had begun"
        # One who is killed between checkpoint and line leaves a checkpoint without one.
        elif step != furthest + 1 and not (number > attempt and step == furthest + 2):
            yield f"attempt {number} wrote step {step} after step {furthest}"
        attempt, furthest = max(attempt, number), max(furthest, step)


def nothing_beside(e: Evidence) -> Iterator[str]:
    """No process of an attempt lived when one of a later attempt did."""
    yield from overlaps(sorted(e.beats, key=lambda beat: beat.time))


def attempts_in_order(e: Evidence) -> Iterator[str]:
    """Numbered from 1 without a gap, no rank twice in one, none that the ledger does not know."""
    numbers = [begun.attempt for begun in kind(e, rec.AttemptBegan)]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the ledger numbers its attempts {numbers}"
    seen: set[tuple[int, int]] = set()
    for start in e.starts:
        key = (int(start.attempt), start.rank)
        if key in seen:
            yield f"rank {start.rank} started twice in attempt {start.attempt}"
        if key[0] not in numbers:
            yield f"rank {start.rank} ran in attempt {start.attempt}, which the ledger does not know"
        seen.add(key)


def counters_agree(e: Evidence) -> Iterator[str]:
    """What the ranks saw is what the ledger implies; starts count from 1 after each scheduling."""
    begun = {one.attempt: one for one in kind(e, rec.AttemptBegan)}
    implied = slot_counters(e)
    for start in e.starts:
        expected_here = implied.get((int(start.attempt), start.rank // e.plan.tasks))
        if expected_here and start.counters != expected_here:
            yield f"rank {start.rank} saw {start.counters}, the ledger says {expected_here}"
    before: rec.AttemptBegan | None = None
    for one in begun.values():
        expected = before.starts + 1 if before and before.schedule == one.schedule else 1
        if one.starts != expected:
            yield f"attempt {one.attempt} is start {one.starts} of scheduling {one.schedule + 1}, not {expected}"
        if before and one.schedule < before.schedule:
            yield f"attempt {one.attempt} is of an older scheduling than attempt {before.attempt}"
        before = one


def slot_counters(e: Evidence) -> dict[tuple[int, int], tuple[int, int, int]]:
    """(attempt, slot) -> the counters there: a slot that got another node is scheduled once more, and starts from 1."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    more, since, last = dict.fromkeys(range(e.plan.nodes), 0), dict.fromkeys(range(e.plan.nodes), 0), (0, 0)
    for record in e.ledger:
        if isinstance(record, rec.SlotsChanged):
            for slot in map(int, record.filled):
                more[slot] += 1
                since[slot] = last[1] if last[0] == record.schedule else 0
        elif isinstance(record, rec.AttemptBegan):
            if record.schedule != last[0]:
                since = dict.fromkeys(since, 0)
            last = record.schedule, record.starts
            for slot in more:
                found[record.attempt, slot] = (record.schedule + 1 + more[slot], record.starts - since[slot], record.attempt)
    return found


def ledger_whole(e: Evidence) -> Iterator[str]:
    if e.damaged:
        yield f"{e.damaged} lines of the ledger cannot be read"
    if e.starts and not e.ledger:
        yield "there is no ledger"


def ends_explained(e: Evidence) -> Iterator[str]:
    """Every attempt but the last has a decision that ended it, or something from outside did; of each decision there is a
    reason, and of each reason a blow."""
    begun = kind(e, rec.AttemptBegan)
    for one, after in itertools.pairwise(begun):
        decided = [d for d in kind(e, rec.Decided) if d.attempt == one.attempt and d.rung != "fail"]
        near = [blow for blow in e.blows if one.at - AFTERMATH_S <= blow.at <= after.at]
        if not decided and not any(blow.outside for blow in near):
            yield f"attempt {one.attempt} ended and attempt {after.attempt} began, and nobody has decided so"
        if decided and not [t for t in kind(e, rec.TroubleSeen) if t.attempt == one.attempt]:
            yield f"attempt {one.attempt} was ended by a decision without trouble: {decided[0].why}"
        if (
            decided
            and not e.plan.expect.by_itself
            and not any(blow.ends != "no" or blow.outside for blow in e.blows if blow.at <= after.at and reaches(blow, one.at))
        ):
            yield f"attempt {one.attempt} was ended although no blow should have: {decided[0].why}"


def reaches(blow: Blow, moment: float) -> bool:
    """May its effects have lasted until then? What a device was told to show it shows until it is healed, often enough."""
    return blow.kind.startswith("device-") or max(blow.at, blow.over) + AFTERMATH_S >= moment


def blows_answered(e: Evidence) -> Iterator[str]:
    """Every fault that an attempt cannot outlive has left its trace in that attempt."""
    traces = {record.attempt for record in e.ledger if isinstance(record, rec.TroubleSeen | rec.Decided)}
    killed = {blow.victim for blow in e.blows if blow.kind == "ftrun-kill"}
    runs = {record.run for record in e.ledger if isinstance(record, rec.RunBegan) and f"ftrun {record.pid}" in killed}
    # A blow between two attempts goes by the number of the one before; whose ftrun it killed, the ledger tells.
    mute = {record.attempt for record in e.ledger if isinstance(record, rec.AttemptBegan) and record.run in runs}
    for blow in e.blows:
        outside = blow.attempt in mute or any(other.outside and other.attempt == blow.attempt for other in e.blows)
        if blow.ends == "yes" and blow.attempt and blow.attempt not in traces and not outside:
            yield f"{blow.kind} of {blow.victim} struck attempt {blow.attempt}, and the ledger knows of no trouble in it"


def requeues_done(e: Evidence) -> Iterator[str]:
    """As many requeues decided as carried out, and each cost what it should."""
    history = fold(e.ledger)
    if history.requeues.open is not None and e.state == "COMPLETED":
        yield f"the requeue {history.requeues.open.id} stands open"
    for decided in kind(e, rec.Decided):
        if decided.rung in REQUEUES - {"requeue-on-warning"} and decided.cost != "max_restarts":
            yield f"the requeue {decided.id} cost {decided.cost!r}"


def helped_only_where_needed(e: Evidence) -> Iterator[str]:
    for help in e.helped:
        blows = [
            blow
            for blow in e.blows
            if (blow.kind in NEEDS_HELP[help.kind] or (help.kind == "held" and _requeued_while_suspended(e, blow)))
            and blow.at <= help.at <= max(blow.at, blow.over) + HELP_WITHIN_S
        ]
        if not blows:
            yield f"the operator had to help, and no blow is the reason: {help.words}"


def _requeued_while_suspended(e: Evidence, blow: Blow) -> bool:
    """Slurm holds such a job (docs/slurm-facts.md, "Suspend")."""
    suspended = [other for other in e.blows if other.kind == "suspend"]
    return blow.kind == "operator-requeue" and any(
        other.at - SLACK_S <= blow.at <= max(other.at, other.over) + SLACK_S for other in suspended
    )


def nothing_left(e: Evidence) -> Iterator[str]:
    yield from (f"process {pid} is left: {command[:200]}" for pid, command in e.left.items())
    if e.queued:
        yield f"job {e.job} is still in the queue"


def no_accident(e: Evidence) -> Iterator[str]:
    yield from e.errors


CHECKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    no_accident,
    right_end,
    right_result,
    steps_made_once,
    nothing_beside,
    attempts_in_order,
    counters_agree,
    ledger_whole,
    ends_explained,
    blows_answered,
    requeues_done,
    helped_only_where_needed,
    nothing_left,
)


def complaints(e: Evidence) -> list[str]:
    """All that is wrong with this job; none is a pass."""
    return [f"{check.__name__}: {words}" for check in CHECKS for words in check(e)]


def nodes_left(states: dict[str, str], wanted: Sequence[str]) -> list[str]:
    """Nodes that are not as they were. states: node -> State by Slurm."""
    return [f"node {node} is {states.get(node, 'unknown')}" for node in wanted if states.get(node) != "IDLE"]


def kind(e: Evidence, what: type[rec.Record]) -> list:  # type: ignore[type-arg,valid-type]
    return [record for record in e.ledger if isinstance(record, what)]


def answer(e: Evidence, blow: Blow) -> str:
    """How the job answered it, for the table."""
    decided = [d for d in kind(e, rec.Decided) if d.attempt == blow.attempt and d.at >= blow.at - SLACK_S]
    if decided:
        return str(decided[-1].rung)
    later = [one for one in kind(e, rec.AttemptBegan) if one.attempt > blow.attempt]
    if later and blow.attempt and not [d for d in kind(e, rec.Decided) if d.attempt == blow.attempt]:
        return "from outside"
    return "nothing needed"

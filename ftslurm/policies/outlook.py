"""What the ladder would answer to a fault code, an exit status or a line of output that somebody asks about: the real one, asked
about a job on paper, which has all that a remedy needs. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ftslurm.model.devices import CodeMeaning, Fault, FaultClass, Remedy
from ftslurm.model.events import SlurmAnswered
from ftslurm.model.folds.history import History
from ftslurm.model.folds.past import Verdicts
from ftslurm.model.rungs import Capability, Rung, Step, Steps
from ftslurm.model.settings.kinds import value_in_words
from ftslurm.model.settings.tree import LEAVES, Settings
from ftslurm.model.text import counted
from ftslurm.model.values import replace
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Retriable, Role, Verdict
from ftslurm.policies.ladder import SAME_WORDS, Alone, Cause, OtherNodes, Situation, choose, nth
from ftslurm.policies.node_charges import Series

if TYPE_CHECKING:
    from ftslurm.catalogs.patterns import ExitMeaning, Pattern

_NODE, _IDLE = "n1", "n0"
_FAILS = "the job fails, running it again cannot help (fail)"


def of_fault(meaning: CodeMeaning, settings: Settings) -> Steps:
    """A fault code that a device or its driver reports."""
    match meaning.fault_class:
        case FaultClass.SELF_HEALING:
            return _healed(Cause.INDUCED if meaning.user_induced else Cause.DEVICE, "device", settings)
        case FaultClass.AVOID:
            return (Step("", "let the job run; leave the node out when the job is requeued for another reason"),)
        case FaultClass.ISOLATE:
            return _without_node(settings)
        case FaultClass.IGNORE if meaning.remedy is Remedy.SUSPECT:
            return (Step("", "nothing but to write it down: the device still works"),)
        case FaultClass.IGNORE:
            return (Step("", "nothing but to write it down"),)
    return (Step("", "nothing on the code alone; if the command fails:"), *_again(_job(Cause.CRASH, settings)))


def of_line(pattern: Pattern, settings: Settings) -> Steps:
    """A line of output that a pattern knows."""
    if pattern.role is Role.CONTEXT:
        return (Step("", "nothing"),)
    if pattern.role is Role.SYMPTOM:
        first = Step("", "look for the cause in the output of the other ranks and among the devices; if none is found:")
        return (first, *_failed(pattern, _verdict(pattern.retriable, pattern.id, Confidence.WEAK), settings))
    if pattern.heals:
        return _healed(Cause.HARDWARE, "node", settings)
    return _failed(pattern, _verdict(pattern.retriable, pattern.id, confirm=pattern.confirm), settings)


def of_exit(found: ExitMeaning, settings: Settings) -> Steps:
    """An exit status, which decides only where neither a device nor the output says more."""
    first = Step("", "look at devices and output first; where these say nothing:")
    return (first, *_failed(found, _verdict(found.retriable, f"exit {found.status}", Confidence.WEAK), settings))


def of_unknown(settings: Settings) -> Steps:
    """A failure of which nothing is known."""
    return _again(_job(Cause.CRASH, settings, verdict=_verdict(Retriable.UNKNOWN, "unknown")))


def _job(cause: Cause, settings: Settings, **known: Any) -> Situation:
    """It has failed for the first time; a spare, an idle node and all budgets are left."""
    size = max(2, settings.nodes.min + 1)
    step = frozenset(f"n{number}" for number in range(1, size + 1))
    slurm = SlurmAnswered(
        batch=True, requeueable=True, usable=step | {_IDLE}, idle=frozenset({_IDLE}), node_count=size,
    )  # fmt: skip
    return Situation(
        cause, "", 1, _seen(1), settings, 0.0, slurm, frozenset(Capability),
        tasks=size, step=step, others=OtherNodes(spares=1), **known,
    )  # fmt: skip


def _verdict(retriable: Retriable, signature: str, sure: Confidence = Confidence.STRONG, **known: Any) -> Verdict:
    return Verdict(ErrorClass.UNKNOWN, retriable, sure, signature, "", **known)


def _seen(times: int) -> History:
    """The same failure so often in a row."""
    return History(verdicts=Verdicts(same_in_a_row=times, same_words=times))


def _rungs(job: Situation) -> Iterator[Rung]:
    """Those that answer, each as if there were none before it."""
    while (rung := choose(job).rung) is not Rung.FAIL:
        yield rung
        ladder = job.settings.ladder
        job = replace(job, settings=replace(job.settings, ladder=ladder[ladder.index(rung) + 1 :]))


def _fails(job: Situation) -> Step:
    return Step(Rung.FAIL, f"the job fails: {choose(job).why}")


def _healed(cause: Cause, where: str, settings: Settings) -> Steps:
    """An error that a restart in place answers, until it comes too often on one `where`."""
    fault = Fault(_NODE, "0", "", "", FaultClass.SELF_HEALING, cause is Cause.INDUCED)
    once = _job(cause, settings, faults=(fault,), verdict=_verdict(Retriable.YES, "", heals=True))
    then = _without_blame(once) if cause is Cause.INDUCED else _without_node(settings)
    if (choice := choose(once)).rung is not Rung.IN_PLACE_RESTART:
        why = dict(choice.passed).get(Rung.IN_PLACE_RESTART.value, "switched off")
        return (Step("", f"no in-place-restart: {why}"), *then)
    told = "stop the processes, let the device heal, run the command again on the same nodes (in-place-restart, costs nothing)"
    own, wait = settings.in_place_restart, LEAVES["rungs.in-place-restart.self_heal_wait"]
    if own.reset != "never":
        told += f"; reset the device if it has not healed in {value_in_words(wait, wait.of(settings))}"
    often = f"the {nth(own.same_code_limit)} time in {_hours(own.same_code_window_s)} on one {where}: {then[0].what}"
    return (Step(Rung.IN_PLACE_RESTART, told), Step(then[0].rung, often), *then[1:])


_WITHOUT_NODE: Mapping[Rung, Callable[[Settings], str]] = {
    Rung.NODE_REPLACEMENT: lambda s: (
        f"replace the node and keep the others (node-replacement, at most {counted(s.node_replacement.budget, 'time')})"
    ),
    Rung.SHRINK: lambda s: f"continue without the node (shrink, while {counted(s.nodes.min, 'node')} remain)",
    Rung.ISOLATED_REQUEUE: lambda s: (
        f"requeue the job without the node (isolated-requeue, one of max_restarts {s.max_restarts})"
    ),
}  # fmt: skip


def _without_node(settings: Settings) -> Steps:
    """A node is to blame."""
    job = _job(Cause.NODE, settings, blamed={_NODE: ""}, proven=frozenset({_NODE}))
    told = [Step(rung, _WITHOUT_NODE[rung](settings)) for rung in _rungs(job)]
    return (*told[:1], *(Step(each.rung, f"if that cannot be: {each.what}") for each in told[1:])) or (_fails(job),)


def _without_blame(once: Situation) -> Steps:
    """A device fault that the program brings about, and that no restart in place has healed."""
    job = replace(once, unhealed={_NODE: ""})
    if choose(job).rung is Rung.FAIL:
        return (_fails(job),)
    told = f"requeue the job and blame no node (unconditional-requeue, one of max_restarts {job.settings.max_restarts})"
    return (Step(Rung.UNCONDITIONAL_REQUEUE, told),)


def _failed(finding: Pattern | ExitMeaning, verdict: Verdict, settings: Settings) -> Steps:
    """What follows when the command has failed and this is what is known of it."""
    job = _job(Cause.CRASH, settings, verdict=verdict)
    if finding.blame is Blame.YES:
        return _on_words(settings, _without_node(settings), _again(job))
    if (tries := _tries(job, verdict)) is not None:
        return _hopeless(job, verdict, tries) if tries else (_fails(job),)
    steps = _again(job)
    if finding.blame is Blame.SUSPECT:
        then = _without_node(settings)[0]
        window = _hours(settings.in_place_restart.same_code_window_s)
        return _on_words(settings, (*steps, Step(then.rung, f"again on the same node within {window}: {then.what}")), steps)
    return steps


def _tries(job: Situation, verdict: Verdict) -> int | None:
    """How often the same is tried again before the job fails because it came back; None: that alone does not end it."""
    most = max(SAME_WORDS, 1 + verdict.confirm)
    back = (replace(job, verdict=verdict, history=_seen(times)) for times in range(1, most + 1))
    return next((number for number, again in enumerate(back) if choose(again).rung is Rung.FAIL), None)


def _hopeless(job: Situation, verdict: Verdict, alone: int) -> Steps:
    first, most = choose(job).rung, _tries(job, replace(verdict, program=True))
    if most == alone:
        experiments = [step for step in _again(job) if step.rung in _ELSEWHERE]
        return (Step(first, f"{_more(alone)} to make sure"), *experiments, Step(Rung.FAIL, f"if it recurs: {_FAILS}"))
    once = Step(first, f"on some ranks only: {_more(alone)}; if it recurs, the job fails")
    if most:
        return (Step(first, f"on most ranks: {_more(most)}; if it recurs, the job fails"), once)
    return (Step(Rung.FAIL, f"on most ranks: {_FAILS}"), once)


def _more(tries: int) -> str:
    return "one more try" if tries == 1 else f"{tries} more tries"


def _on_words(settings: Settings, may: Steps, may_not: Steps) -> Steps:
    """may: what follows while words may still cost the job a node; may_not: when they may not."""
    if not settings.blame.on_words:
        return (*may_not, Step("", "printed words alone exclude no node (blame.on_words 0)"))
    limit = f"printed words alone exclude at most {counted(settings.blame.on_words, 'node')} per job (blame.on_words)"
    back = "if the same rank fails on another node, the program is at fault and ftrun reinstates the first"
    return (*may, Step("", f"{limit}; {back}"))


_AGAIN = "again, as an experiment: run without the node"
_JUDGED = "the same there: the job fails, the program is at fault; well there: the node is excluded"
_ELSEWHERE: Mapping[Rung, str] = {
    Rung.NODE_REPLACEMENT: f"{_AGAIN}, on a spare or a borrowed one (node-replacement); {_JUDGED}",
    Rung.ISOLATED_REQUEUE: f"{_AGAIN}, if one that fits is idle now (isolated-requeue); {_JUDGED}",
}


def _again(job: Situation) -> Steps:
    """One after the other, where the command fails again and again: first here, then without the node where it did so."""
    s = job.settings
    words = {
        Rung.RANK_RESTART: "start the failed rank again; the others keep running (rank-restart, costs nothing)",
        Rung.IN_PLACE_RESTART: (
            "run the command again on the same nodes (in-place-restart, "
            f"{counted(s.in_place_restart.crash_restarts, 'time')} in a row)"
        ),
        **_ELSEWHERE,
        Rung.UNCONDITIONAL_REQUEUE: f"requeue the job (unconditional-requeue, one of max_restarts {s.max_restarts})",
    }  # fmt: skip
    job = replace(job, series=Series(suspect=_NODE, times=2))
    found = (*_rungs(replace(job, alone=Alone(0, 0))), *_rungs(job))
    steps = tuple(Step(rung, words[rung]) for rung in found)
    if Rung.UNCONDITIONAL_REQUEUE not in found:
        return steps or (_fails(job),)
    in_a_row = f"{s.unconditional_requeue.in_a_row} in a row without progress or a fact between"
    return (*steps, Step(Rung.FAIL, f"after {in_a_row}: the job fails"))


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:g} h"

"""What a fault code, an exit status or a line of output means, whose fault it is and what ftrun would do. Pure.

The rungs are named as the ladder names them; which of them are on, and how often, comes from the settings in force.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from ftslurm.model.devices import CodeMeaning, FaultClass, Remedy
from ftslurm.model.rungs import Rung
from ftslurm.model.settings.kinds import ALONE, value_in_words
from ftslurm.model.settings.tree import LEAVES, Settings, is_on
from ftslurm.model.text import counted
from ftslurm.model.values import Value
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role
from ftslurm.report.text import print_facts, safe_text
from ftslurm.report.words import FAULT, KILLED, KILLED_BY

if TYPE_CHECKING:
    from ftslurm.catalogs.patterns import ExitMeaning, Pattern


class _Step(Value):
    """What ftrun would do. rung: of the ladder; empty where none acts."""

    rung: str
    what: str


Steps = tuple[_Step, ...]


class Explained(Value):
    """One thing that was asked for."""

    asked: str  # the words or the line
    kind: str
    code: str
    name: str
    known: bool  # False where no catalogue has it
    fault: str
    does: Steps  # what ftrun would do, step after step
    why: str  # what in the catalogues decides
    sources: tuple[str, ...] = ()  # where that comes from
    part: str = ""
    note: str = ""  # what a person can do


class Background(Value):
    """What a catalogue knows of a device code besides its meaning. limit: (times, seconds) of the vendor's own rule."""

    kind: str
    part: str = ""
    note: str = ""
    sources: tuple[str, ...] = ()
    limit: tuple[int, float] | None = None


_BLAME: Mapping[Blame, str] = {
    Blame.YES: "; the node that shows it is taken out",
    Blame.SUSPECT: "; it counts against the node that shows it",
    Blame.NO: "",
}


LINE = "line of output"


# --- three kinds of things


def of_device(asked: str, meaning: CodeMeaning, known: bool, more: Background, settings: Settings) -> Explained:
    """A fault code that a device or its driver reports."""
    induced = meaning.user_induced
    why = f"{meaning.source or 'in no catalogue'}; remedy {meaning.remedy.value}"
    if more.limit:
        why += f"; MindCluster itself takes the chip out after {more.limit[0]} in {_hours(more.limit[1])}"
    return Explained(
        asked, more.kind, meaning.code, meaning.name, known, _device_fault(meaning.fault_class, induced),
        _device_steps(meaning, induced, settings), why, more.sources, more.part, more.note,
    )  # fmt: skip


def of_line(
    line: str, pattern: Pattern, sources: tuple[str, ...], settings: Settings, code: str = "", part: str = ""
) -> Explained:
    """A line of output that a pattern knows. code: what it names; that is looked up by itself. part: which word of a
    vocabulary it is, or the place in the code that it tells."""
    fault = (KILLED if pattern.id in KILLED_BY else FAULT[pattern.error_class]) + _BLAME[pattern.blame]
    does: Steps
    if code:
        does = (_Step("", f"goes by {code}, which the line names"),)
    elif pattern.role is Role.CONTEXT:
        fault, does = "nobody's: a note, no failure", (_Step("", "nothing"),)
    elif pattern.role is Role.SYMPTOM:
        fault = f"{FAULT[pattern.error_class]}; bystanders print it as well, so it blames nobody by itself"
        first = _Step("", "look for the cause in the output of the other ranks and among the devices; if none is found:")
        does = (first, *_again(pattern, 0, settings))
    else:
        does = _healed(settings) if pattern.heals else _again(pattern, pattern.confirm, settings)
    why = f"class {pattern.error_class.value}, {_retriable(pattern)}"
    return Explained(line, LINE, pattern.id, pattern.name, True, fault, does, why, sources, part, pattern.note)


def of_exit(found: ExitMeaning, sources: tuple[str, ...], settings: Settings, own: str) -> Explained:
    """An exit status, which decides only where neither a device nor the output says more. own: what it means where it is
    ftrun's own."""
    fault = (KILLED if found.error_class is ErrorClass.OOM else FAULT[found.error_class]) + _BLAME[found.blame]
    does = (_Step("", "look at devices and output first; where these say nothing:"), *_again(found, 0, settings))
    why = f"class {found.error_class.value}, {_retriable(found)}"
    code = f"exit {found.status}"
    note = "; ".join(filter(None, (f"as ftrun's own: {own}" if own else "", found.note)))
    return Explained(code, "exit status", code, found.meaning, found.listed, fault, does, why, sources, "", note)


def unknown_line(line: str, settings: Settings) -> Explained:
    """A line that no pattern knows."""
    does = _requeues(settings) if settings.retry.policy != "Never" else _NEVER
    note = "a site's own patterns are given with the setting `catalogs`, words of one job with `retry.keywords`"
    name = "unknown: would be answered from the unconditional budget"
    return Explained(line, LINE, "", name, False, FAULT[ErrorClass.UNKNOWN], does, "no pattern matches it", (), "", note)


# --- device codes


def _device_fault(fault_class: FaultClass, induced: bool) -> str:
    if induced:
        return "the program's or its data's: the node is not blamed"
    if fault_class is FaultClass.UNKNOWN:
        return FAULT[ErrorClass.UNKNOWN]
    return "nobody's so far" if fault_class is FaultClass.IGNORE else "the device's or its node's"


def _device_steps(meaning: CodeMeaning, induced: bool, s: Settings) -> Steps:
    match meaning.fault_class:
        case FaultClass.SELF_HEALING:
            return _healed(s, "device", induced)
        case FaultClass.AVOID:
            return (_Step("", "let the job run; leave the node out when the job is requeued for another reason"),)
        case FaultClass.ISOLATE:
            return _without_node(s)
        case FaultClass.IGNORE if meaning.remedy is Remedy.SUSPECT:
            return (_Step("", "nothing but to write it down: the device still works"),)
        case FaultClass.IGNORE:
            return (_Step("", "nothing but to write it down"),)
    return (_Step("", "nothing on the code alone; if the command fails:"), *_requeues(s))


def _healed(s: Settings, where: str = "node", induced: bool = False) -> Steps:
    """An error that a restart in place answers, until it comes too often on one `where`."""
    then = _without_blame(s) if induced else _without_node(s)
    if not is_on(s, Rung.IN_PLACE_RESTART):
        return (_Step("", "in-place-restart is switched off"), *then)
    told = "stop the processes, let the device heal, run the command again on the same nodes (in-place-restart, costs nothing)"
    own = s.in_place_restart
    if own.reset != "never":
        told += f"; reset the device if it has not healed in {_value('rungs.in-place-restart.self_heal_wait', s)}"
    often = f"the {_nth(own.same_code_limit)} time in {_hours(own.same_code_window_s)} on one {where}: {then[0].what}"
    return (_Step(Rung.IN_PLACE_RESTART, told), _Step(then[0].rung, often), *then[1:])


def _without_node(s: Settings) -> Steps:
    """A node is to blame."""
    steps = []
    budget = s.node_replacement.budget
    if is_on(s, Rung.NODE_REPLACEMENT) and budget:
        told = f"replace the node and keep the others (node-replacement, at most {counted(budget, 'time')})"
        steps.append(_Step(Rung.NODE_REPLACEMENT, told))
    if is_on(s, Rung.ISOLATED_REQUEUE):
        first = "if that cannot be: " if steps else ""
        told = f"{first}requeue the job without the node (isolated-requeue, one of max_restarts {s.max_restarts})"
        steps.append(_Step(Rung.ISOLATED_REQUEUE, told))
    return tuple(steps) or (_Step(Rung.FAIL, "the job fails: neither node-replacement nor isolated-requeue is switched on"),)


def _without_blame(s: Settings) -> Steps:
    """A device fault that the program brings about: the automatic requeue pays for it, whichever of the two is on."""
    if not (s.unconditional_requeue.enabled or s.isolated_requeue.enabled):
        return (_Step(Rung.FAIL, "the job fails: no requeue is switched on"),)
    told = f"requeue the job and blame no node (unconditional-requeue, one of max_restarts {s.max_restarts})"
    return (_Step(Rung.UNCONDITIONAL_REQUEUE, told),)


# --- failures of the command

_NEVER: Steps = (_Step(Rung.FAIL, "the job fails: retry.policy is Never"),)


def _again(finding: Pattern | ExitMeaning, confirm: int, s: Settings) -> Steps:
    """What follows when the command has failed and this is what is known of it."""
    if s.retry.policy == "Never":
        return _NEVER
    if finding.blame is Blame.YES:
        return _on_words(s, _without_node(s), _requeues(s))
    if finding.retriable is Retriable.NO and s.retry.policy != "OnFailure":
        return _hopeless(confirm, s)
    if s.retry.policy == "ExitCodeAndErrorMsg" and finding.retriable is Retriable.UNKNOWN:
        return (_Step(Rung.FAIL, "the job fails: retry.policy ExitCodeAndErrorMsg wants it called retriable"),)
    steps = _requeues(s)
    if finding.blame is Blame.SUSPECT:
        then = _without_node(s)[0]
        again = _Step(then.rung, f"again on the same node within {_hours(s.in_place_restart.same_code_window_s)}: {then.what}")
        return _on_words(s, (*steps, again), steps)
    return steps


def _on_words(s: Settings, may: Steps, may_not: Steps) -> Steps:
    """may: what follows while words may still cost the job a node; may_not: when they may not."""
    if not s.blame.on_words:
        return (*may_not, _Step("", "printed words alone exclude no node (blame.on_words 0)"))
    limit = f"printed words alone exclude at most {counted(s.blame.on_words, 'node')} per job (blame.on_words)"
    return (
        *may,
        _Step("", f"{limit}; if the same rank fails on another node, the program is at fault and ftrun reinstates the first"),
    )


def _hopeless(confirm: int, s: Settings) -> Steps:
    fails = "the job fails, running it again cannot help (fail)"
    if s.retry.policy == "ExitCodeAndErrorMsg":
        return (_Step(Rung.FAIL, fails),)
    if confirm:
        tries = "one more try" if confirm == 1 else f"{confirm} more tries"
        return (_Step(_first_try(s), f"{tries} to make sure"), *_elsewhere(s), _Step(Rung.FAIL, f"if it recurs: {fails}"))
    once = _Step(_first_try(s), "on some ranks only: one more try; if it recurs, the job fails")
    return (_Step(Rung.FAIL, f"on most ranks: {fails}"), once)


def _first_try(s: Settings) -> Rung:
    return (
        Rung.IN_PLACE_RESTART
        if is_on(s, Rung.IN_PLACE_RESTART) and s.in_place_restart.crash_restarts
        else Rung.UNCONDITIONAL_REQUEUE
    )


def _requeues(s: Settings) -> Steps:
    steps = []
    if s.mode in ALONE:
        steps.append(
            _Step(Rung.RANK_RESTART, "start the failed rank again; the others keep running (rank-restart, costs nothing)")
        )
    if is_on(s, Rung.IN_PLACE_RESTART) and s.in_place_restart.crash_restarts:
        often = f"{counted(s.in_place_restart.crash_restarts, 'time')} in a row"
        steps.append(_Step(Rung.IN_PLACE_RESTART, f"run the command again on the same nodes (in-place-restart, {often})"))
    steps += _elsewhere(s)
    if is_on(s, Rung.UNCONDITIONAL_REQUEUE):
        told = f"requeue the job (unconditional-requeue, one of max_restarts {s.max_restarts})"
        steps.append(_Step(Rung.UNCONDITIONAL_REQUEUE, told))
        in_a_row = f"{s.unconditional_requeue.in_a_row} in a row without progress or a fact between"
        steps.append(_Step(Rung.FAIL, f"after {in_a_row}: the job fails"))
    return tuple(steps) or (_Step(Rung.FAIL, "the job fails: unconditional-requeue is switched off"),)


def _elsewhere(s: Settings) -> Steps:
    """An experiment."""
    if not is_on(s, Rung.UNCONDITIONAL_REQUEUE) or s.retry.policy != "Evidence":
        return ()
    again = "again, as an experiment: run without the node"
    judged = "the same there: the job fails, the program is at fault; well there: the node is excluded"
    steps = []
    if is_on(s, Rung.NODE_REPLACEMENT) and s.node_replacement.budget:
        steps.append(_Step(Rung.NODE_REPLACEMENT, f"{again}, on a spare or a borrowed one (node-replacement); {judged}"))
    if is_on(s, Rung.ISOLATED_REQUEUE):
        steps.append(_Step(Rung.ISOLATED_REQUEUE, f"{again}, if one that fits is idle now (isolated-requeue); {judged}"))
    return tuple(steps)


def _retriable(finding: Pattern | ExitMeaning) -> str:
    words = {Retriable.YES: "worth another try", Retriable.ONCE: "worth one more try", Retriable.NO: "not worth another try"}
    return words.get(finding.retriable, "unknown whether it is worth another try")


def _nth(number: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:g} h"


def _value(leaf: str, s: Settings) -> str:
    return value_in_words(LEAVES[leaf], LEAVES[leaf].of(s))


# --- shown


def print_explained(console: Console, found: Sequence[Explained]) -> None:
    for number, each in enumerate(found):
        if number:
            console.print()
        console.print(safe_text(f"{each.code or each.asked}: {each.name}", style="bold" if each.known else "bold yellow"))
        facts = [("line", each.asked if each.kind == LINE and each.code else ""), ("kind", each.kind), ("part", each.part)]
        facts += [("fault", each.fault)]
        facts += [("then" if number else "ftrun", step.what) for number, step in enumerate(each.does)]
        facts += [("why", each.why), *(("source", source) for source in each.sources), ("note", each.note)]
        print_facts(console, facts, 2)

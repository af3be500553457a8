"""What a fault code, an exit status or a line of output means, whose fault it is and what ftrun would do (policies/outlook.py has
asked the ladder that). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from ftslurm.model.devices import CodeMeaning, FaultClass
from ftslurm.model.rungs import Step, Steps
from ftslurm.model.values import Value
from ftslurm.model.verdict import Blame, ErrorClass, Role
from ftslurm.report.text import print_facts, safe_text
from ftslurm.report.words import FAULT, KILLED, KILLED_BY

if TYPE_CHECKING:
    from ftslurm.catalogs.codes import Catalog
    from ftslurm.catalogs.patterns import ExitMeaning, Pattern


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


_BLAME: Mapping[Blame, str] = {
    Blame.YES: "; the node that shows it is taken out",
    Blame.SUSPECT: "; it counts against the node that shows it",
    Blame.NO: "",
}


LINE = "line of output"


# --- three kinds of things


def of_device(asked: str, meaning: CodeMeaning, catalog: Catalog, does: Steps) -> Explained:
    """A fault code that a device or its driver reports."""
    entry, limit = catalog.entry(meaning.code), catalog.limit_of(meaning.code)
    sources = tuple(catalog.sources.get(word, word) for word in entry.sources) if entry else ()
    why = f"{meaning.source or 'in no catalogue'}; remedy {meaning.remedy.value}"
    if limit:  # the vendor's own rule
        why += f"; MindCluster itself takes the chip out after {limit[0]} in {limit[1] / 3600:g} h"
    return Explained(
        asked, f"{catalog.vendor} fault code", meaning.code, meaning.name, entry is not None, _device_fault(meaning), does, why,
        sources, catalog.part_of(meaning.code), entry.note if entry else catalog.unlisted,
    )  # fmt: skip


def _device_fault(meaning: CodeMeaning) -> str:
    if meaning.user_induced:
        return "the program's or its data's: the node is not blamed"
    if meaning.fault_class is FaultClass.UNKNOWN:
        return FAULT[ErrorClass.UNKNOWN]
    return "nobody's so far" if meaning.fault_class is FaultClass.IGNORE else "the device's or its node's"


def of_line(line: str, pattern: Pattern, sources: tuple[str, ...], does: Steps, code: str = "", part: str = "") -> Explained:
    """A line of output that a pattern knows. code: what it names; that is looked up by itself. part: which word of a
    vocabulary it is, or the place in the code that it tells."""
    fault = (KILLED if pattern.id in KILLED_BY else FAULT[pattern.error_class]) + _BLAME[pattern.blame]
    if code:
        does = (Step("", f"goes by {code}, which the line names"),)
    elif pattern.role is Role.CONTEXT:
        fault = "nobody's: a note, no failure"
    elif pattern.role is Role.SYMPTOM:
        fault = f"{FAULT[pattern.error_class]}; bystanders print it as well, so it blames nobody by itself"
    return Explained(line, LINE, pattern.id, pattern.name, True, fault, does, _class_of(pattern), sources, part, pattern.note)


def of_exit(found: ExitMeaning, sources: tuple[str, ...], does: Steps, own: str) -> Explained:
    """An exit status. own: what it means where it is ftrun's own."""
    fault = (KILLED if found.error_class is ErrorClass.OOM else FAULT[found.error_class]) + _BLAME[found.blame]
    code = f"exit {found.status}"
    theirs = f"only where the rank's output names {' or '.join(found.tools)}; else the program's own" if found.tools else ""
    note = "; ".join(filter(None, (theirs, f"as ftrun's own: {own}" if own else "", found.note)))
    return Explained(code, "exit status", code, found.meaning, found.listed, fault, does, _class_of(found), sources, "", note)


def unknown_line(line: str, does: Steps) -> Explained:
    """A line that no pattern knows."""
    note = "a site's own patterns are given with the setting `catalogs`, words of one job with `retry.keywords`"
    name = "unknown: would be answered from the unconditional budget"
    return Explained(line, LINE, "", name, False, FAULT[ErrorClass.UNKNOWN], does, "no pattern matches it", (), "", note)


def _class_of(finding: Pattern | ExitMeaning) -> str:
    return f"class {finding.error_class.value}; worth another try: {finding.retriable.value}"


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

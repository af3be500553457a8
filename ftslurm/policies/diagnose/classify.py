"""Why did an attempt fail? Facts first, then what the ranks printed, then how they ended.

The reading order (the rules that make one verdict of many findings):
 1. facts beat text: a device's own code, Slurm's word on a node, the kernel's out-of-memory kill;
 2. a root line beats a symptom, the earliest beats the later ones, over all ranks (by_lines.py); an error that no pattern knows
    is a root, what is quoted, guessed or only a warning is none (findings.py), and a header defers to what names the thing;
    a line after which its rank went on well, or printed only after the ranks were told to stop, counts for nothing
    (hits.py);
 3. the same root on (nearly) every rank is the program or its data, not a node (by_lines.py);
 4. where only bystanders speak, the rank that says nothing, or is furthest behind, is the suspect (by_lines.py);
 5. then the exit statuses, a signal before a number; and if nothing of this tells, the verdict is UNKNOWN.
Source: the fault diagnosis of MindCluster, NVRx's attribution and AIMaster agree on these (cascades dominate the logs of
a failed collective).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ftslurm.catalogs.kinds import Kind, Kinds
from ftslurm.catalogs.patterns import PatternBook
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.exits import ExitStatus, signal_name
from ftslurm.model.values import replace
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Lead, RankEnd, Retriable, Role, Suspect, Verdict
from ftslurm.policies.diagnose import hits as seen
from ftslurm.policies.diagnose.by_lines import ASKED_FOR, NODES_SETUP, by_root, by_symptoms
from ftslurm.policies.diagnose.hits import EVIDENCE_LINES, Hit
from ftslurm.policies.diagnose.lines import child_status

# --- The verdict by facts (a device's code, Slurm's word, a kill for memory, a loss), and by how ranks ended (signal, status)

# Python's status for any exception, and false(1)'s, so it tells nothing.
GENERAL_ERROR = 1
# What programs end with over any error, so that their own words tell more: beside 1, a wrong call, a status of their own,
# exit(-1), and git's.
_ANY_ERROR = frozenset({GENERAL_ERROR, 2, 3, 128, 255})
# The status of a rank that MPI_Abort ended: 128 and SIGTERM.
_ASKED_OF_ITSELF = 128 + 15
_ABORT_PASSED_ON = seen.SHELLS_OWN.start + 6
_FROM_OUTSIDE = frozenset({9, 15})
_KILLED = 128 + 9
_NOT_FOR_MEMORY = "SIGKILL: killed from outside, by a person or a program: the kernel has killed nothing of it for memory"


def status_tells(end: RankEnd) -> bool:
    return end.status is not None and (end.status.signal != 0 or end.status.code != GENERAL_ERROR)


def as_its_child(end: RankEnd) -> RankEnd:
    """The end of a launcher that failed with a general error: the status of its child that it printed."""
    status = None if status_tells(end) else child_status("".join(piece.text for piece in end.output))
    return replace(end, status=status) if status else end


def _gave_up(status: ExitStatus) -> bool:
    """Is it a status with which a program ends itself after an error: by exit, or by abort?"""
    if status.signal or status.code == _ABORT_PASSED_ON:
        return status.code == _ABORT_PASSED_ON or signal_name(status.signal) == "SIGABRT"
    return status.code in (_ASKED_OF_ITSELF, *_ANY_ERROR) or status.code not in (0, *seen.SHELLS_OWN)


def ended_alike(silent: Sequence[RankEnd], ends: Sequence[RankEnd], spoke: Collection[int]) -> bool:
    how = {end.status for end in ends if end.rank in spoke and seen.failed(end)}
    return all(end.status in how and end.status is not None and _gave_up(end.status) for end in silent)


def by_status(ends: Sequence[RankEnd], silent: Sequence[RankEnd], symptoms: Sequence[Hit], book: PatternBook) -> Verdict:
    """The verdict from exit statuses. silent: ranks that failed without known output. Signals count before numbers, and
    earlier ends before later ones."""
    first = _first_to_tell(silent)
    assert first.status is not None
    same = {end.rank: end for end in silent if end.status == first.status}
    everywhere = seen.widespread(same, ends)
    m = book.exit(first.status.shell, "".join(piece.text for piece in first.output))
    if first.oom is False and first.status.shell == _KILLED:
        m = replace(m, meaning=_NOT_FOR_MEMORY, error_class=ErrorClass.UNKNOWN)
    number = first.status.signal
    words = seen.end_words(first)
    signature = signal_name(number) if number else f"exit {first.status.code}"
    known = first.status.code != GENERAL_ERROR or number
    itself = seen.own_words(first, [seen.beginning(hit) for hit in symptoms if hit.end.rank == first.rank])
    if not itself and all(hit.pattern.id in seen.HEADERS for hit in symptoms):
        itself = seen.complaint_of(first)
    means = m.listed and number == 0 and first.status.code not in (*_ANY_ERROR, _ASKED_OF_ITSELF, _ABORT_PASSED_ON)
    if itself and _gave_up(first.status) and not means:
        return _by_last_words(first, same, everywhere, signature, itself, symptoms, seen.spread_of(same, ends), book.kinds)
    what = f"rank {first.rank} on {first.node} {first.status}"
    alone = signature in NODES_SETUP and seen.one_node(same, ends)
    held = bool(alone) or (known and not everywhere and m.blame is not Blame.NO)
    if first.status.code in _ANY_ERROR and any(piece.text.strip() for piece in first.output):
        held = False  # a launcher that fails says nothing on the program's behalf; a program that speaks has ended itself
    # What is wrong with one node's processor or installation, another node may not have.
    others = held and m.retriable is Retriable.NO and bool(seen.no_other_node(same, ends))
    evidence = [what + (f" ({m.meaning})" if known else ", and none of its output is known") + words]
    evidence += [str(hit) for hit in seen.one_a_rank(symptoms)]
    crash = signature in ASKED_FOR and (everywhere or len({end.node for end in ends}) == 1)
    error_class = m.error_class if known else ErrorClass.UNKNOWN
    retriable = Retriable.ONCE if others else m.retriable if known else Retriable.UNKNOWN
    rules = ["one-node-only"] if alone else []
    if crash:
        error_class, retriable = ErrorClass.USER_CODE, Retriable.NO
        rules.append("asked-for")
    if (told := seen.slurms_reason(first, number)) and (kind := book.kinds.of_words(told)):
        error_class, retriable = kind.error_class, kind.retriable
        rules.append("slurms-reason")
    return Verdict(
        error_class, retriable,
        Confidence.WEAK if known else Confidence.NONE, signature, evidence[0],
        (Suspect(first.node, first.rank, Blame.SUSPECT, what),) if held else (), tuple(evidence[:EVIDENCE_LINES]),
        everywhere and bool(known), confirm=1 if crash else 0, shown=seen.places_of(same),
        lead=Lead(
            first.rank, first.node, f"{signature}{words}", m.meaning if known else "" if words else "it printed nothing",
            spread=seen.spread_of(same, ends),
        ),
        because=(signature, *rules),
    )  # fmt: skip


def _first_to_tell(silent: Sequence[RankEnd]) -> RankEnd:
    """The rank whose end tells most: the first that crashed, unless another had failed before and says of what; else the first.

    One that was killed gives way to one that crashed in the same moments: launchers kill the others. (One that aborts may do so
    because the killed one is gone.)
    """
    in_time = sorted(silent, key=lambda end: end.at)
    crashed = [end for end in in_time if end.status and end.status.signal]
    first = crashed[0] if crashed else in_time[0]
    if first.status and first.status.signal in _FROM_OUTSIDE:
        own = (end for end in crashed if end.status and end.status.signal in seen.OF_ITSELF)
        first = next((end for end in own if end.at <= first.at + seen.BURST_S), first)
    before = [end for end in in_time if end.at < first.at - seen.JITTER_S and not (end.status and end.status.signal)]
    return next((end for end in before[: seen.LISTENED_TO] if crashed and seen.own_words(end, (), vaguely=False)), first)


def _by_last_words(
    first: RankEnd, same: Mapping[int, RankEnd], everywhere: bool, signature: str, words: str, symptoms: Sequence[Hit],
    spread: str, kinds: Kinds,
) -> Verdict:  # fmt: skip
    """The verdict on a program that prints an error and ends itself: the next start usually fails in the same way.

    An exception are words about something that passes.
    """
    what = f"rank {first.rank} on {first.node} {first.status}; it printed: {words}"
    evidence = [what, *(str(hit) for hit in seen.one_a_rank(symptoms))]
    kind = kinds.of_words(words) or Kind(ErrorClass.USER_CODE, Retriable.NO)
    return Verdict(
        kind.error_class, kind.retriable, Confidence.WEAK, signature, what, (), tuple(evidence[:EVIDENCE_LINES]),
        everywhere, confirm=1, shown=seen.places_of(same), lead=Lead(first.rank, first.node, words, spread=spread),
        because=(signature, "last-words"),
    )  # fmt: skip


_LESS_MEMORY = "request more memory (--mem), or use less: fewer loader workers, smaller batches"


def by_facts(hits: Sequence[Hit], facts: seen.Facts) -> Verdict | None:
    """The verdict from facts. hits: what the ranks printed; a root line on the same node makes a suspicion certain."""
    blamed = facts.bad_nodes
    acting = [f for f in facts.faults if f.fault_class in (FaultClass.SELF_HEALING, FaultClass.ISOLATE)]
    hardware = [f for f in acting if f.blames_node]
    if not blamed and not acting:
        return None
    roots = [hit for hit in hits if hit.pattern.role is Role.ROOT]
    convicted = {hit.end.node for hit in roots if hit.pattern.blame is Blame.YES}
    suspects = [Suspect(node, -1, Blame.YES, why) for node, why in blamed.items()]
    for fault in hardware:
        certain = fault.fault_class is FaultClass.ISOLATE or fault.node in convicted
        suspects.append(Suspect(fault.node, -1, Blame.YES if certain else Blame.SUSPECT, str(fault)))
    evidence = [f"{node}: {why}" for node, why in blamed.items()] + [str(fault) for fault in acting]
    evidence += [str(hit) for hit in seen.one_a_rank(roots)]
    signature = acting[0].code if acting else "node"
    if blamed or hardware:
        error_class = ErrorClass.HARDWARE
    elif any(fault.shared for fault in acting):
        error_class = ErrorClass.UNKNOWN
    else:  # the program's own doing, which its own words may name better
        error_class = ErrorClass.USER_CODE
        signature = next((hit.pattern.id for hit in roots if hit.pattern.error_class is error_class), signature)
    program = error_class is ErrorClass.USER_CODE and len({(fault.node, fault.device) for fault in acting}) > 1
    lead = _of_node(*next(iter(blamed.items()))) if blamed else _of_fault(acting[0])
    return Verdict(
        error_class, Retriable.YES, Confidence.FACT, signature, evidence[0], tuple(suspects), tuple(evidence[:EVIDENCE_LINES]),
        program, lead=lead, because=("node-broken" if blamed else "device-code",),
    )  # fmt: skip


def _of_node(node: str, why: str) -> Lead:
    return Lead(-1, node, why, advice=f"reboot {node}; if that does not mend it, have it repaired or replaced")


def _of_fault(fault: Fault) -> Lead:
    device = f"device {fault.device} of {fault.node}"
    advice = ""
    if fault.blames_node and fault.fault_class is FaultClass.ISOLATE:
        advice = f"reboot {fault.node}; if the fault stays, replace {device}"
    elif fault.blames_node:
        advice = f"if it comes back: reset {device} while no job uses it, then reboot {fault.node}, then replace the device"
    return Lead(-1, fault.node, fault.code, fault.name, device, advice=advice)


def out_of_memory(killed: Sequence[RankEnd], hits: Sequence[Hit]) -> Verdict:
    """The verdict on ranks killed for memory. The job causes it on whichever node, so no node is excluded.

    hits: Slurm's own word on it, in whosever output it stands, is shown as well.
    """
    evidence = [f"rank {end.rank} on {end.node}: killed by the kernel: out of memory" for end in killed]
    if said := next((hit.line for hit in hits if hit.pattern.id == seen.SLURMS_WORD_ON_MEMORY), ""):
        evidence[0] += f"; {said}"
    lead = Lead(
        killed[0].rank, killed[0].node, "killed by the kernel: out of memory",
        spread=f"{len(killed)} ranks" if len(killed) > 1 else "", advice=_LESS_MEMORY,
    )  # fmt: skip
    return Verdict(
        ErrorClass.OOM, Retriable.NO, Confidence.FACT, "oom-kill", evidence[0], (), tuple(evidence[:EVIDENCE_LINES]), confirm=1,
        lead=lead, because=("oom-kill",),
    )  # fmt: skip


def by_loss(lost: Sequence[RankEnd], symptoms: Sequence[Hit]) -> Verdict:
    """The verdict on lost ranks, which cannot print anything more."""
    nodes = {end.node: end for end in reversed(lost)}
    suspects = tuple(Suspect(node, end.rank, Blame.SUSPECT, f"rank {end.rank} on {node} was lost") for node, end in nodes.items())
    evidence = [suspect.why for suspect in suspects] + [str(hit) for hit in seen.one_a_rank(symptoms)]
    return Verdict(
        ErrorClass.UNKNOWN, Retriable.YES, Confidence.WEAK, "lost", evidence[0],
        suspects if len(suspects) == 1 else (), tuple(evidence[:EVIDENCE_LINES]),
        lead=Lead(lost[0].rank, lost[0].node, "was lost", "for an unknown reason"), because=("rank-lost",),
    )  # fmt: skip


# --- the order of reading


def diagnose(ends: Sequence[RankEnd], facts: seen.Facts, book: PatternBook) -> Verdict:
    """The verdict on one attempt. ends: every rank of it."""
    hits = [hit for end in ends for hit in seen.hits_of(end, book)]
    first = min((end.at for end in ends if seen.failed(end)), default=float("inf"))
    live = [hit for hit in hits if not hit.overcome and not seen.after_the_fact(hit, first)]
    live = list(seen.without_warnings(live))
    if found := by_facts(live, facts):
        return found
    found = _by_words(ends, live, book)
    if (known := book.named(found.signature)) and known.hidden_by:
        found = replace(found, hidden_by=known.hidden_by)
    return _with_keywords(without_control(found, ends), live)


def _by_words(ends: Sequence[RankEnd], hits: Sequence[Hit], book: PatternBook) -> Verdict:
    if oom := [end for end in ends if end.oom]:
        return out_of_memory(oom, hits)
    said = [_not_for_memory(hit) for hit in hits if hit.pattern.role is Role.ROOT]
    if roots := seen.unless_told_before(seen.but_reports(said, hits), hits, ends):
        return by_root(ends, roots, hits, book.kinds)
    symptoms = [hit for hit in hits if hit.pattern.role is Role.SYMPTOM]
    if lost := [end for end in ends if end.lost]:
        return by_loss(lost, symptoms)
    if silent := _silent(ends, symptoms):
        return by_status(ends, silent, symptoms, book)
    return by_symptoms(ends, symptoms, book.kinds) if symptoms else _nothing(ends)


def _not_for_memory(hit: Hit) -> Hit:
    """A child that went away is not one too many for the memory where the kernel says that it has killed none for that."""
    if hit.pattern.id != "dataloader-killed" or hit.end.oom is not False:
        return hit
    changed: dict[str, Any] = {"error_class": ErrorClass.UNKNOWN, "retriable": Retriable.YES, "note": _NOT_FOR_MEMORY}
    return replace(hit, pattern=hit.pattern.by("not-for-memory", **changed))


def _silent(ends: Sequence[RankEnd], symptoms: Sequence[Hit]) -> Sequence[RankEnd]:
    """The ranks that failed and of which no line is known, where their ends tell more than what bystanders say."""
    spoke = {hit.end.rank for hit in symptoms if hit.pattern.id not in seen.HEADERS}
    headers: dict[int, set[str]] = defaultdict(set)
    for hit in symptoms:
        headers[hit.end.rank].add(seen.beginning(hit))
    silent = [as_its_child(end) for end in ends if seen.failed(end) and end.rank not in spoke]
    # What a rank said itself, before it passed on that another process failed, tells more, too.
    silent = [
        end for end in silent
        if end.rank not in headers or status_tells(end) or seen.own_words(end, headers[end.rank], vaguely=False)
    ]  # fmt: skip
    if not symptoms or not ended_alike(silent, ends, spoke):
        return silent
    # What those who spoke ended with as well tells no more than their words: an abort by who saw the same. An exception is who
    # failed before them, and says of what.
    return seen.told_before(silent, symptoms)


def _with_keywords(verdict: Verdict, hits: Sequence[Hit]) -> Verdict:
    """A keyword of the user's own, in the output of a rank that failed, makes the error retriable (AIMaster)."""
    for hit in hits:
        if hit.own and hit.pattern.id.startswith("keyword:"):
            evidence = (*verdict.evidence[: EVIDENCE_LINES - 1], f"matches retry.keywords: {hit}")
            return verdict.by("retry.keywords", retriable=Retriable.YES, evidence=evidence, called=True)
    return verdict


def _nothing(ends: Sequence[RankEnd]) -> Verdict:
    what = "no rank failed by itself, and no output is known"
    return Verdict(ErrorClass.UNKNOWN, Retriable.UNKNOWN, Confidence.NONE, "unknown", what)


def without_control(verdict: Verdict, ends: Sequence[RankEnd]) -> Verdict:
    """The verdict for ranks that all run on one node, or one rank of an async job: nothing to compare it with, so only the
    hardware's own report blames the node."""
    if len({end.node for end in ends}) > 1:
        return verdict
    own = verdict.error_class is ErrorClass.HARDWARE and not verdict.hidden_by
    kept = tuple(suspect for suspect in verdict.suspects if own and suspect.blame is Blame.YES)
    return verdict if kept == verdict.suspects else verdict.by("nothing-to-compare", suspects=kept)

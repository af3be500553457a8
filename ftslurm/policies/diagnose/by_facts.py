"""The verdict by facts: a device's own code, Slurm's word on a node, the kernel's kill for memory, a rank that was lost."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Lead, RankEnd, Retriable, Role, Suspect, Verdict
from ftslurm.policies.diagnose.hits import EVIDENCE_LINES, SLURMS_WORD_ON_MEMORY, Facts, Hit, one_a_rank

_LESS_MEMORY = "request more memory (--mem), or use less: fewer loader workers, smaller batches"


def by_facts(hits: Sequence[Hit], facts: Facts) -> Verdict | None:
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
    evidence += [str(hit) for hit in one_a_rank(roots)]
    signature = acting[0].code if acting else "node"
    if blamed or hardware:
        error_class = ErrorClass.HARDWARE
    elif any(fault.shared for fault in acting):
        error_class = ErrorClass.UNKNOWN
    else:  # the program's own doing, which its own words may name better
        error_class = ErrorClass.USER_CODE
        signature = next((hit.pattern.id for hit in roots if hit.pattern.error_class is error_class), signature)
    program = error_class is ErrorClass.USER_CODE and len({(fault.node, fault.device) for fault in acting}) > 1
    lead = Lead(-1, *next(iter(blamed.items()))) if blamed else _of_fault(acting[0])
    return Verdict(
        error_class, Retriable.YES, Confidence.FACT, signature, evidence[0], tuple(suspects), tuple(evidence[:EVIDENCE_LINES]),
        program, lead=lead, because=("node-broken" if blamed else "device-code",),
    )  # fmt: skip


def _of_fault(fault: Fault) -> Lead:
    return Lead(-1, fault.node, fault.code, fault.name, f"device {fault.device} of {fault.node}")


def out_of_memory(killed: Sequence[RankEnd], hits: Sequence[Hit]) -> Verdict:
    """The verdict on ranks killed for memory. The job causes it on whichever node, so no node is excluded.

    hits: Slurm's own word on it, in whosever output it stands, is shown as well.
    """
    evidence = [f"rank {end.rank} on {end.node}: killed by the kernel: out of memory" for end in killed]
    if said := next((hit.line for hit in hits if hit.pattern.id == SLURMS_WORD_ON_MEMORY), ""):
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
    evidence = [suspect.why for suspect in suspects] + [str(hit) for hit in one_a_rank(symptoms)]
    return Verdict(
        ErrorClass.UNKNOWN, Retriable.YES, Confidence.WEAK, "lost", evidence[0],
        suspects if len(suspects) == 1 else (), tuple(evidence[:EVIDENCE_LINES]),
        lead=Lead(lost[0].rank, lost[0].node, "was lost", "for an unknown reason"), because=("rank-lost",),
    )  # fmt: skip

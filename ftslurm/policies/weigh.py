"""What only the job knows of a verdict: its own words, where the error showed, and whether it goes with the node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ftslurm.model.decisions import Diagnose
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.folds.history import History
from ftslurm.model.folds.past import Sighting
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.record import Diagnosed
from ftslurm.model.values import Value, replace
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, RankEnd, Retriable, Suspect, Verdict

# --- Corrects verdicts: device codes that are no hardware fault, words that the program calls retriable, and devices that
# only the program cannot see

# Several chips that raise the same code at the same moment received the same bad work. Source: MindCluster's
# ClusterD, which does not count such a code as a suspicion against hardware.
SAME_MOMENT_S = 30.0


def common_codes(faults: Iterable[Fault], history: History) -> frozenset[str]:
    """Codes that several chips raised within SAME_MOMENT_S: they are no suspicion against any of these. A code that takes its
    node out is more than a suspicion, on however many nodes.
    """
    found = set()
    for fault in faults:
        if fault.fault_class is FaultClass.ISOLATE:
            continue
        mine = history.faults.get(fault.key, (0.0,))[-1]
        for (node, device, code), times in reversed(history.faults.items()):
            if times[-1] < mine - SAME_MOMENT_S:
                break  # the one that was seen last stands last
            another = (node, device) != (fault.node, fault.device)
            if code == fault.code and another and times[-1] <= mine + SAME_MOMENT_S:
                found.add(code)
    return frozenset(found)


def without_common(faults: Iterable[Fault], common: frozenset[str]) -> tuple[Fault, ...]:
    """The faults, where those of a common code blame no node."""
    return tuple(replace(fault, shared=True) if fault.code in common else fault for fault in faults)


def _with_own_words(verdict: Verdict, ends: Iterable[RankEnd], words: Iterable[str]) -> Verdict:
    """The verdict, retriable if a failed rank's last output holds words that the program called retriable (AIMaster)."""
    wanted = tuple(words)
    for end in ends if wanted else ():
        if end.status is None or end.status.ok or end.stopped:
            continue
        text = "".join(piece.text for piece in end.output)
        if found := next((word for word in wanted if word in text), ""):
            evidence = (*verdict.evidence[:5], f"matches the program's own retriable words: `{found}`")
            return verdict.by("own-words", retriable=Retriable.YES, evidence=evidence, called=True)
    return verdict


def without_own_view(verdict: Verdict, none: Collection[str], well: Collection[str]) -> Verdict:
    """A program that sees no device is wrong about the hardware where its own environment hides them, and on a node whose
    devices were found healthy since then.

    none: ftrun's variables that would show it none, such as `CUDA_VISIBLE_DEVICES`. well: nodes with healthy devices.
    """
    if not verdict.hidden_by or verdict.confidence is Confidence.FACT:
        return verdict
    hidden = next((name for name in verdict.hidden_by if name in none), "")
    accused = tuple(suspect for suspect in verdict.suspects if not hidden and suspect.node not in well)
    if accused or (not hidden and not verdict.suspects):
        return verdict.by("hidden-devices", suspects=accused)
    nodes = ", ".join(sorted({suspect.node for suspect in verdict.suspects}))
    why = f"{hidden} shows the program no device" if hidden else f"a check since then found the devices of {nodes} healthy"
    advice = f"unset {hidden}, or ask Slurm for devices (--gres)"
    advice = advice if hidden else f"check --gres and {verdict.hidden_by[0]} of the step"
    return verdict.by(
        "hidden-devices", error_class=ErrorClass.USER_CODE, retriable=Retriable.NO, suspects=(), confirm=max(1, verdict.confirm),
        heals=False,
        what=f"{why}: it is the program's environment ({verdict.what})", evidence=(*verdict.evidence[:5], why),
        lead=replace(verdict.lead, advice=advice),
    )  # fmt: skip


# --- Where did an error show, and how early: on most ranks at once, or on one node before any rank had begun?
#
# The same root on most ranks or nodes before any progress is the program's or its environment's: one more try, then no. On
# one node only, before any other rank printed anything, it is that node's set-up: other nodes are worth a try

# An attempt that has lived for so long has begun its work, whether its program tells steps or not (hang.start).
BEGUN_S = 600.0


def with_spread(verdict: Verdict, ends: Sequence[RankEnd], progressed: bool) -> Verdict:
    """progressed: has the job ever made progress? Then an error of all ranks may come from outside, and pass."""
    if progressed or verdict.called or not _counts(verdict, ends):
        return verdict
    if on_most(verdict.shown, ends):
        return _on_most(verdict)
    if node := _set_up(verdict, ends):
        return _setup(verdict, node)
    return verdict


def on_the_whole(verdict: Verdict, asked: Diagnose) -> Verdict:
    """The verdict, corrected by the program's own retriable words and by where the error showed."""
    progressed = asked.rank is not None or asked.progressed
    return with_spread(_with_own_words(verdict, asked.ends, asked.own_words), asked.ends, progressed)


def _counts(verdict: Verdict, ends: Sequence[RankEnd]) -> bool:
    """Roots; of what only bystanders say, what all say that failed, so that nobody is left whom they can be bystanders of.

    An exit status alone is no word: ranks that end alike for reasons of which nothing is known need not have the same reason.
    """
    if verdict.confidence is Confidence.WEAK:
        if verdict.error_class is ErrorClass.UNKNOWN:
            return False
        own = {end.rank for end in ends if end.status is not None and not end.status.ok and not end.stopped}
        return on_most(verdict.shown, ends) and own <= verdict.shown.keys() and not verdict.suspects
    return verdict.confidence is Confidence.STRONG


def still_on_most(verdict: Verdict, before: Diagnosed | None) -> Verdict:
    """What was on most ranks in the attempt before, and has come again without progress between, is the same, though most ranks
    were stopped this time before they came to it."""
    again = before is not None and before.program and before.signature == verdict.signature
    if not again or verdict.program or verdict.called or verdict.confidence is Confidence.FACT:
        return verdict
    return verdict.by("again-on-most", retriable=Retriable.NO, suspects=(), program=True, heals=False)


def on_most(shown: Mapping[int, str], ends: Sequence[RankEnd]) -> bool:
    """Did at least half of the ranks, on several nodes, show it, or ranks on most nodes?"""
    nodes, all_nodes = set(shown.values()), {end.node for end in ends}
    if len(nodes) < 2:
        return len(all_nodes) == 1 and 1 < len(shown) == len(ends)
    return 2 * len(shown) >= len(ends) or 2 * len(nodes) > len(all_nodes)


def _on_most(verdict: Verdict) -> Verdict:
    """The verdict for an error on most ranks: no more tries if it is on every rank at once, else one more."""
    if verdict.retriable is Retriable.NO:
        return verdict.by("on-most-ranks", suspects=())
    # Because they all agree.
    sure = verdict.by("on-most-ranks", confidence=Confidence.STRONG, suspects=(), program=True, heals=False)
    return replace(sure, retriable=Retriable.ONCE, confirm=max(1, verdict.confirm))


def _set_up(verdict: Verdict, ends: Sequence[RankEnd]) -> str:
    """The node all of whose ranks failed so, while no other rank had printed anything yet; else empty."""
    nodes = set(verdict.shown.values())
    mine = {end.rank for end in ends if end.node in nodes}
    others = [end for end in ends if end.rank not in mine]
    printed = any(piece.text.strip() for end in others for piece in end.output)
    if len(nodes) != 1 or mine != verdict.shown.keys() or not others or printed:
        return ""
    return nodes.pop()


def _setup(verdict: Verdict, node: str) -> Verdict:
    rank = min(verdict.shown)
    why = f"only {node} failed, before any other rank had printed anything: its set-up may be wrong"
    suspects = verdict.suspects or (Suspect(node, rank, Blame.SUSPECT, why),)
    retriable = Retriable.ONCE if verdict.retriable is Retriable.NO else verdict.retriable
    return verdict.by("set-up-of-node", suspects=suspects, retriable=retriable, setup=why, evidence=(*verdict.evidence, why)[:6])


# --- Is the node or the program to blame? By contrast: does the same error come again with the node, or without it?
#
# What words accuse a node of is compared with what the job has seen before. An error that comes with the same rank to another
# node, or at the same training step, or though the accused node has been left, is the program's or its data's; the nodes
# that were accused of it are not to blame, and those that were left for it may be used again

# Errors of these classes get one more try before the program is blamed.
_WORTH_MORE = frozenset({ErrorClass.HARDWARE, ErrorClass.NETWORK})
# Classes that blame no machine stay as they are.
_KEPT = frozenset({ErrorClass.DATA, ErrorClass.OOM, ErrorClass.STORAGE})
EVIDENCE_LINES = 6
SAME = "the same error"
# What is to blame instead, for classes where it need not be the program.
_INSTEAD = {
    ErrorClass.NETWORK: "it is not the node, but the program or what it connects to",
    ErrorClass.STORAGE: "it is not the node, but the storage or the program",
    ErrorClass.DATA: "it is not the node, but the data or the program",
}


class Contrast(Value):
    """follows: what the error follows from node to node. why: one sentence. cleared: nodes that were blamed wrongly."""

    follows: str
    why: str
    cleared: tuple[str, ...]


def contrast(
    signature: str, shown: Mapping[int, str], history: History, since: float, step: int = 0,
    error_class: ErrorClass = ErrorClass.USER_CODE,
) -> Contrast | None:  # fmt: skip
    """What the error follows, if not the node. shown: rank -> node, in this attempt. history: of earlier attempts only.

    since: earlier sightings do not count, Unix seconds. step: to which the training had come, 0 if not told.
    """
    before = [seen for seen in history.verdicts.sightings if seen.signature == signature and seen.at >= since]
    if not before or not shown:
        return None
    for follows, nodes in (_rank(before, shown), _step(before, shown, step), _without(signature, shown, history)):
        if follows:
            accused = {seen.node for seen in before} | {
                n for n, sign in history.exclusions.left_on_words.items() if sign == signature
            }
            why = f"{SAME} ({signature}) {nodes}: {_INSTEAD.get(error_class, 'it is the program')}"
            return Contrast(follows, why, tuple(sorted(accused)))
    return None


def _rank(before: list[Sighting], shown: Mapping[int, str]) -> tuple[str, str]:
    for rank, node in sorted(shown.items()):
        if others := {seen.node for seen in before if seen.rank == rank} - {node}:
            return f"rank {rank}", f"on rank {rank} on {_and({*others}, node)}"
    return "", ""


def _step(before: list[Sighting], shown: Mapping[int, str], step: int) -> tuple[str, str]:
    here = set(shown.values())
    others = {seen.node for seen in before if step and seen.step == step} - here
    return (f"step {step}", f"at step {step} on {_and(others, min(here))}") if others else ("", "")


def _without(signature: str, shown: Mapping[int, str], history: History) -> tuple[str, str]:
    """The error came again without the suspected node, and no progress was made in between: that node is not to blame."""
    here = set(shown.values())
    left = {
        node
        for node, sign in history.exclusions.left_on_words.items()
        if sign == signature
        and node in history.exclusions.isolated
        and history.exclusions.isolated[node][1] >= history.progress.made_at
    }
    if not left or left & here:
        return "", ""
    return "no node", f"on {fold_nodes(here)} as well, without {fold_nodes(left)}"


def _and(before: set[str], now: str) -> str:
    return f"{fold_nodes(before)} and {now}"


def with_contrast(verdict: Verdict, found: Contrast) -> Verdict:
    """The verdict on an error of the program. One more attempt confirms it; two where the hardware seemed to be at fault."""
    confirm = 2 if verdict.error_class in _WORTH_MORE else max(1, verdict.confirm)
    error_class = verdict.error_class if verdict.error_class in _KEPT else ErrorClass.USER_CODE
    retriable = Retriable.YES if verdict.called else Retriable.NO
    evidence = [piece for piece in verdict.evidence if piece != verdict.setup]
    return verdict.by(
        "contrast", error_class=error_class, retriable=retriable, confidence=Confidence.STRONG,
        what=f"{found.why} ({verdict.what})", suspects=(), evidence=(found.why, *evidence)[:EVIDENCE_LINES],
        confirm=confirm, heals=False, follows=found.follows,
    )  # fmt: skip


def shown_by(verdict: Verdict) -> dict[int, str]:
    """rank -> node, for ranks whose output makes their nodes suspects; empty for a fact, or an error of the program."""
    if verdict.confidence is Confidence.FACT or verdict.program:
        return {}
    accused = {suspect.node for suspect in verdict.suspects}
    ranks = {rank: node for rank, node in verdict.shown.items() if node in accused}
    return ranks or {suspect.rank: suspect.node for suspect in verdict.suspects if suspect.rank >= 0}

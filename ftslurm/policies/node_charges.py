"""What speaks against a node: experiments with the same crash, and what a verdict may charge to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ftslurm.model.folds.history import HANG, History
from ftslurm.model.folds.past import Crashes
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.settings.features import BlameSettings, InPlaceRestartSettings
from ftslurm.model.settings.tree import Settings
from ftslurm.model.text import counted
from ftslurm.model.values import Value, field
from ftslurm.model.verdict import UNKNOWN, Blame, Confidence, ErrorClass, Retriable, Suspect, Verdict

# --- Is it the node or the program? A crash that no fact explains is compared with the same crash before.
#
# One node explains them all if a rank failed on it each time that an attempt ran there, and no attempt ran without it: that
# it came again there is one observation, however often. An attempt without the node tells: the same again is the program's,
# and what runs well elsewhere excludes the node


class Series(Value):
    """The same crash, the present one included. suspect: the node that may explain it, and that no experiment has left; times:
    how often the job failed there. elsewhere: why no node explains it, empty if one may.
    """

    suspect: str = ""
    times: int = 0
    elsewhere: str = ""
    in_place: int = 0  # crashes, whatever they were, that were answered in place since the job last made progress


# One crash here and one there may be two accidents; under the default there are two here before one elsewhere.
CRASHES_LEAST = 3


def series_of(verdict: Verdict | None, step: Collection[str], command: str, before: Crashes) -> Series:
    """step: nodes of the attempt that has just failed. command: its step key."""
    in_place = before.in_place.get(command, 0)
    if not _may_be_a_node(verdict, step):
        return Series(in_place=in_place)
    assert verdict is not None
    here = verdict.lead.node
    same = before.once_more(command, verdict.signature, here, frozenset(step))
    times = same.times
    suspects = [node for node in times if node in same.everywhere]
    if not suspects:
        proven = sum(times.values()) >= CRASHES_LEAST and verdict.retriable is not Retriable.YES
        return Series(elsewhere=f"{verdict.signature} on {fold_nodes(times)} alike" if proven else "", in_place=in_place)
    open_ = [node for node in suspects if node not in before.left]
    suspect = max(open_, key=lambda node: (times[node], node == here), default="")
    return Series(suspect, times.get(suspect, 0), in_place=in_place)


def _may_be_a_node(verdict: Verdict | None, step: Collection[str]) -> bool:
    """Not where the cause is a fact, or unknown to all, nor where ranks on several nodes have shown it at once."""
    if verdict is None or verdict.confidence is Confidence.FACT or verdict.signature == UNKNOWN:
        return False
    return verdict.lead.node in step and (len(step) == 1 or not verdict.program)


# --- What may cost a node, and how much of it: facts at any time, words within a budget, a memory only where it is named.
#
# Words are what ranks printed, how they ended, and what their collectives looked like while they hung: any program can bring
# them about on any node. On words alone a job leaves `blame.on_words` nodes in its whole life, reinstated ones counted; whatever
# else they accuse stays in the job. Facts are a device's own code, Slurm's word, a second proof of silence, processes that
# outlive SIGKILL

# A suspicion that comes back on the same node within the window of the 24-hour rule is one too many.
SUSPECT_LIMIT = 2
# What a node can be behind, so that what earlier jobs saw there counts.
_NODES_OWN = frozenset({ErrorClass.HARDWARE, ErrorClass.NETWORK})
# What a program brings about by itself far more often than a node does.
_PROGRAMS_OWN = frozenset({ErrorClass.USER_CODE, ErrorClass.DATA, ErrorClass.OOM})


class Charges(Value):
    """node -> why. facts: proven. orders: what the program itself wants left. named: by words, and by what earlier jobs left
    the node for. words: by words alone. spared: accused by words, and not left for them; why not.

    signature: of the words. often: of those accused by words, how often these were held against the node, where that counts.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    orders: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    spared: Mapping[str, str] = field(default_factory=dict)
    signature: str = ""
    often: Mapping[str, str] = field(default_factory=dict)

    @property
    def blamed(self) -> dict[str, str]:
        """The heaviest charge of a node is the one that is told."""
        return {**self.words, **self.named, **self.orders, **self.facts}

    @property
    def on_words(self) -> dict[str, tuple[str, str]]:
        """node -> signature and how often, of those that nothing but words speaks against."""
        others = {*self.facts, *self.orders, *self.named}
        return {node: (self.signature, self.often.get(node, "")) for node in self.words if node not in others}


def charges(
    verdict: Verdict | None, hung: Mapping[str, str], orders: Mapping[str, str], history: History, settings: Settings, now: float,
    remembered: Mapping[str, str], step: Collection[str],
) -> Charges:  # fmt: skip
    """What speaks against nodes beside what is seen of them now. now: Unix seconds.

    hung: node -> why a hang is held against it. orders: node -> why the program wants it left. remembered: node -> why earlier
    jobs left it. step: the nodes that ranks are on. history: with this verdict in it.
    """
    if verdict is not None and verdict.confidence is Confidence.FACT:
        proven = {suspect.node: suspect.why for suspect in verdict.suspects if suspect.blame is Blame.YES}
        return Charges(facts=proven, orders=orders)  # a hang that a fact explains is held against nobody else
    guilty = convicted(verdict, history, settings.in_place_restart, now, step) if verdict is not None else {}
    accused = {node: f"{why}; held against it {often}" if often else why for node, (why, often) in guilty.items()}
    named = _named(verdict, remembered) if verdict is not None else {}
    signature = verdict.signature if verdict is not None and not hung else HANG
    others = {**hung, **{node: why for node, why in accused.items() if node not in named}}
    left = {node: others[node] for node in within_budget(others, history, settings.blame)}
    spared = {node: why for node, why in others.items() if node not in left}
    often = {node: times for node, (_, times) in guilty.items()}
    return Charges({}, orders, named, left, _not_left(spared, history, settings.blame), signature, often)


def convicted(
    verdict: Verdict, history: History, codes: InPlaceRestartSettings, now: float, step: Collection[str]
) -> dict[str, tuple[str, str]]:
    """node -> why, by words that count: the hardware's own, or a suspicion that came back and has something to compare with; and
    how often, of the latter."""
    if verdict.program:
        return {}
    found = {}
    limit = codes.same_code_limit if verdict.heals else SUSPECT_LIMIT
    for suspect in verdict.suspects:
        if suspect.blame is Blame.YES and (len(set(step)) > 1 or verdict.error_class is ErrorClass.HARDWARE):
            found[suspect.node] = suspect.why, ""
            continue
        times = history.verdicts.suspected(suspect.node, now - codes.same_code_window_s)
        if times >= limit and _comparable(suspect, verdict, history, step):
            found[suspect.node] = suspect.why, f"{counted(times, 'time')} in {codes.same_code_window_s / 3600:g} h"
    return found


def _comparable(suspect: Suspect, verdict: Verdict, history: History, step: Collection[str]) -> bool:
    """Is there a control group? In a job of one node there is none. What programs do by themselves wants another rank on the
    same node (one rank's own error comes back with the rank, wherever it is), unless it is worth further tries anyway: then
    the next, without the node, tells."""
    if len(set(step)) < 2:
        return False
    if verdict.error_class not in _PROGRAMS_OWN or verdict.setup or verdict.retriable is Retriable.YES:
        return True
    there = {seen.rank for seen in history.verdicts.sightings if (seen.node, seen.signature) == (suspect.node, verdict.signature)}
    return len({*there, *(rank for rank, node in verdict.shown.items() if node == suspect.node)}) > 1


def _named(verdict: Verdict, remembered: Mapping[str, str]) -> dict[str, str]:
    """The failure itself accuses a node that earlier jobs left for facts. One that a restart in place answers is answered so."""
    if verdict.error_class not in _NODES_OWN or verdict.program or verdict.heals:
        return {}
    return {s.node: f"{s.why}; {remembered[s.node]}" for s in verdict.suspects if s.node in remembered}


def within_budget(accused: Iterable[str], history: History, blame: BlameSettings) -> tuple[str, ...]:
    """Those that words may still cost the job, the first accused first; what they have cost already they may cost again."""
    accused = tuple(accused)
    again = [node for node in accused if node in history.exclusions.left_on_words]
    left = max(0, blame.on_words - len(history.exclusions.left_on_words))
    return (*again, *[node for node in accused if node not in history.exclusions.left_on_words][:left])


def _not_left(accused: Mapping[str, str], history: History, blame: BlameSettings) -> dict[str, str]:
    before = f"; it has excluded {', '.join(sorted(left))}" if (left := history.exclusions.left_on_words) else ""
    most = blame.on_words
    limit = f"blame.on_words lets a job exclude {counted(most, 'node') if most else 'no node'} without a proven fault{before}"
    return {node: f"{why}; {limit}" for node, why in accused.items()}

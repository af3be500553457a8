"""Puts together what the ladder may look at: facts beat what the ranks showed, and a node is blamed by facts alone. And
whether whoever called ftrun wants a remedy for a failed step, or its status."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.events import SlurmAnswered
from ftslurm.model.folds.history import History
from ftslurm.model.job import Call, Reading, Task
from ftslurm.model.outcome import Outcome
from ftslurm.model.record import TroubleSeen
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.features import InPlaceRestartSettings
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import Value, replace
from ftslurm.model.verdict import Verdict
from ftslurm.policies.attempt import Attempt
from ftslurm.policies.ladder import Cause, OtherNodes, Situation, Wish, repeated
from ftslurm.policies.node_charges import charges, series_of
from ftslurm.policies.weigh import common_codes, without_common

# A question to the cluster (`test -d`, `hostname`, a ping of a server) is over by then; a training has seldom begun.
QUICK_S = 10.0


def with_call(s: Situation, call: Call, step_key: str) -> Situation:
    """The situation, and how the caller takes a failure. call: as it was read. In doubt it is an answer where the step was over
    within seconds on its first start, and something follows it in its script."""
    if not s.settings.answers:
        return s
    first = sum(starts for (_, key), starts in s.history.slots.starts.items() if key == step_key) <= 1
    if call.reading is Reading.DOUBT and first and not call.last and s.history.progress.lived_s <= QUICK_S:
        call = replace(call, reading=Reading.ANSWER, why=f"{call.why}; it was over within {QUICK_S:g} s")
    return replace(s, wish=replace(s.wish, call=call))


ADDRESS_IN_USE = "address-in-use"  # of the catalog of log patterns
# The classes of faults that ask for a remedy; the others are recorded, or avoided at the next scheduling.
ACTS = frozenset({FaultClass.SELF_HEALING, FaultClass.ISOLATE})


class Trouble(Value):
    """Why the attempt cannot go on. status, outcome: what ftrun ends with if nothing helps. since: when it began, Unix seconds;
    0: nobody knows. hung_up, rank: as in record.TroubleSeen.
    """

    cause: Cause
    what: str
    status: int
    since: float = 0.0
    outcome: Outcome = Outcome.ENDED
    hung_up: bool = False
    rank: int = -1

    def seen(self, at: float, attempt: int, drill: tuple[str, ...] = ()) -> TroubleSeen:
        return TroubleSeen(at, attempt, self.cause.value, self.what, self.since, drill, self.hung_up, self.rank)


def situation_of(
    trouble: Trouble,
    attempt: Attempt,
    tasks: Mapping[int, Task],
    shown: tuple[Fault, ...],
    slurm: SlurmAnswered | None,
    history: History,
    settings: Settings,
    now: float,
    can: frozenset[Capability],
    remembered: Mapping[str, str],
    spares: Iterable[str],
    others: OtherNodes,
    placed: Collection[str] | None,
) -> Situation:
    """shown: what the devices show now. now: Unix seconds. remembered: node -> why earlier jobs left it, for facts.

    spares: nodes held back and not kept out. others: what the launcher lacks. placed: the nodes of the step where we have chosen
    them; None: srun has.
    """
    faults = acting(shown, history)
    verdict = attempt.verdict
    stuck = attempt.stuck_nodes(tasks)
    bad = bad_nodes(slurm, attempt, placed)
    step = frozenset(placed if placed is not None else {task.node for task in tasks.values()})
    orders = {**attempt.leave(tasks), **(attempt.nodes.asked_out if trouble.cause is Cause.REQUEST else {})}
    said = charges(verdict, attempt.hang.blamed, orders, history, settings, now, remembered, step)
    # A node that the job had left on words, and was given again, is no fact for being there.
    again = {node: (sign, "") for node, sign in history.exclusions.left_on_words.items() if node in attempt.nodes.left_before}
    seen = {node: why for node, why in {**attempt.devices.unhealed, **stuck, **bad}.items() if node not in again}
    blamed = _blamed(faults, {**said.blamed, **bad, **seen}, history, settings.in_place_restart, now)
    on_words = {node: told for node, told in (said.on_words | again).items() if node in blamed and node not in seen}
    unproven = {*on_words, *said.orders, *said.named} - seen.keys()
    down = {node for node, _ in slurm.bad_nodes} if slurm else set()
    free = len(frozenset(spares) - blamed.keys() - down)
    cause = _cause(trouble, attempt, faults, bool(stuck or bad), bool(said.blamed))
    command = history.last_run.step_key if history.last_run is not None else ""
    return Situation(
        cause=cause,
        what=_what(trouble, faults),
        status=trouble.status,
        history=history,
        settings=settings,
        now=now,
        faults=faults,
        unhealed=dict(attempt.devices.unhealed),
        blamed=blamed,
        on_words=on_words,
        proven=frozenset(blamed.keys() - unproven),
        spared=said.spared,
        wish=Wish(shut_down=attempt.shut_down),
        not_in_place=_not_in_place(attempt, {**stuck, **bad}, settings) or _unproven(cause, attempt, settings),
        slurm=slurm,
        can=can,
        verdict=verdict,
        tasks=len(attempt.ranks),
        step=step,
        returned=frozenset(attempt.nodes.returned),
        others=replace(others, spares=free, unreplaced=attempt.search.unreplaced, unended=attempt.step_end.unended),
        port_taken=_port_taken(verdict, attempt.port),
        dead=_dead(attempt, history) | down,
        series=series_of(verdict, step, command, history.crashes),
    )


def _unproven(cause: Cause, attempt: Attempt, settings: Settings) -> str:
    """Why a hang is not answered in place unless that is switched on."""
    if cause is not Cause.HANG or settings.hang_restart.enabled is not None or attempt.hang.proven:
        return ""
    return "no rank is named from within that does no work (hang-restart: auto)"


def _port_taken(verdict: Verdict | None, port: int) -> int:
    """The port that we chose, if the attempt failed because somebody else has it; else 0."""
    if verdict is None or verdict.signature != ADDRESS_IN_USE or not port:
        return 0
    return port if any(str(port) in _words(line) for line in (verdict.what, *verdict.evidence)) else 0


def _words(line: str) -> list[str]:
    return "".join(sign if sign.isalnum() or sign == "_" else " " for sign in line).split()


def _dead(attempt: Attempt, history: History) -> frozenset[str]:
    """Proven so by ftslurm: not what was left for another reason, and could not be done without."""
    return frozenset(
        node for node in attempt.nodes.gone if node not in history.exclusions.isolated or node in history.exclusions.dead
    )


def bad_nodes(slurm: SlurmAnswered | None, attempt: Attempt, placed: Collection[str] | None = None) -> dict[str, str]:
    """node -> why it is taken for broken: by Slurm's word, by silence and a second proof, in a drill, or called back.

    placed: as above. Of the allocation's other nodes, spares and those that were left, no word counts: they run nothing.
    """
    said = slurm.bad_nodes if slurm else ()
    by_slurm = {node: f"Slurm says {words}" for node, words in said if placed is None or node in placed}
    return by_slurm | attempt.nodes.gone | attempt.nodes.returned | attempt.nodes.drilled_away


def acting(shown: Iterable[Fault], history: History) -> tuple[Fault, ...]:
    """The faults that ask for a remedy; those that are the work's doing and not the hardware's say so."""
    faults = [fault for fault in shown if fault.fault_class in ACTS]
    return without_common(faults, common_codes(faults, history))


def _cause(trouble: Trouble, attempt: Attempt, faults: tuple[Fault, ...], bad_nodes: bool, said: bool) -> Cause:
    if trouble.cause is Cause.REQUEST:
        return Cause.REQUEST
    if faults:
        induced = not any(fault.blames_node for fault in faults) and not (bad_nodes or attempt.devices.unhealed)
        return Cause.INDUCED if induced else Cause.DEVICE
    if bad_nodes:
        return Cause.NODE
    if attempt.nothing_started:
        return Cause.UNSTARTABLE
    heals = attempt.verdict is not None and attempt.verdict.heals
    return Cause.HARDWARE if trouble.cause is Cause.CRASH and (said or heals) else trouble.cause


def _what(trouble: Trouble, faults: tuple[Fault, ...]) -> str:
    if trouble.cause in (Cause.DEVICE, Cause.REQUEST) or not faults:
        return trouble.what
    return f"{trouble.what}; {'; '.join(map(str, faults))}"


def _blamed(
    faults: tuple[Fault, ...], facts: Mapping[str, str], history: History, codes: InPlaceRestartSettings, now: float
) -> dict[str, str]:
    """A node is blamed for what cannot be mended there: a fault that does not heal or comes back too often, healing that
    failed, processes that do not go, Slurm's own word. Where there is nothing of this kind, every faulty node is (it may
    heal, and then nobody asks); a fault that the user's program caused blames nobody."""
    blamed = dict(facts)
    for fault in faults:
        often = fault.blames_node and repeated(fault, history, codes, now)
        if fault.fault_class is FaultClass.ISOLATE or often:
            blamed.setdefault(fault.node, f"{fault}{', again and again' if often else ''}")
    return blamed or {fault.node: str(fault) for fault in faults if fault.blames_node}


def avoidable(shown: tuple[Fault, ...], s: Situation, remembered: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nodes that a new scheduling had better not use, as many as can be spared beside those blamed.

    remembered: node -> why earlier jobs left it.
    """
    if s.usable is None:
        return {}
    left = s.usable - s.kept_out.keys()
    wanted = {fault.node: str(fault) for fault in shown if fault.fault_class is FaultClass.AVOID}
    found: dict[str, str] = {}
    for node, why in {**(remembered or {}), **wanted}.items():
        if node in left and len(left) > s.size:
            found[node] = why
            left = left - {node}
    return found


def _not_in_place(attempt: Attempt, bad: Mapping[str, str], settings: Settings) -> str:
    if bad:
        return "; ".join(f"{node}: {why}" for node, why in bad.items())
    if attempt.not_in_place:
        return attempt.not_in_place
    if attempt.lost and settings.restart_via == "shim":
        rank, why = next(iter(attempt.lost.items()))
        return f"the shim of rank {rank} was lost: {why}"
    if attempt.step_end.gone and settings.restart_via == "shim":
        return "there is no step any more to start them in"
    return ""

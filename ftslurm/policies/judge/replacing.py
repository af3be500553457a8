"""Other nodes for the slots of bad nodes: spares first, then nodes that donor jobs lend; each is checked before ranks start
there. The search begins while the old step still ends; its result is the layout of the next step. Or the step continues with
fewer nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import BorrowNode, CheckNode, Decision, DismissAgents, ReleaseNodes, Say
from ftslurm.model.events import Now
from ftslurm.model.job import Layout
from ftslurm.model.nodes import Near, Topology, fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.judge import ending, starting
from ftslurm.policies.judge.outside import Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.spares import FirstPlaces, ReplacementSearch
from ftslurm.policies.judge.state import MARGIN_S, SIGINT, SIGTERM, Run
from ftslurm.policies.judge.then import Answer, Settled, ThenFinish
from ftslurm.policies.ladder import Cause
from ftslurm.policies.node import NodeHealth, short_of, wanted
from ftslurm.policies.situation import Trouble

# Before the first start, a search without answers is repeated this many times, at this interval.
SEARCHES_AGAIN, SEARCH_AGAIN_S = 3, 10.0


def first_launch(run: Run, now: Now) -> Answer:
    """Launch on the healthy nodes if they are enough; otherwise search for others first."""
    f = run.facts
    first = _first_places(run, now)
    run.places.choose(first.layout)
    if first.too_few:
        return _give_up_nodes(run, f.missing, f"{fold_nodes(f.missing)} is not in the job any more", "", now)
    if first.out:
        run.enter(Phase.REPLACING)
        return [*begin_search(run, first.out, "", now, first.here), *_go_on(run, now)]
    return starting.launch_step(run, now)


def _first_places(run: Run, now: Now) -> FirstPlaces:
    """The nodes of the first step: srun places it on all; with spares, or if nodes were excluded, on the healthy ones."""
    f = run.facts
    kept_out = _not_to_use(run, now)
    all_there = len(f.nodes) >= f.width and not kept_out & set(f.nodes)
    if not f.width or (all_there and not run.settings.nodes.spares):
        return FirstPlaces(run.places.layout)
    well = [node for node in f.nodes if node not in kept_out]
    if len(well) >= f.width:
        return _of_well(run, well)
    lost = [*f.missing, *sorted(kept_out - {*f.nodes, *f.missing})]  # the job no longer has them
    bad = [*(node for node in f.nodes if node in kept_out), *lost]
    may_fill = Capability.REPLACE in f.can and run.settings.node_replacement.enabled
    if not may_fill or len(well) + len(bad) < f.width:
        fewer = _fewer(run, now)
        return FirstPlaces(fewer, too_few=fewer is None and bool(f.missing) and len(f.nodes) < f.width)
    return _to_be_filled(run, well, bad, lost)


def _fewer(run: Run, now: Now) -> Layout | None:
    """The healthy nodes, if the job accepts so few."""
    st, before, kept_out = run.settings, run.history.slots.nodes, set(run.kept_out(now))
    well = tuple(node for node in run.facts.nodes if node not in kept_out)
    if Capability.REPLACE not in run.facts.can or not st.shrink.enabled or not 0 < st.nodes.min <= len(well):
        return None
    return Layout(before, chosen=True) if sorted(before) == sorted(well) else Layout(well)  # its slots stay


def _not_to_use(run: Run, now: Now) -> set[str]:
    """Excluded nodes, except those that the last requeue let in, if neither the others nor fewer are enough."""
    f, kept_out = run.facts, set(run.kept_out(now))
    lacking = f.width - sum(node not in kept_out for node in f.nodes)
    again = [node for node in f.nodes if node in kept_out & run.history.exclusions.let_in]
    return kept_out if lacking > len(again) or _fewer(run, now) else kept_out - {*again[: max(0, lacking)]}


def _of_well(run: Run, well: Sequence[str]) -> FirstPlaces:
    """Suspect nodes become spares. A node that an earlier ftrun of this scheduling had in a slot stays there."""
    f, before = run.facts, run.history.slots.nodes
    best = sorted(well, key=lambda node: node in f.remembered)  # a stable sort: otherwise in Slurm's order
    if len(before) != f.width or Capability.REPLACE not in f.can:
        return FirstPlaces(Layout(tuple(node for node in f.nodes if node in best[: f.width])))
    there = {slot: node for slot, node in enumerate(before) if node in well}
    others = (node for node in best if node not in before)
    news = dict(zip((slot for slot in range(f.width) if slot not in there), others, strict=False))
    return FirstPlaces(Layout(before, chosen=True), out={slot: before[slot] for slot in news}, here=news)


def _to_be_filled(run: Run, well: Sequence[str], bad: Sequence[str], lost: Sequence[str]) -> FirstPlaces:
    """Too few nodes are healthy: search for others."""
    f, before = run.facts, run.history.slots.nodes
    if len(before) == f.width:
        found = _there_again(before, well, bad)
    else:
        given = dict.fromkeys((*(f.granted or f.nodes), *f.nodes, *lost))
        before, found = tuple(node for node in given if node in {*well, *bad[: f.width - len(well)]}), {}
    here = {slot: node for slot, node in found.items() if node in well}
    out = {slot: node if slot in here else found.get(slot, node) for slot, node in enumerate(before) if node not in well}
    return FirstPlaces(Layout(before).filled(found, {}), out=out, here=here)


def _there_again(before: Sequence[str], well: Sequence[str], bad: Sequence[str]) -> dict[int, str]:
    """slot -> its new node, if its last node was lent or is bad: a free node, else the missing one."""
    own = [node for node in before if node in bad]
    free = [node for node in well if node not in before]
    for_others = [node for node in bad if node not in before][: max(0, len(before) - len(well) - len(own))]
    open_ = sorted((slot for slot, node in enumerate(before) if node not in well), key=lambda slot: before[slot] in bad)
    return dict(zip(open_, (*free, *for_others), strict=False))


def step_layout(run: Run) -> Layout:
    """The layout of the step: as it was chosen, or as srun placed the ranks when they last started; all nodes if they never
    did.
    """
    return run.places.known or Layout(run.facts.nodes)


# --- the search


def begin_search(run: Run, out: Mapping[int, str], decision: str, now: Now, found: Mapping[int, str] | None = None) -> Answer:
    """Begin a search. found: slot -> node that fills it already."""
    until = now.mono + run.settings.nodes.replacement_wait_s
    dead = run.decided.dead if decision and run.decided is not None else ()
    gone = frozenset({*run.attempt.nodes.gone, *dead} & set(out.values()))
    run.places.search = search = ReplacementSearch(decision, dict(out), until, gone, dict(found or {}))
    return _with_end(run, search, _fill_slots(run, search, now), now)


def _with_end(run: Run, search: ReplacementSearch, found: list[Decision], now: Now) -> Answer:
    return [*found, *(_go_on(run, now) if search.failed or search.done else [])]


def _fill_slots(run: Run, search: ReplacementSearch, now: Now) -> list[Decision]:
    """Ensure that something is under way for every slot."""
    asked: list[Decision] = []
    step = frozenset(step_layout(run).nodes)
    topology = run.slurm.answer.topology if run.slurm.answer is not None else Topology()
    for slot in search.open:
        others = step - {*search.out.values()} | {*search.found.values(), *search.checking}
        spare = search.next_of(topology.nearest(run.spares(now), search.out[slot], others))
        if spare is not None:
            search.checking[spare] = slot
            asked += run.free.look_at(spare, run.settings.nodes.check_timeout_s, now.mono)
        elif reason := _no_loan(run, search, now):
            search.failed = reason
            return asked
        else:
            search.borrowing.add(slot)
            not_again = {*run.facts.nodes, *run.kept_out(now), *step, *search.tried, *search.lent}
            near = Near(topology.around(search.out[slot]), others if topology.strict else frozenset())
            asked.append(BorrowNode(slot, tuple(sorted(not_again)), search.until - now.mono, near))
    for known in [run.free.fit[node] for node in search.checking if node in run.free.fit]:
        if search.failed:
            break
        asked += _use_check(run, search, known, now)
    return asked


def _no_loan(run: Run, search: ReplacementSearch, now: Now) -> str:
    if not run.settings.nodes.donor:
        return "no spare node is left (nodes.donor is off)"
    if run.facts.why_not.donor:
        return f"no spare node is left, and none can be borrowed: {run.facts.why_not.donor}"
    if search.until > now.mono:
        return ""
    return f"no node became available within {run.settings.nodes.replacement_wait_s:g} s"


def on_node_checked(run: Run, event: ev.NodeChecked, now: Now) -> Answer:
    search = run.places.search
    if search is None or event.node not in search.checking:
        return on_spare_checked(run, event, now)
    return _with_end(run, search, _use_check(run, search, event, now), now)


def _use_check(run: Run, search: ReplacementSearch, event: ev.NodeChecked, now: Now) -> list[Decision]:
    """A node was checked for this search: take it, or try another one."""
    slot = search.checking.pop(event.node)
    run.free.used(event.node)
    if search.failed:
        return []
    event = _with_as_many_devices(event, wanted(run.devices.there, search.out[slot]))
    if event.good:
        search.found[slot] = event.node
        return []
    search.tried.add(event.node)
    search.unsure |= event.good is None
    noted = [run.note(rec.NodeRefused(now.unix, event.node, event.why))] if event.good is False else []
    said = Say(f"{event.node} cannot replace {search.out[slot]}: {event.why}")
    back = run.loans.end([search.lent.pop(event.node)]) if event.node in search.lent else []
    return [*noted, said, *back, *_fill_slots(run, search, now)]


def _with_as_many_devices(event: ev.NodeChecked, least: Mapping[str, int]) -> ev.NodeChecked:
    """The result of the check, compared with the devices of the node that it replaces."""
    if not event.good or event.there is None:
        return event
    short = short_of(least, event.there)
    good = {NodeHealth.GOOD: True, NodeHealth.BAD: False, NodeHealth.UNKNOWN: None}[short.health]
    return event if good else replace(event, good=good, why=short.reason)


def on_node_borrowed(run: Run, event: ev.NodeBorrowed, now: Now) -> Answer:
    """A donor job has a node for us, or will have none."""
    search = run.places.search
    if search is None or not search.borrows_for(event.slot):
        return end_late_loan(run, event, now)
    search.borrowing.discard(event.slot)
    if not event.node:
        search.failed, search.unsure = f"no node could be borrowed: {event.why}", search.unsure or event.away
        return _with_end(run, search, run.loans.too_late(event.job), now)
    run.loans.begin(event.job)
    search.lent[event.node] = event.job
    search.checking[event.node] = event.slot
    lent = run.note(rec.NodeLent(now.unix, run.facts.run, event.node, event.job), vital=True)
    return [lent, CheckNode(event.node, event.job, run.settings.nodes.check_timeout_s)]


def on_spare_checked(run: Run, event: ev.NodeChecked, now: Now) -> list[Decision]:
    run.free.seen(event)
    return []


def end_late_loan(run: Run, event: ev.NodeBorrowed, _: Now) -> list[Decision]:
    return run.loans.too_late(event.job)


def on_donor_submitted(run: Run, event: ev.DonorSubmitted, now: Now) -> list[Decision]:
    search = run.places.search
    if search is None or not search.borrows_for(event.slot):
        return []
    search.donors[event.slot] = event
    for_s = max(0.0, search.until - now.mono)
    out = search.out[event.slot]
    limit = f"waiting up to {for_s:.0f} s (nodes.replacement_wait)"
    if event.boots:
        what = f"{event.boots} of donor job {event.job} to boot"
        return run.wait_for(what, for_s, now, f"{limit} for {what}, which replaces {out}")
    return run.wait_for(
        f"a node of donor job {event.job}", for_s, now, f"{limit} for donor job {event.job} to borrow a replacement for {out}"
    )


def _still_wait_for_donors(run: Run, search: ReplacementSearch, now: Now) -> list[Decision]:
    """The old step has ended, but the search still waits for donor jobs: tell people."""
    what = search.waits_for
    return run.wait_for(what, max(0.0, search.until - now.mono), now) if what else []


def on_loans_ended(run: Run, event: ev.LoansEnded, now: Now) -> list[Decision]:
    if not event.left:
        return []
    jobs, cancel = ", ".join(map(str, event.left)), " ".join(map(str, event.left))
    one = len(event.left) == 1
    keep = f"{'it keeps its node' if one else 'they keep their nodes'} until this job ends"
    return [Say(f"ftrun could not end donor job{'' if one else 's'} {jobs}; {keep} (`scancel {cancel}`)")]


def on_search_overdue(run: Run, now: Now) -> Answer:
    search = run.places.search
    if search is not None and not search.failed:
        search.failed, search.unsure = f"no node was ready within {run.settings.nodes.replacement_wait_s:g} s", True
    return _go_on(run, now)


# --- what comes of it


def go_on_without_step(run: Run, now: Now) -> Answer:
    """The old step has ended; the search may still run."""
    run.enter(Phase.REPLACING)
    told = on_signal(run, run.signal.kept, now) if run.signal.kept else []
    return told or _go_on(run, now)


def _go_on(run: Run, now: Now) -> Answer:
    """Launch the new step, or ask the next rung, once the search is complete and nothing of the old step runs."""
    search = run.places.search
    if run.phase is not Phase.REPLACING or search is None:
        return []
    if search.failed:
        return _give_up_search(run, search, now)
    if search.done:
        return _fill(run, search, now)
    run.timers.only({Timer.NODE: max(search.until, now.mono) + run.settings.nodes.check_timeout_s + MARGIN_S})
    return _still_wait_for_donors(run, search, now)


def _fill(run: Run, search: ReplacementSearch, now: Now) -> list[Decision]:
    before = run.places.layout
    assert before is not None
    run.places.take_search()
    layout = before.filled(search.found, search.lent)
    run.places.choose(layout)
    ranks = tuple(rank for slot in sorted(search.out) for rank in before.ranks_of(slot))
    filled = {str(slot): node for slot, node in sorted(search.found.items())}
    f = run.facts
    changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, filled, (), dict(layout.lent), ranks)
    words = search.in_words()
    done: list[Decision] = []
    if search.decision:
        done.append(run.note(rec.CarriedOut(now.unix, search.decision, True, f"replaced {words}")))
    back = [before.lent[node] for node in search.out.values() if node in before.lent]
    return [
        *done, run.note(changed, vital=True), Say(f"replaced {words}"), *_forget(run, search.out.values()),
        *run.loans.end(back), *starting.launch_step(run, now), *run.told.show_on(starting.next_number(run)),
        *release(run, search.dead),
    ]  # fmt: skip


def _give_up_search(run: Run, search: ReplacementSearch, now: Now) -> Answer:
    dropped = ending.drop_remedy(run, search.failed, now)
    run.timers.stop_all()
    if not search.decision:
        missing = search.missing
        what = f"{fold_nodes(missing)} is excluded, and {search.failed}"
        if search.unsure and run.launch.in_vain < SEARCHES_AGAIN:
            return [*dropped, Say(f"{what}; searching again"), *_search_later(run, now)]
        run.places.choose(_fewer(run, now))
        if run.places.layout is None:
            return [*dropped, *_give_up_nodes(run, missing, what, search.failed, now)]
        return [*dropped, Say(what), *starting.launch_step(run, now)]
    run.enter(Phase.SETTLING)
    said = [*dropped, Say(f"no replacement found: {search.failed}")]
    if search.unsure and Capability.ASK in run.facts.can:  # slurmctld may have been the reason
        run.attempt.search.unfilled = search.failed
        run.slurm.forget()
        return [*said, run.ask_slurm(now)]
    run.attempt.search.fail(search.failed)
    return [*said, Settled()]


def _search_later(run: Run, now: Now) -> list[Decision]:
    """Before the first start: repeat the search later; there is neither a step nor a decision to return to."""
    run.launch.again()
    run.enter(Phase.REPLACING)
    run.timers.only({Timer.SEARCH_AGAIN: now.mono + SEARCH_AGAIN_S})
    return []


def search_again(run: Run, now: Now) -> Answer:
    return first_launch(run, now) if run.places.search is None else []


def _give_up_nodes(run: Run, missing: Collection[str], what: str, unreplaced: str, now: Now) -> Answer:
    """Too few nodes before the first start. Slurm may have refused the exclusion at the last requeue; it will accept it at
    the next one.
    """
    attempt = run.new_attempt(tasks=())
    attempt.step_end.none()
    attempt.cannot_stay(what)
    attempt.search.fail(unreplaced)
    why = dict.fromkeys(run.facts.missing, "it is not in the job any more")
    why |= {node: run.history.exclusions.isolated[node][0] for node in run.kept_out(now)}
    attempt.nodes.lose_before({node: why[node] for node in missing if node in why}, run.kept_out(now))
    return [Trouble(Cause.LAUNCH, what, 1)]


def on_signal(run: Run, event: ev.SignalSeen, now: Now) -> Answer:
    """A signal during the search: a job that is ending does not wait for nodes, nor does one that is to be requeued now."""
    if event.rank is None and event.number == SIGINT:
        return ending.interrupt(run, now)
    decided = run.places.search is not None and bool(run.places.search.decision)
    ends = event.rank is None and event.number == SIGTERM
    if not (ends or (decided and run.signal.asks_for_requeue(event.number))):
        if run.signal.announces(event.number):
            run.signal.keep(event)
        return []
    dropped = ending.drop_remedy(run, "a signal came meanwhile", now)
    run.timers.stop_all()
    if not decided:
        return [*dropped, ThenFinish("ended by SIGTERM while waiting for another node", 128 + event.number)]
    run.attempt.search.fail("a signal came meanwhile")
    run.signal.take(event.number, now.mono)
    run.signal.take_kept()
    run.enter(Phase.SETTLING)
    if Capability.ASK not in run.facts.can:
        run.signal.means(Meaning.END)
        return [*dropped, Settled()]
    return [*dropped, run.ask_slurm(now)]


# --- with fewer nodes


def shrink(run: Run, bad: frozenset[str], now: Now) -> list[Decision]:
    """Continue without the slots of the bad nodes; the other slots move up and keep their counters."""
    before = run.places.layout
    assert before is not None
    slots = [slot for slot, node in enumerate(before.nodes) if node in bad]
    kept = tuple(slot for slot in range(len(before.nodes)) if slot not in slots)
    layout = before.without(slots)
    run.places.choose(layout)
    f = run.facts
    moved = tuple(rank for rank, slot in enumerate(before.slots) if slot in kept)
    changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, kept=kept, lent=dict(layout.lent), moved=moved)
    back = [job for node, job in before.lent.items() if node in bad]
    assert run.decided is not None
    done = run.note(rec.CarriedOut(now.unix, run.decided.id, True, f"went on with {fold_nodes(layout.nodes)}"))
    return [
        done, run.note(changed, vital=True), *_forget(run, bad), *run.loans.end(back),
        *starting.launch_step(run, now), *run.told.show_on(starting.next_number(run)), *release(run, bad),
    ]  # fmt: skip


# --- nodes that no longer belong to us


def _forget(run: Run, nodes: Iterable[str]) -> list[Decision]:
    """Forget the nodes: faults that their agents still report concern nobody."""
    out = tuple(sorted(set(nodes)))
    for node in out:
        run.fence.hear(node)
    run.agents.forget(out)
    run.devices.forget(out)
    return [DismissAgents(out)] if out else []


def release(run: Run, nodes: Iterable[str]) -> list[Decision]:
    """Give dead nodes back to Slurm. Without --no-kill a job ends when Slurm notices that one of its nodes has died
    (sbatch(1)). A job that had given the node back before continued, seen on 22.05.
    """
    own = tuple(sorted(node for node in set(nodes) if node in run.facts.nodes and node != run.facts.batch_node))
    run.free.given_back.update(own)
    return [ReleaseNodes(own)] if own and Capability.RELEASE in run.facts.can else []


def on_nodes_released(run: Run, event: ev.NodesReleased, now: Now) -> list[Decision]:
    if event.ok:
        relieved = _forget(run, run.agents.guards.intersection(event.nodes))
        return [*relieved, *(run.watch(now) if relieved and run.phase is Phase.RUNNING else [])]
    what = f"{fold_nodes(event.nodes)} could not be given back: {event.why}"
    return [Say(f"{what}; without `sbatch --no-kill` Slurm ends the job when it notices that a node is down")]

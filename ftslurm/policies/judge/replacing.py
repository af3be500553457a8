"""Other nodes for the slots of bad nodes: spares first, then nodes that donor jobs lend; each is checked before ranks start
there. The search begins while the old step still ends; its result is the layout of the next step. Or the step continues with
fewer nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, DismissAgents, ReleaseNodes, Say
from ftslurm.model.events import Now
from ftslurm.model.job import Layout
from ftslurm.model.nodes import Topology
from ftslurm.model.nodes import fold_nodes as fold_nodes
from ftslurm.model.outcome import Outcome
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.outside import Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.spares import Around, FirstChoice, ReplacementSearch
from ftslurm.policies.judge.starting import Starting
from ftslurm.policies.judge.state import MARGIN_S, SIGINT, SIGTERM, Run
from ftslurm.policies.judge.then import Answer, Settled, ThenFinish
from ftslurm.policies.ladder import Cause
from ftslurm.policies.situation import Trouble

# Before the first start, a search without answers is repeated this many times, at this interval.
SEARCHES_AGAIN, SEARCH_AGAIN_S = 3, 10.0


class Replacing:
    def __init__(self, run: Run, starting: Starting) -> None:
        self.run, self.starting = run, starting

    def first_launch(self, now: Now) -> Answer:
        """Launch on the healthy nodes if they are enough; otherwise search for others first."""
        f = self.run.facts
        first = self._first_choice(now).made(self.run.places.layout)
        self.run.places.choose(first.layout)
        if first.too_few:
            return self._give_up_nodes(f.missing, f"{fold_nodes(f.missing)} is not in the job any more", "", now)
        if first.out:
            self.run.enter(Phase.REPLACING)
            return [*self.begin_search(first.out, "", now, first.here), *self._go_on(now)]
        if not first.news or first.layout is None:
            return self.starting.launch_step(now)
        filled = {str(slot): node for slot, node in sorted(first.news.items())}
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, first.layout.nodes, filled)
        return [self.run.note(changed, vital=True), *self.starting.launch_step(now)]

    def _first_choice(self, now: Now) -> FirstChoice:
        return FirstChoice(
            self.run.facts,
            self.run.settings,
            self.run.history.slots.nodes,
            self.run.history.exclusions.let_in,
            self.run.kept_out(now),
        )

    def step_layout(self) -> Layout:
        """The layout of the step: as it was chosen, or as srun placed the ranks when they last started; all nodes if they never
        did.
        """
        return self.run.places.known or Layout(self.run.facts.nodes)

    # --- the search

    def begin_search(self, out: Mapping[int, str], decision: str, now: Now, found: Mapping[int, str] | None = None) -> Answer:
        """Begin a search. found: slot -> node that fills it already."""
        until = now.mono + self.run.settings.nodes.replacement_wait_s
        dead = self.run.decided.dead if decision and self.run.decided is not None else ()
        gone = frozenset({*self.run.attempt.nodes.gone, *dead} & set(out.values()))
        search = ReplacementSearch(decision, out, until, gone, found or {}, self.run.settings, self.run.free, self.run.loans)
        self.run.places.search_with(search)
        return self._note_search(search, search.fill(self._around(now)), now)

    def _around(self, now: Now) -> Around:
        step = frozenset(self.step_layout().nodes)
        used = {*self.run.facts.nodes, *self.run.kept_out(now), *step}
        said = self.run.slurm.answer
        return Around(
            now, self.run.spares(now), frozenset(used), self.run.devices.there, self.run.facts.why_not.donor, step,
            said.topology if said is not None else Topology(),
        )  # fmt: skip

    def _note_search(self, search: ReplacementSearch, found: list[Decision], now: Now) -> Answer:
        self.run.note_all(found)
        return [*found, *(self._go_on(now) if search.over else [])]

    def on_node_checked(self, event: ev.NodeChecked, now: Now) -> Answer:
        search = self.run.places.search
        if search is None or not search.searches_at(event.node):
            return self.on_spare_checked(event, now)
        return self._note_search(search, search.checked(event, self._around(now)), now)

    def on_node_borrowed(self, event: ev.NodeBorrowed, now: Now) -> Answer:
        search = self.run.places.search
        if search is None or not search.borrows_for(event.slot):
            return self.end_late_loan(event, now)
        return self._note_search(search, search.borrowed(event, self.run.facts.run, now), now)

    def on_spare_checked(self, event: ev.NodeChecked, now: Now) -> list[Decision]:
        self.run.free.seen(event)
        return []

    def end_late_loan(self, event: ev.NodeBorrowed, _: Now) -> list[Decision]:
        return self.run.loans.too_late(event.job)

    def on_donor_submitted(self, event: ev.DonorSubmitted, now: Now) -> list[Decision]:
        search = self.run.places.search
        if search is None or not search.borrows_for(event.slot):
            return []
        search.submitted(event)
        for_s = max(0.0, search.until - now.mono)
        out = search.out[event.slot]
        limit = f"waiting up to {for_s:.0f} s (nodes.replacement_wait)"
        if event.boots:
            what = f"{event.boots} of donor job {event.job} to boot"
            return self.run.wait_for(what, for_s, now, f"{limit} for {what}, which replaces {out}")
        return self.run.wait_for(
            f"a node of donor job {event.job}", for_s, now, f"{limit} for donor job {event.job} to borrow a replacement for {out}"
        )

    def _still_wait_for_donors(self, search: ReplacementSearch, now: Now) -> list[Decision]:
        """The old step has ended, but the search still waits for donor jobs: tell people."""
        what = search.waits_for
        return self.run.wait_for(what, max(0.0, search.until - now.mono), now) if what else []

    def on_loans_ended(self, event: ev.LoansEnded, now: Now) -> list[Decision]:
        if not event.left:
            return []
        jobs, cancel = ", ".join(map(str, event.left)), " ".join(map(str, event.left))
        one = len(event.left) == 1
        keep = f"{'it keeps its node' if one else 'they keep their nodes'} until this job ends"
        return [Say(f"ftrun could not end donor job{'' if one else 's'} {jobs}; {keep} (`scancel {cancel}`)")]

    def on_search_overdue(self, now: Now) -> Answer:
        if self.run.places.search is not None:
            self.run.places.search.overdue()
        return self._go_on(now)

    # --- what comes of it

    def go_on_without_step(self, now: Now) -> Answer:
        """The old step has ended; the search may still run."""
        self.run.enter(Phase.REPLACING)
        told = self.on_signal(self.run.signal.kept, now) if self.run.signal.kept else []
        return told or self._go_on(now)

    def _go_on(self, now: Now) -> Answer:
        """Launch the new step, or ask the next rung, once the search is complete and nothing of the old step runs."""
        search = self.run.places.search
        if self.run.phase is not Phase.REPLACING or search is None:
            return []
        if search.failed:
            return self._give_up_search(search, now)
        if search.done:
            return self._fill(search, now)
        self.run.timers.only({Timer.NODE: max(search.until, now.mono) + self.run.settings.nodes.check_timeout_s + MARGIN_S})
        return self._still_wait_for_donors(search, now)

    def _fill(self, search: ReplacementSearch, now: Now) -> list[Decision]:
        before = self.run.places.layout
        assert before is not None
        self.run.places.take_search()
        layout = before.filled(search.found, search.lent)
        self.run.places.choose(layout)
        ranks = tuple(rank for slot in sorted(search.out) for rank in before.ranks_of(slot))
        filled = {str(slot): node for slot, node in sorted(search.found.items())}
        f = self.run.facts
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, filled, (), dict(layout.lent), ranks)
        words = search.in_words()
        done: list[Decision] = []
        if search.decision:
            done.append(self.run.note(rec.CarriedOut(now.unix, search.decision, True, f"replaced {words}")))
        back = [before.lent[node] for node in search.out.values() if node in before.lent]
        return [
            *done, self.run.note(changed, vital=True), Say(f"replaced {words}"), *self._forget(search.out.values()),
            *self.run.loans.end(back), *self.starting.launch_step(now), *self.run.told.show_running(self.starting.next_number()),
            *self.release(search.dead),
        ]  # fmt: skip

    def _give_up_search(self, search: ReplacementSearch, now: Now) -> Answer:
        self.run.places.take_search()
        self.run.timers.stop_all()
        loans = search.drop()
        if not search.decision:
            missing = search.missing
            what = f"{fold_nodes(missing)} is excluded, and {search.failed}"
            if search.unsure and self.run.launch.in_vain < SEARCHES_AGAIN:
                return [*loans, Say(f"{what}; searching again"), *self._search_later(now)]
            self.run.places.choose(self._first_choice(now).fewer())
            if self.run.places.layout is None:
                return [*loans, *self._give_up_nodes(missing, what, search.failed, now)]
            return [*loans, Say(what), *self.starting.launch_step(now)]
        done = self.run.note(rec.CarriedOut(now.unix, search.decision, False, search.failed))
        self.run.enter(Phase.SETTLING)
        said = [*loans, done, Say(f"no replacement found: {search.failed}")]
        if search.unsure and Capability.ASK in self.run.facts.can:  # slurmctld may have been the reason
            self.run.attempt.search.fail_unless_away(search.failed)
            self.run.slurm.forget()
            return [*said, self.run.ask_slurm(now)]
        self.run.attempt.search.fail(search.failed)
        return [*said, Settled()]

    def _search_later(self, now: Now) -> list[Decision]:
        """Before the first start: repeat the search later; there is neither a step nor a decision to return to."""
        self.run.launch.again()
        self.run.enter(Phase.REPLACING)
        self.run.timers.only({Timer.SEARCH_AGAIN: now.mono + SEARCH_AGAIN_S})
        return []

    def search_again(self, now: Now) -> Answer:
        return self.first_launch(now) if self.run.places.search is None else []

    def _give_up_nodes(self, missing: Collection[str], what: str, unreplaced: str, now: Now) -> Answer:
        """Too few nodes before the first start. Slurm may have refused the exclusion at the last requeue; it will accept it at
        the next one.
        """
        attempt = self.run.new_attempt(tasks=())
        attempt.step_end.none()
        attempt.cannot_stay(what)
        attempt.search.fail(unreplaced)
        why = dict.fromkeys(self.run.facts.missing, "it is not in the job any more")
        why |= {node: self.run.history.exclusions.isolated[node][0] for node in self.run.kept_out(now)}
        attempt.nodes.lose_before({node: why[node] for node in missing if node in why}, self.run.kept_out(now))
        return [Trouble(Cause.LAUNCH, what, 1)]

    def on_signal(self, event: ev.SignalSeen, now: Now) -> Answer:
        """A signal during the search: a job that is ending does not wait for nodes, nor does one that is to be requeued now."""
        search, later = self.run.places.search, Timer.SEARCH_AGAIN in self.run.timers
        decision = search.decision if search is not None else ""
        ends = event.rank is None and event.number in (SIGINT, SIGTERM)
        if (search is None and not later) or not (ends or (decision and self.run.signal.asks_for_requeue(event.number))):
            if self.run.signal.announces(event.number):
                self.run.signal.keep(event)
            return []
        self.run.places.take_search()
        self.run.timers.stop_all()
        loans = search.drop() if search is not None else []
        if not decision or event.number == SIGINT:
            by_person = event.number == SIGINT
            what = f"{'interrupted by Ctrl-C' if by_person else 'ended by SIGTERM'} while waiting for another node"
            outcome = Outcome.INTERRUPTED if by_person else Outcome.ENDED
            return [*loans, ThenFinish(what, 128 + event.number, outcome)]
        self.run.attempt.search.fail("a signal came meanwhile")
        done = self.run.note(rec.CarriedOut(now.unix, decision, False, "a signal came meanwhile"))
        self.run.signal.take(event.number, now.mono)
        self.run.signal.take_kept()
        self.run.enter(Phase.SETTLING)
        if Capability.ASK not in self.run.facts.can:
            self.run.signal.means(Meaning.TERMINATED)
            return [*loans, done, Settled()]
        return [*loans, done, self.run.ask_slurm(now)]

    # --- with fewer nodes

    def shrink(self, bad: frozenset[str], now: Now) -> list[Decision]:
        """Continue without the slots of the bad nodes; the other slots move up and keep their counters."""
        before = self.run.places.layout
        assert before is not None
        slots = [slot for slot, node in enumerate(before.nodes) if node in bad]
        kept = tuple(slot for slot in range(len(before.nodes)) if slot not in slots)
        layout = before.without(slots)
        self.run.places.choose(layout)
        f = self.run.facts
        moved = tuple(rank for rank, slot in enumerate(before.slots) if slot in kept)
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, kept=kept, lent=dict(layout.lent), moved=moved)
        back = [job for node, job in before.lent.items() if node in bad]
        assert self.run.decided is not None
        done = self.run.note(rec.CarriedOut(now.unix, self.run.decided.id, True, f"went on with {fold_nodes(layout.nodes)}"))
        return [
            done, self.run.note(changed, vital=True), *self._forget(bad), *self.run.loans.end(back),
            *self.starting.launch_step(now), *self.run.told.show_running(self.starting.next_number()), *self.release(bad),
        ]  # fmt: skip

    # --- nodes that no longer belong to us

    def _forget(self, nodes: Iterable[str]) -> list[Decision]:
        """Forget the nodes: faults that their agents still report concern nobody."""
        out = tuple(sorted(set(nodes)))
        for node in out:
            self.run.fence.hear(node)
        self.run.agents.forget(out)
        self.run.devices.forget(out)
        return [DismissAgents(out)] if out else []

    def release(self, nodes: Iterable[str]) -> list[Decision]:
        """Give dead nodes back to Slurm. Without --no-kill a job ends when Slurm notices that one of its nodes has died
        (sbatch(1)). A job that had given the node back before continued, seen on 22.05.
        """
        own = tuple(sorted(node for node in set(nodes) if node in self.run.facts.nodes and node != self.run.facts.batch_node))
        self.run.free.give_back(own)
        return [ReleaseNodes(own)] if own and Capability.RELEASE in self.run.facts.can else []

    def on_nodes_released(self, event: ev.NodesReleased, now: Now) -> list[Decision]:
        if event.ok:
            relieved = self._forget(self.run.agents.guards.intersection(event.nodes))
            return [*relieved, *(self.run.watch(now) if relieved and self.run.phase is Phase.RUNNING else [])]
        what = f"{fold_nodes(event.nodes)} could not be given back: {event.why}"
        return [Say(f"{what}; without `sbatch --no-kill` Slurm ends the job when it notices that a node is down")]

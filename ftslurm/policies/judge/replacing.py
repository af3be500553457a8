"""Other nodes for the slots of bad nodes: spares first, then nodes that donor jobs lend; each is checked before ranks start
there. The search begins while the old step still ends; its result is the layout of the next step. Or the step continues with
fewer nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import (
    Decision,
    DismissAgents,
    ReleaseNodes,
    Say,
)
from ftslurm.model.events import Now
from ftslurm.model.layout import Layout
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.parts.places import FirstChoice
from ftslurm.policies.judge.parts.search import Around, ReplacementSearch
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.starting import Starting
from ftslurm.policies.judge.state import MARGIN_S, SIGINT, SIGTERM
from ftslurm.policies.ladder.ladder import Cause
from ftslurm.policies.ladder.situation import Trouble

# Before the first start, a search without answers is repeated this many times, at this interval.
SEARCHES_AGAIN, SEARCH_AGAIN_S = 3, 10.0


class Replacing(Starting):
    def _first_launch(self, now: Now) -> list[Decision]:
        """Launch on the healthy nodes if they are enough; otherwise search for others first."""
        f = self.facts
        first = self._first_choice(now).made(self._places.layout)
        self._places.choose(first.layout)
        if first.too_few:
            return self._too_few(f.missing, f"{fold_nodes(f.missing)} is not in the job any more", "", now)
        if first.out:
            self._enter(Phase.REPLACING)
            return [*self._begin_search(first.out, "", now, first.here), *self._let_go(now)]
        if not first.news or first.layout is None:
            return self._launch_step(now)
        filled = {str(slot): node for slot, node in sorted(first.news.items())}
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, first.layout.nodes, filled)
        return [self._note(changed, vital=True), *self._launch_step(now)]

    def _first_choice(self, now: Now) -> FirstChoice:
        return FirstChoice(
            self.facts, self.settings, self.history.slots.nodes, self.history.exclusions.let_in, self._kept_out(now)
        )

    def _step_layout(self) -> Layout:
        """The layout of the step: as it was chosen, or as srun placed the ranks when they last started; all nodes if they never
        did.
        """
        return self._places.known or Layout(self.facts.nodes)

    # --- the search

    def _take_search(self) -> ReplacementSearch | None:
        """Take the search away: from now on nobody uses what it found."""
        search, self._search = self._search, None
        return search

    def _begin_search(
        self, out: Mapping[int, str], decision: str, now: Now, found: Mapping[int, str] | None = None
    ) -> list[Decision]:
        """Begin a search. found: slot -> node that fills it already."""
        until = now.mono + self.settings.replacement_wait_s
        dead = self._decided.dead if decision and self._decided is not None else ()
        gone = frozenset({*self._attempt.nodes.gone, *dead} & set(out.values()))
        search = ReplacementSearch(decision, out, until, gone, found or {}, self.settings, self._free, self._loans)
        self._search = search
        return self._searched(search, search.fill(self._around(now)), now)

    def _around(self, now: Now) -> Around:
        used = {*self.facts.nodes, *self._kept_out(now), *(self._places.layout.nodes if self._places.layout else ())}
        return Around(now, self._spares(now), frozenset(used), self._devices.there, self.facts.why_not.donor)

    def _searched(self, search: ReplacementSearch, found: list[Decision], now: Now) -> list[Decision]:
        self._written(found)
        return [*found, *(self._let_go(now) if search.over else [])]

    def _node_checked(self, event: ev.NodeChecked, now: Now) -> list[Decision]:
        search = self._search
        if search is None or not search.searches_at(event.node):
            return self._looked_ahead(event, now)
        return self._searched(search, search.checked(event, self._around(now)), now)

    def _node_borrowed(self, event: ev.NodeBorrowed, now: Now) -> list[Decision]:
        search = self._search
        if search is None or not search.borrows_for(event.slot):
            return self._loan_too_late(event, now)
        return self._searched(search, search.borrowed(event, self.facts.run, now), now)

    def _loan_too_late(self, event: ev.NodeBorrowed, _: Now) -> list[Decision]:
        return self._loans.too_late(event.job)

    def _donor_submitted(self, event: ev.DonorSubmitted, now: Now) -> list[Decision]:
        search = self._search
        if search is None or not search.borrows_for(event.slot):
            return []
        search.submitted(event)
        for_s = max(0.0, search.until - now.mono)
        out = search.out[event.slot]
        limit = f"waiting up to {for_s:.0f} s (nodes.replacement_wait)"
        if event.boots:
            what = f"{event.boots} of donor job {event.job} to boot"
            return self._wait_for(what, for_s, now, f"{limit} for {what}, which replaces {out}")
        return self._wait_for(
            f"a node of donor job {event.job}", for_s, now, f"{limit} for donor job {event.job} to borrow a replacement for {out}"
        )

    def _still_wait_for_donors(self, search: ReplacementSearch, now: Now) -> list[Decision]:
        """The old step has ended, but the search still waits for donor jobs: tell people."""
        what = search.waits_for
        return self._wait_for(what, max(0.0, search.until - now.mono), now) if what else []

    def _loans_ended(self, event: ev.LoansEnded, now: Now) -> list[Decision]:
        if not event.left:
            return []
        jobs, cancel = ", ".join(map(str, event.left)), " ".join(map(str, event.left))
        one = len(event.left) == 1
        keep = f"{'it keeps its node' if one else 'they keep their nodes'} until this job ends"
        return [Say(f"ftrun could not end donor job{'' if one else 's'} {jobs}; {keep} (`scancel {cancel}`)")]

    def _node_overdue(self, now: Now) -> list[Decision]:
        if self._search is not None:
            self._search.overdue()
        return self._let_go(now)

    # --- what comes of it

    def _without_step(self, now: Now) -> list[Decision]:
        """The old step has ended; the search may still run."""
        self._enter(Phase.REPLACING)
        told = self._replacing_signalled(self._signal.kept, now) if self._signal.kept else []
        return told or self._let_go(now)

    def _let_go(self, now: Now) -> list[Decision]:
        """Launch the new step, or ask the next rung, once the search is complete and nothing of the old step runs."""
        search = self._search
        if self.phase is not Phase.REPLACING or search is None:
            return []
        if search.failed:
            return self._not_filled(search, now)
        if search.done:
            return self._refilled(search, now)
        self._timers.only({Timer.NODE: max(search.until, now.mono) + self.settings.check_s + MARGIN_S})
        return self._still_wait_for_donors(search, now)

    def _refilled(self, search: ReplacementSearch, now: Now) -> list[Decision]:
        before = self._places.layout
        assert before is not None
        self._search = None
        layout = before.filled(search.found, search.lent)
        self._places.choose(layout)
        ranks = tuple(rank for slot in sorted(search.out) for rank in before.ranks_of(slot))
        filled = {str(slot): node for slot, node in sorted(search.found.items())}
        f = self.facts
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, filled, (), dict(layout.lent), ranks)
        words = search.in_words()
        done: list[Decision] = []
        if search.decision:
            done.append(self._note(rec.CarriedOut(now.unix, search.decision, True, f"replaced {words}")))
        back = [before.lent[node] for node in search.out.values() if node in before.lent]
        return [
            *done, self._note(changed, vital=True), Say(f"replaced {words}"), *self._forget(search.out.values()),
            *self._loans.end(back), *self._launch_step(now), *self._wait_over(self._next_number()), *self._release(search.dead),
        ]  # fmt: skip

    def _not_filled(self, search: ReplacementSearch, now: Now) -> list[Decision]:
        self._search = None
        self._timers.stop_all()
        loans = search.drop()
        if not search.decision:
            missing = search.missing
            what = f"{fold_nodes(missing)} is excluded, and {search.failed}"
            if search.unsure and self._launch.in_vain < SEARCHES_AGAIN:
                return [*loans, Say(f"{what}; searching again"), *self._search_later(now)]
            self._places.choose(self._first_choice(now).fewer())
            if self._places.layout is None:
                return [*loans, *self._too_few(missing, what, search.failed, now)]
            return [*loans, Say(what), *self._launch_step(now)]
        done = self._note(rec.CarriedOut(now.unix, search.decision, False, search.failed))
        self._enter(Phase.SETTLING)
        said = [*loans, done, Say(f"no replacement found: {search.failed}")]
        if search.unsure and Capability.ASK in self.facts.can:  # slurmctld may have been the reason
            self._attempt.search.fail_unless_away(search.failed)
            self._slurm.forget()
            return [*said, self._ask_slurm(now)]
        self._attempt.search.fail(search.failed)
        return [*said, *self._settled(now)]

    def _search_later(self, now: Now) -> list[Decision]:
        """Before the first start: repeat the search later; there is neither a step nor a decision to return to."""
        self._launch.again()
        self._enter(Phase.REPLACING)
        self._timers.only({Timer.SEARCH_AGAIN: now.mono + SEARCH_AGAIN_S})
        return []

    def _search_again(self, now: Now) -> list[Decision]:
        return self._first_launch(now) if self._search is None else []

    def _too_few(self, missing: Collection[str], what: str, unreplaced: str, now: Now) -> list[Decision]:
        """Too few nodes before the first start. Slurm may have refused the exclusion at the last requeue; it will accept it at
        the next one.
        """
        attempt = self._anew(tasks=())
        attempt.step_end.none()
        attempt.cannot_stay(what)
        attempt.search.fail(unreplaced)
        why = dict.fromkeys(self.facts.missing, "it is not in the job any more")
        why |= {node: self.history.exclusions.isolated[node][0] for node in self._kept_out(now)}
        attempt.nodes.lose_before({node: why[node] for node in missing if node in why}, self._kept_out(now))
        return self._into_trouble(Trouble(Cause.LAUNCH, what, 1), now)

    def _replacing_signalled(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """A signal during the search: a job that is ending does not wait for nodes, nor does one that is to be requeued now."""
        search, later = self._search, Timer.SEARCH_AGAIN in self._timers
        decision = search.decision if search is not None else ""
        ends = event.rank is None and event.number in (SIGINT, SIGTERM)
        if (search is None and not later) or not (ends or (decision and self._asks_for_requeue(event.number))):
            if self._announces(event.number):
                self._signal.keep(event)
            return []
        self._search = None
        self._timers.stop_all()
        loans = search.drop() if search is not None else []
        if not decision or event.number == SIGINT:
            what = "interrupted by Ctrl-C" if event.number == SIGINT else "ended by SIGTERM"
            return [*loans, *self._finish(f"{what} while waiting for another node", 128 + event.number, now)]
        self._attempt.search.fail("a signal came meanwhile")
        done = self._note(rec.CarriedOut(now.unix, decision, False, "a signal came meanwhile"))
        self._signal.take(event.number, now.mono)
        self._signal.take_kept()
        self._enter(Phase.SETTLING)
        if Capability.ASK not in self.facts.can:
            self._signal.means("terminated")
            return [*loans, done, *self._settled(now)]
        return [*loans, done, self._ask_slurm(now)]

    # --- with fewer nodes

    def _smaller(self, bad: frozenset[str], now: Now) -> list[Decision]:
        """Continue without the slots of the bad nodes; the other slots move up and keep their counters."""
        before = self._places.layout
        assert before is not None
        slots = [slot for slot, node in enumerate(before.nodes) if node in bad]
        kept = tuple(slot for slot in range(len(before.nodes)) if slot not in slots)
        layout = before.without(slots)
        self._places.choose(layout)
        f = self.facts
        moved = tuple(rank for rank, slot in enumerate(before.slots) if slot in kept)
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, kept=kept, lent=dict(layout.lent), moved=moved)
        back = [job for node, job in before.lent.items() if node in bad]
        assert self._decided is not None
        done = self._note(rec.CarriedOut(now.unix, self._decided.id, True, f"went on with {fold_nodes(layout.nodes)}"))
        return [
            done, self._note(changed, vital=True), *self._forget(bad), *self._loans.end(back), *self._launch_step(now),
            *self._wait_over(self._next_number()), *self._release(bad),
        ]  # fmt: skip

    # --- nodes that no longer belong to us

    def _forget(self, nodes: Iterable[str]) -> list[Decision]:
        """Forget the nodes: faults that their agents still report concern nobody."""
        out = tuple(sorted(set(nodes)))
        for node in out:
            self._fence.hear(node)
        self._agents.forget(out)
        self._devices.forget(out)
        return [DismissAgents(out)] if out else []

    def _release(self, nodes: Iterable[str]) -> list[Decision]:
        """Give dead nodes back to Slurm. Without --no-kill a job ends when Slurm notices that one of its nodes has died
        (sbatch(1)). A job that had given the node back before continued, seen on 22.05.
        """
        own = tuple(sorted(node for node in set(nodes) if node in self.facts.nodes and node != self.facts.batch_node))
        self._free.give_back(own)
        return [ReleaseNodes(own)] if own and Capability.RELEASE in self.facts.can else []

    def _released(self, event: ev.NodesReleased, now: Now) -> list[Decision]:
        if event.ok:
            relieved = self._forget(self._agents.guards.intersection(event.nodes))
            return [*relieved, *(self._watch(now) if relieved and self.phase is Phase.RUNNING else [])]
        what = f"{fold_nodes(event.nodes)} could not be given back: {event.why}"
        return [Say(f"{what}; without `sbatch --no-kill` Slurm ends the job when it notices that a node is down")]

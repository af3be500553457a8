"""Other nodes for the slots of bad ones: spares first, then nodes that donor jobs lend; each is looked at before ranks go there.
The search begins while the old step still ends, and what it finds becomes the layout of the next. Or the step does with fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import (
    BorrowNode,
    CheckNode,
    Decision,
    DismissAgents,
    EndLoans,
    ReleaseNodes,
    Say,
)
from ftslurm.model.events import Now
from ftslurm.model.layout import Layout
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.starting import Starting
from ftslurm.policies.judge.state import MARGIN_S, SIGINT, SIGTERM
from ftslurm.policies.ladder.ladder import Cause
from ftslurm.policies.ladder.situation import Trouble
from ftslurm.policies.node.device_counts import short_of, wanted
from ftslurm.policies.node.filling import Filling
from ftslurm.policies.node.health import NodeHealth

# Before the first start, a search that had no answers is made again so often, and after so long.
SEARCHES_AGAIN, SEARCH_AGAIN_S = 3, 10.0


class Replacing(Starting):
    def _first_launch(self, now: Now) -> list[Decision]:
        """On all nodes as srun places them; with spares, or nodes that the job has left, on those that are well."""
        f = self.facts
        kept_out = self._not_to_use(now)
        all_there = len(f.nodes) >= f.width and not kept_out & set(f.nodes)
        if not f.width or (all_there and not self.settings.spares):
            return self._launch_step(now)
        well = [node for node in f.nodes if node not in kept_out]
        if len(well) >= f.width:
            return self._launch_on(well, now)
        lost = [*f.missing, *sorted(kept_out - {*f.nodes, *f.missing})]  # the job has them no more
        bad = [*(node for node in f.nodes if node in kept_out), *lost]
        if not self._may_fill or len(well) + len(bad) < f.width:
            self._place(self._fewer(now))
            if self._layout is None and f.missing and len(f.nodes) < f.width:
                return self._too_few(f.missing, f"{fold_nodes(f.missing)} is not in the job any more", "", now)
            return self._launch_step(now)
        before = self.history.places
        if len(before) == f.width:
            found = self._there_again(before, well, bad)
        else:
            given = dict.fromkeys((*(f.granted or f.nodes), *f.nodes, *lost))
            before, found = tuple(node for node in given if node in {*well, *bad[: f.width - len(well)]}), {}
        self._place(Layout(before).filled(found, {}))
        self._enter(Phase.REPLACING)
        here = {slot: node for slot, node in found.items() if node in well}
        out = {slot: node if slot in here else found.get(slot, node) for slot, node in enumerate(before) if node not in well}
        return [*self._search(out, "", now, here), *self._let_go(now)]

    def _not_to_use(self, now: Now) -> set[str]:
        """Nodes kept out, but for those that the last requeue let in, where neither the others nor fewer are enough."""
        f, kept_out = self.facts, set(self._kept_out(now))
        lacking = f.width - sum(node not in kept_out for node in f.nodes)
        again = [node for node in f.nodes if node in kept_out & self.history.let_in]
        return kept_out if lacking > len(again) or self._fewer(now) else kept_out - {*again[: max(0, lacking)]}

    def _there_again(self, before: Sequence[str], well: Sequence[str], bad: Sequence[str]) -> dict[int, str]:
        """slot -> who stands in it now, where its last node was lent or is bad: a free node, else the one that is missing."""
        own = [node for node in before if node in bad]
        free = [node for node in well if node not in before]
        for_others = [node for node in bad if node not in before][: max(0, len(before) - len(well) - len(own))]
        open_ = sorted((slot for slot, node in enumerate(before) if node not in well), key=lambda slot: before[slot] in bad)
        return dict(zip(open_, (*free, *for_others), strict=False))

    def _launch_on(self, well: Sequence[str], now: Now) -> list[Decision]:
        """Suspects become spares. What an earlier ftrun of this scheduling has left in a slot is there again."""
        f = self.facts
        best = sorted(well, key=lambda node: node in f.remembered)  # stable: else in Slurm's order
        before = self.history.places
        if len(before) != f.width or Capability.REPLACE not in f.can:
            self._place(Layout(tuple(node for node in f.nodes if node in best[: f.width])))
            return self._launch_step(now)
        there = {slot: node for slot, node in enumerate(before) if node in well}
        news = dict(zip((s for s in range(f.width) if s not in there), (n for n in best if n not in before), strict=False))
        layout = Layout(before, chosen=True).filled(news, {})
        self._place(layout)
        if not news:
            return self._launch_step(now)
        filled = {str(slot): node for slot, node in sorted(news.items())}
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, filled)
        return [self._note(changed, vital=True), *self._launch_step(now)]

    def _fewer(self, now: Now) -> Layout | None:
        """The nodes that are well, where the job has said that so few are enough."""
        well = tuple(node for node in self.facts.nodes if node not in set(self._kept_out(now)))
        st = self.settings
        if Capability.REPLACE not in self.facts.can or not st.shrink or not 0 < st.min_nodes <= len(well):
            return None
        before = self.history.places  # of an earlier ftrun of this scheduling, whose slots stay
        return Layout(before, chosen=True) if sorted(before) == sorted(well) else Layout(well)

    @property
    def _may_fill(self) -> bool:
        return Capability.REPLACE in self.facts.can and self.settings.node_replacement

    def _step_layout(self) -> Layout:
        """As it was told, or as srun placed the ranks when they last started; on all nodes if they never did."""
        return self._layout or self._placed or Layout(self.facts.nodes)

    # --- the search

    def _take_search(self) -> Filling | None:
        """What it has found is nobody's any more."""
        filling, self._filling = self._filling, None
        return filling

    def _search(self, out: Mapping[int, str], decision: str, now: Now, found: Mapping[int, str] | None = None) -> list[Decision]:
        """found: what fills a slot already."""
        until = now.mono + self.settings.replacement_wait_s
        dead = self._decided.dead if decision and self._decided is not None else ()
        gone = frozenset({*self._attempt.nodes.gone, *dead} & set(out.values()))
        self._filling = Filling(decision, dict(out), until, gone, dict(found or {}))
        return self._fill(now)

    def _fill(self, now: Now) -> list[Decision]:
        """Something under way for every slot; failed as soon as one has nothing left to hope for."""
        filling = self._filling
        assert filling is not None
        asked: list[Decision] = []
        for slot in filling.open:
            spare = filling.next_of(self._spares(now))
            if spare is not None:
                filling.checking[spare] = slot
                asked += self._look_at(spare, now)
            elif reason := self._no_loan(filling, now):
                filling.failed = reason
                return [*asked, *self._let_go(now)]
            else:
                filling.borrowing.add(slot)
                asked.append(BorrowNode(slot, self._not_again(now), filling.until - now.mono))
        known = [self._free.fit[node] for node in filling.checking if node in self._free.fit]
        return [*asked, *(done for answer in known for done in self._node_checked(answer, now))]

    def _no_loan(self, filling: Filling, now: Now) -> str:
        if not self.settings.donor:
            return "no spare node is left (nodes.donor is off)"
        if self.facts.no_donor:
            return f"no spare node is left, and none can be borrowed: {self.facts.no_donor}"
        return "" if filling.until > now.mono else f"no node became available within {self.settings.replacement_wait_s:g} s"

    def _not_again(self, now: Now) -> tuple[str, ...]:
        """A donor shall have none of these."""
        known = {*self.facts.nodes, *self._kept_out(now), *(self._layout.nodes if self._layout else ())}
        assert self._filling is not None
        return tuple(sorted(known | self._filling.tried | self._filling.lent.keys()))

    def _node_checked(self, event: ev.NodeChecked, now: Now) -> list[Decision]:
        filling = self._filling
        if filling is None or event.node not in filling.checking:
            return self._looked_ahead(event, now)
        slot = filling.checking.pop(event.node)
        self._free.used(event.node)
        if filling.failed:
            return []
        event = self._with_as_many_devices(event, filling.out[slot])
        if event.good:
            filling.found[slot] = event.node
            return self._let_go(now) if filling.done else []
        filling.tried.add(event.node)
        filling.unsure |= event.good is None
        refused: list[Decision] = [Say(f"{event.node} cannot replace {filling.out[slot]}: {event.why}")]
        if event.good is False:
            refused.insert(0, self._note(rec.NodeRefused(now.unix, event.node, event.why)))
        if event.node in filling.lent:
            refused += self._end_loans([filling.lent.pop(event.node)])
        return [*refused, *self._fill(now)]

    def _with_as_many_devices(self, event: ev.NodeChecked, out: str) -> ev.NodeChecked:
        """As it was looked at, and measured against the node `out`, whose place it is to take."""
        if not event.good or event.there is None:
            return event
        short = short_of(wanted(self._devices.there, out), event.there)
        good = {NodeHealth.GOOD: True, NodeHealth.BAD: False, NodeHealth.UNKNOWN: None}[short.health]
        return event if good else replace(event, good=good, why=short.reason)

    def _node_borrowed(self, event: ev.NodeBorrowed, now: Now) -> list[Decision]:
        filling = self._filling
        if filling is None or event.slot not in filling.borrowing or filling.failed:
            return self._loan_too_late(event, now)
        filling.borrowing.discard(event.slot)
        if not event.node:
            filling.failed, filling.unsure = f"no node could be borrowed: {event.why}", filling.unsure or event.away
            return [*self._loan_too_late(event, now), *self._let_go(now)]
        self._loans.begin(event.job)
        filling.lent[event.node] = event.job
        filling.checking[event.node] = event.slot
        lent = self._note(rec.NodeLent(now.unix, self.facts.run, event.node, event.job), vital=True)
        return [lent, CheckNode(event.node, event.job, self.settings.check_s)]

    def _donor_submitted(self, event: ev.DonorSubmitted, now: Now) -> list[Decision]:
        filling = self._filling
        if filling is None or event.slot not in filling.borrowing or filling.failed:
            return []
        filling.donors[event.slot] = event.job
        for_s = max(0.0, filling.until - now.mono)
        out = filling.out[event.slot]
        said = f"donor job {event.job} waits for a node in the place of {out}, {for_s:.0f} s at the most (nodes.replacement_wait)"
        return self._wait_for(f"a node of donor job {event.job}", for_s, now, said)

    def _still_wait_for_donors(self, filling: Filling, now: Now) -> list[Decision]:
        """The old step has ended meanwhile, and that was waited for, too."""
        jobs = [str(job) for slot, job in sorted(filling.donors.items()) if slot in filling.borrowing]
        return self._wait_for(f"a node of donor job {', '.join(jobs)}", max(0.0, filling.until - now.mono), now) if jobs else []

    def _loan_too_late(self, event: ev.NodeBorrowed, now: Now) -> list[Decision]:
        if not event.job:
            return []
        self._loans.too_late(event.job)
        return [EndLoans((event.job,))]

    def _loans_ended(self, event: ev.LoansEnded, now: Now) -> list[Decision]:
        jobs = ", ".join(map(str, event.left))
        return [Say(f"donor jobs that could not be ended hold their nodes until this job ends: {jobs}")] if jobs else []

    def _node_overdue(self, now: Now) -> list[Decision]:
        if self._filling is not None and not self._filling.failed:
            self._filling.failed, self._filling.unsure = f"no node was ready within {self.settings.replacement_wait_s:g} s", True
        return self._let_go(now)

    # --- what comes of it

    def _without_step(self, now: Now) -> list[Decision]:
        """The old step has ended; the search may still go on."""
        self._enter(Phase.REPLACING)
        told = self._replacing_signalled(self._signal.kept, now) if self._signal.kept else []
        return told or self._let_go(now)

    def _let_go(self, now: Now) -> list[Decision]:
        """Once the search has an end and nothing of the old step runs: the new one, or the next rung."""
        filling = self._filling
        if self.phase is not Phase.REPLACING or filling is None:
            return []
        if filling.failed:
            return self._not_filled(filling, now)
        if filling.done:
            return self._refilled(filling, now)
        self._timers.only({Timer.NODE: max(filling.until, now.mono) + self.settings.check_s + MARGIN_S})
        return self._still_wait_for_donors(filling, now)

    def _refilled(self, filling: Filling, now: Now) -> list[Decision]:
        before = self._layout
        assert before is not None
        self._filling = None
        layout = before.filled(filling.found, filling.lent)
        self._place(layout)
        ranks = tuple(rank for slot in sorted(filling.out) for rank in before.ranks_of(slot))
        filled = {str(slot): node for slot, node in sorted(filling.found.items())}
        f = self.facts
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, filled, (), dict(layout.lent), ranks)
        words = ", ".join(
            f"{filling.out[slot]} by {node} ({'lent by job ' + str(filling.lent[node]) if node in filling.lent else 'a spare'})"
            for slot, node in sorted(filling.found.items())
        )
        done: list[Decision] = []
        if filling.decision:
            done.append(self._note(rec.CarriedOut(now.unix, filling.decision, True, f"replaced {words}")))
        back = [before.lent[node] for node in filling.out.values() if node in before.lent]
        return [
            *done, self._note(changed, vital=True), Say(f"replaced {words}"), *self._forget(filling.out.values()),
            *self._end_loans(back), *self._launch_step(now), *self._wait_over(self._next_number()), *self._release(filling.gone),
        ]  # fmt: skip

    def _not_filled(self, filling: Filling, now: Now) -> list[Decision]:
        self._filling = None
        self._timers.stop_all()
        loans = self._end_loans(filling.lent.values())
        if not filling.decision:
            missing = [node for slot, node in filling.out.items() if slot not in filling.found]
            what = f"{fold_nodes(missing)} is kept out of the job, and {filling.failed}"
            if filling.unsure and self._launch.in_vain < SEARCHES_AGAIN:
                return [*loans, Say(f"{what}; searching again"), *self._search_later(now)]
            self._place(self._fewer(now))
            if self._layout is None:
                return [*loans, *self._too_few(missing, what, filling.failed, now)]
            return [*loans, Say(what), *self._launch_step(now)]
        done = self._note(rec.CarriedOut(now.unix, filling.decision, False, filling.failed))
        self._enter(Phase.SETTLING)
        said = [*loans, done, Say(f"no other node: {filling.failed}")]
        if filling.unsure and Capability.ASK in self.facts.can:  # whether it was for want of slurmctld
            self._attempt.search.fail_unless_away(filling.failed)
            self._slurm.forget()
            return [*said, self._ask_slurm(now)]
        self._attempt.search.fail(filling.failed)
        return [*said, *self._settled(now)]

    def _search_later(self, now: Now) -> list[Decision]:
        """Before the first start, where there is no step and no decision to come back to."""
        self._launch.again()
        self._enter(Phase.REPLACING)
        self._timers.only({Timer.SEARCH_AGAIN: now.mono + SEARCH_AGAIN_S})
        return []

    def _search_again(self, now: Now) -> list[Decision]:
        return self._first_launch(now) if self._filling is None else []

    def _too_few(self, missing: Collection[str], what: str, unreplaced: str, now: Now) -> list[Decision]:
        """Before the first start. Slurm may have taken no exclusion at the last requeue; it will at the next one."""
        attempt = self._anew(tasks=())
        attempt.step_end.none()
        attempt.cannot_stay(what)
        attempt.search.fail(unreplaced)
        why = dict.fromkeys(self.facts.missing, "it is not in the job any more")
        why |= {node: self.history.isolated[node][0] for node in self._kept_out(now)}
        attempt.nodes.lose_before({node: why[node] for node in missing if node in why}, self._kept_out(now))
        return self._into_trouble(Trouble(Cause.LAUNCH, what, 1), now)

    def _replacing_signalled(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """A job that is ending does not wait for nodes, nor one that wants to be requeued now."""
        filling = self._filling or (Filling("", {}, now.mono) if Timer.SEARCH_AGAIN in self._timers else None)
        ends = event.rank is None and event.number in (SIGINT, SIGTERM)
        if filling is None or not (ends or (filling.decision and self._asks_for_requeue(event.number))):
            if self._announces(event.number):
                self._signal.keep(event)
            return []
        self._filling = None
        self._timers.stop_all()
        loans = self._end_loans(filling.lent.values())
        if not filling.decision or event.number == SIGINT:
            what = "interrupted by Ctrl-C" if event.number == SIGINT else "ended by SIGTERM"
            return [*loans, *self._finish(f"{what} while waiting for another node", 128 + event.number, now)]
        self._attempt.search.fail("a signal came meanwhile")
        done = self._note(rec.CarriedOut(now.unix, filling.decision, False, "a signal came meanwhile"))
        self._signal.take(event.number, now.mono)
        self._signal.take_kept()
        self._enter(Phase.SETTLING)
        if Capability.ASK not in self.facts.can:
            self._signal.means("terminated")
            return [*loans, done, *self._settled(now)]
        return [*loans, done, self._ask_slurm(now)]

    # --- with fewer nodes

    def _smaller(self, bad: frozenset[str], now: Now) -> list[Decision]:
        """The slots of bad nodes are given up; the others move up and keep their counters."""
        before = self._layout
        assert before is not None
        slots = [slot for slot, node in enumerate(before.nodes) if node in bad]
        kept = tuple(slot for slot in range(len(before.nodes)) if slot not in slots)
        layout = before.without(slots)
        self._place(layout)
        f = self.facts
        moved = tuple(rank for rank, slot in enumerate(before.slots) if slot in kept)
        changed = rec.SlotsChanged(now.unix, f.run, f.schedule, layout.nodes, kept=kept, lent=dict(layout.lent), moved=moved)
        back = [job for node, job in before.lent.items() if node in bad]
        assert self._decided is not None
        done = self._note(rec.CarriedOut(now.unix, self._decided.id, True, f"went on with {fold_nodes(layout.nodes)}"))
        return [
            done, self._note(changed, vital=True), *self._forget(bad), *self._end_loans(back), *self._launch_step(now),
            *self._wait_over(self._next_number()), *self._release(bad),
        ]  # fmt: skip

    # --- nodes that are ours no more

    def _forget(self, nodes: Iterable[str]) -> list[Decision]:
        """What their agents still see is nobody's trouble."""
        out = tuple(sorted(set(nodes)))
        for node in out:
            self._fence.hear(node)
        self._agents.forget(out)
        self._devices.forget(out)
        return [DismissAgents(out)] if out else []

    def _end_loans(self, jobs: Iterable[int]) -> list[Decision]:
        over = tuple(sorted(set(jobs)))
        self._loans.end(over)
        return [EndLoans(over)] if over else []

    def _release(self, nodes: Iterable[str]) -> list[Decision]:
        """Without --no-kill a job ends when Slurm notices that a node of it has died (sbatch(1)). One that is given back before
        is none of the job's any more: it went on when Slurm noticed, seen on 22.05."""
        own = tuple(sorted(node for node in set(nodes) if node in self.facts.nodes and node != self.facts.batch_node))
        self._free.give_back(own)
        return [ReleaseNodes(own)] if own and Capability.RELEASE in self.facts.can else []

    def _released(self, event: ev.NodesReleased, now: Now) -> list[Decision]:
        if event.ok:
            relieved = self._forget(self._agents.guards.intersection(event.nodes))
            return [*relieved, *(self._watch(now) if relieved and self.phase is Phase.RUNNING else [])]
        what = f"{fold_nodes(event.nodes)} could not be given back: {event.why}"
        return [Say(f"{what}; without `sbatch --no-kill` Slurm ends the job when it notices that a node is down")]

"""The loop: events in, decisions written down, decisions carried out."""

from __future__ import annotations

from functools import reduce

from ftslurm.errors import StateError
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.live import RequestReader
from ftslurm.model.decisions import Decision, Remember
from ftslurm.model.events import Begun, Event, LedgerFailed
from ftslurm.model.folds.history import History
from ftslurm.model.record import Record
from ftslurm.model.values import Value
from ftslurm.policies.judge.judge import Judge
from ftslurm.system.clock import Clock
from ftslurm.wrapper.controller.effects import Effects
from ftslurm.wrapper.controller.live import LiveTeller
from ftslurm.wrapper.controller.sources import Sources


class Controller(Value, frozen=False):
    """Keeps one job alive. `run` gives the exit status. live: tells people who watch."""

    judge: Judge
    sources: Sources
    effects: Effects
    journal: Journal
    clock: Clock
    live: LiveTeller
    _warned: bool = False
    _read: tuple[tuple[Record, ...], History] = (), History()  # of the ledger: it is only ever added to

    def run(self) -> int:
        """Raises: FtslurmError when the job cannot even begin."""
        try:
            self._handle(Begun())
            self.sources.listen(RequestReader(self.journal.path).look)  # who waits for the first step waits for nothing of this
            self.live.start()
            while not self.judge.finished:
                more = self.sources.has_more
                self._handle(self.sources.next(None if more else self.judge.wakes_at), look=not more)
        finally:
            self.effects.close()
            self.live.close()
            self.sources.close()
        return self.judge.exit_status

    def _handle(self, event: Event, look: bool = True) -> None:
        """look: into the ledger, whether another ftrun has written; once for thousands of reports that came together."""
        if look:
            self._catch_up()
        if self.judge.shares_numbers:
            with self.journal.held():
                self._catch_up()
                decisions = self._decided(event)
        else:
            decisions = self._decided(event)
        for decision in decisions:
            self.effects.carry_out(decision)

    def _decided(self, event: Event) -> tuple[Decision, ...]:
        """Those to be carried out: none before what belongs to them is written."""
        decisions = self.judge.handle(event, self.clock.now())
        self.effects.people.log("%s -> %s", event, decisions)
        records = [decision for decision in decisions if isinstance(decision, Remember)]
        return decisions if not records or self._written(records, event) else ()

    def _catch_up(self) -> None:
        if self.journal.grown():  # another ftrun of the same job has written: its attempts and budgets count as well
            records, (read, past) = self.journal.read().records, self._read
            if records[: len(read)] != read:
                read, past = (), History()
            self._read = records, reduce(History.add, records[len(read) :], past)
            self.judge.read(self._read[1])

    def _written(self, records: list[Remember], event: Event) -> bool:
        """Synced before anything of the answer is done. False if a vital record could not be written."""
        try:
            self.journal.append([remember.record for remember in records])
        except StateError as error:
            if isinstance(event, Begun):
                raise
            if any(remember.vital for remember in records):
                self._handle(LedgerFailed(str(error)))
                return False
            self._complain(error)
        return True

    def _complain(self, error: StateError) -> None:
        """Once: a job that runs well is not stopped for its diary."""
        if not self._warned:
            self._warned = True
            self.effects.people.say(f"{error}; the job goes on, but cannot be restarted until this is fixed")

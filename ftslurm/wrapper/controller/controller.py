"""The loop: events in, decisions written down, decisions carried out."""

from __future__ import annotations

from contextlib import nullcontext
from functools import reduce

from ftslurm.errors import StateError
from ftslurm.ledger.journal import Journal
from ftslurm.model.decisions import Remember
from ftslurm.model.events import Begun, Event, LedgerFailed
from ftslurm.model.folds.history import History
from ftslurm.model.record import Record
from ftslurm.policies.judge.judge import Judge
from ftslurm.system.clock import Clock
from ftslurm.wrapper.controller.effects import Effects
from ftslurm.wrapper.controller.live import LiveTeller
from ftslurm.wrapper.controller.sources import Sources


class Controller:
    """Keeps one job alive. `run` gives the exit status."""

    def __init__(
        self, judge: Judge, sources: Sources, effects: Effects, journal: Journal, clock: Clock, live: LiveTeller | None = None
    ) -> None:
        """live: tells people who watch."""
        self._judge = judge
        self._sources = sources
        self._effects = effects
        self._journal = journal
        self._clock = clock
        self._live = live
        self._warned = False
        self._read: tuple[tuple[Record, ...], History] = (), History()  # of the ledger: it is only ever added to

    def run(self) -> int:
        """Raises: FtslurmError when the job cannot even begin."""
        try:
            self._handle(Begun())
            if self._live is not None:
                self._live.start()
            while not self._judge.finished:
                self._handle(self._sources.next(self._judge.wakes_at))
        finally:
            self._effects.close()
            if self._live is not None:
                self._live.close()
            self._sources.close()
        return self._judge.exit_status

    def _handle(self, event: Event) -> None:
        self._catch_up()
        with self._journal.held() if self._judge.shares_numbers else nullcontext():
            self._catch_up()
            decisions = self._judge.handle(event, self._clock.now())
            self._effects.people.log("%s -> %s", event, decisions)
            records = [decision for decision in decisions if isinstance(decision, Remember)]
            written = not records or self._written(records, event)
        for decision in decisions if written else ():
            self._effects.carry_out(decision)

    def _catch_up(self) -> None:
        if self._journal.grown():  # another ftrun of the same job has written: its attempts and budgets count as well
            records, (read, past) = self._journal.read().records, self._read
            if records[: len(read)] != read:
                read, past = (), History()
            self._read = records, reduce(History.add, records[len(read) :], past)
            self._judge.read(self._read[1])

    def _written(self, records: list[Remember], event: Event) -> bool:
        """Synced before anything of the answer is done. False if a vital record could not be written."""
        try:
            self._journal.append([remember.record for remember in records])
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
            self._effects.people.say(f"{error}; the job goes on, but cannot be restarted until this is fixed")

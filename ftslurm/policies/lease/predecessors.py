"""What earlier ftruns of the job left: ranks that may still run, steps that are over, donor jobs that nobody has ended.

The ledger is folded once. Whatever no record and no fact proves to have ended may still run, until its lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.nodes import expand
from ftslurm.model.record import AttemptBegan, CarriedOut, Decided, Finished, NodeLent, Record, RunBegan
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass


@dataclass(slots=True)
class Predecessor:
    """One ftrun of the job."""

    began: RunBegan | None = None
    gone: bool = False  # does its process not run any more, as far as this node can tell?
    attempts: list[AttemptBegan] = field(default_factory=list)
    loans: list[int] = field(default_factory=list)  # donor jobs
    gave_back: bool = False  # was a requeue that it decided carried out?
    finished: Finished | None = None

    @property
    def died(self) -> bool:
        """It ended, and did not live to say so."""
        return self.gone and self.finished is None

    def in_scheduling(self, schedule: int) -> bool:
        return self.began is not None and self.began.schedule == schedule

    def nodes(self) -> frozenset[str]:
        """Of its last attempt: before it began that one, it had waited for its own ranks."""
        return frozenset(expand(self.attempts[-1].nodes)) if self.attempts else frozenset()


@dataclass(frozen=True, slots=True)
class Predecessors:
    """As ftrun finds them when it begins in scheduling `schedule` of the job, which began at `start_time` (Unix seconds; 0: not
    known). runs: run -> that ftrun, the earliest first. attempts: of all of them, in the order of the ledger.
    """

    schedule: int
    start_time: int
    runs: Mapping[str, Predecessor]
    attempts: tuple[AttemptBegan, ...]

    def unproven(
        self, settings: Settings, now: float, down: Mapping[str, str] | None
    ) -> tuple[Mapping[str, str], frozenset[str]]:
        """(node -> why ranks of an earlier ftrun may still run there, those of them of which nothing is known but that their
        ftrun was killed). now: Unix seconds. down: of the nodes that were never seen to end (`not_cleaned_up`), those that
        Slurm takes for dead, and its words: it lets a job run again only when the others have cleaned up; None: no answer.
        """
        unclean = dict.fromkeys(self.not_cleaned_up(), "slurmctld does not answer") if down is None else down
        known = {
            **dict.fromkeys(self.awaited(settings, now), "silent when the ftrun before this one ended"),
            **unclean,
            **dict.fromkeys(self.forgotten(), "slurmctld has forgotten them"),
        }
        killed = self.killed()
        return {**dict.fromkeys(killed, "the ftrun before this one was killed"), **known}, killed - known.keys()

    def not_cleaned_up(self) -> frozenset[str]:
        """Nodes on which an earlier scheduling started ranks and its ftrun never said how that ended: somebody else requeued the
        job. Where Slurm could not clean up either, they may still run.

        Whoever requeues the job for ftrun has waited for them before. ftrun itself seldom lives to say so after that: Slurm kills
        all of a batch step as soon as its script has ended (proctrack/cgroup)."""
        last = {attempt.run: attempt for attempt in self.attempts if attempt.schedule < self.schedule}
        unsaid = (attempt for run, attempt in last.items() if self.runs[run].finished is None and not self.runs[run].gave_back)
        return frozenset(node for attempt in unsaid for node in expand(attempt.nodes))

    def awaited(self, settings: Settings, now: float) -> frozenset[str]:
        """Nodes whose leases may not have run out: an earlier ftrun of this scheduling ended and did not wait for them, since it
        started nothing after them. Whoever comes after it in the script does. now: Unix seconds."""
        wait_s = settings.lease.time_s + settings.lease.margin_s
        ends = (one.finished for one in self.runs.values() if one.in_scheduling(self.schedule))
        return frozenset(node for end in ends if end is not None and now < end.at + wait_s for node in end.unproven)

    def killed(self) -> frozenset[str]:
        """Nodes on which ranks of an earlier ftrun of this scheduling may still run: it died without a word. Who began an attempt
        of the same command after it has waited for them."""
        last = {attempt.step_key: attempt for attempt in self.attempts if attempt.schedule == self.schedule}
        dead = {run for run, one in self.runs.items() if one.in_scheduling(self.schedule) and one.died}
        return frozenset(node for attempt in last.values() if attempt.run in dead for node in expand(attempt.nodes))

    def forgotten(self) -> frozenset[str]:
        """Nodes of ftruns of a scheduling that Slurm counts like this one, or later, and which began at another time: slurmctld
        went back to an older state, and may have seen no clean-up of theirs."""
        lost = (one for one in self.runs.values() if self._is_of_another_time(one.began) and one.finished is None)
        return frozenset().union(*(one.nodes() for one in lost))

    def _is_of_another_time(self, began: RunBegan | None) -> bool:
        if began is None or not began.start_time or not self.start_time:
            return False
        return began.schedule > self.schedule or (began.schedule == self.schedule and began.start_time != self.start_time)

    def steps_over(self) -> frozenset[str]:
        """Steps of earlier ftruns in this scheduling that have ended, or died.

        Slurm may hold the nodes for one for ever: where it was ended while its node or slurmctld was down, nobody tells it.
        """
        over = {run for run, one in self.runs.items() if one.gone or one.finished is not None}
        steps = {attempt.step for attempt in self.attempts if attempt.schedule == self.schedule and attempt.run in over}
        return frozenset(steps - {""})

    def loans(self) -> tuple[int, ...]:
        """Donor jobs of ftruns that died and could not end them."""
        return tuple(job for one in self.runs.values() if one.died for job in one.loans)

    def died_alone(self) -> bool:
        """Has an ftrun of this scheduling died without a word, and none lives beside? Then a donor job that nobody has written
        down is nobody's: it was submitted, and waited for."""
        open_ = [one for one in self.runs.values() if one.in_scheduling(self.schedule) and one.finished is None]
        return bool(open_) and all(one.gone for one in open_)


def is_gone(told: RunBegan | JobSummary, host: str, pid_space: str, started: int | None) -> bool:
    """Has the ftrun that `told` names ended? Nobody knows of one on another machine, or in another container.

    host, pid_space: where we are. started: when the process of that number here started, in kernel ticks; None: there is none.
    Numbers are given anew: a process that started at another time is another one, where the ledger has the time (not 0).
    """
    if (told.host, told.pid_space) != (host, pid_space):
        return False
    return started is None or told.started not in (0, started)


def predecessors(
    records: Iterable[Record], schedule: int, start_time: int = 0, gone: Callable[[RunBegan], bool] = lambda began: False
) -> Predecessors:
    """gone: does the process of that ftrun not run any more, as far as this node can tell?"""
    runs: dict[str, Predecessor] = {}
    attempts: list[AttemptBegan] = []
    requeues: set[str] = set()
    for record in records:
        match record:
            case RunBegan():
                one = runs.setdefault(record.run, Predecessor())
                one.began, one.gone = record, gone(record)
            case AttemptBegan():
                attempts.append(record)
                runs.setdefault(record.run, Predecessor()).attempts.append(record)
            case NodeLent():
                runs.setdefault(record.run, Predecessor()).loans.append(record.job)
            case Decided() if record.rung in REQUEUES:
                requeues.add(record.id)
            case CarriedOut() if record.ok and record.id in requeues:
                runs.setdefault(record.id.partition("-")[0], Predecessor()).gave_back = True
            case Finished():
                runs.setdefault(record.run, Predecessor()).finished = record
    return Predecessors(schedule, start_time, runs, tuple(attempts))

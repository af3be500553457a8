"""Other nodes for the job: checks them, borrows them by donor jobs, gives nodes back. Works on any
Slurm, with any user's rights. Every ftrun has one (scheduler.py); what only a check or a loan needs is loaded for it.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from ftslurm.errors import FtslurmError, UnknownJob
from ftslurm.launchers.python import Python
from ftslurm.launchers.srun import beside_argv, beside_env
from ftslurm.model.events import LoansEnded, NodeBorrowed, NodeChecked, NodesReleased
from ftslurm.model.nodes import ANYWHERE, Near, fold_nodes
from ftslurm.model.plain import to_plain
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import Value, field
from ftslurm.policies.judge.ending import GATHERS_S
from ftslurm.slurm import commands
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import JobState, JobView, NodeView
from ftslurm.slurm.retries import NoAnswerYet
from ftslurm.system.commands import CommandResult, Runner

# Seconds between two looks at a pending donor job: Slurm schedules a new job at once, or when something ends.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
# For a donor job that may only have a node that is near: what was idle a moment ago is there at once, or somebody else has it.
NEAR_S = 10.0
# How many looks may find its node not ready before people are told that it boots: a Prolog that runs looks alike.
LOOKS_AT_BOOT = 5
# Seconds between two attempts to end one, and their number: a day, longer than slurmctld is usually away.
FIRST_TRY_S, LONGEST_TRY_S, MOST_TRIES = 1.0, 60.0, 1440
# For srun to start a step, added to the check's own time.
STEP_MARGIN_S = 30.0
# A slurmctld that has just started refuses a step while it does not know yet what nodes have ("Memory required by task is not
# available"; docs/slurm-facts.md, "Several steps in one allocation"): how many attempts, GATHERS_S apart.
REFUSED, STEPS_MOST = "required by task is not available", 3
# Pending reasons that no time solves. Source: squeue(1), JOB REASON CODES.
HOPELESS = frozenset(
    {"BadConstraints", "PartitionNodeLimit", "PartitionTimeLimit", "PartitionDown", "PartitionInactive", "AccountNotAllowed",
     "InvalidAccount", "QOSNotAllowed", "InvalidQOS", "ReservationDeleted"}
)  # fmt: skip
# A limit of a user, account, job or group, such as QOSMaxJobsPerUserLimit or AssocGrpNodeLimit: our own job uses part of it, and
# its nodes are free after a requeue.
_LIMIT = r"(QOS|Assoc|Association)(Max|Grp)\w+"
# UNKNOWN: a state that this version does not know is no proof that a donor job has ended.
_LIVES = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN})


class Lenders(Value):
    """Checks, borrows and returns nodes."""

    client: SlurmClient
    job: int  # job, restarts: ours, in its present scheduling
    restarts: int
    env: Mapping[str, str]  # ftrun's
    python: Python
    run: Runner
    settings: Settings
    sleep: Callable[[float], None] = time.sleep
    _donors: set[int] = field(default_factory=set)  # submitted, and not yet told to end
    _over: threading.Event = field(default_factory=threading.Event)  # will ftrun only end or requeue the job?

    # --- checking a node

    def check(self, node: str, lender: int, limit_s: float) -> NodeChecked:
        """See ports.Scheduler."""
        from ftslurm.wrapper.node_check import read_check

        try:
            done = self._step(self.check_argv(node, lender, limit_s), limit_s + STEP_MARGIN_S, lender)
            if done.timed_out:
                return NodeChecked(node, None, f"no step came up there within {limit_s + STEP_MARGIN_S:g} s")
            if done.status:
                said = done.stderr.strip().splitlines()
                return NodeChecked(node, None, f"it could not be checked: {said[-1] if said else f'status {done.status}'}")
            found = read_check(done.stdout)
            return NodeChecked(node, found.good, found.why, found.there)
        except (FtslurmError, ValueError) as error:
            return NodeChecked(node, None, f"it could not be checked: {error}")

    def _step(self, argv: tuple[str, ...], limit_s: float, lender: int) -> CommandResult:
        """Run the step; again if Slurm refuses it at once: slurmctld may have just started."""
        for _ in range(STEPS_MOST - 1):
            done = self.run(argv, limit_s, env=beside_env(self.env, lender))
            if REFUSED not in done.stderr:
                return done
            self.sleep(GATHERS_S)
        return self.run(argv, limit_s, env=beside_env(self.env, lender))

    def check_argv(self, node: str, lender: int, limit_s: float) -> tuple[str, ...]:
        from ftslurm.wrapper.node_check import CheckAsked

        question = CheckAsked(limit_s, self.settings.nodes.health_command, self.settings.catalogs)
        argv = self.python.module_argv("ftslurm.wrapper.node_check", json.dumps(to_plain(question)))
        return beside_argv([node], "ftslurm-check", argv, lender)

    # --- lending

    def borrow(
        self, slot: int, exclude: Sequence[str], wait_s: float,
        submitted: Callable[[int, str], object] = lambda job, boots: None, near: Near = ANYWHERE,
    ) -> NodeBorrowed:  # fmt: skip
        """See ports.Scheduler. First where idle nodes are near, for a short time each; then anywhere. A donor job that does not
        run in time, or whose node Slurm would not give our job, is ended; the answer names one that could not be ended."""
        try:
            ours = self.client.job(self.job)
            nodes = self.client.nodes() if near.groups else ()
        except FtslurmError as error:
            return NodeBorrowed(slot, "", 0, str(error), isinstance(error, NoAnswerYet))
        unfit = {*exclude, *ours.excluded}
        for elsewhere in nearby(near, ours, nodes, unfit):
            short_s = min(NEAR_S, wait_s / 2) if elsewhere else 0.0
            lent = self._lend(ours, slot, unfit | elsewhere, short_s or wait_s, submitted)
            wait_s -= short_s
            if lent.node and not self._may_stand(ours, lent.node, nodes, near):
                why = f"Slurm would not place {lent.node} beside {fold_nodes(near.beside)} (topology)"
                lent = NodeBorrowed(slot, "", max(self._end([lent.job]), default=0), why)
                unfit |= {lent.node}
            if lent.job or self._over.is_set():
                break
        return lent

    def _lend(
        self, ours: JobView, slot: int, exclude: Collection[str], wait_s: float, submitted: Callable[[int, str], object]
    ) -> NodeBorrowed:
        job = 0
        try:
            job = self._submit(ours, exclude)
            self._donors.add(job)
            if self._over.is_set():  # while the job was being submitted
                return NodeBorrowed(slot, "", max(self._end([job]), default=0), "it is no longer needed")
            submitted(job, "")
            donor = self._running(job, wait_s, lambda node: submitted(job, node))
        except FtslurmError as error:
            stays = max(self._end([job] if job else []), default=0)
            return NodeBorrowed(slot, "", stays, str(error), isinstance(error, NoAnswerYet))
        if donor.state is JobState.RUNNING and donor.nodes and not donor.configuring:
            return NodeBorrowed(slot, donor.nodes[0], job)
        left = self._end([job])
        return NodeBorrowed(slot, "", max(left, default=0), why_not_lent(donor, wait_s))

    def _may_stand(self, ours: JobView, node: str, nodes: Collection[NodeView], near: Near) -> bool:
        """Yes in the same block, and where Slurm does not say no."""
        if not near.beside or any(node in group for group in near.groups[:1]):
            return True
        from ftslurm.wrapper.requeue.fit import FitQuestions

        asked = FitQuestions(self.run, self.env, self.settings.slurm.timeout_s)
        return asked.takes(ours, nodes, {*near.beside, node}) is not False

    def _submit(self, ours: JobView, exclude: Collection[str]) -> int:
        """Submit a donor job; gives its number. Raises: FtslurmError."""
        from ftslurm.wrapper.requeue.fit import inherited, plain_env

        time_left_s = ours.end_time - time.time() if ours.end_time else 0.0
        gres = commands.gres_of(ours, self.env)
        shape = commands.shape_of(ours, self.env)
        argv = commands.donor_argv(
            ours, gres, exclude, time_left_s, inherited(self.env), self.settings.nodes.donor_options, shape
        )
        words = (str(self.job), str(self.restarts), f"{self.settings.slurm.timeout_s:g}")
        script = f"#!/bin/sh\nexec {shlex.join(self.python.module_argv('ftslurm.wrapper.requeue.donor', *words))}\n"
        done = self.run(argv, self.settings.slurm.timeout_s, stdin=script, env=plain_env(self.env))
        return commands.submitted(done.status, done.stdout, done.stderr)

    def _running(self, job: int, wait_s: float, boots: Callable[[str], object]) -> JobView:
        """The donor job once it runs, has ended or waits in vain, or its state after `wait_s`. boots: is told its node if that
        does so for long. Raises: FtslurmError."""
        from tenacity import Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_exponential

        looks = 0  # that found its node booting

        def waits(view: JobView) -> bool:
            nonlocal looks
            if view.state is JobState.RUNNING:
                looks += view.configuring and bool(view.nodes)
                if looks == LOOKS_AT_BOOT:
                    boots(view.nodes[0])
                return view.configuring  # its node boots (power saving): a step would wait there without telling
            return view.state is JobState.PENDING and not _hopeless(view.reason)

        tries = Retrying(
            retry=retry_if_result(waits) | retry_if_exception_type(NoAnswerYet),  # slurmctld may be back in time
            wait=wait_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
            stop=stop_after_delay(wait_s),
            sleep=self.sleep,
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        found: JobView = tries(lambda: self.client.job(job))
        return found

    def ended(self) -> frozenset[int]:
        """Donor jobs that someone else has ended, or their time limit; without those of unknown state."""
        over = set()
        for job in sorted(self._donors):
            try:
                donor = self.client.job(job)
            except UnknownJob:
                over.add(job)
            except FtslurmError:
                break
            else:
                if donor.completing or donor.state not in _LIVES:
                    over.add(job)
        return frozenset(over)

    def end_loans(self, jobs: Sequence[int]) -> LoansEnded:
        """See ports.Scheduler; a donor job that is never reached ends with our job."""
        self._donors.update(jobs)
        left = self._end(jobs)
        return LoansEnded(self._end_later(left) if left else ())

    def _end_later(self, jobs: Sequence[int]) -> tuple[int, ...]:
        """The donor jobs that still exist when ftrun ends, or after very many attempts."""
        from tenacity import Retrying, retry_if_result, stop_after_attempt, stop_when_event_set, wait_exponential

        tries = Retrying(
            retry=retry_if_result(bool),
            wait=wait_exponential(multiplier=FIRST_TRY_S, max=LONGEST_TRY_S),
            stop=stop_after_attempt(MOST_TRIES) | stop_when_event_set(self._over),
            sleep=self.sleep,
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else (),
        )
        self.sleep(FIRST_TRY_S)
        left: tuple[int, ...] = tries(lambda: self._end([job for job in jobs if job in self._donors], again=True))
        return left

    def _end(self, jobs: Sequence[int], again: bool = False) -> tuple[int, ...]:
        """One attempt; gives the donor jobs that still exist. again: a later attempt."""
        for job in jobs:
            try:
                if not again or self._is_donor(job):
                    self.client.cancel(job)
            except FtslurmError:
                continue
            self._donors.discard(job)
        return tuple(job for job in jobs if job in self._donors)

    def _is_donor(self, job: int) -> bool:
        """Is it still a donor job? A slurmctld that lost its state numbers jobs from the beginning. Raises: FtslurmError."""
        try:
            return self.client.job(job).name == commands.donor_name(self.job)
        except UnknownJob:
            return False

    def submitted(self) -> tuple[int, ...]:
        """Donor jobs of this job that wait or run, also those of an earlier ftrun; none if Slurm does not tell."""
        done = self.run(commands.donors_argv(self.job), self.settings.slurm.timeout_s, env=dict(self.env))
        return tuple(int(word) for word in done.stdout.split() if word.isascii() and word.isdecimal()) if done.status == 0 else ()

    def call_off(self) -> None:
        """See ports.Scheduler."""
        self._over.set()
        self._end(sorted(self._donors))

    # --- giving nodes back

    def release(self, nodes: Sequence[str]) -> NodesReleased:
        """See ports.Scheduler."""
        try:
            ours = self.client.job(self.job)
            kept = [node for node in ours.nodes if node not in set(nodes)]
            if len(kept) == len(ours.nodes):
                return NodesReleased(tuple(nodes), True, "Slurm has taken them already")
            self.client.keep_nodes(self.job, kept)
        except FtslurmError as error:
            return NodesReleased(tuple(nodes), False, str(error))
        return NodesReleased(tuple(nodes), True)


def nearby(near: Near, ours: JobView, nodes: Collection[NodeView], unfit: Collection[str]) -> list[frozenset[str]]:
    """The nodes that a donor job must not get, by turns: those outside of each group with an idle node that fits; last, none."""
    from ftslurm.slurm.fitting import fitting, idle

    free = idle(ours, nodes) & fitting(ours, nodes) - {*unfit}
    names = frozenset(node.name for node in nodes)
    turns = [names - group for group in near.groups if group & free]
    return [*(turn for turn in turns if turn), frozenset()]


def _hopeless(reason: str) -> bool:
    """Will time never solve what a donor job waits for? reason: Slurm's word."""
    return reason in HOPELESS or re.fullmatch(_LIMIT, reason) is not None


def why_not_lent(donor: JobView, wait_s: float) -> str:
    if _hopeless(donor.reason):
        return f"donor job {donor.number} could not start beside this job: {donor.reason}"
    if donor.configuring:
        return f"{', '.join(donor.nodes)} of donor job {donor.number} still booted after {wait_s:g} s (nodes.replacement_wait)"
    if donor.state is JobState.NODE_FAIL and donor.nodes:  # Slurm waits for ResumeTimeout
        return f"{', '.join(donor.nodes)} of donor job {donor.number} did not come up: {donor.state.value}: {donor.reason}"
    when = f" after {wait_s:g} s" if donor.state is JobState.PENDING else ""
    return f"donor job {donor.number} was {donor.state.value}{when}{f': {donor.reason}' if donor.reason else ''}"

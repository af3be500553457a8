"""An agent whose controller is silent: it observes the job, and takes over when it is its turn. policies/take_over.py
decides; the actions are those of a controller, by the same recipe.

The agent stays in its step; Slurm keeps the step when its srun has ended, and ends it with the job: docs/slurm-facts.md, "Nodes
that die".
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ftslurm.errors import REQUEUED_STATUS, FtslurmError, StateError
from ftslurm.launchers.python import own_python
from ftslurm.launchers.srun import CHANNEL_VARIABLE, beside_argv, beside_env
from ftslurm.ledger import output
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.shared_file import NodeMemory, known_clean_ups
from ftslurm.model import record as rec
from ftslurm.model.events import SlurmAnswered
from ftslurm.model.folds.history import fold
from ftslurm.model.folds.node_memory import NodeLeft
from ftslurm.model.messages import HandoverPlan
from ftslurm.model.outcome import Outcome
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.text import visible
from ftslurm.policies import take_over
from ftslurm.policies.ladder import choose
from ftslurm.policies.start_time import plan_start
from ftslurm.slurm.cli_client import SlurmClient, slurmd_answers, slurmd_port
from ftslurm.slurm.client import JobState, JobView, NodeState, NodeView
from ftslurm.system.commands import Runner, run
from ftslurm.wrapper.controller.people import notices_for
from ftslurm.wrapper.controller.scheduler import answer, with_fit
from ftslurm.wrapper.node_check import read_check
from ftslurm.wrapper.requeue.finish import finish_open_requeue
from ftslurm.wrapper.requeue.fit import FitQuestions
from ftslurm.wrapper.shim.lease import boot_s

if TYPE_CHECKING:
    from ftslurm.wrapper.controller.teller import Notices

# Seconds between two looks: when it is this agent's turn, and at the most.
ROUND_S, LONGEST_ROUND_S = 15.0, 60.0
# For srun to start a step on the batch node, and for the look at its processes.
SCRIPT_LOOK_S = 30.0


class StandbyController:
    """One loop, until it has acted or nothing is left to do. heard_at: when the controller was last heard, as boot_s().

    ending: Slurm has asked the step to end.
    """

    def __init__(
        self, plan: HandoverPlan, node: str, heard_at: float, client: SlurmClient, runner: Runner = run, ending: bool = False
    ) -> None:
        assert plan.place(node) is not None
        self._plan, self._node = plan, node
        self._before = plan.before(node)
        self._heard_at = heard_at
        self._client = client
        self._run = runner
        self._journal = Journal(Path(plan.ledger))
        self._job: JobView | None = None
        self._nodes: dict[str, NodeView] = {}
        self._batch_words = ""
        self._batch_is_back = False  # the node without its script
        self._last = take_over.LedgerNow.UNKNOWN  # at the last look into the ledger
        self._written = 0  # records of the dead ftrun then
        self._woken = threading.Event()
        if ending:
            self._woken.set()

    def run(self) -> str:
        """Gives the result, in one sentence."""
        # If Slurm ends the step, the job continues without us or is over; we end when we have seen which.
        signal.signal(signal.SIGTERM, lambda *_: self._woken.set())
        # Not at once: a node that shuts down may kill its ftrun before its slurmd.
        self._woken.wait(self._plan.settings.nodes.silence_s)
        self._woken.clear()
        lives, words = self._batch_lives()
        if lives:
            return f"{self._plan.batch_node} lives: {words}"
        self._ledger()
        while True:
            turn, why = take_over.succeed(self._look(), self._plan.settings)
            if turn is take_over.Turn.LEAVE:
                return why
            if turn is not take_over.Turn.WAIT and (done := self._act(turn)):
                return done
            left_s = self._heard_at + take_over.due_s(self._place, self._plan.settings) - boot_s()
            self._woken.wait(min(left_s if left_s > 0 else ROUND_S, LONGEST_ROUND_S))
            self._woken.clear()

    # --- observing

    def _look(self) -> take_over.KnownByAgent:
        ledger, job = self._ledger(), self._ask()
        silent_s = boot_s() - self._heard_at
        ended = job is take_over.JobNow.OVER or ledger in (take_over.LedgerNow.CLOSED, take_over.LedgerNow.ELSEWHERE)
        if ended or silent_s < take_over.due_s(self._place, self._plan.settings):
            return take_over.KnownByAgent(silent_s, self._place, None, False, job, ledger)
        batch, self._batch_words = self._batch_lives()
        if self._batch_is_back:
            job = self._ask()  # a script that has just ended is missing as well, and its job is over
        others = any(self._answers(node)[0] for node in self._before) if batch is False else False
        return take_over.KnownByAgent(silent_s, self._place, batch, others, job, ledger)

    @property
    def _place(self) -> int:
        return len(self._before)

    def _ledger(self) -> take_over.LedgerNow:
        """The state of the ledger. Whoever writes there lives: the silence begins again."""
        if not self._journal.grown():
            return self._last
        try:
            known, records = self._journal.known, self._journal.read().records
            self._last = take_over.ledger_now(records, self._plan, self._node)
            self._before = take_over.before(records, self._plan, self._node)
        except StateError:
            return take_over.LedgerNow.UNKNOWN
        written, self._written = self._written, take_over.by_ftrun(records)
        if known and self._written != written:
            self._heard_at = boot_s()
        return self._last

    def _ask(self) -> take_over.JobNow:
        self._job = None
        try:
            job = self._client.job(self._plan.number)
            self._nodes = {view.name: view for view in self._client.nodes()}
        except FtslurmError:
            return take_over.JobNow.UNKNOWN
        self._job = job
        if job.state is JobState.SUSPENDED:  # leases of suspended processes last longer: they begin again
            self._heard_at = boot_s()
            return take_over.JobNow.UNKNOWN
        if not job.batch:  # whoever holds an allocation (salloc) ends it themselves
            return take_over.JobNow.OVER
        if job.state is JobState.RUNNING and job.restarts == self._plan.schedule:
            return take_over.JobNow.OURS
        return take_over.JobNow.UNKNOWN if job.state is JobState.UNKNOWN and not job.completing else take_over.JobNow.OVER

    def _batch_lives(self) -> tuple[bool | None, str]:
        """Do the node, and ftrun or its script on it, live?"""
        node = self._plan.batch_node
        answers, words = self._answers(node)
        self._batch_is_back = False
        if not answers:
            return answers, words
        runs, seen = self._script_runs()
        self._batch_is_back = runs is False
        return runs, f"{words}, {'but' if runs is False else 'and'} {seen}"

    def _script_runs(self) -> tuple[bool | None, str]:
        """What a step on that node sees."""
        if self._job is not None and self._job.nodes and self._plan.batch_node not in self._job.nodes:
            return False, "Slurm has taken it from the job"
        look = own_python(self._plan.settings.python).module_argv("ftslurm.wrapper.script_look", str(self._plan.script))
        argv = beside_argv([self._plan.batch_node], "ftslurm-look", look)
        env = beside_env({name: value for name, value in os.environ.items() if name != CHANNEL_VARIABLE}, 0)
        try:
            done = self._run(argv, SCRIPT_LOOK_S, env=env)
            if done.status == 0:
                found = read_check(done.stdout)
                return found.good, found.why
        except (FtslurmError, ValueError) as error:
            return None, f"the batch script could not be looked for:  {error}"
        said = done.stderr.strip().splitlines()
        return None, f"the batch script could not be looked for:  {said[-1] if said else 'no step came up there'}"

    @property
    def _noticed(self) -> bool:
        if self._batch_is_back:
            return True
        view = self._nodes.get(self._plan.batch_node)
        return view is not None and view.state is NodeState.BAD

    def _answers(self, node: str) -> tuple[bool | None, str]:
        """Does the node's slurmd answer? Slurm's word that it does not is enough."""
        view = self._nodes.get(node)
        if view is not None and view.state is NodeState.BAD:
            return False, f"Slurm says {view.words}"
        if not self._nodes:
            self._ask()
            view = self._nodes.get(node)
        port = (view.port if view is not None else 0) or slurmd_port(self._client)
        return slurmd_answers((view.address if view is not None else "") or node, port, self._plan.settings.nodes.probe_timeout_s)

    # --- acting

    def _act(self, turn: take_over.Turn) -> str:
        """Empty if nothing was done after all, and another round follows."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # every scontrol inherits it: the requeue sends SIGTERM to us as well
        try:
            if turn is take_over.Turn.TAKE_OVER:
                return self._take_over()
            return self._finish_requeue() if turn is take_over.Turn.FINISH_REQUEUE else self._finish_end()
        except FtslurmError as error:
            say_to_reader(f"{self._node} cannot take over from {self._plan.batch_node}: {error}")
            return ""
        finally:
            signal.signal(signal.SIGTERM, lambda *_: self._woken.set())

    def _take_over(self) -> str:
        assert self._job is not None
        records = self._journal.read().records
        if take_over.ledger_now(records, self._plan, self._node) is not take_over.LedgerNow.OURS:
            return ""
        slurm = self._slurm_says(self._job, records)
        answers = take_over.answers_to(records, self._plan, self._node, time.time())
        s = take_over.situation(self._plan, self._batch_words, fold([*records, *answers]), slurm, time.time())
        choice = choose(s)
        if take_over.allowed(choice, self._noticed):
            return ""
        found, decided = take_over.records_of(self._plan, self._node, s, choice, records, boot_s() - self._heard_at)
        if not self._journal.append_next([*answers, *found]):
            return ""  # another process has written; the next round will see what
        notices = self._tell_people((*records, *found))
        if choice.rung not in REQUEUES:
            done = self._end(decided)
        else:
            self._tell_others(decided)
            done = self._finish_requeue()
        if notices is not None:
            notices.end(self._plan.settings.notify.end_wait_s)
        return done

    def _slurm_says(self, job: JobView, records: Sequence[rec.Record]) -> SlurmAnswered:
        nodes, st = tuple(self._nodes.values()), self._plan.settings
        without = (*fold(records).kept_out(time.time(), st.isolation.expires_s), self._plan.batch_node)
        fit = FitQuestions(self._run, os.environ, st.slurm.timeout_s).look(job, nodes, without)
        return with_fit(answer(job, nodes), fit, without)

    def _tell_people(self, records: Sequence[rec.Record]) -> Notices | None:
        """Tell people, as the dead controller would have. The sender works while the job is requeued."""
        about = f"(on {self._plan.cluster}, {self._node} took over from {self._plan.batch_node})"
        notices = notices_for(self._plan.settings, self._journal.path.parent.parent, self._plan.job, about, say_to_reader)
        if notices is not None:
            from ftslurm.report.card import last_card

            notices.card(last_card(records))
        return notices

    def _finish_requeue(self) -> str:
        st = self._plan.settings
        records = self._journal.read().records
        history = fold(records)
        start = plan_start(st.requeue, True, known_clean_ups(self._journal.path.parent.parent, self._plan.cluster, history))
        self._keep_output(records)
        what = finish_open_requeue(self._client, self._plan.number, self._journal, history, start, st.requeue.even_if_no_requeue)
        self._close(REQUEUED_STATUS, Outcome.REQUEUED.words, Outcome.REQUEUED)
        return what

    def _keep_output(self, records: Sequence[rec.Record]) -> None:
        """Keep the output of the dead controller and its script, if their files are visible here."""
        files = [path for record in records if isinstance(record, rec.OutputTo) for path in record.files]
        try:
            output.keep_files(self._journal.path, self._plan.schedule, files, self._plan.settings.logs.keep_bytes)
        except StateError as error:
            say_to_reader(str(error))

    def _finish_end(self) -> str:
        decided = take_over.decided_end(self._journal.read().records, self._plan)
        return self._end(decided) if decided is not None else ""

    def _end(self, decided: rec.Decided) -> str:
        """End the job: nothing is left that could continue it, and it would only wait for its time limit."""
        reasons = "; ".join(f"{rung}: {why}" for rung, why in decided.passed)
        what = f"{decided.why}. No rung of the ladder helps: {reasons}"
        self._client.cancel(self._plan.number)  # Slurm leaves us KillWait for the rest
        self._journal.append([rec.CarriedOut(time.time(), decided.id, True, "cancelled")])
        self._close(decided.status, what, Outcome.ENDED)
        return what

    def _close(self, status: int, what: str, outcome: Outcome) -> None:
        """Write the last record in place of the dead controller: its leases have run out, and nobody needs to wait for them
        again.
        """
        self._journal.append([rec.Finished(time.time(), self._plan.run, status, what, outcome=outcome.value)])

    def _tell_others(self, decided: rec.Decided) -> None:
        if not self._plan.settings.isolation.memory_s or not decided.isolate:
            return
        memory = NodeMemory(self._journal.path.parent.parent)
        left = [NodeLeft(decided.at, self._plan.cluster, node, self._plan.job, why) for node, why in decided.isolate.items()]
        try:
            memory.add(left)
        except StateError as error:
            say_to_reader(str(error))


def say_to_reader(text: str) -> None:
    """Print for anyone who still reads; the srun that carried our output has most likely ended."""
    try:
        print(f"ftslurm: {visible(text)}", file=sys.stderr, flush=True)
    except OSError:
        pass


def take_over_from(plan: HandoverPlan, node: str, heard_at: float, ending: bool = False) -> str:
    """Stand by and take over if needed; see StandbyController. Raises: FtslurmError if Slurm cannot be asked at all."""
    client = SlurmClient(timeout_s=plan.settings.slurm.timeout_s)
    return StandbyController(plan, node, heard_at, client, ending=ending).run()

"""The Slurm client that runs scontrol and scancel: on every Slurm, with nothing else installed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ftslurm.errors import SlurmRefused, UnknownJob
from ftslurm.model.job import JobId
from ftslurm.slurm import commands, parse, states
from ftslurm.slurm.client import JobState, JobView, NodeView
from ftslurm.slurm.complaints import CONTROLLER_HINT, parse_error
from ftslurm.slurm.retries import NoAnswer, NoChangeNow, Retries
from ftslurm.system.commands import CommandResult, Runner, run

_SIGNALLED = range(128 + 1, 128 + 65)  # a shell's word for "killed by signal n", if one stands between


class CliSlurmClient:
    """SlurmClient over the command line; one request is one command, tried again while slurmctld is away.

    Every request may be made twice, so one whose answer got lost is simply made again. That happens in requeues from
    inside a job: the SIGTERM that comes with one ends the very scontrol that asked for it.

    timeout_s: for one request with all its tries. env: what scontrol runs in. clock, sleep: monotonic seconds.
    """

    def __init__(
        self,
        run: Runner = run,
        timeout_s: float = 60.0,
        env: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runner = run
        self._env = env
        self._clock = clock
        self._patience = Retries(timeout_s, clock, sleep)
        self._addresses: dict[int, JobId] = {}

    def job(self, number: int) -> JobView:
        return parse.parse_job(self._ask(commands.show_job_argv(number)), number)

    def nodes(self) -> tuple[NodeView, ...]:
        try:
            return parse.parse_nodes(self._ask(commands.show_nodes_argv()))
        except SlurmRefused:  # PrivateData=nodes
            return ()

    def config(self) -> dict[str, str]:
        return parse.parse_config(self._ask(commands.show_config_argv()))

    def requeue_held(self, number: int) -> None:
        job = self._address(number)
        try:
            self._ask(commands.requeue_held_argv(job))
        except SlurmRefused:
            view = self.job(number)
            if view.state is not JobState.PENDING:
                raise
            if not view.held:  # it is back in the queue already, and needs the hold alone
                self._ask(commands.hold_argv(job))

    def requeue(self, number: int) -> None:
        self._ask(commands.requeue_argv(self._address(number)))

    def exclude(self, number: int, nodes: Iterable[str]) -> None:
        self._ask(commands.exclude_argv(self._address(number), nodes))

    def require(self, number: int, nodes: Iterable[str]) -> None:
        self._ask(commands.require_argv(self._address(number), nodes))

    def start_at(self, number: int, unix_s: int | None) -> None:
        self._ask(commands.start_at_argv(self._address(number), unix_s))

    def release(self, number: int) -> None:
        self._ask(commands.release_argv(self._address(number)))

    def allow_requeue(self, number: int) -> None:
        self._ask(commands.allow_requeue_argv(self._address(number)))

    def takes_changes(self, number: int, within_s: float) -> bool:
        argv, until = commands.allow_requeue_argv(self._address(number)), self._clock() + within_s

        def once(left_s: float) -> bool:
            try:
                self._ask_once(argv, left_s, None)
            except NoChangeNow:
                if self._clock() < until:
                    raise
                return False
            except SlurmRefused:
                return False
            return True

        return self._patience.ask(once)

    def signal_steps(self, number: int, name: str) -> None:
        self._ask(commands.signal_steps_argv(self._address(number), name))

    def keep_nodes(self, number: int, nodes: Iterable[str]) -> None:
        import tempfile  # 8 ms to load, and most jobs never give a node back

        argv = commands.keep_nodes_argv(self.job(number), nodes)
        with tempfile.TemporaryDirectory() as folder:  # scontrol leaves two scripts where it runs
            self._ask(argv, folder)

    def cancel(self, number: int) -> None:
        try:
            self._ask(commands.cancel_argv(self._address(number)))
        except UnknownJob:
            return
        except SlurmRefused:
            if not states.is_over(self.job(number)):
                raise

    def _address(self, number: int) -> JobId:
        """What to call the job in a request. Looked up once: an array task keeps its number and place over all requeues."""
        if number not in self._addresses:
            self._addresses[number] = commands.address(self.job(number))
        return self._addresses[number]

    def _ask(self, argv: Sequence[str], folder: str | None = None) -> str:
        return self._patience.ask(lambda left_s: self._ask_once(argv, left_s, folder))

    def _ask_once(self, argv: Sequence[str], left_s: float, folder: str | None) -> str:
        place = {"cwd": folder} if folder is not None else {}
        return read_answer(self._runner(argv, left_s, env={**self._env, **commands.ANSWER_ENV}, **place))


def read_answer(done: CommandResult) -> str:
    """The standard output of a request that succeeded.

    Raises: NoAnswer, SlurmUnavailable, SlurmRefused or UnknownJob, as the rest of the answer has it.
    """
    if done.status == 0:
        return done.stdout
    command = " ".join(done.argv)
    if done.status is None:
        raise NoAnswer(f"`{command}` got no answer from slurmctld in time", hint=CONTROLLER_HINT)
    if done.status < 0 or done.status in _SIGNALLED:
        raise NoAnswer(f"`{command}` was ended by a signal", hint="is the job being ended?")
    complaint = parse_error(done.stderr or done.stdout)
    raise complaint.error(f"`{command}` failed: {complaint.words}", hint=complaint.hint)

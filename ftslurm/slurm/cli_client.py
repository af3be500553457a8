"""Slurm by its commands: scontrol and scancel, as a user and as root, with nothing else installed; and a knock at a slurmd."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ftslurm.errors import FtslurmError, SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.model.job import JobId
from ftslurm.model.text import whole
from ftslurm.slurm import commands, parse, states
from ftslurm.slurm.client import JobState, JobView, NodeView, SlurmClient
from ftslurm.slurm.retries import CONTROLLER_HINT, NoAnswerYet, NoChangeNow, Retries, parse_error
from ftslurm.system.commands import CommandResult, Runner, run

# --- does the slurmd of a node answer? Asks it over the network, since slurmctld notices a dead node only after minutes

# Where a node that names none listens. Source: slurm.conf(5), SlurmdPort.
SLURMD_PORT = 6818


def slurmd_port(client: SlurmClient) -> int:
    """The cluster's slurmd port, for nodes without their own; 0 if slurmctld does not answer."""
    try:
        port = client.config().get("SlurmdPort", "")
    except FtslurmError:
        return 0
    return whole(port) or 0


def slurmd_answers(address: str, port: int, limit_s: float) -> tuple[bool | None, str]:
    """Whether somebody is there who reads, None where that cannot be told, and what was seen.

    A connection alone is no proof: the kernel accepts it for a slurmd that stands still. So nothing is asked, and an
    slurmd that runs closes at once. `port` 0: the default.
    """
    what = f"its slurmd ({address} port {port or SLURMD_PORT})"
    deadline = time.monotonic() + limit_s
    try:
        with socket.create_connection((address, port or SLURMD_PORT), timeout=limit_s) as there:
            there.shutdown(socket.SHUT_WR)
            there.settimeout(max(0.1, deadline - time.monotonic()))
            there.recv(1)
            return True, f"{what} answers"
    except (socket.gaierror, UnicodeError) as error:
        return None, f"{address} cannot be looked up: {error}"
    except TimeoutError:
        return False, f"{what} does not answer within {limit_s:g} s"
    except ConnectionResetError:
        return True, f"{what} answers"
    except OSError as error:
        return False, f"{what} cannot be reached: {error.strerror}"


# --- requests that Slurm allows only to root and SlurmUser: drain and undrain a node, list all users' jobs on it


def is_drained(view: NodeView) -> bool:
    return "DRAIN" in view.words


def is_to_reboot(view: NodeView) -> bool:
    """REBOOT_REQUESTED, from `scontrol reboot` on, and REBOOT_ISSUED."""
    return "REBOOT" in view.words


def is_out_of_service(view: NodeView) -> bool:
    """Is the node in a state for which a person gives a reason (drained, down)?"""
    words = {word.rstrip("*~#!%$@^-") for word in view.words.split("+")}
    return is_drained(view) or bool(words & {"FAIL", "FAILING", "DOWN"})


class SlurmAdmin:
    """By the command line; each request is made once, for Slurm's scripts have little time. timeout_s: for one request.

    Every method raises SlurmUnavailable without an answer, SlurmRefused with Slurm's words, UsageError for a node's name
    that is none.
    """

    def __init__(self, timeout_s: float, run: Runner = run) -> None:
        self._timeout_s = timeout_s
        self._runner = run
        self._config: dict[str, str] = {}

    def node(self, name: str) -> NodeView:
        views = parse.parse_nodes(self._ask(commands.show_node_argv(name)))
        if len(views) != 1:
            raise SlurmUnavailable(f"Slurm tells of {len(views)} nodes called {name}", hint="is the name right?")
        return views[0]

    def drain_unless_drained(self, name: str, reason: str, ours: str) -> str | None:
        """Drains the node, unless somebody else has taken it out of service: gives that reason then, else None.

        ours: what the reasons begin with that may be overwritten. Slurm is asked directly before.
        """
        view = self.node(name)
        if is_out_of_service(view) and not view.reason.startswith(ours):
            return view.reason
        self._ask(commands.drain_argv(name, reason))
        return None

    def undrain_if_ours(self, name: str, ours: str) -> bool:
        """Undrains the node if its reason begins with `ours`, by what Slurm says directly before; gives whether it did."""
        view = self.node(name)
        if not is_drained(view) or not view.reason.startswith(ours):
            return False
        self._ask(commands.undrain_argv(name))
        return True

    def jobs_on(self, name: str) -> tuple[tuple[int, int, str], ...]:
        """(number, user id, state) of every job that has resources on the node."""
        return parse.parse_jobs_on(self._ask(commands.jobs_on_argv(name)))

    def slurm_user(self) -> int | None:
        """The user that slurmctld runs as, None if Slurm does not tell. Asked once."""
        if not self._config:
            self._config = parse.parse_config(self._ask(commands.show_config_argv()))
        return parse.slurm_user_id(self._config)

    def _ask(self, argv: Sequence[str]) -> str:
        return read_answer(self._runner(argv, self._timeout_s))


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
        raise NoAnswerYet(f"`{command}` got no answer from slurmctld in time", hint=CONTROLLER_HINT)
    if done.status < 0 or done.status in _SIGNALLED:
        raise NoAnswerYet(f"`{command}` was ended by a signal", hint="is the job being ended?")
    complaint = parse_error(done.stderr or done.stdout)
    raise complaint.error(f"`{command}` failed: {complaint.words}", hint=complaint.hint)

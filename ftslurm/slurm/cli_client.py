"""Slurm by its commands: scontrol and scancel, as a user and as root, with nothing else installed; and a knock at a slurmd."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ftslurm.errors import FtslurmError, SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.model.job import JobId
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.text import whole
from ftslurm.slurm import commands, parse, states
from ftslurm.slurm.client import JobState, JobView, NodeView
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
    return is_drained(view) or bool({*view.words.split("+")} & {"FAIL", "FAILING", "DOWN"})


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
            self._config = parse.parse_config(self._ask(commands.SHOW_CONFIG))
        return parse.slurm_user_id(self._config)

    def _ask(self, argv: Sequence[str]) -> str:
        return read_answer(self._runner(argv, self._timeout_s))


_SIGNALLED = range(128 + 1, 128 + 65)  # a shell's word for "killed by signal n", if one stands between


class SlurmClient:
    """The requests that ftslurm makes, all allowed to the owner of the job; one is one command, tried again while slurmctld is
    away.

    Every request may be made twice, so one whose answer got lost is simply made again. That happens in requeues from
    inside a job: the SIGTERM that comes with one ends the very scontrol that asked for it.

    Every method raises SlurmUnavailable when slurmctld gives no answer within the time limit, or one that cannot be read;
    SlurmRefused with Slurm's own words when it says no; UnknownJob for a job it does not know; CommandMissing where a program is
    not installed. A change to a task of a job array changes that task alone; a number that stands for tasks in waiting is
    refused.

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
        """The job as it stands."""
        return parse.parse_job(self._ask(commands.show_job_argv(number)), number)

    def nodes(self) -> tuple[NodeView, ...]:
        """Every node of the cluster that the caller may see: none where PrivateData=nodes hides them from users."""
        try:
            return parse.parse_nodes(self._ask((*commands.SHOW, "node", "--oneliner")))
        except SlurmRefused:  # PrivateData=nodes
            return ()

    def config(self) -> dict[str, str]:
        """`scontrol show config` as key -> value (KillWait, ProctrackType, RequeueExit, SLURM_VERSION, ...), and AS_OF."""
        return parse.parse_config(self._ask(commands.SHOW_CONFIG))

    def requeue_held(self, number: int) -> None:
        """Back to PENDING, held; a job that is pending already is just held.

        Sends SIGTERM to everything the job runs. Brings back a job that is over, a cancelled one too, for as long as
        Slurm remembers it (MinJobAge): who does not want that looks first. Source: scontrol(1) requeuehold.
        """
        job = self._address(number)
        try:
            self._ask(("scontrol", "requeuehold", str(job)))
        except SlurmRefused:
            view = self.job(number)
            if view.state is not JobState.PENDING:
                raise
            if not view.held:  # it is back in the queue already, and needs the hold alone
                # always a user's hold: the owner could not release a hold by root or an operator
                self._ask(("scontrol", "uhold", str(job)))

    def requeue(self, number: int) -> None:
        """Back to PENDING, not held, so that it may start before it can be changed. Else as `requeue_held`."""
        self._ask(("scontrol", "requeue", str(self._address(number))))

    def exclude(self, number: int, nodes: Iterable[str]) -> None:
        """Keep a pending job off `nodes`; replaces the list it had, an empty one clears it."""
        self._update(number, ExcNodeList=fold_nodes(nodes))

    def require(self, number: int, nodes: Iterable[str]) -> None:
        """The nodes that a pending job asks for by name, beside others; replaces the list, an empty one clears it.

        With one that is excluded too, Slurm would let the job wait for ever (BadConstraints).
        Source: docs/slurm-facts.md, "Changes to a requeued job".
        """
        self._update(number, ReqNodeList=fold_nodes(nodes))

    def start_at(self, number: int, unix_s: int | None) -> None:
        """Earliest start of a pending job, Unix seconds; None means now.

        While a requeued job still cleans up, a time before the end of the clean-up becomes 121 s after it, and so
        does none at all; a later one stays. After the clean-up, None starts the job at once.
        Source: docs/slurm-facts.md, "The 121 seconds".
        """
        self._update(number, StartTime=commands.start_time(unix_s))

    def release(self, number: int) -> None:
        """Let a held job be scheduled; one that is not held stays as it is."""
        self._ask(("scontrol", "release", str(self._address(number))))

    def allow_requeue(self, number: int) -> None:
        """Set Requeue=1 on a job that was submitted with --no-requeue."""
        self._update(number, Requeue=1)

    def takes_changes(self, number: int, within_s: float) -> bool:
        """Does Slurm take changes of this job, of one that may be requeued (the change asked for is `allow_requeue`)? It is asked
        once, and again for `within_s` while it says that it will soon. slurmctld may take 5 s for each no.

        22.05 takes none of a job that has given back or lost a node: some seconds long where there is a slurmdbd, else for as
        long as the job runs. Source: docs/slurm-facts.md, "Changes to a requeued job".
        """
        argv, until = commands.update_argv(self._address(number), Requeue=1), self._clock() + within_s

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
        """Signal `name` (CONT) to every task of every step. slurmctld calls each node of the job for it: one that does not answer
        is NOT_RESPONDING from then on, MessageTimeout (10 s) later."""
        self._ask(("scancel", f"--signal={name}", str(self._address(number))))

    def keep_nodes(self, number: int, nodes: Iterable[str]) -> None:
        """The running job goes on with `nodes` of its own and gives the others back; what runs there is no longer waited for.

        Its size stays what it was for the next scheduling: a requeue brings it back whole. Source: scontrol(1), NodeList; seen on
        22.05, 24.11 and 26.05. A site may forbid it (SchedulerParameters=disable_job_shrink).
        """
        import tempfile  # 8 ms to load, and most jobs never give a node back

        with tempfile.TemporaryDirectory() as folder:  # scontrol leaves two scripts where it runs
            self._ask(commands.update_argv(self._address(number), NodeList=fold_nodes(nodes)), folder)

    def cancel(self, number: int) -> None:
        """End the job. One that is over or that Slurm has forgotten is no error."""
        try:
            self._ask(("scancel", "--quiet", str(self._address(number))))  # no error if it has ended
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

    def _update(self, number: int, **changes: object) -> None:
        self._ask(commands.update_argv(self._address(number), **changes))

    def _ask(self, argv: Sequence[str], folder: str | None = None) -> str:
        return self._patience.ask(lambda left_s: self._ask_once(argv, left_s, folder))

    def _ask_once(self, argv: Sequence[str], left_s: float, folder: str | None) -> str:
        place = {"cwd": folder} if folder is not None else {}
        return read_answer(self._runner(argv, left_s, env={**self._env, **commands.ANSWER_ENV}, **place))


def read_answer(done: CommandResult) -> str:
    """The standard output of a request that succeeded.

    Raises: NoAnswerYet, SlurmUnavailable, SlurmRefused or UnknownJob, as the rest of the answer has it.
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

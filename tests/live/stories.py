"""Stories on a real cluster: one batch job under ftrun each, and what Slurm and the ranks themselves say of it.

A test says in its mark what its job does; the jobs of a module are submitted together, and each test reads its own:

    @story(nodes=4, tasks=2, rank="[ $MA_PROC_START_CNT = 1 ] || exit 0; fault 0.0 80C98008; exec sleep 60")
    def test_heals_in_place(told: Story) -> None:
        assert told.ended("COMPLETED")["Restarts"] == "0"

Every rank writes one line a start into a file of its own before it does what the story says; a batch script that is NOTED
writes the counters it has from `ftslurm env`. ftslurm's own log is never asked.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests import json_schemas

if TYPE_CHECKING:
    from conftest import Cluster

T = TypeVar("T")

# Slurm shows SIGNALING while it sends the signal that a job has asked for.
UNDER_WAY = ("PENDING", "CONFIGURING", "RUNNING", "SIGNALING", "SUSPENDED", "COMPLETING")
# Limits are written for a quiet machine. They end what hangs, and nothing else waits for them, so a busy one has four times that.
PATIENCE = 4
END_TIMEOUT_S = 95.0  # from when a test begins to wait; the jobs of a module share two cores and six nodes
START_TIMEOUT_S = 45.0
GONE_TIMEOUT_S = 15.0
_TROUBLE = re.compile("error|fatal|signal|Terminate", re.IGNORECASE)
HELD_BACK_S = 15.0  # longer than anything here asks for itself

# Everything that makes a live test long, made short; what a story sets itself counts more (--ft-set beats FTRUN_*).
QUICK = {
    "FTRUN_DEVICES_POLL": "1s",
    "FTRUN_IN_PLACE_RESTART_SELF_HEAL_WAIT": "1s",
    "FTRUN_IN_PLACE_RESTART_RESET_WAIT": "8s",  # a reset is three processes of Python's
    "FTRUN_STOP_GRACE": "2s",
    "FTRUN_IN_PLACE_RESTART_CRASH_RESTARTS": "0",  # one crash leads to a requeue; see BY_DEFAULT
    "FTRUN_REQUEUE_START_IN": "8s",  # as are clean-ups
    "FTRUN_DEVICES_ANSWER_WAIT": "40s",  # made longer: agents come up late where twenty jobs share two cores
}

# Of a story about the answer to a crash: nothing is set.
BY_DEFAULT = {"FTRUN_IN_PLACE_RESTART_CRASH_RESTARTS": ""}

# The words a story's rank may use: its line, then `fault DEVICE CODE [npu-sim options]`, `say WORDS`, `await FILE` and
# `together` (wait until every rank of the attempt has written its line: who crashes at once ends others before theirs).
RANK = r"""
step=$SLURM_JOB_ID.$SLURM_STEP_ID
printf '{"rank":%s,"node":"%s","step":"%s","schedule":"%s","starts":"%s","attempt":"%s","rung":"%s","cause":"%s","excluded":"%s","pid":%s,"job":"%s","time":%s}\n' \
    "$SLURM_PROCID" "$SLURMD_NODENAME" "$step" "$MA_SCHEDULE_CNT" "$MA_PROC_START_CNT" "$FTSLURM_ATTEMPT" \
    "$FTSLURM_RESTART_RUNG" "$FTSLURM_RESTART_CAUSE" "$FTSLURM_EXCLUDED_NODES" \
    $$ "${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" "$(date +%s.%N)" >>"$STORY/rank.$SLURM_PROCID"
fault() { device=$1 code=$2; shift 2; npu-sim inject --node "$SLURMD_NODENAME" --device "$device" --code "$code" "$@"; }
say() { echo "$SLURM_PROCID $FTSLURM_ATTEMPT $(date +%s.%N) $*" >>"$STORY/said"; }
await() { until [ -e "$STORY/$1" ]; do sleep 0.3; done; }
together() {
    until [ "$(cat "$STORY"/rank.[0-9]* | grep -c "\"attempt\":\"$FTSLURM_ATTEMPT\"")" -ge "$SLURM_NTASKS" ]; do sleep 0.3; done
}
"""

SCRIPT = """#!/bin/bash
note() {
    eval "$(ftslurm env)"
    echo "{\\"when\\":\\"$1\\",\\"schedule\\":\\"$MA_SCHEDULE_CNT\\",\\"starts\\":\\"$MA_PROC_START_CNT\\",\\"attempt\\":\\"$FTSLURM_ATTEMPT\\"}" >>"$STORY/batch"
}
%SCRIPT%
"""
# As a user writes it: no trap, nothing that knows of requeues.
PLAIN = """
%RUN%
status=$?
exit $status
"""
# With what Story.batch() reads; each note is a start of Python's.
NOTED = """
note before
%RUN%
status=$?
note after
exit $status
"""


@dataclass(frozen=True)
class Plan:
    """A job to be submitted. rank: what every rank does after its line. ft: options between `ftrun` and the program.

    script: the batch script; %RUN% stands for the ftrun line. sbatch: further options. env: in which %STORY% is $STORY.
    files: name -> text, in $STORY. early: it takes a minute or more, so it begins with the first live test, on a cluster
    of its own.
    """

    rank: str = "exit 0"
    nodes: int = 1
    tasks: int = 1
    ft: str = ""
    script: str = PLAIN
    sbatch: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    early: bool = False

    def script_text(self) -> str:
        run = f'ftrun {self.ft} sh "$STORY/rank.sh"'
        variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.env.items())
        return SCRIPT.replace("%SCRIPT%", variables + self.script).replace("%RUN%", run)


def story(**plan: Any) -> pytest.MarkDecorator:
    """The mark that gives a test its job; see Plan."""
    return pytest.mark.story(Plan(**plan))


@dataclass(frozen=True)
class Start:
    """What a rank wrote when it started. counters: (MA_SCHEDULE_CNT, MA_PROC_START_CNT, FTSLURM_ATTEMPT).

    pid: the number that it has on its node, which counts for itself; see Story.pids.
    """

    rank: int
    node: str
    step: str
    schedule: str
    starts: str
    attempt: str
    rung: str
    cause: str
    excluded: str
    pid: int
    job: str
    time: float

    @property
    def counters(self) -> tuple[int, int, int]:
        return int(self.schedule), int(self.starts), int(self.attempt)


class Story:
    """One submitted job. `folder` is its $STORY."""

    def __init__(self, cluster: Cluster, folder: Path, env: dict[str, str], plan: Plan) -> None:
        self.cluster = cluster
        self.folder = folder
        self.env = env
        self.plan = plan
        self.submitted = time.time()
        self.id = 0

    def write_files(self) -> Story:
        plan = self.plan
        for name, text in {"rank.sh": RANK + plan.rank + "\n", "script.sh": plan.script_text(), **plan.files}.items():
            (self.folder / name).write_text(text)
        return self

    def submit(self) -> Story:
        plan = self.plan
        options = [
            f"--nodes={plan.nodes}",
            f"--ntasks-per-node={plan.tasks}",
            "--time=5",
            "--open-mode=append",
            f"--output={self.folder}/output",
            *plan.sbatch,
        ]
        self.id = self.cluster.submit(self.folder / "script.sh", *options, cwd=self.folder, env=self.env)
        return self

    def salloc_argv(self, *command: str) -> list[str]:
        """`command` in an allocation as the plan has it."""
        plan = self.plan
        return [
            "salloc",
            "--quiet",
            f"--nodes={plan.nodes}",
            f"--ntasks-per-node={plan.tasks}",
            "--time=5",
            *plan.sbatch,
            *command,
        ]

    def salloc(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run it there to its end; it may fail."""
        return self.cluster.run(self.salloc_argv(*command), env=self.env, cwd=self.folder, timeout=60.0)

    # ---- what Slurm says

    def job(self, number: int | str | None = None) -> dict[str, str]:
        """`scontrol show job`; an array task by `123_4`."""
        return self.cluster.job(number or self.id)

    def ended(self, state: str, timeout_s: float = END_TIMEOUT_S, number: str | None = None) -> dict[str, str]:
        """The job's fields once it is over, nodes cleaned up; AssertionError if it ended in another state."""

        def over() -> dict[str, str]:
            job = self.job(number)
            return job if job["JobState"] not in UNDER_WAY else {}

        try:
            job = self.cluster.wait_for(over, timeout_s, f"job {self.id} to end")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None
        assert job["JobState"] == state, f"{job}\n{self.describe()}"
        return job

    # ---- what the ranks say

    def starts(self) -> list[Start]:
        """Every start of every rank, in the order of time."""
        lines = [line for path in self.folder.glob("rank.[0-9]*") for line in path.read_text().splitlines()]
        return sorted((Start(**json.loads(line)) for line in lines), key=lambda start: start.time)

    def of_attempt(self, number: int) -> dict[int, Start]:
        """Rank to its start in that attempt."""
        return {start.rank: start for start in self.starts() if start.attempt == str(number)}

    def attempts(self) -> dict[int, set[tuple[int, int, int]]]:
        """Attempt to the counters its ranks saw; more than one set of counters in an attempt would be a mistake."""
        found: dict[int, set[tuple[int, int, int]]] = {}
        for start in self.starts():
            found.setdefault(int(start.attempt), set()).add(start.counters)
        return found

    def counters(self) -> list[tuple[int, int, int]]:
        """The counters of each attempt, which all of its ranks agree on and all ranks took part in."""
        ranks = self.plan.nodes * self.plan.tasks
        for attempt, seen in self.attempts().items():
            assert len(seen) == 1, f"attempt {attempt}: {seen}\n{self.describe()}"
            assert len(self.of_attempt(attempt)) == ranks, f"attempt {attempt} lacks ranks\n{self.describe()}"
        assert len(self.starts()) == ranks * len(self.attempts()), f"a rank started twice\n{self.describe()}"
        return sorted((counters for seen in self.attempts().values() for counters in seen), key=lambda each: each[2])

    def batch(self) -> list[tuple[str, int, int, int]]:
        """What the batch script had from `ftslurm env`, in order: (before|after, then the three counters)."""
        lines = [json.loads(line) for line in (self.folder / "batch").read_text().splitlines()]
        return [(line["when"], int(line["schedule"]), int(line["starts"]), int(line["attempt"])) for line in lines]

    def said(self) -> list[tuple[int, int, float, str]]:
        """What ranks said by `say`: (rank, attempt, time, words). A signal may end `date`: such a line has no time."""
        path = self.folder / "said"
        lines = path.read_text().splitlines() if path.exists() else []
        return [
            (int(rank), int(attempt or 0), float(at), words)
            for rank, attempt, at, words in (line.split(" ", 3) for line in lines)
            if at
        ]

    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- waiting and acting

    def hurry(self) -> None:
        """Start the job soon where Slurm's own delay of 121 s after a requeue holds it; to be asked again.

        Not `now`, and not where it starts soon by itself: a job that starts on a node in the second in which it was killed there
        finds its credential revoked and is FAILED for good.
        """
        job = self.job()
        if job["JobState"] != "PENDING" or job["EligibleTime"] == "Unknown":  # not yet to be started at all
            return
        if datetime.fromisoformat(job["EligibleTime"]).timestamp() - time.time() > HELD_BACK_S:
            self.cluster.run(["scontrol", "update", f"JobId={self.id}", "StartTime=now+2seconds"])

    def wait_for(self, predicate: Callable[[], T], what: str, timeout_s: float = START_TIMEOUT_S) -> T:
        try:
            return self.cluster.wait_for(predicate, timeout_s, f"{what} (job {self.id})")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def wait_started(self, attempt: int = 1, timeout_s: float = START_TIMEOUT_S) -> dict[int, Start]:
        """The starts of all ranks in that attempt."""
        ranks = self.plan.nodes * self.plan.tasks

        def started() -> dict[int, Start]:
            found = self.of_attempt(attempt)
            return found if len(found) == ranks else {}

        return self.wait_for(started, f"all {ranks} ranks to start in attempt {attempt}", timeout_s)

    def allow(self, name: str) -> None:
        """Make the file that a rank or the script awaits."""
        (self.folder / name).touch()

    def processes(self) -> dict[int, str]:
        """All that runs and has this story in its environment: pid to command line. Slurm's own daemons have not."""
        return processes_with(f"STORY={self.folder}")

    def pids(self) -> dict[tuple[str, int], int]:
        """Node and the number that a process has there, to the number that it has here: of all that runs of this story."""
        return {own_number(pid): pid for pid in self.processes()}

    def pid(self, start: Start) -> int:
        """Of a rank that runs, as seen from here; KeyError if it does not."""
        return self.pids()[start.node, start.pid]

    def alive(self, starts: Iterable[Start]) -> list[Start]:
        """Those whose process is still there."""
        pids = self.pids()
        return [start for start in starts if (start.node, start.pid) in pids]

    def wait_nothing_left(self, timeout_s: float = GONE_TIMEOUT_S) -> None:
        self.wait_for(lambda: not self.processes(), f"its processes to be gone, left: {self.processes()}", timeout_s)

    def ftslurm(self, *argv: str) -> str:
        """What `ftslurm ARGV` prints for the job user."""
        return self.cluster.answer(["ftslurm", *argv], env=self.env, cwd=self.folder)

    def json(self, *argv: str) -> Any:
        told = json.loads(self.ftslurm(*argv, "--json"))
        json_schemas.check(argv[0], told)
        return told

    def describe(self) -> str:
        """For a failed assertion: what there is to see."""
        said = "\n".join(
            f"  {path.name}: {line}"
            for path in sorted(self.folder.glob("*"))
            if path.name.startswith(("rank.", "batch", "said")) and path.suffix != ".sh"
            for line in path.read_text(errors="replace").splitlines()[-40:]
        )
        ledger = "\n".join(path.read_text(errors="replace") for path in self.folder.glob("state/jobs/*.jsonl"))
        head = f"--- {self.folder.name}, job {self.id}\n{said}\n--- output\n{self.output()[-3000:]}\n{ledger}"
        return f"{head}\n--- slurmctld\n{self.slurmctld_log()}\n--- nodes\n{self.troubles_of_nodes()}"

    def slurmctld_log(self, lines: int = 60) -> str:
        """Its latest lines on this job: who ended a step, for one."""
        log = Path(self.cluster.folder, "log", "slurmctld.log")
        text = log.read_text(errors="replace") if log.is_file() else ""
        return "\n".join([line for line in text.splitlines() if f"={self.id}" in line][-lines:])

    def troubles_of_nodes(self, lines: int = 8) -> str:
        """The latest errors of each slurmd, whichever job they are of: a slurmd that ended, for one."""
        found = []
        for log in (Path(self.cluster.folder, "log", f"{node}.log") for node in self.cluster.nodes):
            text = log.read_text(errors="replace").splitlines() if log.is_file() else []
            found += [f"  {log.stem}: {line}" for line in [line for line in text if _TROUBLE.search(line)][-lines:] + text[-1:]]
        return "\n".join(found)


def processes_with(mark: str) -> dict[int, str]:
    """pid to command line of every process whose environment holds `mark`; zombies have none and do not count."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if mark.encode() in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    words = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = words.strip()
    return found


def own_number(pid: int) -> tuple[str, int]:
    """Node of a process, and its number there: nodes that are apart count for themselves. ("", 0) if it has ended."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "", 0
    node = next((word for word in environ if word.startswith(b"SLURMD_NODENAME=")), b"=").partition(b"=")[2].decode()
    (numbers,) = (line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
    return node, int(numbers[-1])


def on_network_of(pid: int, *argv: str) -> list[str]:
    """`argv` where `pid` has its connections: each node that is apart has a network of its own."""
    return ["nsenter", f"--target={pid}", "--net", "--", *argv]


def admin() -> str:
    """Who may do what Slurm allows its operators only: the user that the cluster's daemons run as."""
    return pwd.getpwuid(os.geteuid()).pw_name


def is_alive(pid: int) -> bool:
    """There, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """A process of the story; one that has ended is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def nodes_in(cluster: Cluster, folded: str) -> set[str]:
    """`n[1-3,5]` as single nodes, by Slurm; empty for `(null)`."""
    if folded in ("", "(null)"):
        return set()
    return set(cluster.answer(["scontrol", "show", "hostnames", folded]).split())


class Stage:
    """Where stories are told: one cluster, the project's commands and the stand-in device tool on PATH."""

    def __init__(self, cluster: Cluster, home: Path, path: Sequence[Path]) -> None:
        self.cluster = cluster
        self.home = home
        self.path = ":".join([*map(str, path), "/usr/local/bin", "/usr/bin", "/bin"])
        self.told: list[Story] = []

    def folder(self, name: str) -> Path:
        """A new folder of the job user's."""
        folder = self.home / f"{len(self.told)}-{name}"
        for each in (folder, folder / "npu"):
            each.mkdir()
            if os.geteuid() == 0:
                shutil.chown(each, self.home.owner())
        (folder / "npu").chmod(0o777)
        return folder

    def tell(self, plan: Plan, name: str) -> Story:
        """Submit the job of `plan`; `name` is for people."""
        return self.prepare(plan, name).submit()

    def prepare(self, plan: Plan, name: str) -> Story:
        """All but the submission: for salloc, and for jobs that are submitted in another way."""
        folder = self.folder("".join(char if char.isalnum() else "-" for char in name)[:60])
        env = {
            **{name: value for name, value in QUICK.items() if plan.env.get(name) != ""},
            "PATH": self.path,
            "STORY": str(folder),
            "FTSLURM_STATE_DIR": f"{folder}/state",
            "FTSLURM_NPU_SIM": f"{folder}/npu",
            **{name: value.replace("%STORY%", str(folder)) for name, value in plan.env.items() if value or name not in QUICK},
        }
        told = Story(self.cluster, folder, env, replace(plan, env=env))
        self.told.append(told)
        return told.write_files()

    def close(self) -> None:
        """Cancel what still runs, and wait until the nodes are free again."""
        if ids := [str(told.id) for told in self.told if told.id]:
            self.cluster.run(["scancel", "--quiet", *ids])
            listing = ["squeue", "--noheader", f"--jobs={','.join(ids)}"]  # knows of none that is over
            self.cluster.wait_for(lambda: not self.cluster.run(listing).stdout, END_TIMEOUT_S, "all jobs to be gone")


def stories_of(request: pytest.FixtureRequest, *, early: bool) -> Iterator[tuple[str, Plan]]:
    """Node id and plan of every test that will run and has such a story: of all modules the early ones, else of this one."""
    for item in request.session.items:
        mark = item.get_closest_marker("story")
        if mark and mark.args[0].early is early and (early or item.path == request.path):
            yield item.nodeid, mark.args[0]


class Terminal:
    """A program on a pseudo-terminal of its own, which we type on and read. seen: all it printed so far."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.seen = ""
        self._read_to = 0
        self._master = master

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, words: str, timeout_s: float = START_TIMEOUT_S) -> str:
        """What was printed since the last call, up to `words`."""
        deadline = time.monotonic() + PATIENCE * timeout_s
        while (found := self.seen.find(words, self._read_to)) < 0:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"no {words!r} in {self.seen!r}"
            if not self._read(left_s) and words not in self.seen[self._read_to :]:
                raise AssertionError(f"it ended without {words!r}: {self.seen!r}")
        began, self._read_to = self._read_to, found + len(words)
        return self.seen[began : self._read_to]

    def _read(self, wait_s: float) -> bool:
        """Take in what is there; False at the end."""
        ready, _, _ = select.select([self._master], [], [], wait_s)
        if not ready:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: nobody has the other end open any more
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def wait(self, timeout_s: float = GONE_TIMEOUT_S) -> int:
        """The exit status; what it prints meanwhile is read, or it would wait for us."""
        deadline = time.monotonic() + PATIENCE * timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended: {self.seen!r}"
            self._read(0.1)
        return self.process.returncode


@contextmanager
def terminal(told: Story, argv: Sequence[str]) -> Iterator[Terminal]:
    """`argv` as the job user with a controlling terminal, in the story's environment."""
    from tests.live.conftest import as_user, job_user

    master, slave = os.openpty()
    os.fchmod(slave, 0o666)  # programs open /dev/tty anew, as another user than ours
    env = {**told.cluster.environ(job_user()), **told.env, "TERM": "dumb", "PS1": "$ "}
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *argv],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        cwd=told.folder,
        **as_user(job_user()),
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        os.close(master)  # a hang-up for what still runs
        if process.poll() is None:
            process.kill()
        process.wait()

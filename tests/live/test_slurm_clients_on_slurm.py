"""The real clients keep the contract, on a real cluster, as an ordinary user; and a job requeues itself from inside."""

from __future__ import annotations

import os
import pickle
import pwd
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftslurm.slurm.cli_client import SLURMD_PORT, SlurmClient, slurmd_answers, slurmd_port
from ftslurm.slurm.commands import steps_argv
from ftslurm.slurm.conf_file import read_conf
from ftslurm.slurm.parse import parse_steps

pytest.register_assert_rewrite("tests.contract.slurm_client_contract")
from tests.contract.slurm_client_contract import SlurmClientContract, until_running, wait  # noqa: E402

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = [pytest.mark.live, pytest.mark.slurms]

REPO = Path(__file__).resolve().parents[2]
SLEEPER = "#!/bin/sh\nexec sleep 600\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


class AsJobUser:
    """A client whose every request is made in a child of ours that has become the job user first.

    Tests run as root, who may do what an ordinary user may not.
    """

    def __init__(self, cluster: Cluster, make: Callable[[], SlurmClient]) -> None:
        self._cluster = cluster
        self._make = make

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._in_child(lambda: getattr(self._make(), name)(*arguments))

    def _in_child(self, ask: Callable[[], Any]) -> Any:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._answer(ask, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        good, answer = pickle.loads(data)
        if good:
            return answer
        raise answer

    def _answer(self, ask: Callable[[], Any], writing: int) -> None:
        try:
            become_job_user(self._cluster)
            answer = (True, ask())
        except BaseException as error:  # the parent raises it
            traceback.print_exc()
            answer = (False, error)
        os.write(writing, pickle.dumps(answer))
        os._exit(0)


def become_job_user(cluster: Cluster) -> None:
    """For a child of ours: the job user's rights, folder and variables."""
    user = job_user(cluster)
    os.environ.clear()
    os.environ.update(cluster.environ(user.pw_name))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    os.chdir(cluster.home)


def job_user(cluster: Cluster) -> Any:
    return pwd.getpwuid(cluster.home.stat().st_uid)


class RealWorld:
    """World over tools/slurm-cluster; `make` makes the client under test, given its time limit."""

    def __init__(self, cluster: Cluster, make: Callable[[float], SlurmClient]) -> None:
        self.cluster = cluster
        self.make = make
        self.client: Any = self.hurried(30.0)
        self.user_id = job_user(cluster).pw_uid
        self.nodes = cluster.nodes
        self.jobs: list[int] = []
        self.touched: list[str] = []

    def hurried(self, timeout_s: float) -> Any:
        return AsJobUser(self.cluster, partial(self.make, timeout_s))

    def submit(self, node_count: int = 1, *, hold: bool = False, requeue: bool = True, batch: bool = True,
               name: str = "job", comment: str = "", as_root: bool = False, exclusive: bool = True) -> int:  # fmt: skip
        options = [f"--nodes={node_count}", f"--job-name={name}", f"--comment={comment}"]
        options += ["--exclusive"] if exclusive else []
        if not batch:
            return self.note(self._salloc(options))
        options += ["--hold"] if hold else []
        options += ["--requeue" if requeue else "--no-requeue", "--output=/dev/null"]
        if as_root:
            answer = self.cluster.answer(["sbatch", "--parsable", *options], stdin=SLEEPER, user="root")
            return self.note(int(answer))
        return self.note(self.cluster.submit(SLEEPER, *options))

    def _salloc(self, options: list[str]) -> int:
        done = self.cluster.run(["salloc", "--no-shell", *options])
        assert done.returncode == 0, done.stderr
        return int(done.stderr.split("Granted job allocation ")[1].split()[0])

    def note(self, number: int) -> int:
        self.jobs.append(number)
        return number

    def submit_array(self, tasks: int) -> list[int]:
        array = self.note(self.cluster.submit(SLEEPER, f"--array=0-{tasks - 1}", "--output=/dev/null"))
        seen = wait(lambda: self.numbers(array), lambda numbers: len(numbers) == tasks, "all tasks to run")
        return [int(number) for number in seen]

    def numbers(self, array: int) -> list[str]:
        look = ["squeue", "--noheader", "--states=RUNNING", "--format=%A", f"--jobs={array}"]
        return self.cluster.answer(look).split()

    def submit_undivided_array(self) -> int:
        return self.note(self.cluster.submit(SLEEPER, "--array=0-3", "--hold", "--output=/dev/null"))

    def drain(self, node: str, reason: str) -> None:
        self._set_node(node, "DRAIN", reason)

    def take_down(self, node: str) -> None:
        self._set_node(node, "DOWN", "dead")

    def _set_node(self, node: str, state: str, reason: str) -> None:
        self.touched.append(node)
        change = (f"NodeName={node}", f"State={state}", f"Reason={reason}")
        self.cluster.answer(["scontrol", "update", *change], user=admin())

    @contextmanager
    def controller_away(self) -> Iterator[None]:
        self.cluster.tool("ctld-stop")
        try:
            yield
        finally:
            self.cluster.tool("ctld-start")

    def clean_up(self) -> None:
        """Leave the cluster as it was found."""
        if self.jobs:
            self.cluster.run(["scancel", "--quiet", *map(str, self.jobs)], user=admin())
        for node in self.touched:
            self.cluster.answer(["scontrol", "update", f"NodeName={node}", "State=RESUME"], user=admin())
        wait(self._states, lambda states: states == {"idle"}, "the nodes to be idle again", limit_s=60.0)

    def _states(self) -> set[str]:
        return set(self.cluster.answer(["sinfo", "--noheader", "--Node", "--format=%T"]).split())


def admin() -> str:
    """Who may drain nodes: the user that the cluster's daemons run as."""
    return pwd.getpwuid(os.geteuid()).pw_name


@contextmanager
def world_with(cluster: Cluster, make: Callable[[float], SlurmClient]) -> Iterator[RealWorld]:
    world = RealWorld(cluster, make)
    try:
        yield world
    finally:
        world.clean_up()


@needs_root
class TestCommandLine(SlurmClientContract):
    @pytest.fixture
    def world(self, cluster: Cluster) -> Iterator[RealWorld]:
        with world_with(cluster, lambda timeout_s: SlurmClient(timeout_s=timeout_s)) as world:
            yield world


@pytest.fixture
def world(cluster: Cluster) -> Iterator[RealWorld]:
    with world_with(cluster, lambda timeout_s: SlurmClient(timeout_s=timeout_s)) as world:
        yield world


def test_waits_for_a_controller_that_comes_back(world: RealWorld) -> None:
    number = world.submit(hold=True)
    world.cluster.tool("ctld-stop")
    start = (sys.executable, str(REPO / "tools" / "slurm-cluster"), "ctld-start", "--dir", str(world.cluster.folder))
    with subprocess.Popen(["sh", "-c", 'sleep 1.5; exec "$@"', "sh", *start]):
        client = AsJobUser(world.cluster, partial(SlurmClient, timeout_s=40.0))
        assert client.job(number).held


# As ftrun does it: a handler for SIGTERM in this process, which the programs it starts do not inherit.
FROM_INSIDE = """#!/bin/sh
exec {python} - <<'END'
import os, signal, sys, time
sys.path[:] = {path!r}
signal.signal(signal.SIGTERM, lambda *_: None)
if os.environ.get("SLURM_RESTART_COUNT"):
    os.execvp("sleep", ["sleep", "600"])
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.env import read_allocation
here = read_allocation(os.environ)
assert here.batch, here
client = SlurmClient()
client.job(here.job.number)
client.requeue_held(here.job.number)
client.exclude(here.job.number, here.nodes)
client.start_at(here.job.number, int(time.time()) + 12)  # behind the clean-up, which takes 3 to 5 s with proctrack/cgroup
client.release(here.job.number)
print("all done", flush=True)
END
"""


def test_a_job_requeues_itself_onto_other_nodes(world: RealWorld) -> None:
    """The SIGTERM that comes with the requeue ends the first scontrol in the middle of its work."""
    path = [str(REPO), *(entry for entry in sys.path if entry)]
    script = FROM_INSIDE.format(python=sys.executable, path=path)
    output = world.cluster.home / "inside.txt"
    began = time.monotonic()
    options = ("--nodes=2", "--exclusive", "--open-mode=append", f"--output={output}")
    number = world.note(world.cluster.submit(script, *options))
    try:
        view = until_running(world.client, number, restarts=1, limit_s=50.0)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{output.read_text()}") from None
    assert len(view.nodes) == 2
    assert len(view.excluded) == 2, "the two nodes of the first run"
    assert not set(view.nodes) & view.excluded
    assert "all done" in output.read_text()
    assert time.monotonic() - began < 60.0  # Slurm's own delay is 121 s


def test_every_node_is_found_where_its_slurmd_listens(world: RealWorld) -> None:
    """The port is the cluster's own, which no node names. At a wrong one nobody answers, as on a dead node."""
    client = AsJobUser(world.cluster, partial(SlurmClient, timeout_s=40.0))
    port = slurmd_port(client)  # type: ignore[arg-type] -- it asks like one
    assert port != SLURMD_PORT
    found = {view.name: slurmd_answers(view.address, view.port or port, 10.0)[0] for view in client.nodes()}
    assert found == dict.fromkeys(world.nodes, True)


def test_a_script_finds_in_its_slurm_conf_what_slurmctld_says(world: RealWorld) -> None:
    """What nobody has set slurmctld shows by its default. MpiDefault=none: 26.05 shows it as nothing."""
    output = world.cluster.home / "conf.out"
    script = '#!/bin/sh\necho "$SLURM_CONF"\n'
    world.note(world.cluster.submit(script, "--nodes=1", f"--output={output}"))
    where = wait(lambda: output.exists() and output.read_text().strip(), bool, "the script to tell where its slurm.conf is")
    found, config = read_conf({"SLURM_CONF": str(where)}), world.client.config()
    assert {"ClusterName", "ProctrackType", "AuthInfo"} <= found.keys()
    assert found == {key: config[key] or "none" for key in found}
    assert config["SrunPortRange"] == "0-0" and "SrunPortRange" not in found


WITH_STEPS = """#!/bin/sh
srun --job-name=train sleep 600 &
srun --overlap --mem=0 --job-name=ftslurm-agent sleep 600 &
wait
"""


def test_the_steps_of_a_job_are_listed_those_of_tasks_only(world: RealWorld) -> None:
    number = world.note(world.cluster.submit(WITH_STEPS, "--nodes=1", "--output=/dev/null"))
    steps = wait(lambda: parse_steps(world.cluster.answer(steps_argv(number))), lambda seen: len(seen) == 2, "both steps")
    assert set(steps) == {"0", "1"} and set(steps.values()) == {"train", "ftslurm-agent"}

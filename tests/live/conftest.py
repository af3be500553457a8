"""Fixtures for tests on a real Slurm cluster, which tools/slurm-cluster boots on this machine, one a session.

Where Slurm is missing these tests are skipped; with FTSLURM_REQUIRE_SLURM=1 that is an error.
Jobs are an ordinary user's: `nobody` where the tests run as root, else whoever runs them.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import pytest
from packaging.requirements import Requirement

from tests.live.stories import PATIENCE, Stage, Story, stories_of

T = TypeVar("T")

TOOL = Path(__file__).resolve().parents[2] / "tools" / "slurm-cluster"
EX_UNAVAILABLE = 69  # slurm-cluster's word for "Slurm is not installed"

COMMAND_TIMEOUT_S = 30.0
TOOL_TIMEOUT_S = 90.0  # four times that is above the 180 s after which slurm-cluster gives up a boot
POLL_S, LEISURE_S = 0.05, 0.8

# Modules whose tests boot a cluster each, so that they need not wait for each other (make test).
APART = frozenset({
    "test_batch_node", "test_chaos", "test_drill", "test_node_loss", "test_other_slurms", "test_sites", "test_slurm_away",
})  # fmt: skip
# Those that take longest begin first; those of less than half a minute come last. What is APART fills gaps, so it comes behind.
FIRST = (
    "test_other_slurms", "test_hooks_live", "test_slurm_acts", "test_counted_live", "test_drop_in", "test_replacing_live",
    "test_cluster_tool", "test_drill", "test_outside", "test_replacing_twice_live", "test_slurm_clients_on_slurm",
    "test_accounting", "test_requeue_starts", "test_ladder", "test_stopping", "test_hang_live", "test_ledger_live", "test_requeue",
    "test_standstill_live", "test_containers", "test_control_live", "test_scripts", "test_bad_input", "test_shapes", "test_fitting_live",
    "test_in_place", "test_output_live", "test_batch_node", "test_sites", "test_node_loss", "test_slurm_away", "test_chaos",
)  # fmt: skip

REPO = Path(__file__).resolve().parents[2]

# One field of `scontrol show … --oneliner`; a value may hold spaces (Reason, Command), so it ends where a key begins.
FIELD = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(.*?)(?=\s+[A-Z][\w:/]*=|\s*$)")


def job_user() -> str:
    """Who submits: jobs that run as root would hide what an ordinary user may not do."""
    return "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def parse_fields(line: str) -> dict[str, str]:
    """The fields of one `scontrol show job|node --oneliner` line."""
    return {found[1]: found[2] for found in FIELD.finditer(line.strip())}


def slurm_cluster(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    """One call of the tool, whatever its exit status."""
    return subprocess.run(
        (sys.executable, str(TOOL), *map(str, argv)),
        stdin=subprocess.DEVNULL,
        text=True,
        capture_output=True,
        timeout=PATIENCE * TOOL_TIMEOUT_S,
        check=False,
    )


# What all nodes see: /tmp and /dev/shm are each node's own. Sockets want short paths.
SHARED_DISK = "/var/tmp"


@contextmanager
def user_folder(user: str, where: str | Path = SHARED_DISK) -> Iterator[Path]:
    """A new folder that belongs to `user`, which all nodes see: pytest's own folders let nobody else pass."""
    outer = Path(tempfile.mkdtemp(prefix="ftslurm-", dir=where))
    outer.chmod(0o755)
    folder = outer / "home"
    folder.mkdir(mode=0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, user)
    try:
        yield folder
    finally:
        remove(outer)


@contextmanager
def shared_mounts(folder: Path) -> Iterator[None]:
    """What is mounted below `folder`, nodes see that are booted meanwhile: as they do a disk that a site mounts everywhere."""
    if os.geteuid() != 0:
        yield
        return
    for how in ("--bind", folder, folder), ("--make-shared", folder):
        subprocess.run(["mount", *how], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def remove(folder: Path) -> None:
    """Remove a folder in which a job that is just ending may still write."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Cluster:
    """A running cluster, seen by an ordinary user whose home is `home`."""

    conf: Path
    nodes: tuple[str, ...]
    home: Path
    last_answer: deque[str] = field(default_factory=lambda: deque(maxlen=1), repr=False)

    @property
    def folder(self) -> Path:
        return self.conf.parent

    def tool(self, command: str, *argv: str) -> str:
        """What `slurm-cluster COMMAND` prints for this cluster; AssertionError if it fails."""
        done = slurm_cluster(command, "--dir", self.folder, *argv)
        assert done.returncode == 0, f"slurm-cluster {command} {argv}: status {done.returncode}\n{done.stderr}"
        return done.stdout

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        timeout: float = COMMAND_TIMEOUT_S,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the cluster as `user` (the job user if None); it may fail, and has `timeout` seconds of a quiet machine."""
        user = user or job_user()
        done = subprocess.run(
            tuple(argv),
            input=stdin,
            text=True,
            capture_output=True,
            timeout=PATIENCE * timeout,
            check=False,
            cwd=cwd or self.home,
            env={**self.environ(user), **(env or {})},
            **as_user(user),
        )
        self.last_answer.append(f"{' '.join(argv)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def environ(self, user: str) -> dict[str, str]:
        """A login's few variables: what the tests themselves run in shall not leak into jobs."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "USER": user,
            "LOGNAME": user,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.conf),
        }

    def answer(self, argv: Sequence[str], **how: Any) -> str:
        """The standard output of a command that has to succeed; `how` as for `run`."""
        done = self.run(argv, **how)
        assert done.returncode == 0, self.last_answer[-1]
        return done.stdout.strip()

    def submit(self, script: str | Path, *sbatch_args: str, **how: Any) -> int:
        """The id of a new job: its script as text or as a path, further sbatch options, `how` as for `run`."""
        path = [str(script)] if isinstance(script, Path) else []
        text = "" if isinstance(script, Path) else script
        answer = self.answer(["sbatch", "--parsable", *sbatch_args, *path], stdin=text, **how)
        return int(answer.partition(";")[0])

    def job(self, job_id: int | str) -> dict[str, str]:
        """The fields of `scontrol show job`; `123_4` is a task of an array."""
        return parse_fields(self.answer(["scontrol", "show", "job", str(job_id), "--oneliner"]))

    def node(self, name: str) -> dict[str, str]:
        """The fields of `scontrol show node`."""
        return parse_fields(self.answer(["scontrol", "show", "node", name, "--oneliner"]))

    def wait_for(self, predicate: Callable[[], T], timeout_s: float, what: str) -> T:
        """The first true answer of `predicate`; AssertionError, with what was last seen, after `timeout_s` of a quiet machine."""
        began = asked = time.monotonic()
        while not (seen := predicate()):
            if (now := time.monotonic()) > began + PATIENCE * timeout_s:
                last = self.last_answer[-1] if self.last_answer else "no command was run"
                raise AssertionError(f"waited {PATIENCE * timeout_s:g} s for {what}; last seen: {seen!r}; last command: {last}")
            # A question is mostly a process of Slurm's, and a dozen workers ask at a time: no more than a fifth of the time, and at
            # leisure after a while.
            time.sleep(max(POLL_S, min(LEISURE_S, max(4 * (now - asked), 0.1 * (now - began)))))
            asked = time.monotonic()
        return seen

    def wait_for_state(self, job_id: int, *states: str, timeout_s: float = 20.0) -> dict[str, str]:
        """The job's fields once its JobState is one of `states`."""

        def reached() -> dict[str, str]:
            job = self.job(job_id)
            return job if job["JobState"] in states else {}

        return self.wait_for(reached, timeout_s, f"job {job_id} to be {' or '.join(states)}")

    def cancel(self, job_id: int) -> None:
        """Ask Slurm to end the job; one that has ended already is no error."""
        self.run(["scancel", "--quiet", str(job_id)])


def as_user(user: str) -> dict[str, Any]:
    """subprocess arguments that make the child `user`'s, without any group of ours."""
    entry = pwd.getpwnam(user)
    return {} if entry.pw_uid == os.geteuid() else {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def check_booted(done: subprocess.CompletedProcess[str]) -> None:
    """Skip without Slurm, visibly; fail on everything else that went wrong."""
    if done.returncode == EX_UNAVAILABLE and os.environ.get("FTSLURM_REQUIRE_SLURM") != "1":
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"slurm-cluster up: status {done.returncode}\n{done.stderr}"


def shared_options() -> list[str]:
    """The tests' own code and Python, where they lie in what nodes have for themselves."""
    return [f"--shared={path}" for path in dict.fromkeys((str(REPO), sys.prefix)) if path.startswith(("/tmp/", "/dev/shm/"))]


@contextmanager
def booted(nodes: int = 6, conf: Sequence[str] = (), options: Sequence[str] = ()) -> Iterator[Cluster]:
    """A cluster of its own, with further slurm.conf lines and options of `up`; gone afterwards, whatever happened."""
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    folder = Path(tempfile.mkdtemp(prefix="ftslurm-cluster-", dir=SHARED_DISK))
    with user_folder(job_user()) as home, shared_mounts(home.parent):  # outside: the jobs in it end with the cluster
        try:
            check_booted(
                slurm_cluster(
                    "up",
                    "--dir",
                    folder,
                    "--nodes",
                    str(nodes),
                    *shared_options(),
                    *options,
                    *(f"--conf={line}" for line in conf),
                )
            )
            yield Cluster(folder / "slurm.conf", names, home)
        finally:
            stopped = slurm_cluster("down", "--dir", folder)
            shutil.rmtree(folder, ignore_errors=True)  # where there was no boot
    assert stopped.returncode == 0, stopped.stderr


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Six idle nodes, n1 to n6, shared by all tests: leave them as you found them."""
    with booted(conf=["SlurmctldParameters=enable_expedited_requeue"]) as running:  # older releases do not read it
        yield running


@pytest.fixture
def boot_cluster() -> Callable[..., AbstractContextManager[Cluster]]:
    """For a test that needs other settings: `with boot_cluster(nodes=2, conf=["KillWait=5"]) as own:`."""
    return booted


@pytest.fixture
def job_home() -> Iterator[Path]:
    """A folder that belongs to the job user and that jobs can reach."""
    with user_folder(job_user()) as folder:
        yield folder


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "story(plan): the batch job that the test reads, see stories.py")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No test needs a second try. Where a failure for the machine's sake alone costs too much (.ci/run) each has one, which the
    report names; it comes at once, while the test's cluster is there.
    """
    tries = int(os.environ.get("FTSLURM_SECOND_TRIES", "0"))
    for item in items:
        if tries and item.get_closest_marker("live") and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=tries))
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    items.sort(key=lambda item: (not begins_early(item), FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST)))


def group_of(item: pytest.Item) -> str:
    """Tests of one group go to one worker: they share their module's cluster or jobs. A test may add a group of its own by the mark."""
    if begins_early(item):
        return "early"
    apart = item.path.stem in APART and not item.get_closest_marker("story")
    return item.nodeid if apart else str(item.path)


def begins_early(item: pytest.Item) -> bool:
    story = item.get_closest_marker("story")
    return story is not None and story.args[0].early


@pytest.fixture(scope="session")
def job_path(cluster: Cluster) -> Iterator[tuple[Path, ...]]:
    with job_commands(cluster) as path:
        yield path


@contextmanager
def job_commands(cluster: Cluster) -> Iterator[tuple[Path, ...]]:
    """Folders that the job user can reach: the commands ftrun and ftslurm, and the stand-in npu-smi and npu-sim.

    The commands are those installed beside the Python that runs the tests; where that lies in a closed folder (root's
    home, say) a copy in an open one.
    """
    with user_folder(job_user()) as folder:
        tools = folder.parent
        shutil.copytree(REPO / "tests/fakes", tools / "fakes", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([sys.executable, "-m", "compileall", "-q", tools / "fakes"], check=True)
        commands = Path(sys.executable).parent
        if not answers(cluster, commands):
            commands = copied_commands(tools)
            assert answers(cluster, commands), cluster.last_answer[-1]
        yield commands, tools / "fakes/bin"


def answers(cluster: Cluster, folder: Path) -> bool:
    """Can the job user run ftrun from there?"""
    try:
        return cluster.run([str(folder / "ftrun"), "--ft-version"]).returncode == 0
    except (FileNotFoundError, PermissionError):
        return False


def copied_commands(tools: Path, *, core_only: bool = False) -> Path:
    """ftrun and ftslurm with what they import, copied below `tools`; gives the folder of the two.

    core_only: without the packages that only extras or tests ask for, which are most of them.
    """
    import click

    import ftslurm

    venv = tools / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    installed = Path(click.__file__).parents[1]
    for name in sorted(core_packages()) if core_only else [path.name for path in installed.iterdir()]:
        if (installed / name).is_dir():
            shutil.copytree(installed / name, site / name, dirs_exist_ok=True)
        elif not name.startswith("__editable__"):
            shutil.copy2(installed / name, site)
    shutil.copytree(Path(ftslurm.__file__).parent, site / "ftslurm", dirs_exist_ok=True)
    for name in ("ftrun", "ftslurm"):
        script = venv / "bin" / name
        script.write_text(f"#!{venv}/bin/python\nfrom ftslurm.cli.{name} import main\nmain()\n")
        script.chmod(0o755)
    return venv / "bin"


def core_packages() -> set[str]:
    """Names in site-packages of all that ftslurm needs without its extras."""
    names: set[str] = set()
    wanted, seen = ["ftslurm"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = metadata.distribution(name)
        if name != "ftslurm":
            names |= {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
        requirements = [Requirement(text) for text in found.requires or ()]
        wanted += [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return names - {"__pycache__"}


@contextmanager
def new_stage(cluster: Cluster, path: tuple[Path, ...]) -> Iterator[Stage]:
    with user_folder(job_user(), cluster.home.parent) as home:
        stage = Stage(cluster, home, path)
        try:
            yield stage
        finally:
            stage.close()


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, cluster: Cluster, job_path: tuple[Path, ...]) -> Iterator[Stage]:
    """Where a module's stories are told; what still runs at its end is cancelled."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # one of many workers has them, before all else
        request.getfixturevalue("early_told")
    with new_stage(cluster, job_path) as stage:
        yield stage


@pytest.fixture(scope="session")
def early_told(request: pytest.FixtureRequest, job_path: tuple[Path, ...]) -> Iterator[dict[str, Story]]:
    """The jobs of the tests that take long, begun before all others, by node id."""
    plans = dict(stories_of(request, early=True))
    if not plans:
        yield {}
        return
    # MinJobAge: Slurm shall still know them when their test comes.
    with booted(nodes=2, conf=["MinJobAge=7200"]) as own, new_stage(own, job_path) as stage:
        yield {nodeid: stage.tell(plan, nodeid.rpartition("::")[2]) for nodeid, plan in plans.items()}


@pytest.fixture(scope="module")
def all_told(request: pytest.FixtureRequest, stage: Stage) -> dict[str, Story]:
    """The jobs of all tests of the module, submitted at once, by node id."""
    plans = stories_of(request, early=False)
    return {nodeid: stage.tell(plan, nodeid.rpartition("::")[2]) for nodeid, plan in plans}


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Story:
    """The job of this test; a fresh one if the test is run again."""
    plan = request.node.get_closest_marker("story").args[0]
    if getattr(request.node, "execution_count", 1) > 1:
        return request.getfixturevalue("stage").tell(plan, f"again-{request.node.name}")
    return request.getfixturevalue("early_told" if plan.early else "all_told")[request.node.nodeid]

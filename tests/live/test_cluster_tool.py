"""tools/slurm-cluster: a real cluster comes up, does what a person wants to see it do, and goes without a trace."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cluster

    Boot = Callable[..., AbstractContextManager[Cluster]]

pytestmark = pytest.mark.live

TOOL = Path(__file__).resolve().parents[2] / "tools" / "slurm-cluster"
SLEEP_JOB = "#!/bin/sh\nexec sleep 300\n"


def run_tool(*argv: str | Path, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOL, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=90, check=False, env={**os.environ, "PATH": path})


def load_tool() -> ModuleType:
    """The tool as a module, for its pure functions."""
    loader = importlib.machinery.SourceFileLoader("slurm_cluster_tool", str(TOOL))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


def processes_naming(text: str) -> dict[int, str]:
    """Every process with `text` in its command line, environment or open files; not by the tool's own rules."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and text in all_words(entry):
            found[int(entry.name)] = all_words(entry)[:200]
    return found


def all_words(process: Path) -> str:
    words = []
    for name in ("cmdline", "environ"):
        with suppress(OSError):  # gone, or another user's
            words.append((process / name).read_text(errors="replace"))
    with suppress(OSError):
        words += [str(link.readlink()) for link in (process / "fd").iterdir()]
    return " ".join(words)


def pid_of(cluster: Cluster, daemon: str) -> str:
    """The pid column of `slurm-cluster status`, which fails while a daemon is down."""
    lines = run_tool("status", "--dir", cluster.folder).stdout.splitlines()
    return next(line.split(maxsplit=1)[1] for line in lines if line.split()[0] == daemon)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of ours with a short path, as Unix sockets want it; pytest's are too long."""
    path = Path(tempfile.mkdtemp(prefix="ftslurm-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


# ---- without a cluster ----


def test_conf_lines_replace_extend_and_add() -> None:
    ours = {"KillWait": "30", "SchedulerParameters": "bf_interval=1"}
    sets = ["NodeSet=a Nodes=n1", "NodeSet=b Nodes=n2"]
    extra = ["killwait=5", "SchedulerParameters=requeue_delay=2", *sets, "Epilog=/x"]
    assert load_tool().merged(ours, extra) == [
        "killwait=5", "SchedulerParameters=requeue_delay=2,bf_interval=1", "Epilog=/x", *sets]


@pytest.mark.parametrize(("answer", "cgroup_conf"), [
    ("slurm-wlm 22.05.8\n", False), ("slurm 23.11.4\n", False),
    ("slurm-wlm 24.11.5\n", True), ("slurm 26.05.5\n", True)])
def test_cgroups_are_disabled_from_24_11_on(answer: str, cgroup_conf: bool) -> None:
    tool = load_tool()
    assert tool.needs_cgroup_conf(tool.parse_version(answer)) is cgroup_conf


@pytest.mark.parametrize("argv", [
    [], ["fly"], ["up", "--nodes", "0"], ["up", "--conf", "no assignment"], ["status", "--", "squeue"],
    ["up", "--dir", "/nowhere/a b"]])
def test_wrong_usage_ends_with_64(argv: list[str]) -> None:
    assert run_tool(*argv).returncode == 64


def test_missing_slurm_ends_with_69_and_tells_how_to_get_it(folder: Path) -> None:
    done = run_tool("up", "--dir", folder, path="/nonexistent")  # hides bin, but not sbin
    assert done.returncode == 69
    assert "sbatch" in done.stderr
    assert "apt-get install" in done.stderr


def test_foreign_files_are_left_alone(folder: Path) -> None:
    (folder / "thesis.tex").write_text("the only copy")
    done = run_tool("up", "--dir", folder)
    assert done.returncode == 69 or (done.returncode == 1 and "no cluster's" in done.stderr)
    assert run_tool("down", "--dir", folder).returncode == 0  # nothing to do
    assert (folder / "thesis.tex").read_text() == "the only copy"


def test_a_link_is_no_folder(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "c").symlink_to("real")
    done = run_tool("up", "--dir", folder / "c")
    assert done.returncode == 69 or (done.returncode == 1 and "not a folder" in done.stderr)
    assert list((folder / "real").iterdir()) == []


def test_a_folder_open_to_others_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    done = run_tool("up", "--dir", folder)
    assert done.returncode == 69 or (done.returncode == 1 and "chmod go-w" in done.stderr)


# ---- the shared cluster ----


def test_all_nodes_are_idle_and_up_again_changes_nothing(cluster: Cluster) -> None:
    assert cluster.answer(["sinfo", "--noheader", "--format=%D %t"]) == "6 idle"
    before = cluster.tool("status")
    assert cluster.tool("up") == f"export SLURM_CONF={cluster.conf}\n"
    assert cluster.tool("status") == before


def test_shell_passes_the_exit_status_through(cluster: Cluster) -> None:
    done = run_tool("shell", "--dir", cluster.folder, "--", "sh", "-c", 'echo "$SLURM_CONF"; exit 7')
    assert (done.stdout.strip(), done.returncode) == (str(cluster.conf), 7)


def test_a_job_runs_as_an_ordinary_user_on_all_nodes(cluster: Cluster, job_home: Path) -> None:
    job = cluster.submit("#!/bin/sh\nid -u\nsrun printenv SLURMD_NODENAME\n", "-N6", "--output=out", cwd=job_home)
    fields = cluster.wait_for_state(job, "COMPLETED", "FAILED")
    told = (job_home / "out").read_text().split()
    assert fields["JobState"] == "COMPLETED", told
    assert int(told[0]) == job_home.stat().st_uid
    assert set(told[1:]) == set(cluster.nodes)


def test_the_owner_may_requeue(cluster: Cluster, job_home: Path) -> None:
    job = cluster.submit(SLEEP_JOB, cwd=job_home)
    first = cluster.wait_for_state(job, "RUNNING")
    cluster.answer(["scontrol", "requeue", str(job)])
    cluster.wait_for_state(job, "PENDING")
    # Not `now`: a job that starts again in the very second it was killed in finds its credential revoked on the same
    # node ("Job credential revoked" in slurmctld's log) and is FAILED for good; seen on 22.05 in four tries of ten.
    cluster.answer(["scontrol", "update", f"JobId={job}", "StartTime=now+2seconds"])
    second = cluster.wait_for_state(job, "RUNNING")
    assert (first["Restarts"], second["Restarts"]) == ("0", "1")
    cluster.cancel(job)


def test_node_down_leaves_the_step_and_node_up_finds_it(cluster: Cluster, job_home: Path) -> None:
    job = cluster.submit("#!/bin/sh\nwhile :; do date >> beats; sleep 0.1; done\n", "--nodelist=n2", cwd=job_home)
    cluster.wait_for((job_home / "beats").exists, 20, "the first beat")
    cluster.tool("node-down", "n2")
    assert pid_of(cluster, "n2").startswith("not running")
    size = (job_home / "beats").stat().st_size
    cluster.wait_for(lambda: (job_home / "beats").stat().st_size > size, 5, "a beat without slurmd")
    cluster.tool("node-up", "n2")
    assert pid_of(cluster, "n2")[0].isdigit()
    cluster.cancel(job)  # the new slurmd has to find the old step for this to end
    cluster.wait_for_state(job, "CANCELLED")
    cluster.wait_for(lambda: cluster.node("n2")["State"] == "IDLE", 10, "n2 to be idle")


def test_node_crash_takes_the_step_along(cluster: Cluster, job_home: Path) -> None:
    job = cluster.submit("#!/bin/sh\nsetsid sleep 301 & echo $! > pid; wait\n", "--nodelist=n3", cwd=job_home)
    note = job_home / "pid"
    pid = cluster.wait_for(lambda: note.read_text().strip() if note.exists() else "", 20, "a pid")
    cluster.tool("node-crash", "n3")
    assert "sleep" not in all_words(Path("/proc", pid))
    assert cluster.job(job)["JobState"] == "RUNNING"  # nobody has noticed
    cluster.tool("node-up", "n3")
    cluster.cancel(job)
    cluster.wait_for(lambda: cluster.node("n3")["State"] == "IDLE", 20, "n3 to be idle")


def test_a_job_outlives_slurmctld(cluster: Cluster, job_home: Path) -> None:
    job = cluster.submit("#!/bin/sh\nuntil [ -e go ]; do sleep 0.1; done\n", cwd=job_home)
    cluster.wait_for_state(job, "RUNNING")
    cluster.tool("ctld-stop")
    assert cluster.run(["scontrol", "ping"]).stdout.strip().endswith("DOWN")
    (job_home / "go").touch()
    cluster.tool("ctld-start")
    cluster.wait_for_state(job, "COMPLETED")
    # A new slurmctld takes about five seconds to count its nodes as there; those who come next want them idle.
    cluster.wait_for(lambda: cluster.answer(["sinfo", "--noheader", "--format=%t"]) == "idle", 20, "all idle")


# ---- clusters of their own ----


def test_down_leaves_no_process_and_no_folder(boot_cluster: Boot) -> None:
    unmarked = f"302.{os.getpid()}"  # other tests of this kind may be running beside us
    stubborn = f"#!/bin/bash\ntrap '' TERM INT\nenv -i setsid sleep {unmarked} &\n(sleep 303 &)\ntouch here\nwait\n"
    with boot_cluster(nodes=2) as own:
        own.submit(stubborn)
        own.wait_for((own.home / "here").exists, 20, "the job to run")
        bystander = subprocess.Popen(["sleep", "305"], env={"SLURM_CONF": str(own.conf)})
        try:
            own.tool("down")
            left = {pid: words for pid, words in processes_naming(str(own.folder)).items() if pid != bystander.pid}
            assert (left, own.folder.exists(), bystander.poll()) == ({}, False, None)
            assert processes_naming(unmarked) == {}
        finally:
            bystander.kill()
            bystander.wait()


def test_up_after_a_crash_of_everything_begins_anew(boot_cluster: Boot) -> None:
    with boot_cluster(nodes=1) as own:
        for line in own.tool("status").splitlines()[1:]:
            os.kill(int(line.split()[1]), 9)
        own.wait_for(lambda: run_tool("status", "--dir", own.folder).stdout.count("not running") == 3, 5, "all dead")
        own.tool("up", "--nodes", "1")
        assert own.answer(["srun", "printenv", "SLURMD_NODENAME"]) == "n1"


@pytest.mark.usefixtures("cluster")  # which skips where Slurm is missing
def test_a_failed_boot_tells_why_and_leaves_no_daemon(folder: Path) -> None:
    done = run_tool("up", "--dir", folder, "--nodes", "1", "--conf", "SelectType=select/none-such")
    assert done.returncode == 1
    assert "none-such" in done.stderr
    assert processes_naming(str(folder)) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="as an ordinary user every other test shows this")
def test_an_ordinary_user_boots_a_cluster(cluster: Cluster, folder: Path) -> None:
    user = "daemon"  # from 26.05 on Slurm refuses nobody as SlurmUser
    shutil.chown(folder, user)
    tool = str(shutil.copy(TOOL, folder))  # the checkout may lie where only root goes
    own = folder / "own"
    try:
        cluster.answer([tool, "up", "--dir", str(own), "--nodes", "2"], user=user, cwd=folder, timeout=90)
        conf = {"SLURM_CONF": str(own / "slurm.conf")}
        assert cluster.answer(["srun", "-N2", "id", "-un"], user=user, cwd=folder, env=conf).split() == [user, user]
    finally:
        cluster.answer([tool, "down", "--dir", str(own)], user=user, cwd=folder, timeout=90)
    assert processes_naming(str(own)) == {}

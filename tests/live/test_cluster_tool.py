"""tools/slurm-cluster: a real cluster comes up, does what a person wants to see it do, and goes without a trace."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm_cluster import conf
from slurm_cluster.apart import CGROUPS, bridge, lay_bridge
from slurm_cluster.folder import read_cluster
from slurm_cluster.spec import Spec, parse_version

from tests.live.conftest import SHARED_DISK, slurm_cluster

if TYPE_CHECKING:
    from conftest import Cluster

    Boot = Callable[..., AbstractContextManager[Cluster]]

pytestmark = pytest.mark.live

TOOL = Path(__file__).resolve().parents[2] / "tools" / "slurm-cluster"
SLEEP_JOB = "#!/bin/sh\nexec sleep 300\n"


def run_tool(*argv: str | Path, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "PATH": path},
    )


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
    path = Path(tempfile.mkdtemp(prefix="ftslurm-", dir=SHARED_DISK))
    yield path
    shutil.rmtree(path)


# ---- without a cluster ----


FLAT = Spec(3, 8, 24000, "head", "me", (22, 5))
APART = replace(FLAT, apart=True, cgroup="v1", user="slurm", gpus=4)
FOLDER = Path("/c")


def test_conf_lines_replace_extend_and_add() -> None:
    ours = {"KillWait": "30", "SchedulerParameters": "bf_interval=1"}
    sets = ["NodeSet=a Nodes=n1", "NodeSet=b Nodes=n2"]
    extra = ["killwait=5", "SchedulerParameters=requeue_delay=2", *sets, "Epilog=/x"]
    assert conf.merged(ours, extra) == ["killwait=5", "SchedulerParameters=requeue_delay=2,bf_interval=1", "Epilog=/x", *sets]


def test_an_empty_value_takes_a_line_out() -> None:
    assert conf.merged({"Epilog": "/x", "KillWait": "30"}, ["Epilog="]) == ["KillWait=30"]


@pytest.mark.parametrize(
    ("answer", "cgroup_conf"),
    [
        ("slurm-wlm 22.05.8\n", ""),
        ("slurm 23.11.4\n", ""),
        ("slurm-wlm 24.11.5\n", "CgroupPlugin=disabled\n"),
        ("slurm 26.05.5\n", "CgroupPlugin=disabled\n"),
    ],
)
def test_where_nothing_is_confined_cgroups_are_disabled_from_24_11_on(answer: str, cgroup_conf: str) -> None:
    assert conf.render_cgroup_conf(replace(FLAT, version=parse_version(answer))) == cgroup_conf


def lines(text: str) -> dict[str, str]:
    """Key to what stands behind the first `=`."""
    return dict(line.split("=", 1) for line in text.splitlines())


def test_nodes_that_share_a_machine_have_ports_of_their_own() -> None:
    told = conf.render_slurm_conf(FLAT, FOLDER)
    assert "NodeName=n[1-3] NodeAddr=127.0.0.1 NodeHostname=head Port=[24001-24003] Sockets=1" in told
    assert lines(told)["SlurmctldHost"] == "head(127.0.0.1)"
    assert lines(told)["ProctrackType"] == "proctrack/linuxproc" and lines(told)["SelectTypeParameters"] == "CR_Core"
    assert "Epilog" not in lines(told) and "Gres" not in told


def test_nodes_that_are_apart_have_addresses_of_their_own_and_are_as_on_a_site() -> None:
    told = conf.render_slurm_conf(APART, FOLDER)
    assert (
        all(f"NodeName=n{n} NodeHostname=n{n} NodeAddr=10.221.192.{n} Sockets=1" in told for n in (1, 2, 3))
        and "Gres=gpu:4" in told
    )
    wanted = {
        "SlurmctldHost": "head(10.221.192.254)", "SlurmdPort": "24001", "SlurmUser": "slurm", "SlurmdUser": "root",
        "ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup", "JobAcctGatherType": "jobacct_gather/cgroup",
        "SelectTypeParameters": "CR_Core_Memory", "DefMemPerCPU": "1024", "PrologFlags": "Contain", "Epilog": "/c/epilog",
        "FirstJobId": "24000001",
    }  # fmt: skip
    assert {key: lines(told)[key] for key in wanted} == wanted
    assert "10.221.192.2 n2\n" in conf.render_hosts(APART)


def test_a_bridge_does_not_borrow_the_address_of_a_cable_that_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("slurm_cluster.apart.ip", done.extend)
    lay_bridge(APART)
    assert f"link add {bridge(APART)} address 02:" in done[0]


def test_where_there_are_no_cgroups_processes_are_tracked_without_them() -> None:
    told = lines(conf.render_slurm_conf(replace(APART, cgroup=""), FOLDER))
    assert (told["ProctrackType"], told["TaskPlugin"]) == ("proctrack/linuxproc", "task/none")
    assert told["SelectTypeParameters"] == "CR_Core_Memory"


def test_cgroup_v2_needs_no_systemd() -> None:
    assert "IgnoreSystemd=yes" in conf.render_cgroup_conf(replace(APART, cgroup="v2"))
    assert "IgnoreSystemd" not in conf.render_cgroup_conf(APART)


def test_gpus_are_device_files() -> None:
    assert conf.render_gres_conf(APART, FOLDER) == "Name=gpu File=/c/dev/gpu[0-3]\n"
    assert conf.render_gres_conf(replace(APART, gpus=1), FOLDER) == "Name=gpu File=/c/dev/gpu0\n"


def test_with_accounting_a_job_needs_an_association() -> None:
    told = lines(conf.render_slurm_conf(replace(APART, accounting=True), FOLDER))
    assert told["AccountingStorageType"] == "accounting_storage/slurmdbd"
    assert told["AccountingStorageEnforce"] == "associations,limits,qos"
    assert told["AccountingStoragePort"] == lines(conf.render_slurmdbd_conf(APART, FOLDER))["DbdPort"] == "24004"


def test_two_clusters_never_share_a_number_of_a_job_or_an_address() -> None:
    other = replace(APART, port_base=24005)  # the next that can be chosen beside it
    assert APART.first_job + 999 < other.first_job < 2**26, "Slurm's MaxJobId"
    assert APART.network != other.network


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["up", "--nodes", "0"],
        ["up", "--conf", "no assignment"],
        ["status", "--", "squeue"],
        ["up", "--dir", "/nowhere/a b"],
    ],
)
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


@pytest.mark.flat
def test_all_nodes_are_idle_and_up_again_changes_nothing(cluster: Cluster) -> None:
    assert cluster.answer(["sinfo", "--noheader", "--format=%D %t"]) == "6 idle"
    before = cluster.tool("status")
    assert cluster.tool("up") == f"export SLURM_CONF={cluster.conf}\n"
    assert cluster.tool("status") == before


def test_shell_passes_the_exit_status_through(cluster: Cluster) -> None:
    done = run_tool("shell", "--dir", cluster.folder, "--", "sh", "-c", 'echo "$SLURM_CONF"; exit 7')
    assert (done.stdout.strip(), done.returncode) == (str(cluster.conf), 7)


@pytest.mark.flat
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


@pytest.mark.flat
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


@pytest.mark.flat
def test_node_crash_takes_the_step_along_and_nobody_is_told(cluster: Cluster, job_home: Path) -> None:
    mark = f"301.{os.getpid()}"
    job = cluster.submit(f"#!/bin/sh\nsetsid sleep {mark} &\nwait\n", "--nodelist=n3", cwd=job_home)
    cluster.wait_for(lambda: processes_naming(mark), 20, "the process to run")
    cluster.tool("node-crash", "n3")
    assert processes_naming(mark) == {} and pid_of(cluster, "n3").startswith("not running")
    assert cluster.job(job)["JobState"] == "RUNNING"
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


# ---- nodes that are apart ----

apart_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make nodes that are apart")
OF_ITS_OWN = ("mnt", "pid", "ipc", "uts", "net")


@apart_only
def test_nodes_are_apart(cluster: Cluster) -> None:
    """Two things that a node has for itself could hide a shared one of each other, so all of them are looked at."""
    look = "echo $SLURMD_NODENAME $(hostname) $(ls -A /tmp /dev/shm | wc -w)"
    look += "".join(f" $(readlink /proc/self/ns/{space})" for space in OF_ITS_OWN)
    told = [
        line.split()
        for line in cluster.answer(["srun", "-N6", "sh", "-c", f"touch /tmp/of-one /dev/shm/of-one; {look}"]).splitlines()
    ]
    assert sorted(line[0] for line in told) == list(cluster.nodes)
    assert all(line[0] == line[1] for line in told), "a host name of its own"
    assert {line[2] for line in told} == {"4"}, "two folders with one file each"
    for column, space in enumerate(OF_ITS_OWN, 3):
        assert len({line[column] for line in told} | {os.readlink(f"/proc/self/ns/{space}")}) == 7, space
    cluster.answer(["srun", "-N6", "rm", "/tmp/of-one", "/dev/shm/of-one"])


@apart_only
def test_a_task_that_takes_more_memory_than_it_has_is_ended(cluster: Cluster) -> None:
    take = "import mmap; m = mmap.mmap(-1, 200 << 20); [m.write(bytes(1 << 20)) for _ in range(200)]; print('had it')"
    argv = ["srun", "-N1", "/usr/bin/python3", "-c", take]
    assert cluster.answer([*argv[:2], "--mem=400M", *argv[2:]]) == "had it"
    done = cluster.run([*argv[:2], "--mem=50M", *argv[2:]])
    assert done.returncode != 0 and "had it" not in done.stdout and "oom" in done.stderr.lower()


@apart_only
def test_a_task_has_its_gpus_and_no_others(cluster: Cluster) -> None:
    """No driver answers for these files: ENXIO says who may open one."""
    tried = f"import os\nfor number in range(4):\n    try: os.open('{cluster.folder}/dev/gpu%d' % number, os.O_RDWR)\n"
    tried += "    except OSError as error: print(error.errno)\nprint(os.environ.get('CUDA_VISIBLE_DEVICES', 'none'))"
    argv = ["/usr/bin/python3", "-c", tried]
    may, may_not = str(errno.ENXIO), str(errno.EPERM)
    assert cluster.answer(["srun", "-N1", "--gpus=2", *argv]).split() == [may, may, may_not, may_not, "0,1"]
    assert cluster.answer(["srun", "-N1", *argv]).split()[:4] == [may_not] * 4


def reaches(cluster: Cluster, node: str, port: int) -> bool:
    """Whether the node can call `port` of the machine that slurmctld runs on."""
    address = read_spec(cluster).controller_address
    call = f"import socket; socket.create_connection(({address!r}, {port}), 1.0)"
    return slurm_cluster("node-shell", "--dir", cluster.folder, node, "--", "/usr/bin/python3", "-c", call).returncode == 0


def read_spec(cluster: Cluster) -> Spec:
    known = read_cluster(cluster.folder)
    assert known is not None
    return known.spec


@apart_only
def test_a_node_whose_cable_is_cut_runs_on_and_reaches_nobody(cluster: Cluster, job_home: Path) -> None:
    port = read_spec(cluster).port_base
    job = cluster.submit("#!/bin/sh\nwhile :; do date >>beats; sleep 0.1; done\n", "--nodelist=n4", cwd=job_home)
    cluster.wait_for((job_home / "beats").exists, 20, "the first beat")
    try:
        assert reaches(cluster, "n4", port)
        cluster.tool("node-cut", "n4")
        size = (job_home / "beats").stat().st_size
        assert not reaches(cluster, "n4", port) and reaches(cluster, "n5", port)
        cluster.wait_for(lambda: (job_home / "beats").stat().st_size > size, 5, "a beat behind the cut")
    finally:
        cluster.tool("node-mend", "n4")
        cluster.cancel(job)
    # The kernel brings the carrier up some time after the command: a call that began before waits for its second try.
    cluster.wait_for(lambda: reaches(cluster, "n4", port), 10, "n4 to reach slurmctld")
    cluster.wait_for(lambda: cluster.node("n4")["State"] == "IDLE", 20, "n4 to be idle")


def carried_in_s(cluster: Cluster, node: str) -> float:
    """How long the node takes to send a quarter of a megabyte."""
    with socket.create_server((read_spec(cluster).controller_address, 0)) as server:
        server.settimeout(80.0)
        got = []
        sink = threading.Thread(target=lambda: got.append(drained(server)))
        sink.start()
        call = f"import socket; socket.create_connection({server.getsockname()!r}, 40.0).sendall(bytes(1 << 18))"
        cluster.tool("node-shell", node, "--", "/usr/bin/python3", "-c", call)
        sink.join()
    return got[0]


def drained(server: socket.socket) -> float:
    with server.accept()[0] as one:
        began = time.monotonic()
        while one.recv(1 << 16):
            pass
        return time.monotonic() - began


@pytest.mark.skipif(shutil.which("tc", path="/usr/sbin:/sbin:/usr/bin:/bin") is None, reason="tc of iproute2 is not installed")
@apart_only
def test_a_node_behind_a_slow_cable_takes_long(cluster: Cluster) -> None:
    fast_s = carried_in_s(cluster, "n5")
    cluster.tool("node-slow", "n5", "1mbit")
    try:
        slow_s = carried_in_s(cluster, "n5")
    finally:
        cluster.tool("node-mend", "n5")
    again_s = carried_in_s(cluster, "n5")
    assert slow_s > 1.0 and slow_s > 2 * min(fast_s, again_s), (fast_s, slow_s, again_s)


@apart_only
def test_a_frozen_node_goes_on_where_it_stopped(cluster: Cluster, job_home: Path) -> None:
    job = cluster.submit("#!/bin/sh\nwhile :; do date >>beats; sleep 0.1; done\n", "--nodelist=n6", cwd=job_home)
    cluster.wait_for((job_home / "beats").exists, 20, "the first beat")
    cluster.tool("node-freeze", "n6")
    size = (job_home / "beats").stat().st_size
    time.sleep(0.5)  # what is waited for is that nothing comes
    assert (job_home / "beats").stat().st_size == size
    cluster.tool("node-thaw", "n6")
    cluster.wait_for(lambda: (job_home / "beats").stat().st_size > size, 5, "a beat after it")
    cluster.cancel(job)
    cluster.wait_for(lambda: cluster.node("n6")["State"] == "IDLE", 20, "n6 to be idle")


@apart_only
def test_an_epilog_takes_as_long_as_it_is_told(cluster: Cluster) -> None:
    cluster.tool("epilog", "3")
    try:
        job = cluster.submit("#!/bin/sh\nexit 0\n", "--nodelist=n1")
        cluster.wait_for(lambda: cluster.job(job)["JobState"] == "COMPLETING", 20, "the Epilog to begin")
        began = time.monotonic()
        cluster.wait_for_state(job, "COMPLETED")
        assert time.monotonic() - began > 2.0
    finally:
        cluster.tool("epilog", "0")


@apart_only
def test_two_clusters_whose_nodes_have_the_same_names_do_not_meet(boot_cluster: Boot, cluster: Cluster) -> None:
    """Their jobs' cgroups lie beside each other below one folder for each name of a node."""
    job = cluster.submit(SLEEP_JOB, "-N1", "--nodelist=n1")
    cluster.wait_for_state(job, "RUNNING")
    with boot_cluster(nodes=1) as other:
        second = other.submit(SLEEP_JOB, "-N1", "--nodelist=n1")
        other.wait_for_state(second, "RUNNING")
        assert second != job and other.answer(["srun", "--overlap", f"--jobid={second}", "hostname"]) == "n1"
        other.tool("node-crash", "n1")
        other.tool("node-up", "n1")
    assert cluster.answer(["srun", "--overlap", f"--jobid={job}", "hostname"]) == "n1"
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.cancel(job)
    cluster.wait_for_state(job, "CANCELLED")
    cluster.wait_for(lambda: cluster.node("n1")["State"] == "IDLE", 20, "n1 to be idle")


# ---- clusters of their own ----


@apart_only
def test_another_python_ends_it_as_well(boot_cluster: Boot) -> None:
    """Whoever boots it by an environment's and takes it down by the system's leaves no node behind."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    assert python is not None
    other = Path(tempfile.mkdtemp(dir=SHARED_DISK), "python-of-another-name")
    other.symlink_to(python)
    try:
        with boot_cluster(nodes=2) as own:
            done = subprocess.run(
                [other, TOOL, "down", "--dir", own.folder], capture_output=True, text=True, timeout=90, check=False
            )
            assert done.returncode == 0, done.stderr
            assert processes_naming(str(own.folder)) == {}
    finally:
        shutil.rmtree(other.parent)


@apart_only
def test_a_suspended_job_goes_with_its_cluster(boot_cluster: Boot) -> None:
    """SIGKILL alone does not reach what a cgroup's freezer holds."""
    mark = f"304.{os.getpid()}"
    with boot_cluster(nodes=1) as own:
        job = own.submit(f"#!/bin/sh\nsleep {mark}\n")
        own.wait_for(lambda: processes_naming(mark), 20, "the process to run")
        own.answer(["scontrol", "suspend", str(job)], user="root")
        own.wait_for_state(job, "SUSPENDED")
        own.tool("down")
        assert processes_naming(mark) == {}


def of_the_machine(spec: Spec, folder: Path) -> list[str]:
    """What of a cluster is the machine's: links, mounts, and cgroups of its jobs."""
    links = [link.name for link in Path("/sys/class/net").iterdir() if link.name.startswith(bridge(spec))]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    ours = spec.first_job // 1000
    cgroups = [str(path) for path in cgroups_of_nodes()
               if path.name.startswith("job_") and int(path.name.removeprefix("job_")) // 1000 == ours]  # fmt: skip
    return [*links, *mounts, *cgroups, *map(str, CGROUPS.glob(f"*/slurm_n*/kept-by-{spec.port_base}"))]


def cgroups_of_nodes() -> Iterator[Path]:
    """By os.walk, which passes over what goes meanwhile: other clusters' jobs end beside us. Path.glob raises then."""
    for name in ("freezer", "memory", "devices"):
        for root in CGROUPS.glob(f"{name}/slurm_n*"):
            for folder, folders, _ in os.walk(root):
                yield from (Path(folder, each) for each in folders)


@pytest.mark.flat
def test_down_leaves_nothing(boot_cluster: Boot) -> None:
    unmarked = f"302.{os.getpid()}"  # other tests of this kind may be running beside us
    stubborn = f"#!/bin/bash\ntrap '' TERM INT\nenv -i setsid sleep {unmarked} &\n(sleep 303 &)\ntouch here\nwait\n"
    with boot_cluster(nodes=2) as own:
        own.submit(stubborn, "-N2")
        own.wait_for((own.home / "here").exists, 20, "the job to run")
        spec = read_spec(own)
        if spec.apart:
            assert len(of_the_machine(spec, own.folder)) > 2, "or there is nothing to be found afterwards"
            own.tool("node-crash", "n2")  # slurmd of a node that lost its power has taken nothing away
        bystander = subprocess.Popen(["sleep", "305"], env={"SLURM_CONF": str(own.conf)})
        try:
            own.tool("down")
            left = {pid: words for pid, words in processes_naming(str(own.folder)).items() if pid != bystander.pid}
            assert (left, own.folder.exists(), bystander.poll()) == ({}, False, None)
            assert processes_naming(unmarked) == {} and of_the_machine(spec, own.folder) == []
        finally:
            bystander.kill()
            bystander.wait()


@pytest.mark.flat
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

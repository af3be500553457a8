"""What sites set: each on a small cluster of its own."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftslurm.ledger.journal import Journal
from ftslurm.model.record import TroubleSeen
from tests.live.conftest import job_user
from tests.live.sites import ALL_RUNGS, RUNGS, all_rungs, ended_well, on, rungs, shared_folder, site, went_through_all_rungs
from tests.live.stories import Plan, Stage, Story, terminal

if TYPE_CHECKING:
    from tests.live.conftest import Cluster

    Boot = Callable[..., AbstractContextManager[Cluster]]

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


def test_nodes_without_a_slurm_conf_of_other_host_names_that_show_nothing_of_others_and_forward_x11(
    boot_cluster: Boot, job_path: tuple[Path, ...]
) -> None:
    """Four settings that touch nothing of each other, on one cluster. If it fails, take them out one by one."""
    conf = (
        "PrivateData=accounts,events,jobs,nodes,partitions,reservations,usage,users",
        "PrologFlags=Contain,X11",
        "X11Parameters=home_xauthority",
    )
    with site(boot_cluster, job_path, *conf, options=["--configless", "--host-names=host"]) as stage:
        went_through_all_rungs(stage.tell(all_rungs(), "four-settings"))


def test_addresses_of_ipv6_alone(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    with site(boot_cluster, job_path, options=["--ipv6"]) as stage:
        went_through_all_rungs(stage.tell(all_rungs(), "ipv6"))


@contextmanager
def on_one_core() -> Iterator[None]:
    """Slurm's plugin mounts a namespace that it has just made, which the kernel allows only if that counts as younger than the
    own one; Linux 6.18 numbers namespaces in batches of each core's."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def test_a_tmp_and_shared_memory_of_each_job_s_own(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    """job_container/tmpfs: ranks, shims and agent of a job see the same, and on a node on loan that of the donor."""
    keep = 'ls /tmp /dev/shm >"$STORY/seen.$SLURM_PROCID.$FTSLURM_ATTEMPT"; touch /tmp/kept.$FTSLURM_ATTEMPT /dev/shm/kept.$FTSLURM_ATTEMPT\n'
    with shared_folder() as folder:
        containers = folder / "job_container.conf"
        containers.write_text("AutoBasePath=true\n" + "".join(f"NodeName=n{n} BasePath={folder}/n{n}\n" for n in range(1, 5)))
        conf = "JobContainerType=job_container/tmpfs"
        with on_one_core(), site(boot_cluster, job_path, conf, options=[f"--file={containers}"]) as stage:
            told = stage.tell(all_rungs(rank=keep + ALL_RUNGS), "tmpfs")
            went_through_all_rungs(told)
            seen = {
                (rank, attempt): (told.folder / f"seen.{rank}.{attempt}").read_text()
                for rank in (0, 1)
                for attempt in (1, 2, 3, 4)
            }
    assert "kept" not in seen[0, 1] and seen[0, 2].count("kept.1") == 2, "what a restart in place finds"
    assert seen[0, 3].count("kept.2") == 2 and "kept" not in seen[1, 3], "the donor's is another one"
    assert "kept" not in seen[0, 4] + seen[1, 4], "all of that ended with the job"


# Knocks at $DISPLAY as every X client does, with the cookie that xauth has for it: where it was, and what it was told.
X_CLIENT = """
import os, socket, struct, subprocess, sys
display = os.environ.get("DISPLAY", "")
told = "nobody there"
try:
    cookie = bytes.fromhex(subprocess.check_output(["xauth", "list", display], text=True).split()[-1])
    host, _, number = display.partition(":")
    with socket.create_connection((host, 6000 + int(number.partition(".")[0])), 10.0) as server:
        name = b"MIT-MAGIC-COOKIE-1"
        server.sendall(struct.pack("<cxHHHHxx18sxx", b"l", 11, 0, len(name), len(cookie), name) + cookie)
        told = server.recv(100)[8:].decode()
except (OSError, ValueError, IndexError) as error:
    told = type(error).__name__
with open(f"{os.environ['STORY']}/{sys.argv[1]}.{os.environ['SLURM_PROCID']}", "w") as file:
    file.write(f"{os.environ['SLURMD_NODENAME']} {display} {told}")
"""
COOKIE = bytes(range(16))


class XServer(socketserver.ThreadingTCPServer):
    """Of a login node, as far as a client gets without a screen: it says whether the cookie was right, and turns it away."""

    daemon_threads = True

    class RequestHandlerClass(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            order, major, _, name, cookie = struct.unpack("<cxHHHHxx", self.rfile.read(12))
            self.rfile.read(-(-name // 4) * 4)
            known = (order, major) == (b"l", 11) and self.rfile.read(cookie) == COOKIE
            said = b"the cookie is right " if known else b"the cookie is wrong "
            self.wfile.write(struct.pack("<BBHHH", 0, len(said), 11, 0, len(said) // 4) + said)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.RequestHandlerClass)

    @property
    def display(self) -> str:
        return f"localhost:{self.server_address[1] - 6000}.0"


@pytest.mark.skipif(
    shutil.which("xauth") is None and os.environ.get("FTSLURM_REQUIRE_SLURM") != "1",
    reason="xauth is not installed, which Slurm forwards X11 with",
)
def test_an_x11_display_reaches_the_ranks_as_with_srun(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    """After a restart in place as well. A node on loan has no forwarding: sbatch has no --x11 for a donor job."""
    rank = 'python3 "$STORY/x.py" "ftrun-$FTSLURM_ATTEMPT"\n' + ALL_RUNGS.replace("exit 7", "exit 0")
    script = 'srun python3 "$STORY/x.py" srun\n%RUN%\n'
    with (
        XServer() as server,
        site(boot_cluster, job_path, "PrologFlags=Contain,X11") as stage,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        plan = all_rungs(rank=rank, script=script, sbatch=("--x11", "--nodelist=n[1-2]"), files={"x.py": X_CLIENT})
        told = stage.prepare(plan, "x11")
        env = {"DISPLAY": server.display, "XAUTHORITY": f"{told.folder}/xauthority"}
        stage.cluster.answer(["xauth", "add", server.display, "MIT-MAGIC-COOKIE-1", COOKIE.hex()], env=env)
        told.env.update(env)
        done = told.salloc("sh", f"{told.folder}/script.sh")
        assert done.returncode == 0, done.stderr + told.describe()
        plain = seen(told, "srun")
        assert [words[0] for words in plain] == ["n1", "n2"] and {words[-1] for words in plain} == {"right"}, plain
        assert server.display not in {words[1] for words in plain}, "it is a node's own, forwarded"
        assert seen(told, "ftrun-1") == seen(told, "ftrun-2") == plain
        assert rungs(told) == ["in-place-restart", "node-replacement"]
        assert seen(told, "ftrun-3")[0] == plain[0]
        assert seen(told, "ftrun-3")[1][1:] == [server.display, "IndexError"], "salloc's own, for which no cookie is there"
        for name in ("srun", "ftrun"):
            argv = [name, "--x11", "--nodes=2", "--ntasks-per-node=1", "python3", f"{told.folder}/x.py", f"outside-{name}"]
            stage.cluster.answer(argv, env=told.env, cwd=told.folder, timeout=60.0)
        assert {words[-1] for name in ("srun", "ftrun") for words in seen(told, f"outside-{name}")} == {"right"}
        server.shutdown()


def seen(told: Story, when: str) -> list[list[str]]:
    return [(told.folder / f"{when}.{rank}").read_text().split() for rank in (0, 1)]


# What a node lets in: its slurmd, srun's range, and what it has asked for itself.
FIREWALL = """table inet site {{
    chain input {{
        type filter hook input priority 0; policy drop;
        iif lo accept
        ct state established,related accept
        meta l4proto {{ icmp, ipv6-icmp }} accept
        tcp dport {{ {slurmd}, 60000-60100 }} accept
    }}
}}
"""


@pytest.mark.skipif(
    shutil.which("nft", path="/usr/sbin:/usr/bin:/sbin") is None and os.environ.get("FTSLURM_REQUIRE_SLURM") != "1",
    reason="nft is not installed (nftables)",
)
def test_a_firewall_that_lets_srun_s_ports_through_and_no_others(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    with site(boot_cluster, job_path, "SrunPortRange=60000-60100") as stage:
        slurmd = stage.cluster.answer(["scontrol", "show", "config"]).partition("SlurmdPort")[2].split()[1]
        rules = stage.home.parent / "rules"
        rules.write_text(FIREWALL.format(slurmd=slurmd))
        for node in stage.cluster.nodes:
            on(stage, node, "nft", "--file", str(rules))
        told = stage.tell(all_rungs(), "firewall")
        went_through_all_rungs(told)


def second_network(stage: Stage, answers: bool) -> None:
    """10.99.0.N on each node, which its host name means from now on. answers: do the other nodes?"""
    hosts = stage.cluster.folder / "hosts"
    numbers = range(1, len(stage.cluster.nodes) + 1)
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"10.99.0.{number} n{number}\n" for number in numbers))
    for number in numbers:
        if not answers:
            on(stage, f"n{number}", "ip", "link", "add", "ib0", "type", "veth", "peer", "name", "nobody")
            on(stage, f"n{number}", "ip", "link", "set", "nobody", "up")
            on(stage, f"n{number}", "ip", "link", "set", "ib0", "up")
        on(stage, f"n{number}", "ip", "addr", "add", f"10.99.0.{number}/24", "dev", "eth0" if answers else "ib0")


def test_a_host_name_that_means_a_network_on_which_nobody_answers(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    with site(boot_cluster, job_path) as stage:
        second_network(stage, answers=False)
        went_through_all_rungs(stage.tell(all_rungs(), "networks"))


def test_a_network_of_choice(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    """Its own; Slurm's would do as well."""
    look = 'ss -Htn state established >"$STORY/ss.$SLURM_PROCID"; echo "$MASTER_ADDR" >"$STORY/master.$SLURM_PROCID"'
    with site(boot_cluster, job_path, nodes=2) as stage:
        second_network(stage, answers=True)
        plan = Plan(nodes=2, ft="--ft-rendezvous torch --ft-set nodes.address=10.99.0.0/24", rank=look)
        told = stage.tell(plan, "network")
        told.ended("COMPLETED")
        assert (told.folder / "master.1").read_text() == "10.99.0.1\n"
        peers = {line.split()[-1].rpartition(":")[0] for line in (told.folder / "ss.1").read_text().splitlines()}
        assert "10.99.0.1" in peers, "ftrun's, which listens there alone"


# A node that is lost for good in the first attempt.
ONE_IS_BROKEN = (
    "[ $FTSLURM_ATTEMPT = 1 ] || { together; exit 0; }; together; [ $SLURM_PROCID != 1 ] || fault 0.0 80E18402; exec sleep 300"
)


def test_limits_that_forbid_a_donor_are_told_and_the_next_rung_is_taken_at_once(
    boot_cluster: Boot, job_path: tuple[Path, ...]
) -> None:
    with site(boot_cluster, job_path, options=["--accounting"], nodes=6) as stage:
        for qos, limit in (
            ("submits", "MaxSubmitJobsPerUser=1"),
            ("runs", "MaxJobsPerUser=1"),
            ("nodes", "MaxTRESPerUser=node=2"),
        ):
            stage.cluster.answer(["sacctmgr", "--immediate", "add", "qos", qos, limit], user="root")
            stage.cluster.answer(["sacctmgr", "--immediate", "modify", "user", job_user(), "set", f"qos+={qos}"], user="root")
        plan = all_rungs(rank=ONE_IS_BROKEN)
        told = {qos: stage.tell(replace(plan, sbatch=(f"--qos={qos}",)), qos) for qos in ("submits", "runs")}
        words = {"submits": "a donor job was refused: ", "runs": "could not start beside this job: QOSMaxJobsPerUserLimit"}
        for qos, story in told.items():
            ended_well(story)
            assert rungs(story) == ["isolated-requeue"], story.describe()
            assert words[qos] in story.output() + story.ftslurm("history", str(story.id)), story.describe()
        last = stage.tell(replace(plan, sbatch=("--qos=nodes",)), "nodes")
        ended_well(last)
        assert rungs(last) == ["isolated-requeue"], last.describe()


@contextmanager
def booting(stage: Stage, node: str, asked: Path, takes_s: float) -> Iterator[None]:
    """Switches the node's slurmd on `takes_s` after ResumeProgram was called for it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            if asked.exists() and node in asked.read_text().split():
                if not over.wait(takes_s):
                    on(stage, node, "slurmd", "-f", str(stage.cluster.conf), "-N", node, "-b")  # -b: as one that has just booted
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_donor_s_node_that_has_to_boot_is_waited_for(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    """Power saving. A step would give up on it after a minute and less."""
    with shared_folder() as folder, site(boot_cluster, job_path, *power_saving(folder), nodes=3) as stage:
        with booting(stage, "n3", folder / "asked", 20.0):
            power_down(stage, "n3")
            told = stage.tell(all_rungs(rank=ONE_IS_BROKEN, sbatch=("--nodelist=n[1-2]",)), "power")
            told.ended("COMPLETED")
            assert rungs(told) == ["node-replacement"], told.describe()
            assert told.of_attempt(2)[1].node == "n3"


def power_saving(folder: Path) -> list[str]:
    """Lines of slurm.conf; whose boot Slurm has asked for stands in `asked`."""
    for name, line in (("resume", f'scontrol show hostnames "$1" >>{folder}/asked'), ("suspend", ":")):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    folder.chmod(0o777)
    return [
        f"ResumeProgram={folder}/resume",
        f"SuspendProgram={folder}/suspend",
        "SuspendTime=3600",
        "SuspendTimeout=1",
        "ResumeTimeout=120",
        "SlurmdTimeout=0",
    ]


def power_down(stage: Stage, *nodes: str) -> None:
    for node in nodes:
        stage.cluster.answer(["scontrol", "update", f"NodeName={node}", "State=POWER_DOWN"], user="root")
        stage.cluster.tool("node-down", node)
    for node in nodes:
        stage.cluster.wait_for(lambda at=node: "POWERED_DOWN" in stage.cluster.node(at)["State"], 60.0, f"{node} to be off")


BOOT_S = 70.0  # longer than srun or slurmd wait for anything
RESUME_S, PATIENCE_S = 30, 15
# Its node of the two that all share, its own settings, and the rungs that follow.
NODES_OFF = {
    "slow": ("n3", "", ["node-replacement"]),
    "never": ("n4", "--ft-min-nodes 1", ["shrink"]),
    "given-up": ("n5", f"--ft-min-nodes 1 --ft-set nodes.replacement_wait={PATIENCE_S}s", ["shrink"]),
}


@pytest.mark.long
def test_a_donor_s_node_that_boots_for_long_and_those_that_never_do(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    """Three jobs on the same two nodes, each with a partition whose third node is off. Slurm's patience ends one wait, ours another;
    then the job goes on with the node that is left, and no donor job stays."""
    parts = [
        f"PartitionName={name} Nodes=n[1-2],{node} {f'ResumeTimeout={RESUME_S}' if name == 'never' else ''}"
        for name, (node, _, _) in NODES_OFF.items()
    ]
    with shared_folder() as folder:
        conf = [*power_saving(folder), *parts]
        with site(boot_cluster, job_path, *conf, options=["--cpus=4"], nodes=5) as stage:
            with booting(stage, "n3", folder / "asked", BOOT_S):
                power_down(stage, "n3", "n4", "n5")
                told = {
                    name: stage.tell(
                        all_rungs(rank=ONE_IS_BROKEN, ft=ft, sbatch=(f"--partition={name}", "--nodelist=n[1-2]")), name
                    )
                    for name, (_, ft, _) in NODES_OFF.items()
                }
                waited = {name: donor_seen(each) for name, each in told.items()}
                for name, each in told.items():
                    limit_s = PATIENCE_S if name == "given-up" else 300
                    words = f"waiting up to {limit_s} s (nodes.replacement_wait) for donor job {waited[name]}"
                    each.wait_for(lambda of=each, words=words: words in of.output(), "it to say what it waits for")
                    node = NODES_OFF[name][0]
                    each.wait_for(
                        lambda of=each, job=waited[name], node=node: of.job(job)["NodeList"] == node, f"Slurm to choose {node}"
                    )
                slow = told["slow"]
                slow.wait_for(
                    lambda: f"for n3 of donor job {waited['slow']} to boot" in slow.output(), "it to say that the node boots"
                )
                assert f"n3 of donor job {waited['slow']} to boot" in slow.ftslurm("status", str(slow.id))
                for name, each in told.items():
                    each.ended("COMPLETED", 60.0 + BOOT_S)
                    assert rungs(each) == NODES_OFF[name][2], each.describe()
                    each.wait_for(lambda of=each: not donors(of), "its donor job to end")
                assert told["slow"].of_attempt(2)[1].node == "n3"
                assert f"n4 of donor job {waited['never']} did not come up: NODE_FAIL" in told["never"].output()
                assert f"n5 of donor job {waited['given-up']} still booted after {PATIENCE_S} s" in told["given-up"].output()
                took_s = {name: each.of_attempt(2)[0].time - each.of_attempt(1)[0].time for name, each in told.items()}
                assert took_s["slow"] >= BOOT_S and took_s["never"] >= RESUME_S, took_s


def donors(told: Story) -> str:
    return told.cluster.answer(["squeue", "--noheader", f"--name=ftslurm-donor-{told.id}", "--format=%A"])


def donor_seen(told: Story) -> int:
    return int(told.wait_for(lambda: donors(told), "a donor job", 60.0))


def test_in_the_interactive_step_of_salloc(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    rank = ALL_RUNGS.replace("exit 7", "exit 0")
    with site(boot_cluster, job_path, "LaunchParameters=use_interactive_step") as stage:
        told = stage.prepare(all_rungs(rank=rank), "interactive")
        argv = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--time=5"]
        (told.folder / "run.sh").write_text(told.plan.script_text())
        told.env["SHELL"] = "/bin/sh"
        with terminal(told, argv) as there:
            there.write(f"sh {told.folder}/run.sh; echo status $?, on $(hostname)\n")
            there.read_until("status 0, on n1", 90.0)
            there.write("exit\n")
            there.wait()
        assert rungs(told) == ["in-place-restart", "node-replacement"], told.describe()


# date(1), slurmd, scontrol and Python ask one of these for the time of day; waits until a time of day are moved back.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/time.h>
#include <time.h>
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
int clock_gettime(clockid_t id, struct timespec *at) {
    int status = REAL(clock_gettime)(id, at);
    if (!status && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += AHEAD_S;
    return status;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return at ? *at = now.tv_sec : now.tv_sec;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int status = REAL(gettimeofday)(at, zone);
    at->tv_sec += AHEAD_S;
    return status;
}
int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m, const struct timespec *restrict at) {
    struct timespec real = {at->tv_sec - AHEAD_S, at->tv_nsec};
    return ((__typeof__(&pthread_cond_timedwait))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"))(c, m, &real);
}
"""


@contextmanager
def wrong_clocks(boot_cluster: Boot, job_path: tuple[Path, ...], ahead_s: Mapping[str, int], **how: Any) -> Iterator[Stage]:
    """slurmd's, the batch script's, ftrun's and the ranks' on these nodes. how: as for `site`."""
    with shared_folder() as folder:
        cases = ""
        for node, seconds in ahead_s.items():
            clock = folder / f"{node}.so"
            command = ["cc", "-shared", "-fPIC", f"-DAHEAD_S=({seconds})", "-x", "c", "-", "-o", str(clock), "-ldl"]
            subprocess.run(command, input=CLOCK, text=True, check=True)
            cases += f"{node}) echo export LD_PRELOAD={clock} ;;\n"
        prolog = folder / "task_prolog"
        # srun takes the script's along to the other nodes.
        prolog.write_text(f'#!/bin/sh\ncase "$SLURMD_NODENAME" in\n{cases}*) echo unset LD_PRELOAD ;;\nesac\n')
        prolog.chmod(0o755)
        with site(boot_cluster, job_path, f"TaskProlog={prolog}", **how) as stage:
            for node in ahead_s:
                stage.cluster.tool("node-down", node)
                on(stage, node, "env", f"LD_PRELOAD={folder}/{node}.so", "slurmd", "-f", str(stage.cluster.conf), "-N", node)
            yield stage


needs_a_compiler = pytest.mark.skipif(
    shutil.which("cc") is None and os.environ.get("FTSLURM_REQUIRE_SLURM") != "1",
    reason="no C compiler to make a clock that is wrong with",
)


@needs_a_compiler
@pytest.mark.parametrize("ahead_s", [90, pytest.param(-90, marks=pytest.mark.long)])
def test_a_batch_node_whose_clock_is_wrong(boot_cluster: Boot, job_path: tuple[Path, ...], ahead_s: int) -> None:
    with wrong_clocks(boot_cluster, job_path, {"n1": ahead_s}) as stage:
        told = stage.tell(all_rungs(), "clock")
        went_through_all_rungs(told)
        first = told.of_attempt(1)
        assert 80 < abs(first[0].time - first[1].time) < 100, "the clocks differ"


# The rank on $FIRST tells why it fails; before it ends, the others follow with errors of their own.
ONE_AFTER_THE_OTHER = """
together
if [ "$SLURMD_NODENAME" = "$FIRST" ]; then
    echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.' >&2
    >"$STORY/first"
    until [ "$(ls "$STORY" | grep -c '^follows')" = 2 ]; do sleep 0.1; done
    exit 1
fi
await first; sleep 2
echo "FileNotFoundError: [Errno 2] No such file or directory: '/data/part-$SLURM_PROCID'" >&2
>"$STORY/follows.$SLURM_PROCID"
exec sleep 300
"""
# The batch node is bad: the next scheduling's controller is on another one, by whose clock the ledger goes on.
BATCH_NODE_IS_BROKEN = ONE_IS_BROKEN.replace("!= 1 ]", "!= 0 ]")


@pytest.mark.long
@needs_a_compiler
def test_nodes_whose_clocks_are_wrong_beside_a_batch_node_that_is_right(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    """n2 is ahead, n3 behind: each is the bad node of one job and on loan to the other, has the first error of one and later ones
    of others, and is the batch node after one that is right."""
    ahead_s, other = {"n2": 90, "n3": -90}, {"n2": "n3", "n3": "n2"}
    with wrong_clocks(boot_cluster, job_path, ahead_s, options=["--cpus=8"]) as stage:
        through = {
            node: stage.tell(
                all_rungs(sbatch=(f"--nodelist=n1,{node}",), ft=f"--ft-set nodes.donor_options=--nodelist={other[node]}"),
                f"bad-{node}",
            )
            for node in ahead_s
        }
        blamed = {
            node: stage.tell(
                Plan(
                    nodes=3,
                    rank=ONE_AFTER_THE_OTHER,
                    env={"FIRST": node},
                    ft="--ft-max-restarts 0",
                    sbatch=("--nodelist=n[1-3]",),
                ),
                f"first-{node}",
            )
            for node in ("n1", "n2", "n3")
        }
        moved = {
            node: stage.tell(
                Plan(nodes=2, rank=BATCH_NODE_IS_BROKEN, sbatch=(f"--nodelist=n1,{node}", f"--exclude={other[node]}")),
                f"to-{node}",
            )
            for node in ahead_s
        }
        for node, each in through.items():
            job = ended_well(each)
            assert rungs(each) == RUNGS and job["Restarts"] == "1", each.describe()
            starts = each.of_attempt(1)
            assert starts[1].time - starts[0].time == pytest.approx(ahead_s[node], abs=30.0), "the clocks differ"
            assert each.of_attempt(3)[1].node == other[node], "on loan"
            never_negative(each)
        for node, each in blamed.items():
            each.ended("FAILED")
            rank = int(node[1:]) - 1
            card = each.output().partition("failed: ")[2]
            assert card.startswith(f"rank {rank} on {node} ") and "CUDA out of memory" in card.partition("\n")[2][:200], (
                each.describe()
            )
            report = each.ftslurm("report", str(each.id))
            assert "CUDA out of memory" in report and "FileNotFoundError" not in report, report
            never_negative(each)
        for node, each in moved.items():
            assert ended_well(each)["BatchHost"] == node, each.describe()
            assert rungs(each) == ["isolated-requeue"], each.describe()
            never_negative(each)
        assert "fit no order" in moved["n3"].ftslurm("report", str(moved["n3"].id)), (
            "its ledger goes back by 90 s, and it says so"
        )


def never_negative(told: Story) -> None:
    """No duration is, and the parts of the time are the whole."""
    report = json.loads(told.ftslurm("report", str(told.id), "--format", "json"))
    wrong = [*negative(report, "report"), *negative(told.json("history", str(told.id)), "history")]
    assert not wrong, f"{wrong}\n{told.describe()}"
    assert sum(report["parts"].values()) == pytest.approx(report["whole_s"], abs=1.0), report


def negative(found: Any, where: str) -> Iterator[str]:
    """Durations below 0; -1 is not known."""
    if isinstance(found, dict):
        for name, value in found.items():
            yield from negative(value, f"{where}.{name}")
    elif isinstance(found, list):
        for number, value in enumerate(found):
            yield from negative(value, f"{where}[{number}]")
    elif isinstance(found, (int, float)) and found < 0 and found != -1:
        yield f"{where} = {found}"


@pytest.mark.parametrize("end", [pytest.param("stopped", marks=pytest.mark.long), "killed"])
def test_a_backup_slurmctld_takes_over_while_a_requeue_is_carried_out(
    boot_cluster: Boot, job_path: tuple[Path, ...], end: str
) -> None:
    rank = '[ "$FTSLURM_ATTEMPT" = 1 ] || exit 0; together; await go; exit 7'
    with site(boot_cluster, job_path, "SlurmctldTimeout=5", options=["--backup"], nodes=3) as stage:
        stage.cluster.tool("epilog", "3")
        told = stage.tell(all_rungs(rank=rank), f"backup-{end}")
        told.wait_started()
        told.allow("go")
        told.wait_for(lambda: told.job()["JobState"] != "RUNNING", "the requeue to begin")
        if end == "killed":
            os.kill(int(Path(stage.cluster.folder, "run/slurmctld.pid").read_text()), signal.SIGKILL)
        else:
            stage.cluster.tool("ctld-stop")
        told.wait_for(lambda: "backup) at backup is UP" in stage.cluster.run(["scontrol", "ping"]).stdout, "it to answer")
        told.wait_for(
            lambda: any(line.get("kind") == "CarriedOut" for line in ledger(told)), "the requeue to be written down", 120.0
        )
        assert [line["ok"] for line in ledger(told) if line["kind"] == "CarriedOut"] == [True]
        # Nothing of the last seconds is in the state that a killed one leaves: what becomes of the job then is Slurm's
        # (docs/slurm-facts.md, "When slurmctld is killed").
        if end == "stopped":
            # When the new slurmctld has seen all nodes again, and starts it, is Slurm's.
            again = ("COMPLETING", "PENDING", "RUNNING", "COMPLETED")
            told.wait_for(lambda: (job := told.job())["Restarts"] == "1" and job["JobState"] in again, "the requeue", 120.0)
            assert told.job()["Priority"] != "0", "released"


def ledger(told: Story) -> list[dict[str, Any]]:
    (path,) = told.folder.glob("state/jobs/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_home_that_cannot_be_written_costs_the_requeue_alone(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    script = 'unset FTSLURM_STATE_DIR\nexport HOME=$STORY/home\n%RUN%\necho "status $?"\nexport FTSLURM_STATE_DIR=$STORY/state\n%RUN%\n'
    with site(boot_cluster, job_path, nodes=2) as stage:
        told = stage.prepare(Plan(script=script), "home")
        home = told.folder / "home"
        home.mkdir()
        for node in stage.cluster.nodes:
            on(stage, node, "mount", "--bind", str(home), str(home))
            on(stage, node, "mount", "-o", "remount,bind,ro", str(home))
        told.submit()
        told.ended("COMPLETED")
        assert f"the state folder {home}/.ftslurm cannot be made: Read-only file system" in told.output()
        assert "the job cannot be requeued: set FTSLURM_STATE_DIR" in told.output() and "status 0" in told.output()
        assert not told.of_attempt(1)[0].step.endswith(".0"), "both ftruns have run their step"


# How long a mount believes what it has seen of names, missing names, sizes and times: mount options acdirmax and acregmax of
# nfs(5), and noac. The kernel's own cache of a file system in user space stands in for that of an NFS client.
CACHED = "attr_timeout=20,entry_timeout=20,negative_timeout=20"
NOT_CACHED = "attr_timeout=0,entry_timeout=0,negative_timeout=0,direct_io"


@pytest.mark.parametrize("options", [CACHED, pytest.param(NOT_CACHED, marks=pytest.mark.long)], ids=["cached", "noac"])
def test_a_state_folder_that_each_node_sees_through_a_mount_of_its_own(
    boot_cluster: Boot, job_path: tuple[Path, ...], options: str
) -> None:
    with site(boot_cluster, job_path) as stage:
        told = stage.prepare(all_rungs(env={"FTSLURM_STATE_DIR": "%STORY%/mount/state"}), "mount")
        server, mount = told.folder / "server", told.folder / "mount"
        for folder in (server, mount):
            folder.mkdir()
            os.chown(folder, told.folder.stat().st_uid, -1)
        for node in stage.cluster.nodes:
            on(stage, node, "bindfs", "-o", options, str(server), str(mount))
        told.submit()
        went_through_all_rungs(told)
        (path,) = server.glob("state/jobs/*.jsonl")
        kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
        assert (kinds.count("AttemptBegan"), kinds.count("RunBegan"), kinds[-1]) == (4, 2, "Finished")


WRITES = """
import sys
from pathlib import Path
from ftslurm.ledger.journal import Journal
from ftslurm.model import record as rec

who, path, records = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
journal = Journal(path)
while records:
    number = len(journal.read().records)
    records -= journal.append_next([rec.TroubleSeen(float(number), number, "crash", who, 0.0)])
"""


def test_two_mounts_of_one_state_folder_write_one_ledger() -> None:
    """Each record tells how many were there when it was decided on: the lock of one mount holds in the other, and what one mount
    remembers of the file's size is not believed. Without forwarded locks (nolock) this fails at once."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    each, options = 40, ("--enable-lock-forwarding", "--multithreaded", "-o", CACHED)
    with shared_folder() as folder:
        server, mounts = folder / "server", [folder / "a", folder / "b"]
        for made in (server, *mounts):
            made.mkdir()
        Journal(server / "7.jsonl").append([TroubleSeen(0.0, 0, "crash", "first", 0.0)])
        for mount in mounts:
            subprocess.run(("bindfs", *options, server, mount), check=True)
        try:
            words = [(sys.executable, "-c", WRITES, mount.name, str(mount / "7.jsonl"), str(each)) for mount in mounts]
            writers = [subprocess.Popen(line) for line in words]
            assert [writer.wait(120) for writer in writers] == [0, 0]
        finally:
            for mount in mounts:
                subprocess.run(("umount", "--lazy", mount), check=True)
        lines = [json.loads(line) for line in (server / "7.jsonl").read_text().splitlines()]
        assert [line["attempt"] for line in lines] == list(range(1 + 2 * each))
        assert {line["what"] for line in lines} == {"first", "a", "b"}


def test_what_was_adopted_into_the_job_is_not_ours_to_end(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    """pam_slurm_adopt: somebody has logged in to a node, to look."""
    with site(boot_cluster, job_path, nodes=2) as stage:
        rank = '[ "$FTSLURM_ATTEMPT" = 1 ] || { together; await go; exit 0; }; together; [ "$SLURM_PROCID" != 0 ] || fault 0.0 80C98008; exec sleep 300'
        told = stage.tell(Plan(nodes=2, rank=rank), "adopted")
        told.wait_started()
        uid = pwd.getpwnam(job_user()).pw_uid
        extern = f"/sys/fs/cgroup/*/slurm_n1/uid_{uid}/job_{told.id}/step_extern"
        adopt = f"for each in {extern}; do echo $$ >$each/cgroup.procs 2>/dev/null || echo $$ >$each/task_0/cgroup.procs; done"
        on(
            stage,
            "n1",
            "setsid",
            "--fork",
            "sh",
            "-c",
            f"{adopt}; exec setpriv --reuid={uid} --clear-groups sleep 7777 >/dev/null 2>&1",
        )
        there = ["sleep", "7777"]
        told.wait_started(2)
        assert running(there), "it has outlived the restart"
        told.allow("go")
        told.ended("COMPLETED")
        told.wait_for(lambda: not running(there), "Slurm to end it with the job")


def running(argv: list[str]) -> bool:
    wanted = "\0".join([*argv, ""]).encode()
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if read_quietly(path) == wanted]
    return bool(found)


def read_quietly(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_nodes_that_two_jobs_share(boot_cluster: Boot, job_path: tuple[Path, ...]) -> None:
    """OverSubscribe: the stop of one job's ranks leaves the other's alone, and so does the search for its nodes."""
    shared = "PartitionName=shared Nodes=n[1-4] OverSubscribe=FORCE:2 DefMemPerCPU=100"
    waits = '[ "$FTSLURM_ATTEMPT" = 1 ] && { together; await enough; }'
    with site(boot_cluster, job_path, shared, nodes=4) as stage:
        other = stage.tell(
            Plan(nodes=2, rank=waits, sbatch=("--partition=shared", "--nodelist=n[1-2]", "--cpus-per-task=2")), "other"
        )
        other.wait_started()
        told = stage.tell(all_rungs(sbatch=("--partition=shared", "--nodelist=n[1-2]", "--cpus-per-task=2")), "sharing")
        told.wait_started(3, 90.0)
        ended_well(told)
        assert rungs(told) == RUNGS, told.describe()
        other.allow("enough")
        other.ended("COMPLETED")
        assert other.counters() == [(1, 1, 1)]


# Not SUSPEND: what is suspended keeps its memory, of which a donor has all, so where memory is counted no other can come.
@pytest.mark.parametrize("mode", [pytest.param("CANCEL", marks=pytest.mark.long), "REQUEUE"])
def test_a_donor_that_is_preempted(boot_cluster: Boot, job_path: tuple[Path, ...], mode: str) -> None:
    conf = [
        "PreemptType=preempt/partition_prio",
        f"PreemptMode={mode}",
        "PartitionName=low Nodes=n[1-4] PriorityTier=1 Default=YES",
        "PartitionName=high Nodes=n[1-4] PriorityTier=9",
    ]
    rank = """
case $FTSLURM_ATTEMPT in
1) together; [ $SLURM_PROCID != 1 ] || fault 0.0 80E18402; exec sleep 300 ;;
esac
together; await enough
"""
    with site(boot_cluster, job_path, *conf) as stage:
        told = stage.tell(
            all_rungs(rank=rank, ft="--ft-set lease.time=30s", sbatch=("--partition=low", "--nodelist=n[1-2]")), mode
        )
        told.wait_started(2)
        lent = told.of_attempt(2)[1].node
        stage.cluster.submit(
            "#!/bin/sh\nexec sleep 15\n", "--partition=high", f"--nodelist={lent}", "--exclusive", "--mem=0", "--output=/dev/null"
        )
        told.wait_started(3, 120.0)
        told.allow("enough")
        ended_well(told)
        assert rungs(told)[0] == "node-replacement" and told.of_attempt(3)[0].counters[0] == 1, told.describe()
        assert lent not in told.json("status", str(told.id)).get("excluded", [])

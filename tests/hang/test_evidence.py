"""What a node reads of its ranks: recorded text of the kernel, of torch and of py-spy, and hostile bytes."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as quickly
from hypothesis import strategies as st

from ftslurm.model.collectives import ProcessState, Socket
from ftslurm.model.devices import Utilisation
from ftslurm.sdk import page as pages
from ftslurm.sdk import probe
from ftslurm.wrapper.agent import node_watch, rank, work
from ftslurm.wrapper.agent import processes as stacks
from ftslurm.wrapper.agent import rank as views
from ftslurm.wrapper.agent.node_watch import NodeWatch
from ftslurm.wrapper.agent.pages import Task
from ftslurm.wrapper.agent.processes import main_thread, mpi_call, parse_tcp, process_line, stack_inside
from ftslurm.wrapper.agent.programs import INJECTED, parse_groups, parse_probe
from ftslurm.wrapper.agent.rank import WatchedRank
from ftslurm.wrapper.agent.recorders import Recorded, ask_server, parse_recorder
from ftslurm.wrapper.shim.processes import descendants

# --- the kernel

ROW = "   1: 0200000A:9A6F 0300000A:DE00 01 00000060:00000000 01:00000123 00000003     0        0 777 2 0000000000000000 20 4 30 10 -1"


@pytest.mark.skipif(sys.byteorder != "little", reason="recorded on a little-endian machine")
def test_connections() -> None:
    assert parse_tcp(ROW, {"777"}) == Socket("10.0.0.2:39535", "10.0.0.3:56832", "retransmit", 96)
    assert parse_tcp(ROW, {"778"}) is None, "of another process"
    assert parse_tcp(ROW.replace(" 01 00000060", " 0A 00000060"), {"777"}) is None, "listening"
    once, probing = ROW.replace("00000003 ", "00000001 "), ROW.replace("01:00000123 00000003", "04:00000123 00000000")
    assert parse_tcp(once, {"777"}) == Socket("10.0.0.2:39535", "10.0.0.3:56832", "", 96)
    assert parse_tcp(probing, {"777"}) == Socket("10.0.0.2:39535", "10.0.0.3:56832", "zero-window", 96)
    unread = ROW.replace("00000060:00000000", "00000000:00000008").replace("01:00000123 00000003", "00:00000000 00000000")
    assert parse_tcp(unread, {"777"}) == Socket("10.0.0.2:39535", "10.0.0.3:56832", "unread", 8)
    mapped = ROW.replace("0200000A:", "0000000000000000FFFF00000200000A:").replace(
        "0300000A:", "0000000000000000FFFF00000300000A:"
    )
    assert parse_tcp(mapped, {"777"}) == parse_tcp(ROW, {"777"}), "the same address, whichever way"
    assert parse_tcp("  sl  local_address rem_address", {"777"}) is None


def test_connections_of_this_process() -> None:
    from ftslurm.wrapper.agent.processes import tcp_sockets

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            one.sendall(b"x" * 5)
            name = "{}:{}".format(*one.getsockname())
            found = {each.local: each for each in tcp_sockets(os.getpid())}
            assert found[name].trouble == ""
            assert found["{}:{}".format(*other.getsockname())].trouble == "unread"


def test_the_main_thread() -> None:
    assert main_thread(os.getpid())[0] in (ProcessState.RUNNING, ProcessState.SLEEPING)
    assert main_thread(2**22 + 1) == (ProcessState.EXITED, "")


STACK = """Process 42: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 43 (idle): "Thread-1"
    wait (torch/distributed/x.py:1)
Thread 42 (idle): "MainThread"
    {frame}
    train (train.py:9)
    <module> (train.py:20)
"""


@pytest.mark.parametrize(
    ("frame", "inside"),
    [
        ("wait (ftslurm/sdk/probe.py:400)", True),
        ("all_reduce (torch/distributed/distributed_c10d.py:3000)", True),
        ("_engine_run_backward (torch/autograd/graph.py:824)", True),
        ("wait (torch/cuda/streams.py:40)", True),
        ("read (dataset.py:12)", False),
        ("wait (subprocess.py:1264)", False),
        ("wait (threading.py:629)", False),
        ("write_data (torch/distributed/checkpoint/filesystem.py:700)", False),
    ],
)
def test_stacks(frame: str, inside: bool) -> None:
    dump = STACK.format(frame=frame)
    assert stack_inside(dump) is inside
    assert stack_inside(dump, 43) is True and stack_inside(dump, 4) is None, "another thread trains"
    assert stack_inside("Error: Permission denied") is None


IN_MPI = """\
Process 8175: /usr/bin/python m.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 8175 (active)
    sched_yield (libc.so.6)
    ompi_sync_wait_mt (libopen-pal.so.40.30.2)
    mca_pml_ob1_send (mca_pml_ob1.so)
    ompi_coll_base_allreduce_intra_ring (libmpi.so.40.30.4)
    PMPI_Allreduce (libmpi.so.40.30.4)
    Allreduce (mpi4py/MPI.openmpi.cpython-311-x86_64-linux-gnu.so)
    step (m.py:6)
    <module> (m.py:9)
Thread 8180 (idle)
    PMPI_Barrier (libmpi.so.40.30.4)
    Barrier (mpi4py/MPI.openmpi.cpython-311-x86_64-linux-gnu.so)
"""


def test_a_stack_in_a_call_of_mpi() -> None:
    assert mpi_call(IN_MPI) == "MPI_Allreduce"
    assert mpi_call(IN_MPI.replace("PMPI_Allreduce", "PMPI_File_write_all")) == "", "it writes"
    assert mpi_call(IN_MPI.replace("PMPI_Allreduce", "PMPI_Comm_accept")) == "", "it waits for somebody outside"
    petsc = IN_MPI.replace("    Allreduce (mpi4py", "    KSPSolve (libpetsc.so)\n    solve (petsc4py", 1)
    assert mpi_call(petsc) == "", "a library makes many calls before it comes back"
    assert mpi_call(IN_MPI.replace("    PMPI_Allreduce (libmpi.so.40.30.4)\n", "", 1)) == "", "of another thread"
    assert mpi_call("") == ""


# --- torch's recorder, as torch 2.13 with gloo wrote it; the NCCL entries as its sources do

ENTRY: dict[str, Any] = {
    "collective_seq_id": 2, "input_dtypes": ["Float"], "input_sizes": [[4]], "is_p2p": False, "op_id": 3, "pg_id": 0,
    "process_group": ["0", "default_pg"], "profiling_name": "gloo:broadcast", "record_id": 2, "retired": False,
    "state": "scheduled", "time_created_ns": 1795269374839395205,
}  # fmt: skip
STATUS = {"0": {"last_completed_collective": "1", "last_enqueued_collective": "3", "last_started_collective": "-1"}}


def dump(*entries: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "pg_status": status or STATUS,
        "pg_config": {},
        "entries": [{**ENTRY, **entry} for entry in entries],
        "version": "2.10",
    }


def test_the_recorder_counts_collectives_alone() -> None:
    found = parse_recorder(dump({"collective_seq_id": 1, "retired": True, "profiling_name": "gloo:all_reduce"}, {}))["0"]
    assert (found.entered, found.completed, found.started) == (2, 1, None), "3 in its status has a send in it"
    assert found.operation == "gloo:broadcast Float [[4]]"
    assert found.recent == ("gloo:all_reduce Float [[4]]", "gloo:broadcast Float [[4]]")
    done = parse_recorder(dump({"retired": True}))["0"]
    assert (done.entered, done.completed, done.operation, done.recent) == (2, 2, "", ())


def test_a_recorder_of_a_device() -> None:
    status = {"0": {"last_completed_collective": "6", "last_enqueued_collective": "8", "last_started_collective": "7"}}
    found = parse_recorder(dump(
        {"collective_seq_id": 6, "state": "completed"}, {"collective_seq_id": 7, "state": "started"}, {"collective_seq_id": 8},
        {"is_p2p": True, "collective_seq_id": 8, "profiling_name": "nccl:recv 1<-0"}, status=status,
    ))["0"]  # fmt: skip
    assert (found.entered, found.completed, found.started, found.peers) == (8, 6, 7, (("recv", 0),))


def test_names_of_groups() -> None:
    line = {"slot": 0, "key": 171, "name": "0", "ranks": "0-6:2"}
    bad = ("", "{", "[]", "7", json.dumps({**line, "ranks": "x"}), json.dumps({**line, "key": None}))
    found = parse_groups("\n".join([*bad, json.dumps(line)]))
    assert list(found) == [171] and found[171].members == (0, 2, 4, 6) and found[171].key == "0#000000ab"


# --- the server


def test_a_server_that_answers_and_ones_that_do_not(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            for answer in (b"HTTP/1.1 200 OK\r\n\r\n{}", b"HTTP/1.1 404 Not Found\r\n\r\n", None):
                peer, _ = server.accept()
                if answer is None:
                    threading.Event().wait(2)
                else:
                    peer.recv(1000)
                    peer.sendall(answer)
                peer.close()

        threading.Thread(target=serve, daemon=True).start()
        assert ask_server(path, "fr_trace_json", timeout_s=30) == b"{}"
        assert ask_server(path, "nothing", timeout_s=30) is None
        assert ask_server(path, "silent", timeout_s=0.2) is None
    assert ask_server(str(tmp_path / "none"), "ping") is None


# --- pages


def words(**more: int) -> bytes:
    """A page with a probe that has one group, and waits in its 6th collective."""
    page = [0] * 1024
    page[pages.MAGIC], page[pages.VERSION] = pages.MAGIC_NUMBER, pages.VERSION_NUMBER
    page[pages.PID], page[pages.START] = os.getpid(), pages.start_ticks(os.getpid()) or 0
    page[pages.NAMESPACE], page[pages.RANK] = pages.pid_namespace(), 3 + 1
    page[probe.PROBE_MAGIC], page[probe.LEVEL] = probe.MAGIC_NUMBER, 2
    page[probe.BEATS], page[probe.GROUPS_SEEN], page[probe.WAITS] = 9, 1, 5
    page[probe.IN], page[probe.IN_WHAT], page[probe.IN_NUMBER] = 77, probe.OPERATIONS.index("allreduce") | 1 << 8, 6
    at = probe.GROUPS
    page[at : at + 4] = [171 | 1 << 63, 6 | (5 + 1) << 32, 6 + 1, 6]
    for place in range(5):
        page[probe.RING + place] = 1 << 59 | (place + 1) << 48 | 1000 << 24 | 10
    for index, value in more.items():
        page[int(index[1:])] = value
    return struct.pack("=1024Q", *page)


def test_the_words_of_a_probe() -> None:
    state = parse_probe(words())
    assert state is not None
    assert (state.level, state.operation, state.in_slot, state.number, state.peer) == (2, "allreduce", 0, 6, None)
    assert state.groups[0][1:] == (171, 6, 5, 6, 6, 0)
    assert [(wait.slot, wait.number, wait.outside_us, wait.stay_us) for wait in state.ring[:1]] == [(0, 1, 2048, 20)]
    assert parse_probe(b"") is None and parse_probe(bytes(8192)) is None


@given(st.dictionaries(st.integers(257, 511), st.integers(0, 2**64 - 1), max_size=40))
def test_words_that_are_out_of_range(more: dict[int, int]) -> None:
    state = parse_probe(words(**{f"w{index}": value for index, value in more.items()}))
    assert state is not None and len(state.ring) <= 120


def test_a_page_as_a_view(tmp_path: Path) -> None:
    now = [100.0]
    path = tmp_path / "page.3"
    path.write_bytes(words())
    path.with_name("page.3.groups").write_text(json.dumps({"slot": 0, "id": 0, "key": 171, "name": "0", "ranks": "0-3"}) + "\n")
    node = NodeWatch("n7", clock=lambda: now[0])
    node.watch(Task(0, str(path)))
    (view,) = node.look()
    assert (view.rank, view.node, view.probed, view.exact) == (3, "n7", True, True), "the page knows the rank"
    (group,) = view.groups
    assert (group.key, group.members, group.entered, group.completed) == ("0#000000ab", (0, 1, 2, 3), 6, 5)
    assert view.inside is not None and (view.inside.group, view.inside.number) == (group.key, 6)
    assert view.main_fresh and not view.gil_held
    now[0] = 110.0
    (view,) = node.look()
    assert view.gil_held and not view.main_fresh and view.inside is not None and view.inside.for_s == 10.0
    assert node.progress_at == 100.0
    path.write_bytes(words(**{f"w{probe.PROGRESS}": 12}))
    node.look()
    assert node.progress_at == 110.0
    (examined,) = node.examine(budget_s=1.0).views
    assert examined.groups == view.groups
    path.write_bytes(words(**{f"w{pages.START}": 5}))
    assert node.look()[0].process is ProcessState.EXITED, "that pid is another process now"


def test_a_program_of_mpi_is_under_way_once_its_main_thread_has_come_by_often(tmp_path: Path) -> None:
    """Nothing of its communication is counted, so that nothing else tells a stall of one from a start."""
    now, path = [100.0], tmp_path / "page.3"
    none = {f"w{word}": 0 for word in (probe.GROUPS, probe.GROUPS_SEEN, probe.WAITS, probe.IN, probe.IN_WHAT)}
    node = NodeWatch("n7", clock=lambda: now[0])
    node.watch(Task(0, str(path)))

    def look(times: int, level: int, first: int) -> bool:
        for count in range(first, first + times):
            path.write_bytes(words(**{**none, f"w{probe.LEVEL}": level, f"w{probe.MAIN}": count}))
            now[0] += 1.0
            node.look()
        return node.begun

    assert not look(30, 1, 0), "MPI has not begun yet"
    assert not look(5, 1 | probe.MPI, 30), "as many as an import more may take"
    assert look(20, 1 | probe.MPI, 35)


def grouped(path: Path, *groups: tuple[int, str]) -> None:
    lines = (
        {"slot": slot, "id": number, "key": 171 + number, "name": name, "ranks": "0-3"}
        for number, (slot, name) in enumerate(groups)
    )
    path.with_name(path.name + ".groups").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_groups_that_the_page_has_no_room_for_come_from_the_recorder(tmp_path: Path) -> None:
    path = tmp_path / "page.3"
    path.write_bytes(words(**{f"w{probe.IN_WHAT}": probe.OPERATIONS.index("allreduce")}))
    grouped(path, (0, "0"), (-1, "far"), (-1, "unused"))
    node = NodeWatch("n7")
    node.watch(Task(0, str(path)))
    (view,) = node.look()
    assert view.hidden_groups == 2 and view.exact
    recorded = {"far": Recorded(9, 8, "gloo:all_reduce"), "0": Recorded(6, 6)}
    with patch.object(WatchedRank, "recorded", lambda each, left_s: recorded):
        (view,) = node.examine().views
    assert view.hidden_groups == 0 and not view.exact and view.inside is None, "the recorder tells"
    assert [(group.key, group.entered, group.completed) for group in view.groups] == [
        ("0#000000ab", 6, 6),
        ("far#000000ac", 9, 8),
    ]


REAL = str(Path(probe.__file__).parent / "inject")


@pytest.mark.parametrize(("start", "path", "why"), [
    ("-I", REAL, "-I"),
    ("", "/opt/mine", "set PYTHONPATH anew"),
    ("", f"{REAL}:/opt/mine", ""),
    ("", f"/opt{INJECTED}", "its container has no /opt/ftslurm: mount it there"),
    ("env", REAL, "dropped ftrun's variables"),
])  # fmt: skip
def test_why_there_is_no_probe(tmp_path: Path, start: str, path: str, why: str) -> None:
    library = tmp_path / "libtorch_python.so"
    library.write_bytes(b"x" * 4096)
    program = f"import mmap, sys; file = open({str(library)!r}, 'r+b'); kept = mmap.mmap(file.fileno(), 0); print('up', flush=True); sys.stdin.read()"
    env = {"PYTHONPATH": path, "FTSLURM_WATCH": "L1", "FTSLURM_PAGE": str(tmp_path / "3.1")}
    if start == "env":
        env = {}
    argv = [sys.executable, "-B", *([start] if start == "-I" else []), "-c", program]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        node = NodeWatch("n7")
        node.watch(Task(3, str(tmp_path / "3.1"), pid=child.pid))
        node.look()
        told = node.without_probe()
        assert (why in told[3]) if why else told == {}
        child.communicate()


def test_of_a_launcher_and_its_rank_the_page_of_the_rank_counts(tmp_path: Path) -> None:
    """Both were told the same RANK; the parent has no process group, and waits for none."""
    path, parent = tmp_path / "page.3", os.getppid()
    none = {
        f"w{probe.GROUPS_SEEN}": 0,
        f"w{probe.IN}": 0,
        f"w{pages.PID}": parent,
        f"w{pages.START}": pages.start_ticks(parent) or 0,
    }
    path.write_bytes(words(**none))
    node = NodeWatch("n7")
    node.watch(Task(0, str(path)))
    assert [(view.rank, view.inside) for view in node.look()] == [(3, None)], "as long as there is no other"
    (tmp_path / "page.3.1").write_bytes(words(**{f"w{pages.RANK}": 7 + 1}))
    assert [(view.rank, view.inside is None) for view in node.look()] == [(7, False)]


def test_pages_of_another_attempt_and_tasks_without_a_probe(tmp_path: Path) -> None:
    path = tmp_path / "page.0"
    path.write_bytes(words())
    node = NodeWatch("n7")
    node.watch(Task(0, str(path), pid=os.getpid(), attempt=2))
    (view,) = node.look()
    assert (view.rank, view.probed, view.groups) == (0, False, ()) and view.process is not ProcessState.EXITED
    assert NodeWatch("n7").look() == ()


def test_waits_come_in_windows(tmp_path: Path) -> None:
    path = tmp_path / "page.3"
    path.write_bytes(words())
    node = NodeWatch("n7")
    node.watch(Task(3, str(path)))
    assert node.waits() == (), "5 waits are too few"
    (waits,) = node.waits(at_least=5)
    assert (waits.rank, waits.count, waits.stays[0].first, waits.stays[0].stays_us) == (3, 5, 1, (20,) * 5)
    assert waits.outside_s == pytest.approx(0.002048)
    assert node.waits(at_least=1) == ()


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="this kernel does not tell of system calls")
def test_what_a_process_reads_from_is_told() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30.0
        while "file=pipe:[" not in (told := process_line(child.pid)):
            assert time.monotonic() < until, told
            time.sleep(0.02)
    finally:
        child.kill()
        child.communicate()


def test_work_of_a_rank_and_of_whatever_is_below_it_is_remembered(tmp_path: Path) -> None:
    """What it prints goes through its shim, and counts; so does the work of a child."""
    clock = [1000.0]
    node = NodeWatch("n1", clock=lambda: clock[0])
    echo = 'while read line; do echo "$line"; done'
    child = (
        "import subprocess, sys; print('ready', flush=True); sys.stdin.readline();"
        "subprocess.run([sys.executable, '-c', 'while True: pass'], timeout=60)"
    )
    with (
        subprocess.Popen(["sh", "-c", echo], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as prints,
        subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as works,
    ):
        assert works.stdin and works.stdout and prints.stdin and prints.stdout
        try:
            assert works.stdout.readline() == "ready\n"
            node.watch(Task(0, str(tmp_path / "0"), pid=prints.pid, shim=prints.pid))
            node.watch(Task(1, str(tmp_path / "1"), pid=works.pid))

            def idle() -> list[float | None]:
                clock[0] += 5.0
                return [view.idle_s for view in node.look()]

            node.look()
            until = time.monotonic() + 60
            while min(each or 0.0 for each in idle()) < 15.0:  # what they did to come up may show late
                assert time.monotonic() < until
                time.sleep(0.01)
            prints.stdin.write("a line\n")
            prints.stdin.flush()
            assert prints.stdout.readline() == "a line\n"
            printed, quiet = idle()
            assert printed == 0.0 and quiet and quiet >= 20.0
            works.stdin.write("go\n")
            works.stdin.flush()
            until = time.monotonic() + 60
            while idle()[1] != 0.0:
                assert time.monotonic() < until
                time.sleep(0.2)
        finally:
            prints.kill()
            for pid in (*descendants(works.pid), works.pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("program", "polls"),
    [
        ("while True: os.path.exists('/nowhere'); time.sleep(0.05)", True),
        ("while True: open(sys.executable, 'rb').read(1 << 20); time.sleep(0.05)", False),
        ("time.sleep(60)", False),
    ],
    ids=["a flag", "reads", "sleeps"],
)
def test_a_process_that_polls(tmp_path: Path, program: str, polls: bool) -> None:
    now = [1000.0]
    node = NodeWatch("n1", clock=lambda: now[0])
    begin = "import os, sys, time; print('ready', flush=True); "
    with subprocess.Popen([sys.executable, "-c", f"{begin}\n{program}"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            node.watch(Task(0, str(tmp_path / "0"), pid=process.pid))
            until = time.monotonic() + (30 if polls else 1.5)
            found = False
            while not found and time.monotonic() < until:
                began = time.monotonic()
                time.sleep(0.2)
                now[0] += 5 * (time.monotonic() - began)  # a clock that goes five times as fast
                (view,) = node.look()
                found = view.polls_s is not None
            assert found is polls
        finally:
            process.kill()


IN_A_THREAD = """
import os, threading, time
def train():
    print(threading.get_native_id(), flush=True)
    while True:
        os.path.exists("/nowhere")
        time.sleep(0.05)
threading.Thread(target=train).start()
"""


def test_a_thread_that_trains_and_polls(tmp_path: Path) -> None:
    """The main thread only waits for its end."""
    now, path = [1000.0], tmp_path / "page.3"
    node = NodeWatch("n1", clock=lambda: now[0])
    with subprocess.Popen([sys.executable, "-c", IN_A_THREAD], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            pid, thread = process.pid, int(process.stdout.readline())
            own = {f"w{pages.PID}": pid, f"w{pages.START}": pages.start_ticks(pid) or 0, f"w{probe.IN}": 0}

            def polls(trainer: int, limit_s: float) -> bool:
                node.watch(Task(0, str(path), pid=pid))
                until = time.monotonic() + limit_s
                while (began := time.monotonic()) < until:
                    beats = {f"w{probe.TRAINER}": trainer, f"w{probe.BEATS}": int(1000 * began)}  # else the lock is held
                    path.write_bytes(words(**own, **beats))
                    time.sleep(0.2)
                    now[0] += 5 * (time.monotonic() - began)
                    if node.look()[0].polls_s is not None:
                        return True
                return False

            assert thread != pid and polls(thread, 30.0)
            assert not polls(pid, 1.5), "the main thread does not"
            assert not polls(2**31, 1.5), "there is no such thread"
        finally:
            process.kill()


class Tree:
    """The processes of a rank, only data: what they have done so far, and what its shim has passed on."""

    def __init__(self) -> None:
        self.io: dict[tuple[int, float], int] = {(1, 0.0): 0}
        self.cpu_s, self.printed, self.sent = 0.0, 0, 0

    def work(self, sign: str, number: int) -> None:
        if sign == "cpu":
            self.cpu_s += 0.5
        elif sign == "io":
            self.io[1, 0.0] += 64 << 10
        elif sign == "io of a new process":
            self.io[100 + number, float(number)] = 64 << 10
        elif sign == "connections":
            self.sent += 64 << 10
        elif sign == "output":
            self.printed += 20


SIGNS = ("cpu", "io", "io of a new process", "connections", "output", "device")


@given(st.lists(st.tuples(st.sampled_from(SIGNS), st.integers(1, 20), st.booleans()), min_size=1, max_size=20))
@quickly(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_rank_that_does_work_is_never_idle_for_long(history: list[tuple[str, int, bool]]) -> None:
    """Whatever the sign, of whatever process below it, and whether processes end meanwhile. Pauses of 20 s at the most."""
    now, tree, percent = [1000.0], Tree(), [0.0]
    node = NodeWatch("n1", clock=lambda: now[0], use=lambda _: [Utilisation("0", "nvidia", percent[0], None, None)])
    with (
        patch.object(work, "usage", lambda _: (dict(tree.io), tree.cpu_s)), patch.object(work, "descendants", lambda _: []),
        patch.object(work, "main_thread", lambda _: (ProcessState.SLEEPING, "")),
        patch.object(views, "main_thread", lambda _: (ProcessState.SLEEPING, "")),
        patch.object(rank, "passed_on", lambda _: tree.printed), patch.object(stacks, "py_spy", lambda: None),
        patch.object(node_watch, "tcp_bytes", lambda: {7: (tree.sent, tree.sent // 40)}), patch.object(work, "inodes_of", lambda _: {7, 8}),
        patch.object(NodeWatch, "_with_kernel", lambda self, view, each, until: (view, "")),
    ):  # fmt: skip
        node.watch(Task(0, "/nowhere", pid=1))
        node.look()
        for number, (sign, pause_s, ends) in enumerate(history):
            for second in range(pause_s):
                now[0] += 1.0
                if second == pause_s - 1:
                    tree.work(sign, number)
                (view,) = node.look()
            if sign == "device":
                for percent[0] in (0.0, 60.0, 20.0):
                    node.examine()
                (view,) = node.look()
            if ends:
                tree.io = {key: done for key, done in tree.io.items() if key[0] == 1}
            assert view.idle_s is not None and view.idle_s <= 1.0, (sign, view.idle_s)
        for _ in range(60):
            now[0] += 1.0
            node.look()
        assert (view := node.look()[0]).idle_s and view.idle_s >= 50.0, "and who does none is idle"


def test_a_device_whose_use_stays_is_no_work() -> None:
    percent = [100.0]
    node = NodeWatch("n1", use=lambda _: [Utilisation("0", "nvidia", percent[0], None, None)])
    node.watch(Task(0, "/nowhere", pid=os.getpid()))
    assert [node.examine().views[0].device_busy for _ in range(4)] == [None, None, False, False], "a collective spins on it"
    percent[0] = 40.0
    assert node.examine().views[0].device_busy is True
    node.progress_at += 1.0
    assert node.examine().views[0].device_busy is None, "the next stall begins anew"
    assert NodeWatch("n1").examine().views == ()


def test_what_a_rank_used_before_it_last_got_on_says_nothing_of_the_rest_after_it(tmp_path: Path) -> None:
    now, tree, path = [1000.0], Tree(), tmp_path / "page.3"
    node = NodeWatch("n1", clock=lambda: now[0])
    with (
        patch.object(work, "usage", lambda _: (dict(tree.io), tree.cpu_s)),
        patch.object(work, "descendants", lambda _: []),
    ):
        node.watch(Task(3, str(path), pid=os.getpid()))
        for step in range(2):
            path.write_bytes(words(**{f"w{probe.PROGRESS}": step + 1}))
            node.look()
            for _ in range(3):
                now[0] += 1.0
                (view,) = node.look()
            assert view.cpu_percent == 0.0
            tree.cpu_s += 30.0  # it trains for a minute
            now[0] += 60.0

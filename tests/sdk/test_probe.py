"""The probe inside a rank: with a stand-in for torch that has only what is looked at, and with the real one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ftslurm.sdk import probe
from ftslurm.sdk.page import page_paths, parse_page
from ftslurm.wrapper.agent.programs import ProbeState, parse_groups, parse_probe
from ftslurm.wrapper.agent.recorders import ask_server
from tests.hang.torch_here import need_torch

ROOT = Path(probe.__file__).parent.parent.parent
INJECT = ROOT / "tests" / "hang" / "inject"

# Older torch has no recorder for gloo and no server; here is what all have.
STAND_IN = {
    "torch/__init__.py": "class Device:\n    type = 'cpu'\nclass Tensor:\n    device = Device()\n",
    "torch/_C/__init__.py": "",
    "torch/_C/_distributed_c10d.py": """
        class Work:
            error = None
            def wait(self):
                "Blocks."
                if self.error:
                    raise self.error
                return True
        class ProcessGroup:
            def __init__(self, name):
                self.group_name, self.group_desc, self.sequence = name, "stand-in", 0
            def _get_sequence_number_for_group(self):
                return self.sequence
            def allreduce(self, tensors, options=None):
                self.sequence += 1
                return Work()
            def send(self, tensors, dstRank, tag):
                self.sequence += 1
                return Work()
            def recv(self, tensors, srcRank, tag):
                self.sequence += 1
                return Work()
            def monitored_barrier(self):
                self.sequence += 3
    """,
    "torch/distributed/__init__.py": "from torch.distributed.distributed_c10d import *\n",
    "torch/distributed/distributed_c10d.py": """
        from torch._C._distributed_c10d import ProcessGroup
        class World:
            pg_map, pg_group_ranks = {}, {}
        _world = World()
        def new_group(name, ranks):
            group = ProcessGroup(name)
            _world.pg_map[group] = ("gloo", None)
            _world.pg_group_ranks[group] = {rank: local for local, rank in enumerate(ranks)}
            return group
        def init_process_group(backend="gloo", rank=-1):
            World.rank = rank
            return new_group("0", range(4))
        def get_rank():
            return World.rank
    """,
}


def run(tmp_path: Path, program: str, level: str = "L1", stand_in: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """A rank with this program. Of its page, `page` reads what the probe's last beat, at exit, has left there."""
    if not stand_in:
        need_torch()
    packages = tmp_path / "packages"
    if stand_in and not packages.exists():
        for name, text in STAND_IN.items():
            (packages / name).parent.mkdir(parents=True, exist_ok=True)
            (packages / name).write_text(textwrap.dedent(text))
    own = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "RANK": "1", "FTSLURM_PAGE": str(tmp_path / "pages" / "page.1"),
        "FTSLURM_WATCH": level, "PYTHONPATH": f"{packages}:{INJECT}:{ROOT}" if stand_in else f"{INJECT}:{ROOT}",
    }  # fmt: skip
    argv = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    return subprocess.run(argv, env={**own, **env}, capture_output=True, text=True, timeout=180)


def page(tmp_path: Path, number: int = 0) -> ProbeState:
    path = Path(page_paths(str(tmp_path / "pages" / "page.1"))[number])
    state = parse_probe(path.read_bytes())
    assert state is not None
    return state


def fine(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# --- nothing happens unless it is asked for


@pytest.mark.parametrize(
    ("env", "program"),
    [
        ({"FTSLURM_WATCH": ""}, "import torch.distributed"),
        ({"FTSLURM_WATCH": "L0"}, "import torch.distributed"),
        ({"FTSLURM_PAGE": ""}, "import torch.distributed"),
        ({"RANK": ""}, "import torch.distributed"),
        ({}, "import json, subprocess"),
    ],
)
def test_nothing_happens(tmp_path: Path, env: dict[str, str], program: str) -> None:
    threads = "; import os; print(len(os.listdir('/proc/self/task')))"
    assert fine(run(tmp_path, program + threads, **env)) == "1\n"
    assert not (tmp_path / "pages").exists()


def test_a_page_that_cannot_be_had_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "pages").write_text("a file")
    assert fine(run(tmp_path, "import torch.distributed; print('goes on')")) == "goes on\n"


def test_a_program_of_which_the_parts_are_missing_goes_on(tmp_path: Path) -> None:
    program = """
        import sys, types
        for name in ("torch", "torch.distributed", "torch._C", "torch._C._distributed_c10d"):
            sys.modules[name] = types.ModuleType(name)
        from ftslurm.sdk import probe
        sys.modules[probe.MODULE] = types.ModuleType(probe.MODULE)
        print(probe.start())
    """
    assert fine(run(tmp_path, program)) == "False\n"


def test_it_loads_in_a_blink() -> None:
    """Every Python process of a rank does."""
    program = "import sys; from ftslurm.sdk import probe; print(sorted({'typing', 're', 'json', 'threading', 'ctypes'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_its_syntax_is_that_of_python_3_8() -> None:
    ast.parse(Path(probe.__file__).read_text(), feature_version=(3, 8))


# --- who the rank is


def test_the_first_process_with_torch_is_the_rank_and_its_children_are_not(tmp_path: Path) -> None:
    program = """
        import os, subprocess, sys
        child = "import torch.distributed; from ftslurm.sdk import probe; print(probe._probe)"
        import torch.distributed
        print(subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True).stdout.strip())
        sys.stdout.flush()
        if os.fork() == 0:
            from ftslurm.sdk import probe
            print(probe._words, flush=True)
            os._exit(0)
        os.wait()
    """
    assert fine(run(tmp_path, program)) == "None\nNone\n"
    assert len(page_paths(str(tmp_path / "pages" / "page.1"))) == 1


def test_ranks_of_a_launcher_have_pages_of_their_own(tmp_path: Path) -> None:
    """torchrun has no RANK; what it starts has. Its own number is that of the task."""
    program = """
        import os, subprocess, sys, torch.distributed
        child = "import torch.distributed, sys; print('up', flush=True); sys.stdin.read()"
        ranks = []
        for rank in (4, 5):
            env = {**os.environ, "RANK": str(rank)}
            ranks.append(subprocess.Popen([sys.executable, "-c", child], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            ranks[-1].stdout.readline()
        for each in ranks:
            each.communicate()
    """
    fine(run(tmp_path, program, RANK="", SLURM_PROCID="2"))
    found = [parse_page(Path(path).read_bytes()) for path in page_paths(str(tmp_path / "pages" / "page.1"))]
    assert [each.rank if each else None for each in found] == [2, 4, 5]


RANKS = """
import os, sys, torch.distributed
from torch.distributed.distributed_c10d import init_process_group
def train(rank):
    init_process_group("gloo", rank=rank).allreduce([]).wait()
    from ftslurm.sdk import probe
    print(rank, probe._words is not None, flush=True)
"""


def test_a_thread_that_trains_says_which_it_is(tmp_path: Path) -> None:
    """Before it waits for the first time, by having made the process group."""
    program = (
        RANKS + "import threading\ndef own(): train(1); print(threading.get_native_id())\nthreading.Thread(target=own).start()"
    )
    assert fine(run(tmp_path, program)) == f"1 True\n{page(tmp_path).trainer}\n"


def test_a_rank_that_replaces_itself_by_exec_keeps_its_probe(tmp_path: Path) -> None:
    program = (
        RANKS
        + """
if "AGAIN" not in os.environ:
    os.execve(sys.executable, sys.orig_argv, {**os.environ, "AGAIN": "1"})
train(1)
"""
    )
    assert fine(run(tmp_path, program)) == "1 True\n"
    assert len(page_paths(str(tmp_path / "pages" / "page.1"))) == 1 and page(tmp_path).groups_seen == 1


@pytest.mark.parametrize("start", ["fork", "subprocess"])
def test_a_child_that_makes_a_process_group_is_a_rank(tmp_path: Path, start: str) -> None:
    """torch.multiprocessing, `accelerate launch`, torchrun below --ft-rendezvous torch: the parent has the same RANK, or takes the page."""
    program = (
        RANKS
        + f"START = {start!r}"
        + """
import subprocess
if "CHILD" in os.environ:
    train(int(os.environ["CHILD"]))
else:
    for rank in (2, 3):
        if START == "fork":
            if not os.fork():
                train(rank)
                sys.exit()
            os.wait()
        else:
            subprocess.run([*sys.orig_argv], env={**os.environ, "CHILD": str(rank)}, check=True)
        sys.stdout.flush()
"""
    )
    assert fine(run(tmp_path, program)) == "2 True\n3 True\n"
    found = [parse_page(Path(path).read_bytes()) for path in page_paths(str(tmp_path / "pages" / "page.1"))]
    # The second finds the page of the first free again.
    assert [each.rank if each else None for each in found] == [1, 3] and page(tmp_path, 1).groups_seen == 1


def test_training_in_a_thread_is_seen(tmp_path: Path) -> None:
    program = (
        RANKS
        + """
import threading
def steps(count):
    for _ in range(count): world.allreduce([]).wait()
def in_a_thread(count):
    thread = threading.Thread(target=steps, args=(count,))
    thread.start()
    thread.join()
    return words[probe.WAITS]
world = init_process_group("gloo", rank=1)
from ftslurm.sdk import client, probe
words = client.page().words
steps(1)
print(in_a_thread(3), "of a thread beside the training")
steps(1)
print(in_a_thread(10), "when it goes on and on without the other")
"""
    )
    assert (
        fine(run(tmp_path, program, level="L2"))
        == "1 of a thread beside the training\n5 when it goes on and on without the other\n"
    )


# --- the words, with the stand-in; `beats()` and `main()` are the program's own page's


WORDS = """
import threading, time, torch.distributed
from ftslurm.sdk import client, probe
words = client.page().words
beats, main = lambda: words[probe.BEATS], lambda: words[probe.MAIN] & probe.LOW
def wait_for_beats(count):
    until = beats() + count
    while beats() < until: time.sleep(0.01)
"""


def test_it_lives_and_the_main_thread_comes_by(tmp_path: Path) -> None:
    fine(run(tmp_path, WORDS + "wait_for_beats(4)"))
    state = page(tmp_path)
    assert state.level == 1 and state.beats >= 4 and 3 <= state.main <= state.beats + 1 and not state.serves


def test_a_main_thread_that_is_inside_one_call_does_not_come_by(tmp_path: Path) -> None:
    program = (
        WORDS
        + """
lock = threading.Lock()
lock.acquire()
def watch():
    seen = -1
    while seen != main():
        seen = main()
        wait_for_beats(5)
    print("inside")
    lock.release()
threading.Thread(target=watch).start()
before = main()
lock.acquire()
while main() < before + 5: time.sleep(0.01)
print("comes by again")
"""
    )
    assert fine(run(tmp_path, program)) == "inside\ncomes by again\n"


def test_groups_and_their_numbers_without_a_recorder(tmp_path: Path) -> None:
    program = """
        from torch.distributed.distributed_c10d import new_group
        world, pair = new_group("0", range(4)), new_group("7", [1, 3])
        for _ in range(5): world.allreduce([])
        pair.allreduce([])
    """
    fine(run(tmp_path, program))
    state = page(tmp_path)
    assert [(group.entered, group.recorded) for group in state.groups] == [(5, None), (1, None)] and state.groups_seen == 2
    names = parse_groups((tmp_path / "pages" / "page.1.groups").read_text())
    assert [(names[group.key].name, names[group.key].members) for group in state.groups] == [("0", (0, 1, 2, 3)), ("7", (1, 3))]


def test_a_group_that_is_destroyed_leaves_its_slot(tmp_path: Path) -> None:
    program = """
        from torch.distributed.distributed_c10d import new_group, _world
        import time
        for number in range(40):
            group = new_group(str(number), [0, 1])
            group.allreduce([])
            if number == 0: time.sleep(0.25)
            if number < 39:
                del _world.pg_map[group], _world.pg_group_ranks[group]
        time.sleep(0.25)
    """
    fine(run(tmp_path, program, level="L2"))
    state = page(tmp_path)
    assert len(state.groups) == 1 and state.groups_seen == 40 and state.groups[0].issued == 1


def test_a_group_that_is_destroyed_but_held_leaves_its_slot_too(tmp_path: Path) -> None:
    """DDP keeps its group beyond destroy_process_group, and nobody counts for it any more."""
    program = (
        WORDS
        + """
from torch.distributed.distributed_c10d import new_group, _world
held, other = new_group("0", [0, 1]), new_group("1", [0, 1])
wait_for_beats(2)
del _world.pg_map[held]
wait_for_beats(2)
held.allreduce([])
print(sum(words[at] > 0 for at in range(probe.GROUPS, 384, 4)))
del _world.pg_map[other]
wait_for_beats(2)
print(bool(words[probe.LEVEL] & probe.LEFT), sum(words[at] > 0 for at in range(probe.GROUPS, 384, 4)))
again = new_group("2", [0, 1])
wait_for_beats(2)
print(bool(words[probe.LEVEL] & probe.LEFT))
"""
    )
    assert fine(run(tmp_path, program)) == "1\nTrue 1\nFalse\n"
    assert page(tmp_path).left, "the program is over"


def test_more_groups_than_slots(tmp_path: Path) -> None:
    program = """
        from torch.distributed.distributed_c10d import new_group
        groups = [new_group(str(number), [0, 1]) for number in range(30)]
        for group in groups: group.allreduce([]).wait()
    """
    fine(run(tmp_path, program, level="L2"))
    state = page(tmp_path)
    assert len(state.groups) == 24 and state.groups_seen == 30 and state.waits == 30 and state.progress >= 30


def test_exact_words_inside_and_outside(tmp_path: Path) -> None:
    program = """
        from torch.distributed.distributed_c10d import new_group
        from torch._C._distributed_c10d import Work
        from ftslurm.sdk import client
        world, words = new_group("0", range(4)), client.page().words
        inside = Work.wait._ftslurm
        def look(self):
            print(bool(words[272]), words[273] & 255, words[273] >> 8 & 255, words[273] >> 16, words[274], words[275])
        import ftslurm.sdk.probe as probe
        Work.wait = probe._waiting(look)
        first, second = world.allreduce([]), world.allreduce([])
        second.wait(); first.wait(); world.send([], 2, 0).wait()
        print(bool(words[272]), words[277])
    """
    allreduce, send = probe.OPERATIONS.index("allreduce"), probe.OPERATIONS.index("send")
    expected = [f"True {allreduce} 1 0 2 0", f"True {allreduce} 1 0 1 0", f"True {send} 1 1 0 3", "False 3"]
    assert fine(run(tmp_path, program, level="L2")).splitlines() == expected


def test_a_wait_that_fails_is_over(tmp_path: Path) -> None:
    program = """
        from torch.distributed.distributed_c10d import new_group
        world = new_group("0", range(4))
        world.allreduce([]).wait()
        work = world.allreduce([])
        work.error = RuntimeError("connection closed by peer")
        work.wait()
    """
    done = run(tmp_path, program, level="L2")
    assert done.returncode == 1 and "connection closed by peer" in done.stderr
    state = page(tmp_path)
    assert state.in_ns == 0 and (state.operation, state.number) == ("allreduce", 2)


def test_point_to_point_on_the_host_is_seen_at_l1_too(tmp_path: Path) -> None:
    """Before, collectives cost nothing: their methods are torch's own. gloo counts sends in the same sequence."""
    program = """
        from torch.distributed.distributed_c10d import new_group, ProcessGroup
        from torch import Tensor
        world = new_group("0", range(4))
        for _ in range(3): world.allreduce([])
        print(hasattr(ProcessGroup.allreduce, "_ftslurm"), ProcessGroup.send.__name__)
        world.recv([Tensor()], 3, 0).wait(); world.monitored_barrier()
        world.allreduce([]).wait()
        print(hasattr(ProcessGroup.allreduce, "_ftslurm"))
    """
    assert fine(run(tmp_path, program)) == "False send\nTrue\n"
    state = page(tmp_path)
    assert state.level == 2
    (group,) = state.groups
    assert (group.entered, group.issued, group.directs) == (4, 4, 4)


def test_wrapped_methods_do_what_they_did(tmp_path: Path) -> None:
    program = """
        from torch.distributed.distributed_c10d import new_group, ProcessGroup
        import threading
        world = new_group("0", range(4))
        print(world.allreduce(tensors=[], options=1).wait(), type(world.allreduce([])).wait.__doc__)
        try:
            world.allreduce()
        except TypeError as error:
            print("TypeError")
        thread = threading.Thread(target=lambda: world.allreduce([]).wait()); thread.start(); thread.join()
        lonely = ProcessGroup("not known"); print(lonely.allreduce([]).wait())
    """
    assert fine(run(tmp_path, program, level="L2")).splitlines() == ["True Blocks.", "TypeError", "True"]
    assert page(tmp_path).waits == 2, "what another thread waits for is not what the program waits for"


# --- with torch


BEGIN = """
import os, re, subprocess, sys, time
import torch, torch.distributed as dist
from ftslurm.sdk import client, probe
from ftslurm.wrapper.agent.programs import parse_probe
from ftslurm.wrapper.agent.recorders import ask_server
SOCKET = os.environ["FTSLURM_PAGE"] + ".sock"
def state(): return parse_probe(open(os.environ["FTSLURM_PAGE"], "rb").read())
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(4)
while not state().serves: time.sleep(0.05)
"""


def test_torch_counts_serves_and_ends_as_it_would(tmp_path: Path) -> None:
    """The server answers another process while the interpreter lock is held in C."""
    ask = (
        "import sys, time; from ftslurm.wrapper.agent.programs import parse_probe\n"
        "from ftslurm.wrapper.agent.recorders import ask_server\n"
        "def beats(): return parse_probe(open(sys.argv[1], 'rb').read()).beats\n"
        "seen, told = -1, b''\n"
        "while not told or seen != beats():\n"
        "    seen = beats(); time.sleep(1); told = ask_server(sys.argv[1] + '.sock', 'fr_trace_json', 10)\n"
        "print(b'collective_seq_id' in told)"
    )
    program = (
        BEGIN
        + f"ASK = {ask!r}"
        + """
pair = dist.new_group([0])
for _ in range(7): dist.all_reduce(tensor)
dist.barrier(group=pair)
child = subprocess.Popen([sys.executable, "-c", ASK, os.environ["FTSLURM_PAGE"]], stdout=subprocess.PIPE)
import ctypes
libc = ctypes.PyDLL(None)
found = (ctypes.c_char * 256)()
libc.waitid(1, child.pid, found, 4 | 0x01000000)  # P_PID, WEXITED | WNOWAIT
names = [open(f"/proc/self/task/{thread}/comm").read().strip() for thread in os.listdir("/proc/self/task")]
print(child.communicate()[0].decode().strip(), {"ftslurm_probe", "pt_workerserver", "gloo_tcp_loop"} <= set(names), flush=True)
sys.exit(3)
"""
    )
    done = run(tmp_path, program, stand_in=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "True True\n", ""), "names that the agent knows (_SERVERS)"
    seen = page(tmp_path)
    assert seen.serves and seen.level == 1
    assert [(each.entered, each.recorded) for each in seen.groups] == [(7, 7), (1, 1)]
    assert all(each.completed is not None and each.completed <= each.entered for each in seen.groups)
    assert ask_server(str(tmp_path / "pages" / "page.1.sock"), "ping", 0.5) is None


OTHER = """
import datetime, sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]))
sys.stdin.readline()
dist.init_process_group("gloo", store=store, rank=1, world_size=2)
sys.stdin.readline()
store.set("key", "x")
sys.stdin.readline()
"""


def test_who_waits_in_a_store_or_to_make_a_group_says_so(tmp_path: Path) -> None:
    program = """
import os, subprocess, sys, threading, time, datetime
import torch, torch.distributed as dist
from ftslurm.wrapper.agent.programs import parse_probe
def state(): return parse_probe(open(os.environ["FTSLURM_PAGE"], "rb").read())
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
argv, env = [sys.executable, "-W", "ignore", "-c", os.environ["OTHER"], str(store.port)], {**os.environ, "FTSLURM_WATCH": "L0"}
other = subprocess.Popen(argv, stdin=subprocess.PIPE, env=env, text=True)
def late():
    for where in ("init_process_group", "store_wait"):
        while state().operation != where or not state().in_ns: time.sleep(0.02)
        other.stdin.write("go\\n")
        other.stdin.flush()
thread = threading.Thread(target=late)
thread.start()
dist.init_process_group("gloo", store=store, rank=0, world_size=2)
print(state().in_ns)
store.wait(["key"], datetime.timedelta(seconds=90))
print(state().in_ns, dist.init_process_group.__name__, dist.new_group.__module__, flush=True)
asked = []
def ask(times=3): return [store.check(["never"]) for _ in range(times)]
def wait():
    try: store.wait(["never"], datetime.timedelta(milliseconds=10))
    except Exception: pass
for act in (ask, ask, lambda: [store.add("count", 1) for _ in range(3)], lambda: [store.add("count", 0) for _ in range(3)], wait, wait):
    act()
    asked.append(state().asked)
beside = threading.Thread(target=ask)
beside.start()
while beside.is_alive(): time.sleep(0.01)
asked.append(state().asked)
trains = threading.Thread(target=lambda: [time.sleep(0.5), ask()])
trains.start()
trains.join()
print(*asked, state().asked, flush=True)
from types import SimpleNamespace
from ftslurm.sdk import probe
def called(to, *args, **kwargs): print(state().operation, state().peer, state().in_ns > 0, args, kwargs)
api = SimpleNamespace(rpc_sync=called, _to_worker_info=lambda to: SimpleNamespace(id=5))
probe._wrap_calls(api)
api.rpc_sync("w5", len, args=((),))
print(state().in_ns, api.rpc_sync.__name__, flush=True)
other.kill()
os._exit(0)
"""
    done = run(tmp_path, program, stand_in=False, OTHER=OTHER, GLOO_SOCKET_IFNAME="lo")
    *waited, asked, call, after = done.stdout.splitlines()
    assert waited == ["0", "0 init_process_group torch.distributed.distributed_c10d"], done.stderr
    assert asked == "2 5 5 7 7 8 8 11", "the same question with the same answer, of the thread that trains or that it waits for"
    assert (call, after) == ("rpc_sync 5 True (<built-in function len>,) {'args': ((),)}", "0 called")


def test_children_of_a_rank_with_a_server_end_as_they_would(tmp_path: Path) -> None:
    """The server's threads are not in a forked child: to shut it down there would wait for ever, to destroy it would abort.

    A child that leaves by sys.exit after a bare os.fork does not end well beside a process group of gloo, with or without
    us; those of multiprocessing, which loader workers are, do.
    """
    program = (
        BEGIN
        + """
import multiprocessing
from torch.utils.data import DataLoader
child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(5))
child.start(); child.join()
print(child.exitcode)
print(len(list(DataLoader(list(range(16)), batch_size=4, num_workers=2))))
dist.all_reduce(tensor)
print(ask_server(SOCKET, "ping", 60) is not None)
dist.destroy_process_group()
"""
    )
    assert fine(run(tmp_path, program, stand_in=False, level="L2")) == "5\n4\nTrue\n"

"""A training job that does on command what makes jobs hang. It knows nothing of ftslurm.

Every rank looks before each step for `<OUT>/order.<rank>`: `kind argument`. MODE: what a step is. LAUNCH: how the process that
trains comes to be: exec, child, fork, or one of launches.py; else at once.
"""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
if os.environ.get("LAUNCH") and "LAUNCHED" not in os.environ:  # after torch.distributed, as launchers do
    again = [sys.executable, "-W", "ignore", __file__]
    os.environ["LAUNCHED"] = "1"
    if os.environ["LAUNCH"] not in ("exec", "child", "fork"):
        import launches

        sys.exit(launches.BY_NAME[os.environ["LAUNCH"]](__file__))
    if os.environ["LAUNCH"] == "exec":
        os.execve(sys.executable, again, {**os.environ, "LAUNCHED": "1"})
    if os.environ["LAUNCH"] == "child" or os.fork():
        ended = (
            subprocess.run(again, env={**os.environ, "LAUNCHED": "1"}).returncode
            if os.environ["LAUNCH"] == "child"
            else os.wait()[1]
        )
        code = ended if os.environ["LAUNCH"] == "child" else os.waitstatus_to_exitcode(ended)
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code)

OUT, MODE = os.environ["OUT"], os.environ.get("MODE", "plain")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEP_S = float(os.environ.get("STEP_S", "0.015"))
STEPS = int(os.environ.get("STEPS", "1000000"))
SIZE, BUCKETS = int(os.environ.get("SIZE", "16384")), int(os.environ.get("BUCKETS", "3"))
WORKERS = int(os.environ.get("WORKERS", "0"))
COMPUTES = bool(os.environ.get("COMPUTES"))
extra_s = 0.0  # of every step, for a slow rank
uneven_s = 0.0  # at most, of every step
pause_s = 0.0  # in one step of forty
locks = (threading.Lock(), threading.Lock())


class Data(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.path.exists(f"{OUT}/loader.{RANK}"):
            time.sleep(1000)
        if os.path.exists(f"{OUT}/loader.lock.{RANK}"):  # as after a fork while another thread had it
            held = threading.Lock()
            held.acquire()
            held.acquire()
        if os.path.exists(f"{OUT}/loader.work.{RANK}"):
            compute(0.5)
        if os.path.exists(f"{OUT}/loader.slow.{RANK}"):
            time.sleep(0.2)
        return torch.zeros(64)


def order() -> tuple[str, str]:
    try:
        with open(f"{OUT}/order.{RANK}") as file:
            kind, _, argument = file.read().partition(" ")
    except OSError:
        return "", ""
    os.unlink(f"{OUT}/order.{RANK}")
    note(f"begin {kind}")
    return kind, argument


def note(what: str) -> None:
    with open(f"{OUT}/notes.{RANK}", "a") as file:
        file.write(f"{time.time():.3f} {what}\n")


def compute(seconds: float) -> None:
    until, value = time.monotonic() + seconds, torch.ones(64, 64)
    while time.monotonic() < until:
        value = (value @ value).clamp(-1, 1)


def write(seconds: float) -> None:
    until, piece = time.monotonic() + seconds, os.urandom(1 << 20)
    with open(f"{OUT}/checkpoint", "wb") as file:
        while time.monotonic() < until:
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            if file.tell() > 1 << 26:
                file.seek(0)
            time.sleep(0.05)
    os.unlink(f"{OUT}/checkpoint")


def children(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        subprocess.run([sys.executable, "-I", "-S", "-c", "sum(range(3_000_000))"], check=True)


def deadlock(seconds: float) -> None:
    """Two threads, two locks; the other thread lets go at last, so that the next order can be tried."""

    def other() -> None:
        with locks[1]:
            time.sleep(0.2)
            locks[0].acquire(timeout=seconds)

    locks[0].acquire()
    threading.Thread(target=other, daemon=True).start()
    time.sleep(0.1)
    locks[1].acquire()
    locks[1].release()
    locks[0].release()


def loop(seconds: float) -> None:
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        count += 1


def native(seconds: float) -> None:
    """A call of C that sleeps and keeps the interpreter lock."""
    ctypes.PyDLL(None).sleep(int(seconds))


def fifo(_: float) -> None:
    """A blocked open, as of a file on a server that does not answer; somebody writes to it at last."""
    path = f"{OUT}/fifo.{RANK}"
    os.mkfifo(path)
    with open(path) as file:
        file.read()


def spawn(_: float) -> None:
    """The parent of a vfork(2) whose child cannot start waits in state D, as for a dead file server."""
    path = f"{OUT}/fifo.{RANK}"
    os.mkfifo(path)
    pid = os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)])
    os.waitpid(pid, 0)


def slow(seconds: float) -> None:
    global extra_s
    extra_s = seconds


def uneven(seconds: float) -> None:
    global uneven_s
    uneven_s = seconds


def trickle(seconds: float) -> None:
    """A dataset on a file server that answers slowly."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with open(__file__, "rb") as file:
            file.read()
        time.sleep(0.2)


def outside(program: str) -> int:
    """A server that is no process of the job's; the port that it says."""
    argv = ["setsid", "--fork", sys.executable, "-I", "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        return int(server.stdout.readline())


def download(seconds: float, piece: int = 20_000) -> None:
    """From a server that sends a piece ten times a second."""
    serve = f"""
import socket, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    there, _ = server.accept()
    until = time.monotonic() + {seconds}
    while time.monotonic() < until:
        there.sendall(b"x" * {piece})
        time.sleep(0.1)
"""
    with socket.create_connection(("127.0.0.1", outside(serve))) as there:
        while there.recv(1 << 16):
            pass


def poll_flag(seconds: float) -> None:
    """Looks for a file that nobody writes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not os.path.exists(f"{OUT}/flag"):
        time.sleep(0.1)


def poll_lock(seconds: float) -> None:
    """Tries again and again to make a file that is there."""
    with open(f"{OUT}/lock.{RANK}", "w"):
        pass
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.close(os.open(f"{OUT}/lock.{RANK}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            time.sleep(0.02)


def poll_licence(seconds: float) -> None:
    """Asks a server over HTTP for a licence that it does not give."""
    serve = f"""
import http.server, os, threading
class Busy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503)
        self.end_headers()
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
threading.Timer({seconds + 5}, lambda: os._exit(0)).start()
print(server.server_port, flush=True)
server.serve_forever()
"""
    port, until = outside(serve), time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
        except OSError:
            time.sleep(0.1)


def full_pipe(seconds: float) -> None:
    """Writes more than anybody reads, as to a logger that has died; at last somebody does."""
    reads, writes = os.pipe()

    def read() -> None:
        time.sleep(seconds)
        while os.read(reads, 1 << 16):
            pass

    threading.Thread(target=read, daemon=True).start()
    os.write(writes, b"x" * (1 << 20))
    os.close(writes)


def file_lock(seconds: float) -> None:
    """Another process holds the lock of a file, as of a cache that was left locked."""
    hold = f"import fcntl, time; file = open({OUT + '/lock'!r}, 'w'); fcntl.flock(file, 2); print('held', flush=True); time.sleep({seconds})"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", hold], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with open(f"{OUT}/lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def hung_child(seconds: float) -> None:
    """A command that does not come back."""
    subprocess.run(["sleep", str(seconds)], check=True)


def in_bursts(seconds: float) -> None:
    """Work with rests between, as a validation on data that comes slowly."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        compute(0.3)
        time.sleep(0.7)


def collect(seconds: float) -> None:
    """From now on a pause of a third of a second in about every fortieth step, as of a garbage collection."""
    global pause_s
    pause_s = seconds


def save_beside(kind: str) -> None:
    """All save in a thread with a group of its own, and the training goes on for some steps until it needs the end of it."""

    def save() -> None:
        if kind.endswith("work"):
            write(6.0)
        elif kind.endswith("sleep"):
            time.sleep(20.0)
        dist.barrier(group=saves)

    saving = threading.Thread(target=save)
    saving.start()
    for _ in range(20):
        time.sleep(STEP_S)
        step("")
    note("begin waiting for the save")
    saving.join()


def polled(kind: str) -> None:
    """The others look again and again, into the store or for a file, whether one is ready."""
    store, key = dist.distributed_c10d._get_default_store(), f"polled.{number}"
    if not kind.endswith("-"):
        note("begin polling")
        (compute if kind.endswith("work") else time.sleep)(6.0 if kind.endswith("work") else 20.0)
        store.set(key, "x")
        with open(f"{OUT}/{key}", "w"):
            return
    note("begin polling")
    while not (os.path.exists(f"{OUT}/{key}") if kind.startswith("poll-file") else store.check([key])):
        time.sleep(0.05)


PAUSES = {
    "pipe": full_pipe, "flock": file_lock, "child": hung_child, "bursts": in_bursts, "collect": collect,
    "sleep": time.sleep, "deadlock": deadlock, "loop": loop, "native": native, "fifo": fifo, "spawn": spawn,
    "evaluate": compute, "checkpoint": write, "compile": children, "slow": slow,
    "uneven": uneven, "trickle": trickle, "download": download, "dead-server": lambda seconds: download(seconds, 0),
    "flag": poll_flag, "licence": poll_licence, "lock-file": poll_lock,
}  # fmt: skip


def held_by_a_thread(seconds: float) -> None:
    """A thread beside the one that trains sleeps in C and keeps the interpreter lock."""
    beside = threading.Thread(target=native, args=(seconds,))
    beside.start()
    beside.join()


def computing_in_c(seconds: float) -> None:
    """A thread computes in C and keeps the interpreter lock, as a tokenizer or a regular expression may."""

    def count() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pow(3, 3_000_000)

    beside = threading.Thread(target=count)
    beside.start()
    beside.join()


import fresh  # noqa: E402
import unseen  # noqa: E402
import ways  # noqa: E402

PAUSES |= {**fresh.AT_WORK, **fresh.STILL, **unseen.AT_WORK, **unseen.STILL}
PAUSES |= {"gil-sleep": held_by_a_thread, "gil-work": computing_in_c}


def alone(_: float) -> None:
    """Into the barrier of a group whose other member waits elsewhere for this one."""
    dist.barrier(group=pair)


def from_nobody(_: float) -> None:
    dist.recv(torch.zeros(4), (RANK + 1) % WORLD)


def in_vain(_: float) -> None:
    dist.distributed_c10d._get_default_store().wait(["nobody sets it"], datetime.timedelta(seconds=300))


PAUSES |= {"alone": alone, "nobody": from_nobody, "in-vain": in_vain}


def serve(kind: str) -> None:
    """What a rank does for another one that has asked it by RPC."""
    note(f"begin serving {kind}")
    if kind:
        (compute if kind == "work" else time.sleep)(6.0 if kind == "work" else 20.0)


def call(kind: str) -> None:
    """`call-BEFORE`: the next rank asks the victim for something, and waits for it."""
    if kind.startswith("call-from-"):
        _, _, victim, before = kind.split("-")
        note("begin calling")
        dist.rpc.rpc_sync(f"w{victim}", serve, args=(before,), timeout=0)
    else:
        note("begin calling")


def saved_beside(kind: str) -> None:
    """torch's own asynchronous checkpoint; the storage of one rank is slow, or dead."""
    from torch.distributed import checkpoint

    class Storage(checkpoint.FileSystemWriter):
        def write_data(self, plan: object, planner: object) -> object:
            if kind.endswith("work"):
                write(6.0)
            elif kind.endswith("sleep"):
                time.sleep(20.0)
            return super().write_data(plan, planner)

    state = {f"w{place}": bucket.clone() for place, bucket in enumerate(buckets)}
    saving = checkpoint.async_save(state, storage_writer=Storage(f"{OUT}/saved"), process_group=saves)
    for _ in range(20):
        time.sleep(STEP_S)
        step("")
    note("begin waiting for the save")
    saving.result()


def in_store(seconds: str) -> None:
    """One tells all others that it is ready."""
    store, key = dist.distributed_c10d._get_default_store(), f"met.{number}"
    store.set(key, "x") if seconds else store.wait([key])


MEETINGS = {
    "monitored": lambda _: dist.monitored_barrier(timeout=datetime.timedelta(seconds=300)),
    "store": in_store, "group": lambda _: dist.new_group(list(range(WORLD))),
}  # fmt: skip


def meet(kind: str) -> None:
    """`meet-PLACE-BEFORE`: come to a place where all wait for each other, after work, or after nothing at all."""
    _, place, before = kind.split("-")
    note(f"begin meeting {before}")
    if before:
        (compute if before == "work" else time.sleep)(6.0 if before == "work" else 20.0)
    MEETINGS[place](before)


def told_late(kind: str) -> None:
    """`told-BEFORE`: one tells all others what comes next, after work, or after nothing at all."""
    _, source, before = kind.split("-")
    note("begin telling")
    if int(source) == RANK:
        (compute if before == "work" else time.sleep)(6.0 if before == "work" else 20.0)
    dist.broadcast_object_list([{"step": number}], src=int(source))


def want_lock(kind: str) -> None:
    """`peer-hold`, `peer-want`: one wants the lock of a file that another one keeps while it goes on."""
    note("begin locking")
    until = time.monotonic() + 20
    if kind == "peer-hold":
        held = os.open(f"{OUT}/peer.lock", os.O_CREAT | os.O_WRONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        threading.Timer(20, os.close, (held,)).start()
    elif kind == "peer-want":
        time.sleep(1.0)
        with open(f"{OUT}/peer.lock", "w") as wanted:
            while time.monotonic() < until:
                try:
                    fcntl.flock(wanted, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(0.05)


def end_epoch(kind: str) -> None:
    """`epoch-over`: one has fewer batches than the others, and waits for them at the end of the epoch while they go on."""
    note("begin epoch")
    epoch = dist.new_group(list(range(WORLD)))
    if kind == "epoch-over":
        dist.barrier(group=epoch)


TOGETHER = {"told": told_late, "peer": want_lock, "epoch": end_epoch}


def step(kind: str) -> None:
    """The collectives of one step. kind: the order that changes them."""
    if own_step is not None:
        own_step(number)
        return
    if MODE == "ddp":
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
    elif MODE == "ring":  # every rank sends to the next
        received = dist.irecv(buckets[0], (RANK - 1) % WORLD)
        sent = dist.isend(buckets[1], (RANK + 1) % WORLD)
        sent.wait()
        received.wait()
        if number % 10 == 9:
            dist.all_reduce(buckets[2])
        return
    elif MODE == "batched":  # both ways round at once, as in ring attention
        left, right = (RANK - 1) % WORLD, (RANK + 1) % WORLD
        both = [dist.P2POp(dist.isend, buckets[0], right), dist.P2POp(dist.irecv, buckets[1], left)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        if number % 10 == 9:
            dist.all_reduce(buckets[2])
        return
    elif MODE == "tpdp":  # tensor and data parallel groups, and none with all ranks
        dist.all_reduce(buckets[0], group=tensor)
        dist.all_reduce(buckets[1], group=tensor)
        dist.all_reduce(buckets[2], group=data)
        return
    elif MODE == "fsdp" or MODE == "zero":
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        return
    elif MODE == "experts":  # tokens go to the experts of other ranks and back
        dist.all_to_all_single(exchanged[0], exchanged[1])
        dist.all_to_all_single(exchanged[1], exchanged[0])
        if number % 4 == 3:
            dist.all_reduce(buckets[0])
        return
    elif MODE == "objects":  # a controller tells all what to do
        told = [{"step": number, "what": "x" * 100}]
        dist.broadcast_object_list(told, src=0)
        found: list[object] = [None] * WORLD
        dist.all_gather_object(found, {"rank": RANK})
        return
    elif MODE == "stages":  # torch's own pipeline
        optimizer.zero_grad()
        schedule.step(
            *((torch.randn(8, 16),) if RANK == 0 else ()), **({"target": torch.zeros(8, 16)} if RANK == WORLD - 1 else {})
        )
        optimizer.step()
        return
    elif MODE == "rpc":
        dist.rpc.rpc_sync(f"w{(RANK + 1) % WORLD}", torch.add, args=(torch.ones(8), 1), timeout=0)
        if number % 5 == 4:
            dist.all_reduce(buckets[0])
        return
    elif MODE == "groups":  # more than a page has room for
        for place in range(3):
            dist.all_reduce(buckets[place], group=groups[(3 * number + place) % len(groups)])
        return
    elif MODE == "pipe":  # from stage to stage, then all together
        if RANK:
            dist.recv(buckets[0], RANK - 1)
        time.sleep(0.002)
        if RANK < WORLD - 1:
            dist.send(buckets[0], RANK + 1)
    if kind == "odd":
        dist.broadcast(buckets[0], 0)
        return
    if kind == "order" and pair is not None:
        dist.all_reduce(buckets[1], group=pair)
        dist.all_reduce(buckets[0])
        return
    for bucket in buckets:
        dist.all_reduce(bucket, async_op=True).wait()
    if pair is not None:
        dist.all_reduce(buckets[1], group=pair)


torch.set_num_threads(1)
note("begin init")
if os.environ.get("ABSENT", "").partition(" ")[0] == str(RANK):
    (compute if os.environ["ABSENT"].endswith("work") else time.sleep)(6.0 if os.environ["ABSENT"].endswith("work") else 1000)
dist.init_process_group("gloo")
pairs = [dist.new_group([low, low + 1]) for low in range(0, WORLD - 1, 2)]
pair = pairs[RANK // 2] if len(pairs) > RANK // 2 else None
buckets = [torch.zeros(SIZE) for _ in range(BUCKETS)]
if MODE == "ddp":
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if MODE == "tpdp":
    tensors, datas = [dist.new_group([0, 1]), dist.new_group([2, 3])], [dist.new_group([0, 2]), dist.new_group([1, 3])]
    tensor, data = tensors[RANK // 2], datas[RANK % 2]
if MODE == "groups":
    groups = [dist.new_group(list(range(WORLD))) for _ in range(40)]
if MODE == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,))
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if MODE == "zero":
    from torch.distributed.optim import ZeroRedundancyOptimizer

    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-3)
if MODE == "experts":
    exchanged = [torch.zeros(WORLD * 1024) for _ in range(2)]
if MODE == "stages":
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(torch.nn.Linear(16, 16), RANK, WORLD, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=1e-3)
if MODE == "rpc":
    import torch.distributed.rpc

    dist.rpc.init_rpc(f"w{RANK}", rank=RANK, world_size=WORLD)
own_step = ways.BY_NAME[MODE]() if MODE in ways.BY_NAME else None
if MODE in ("saves", "dcp"):
    saves = dist.new_group(list(range(WORLD)))
loader = iter(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=WORKERS)) if WORKERS else None
note(f"ready {os.getpid()}")
noted_at = 0.0
number = 0
ALL_AT_ONCE = ("meet-", "save-", "poll-", "call-", "dcp-", *(f"{name}-" for name in TOGETHER))
later = ("", 0)  # an order that all ranks carry out in the same step


def train() -> None:
    global noted_at, number, later
    for number in range(STEPS):
        if loader is not None:
            next(loader)
        (compute if COMPUTES else time.sleep)(STEP_S + extra_s + random.random() * uneven_s)
        if pause_s and random.random() < 1 / 40:
            time.sleep(pause_s)
        if time.monotonic() - noted_at > 1:
            noted_at = time.monotonic()
            note(f"goes on {number}")
        kind, argument = order()
        if kind in ("stay", "leave", "export", "upload") or kind.startswith(ALL_AT_ONCE):
            later, kind = (kind, int(argument)), ""
        if later[0] and number >= later[1]:
            kind, later = later[0], ("", 0)
        if kind.startswith("meet-"):
            meet(kind)
        if kind.startswith("save-"):
            save_beside(kind)
        if kind.startswith("poll-"):
            polled(kind)
        if kind.startswith("call-"):
            call(kind)
        if kind.startswith("dcp-"):
            saved_beside(kind)
        if kind.startswith(ALL_AT_ONCE) and (together := TOGETHER.get(kind.partition("-")[0])):
            together(kind)
        if kind in PAUSES:
            PAUSES[kind](float(argument or 1000))
            note(f"end {kind}")
        if kind == "stay":
            threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()
        if kind in ("stay", "leave", "export", "upload"):
            dist.barrier()
            dist.destroy_process_group()
            if kind == "export":
                note("begin export")
                (compute if RANK == 0 else time.sleep)(7.0)
            if kind == "upload":
                note("begin upload")
                (trickle if RANK == 0 else time.sleep)(7.0)
            break
        step(kind)


def train_or_end() -> None:
    try:
        train()
    except BaseException as error:
        note(f"failed: {error!r}")
        os._exit(1)


if MODE == "thread":
    training = threading.Thread(target=train_or_end)
    training.start()
    training.join()
else:
    train()
note("over")

"""A training job that does on command what makes jobs hang. It knows nothing of ftslurm.

Every rank looks before each step for `<OUT>/order.<rank>`: `kind argument`. MODE: what a step is.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import random
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

OUT, MODE = os.environ["OUT"], os.environ.get("MODE", "plain")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEP_S = float(os.environ.get("STEP_S", "0.015"))
STEPS = int(os.environ.get("STEPS", "1000000"))
SIZE, BUCKETS = int(os.environ.get("SIZE", "16384")), int(os.environ.get("BUCKETS", "3"))
WORKERS = int(os.environ.get("WORKERS", "0"))
COMPUTES = bool(os.environ.get("COMPUTES"))
extra_s = 0.0  # of every step, for a slow rank
uneven_s = 0.0  # at most, of every step
locks = (threading.Lock(), threading.Lock())


class Data(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.path.exists(f"{OUT}/loader.{RANK}"):
            time.sleep(1000)
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


def crash(_: float) -> None:
    raise RuntimeError("injected")


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


PAUSES = {
    "sleep": time.sleep, "deadlock": deadlock, "loop": loop, "native": native, "fifo": fifo, "spawn": spawn,
    "evaluate": compute, "checkpoint": write, "compile": children, "crash": crash, "slow": slow,
    "uneven": uneven, "trickle": trickle,
}  # fmt: skip


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
        (compute if before == "work" else time.sleep)(6.0 if before == "work" else 14.0)
    MEETINGS[place](before)


def step(kind: str) -> None:
    """The collectives of one step. kind: the order that changes them."""
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
loader = iter(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=WORKERS)) if WORKERS else None
note(f"ready {os.getpid()}")
noted_at = 0.0
later = ("", 0)  # an order that all ranks carry out in the same step
for number in range(STEPS):
    if loader is not None:
        next(loader)
    (compute if COMPUTES else time.sleep)(STEP_S + extra_s + random.random() * uneven_s)
    if time.monotonic() - noted_at > 1:
        noted_at = time.monotonic()
        note(f"goes on {number}")
    kind, argument = order()
    if kind in ("stay", "leave", "export") or kind.startswith("meet-"):
        later, kind = (kind, int(argument)), ""
    if later[0] and number >= later[1]:
        kind, later = later[0], ("", 0)
    if kind.startswith("meet-"):
        meet(kind)
    if kind in PAUSES:
        PAUSES[kind](float(argument or 1000))
        note(f"end {kind}")
    if kind == "exit":
        break
    if kind == "stay":
        threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()
    if kind in ("stay", "leave", "export"):
        dist.barrier()
        dist.destroy_process_group()
        if kind == "export":
            note("begin export")
            (compute if RANK == 0 else time.sleep)(7.0)
        break
    step(kind)
note("over")

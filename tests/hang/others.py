"""A job that trains without torch, and does on command what makes jobs hang. LIBRARY: mpi or jax. Orders and notes are job.py's."""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
OUT = os.environ["OUT"]

if os.environ["LIBRARY"] == "mpi":
    import numpy
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    RANK, WORLD = world.Get_rank(), world.Get_size()
    values, total = numpy.ones(1000), numpy.empty(1000)

    def step(number: int) -> None:
        world.Allreduce(values, total)
        world.sendrecv(number, (RANK + 1) % WORLD, source=(RANK - 1) % WORLD)
        world.bcast(number if RANK == 0 else None)

    def lost() -> None:
        world.recv(source=(RANK + 1) % WORLD, tag=7)
else:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", WORLD, RANK)
    import numpy
    from jax.experimental import multihost_utils

    def step(number: int) -> None:
        multihost_utils.process_allgather(numpy.ones(16))

    def lost() -> None:
        jax._src.distributed.global_state.client.wait_at_barrier(f"alone.{time.monotonic_ns()}", 20_000)


import fresh  # noqa: E402
import unseen  # noqa: E402

ACTS = {**fresh.AT_WORK, **fresh.STILL, **unseen.AT_WORK, **unseen.STILL, "sleep": time.sleep}


def note(what: str) -> None:
    with open(f"{OUT}/notes.{RANK}", "a") as file:
        file.write(f"{time.time():.3f} {what}\n")


def order() -> tuple[str, str]:
    try:
        with open(f"{OUT}/order.{RANK}") as file:
            kind, _, argument = file.read().partition(" ")
    except OSError:
        return "", ""
    os.unlink(f"{OUT}/order.{RANK}")
    note(f"begin {kind}")
    return kind, argument


note(f"ready {os.getpid()}")
noted_at = 0.0
for number in range(1_000_000):
    time.sleep(0.03)
    if time.monotonic() - noted_at > 1:
        noted_at = time.monotonic()
        note(f"goes on {number}")
    kind, argument = order()
    if kind == "lost":
        lost()
    if kind in ACTS:
        ACTS[kind](float(argument))
        note(f"end {kind}")
    step(number)

"""Ways in which the process that trains comes to be that need a library of their own. Each runs job.py, and gives its status."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection


def notebook(program: str) -> int:
    """In a cell of a notebook that is executed without a browser, as jupyter nbconvert does."""
    import nbformat
    from nbclient import NotebookClient

    cell = nbformat.v4.new_code_cell(f"import runpy; runpy.run_path({program!r}, run_name='__main__')")
    made = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(made, timeout=None, kernel_name="python3").execute()
    return 0


def ray(program: str) -> int:
    """In an actor of a cluster of Ray's own, whose driver is the process that Slurm has started."""
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR", object_store_memory=80 << 20)

    class Trainer:
        def train(self, environment: dict[str, str]) -> None:
            os.environ.update(environment)
            sys.path.insert(0, os.path.dirname(program))
            runpy.run_path(program, run_name="__main__")

    own = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OUT")}
    trainer = ray.remote(num_cpus=0)(Trainer).remote()
    ray.get(trainer.train.remote(own))
    return 0


def _run(program: str) -> None:
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")


def actors(program: str) -> int:
    """In an actor made by multiprocessing's spawn, whose driver waits for what it says at a pipe."""
    import multiprocessing

    makes = multiprocessing.get_context("spawn")
    here, there = makes.Pipe()
    actor = makes.Process(target=_acting, args=(there, program))
    del sys.modules["__main__"].__file__  # which spawn would run in the child as well
    actor.start()
    there.close()
    try:
        here.recv()
    except EOFError:
        pass
    actor.join()
    if (actor.exitcode or 0) < 0:
        os.kill(os.getpid(), -actor.exitcode)
    return actor.exitcode or 0


def _acting(pipe: Connection, program: str) -> None:
    _run(program)
    pipe.send("over")


def kernel(program: str) -> int:
    """In a thread that executes what a queue brings, as a kernel of a notebook does, while the main thread serves others."""
    import queue
    import threading

    cells: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: _run(cells.get())).start()
    cells.put(program)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()
    return 0


def coroutine(program: str) -> int:
    """In a thread that a coroutine awaits."""
    import asyncio

    asyncio.run(_awaited(program))
    return 0


async def _awaited(program: str) -> None:
    import asyncio

    await asyncio.to_thread(_run, program)


def script(program: str) -> int:
    """By a shell script that stays, and adds to PYTHONPATH as it should."""
    import subprocess

    line = f'export PYTHONPATH=/nonexistent:$PYTHONPATH; "{sys.executable}" -W ignore "{program}"; s=$?; exit $s'
    return subprocess.run(["sh", "-c", line]).returncode


BY_NAME: dict[str, Callable[[str], int]] = {
    "notebook": notebook, "ray": ray, "actors": actors, "kernel": kernel, "coroutine": coroutine, "script": script,
}  # fmt: skip

"""Ways in which the process that trains comes to be that need a library of their own. Each runs job.py, and gives its status."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable


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


BY_NAME: dict[str, Callable[[str], int]] = {"notebook": notebook, "ray": ray}

"""The shapes of scripts in shapes.txt, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SHAPES = Path(__file__).with_name("shapes.txt")

# What ./work is. It fails once in its folder, on the first rank, where a fault is wanted.
WORK = """#!/bin/sh
echo "rank $SLURM_PROCID of $SLURM_NTASKS, node $SLURM_NODEID, local $SLURM_LOCALID:" "$@"
if [ -n "$FAULT" ] && [ "${SLURM_PROCID:-0}" = 0 ] && mkdir failed 2>/dev/null; then exit 7; fi
echo "rank $SLURM_PROCID has worked"
"""


@dataclass(frozen=True)
class Shape:
    """answer: is a failed step an answer to it? options: of sbatch."""

    name: str
    source: str
    script: str
    nodes: int = 1
    tasks: int = 1
    answer: bool = False
    options: tuple[str, ...] = ()
    shell: str = "/bin/bash"

    @property
    def can_fail(self) -> bool:
        return "./work" in self.script

    def text(self, launcher: str) -> str:
        """The script, with `launcher` in place of srun: the whole migration."""
        return f"#!{self.shell}\n" + re.sub(r"\bsrun\b", launcher, self.script)


def _shape(block: str) -> Shape:
    head, _, script = block.partition("\n")
    name, source, *rest = head.split("; ")
    given = dict(word.split("=", 1) for word in rest)
    return Shape(
        name, source, script.strip("\n") + "\n", int(given.get("nodes", 1)), int(given.get("tasks", 1)),
        given.get("fault") == "answer", tuple(given.get("sbatch", "").split()), given.get("shell", "/bin/bash"),
    )  # fmt: skip


def all_shapes() -> dict[str, Shape]:
    """Name to shape."""
    blocks = SHAPES.read_text().split("\n=== ")[1:]
    return {shape.name: shape for shape in map(_shape, blocks)}

"""The first message of a shim on every connection."""

from __future__ import annotations

import os

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, socket
from ftslurm.wrapper.shim.protocol.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping


def count_in(env: Mapping[str, str], name: str) -> int:
    """A number that Slurm set; 0 if it did not."""
    text = env.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


def hello(env: Mapping[str, str], rank: int, total: int, launch: int, address: str, free_port: int) -> Message:
    """env: as Slurm gave it. total: ranks of the step. address: ours, as the controller reaches it."""
    return {
        "t": "hello",
        "rank": rank,
        "node": env.get("SLURMD_NODENAME") or socket.gethostname(),
        "slot": int(env.get("SLURM_NODEID", "0")),
        "local": int(env.get("SLURM_LOCALID", "0")),
        "expected": total,
        "step": f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}",
        "launch": launch,
        "address": address,
        "pid": os.getpid(),
        "free_port": free_port,
        "cpus": count_in(env, "SLURM_CPUS_ON_NODE"),
        "gpus": count_in(env, "SLURM_GPUS_ON_NODE"),
    }

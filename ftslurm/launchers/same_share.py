"""The options of a step that replaces another, so that its ranks get the same CPUs, memory and GPUs. Pure.

A step that Slurm still lists holds its memory, also where nothing is left of it. Source: srun(1); docs/slurm-facts.md, "Several
steps in one allocation", seen on 22.05, 24.11 and 26.05 with CR_Core_Memory:
- memory by CPU is counted against it in spite of --overlap ("Memory required by task is not available"); memory by node or by
  GPU is shared, as are CPUs, GPUs and other GRES. So it is asked for by node: what it came to on each.
- --mem=0 is granted too, but the new step's limit is all that the job has there.
- --exclusive of a step means --exact, and cannot stand beside --overlap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ftslurm.launchers.srun_options import has_flag, option_value, without
from ftslurm.model.layout import Share
from ftslurm.model.text import whole

# Of the environment: what an option of ours takes the place of.
REPLACED = ("SLURM_EXCLUSIVE",)
_UNITS_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


def same_share(options: Sequence[str], env: Mapping[str, str], shares: Sequence[Share], lent: bool = False) -> tuple[str, ...]:
    """`options`, such that the step has `shares` and runs beside others. env: of the batch script, which srun reads as well.

    shares: of the nodes of this srun, as many CPUs on each; empty where nobody knows: then memory by CPU is asked for as all that
    the job has there, since Slurm would refuse less. lent: it runs in a donor job, where our
    environment says nothing of memory and GPUs.
    """
    exact = has_flag(options, "exclusive") or "SLURM_EXCLUSIVE" in env
    kept = without(options, "exclusive", "overlap")
    kept = (*kept, "--exact") if exact and not has_flag(kept, "exact") else kept
    kept = _with_gpus(kept, env, shares, lent)
    if not shares and not lent and by_cpu(options, env):
        return (*without(kept, *_MEMORY), "--mem=0")
    memory_mb = _memory_mb(options, env, shares, lent)
    return (*without(kept, *_MEMORY), f"--mem={memory_mb}") if memory_mb else kept


def by_cpu(options: Sequence[str], env: Mapping[str, str]) -> bool:
    """Is the step's memory counted by CPU?"""
    return _memory(options, env)[0] == "mem-per-cpu"


def _memory(options: Sequence[str], env: Mapping[str, str]) -> tuple[str, int]:
    """Which of srun's options says how much, and MB; an option beats the environment. Source: srun(1)."""
    for name in _MEMORY:
        if has_flag(options, name):
            return name, megabytes(option_value(options, name) or "")
    variables = {"mem": "SLURM_MEM_PER_NODE", "mem-per-cpu": "SLURM_MEM_PER_CPU", "mem-per-gpu": "SLURM_MEM_PER_GPU"}
    return next(((name, megabytes(env[variable])) for name, variable in variables.items() if variable in env), ("", 0))


def _memory_mb(options: Sequence[str], env: Mapping[str, str], shares: Sequence[Share], lent: bool) -> int:
    """MB to request on each node; 0 if the options request memory already, or it is unknown."""
    name, each_mb = _memory(options, env)
    said_there = not lent or has_flag(options, name) if name else True
    if name == "mem-per-cpu":
        return each_mb * max((share.cpus for share in shares), default=0)
    if name == "mem-per-gpu" and not said_there:
        return each_mb * max((share.gpus for share in shares), default=0)
    return 0 if said_there else each_mb


def megabytes(text: str) -> int:
    """`2G`, `1500` or `1.5T` as srun takes it, in MB, rounded up; 0 for what it would not take."""
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", text.strip().upper(), re.ASCII)
    return -int(-int(found[1]) * _UNITS_MB[found[2]] // 1) if found else 0


def _with_gpus(options: tuple[str, ...], env: Mapping[str, str], shares: Sequence[Share], lent: bool) -> tuple[str, ...]:
    """`--gpus` counts for the whole step: of a part of it, or of a smaller one, as many as these nodes had."""
    said = option_value(options, "gpus") or ("" if lent else env.get("SLURM_GPUS", ""))
    kind, _, count = said.rpartition(":")
    now = sum(share.gpus for share in shares)
    if whole(count) is None or not now or not all(share.gpus for share in shares) or now == whole(count):
        return options
    return (*without(options, "gpus"), f"--gpus={kind + ':' if kind else ''}{now}")

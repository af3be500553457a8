"""Which ranks start in a container, and what ftrun adds to its mounts. Pure.

Only containers that Slurm itself enters before it starts a task count: pyxis (--container-image), whose options may also come
from PYXIS_* or from the job's own (`salloc --container-image`), and OCI bundles (--container). With `ftrun apptainer exec …`,
charliecloud and the like the shim stays outside, and nothing is added.
Source: args.c of NVIDIA/pyxis 0.24; spank(8) for _SLURM_SPANK_OPTION_*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import Component, has_flag, option_value, without

_PYXIS = ("container-image", "container-name")
_MOUNTS = "container-mounts"
# Pyxis reads the first for want of an option. Slurm hands the job's own options on in the others: salloc in the one, sbatch in
# the other (seen on 22.05).
_BY_PYXIS, _BY_JOB = "PYXIS_", ("_SLURM_SPANK_OPTION_pyxis_", "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_")
# What makes a step of ours, which shall see the node, start in a container.
CONTAINER_VARIABLES = (f"{_BY_PYXIS}CONTAINER", *_BY_JOB, "SLURM_CONTAINER")


class Runtime(Enum):
    """What enters the container in which a task starts."""

    NONE = "none"
    PYXIS = "pyxis"
    OCI = "Slurm's --container"


def runtime_of(options: Sequence[str], env: Mapping[str, str]) -> Runtime:
    if any(_value(name, options, env) for name in _PYXIS):
        return Runtime.PYXIS
    return Runtime.OCI if has_flag(options, "container") or env.get("SLURM_CONTAINER") else Runtime.NONE


def runtimes_of(components: Sequence[Component], env: Mapping[str, str]) -> frozenset[Runtime]:
    return frozenset(runtime_of(each.options, env) for each in components)


def with_mount(options: Sequence[str], env: Mapping[str, str], folder: str) -> tuple[str, ...]:
    """`options` of a step in pyxis, with `folder` mounted under its own name. Pyxis takes one list alone: ours has
    what the user's has. Raises: UsageError."""
    if set(folder) & set(":,+ \\"):
        raise UsageError(
            f"pyxis cannot mount {folder}", hint="set FTSLURM_STATE_DIR to a folder without `:`, `,`, `+` and blanks"
        )
    mounts = [*filter(None, [_value(_MOUNTS, options, env)]), f"{folder}:{folder}:ro"]
    return (*without(options, _MOUNTS), f"--{_MOUNTS}={','.join(mounts)}")


def _value(name: str, options: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The value that counts for pyxis of one of its options."""
    variable = name.replace("-", "_")
    job = (env.get(prefix + variable) for prefix in _BY_JOB)
    return option_value(options, name) or next(filter(None, job), None) or env.get(_BY_PYXIS + variable.upper())

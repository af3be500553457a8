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
from ftslurm.launchers.srun_options import Component, option_value, without

_PYXIS, _OCI = ("container-image", "container-name"), "container"
_MOUNTS = "container-mounts"
# Pyxis reads the first for want of an option. Slurm hands the job's own options on in the others: salloc in the one, sbatch in
# the other (seen on 22.05).
_BY_PYXIS, _BY_JOB = "PYXIS_", ("_SLURM_SPANK_OPTION_pyxis_", "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_")
_BY_SLURM = "SLURM_CONTAINER"
# What makes a step of ours, which shall see the node, start in a container.
CONTAINER_VARIABLES = (f"{_BY_PYXIS}CONTAINER", *_BY_JOB, _BY_SLURM)


class Runtime(Enum):
    """What enters the container in which a task starts."""

    NONE = "none"
    PYXIS = "pyxis"
    OCI = "Slurm's --container"


def runtime_of(options: Sequence[str], env: Mapping[str, str]) -> Runtime:
    if any(_value(name, options, env) for name in _PYXIS):
        return Runtime.PYXIS
    return Runtime.OCI if _value(_OCI, options, env) else Runtime.NONE


def origin_of(options: Sequence[str], env: Mapping[str, str]) -> str:
    """What names the container of these options, for people, as `container-image x (PYXIS_CONTAINER_IMAGE)`; empty for none."""
    said = [f"{name} {value} ({place})" for name in (*_PYXIS, _OCI) for place, value in _said(name, options, env)[:1]]
    return ", ".join(said)


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
    return next((value for _, value in _said(name, options, env)), None)


def _said(name: str, options: Sequence[str], env: Mapping[str, str]) -> list[tuple[str, str]]:
    """(place, value): who sets an option of pyxis or Slurm's own; the first one counts."""
    variable = name.replace("-", "_")
    variables = [_BY_SLURM] if name == _OCI else [*(each + variable for each in _BY_JOB), _BY_PYXIS + variable.upper()]
    places = {f"--{name}": option_value(options, name)} | {each: env.get(each) for each in variables}
    return [(place, value) for place, value in places.items() if value]

"""Which interpreter and folder start shims and agents on another node, or in a container, and which ranks start in one.

Only containers that Slurm itself enters before it starts a task count: pyxis (--container-image), whose options may also come
from PYXIS_* or from the job's own (`salloc --container-image`), and OCI bundles (--container). With `ftrun apptainer exec …`,
charliecloud and the like the shim stays outside, and nothing is added to its mounts.
Source: args.c of NVIDIA/pyxis 0.24; spank(8) for _SLURM_SPANK_OPTION_*.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

import ftslurm
from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import Component, option_value, without
from ftslurm.model.values import Value
from ftslurm.system.bundle import INTERPRETER, LIBRARIES, LOADER, PACKAGES, bundle_of

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


BUNDLE = "bundle"  # the setting `python`
_PRELOADED = ("LD_PRELOAD", "LD_AUDIT")
# The bundle's interpreter is started by /bin/sh, which each image has (an image without it does not start with srun either). What
# the image preloads is made for its own C library: set aside here, put back for the command (shim/loop.py). $0: the bundle.
STARTER = "; ".join((
    f'[ -x "$0/{INTERPRETER}" ] || {{ [ "${{SLURM_LOCALID:-0}}" != 0 ] || echo "ftslurm: ${{SLURMD_NODENAME:-this node}} has no'
    " $0, which ftrun mounts in containers, so no command was started: a container that runs already takes no mounts"
    ' (--container-name), start it by ftrun; or the node does not see the state folder (FTSLURM_STATE_DIR)" >&2; exit 71; }',
    *(f'if [ -n "${{{name}+x}}" ]; then export FTSLURM_{name}="${name}"; unset {name}; fi' for name in _PRELOADED),
    f'exec "$0/{LOADER}" --library-path "$0/{LIBRARIES}" "$0/{INTERPRETER}" "$@"',
))  # fmt: skip
# A step that is ended while its Python still loads goes as any command would, and prints no traceback among the ranks' words.
_QUIET = "import _signal as s; s.getsignal(2) is s.default_int_handler and s.signal(2, 0); "


class Python(Value):
    """interpreter: the words that start it, a path that is the same on every node. root: the folder that holds the package
    `ftslurm`."""

    interpreter: tuple[str, ...]
    root: str

    def shim_argv(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """-I -S: nothing of the user's environment is loaded, and the start costs half. Imported, not run as a script:
        of an import Python keeps the compiled form, which saves a quarter of the rest."""
        start = f"{_QUIET}import sys; sys.path.append({self.root + '/ftslurm/wrapper/shim'!r}); from _shim import main; main()"
        return (*self.interpreter, "-I", "-S", "-c", start, "--", *command)

    def module_argv(self, module: str, *arguments: str) -> tuple[str, ...]:
        """`python -m` without the current folder on the path, where the user's files could stand in for ours."""
        start = f"{_QUIET}import sys; sys.path.insert(0, {self.root!r}); from {module} import main; main()"
        return (*self.interpreter, "-I", "-c", start, *arguments)


def in_bundle(place: str) -> Python:
    """place: of the bundle, as the node or container sees it."""
    return Python(("/bin/sh", "-c", STARTER, place), f"{place}/{PACKAGES}")


def own_python(interpreter: str = "") -> Python:
    """What runs this process, or the interpreter given, with our own package."""
    root = Path(ftslurm.__file__).resolve().parent.parent
    bundle = bundle_of(root)
    return in_bundle(str(bundle)) if bundle else Python((interpreter or sys.executable,), str(root))

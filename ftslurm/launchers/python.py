"""Which interpreter and folder start shims and agents on another node, or in a container."""

from __future__ import annotations

import sys
from pathlib import Path

import ftslurm
from ftslurm.model.values import dataclass
from ftslurm.system.bundle import INTERPRETER, LIBRARIES, LOADER, PACKAGES, bundle_of

BUNDLE = "bundle"  # the setting `python`
_PRELOADED = ("LD_PRELOAD", "LD_AUDIT")
# The bundle's interpreter is started by /bin/sh, which each image has (an image without it does not start with srun either). What
# the image preloads is made for its own C library: set aside here, put back for the command (shim/main.py). $0: the bundle.
STARTER = "; ".join((
    f'[ -x "$0/{INTERPRETER}" ] || {{ [ "${{SLURM_LOCALID:-0}}" != 0 ] || echo "ftslurm: ${{SLURMD_NODENAME:-this node}} has no'
    " $0, which ftrun mounts in containers, so no command was started: a container that runs already takes no mounts"
    ' (--container-name), start it by ftrun; or the node does not see the state folder (FTSLURM_STATE_DIR)" >&2; exit 71; }',
    *(f'if [ -n "${{{name}+x}}" ]; then export FTSLURM_{name}="${name}"; unset {name}; fi' for name in _PRELOADED),
    f'exec "$0/{LOADER}" --library-path "$0/{LIBRARIES}" "$0/{INTERPRETER}" "$@"',
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Python:
    """interpreter: the words that start it, a path that is the same on every node. root: the folder that holds the package
    `ftslurm`."""

    interpreter: tuple[str, ...]
    root: str

    def shim_argv(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """-I -S: nothing of the user's environment is loaded, and the start costs half. Imported, not run as a script:
        of an import Python keeps the compiled form, which saves a quarter of the rest."""
        start = f"import sys; sys.path.append({self.root + '/ftslurm/wrapper/shim'!r}); from _shim import main; main()"
        return (*self.interpreter, "-I", "-S", "-c", start, "--", *command)

    def module_argv(self, module: str, *arguments: str) -> tuple[str, ...]:
        """`python -m` without the current folder on the path, where the user's files could stand in for ours."""
        start = f"import sys; sys.path.insert(0, {self.root!r}); from {module} import main; main()"
        return (*self.interpreter, "-I", "-c", start, *arguments)

    def agent_argv(self, poll_s: float) -> tuple[str, ...]:
        """poll_s: between two looks at the devices, seconds."""
        return self.module_argv("ftslurm.wrapper.agent.agent", f"{poll_s:g}")


def in_bundle(place: str) -> Python:
    """place: of the bundle, as the node or container sees it."""
    return Python(("/bin/sh", "-c", STARTER, place), f"{place}/{PACKAGES}")


def own_python(interpreter: str = "") -> Python:
    """What runs this process, or the interpreter given, with our own package."""
    root = Path(ftslurm.__file__).resolve().parent.parent
    bundle = bundle_of(root)
    return in_bundle(str(bundle)) if bundle else Python((interpreter or sys.executable,), str(root))

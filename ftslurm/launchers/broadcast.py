"""`--bcast`: the user's program goes to the nodes by sbcast. srun would copy what it starts, our interpreter."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from ftslurm.launchers.srun_options import Component, has_flag, option_value, without
from ftslurm.model.values import dataclass

_OPTIONS = ("bcast", "bcast-exclude", "compress", "send-libs")
# As srun reads them. Source: srun(1), INPUT ENVIRONMENT VARIABLES.
BCAST_VARIABLES = ("SLURM_BCAST", "SLURM_BCAST_EXCLUDE", "SLURM_COMPRESS", "SLURM_SEND_LIBS")
_NO = ("no", "false", "0")


@dataclass(frozen=True, slots=True)
class Delivery:
    """component: as its step runs it. argv: of the sbcast before it, empty where nothing is copied."""

    component: Component
    argv: tuple[str, ...] = ()


def delivery(component: Component, env: Mapping[str, str], job: int) -> Delivery:
    """Without a place to copy to the program runs from where it is (`--bcast` alone means the current folder, which nodes share).
    Source: srun(1), --bcast and --send-libs."""

    def said(name: str, variable: str) -> str | None:
        if has_flag(component.options, name):
            return option_value(component.options, name) or ""
        return env.get(variable)

    rest = without(component.options, *_OPTIONS)
    to, source = said("bcast", "SLURM_BCAST"), shutil.which(component.command[0], path=env.get("PATH"))
    if not to or source is None or has_flag(rest, "multi-prog"):
        return Delivery(Component(rest, component.command))
    if to.endswith("/"):
        to = f"{to}slurm_bcast_{job}"
    exclude, compress, libs = (said(name, f"SLURM_{name.upper().replace('-', '_')}") for name in _OPTIONS[1:])
    carried = libs is not None and libs.lower() not in _NO
    options = (
        *((f"--exclude={exclude}",) if exclude else ()),
        *((f"--compress={compress}" if compress else "--compress",) if compress is not None else ()),
        *(("--send-libs",) if carried else ()),
    )
    command = (to, *component.command[1:])
    if carried:
        found = ":".join(filter(None, (f"{to}_libs", env.get("LD_LIBRARY_PATH", ""))))
        command = ("env", f"LD_LIBRARY_PATH={found}", *command)
    return Delivery(Component(rest, command), ("sbcast", "--force", f"--jobid={job}", *options, source, to))

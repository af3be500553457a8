"""All kinds of faults, one table: to add one, write a function in one of the modules `on_…` and its line here.

A function gets the job (its cluster is `job.world`, its random source `job.rng`), strikes at once, has what it did undone
by `job.undo_in`, and gives the victim in words. It raises Missed where there is nobody to strike.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.chaos import on_devices, on_ftslurm, on_nodes, on_ranks, on_slurm
from tests.chaos.job import Job
from tests.chaos.plan import Drawn


@dataclass(frozen=True)
class Kind:
    """ends: does the attempt end of it: `yes`, `maybe`, `no`. outside: without a decision of ftslurm's. isolates: it speaks
    against a node. only: for jobs that ask for it. weight: how often it is drawn.
    """

    name: str
    strike: Callable[[Job], str]
    ends: str
    weight: int = 2
    outside: bool = False
    isolates: bool = False
    only: bool = False


TABLE: tuple[Kind, ...] = (
    Kind("rank-exit", on_ranks.rank_exits, "yes", 4),
    Kind("rank-kill", on_ranks.rank_killed, "yes", 4),
    Kind("rank-segv", on_ranks.rank_segv, "yes"),
    Kind("rank-stop", on_ranks.rank_stopped, "maybe", 3),
    Kind("rank-stall", on_ranks.rank_stalls, "yes"),
    Kind("rank-says-ecc", on_ranks.rank_convicts, "yes", 1, isolates=True),
    Kind("device-heals", on_devices.device_heals, "maybe", 5),
    Kind("device-heals-itself", on_devices.device_heals_by_itself, "maybe", 3),
    Kind("device-critical", on_devices.device_critical, "maybe", 2, isolates=True),
    Kind("device-thrice", on_devices.device_thrice, "maybe", 2, isolates=True),
    Kind("device-stays", on_devices.device_does_not_heal, "maybe", 1, isolates=True),
    Kind("device-tool-hangs", on_devices.device_tool_hangs, "no"),
    Kind("shim-kill", on_ftslurm.shim_killed, "maybe", 4),
    Kind("agent-kill", on_ftslurm.agent_killed, "no", 3),
    Kind("srun-kill", on_ftslurm.srun_killed, "maybe", 3),
    Kind("agents-srun-kill", on_ftslurm.agents_srun_killed, "no"),
    Kind("cut-shim", on_ftslurm.shim_cut, "no", 4),
    Kind("cut-agent", on_ftslurm.agent_cut, "no", 3),
    Kind("ftrun-stop", on_ftslurm.ftrun_stopped, "maybe", 3),
    Kind("ftrun-stop-long", on_ftslurm.ftrun_stopped_beyond_the_leases, "maybe", 2),
    Kind("ftrun-kill", on_ftslurm.ftrun_killed, "maybe", outside=True, only=True),
    Kind("drill-crash", on_ftslurm.drill_crash, "yes"),
    Kind("drill-hang", on_ftslurm.drill_hang, "maybe"),
    Kind("drill-device", on_ftslurm.drill_device, "maybe"),
    Kind("drill-lost-node", on_ftslurm.drill_lost_node, "yes", 1, isolates=True),
    Kind("node-freeze", on_nodes.node_frozen, "maybe", 3),
    Kind("node-freeze-long", on_nodes.node_frozen_beyond_the_lease, "maybe", 2, isolates=True),
    Kind("batch-node-freeze", on_nodes.batch_node_frozen, "maybe"),
    Kind("node-kill", on_nodes.node_killed, "maybe", 3, outside=True, isolates=True),
    Kind("batch-node-kill", on_nodes.batch_node_killed, "maybe", 1, outside=True, isolates=True),
    Kind("slurmd-restart", on_nodes.slurmd_restarted, "maybe", 3),
    Kind("drain", on_nodes.drained, "maybe", 2),
    Kind("node-down", on_nodes.set_down, "maybe", 2, outside=True, isolates=True),
    Kind("reconfigure", on_slurm.reconfigured, "no"),
    Kind("ctld-restart", on_slurm.ctld_restarted, "no", 3),
    Kind("ctld-kill", on_slurm.ctld_killed, "no", 3),
    Kind("ctld-kill-unsaved", on_slurm.ctld_killed_unsaved, "maybe", 0, outside=True),  # by name only: it may forget a job altogether
    Kind("operator-requeue", on_slurm.requeued_by_operator, "maybe", 3, outside=True),
    Kind("suspend", on_slurm.suspended, "maybe", 3),
    Kind("warning", on_slurm.warned, "maybe", 3),
    Kind("disk-full", on_ftslurm.disk_full, "maybe", only=True),
)  # fmt: skip
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in TABLE}
# What root can do, with these programs.
MEANS: Mapping[str, str] = {"cut-shim": "ss", "cut-agent": "ss", "disk-full": "mount"}


def missing_means() -> list[str]:
    return sorted(name for name, program in MEANS.items() if os.geteuid() != 0 or not shutil.which(program))


def drawn() -> list[Drawn]:
    """Those that this machine has the means for."""
    missing = missing_means()
    return [(kind.name, kind.weight, kind.only) for kind in TABLE if kind.name not in missing]

"""What a cluster is booted with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_cluster.trouble import Trouble

# Where the second slurmctld runs (--backup): a machine of its own, which is no node.
BACKUP = "backup"
# Of each cluster; numbers of jobs name cgroups, which the clusters of one machine share.
JOBS_EACH = 1000


@dataclass(frozen=True)
class Spec:
    """What a cluster was booted with; kept in its folder, so that later commands know its daemons.

    apart: nodes have namespaces of their own. cgroup: "v1", "v2", or empty without. user: SlurmUser. shared: folders
    that all nodes see although they lie where a node has a file system of its own. configless: nodes have no slurm.conf, and
    ask slurmctld for it. host_prefix: what host names of nodes begin with, where they are not the nodes' names. backup: a
    second slurmctld. ipv6: there are no other addresses.
    """

    nodes: int
    cpus: int
    port_base: int  # slurmctld's; slurmd number i listens on port_base + i, where nodes are apart all on port_base + 1
    host: str
    user: str
    version: tuple[int, int]
    extra: tuple[str, ...] = ()
    apart: bool = False
    cgroup: str = ""
    memory_mb: int = 4096  # a claim (config_overrides); none is taken
    gpus: int = 0
    accounting: bool = False
    shared: tuple[str, ...] = ()
    configless: bool = False
    host_prefix: str = ""
    backup: bool = False
    ipv6: bool = False

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def ports(self) -> range:
        return range(self.port_base, self.port_base + self.nodes + 1)

    @property
    def network(self) -> str:
        """What every address begins with, other ones for other ports."""
        number = self.port_base % 2**15
        return f"fd00:{number:x}::" if self.ipv6 else f"10.{128 + number // 256}.{number % 256}."

    @property
    def prefix_length(self) -> int:
        return 64 if self.ipv6 else 24

    @property
    def controller_address(self) -> str:
        """Of the host, on which slurmctld runs and jobs are submitted."""
        return f"{self.network}254" if self.apart else "127.0.0.1"

    def address(self, node: str) -> str:
        number = "253" if node == BACKUP else node.removeprefix("n")
        return f"{self.network}{number}" if self.apart else "127.0.0.1"

    def host_name(self, node: str) -> str:
        return f"{self.host_prefix}{node.removeprefix('n')}" if self.host_prefix and node != BACKUP else node

    @property
    def machines(self) -> tuple[str, ...]:
        """Whatever has namespaces of its own, where nodes are apart."""
        return (*self.node_names, BACKUP) if self.backup else self.node_names

    @property
    def first_job(self) -> int:
        return self.port_base % 2**15 * JOBS_EACH + 1


def parse_version(answer: str) -> tuple[int, int]:
    """(22, 5) of `slurm-wlm 22.05.8`, what `slurmctld -V` prints."""
    found = re.search(r"(\d+)\.(\d+)", answer)
    if found is None:
        raise Trouble(f"`slurmctld -V` answered {answer.strip()!r}, which holds no version; is this Slurm?")
    return int(found[1]), int(found[2])

"""What ftslurm knows about a site, and what `ftslurm doctor` finds there."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ftslurm.model.rungs import Rung
from ftslurm.model.values import Value, field


class SiteLevel(Enum):
    """The worst first."""

    BLOCKS = "blocks"  # a rung cannot be used
    COSTS = "costs"  # works, but costs more
    UNKNOWN = "unknown"  # not shown by Slurm, or not visible from this machine
    OK = "ok"


class Whose(Enum):
    """Who can change a line."""

    ADMIN = "admin"
    USER = "user"


class Change(Value):
    """line: as it has to stand in `file`, or in the shell."""

    whose: Whose
    file: str
    line: str


class SiteOutcome(Value):
    """What can be found of a check (catalogs/site-checks.yaml). Words in braces are values that are found with it. changes:
    `FILE: LINE`."""

    level: SiteLevel
    reason: str  # one sentence
    lost: str = ""  # what that costs, with the measured figure where there is one
    rungs: tuple[Rung, ...] = ()  # that cannot be used
    changes: tuple[str, ...] = ()


class SiteCheck(Value):
    """keys: of `scontrol show config`; if one is not shown, the outcome is not known. source: where the reason is documented."""

    source: str
    outcomes: Mapping[str, SiteOutcome]
    keys: tuple[str, ...] = ()


class SiteChecks(Value):
    """By name, in their order. machine: about this machine, made even if Slurm does not answer."""

    machine: Mapping[str, SiteCheck]
    slurm: Mapping[str, SiteCheck]


class SiteFinding(Value):
    """What one check has found; see SiteOutcome and SiteCheck."""

    check: str
    level: SiteLevel
    reason: str
    lost: str = ""
    rungs: tuple[Rung, ...] = ()
    changes: tuple[Change, ...] = ()
    source: str = ""


class Partition(Value):
    """One look at a partition. exclusive: OverSubscribe=EXCLUSIVE. nodes: how many."""

    name: str
    exclusive: bool = False
    nodes: int = 0


class OwnJob(Value):
    """The job that the question was asked in. batch: has a script, so that Slurm can requeue it. requeue: it may be."""

    number: int
    batch: bool = True
    requeue: bool = True


class Program(Value):
    """A command that was looked for. path: empty where there is none; why: then, in words."""

    path: str = ""
    why: str = ""


class Folder(Value):
    """Where something lies. kind: of its file system, as the kernel names it, empty if that does not say. options: of
    the mount."""

    path: str = ""
    kind: str = ""
    options: frozenset[str] = frozenset()


class Ledgers(Value):
    """The state folder, or the nearest folder above it that is there. trouble: why a file cannot be made there, empty if it can.
    no_lock: why one cannot be locked. sync_s: how long one write with fsync took, seconds; None if it was not tried."""

    folder: Folder = Folder()
    trouble: str = ""
    no_lock: str = ""
    sync_s: float | None = None


class Machine(Value):
    """The machine that the question was asked on."""

    python: str = ""
    version: tuple[int, int] = (0, 0)
    installed: Folder = Folder()
    ftrun: Program = Program()
    srun: Program = Program()
    first_srun: str = ""  # what `srun` means on PATH, as a path
    stands_in: bool = False  # that is ftrun
    ledgers: Ledgers = Ledgers()
    tools: tuple[str, ...] = ()  # kinds of devices whose tool is here
    deaf: Mapping[str, str] = field(default_factory=dict)  # of these, kind -> the extra that is missing
    scripts: Mapping[str, bool] = field(default_factory=dict)  # paths that slurm.conf names -> may be run here
    hook_settings: str = ""
    on_node: bool = False  # inside an allocation
    connections: tuple[int, int] = (0, 0)  # that ranks and agents of this allocation need, and that ftrun may have


class Site(Value):
    """config: of `scontrol show config`, empty where Slurm does not answer; `silent` is why. partitions, nodes: None if not told.
    nodes: how many the asker may see. admin: the asker is root or SlurmUser."""

    config: Mapping[str, str] = field(default_factory=dict)
    silent: str = ""
    partitions: tuple[Partition, ...] | None = None
    nodes: int | None = None
    job: OwnJob | None = None
    admin: bool = False
    machine: Machine = Machine()

"""What a probe says about the devices of a node, and what a fault code means."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ftslurm.model.values import Value

# Values of CUDA_VISIBLE_DEVICES and its like that show a program none. Source: CUDA C++ Programming Guide, "CUDA Environment
# Variables"; `none`, `void` of NVIDIA's container runtime; `NoDevFiles` of Slurm's gres/gpu.
NO_DEVICES = ("", "-1", "none", "void", "NoDevFiles")


class DeviceHealth(Enum):
    """One chip. UNKNOWN: no answer, or words we do not know; never taken for good or bad."""

    GOOD = "good"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


class Severity(Enum):
    """As the driver grades a code or npu-smi a chip: OK/hint, Warning, Alarm, Critical. From mild to hard."""

    UNKNOWN = "unknown"
    HINT = "hint"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"


class FaultClass(Enum):
    """What a device fault asks for."""

    IGNORE = "ignore"  # record it
    SELF_HEALING = "self-healing"  # stop the processes, heal or reset, run again in place
    AVOID = "avoid"  # let the job run, keep the node out of the next scheduling
    ISOLATE = "isolate"  # take the node out
    UNKNOWN = "unknown"  # not in the catalogue and no severity: nothing is done on it


class Remedy(str, Enum):
    """The least that helps against a fault, as the catalogues say it. From mild to hard."""

    UNKNOWN = "unknown"
    LOG = "log"  # write it down
    SUSPECT = "mark_suspect"  # counts against the node
    RESTART = "restart_in_place"  # the processes only
    RESET = "reset_then_restart_else_replace"
    AVOID = "exclude_at_next_restart"
    REPLACE = "replace_node"
    FAIL = "fail"  # nothing that a restart could mend


# From the catalogues' word for a remedy to the class of a fault, which the ladder asks for. One table for all vendors.
CLASS_OF: Mapping[Remedy, FaultClass] = {
    Remedy.LOG: FaultClass.IGNORE,
    Remedy.SUSPECT: FaultClass.IGNORE,  # the device still works; that it was seen stands in the ledger
    Remedy.RESTART: FaultClass.SELF_HEALING,
    Remedy.RESET: FaultClass.SELF_HEALING,  # a restart in place waits for healing, then resets
    Remedy.AVOID: FaultClass.AVOID,
    Remedy.REPLACE: FaultClass.ISOLATE,
    Remedy.FAIL: FaultClass.ISOLATE,  # this node cannot serve: other software or firmware is needed on it
    Remedy.UNKNOWN: FaultClass.UNKNOWN,
}


class DeviceReport(Value):
    """One chip at one look. device: `card.chip` as the tool numbers them, e.g. `0.0`. codes: upper case, no 0x.

    severity: the worst the tool shows for the chip. detail: the tool's own words, for people.
    """

    device: str
    kind: str
    health: DeviceHealth
    severity: Severity = Severity.UNKNOWN
    codes: tuple[str, ...] = ()
    detail: str = ""


class ProbeAnswer(Value):
    """All chips of one node at one look. error: why there is no answer (then reports is empty), else empty."""

    reports: tuple[DeviceReport, ...] = ()
    error: str = ""


class Utilisation(Value):
    """How busy one device was in the sampling period of its tool (a fraction of a second, up to a few). None: not told.

    percent: of the period in which the device computed, 0 to 100. A hung collective also reads 100, with little power.
    memory_percent: of its memory: the share of the period with traffic where the tool tells that, else the share in use.
    power_w: drawn by the device, watts.
    """

    device: str
    kind: str
    percent: float | None
    memory_percent: float | None
    power_w: float | None


class HealResult(Value):
    """What became of an attempt to heal. healed None: not known (the tool gave no answer)."""

    device: str
    healed: bool | None
    how: str


class CodeMeaning(Value):
    """A fault code looked up. user_induced: the program or its data caused it, the node is not to blame.

    source: where the grade comes from, for people. remedy: the catalogue's word, from which the class follows.
    """

    code: str
    name: str
    fault_class: FaultClass
    user_induced: bool = False
    source: str = ""
    remedy: Remedy = Remedy.UNKNOWN


class Fault(Value):
    """A device fault of the job, graded. shared: several chips raised the code at one moment, so it accuses none of them."""

    node: str
    device: str
    code: str
    name: str
    fault_class: FaultClass
    user_induced: bool = False
    shared: bool = False

    @property
    def blames_node(self) -> bool:
        return not (self.user_induced or self.shared)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.node, self.device, self.code)

    def __str__(self) -> str:
        return f"{self.code} ({self.name}) on device {self.device} of {self.node}"

"""GPUs as NVML and amdsmi show them: the words that both probes share. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ftslurm.model.devices import NO_DEVICES
from ftslurm.model.text import whole
from ftslurm.model.values import dataclass

GPU_LOST = "GPU-LOST"
ECC_UNCORRECTABLE = "ECC-UNCORRECTABLE"


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One GPU at one look. None: the library does not tell, which is no fault."""

    index: int  # the library's number, which shifts when a GPU is missing
    identity: str  # what stays (UUID or PCI address), empty if not told
    bus: str = ""  # the PCI address
    words: str = ""  # for people
    conditions: tuple[str, ...] = ()  # codes that hold at this moment
    uncorrectable: int | None = None  # memory errors that could not be corrected, counted since the last reset or boot
    recovery: int | None = None  # what NVIDIA's driver asks for (0: nothing)
    lost: bool = False
    trouble: tuple[str, ...] = ()  # calls that failed for no reason that says anything
    processes: tuple[int, ...] | None = None  # pids, None also if not asked for


@dataclass(frozen=True, slots=True)
class Heard:
    """An event that the library told about one GPU. code: empty where it is worth a word and no more."""

    identity: str
    code: str
    words: str


class Need(Enum):
    """What a GPU needs before a job may use it again."""

    NOTHING = "nothing"
    TIME = "time"  # it may come right by itself, and nothing here can hasten that
    RESET = "reset"
    REPLACEMENT = "replacement"  # nothing that a job can do on this node helps


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement of a GPU. busy: who is still on it, else empty. sure: False where the library did not tell enough.

    may_pass: worth waiting for before the remedy is used.
    """

    need: Need
    why: str
    busy: str = ""
    sure: bool = True
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class ResetAnswer:
    """How an order to reset ended. done None: it did not answer in time. words: why not, in the tool's own words."""

    done: bool | None
    words: str = ""


def in_words(failed: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """(call, why) -> the reasons, each with the calls it stood against."""
    calls: dict[str, list[str]] = {}
    for call, why in failed:
        calls.setdefault(why, []).append(call)
    return tuple(f"{why} ({', '.join(names)})" for why, names in calls.items())


def chosen(value: str | None, looks: Iterable[GpuLook]) -> frozenset[str] | None:
    """The identities that CUDA_VISIBLE_DEVICES or its like picks by numbers or UUIDs. None: all that are listed.

    Slurm sets it for a step: to numbers that count what the step's cgroup lets it see, or all GPUs of the node where
    the site does not constrain devices. A word that names no listed GPU (a MIG slice, the host's numbers in a
    container) makes the value say nothing about these.
    Source: gres.html of Slurm, "GPU Management"; CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    if value is None:
        return None
    if value.strip() in NO_DEVICES:
        return frozenset()
    listed = tuple(looks)
    picked = set()
    for word in (part.strip() for part in value.split(",")):
        found = [look.identity for look in listed if _names(word, look)]
        if len(found) != 1:
            return None
        picked.add(found[0])
    return frozenset(picked)


def _names(word: str, look: GpuLook) -> bool:
    if (index := whole(word)) is not None:
        return index == look.index
    return word.startswith("GPU-") and look.identity.startswith(word)

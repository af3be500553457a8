"""Timeouts that a program calculates from what it has seen: nvidia_resiliency_ext's data and timeouts_calc.

A timeout is the longest time seen on any rank, times the safety factor. What was calculated before and is calculated
again becomes the mean of both; what was only configured gives way.
"""

# ruff: noqa: UP006, UP035, UP045 -- these types are looked up at runtime, where Python may be 3.8

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from enum import Enum
from time import monotonic
from typing import Any, Collection, Dict, Iterable, List, Optional, Set

from ftslurm.sdk.notes import rank_of

# Where tensors must live for a backend's collectives; the others take CPU tensors.
DEVICES = {"nccl": "cuda", "hccl": "npu", "xccl": "xpu", "cncl": "mlu", "mccl": "musa"}


class TimeoutsCalcError(Exception):
    """Something was asked of TimeoutsCalc in the wrong order."""


class WorkloadAction(Enum):
    """What the launcher shall do: go on, leave this node out, or end the job without another start."""

    Continue = 0
    ExcludeThisNode = 1
    ShutdownWorkload = 2


class WorkloadControlRequest:
    """description: for people."""

    def __init__(self, action: WorkloadAction, description: str = "<not set>") -> None:
        self.action = action
        self.description = description

    def __str__(self) -> str:
        return f"WorkloadControlRequest(action={self.action}, description={self.description})"


@dataclasses.dataclass
class RankInfo:
    global_rank: int
    local_rank: int
    host: str
    pid: int

    @staticmethod
    def get_for_current_rank() -> RankInfo:
        """Raises: RuntimeError if nobody says which rank this is."""
        dist = process_group()
        rank = dist.get_rank() if dist else rank_of(os.environ)
        if rank is None:
            raise RuntimeError("Could not find the rank of the current process: neither RANK nor SLURM_PROCID is set")
        local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", ""))
        return RankInfo(int(rank), int(local) if local.isdigit() else -1, socket.gethostname(), os.getpid())


@dataclasses.dataclass
class HeartbeatTimeouts:
    """Seconds from the client's init to the first heartbeat, and between two; None: not checked."""

    initial: Optional[float] = None
    subsequent: Optional[float] = None
    were_calculated: Optional[bool] = None

    @property
    def are_valid(self) -> bool:
        return self.initial is not None and self.subsequent is not None


@dataclasses.dataclass
class SectionTimeouts:
    """Seconds that each section may be open, and that none may be; None: not checked."""

    section: Dict[str, Optional[float]] = dataclasses.field(default_factory=dict)
    out_of_section: Optional[float] = None
    calculated_sections: Set[str] = dataclasses.field(default_factory=set)
    is_out_of_section_calculated: bool = False

    def __post_init__(self) -> None:
        self.section = dict(self.section)
        self.calculated_sections = set(self.calculated_sections)

    @property
    def were_calculated(self) -> bool:
        return self.calculated_sections == set(self.section) and self.is_out_of_section_calculated

    @property
    def are_valid(self) -> bool:
        return None not in self.section.values() and self.out_of_section is not None


def process_group() -> Any:
    """torch.distributed where the program has set it up, else None. torch is not imported for it."""
    dist = sys.modules.get("torch.distributed")
    try:
        return dist if dist and dist.is_available() and dist.is_initialized() else None
    except Exception:
        return None


class TimeoutsCalc:
    """The longest times seen, in seconds; -1: none seen yet.

    adopts: there is no configuration, so sections are taken in as they come, and the ranks tell each other their names;
    what is opened twice begins anew, what is closed without being open is passed over.
    """

    def __init__(
        self,
        sections: Optional[Iterable[str]] = None,
        start_time: Optional[float] = None,
        safety_factor: float = 5.0,
        adopts: bool = False,
    ) -> None:
        self.start_time = monotonic() if start_time is None else start_time
        self.safety_factor = safety_factor
        self.adopts = adopts
        self.count = 0
        self.prev_hb_time: Optional[float] = None
        self.initial_max_time = self.subsequent_max_time = self.out_of_section_max_time = -1.0
        self.section_to_max_time = dict.fromkeys(sections or (), -1.0)
        self.open_sections: Dict[str, float] = {}
        self.last_section_close_time = self.start_time

    # --- what happens

    def update_on_heartbeat(self, hb_time: Optional[float] = None) -> None:
        now = monotonic() if hb_time is None else hb_time
        if self.prev_hb_time is None:
            self.initial_max_time = max(self.initial_max_time, now - self.start_time)
        elif now - self.prev_hb_time > self.subsequent_max_time:
            self.subsequent_max_time = now - self.prev_hb_time
        self.prev_hb_time = now
        self.count += 1

    def takes_in(self, section: Any) -> bool:
        """Whether a section that is not known is from now on."""
        if self.adopts and isinstance(section, str):
            self.section_to_max_time[section] = -1.0
        return section in self.section_to_max_time

    def open(self, section: str, now: float) -> None:
        """Raises: TimeoutsCalcError for a section that is not known, or open already."""
        if section not in self.section_to_max_time and not self.takes_in(section):
            raise TimeoutsCalcError(f"Unknown section: {section}. Does it have an entry in the config?")
        if section in self.open_sections and not self.adopts:
            raise TimeoutsCalcError(f"Section {section} is open already: each opening must be followed by a closing")
        self.maybe_bump_oos_time(now)
        self.open_sections[section] = now

    def close(self, section: str, now: float) -> None:
        """Raises: TimeoutsCalcError for one that is not open."""
        began = self.open_sections.pop(section, None)
        if began is None:
            if self.adopts:
                return
            raise TimeoutsCalcError(f"Section {section} is not open")
        if now - began > self.section_to_max_time[section]:
            self.section_to_max_time[section] = now - began
        if not self.open_sections:
            self.last_section_close_time = now

    def maybe_bump_oos_time(self, curr_time: Optional[float] = None) -> None:
        """The time without a section that is running now counts as if it ended now."""
        if not self.open_sections:
            now = monotonic() if curr_time is None else curr_time
            self.out_of_section_max_time = max(self.out_of_section_max_time, now - self.last_section_close_time)

    # --- what follows from it

    def synchronize_all(self) -> None:
        """The longest times of all ranks, on all ranks; a collective.

        Raises: TimeoutsCalcError where there are other ranks and no process group to ask them with.
        """
        dist = process_group()
        if dist is None:
            if os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")) != "1":
                raise TimeoutsCalcError(".synchronize_all() requires initialized process group.")
            return
        if self.adopts:
            for name in _names_of_all(dist, self.section_to_max_time):
                self.section_to_max_time.setdefault(name, -1.0)
        sections = sorted(self.section_to_max_time)
        mine = [self.initial_max_time, self.subsequent_max_time, self.out_of_section_max_time]
        seen = _longest_of_all(dist, mine + [self.section_to_max_time[name] for name in sections])
        self.initial_max_time, self.subsequent_max_time, self.out_of_section_max_time, *rest = seen
        self.section_to_max_time.update(zip(sections, rest))  # noqa: B905 -- strict= is newer than 3.8

    def can_get_hb_timeouts(self) -> bool:
        return self.initial_max_time > 0 and self.subsequent_max_time > 0

    def get_hb_timeouts(self, current: Optional[HeartbeatTimeouts] = None) -> HeartbeatTimeouts:
        """Raises: TimeoutsCalcError before two heartbeats were seen."""
        if not self.can_get_hb_timeouts():
            raise TimeoutsCalcError("Not enough data to return the timeouts.")
        old = current if current and current.were_calculated else HeartbeatTimeouts()
        return HeartbeatTimeouts(
            _mean(self.safety_factor * self.initial_max_time, old.initial),
            _mean(self.safety_factor * self.subsequent_max_time, old.subsequent),
            were_calculated=True,
        )

    def can_get_section_timeouts(
        self, selected_sections: Optional[Collection[str]] = None, calc_out_of_section: bool = True
    ) -> bool:
        seen = all(self.section_to_max_time.get(name, -1.0) > 0 for name in selected_sections or self.section_to_max_time)
        return seen and (not calc_out_of_section or self.out_of_section_max_time > 0)

    def get_section_timeouts(
        self,
        selected_sections: Optional[Collection[str]] = None,
        calc_out_of_section: bool = True,
        current: Optional[SectionTimeouts] = None,
    ) -> SectionTimeouts:
        """What is not selected stays as in `current`. Raises: TimeoutsCalcError while something was not seen."""
        if not self.can_get_section_timeouts(selected_sections, calc_out_of_section):
            raise TimeoutsCalcError("Not enough data to return the timeouts.")
        old = current or SectionTimeouts()
        chosen = set(self.section_to_max_time if selected_sections is None else selected_sections)
        sections: Dict[str, Optional[float]] = {**dict.fromkeys(self.section_to_max_time), **old.section}
        for name in chosen:
            before = old.section.get(name) if name in old.calculated_sections else None
            sections[name] = _mean(self.safety_factor * self.section_to_max_time[name], before)
        outside = old.out_of_section
        if calc_out_of_section:
            before = old.out_of_section if old.is_out_of_section_calculated else None
            outside = _mean(self.safety_factor * self.out_of_section_max_time, before)
        calculated = old.calculated_sections | chosen
        return SectionTimeouts(sections, outside, calculated, old.is_out_of_section_calculated or calc_out_of_section)


def _mean(new: float, old: Optional[float]) -> float:
    return new if old is None else 0.5 * new + 0.5 * old


def _longest_of_all(dist: Any, numbers: List[float]) -> List[float]:
    import torch

    tensor = torch.tensor(numbers, dtype=torch.float32, device=_device(dist))
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    found: List[float] = tensor.tolist()
    return found


def _names_of_all(dist: Any, names: Iterable[str]) -> Set[str]:
    """The names that any rank has. As numbers: all_gather_object would need numpy."""
    import torch

    mine = [letter for name in sorted(names) for letter in (*name.encode("utf-8", "replace"), 0)]
    size = int(_longest_of_all(dist, [float(len(mine))])[0])
    if not size:
        return set()
    tensor = torch.tensor(mine + [0] * (size - len(mine)), dtype=torch.int32, device=_device(dist))
    all_of_them = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, tensor)
    texts = (bytes(some.tolist()).decode() for some in all_of_them)
    return {name for text in texts for name in text.split("\0") if name}


def _device(dist: Any) -> str:
    backend = str(dist.get_backend()).lower()
    return next((device for name, device in DEVICES.items() if name in backend and "gloo" not in backend), "cpu")

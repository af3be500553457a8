"""The words that a rank's probe (sdk/probe.py) writes into its page, and the names of its groups beside it, as values."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ftslurm.errors import WireError
from ftslurm.model.collectives import unfold
from ftslurm.model.values import dataclass
from ftslurm.sdk import probe as layout


class ProbeGroup(NamedTuple):
    """One slot of the page. key: CRC-32 of name and ranks. recorded, completed: the recorder's last numbers, None if it does not
    count.

    entered: collectives so far; issued: those that went through the wrappers; directs: point-to-point operations.
    """

    slot: int
    key: int
    id: int
    recorded: int | None
    completed: int | None
    entered: int
    issued: int
    directs: int


class Wait(NamedTuple):
    """One wait of the main thread. slot: of the group, None if unknown. number: of the collective, modulo 2048."""

    place: int
    slot: int | None
    number: int
    outside_us: int
    stay_us: int


class ProbeState(NamedTuple):
    """The content of the probe's words at one moment; see sdk/probe.py. Times in ns of the writer's clock."""

    level: int
    serves: bool
    beats: int
    beat_ns: int
    beat_cost_ns: int
    groups_seen: int
    progress: int
    main: int
    in_ns: int
    operation: str
    in_slot: int | None
    direct: bool
    number: int
    peer: int | None
    waits: int
    failed: bool  # the last wait raised
    trainer: int  # the training thread, as its own pid namespace numbers it; 0: unknown
    asked: int  # questions to stores that had the same answer as before
    beside: bool  # a thread other than the training thread waits
    left: bool  # no group exists any more, or the program has ended
    mpi: bool  # the program uses mpi4py
    groups: tuple[ProbeGroup, ...]
    ring: tuple[Wait, ...]


_WORDS = struct.Struct(f"={layout.PROBE_END - layout.PROBE}Q")


def parse_probe(data: bytes) -> ProbeState | None:
    """The probe's words from a page's bytes; None if there is no probe. A user wrote them: every value is checked."""
    if len(data) < layout.PROBE_END * 8:
        return None
    words = dict(enumerate(_WORDS.unpack_from(data, layout.PROBE * 8), layout.PROBE))
    if words[layout.PROBE_MAGIC] != layout.MAGIC_NUMBER:
        return None
    what, level, peer = words[layout.IN_WHAT], words[layout.LEVEL], words[layout.IN_PEER]
    code, slot = what & 255, what >> 8 & 255
    return ProbeState(
        level=level & 255,
        serves=bool(level & layout.SERVES),
        beats=words[layout.BEATS],
        beat_ns=words[layout.BEAT_AT],
        beat_cost_ns=words[layout.BEAT_COST],
        groups_seen=words[layout.GROUPS_SEEN],
        progress=words[layout.PROGRESS],
        main=words[layout.MAIN] & layout.LOW,
        in_ns=words[layout.IN],
        operation=layout.OPERATIONS[code] if code < len(layout.OPERATIONS) else "",
        in_slot=slot - 1 if 0 < slot <= layout.GROUP_COUNT else None,
        direct=bool(what & layout.DIRECT),
        number=words[layout.IN_NUMBER] & layout.LOW,
        peer=peer - 1 if 0 < peer <= layout.LOW else None,
        waits=words[layout.WAITS],
        failed=0 < words[layout.WAITS] == words[layout.FAILED],
        trainer=words[layout.TRAINER] & layout.LOW,
        asked=words[layout.ASKED],
        beside=words[layout.BESIDE] > 0,
        left=bool(level & layout.LEFT),
        mpi=bool(level & layout.MPI),
        groups=tuple(_groups(words)),
        ring=tuple(_ring(words)),
    )


def _groups(words: Mapping[int, int]) -> Iterator[ProbeGroup]:
    for slot in range(layout.GROUP_COUNT):
        at = layout.GROUPS + slot * layout.GROUP_WORDS
        name, recorded, entered, issued = (words[at + index] for index in range(layout.GROUP_WORDS))
        if name >> 63:
            told = recorded >> 32
            yield ProbeGroup(
                slot, name & layout.LOW, name >> 32 & layout.LOW >> 1, recorded & layout.LOW if told else None,
                told - 1 if told else None, max(entered - 1, 0) & layout.LOW, issued & layout.LOW, issued >> 32,
            )  # fmt: skip


def _ring(words: Mapping[int, int]) -> Iterator[Wait]:
    """The waits that are certainly complete: the oldest may be overwritten while it is read."""
    count = words[layout.WAITS]
    for place in range(max(0, count - layout.RING_COUNT + 8), count):
        word = words[layout.RING + place % layout.RING_COUNT]
        slot = (word >> 59) - 1
        outside, stay = ((word >> shift & layout.UNITS_MAX) << layout.UNIT_SHIFT for shift in (24, 0))
        whose = slot if 0 <= slot < layout.GROUP_COUNT else None
        yield Wait(place, whose, word >> 48 & layout.NUMBERS - 1, outside // 1000, stay // 1000)


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group as `<page>.groups` describes it. id: torch's, in this process."""

    id: int
    key: str
    name: str
    members: tuple[int, ...]
    slot: int = 0  # -1: it got no slot, so the page says nothing about it


def parse_groups(text: str) -> dict[int, GroupName]:
    """key in the page -> the group; lines in another format are skipped."""
    found = {}
    for line in text.splitlines():
        try:
            told = json.loads(line)
            key, name = int(told["key"]), str(told["name"])[:200]
            members = unfold(str(told["ranks"]))
            found[key] = GroupName(int(told["id"]), f"{name}#{key:08x}", name, members, int(told.get("slot", 0)))
        except (ValueError, KeyError, TypeError, WireError, RecursionError):
            continue
    return found


def group_key(group: ProbeGroup, names: Mapping[int, GroupName]) -> str:
    return names[group.key].key if group.key in names else f"#{group.key:08x}"

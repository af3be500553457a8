"""What programs write for us: the pages below a task's, whose they are, and the words of the probe (sdk/probe.py) in them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ftslurm.errors import WireError
from ftslurm.model.collectives import unfold_ranks
from ftslurm.model.values import Value
from ftslurm.sdk import probe as layout
from ftslurm.sdk.page import SIZE, PageState, page_paths, parse_page, pid_namespace, read_plain
from ftslurm.system.processes import parent_of
from ftslurm.wrapper.agent.processes import own_number, read_proc
from ftslurm.wrapper.shim.processes import descendants

# --- The words that a rank's probe (sdk/probe.py) writes into its page, and the names of its groups beside it, as values.


class ProbeGroup(NamedTuple):
    """One slot of the page. key: CRC-32 of name and ranks. recorded, completed: the recorder's last numbers, None if it does not
    count.

    entered: collectives so far; issued: those that went through the wrappers; directs: point-to-point operations.
    """

    slot: int
    key: int
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
                slot, name & layout.LOW, recorded & layout.LOW if told else None,
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


class GroupName(Value):
    """A group as `<page>.groups` describes it."""

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
            members = unfold_ranks(str(told["ranks"]))
            found[key] = GroupName(f"{name}#{key:08x}", name, members, int(told.get("slot", 0)))
        except (ValueError, KeyError, TypeError, WireError, RecursionError):
            continue
    return found


def group_key(group: ProbeGroup, names: Mapping[int, GroupName]) -> str:
    return names[group.key].key if group.key in names else f"#{group.key:08x}"


# --- The pages below a task's: whose they are, which of them train, and why there is none.

INJECTED = "/ftslurm/sdk/inject"  # below where the rank has the package, which in a container is another place
MAPS_BYTES = 8 << 20
Page = tuple[str, PageState, ProbeState]  # with its path


def pages_of(task: str, attempt: int) -> list[Page]:
    """Of one start of a task, those with a probe. task: its FTSLURM_PAGE."""
    found = []
    for path in page_paths(task):
        data = read_plain(path, SIZE)
        page, state = parse_page(data), parse_probe(data)
        if page is not None and state is not None and page.attempt == attempt:
            found.append((path, page, state))
    return found


def without_launchers(found: Sequence[Page], command: int | None) -> tuple[list[Page], list[str]]:
    """Gives the pages that train, and the other pages: of processes without groups that wait for none and have started a process
    that trains.

    These are launchers such as torchrun, `accelerate launch`, or the parent of multiprocessing's ranks: each imports
    torch.distributed as a rank does.
    """
    doubtful = [each for each in found if not (each[2].groups_seen or each[2].in_ns or each[2].left)]
    if len(found) < 2 or not doubtful:
        return list(found), []
    pids = {path: pid_here(page, command) for path, page, _ in found}
    above = {parent for pid in pids.values() if pid for parent in _ancestors(pid)}
    others = [path for path, _, _ in doubtful if pids[path] in above]
    return [each for each in found if each[0] not in others], others


def _ancestors(pid: int) -> Iterator[int]:
    """The ancestors of a process of this pid namespace, from its parent on."""
    for _ in range(64):
        pid = parent_of(pid)
        if pid <= 1:
            return
        yield pid


def pid_here(page: PageState, command: int | None) -> int | None:
    """The pid of the page's process in our pid namespace: the page holds the number in its own."""
    if page.namespace == pid_namespace():
        return page.pid
    for pid in [command, *descendants(command)] if command else ():
        if own_number(pid, pid) == page.pid:
            return pid
    return None


def why_no_probe(pid: int) -> str:
    """Why a Python process with torch has no probe: it was started without our folder on its path, or in a container that has
    neither the folder nor our variables. Empty for any other process, or if unknown.
    """
    env = dict(word.partition("=")[::2] for word in read_proc(f"/proc/{pid}/environ", MAPS_BYTES).split("\0"))
    if not env.get(layout.PAGE_VARIABLE) or env.get(layout.WATCH_VARIABLE) in layout.LEVELS:
        return _why_uninjected(pid, env) if "libtorch_python" in read_proc(f"/proc/{pid}/maps", MAPS_BYTES) else ""
    return ""


def _why_uninjected(pid: int, env: Mapping[str, str]) -> str:
    if not env.get(layout.PAGE_VARIABLE):
        return "something has dropped ftrun's variables (--cleanenv of a container, env -i)"
    for word in read_proc(f"/proc/{pid}/cmdline").split("\0")[1:]:
        if not re.fullmatch(r"-[bBdEiIOPqsSuvx]+", word):
            break
        if set(word) & set("EIS"):
            return f"its Python was started with {word}"
    injected = [place for place in env.get("PYTHONPATH", "").split(":") if place.endswith(INJECTED)]
    if not injected:
        return "something has set PYTHONPATH anew, where it should add to it"
    try:
        Path(f"/proc/{pid}/root{injected[0]}").stat()
    except FileNotFoundError:
        return f"its container has no {injected[0].removesuffix(INJECTED)}/ftslurm: mount it there"
    except OSError:
        pass  # the process has ended, or hides its files from us
    return ""

"""Reads a failing run of the corpus into the values that a classifier is given, and the verdict that is expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import ErrorClass, Piece, RankEnd, Retriable

CORPUS = Path(__file__).parent
PUBLIC = CORPUS / "public"
SEEN, UNSEEN = "seen", "unseen"
# The runs are told in seconds from any origin; a classifier is given Unix seconds, and takes 0 for "not known".
ORIGIN = 1_700_000_000.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What a device said. at: Unix seconds."""

    node: str
    device: str
    code: str
    at: float


@dataclass(frozen=True, slots=True)
class Expected:
    """The verdict by people. open: the fields on which the reading order leaves room for another."""

    error_class: ErrorClass
    retriable: Retriable
    suspects: frozenset[str]
    isolate: frozenset[str]
    program: bool
    signature: str
    open: frozenset[str]


@dataclass(frozen=True, slots=True)
class Case:
    """One failing run. bad_nodes: node to what Slurm calls its state. decisive: parts of lines, each of which tells the cause as well."""

    name: str
    source: str
    ends: tuple[RankEnd, ...]
    faults: tuple[Fault, ...]
    bad_nodes: Mapping[str, str]
    expect: Expected
    decisive: tuple[str, ...] = ()


def load_all() -> Iterator[Case]:
    for path in sorted(CORPUS.glob("*.yaml")):
        yield load(path)


def load_public() -> Iterator[Case]:
    """The runs from public threads, in no half's order; `half_of` tells which half a run is in."""
    for path in sorted(PUBLIC.glob("*.yaml")):
        yield load(path)


def half_of(name: str) -> str:
    """SEEN, or UNSEEN: the runs that nobody looks at who writes patterns. A hash draws them, so no one chooses."""
    return SEEN if sha256(name.encode()).digest()[0] % 2 == 0 else UNSEEN


def load(path: Path) -> Case:
    told = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    ranks = {rank["rank"]: rank for rank in told["ranks"]}
    last = max((rank.get("at", 0.0) for rank in ranks.values()), default=0.0)
    ends = tuple(
        read_end(node, ranks.get(number, {"rank": number, "signal": 15, "at": last, "stopped": True}))
        for number, node in sorted((number, node) for node, numbers in told["nodes"].items() for number in numbers)
    )
    faults = tuple(Fault(f["node"], f["device"], f["code"], ORIGIN + f["at"]) for f in told.get("faults", []))
    expected = read_expected(told["expect"])
    decisive = told.get("decisive", [])
    parts = (decisive,) if isinstance(decisive, str) else tuple(decisive)
    return Case(path.stem, told["source"], ends, faults, told.get("bad_nodes", {}), expected, parts)


def read_end(node: str, rank: Mapping[str, Any]) -> RankEnd:
    lost = rank.get("lost", False)
    return RankEnd(
        rank["rank"],
        node,
        status=None if lost else ExitStatus(rank.get("status", 0), rank.get("signal", 0)),
        at=ORIGIN + rank["at"] if "at" in rank else 0.0,
        stopped=rank.get("stopped", False),
        lost=lost,
        oom=rank.get("oom"),
        output=tuple(Piece(ORIGIN + at, stream, text) for at, stream, text in rank.get("log", [])),
    )


def read_expected(expect: Mapping[str, Any]) -> Expected:
    return Expected(
        ErrorClass(expect["class"]),
        Retriable(expect["retriable"]),
        frozenset(expect["suspects"]),
        frozenset(expect["isolate"]),
        expect["program"],
        expect.get("signature", ""),
        frozenset(expect.get("open", [])),
    )

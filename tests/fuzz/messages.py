"""The parsers of what comes over a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ftslurm.errors import WireError
from ftslurm.model import messages as wire
from ftslurm.model.collectives import CallDurations, EntryTimes, WaitTimes
from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult, ProbeAnswer, Severity
from ftslurm.model.events import StallSeen
from ftslurm.wrapper.shim.connection import Channel
from ftslurm.wrapper.shim.messages import MAX_LINE, LinkError, SignedConnection, dumps, loads
from tests.fuzz.hold import Parser
from tests.fuzz.inputs import (
    as_bytes,
    as_json,
    mutated,
    mutated_trees,
    torn,
)

REPORT = DeviceReport("0.0", "ascend", DeviceHealth.FAULTY, Severity.MAJOR, ("80E01801",), "why")
HELLOS = [
    {
        "t": "hello", "rank": 3, "node": "n1", "slot": 1, "local": 2, "expected": 8, "step": "12.0", "launch": 2, "address": "10.0.0.1",
        "pid": 77, "free_port": 4711, "talk": "0f", "a": 3,
    },
    {"t": "agent", "node": "n1", "kinds": ["ascend", "nvidia"], "talk": "0f", "a": 3},
]  # fmt: skip
SHIM_REPORTS = [
    {"t": "started", "attempt": 2, "pid": 78},
    {"t": "exited", "attempt": 2, "code": 1, "signal": 0, "at": 1795257741.5, "asked": False, "oom": True,
     "tail": [[1795257741.25, "err", "Traceback\n"], [1795257741.5, "out", "x"]]},
    {"t": "stopped", "attempt": 2, "left": [78, 79], "free_port": 0},
    {"t": "unstartable", "attempt": 2, "status": 2, "why": "No such file"},
    {"t": "signal", "number": 15},
    {"t": "silent", "for": 601.5},
    {"t": "words", "attempt": 2, "tail": [[1795257741.25, "err", "Traceback\n"]]},
]  # fmt: skip
AGENT_REPORTS = [
    wire.devices_message(ProbeAnswer((REPORT, REPORT)), asked=True),
    wire.devices_message(ProbeAnswer(error="npu-smi hangs"), asked=False),
    wire.healed_message((HealResult("0.0", True, "by itself"), HealResult("0.1", None, ""))),
    {**wire.evidence_message("Thread 1: forward (train.py:7)\n"), "attempt": 2},
    {"t": "quiet", "attempt": 2, "quiet_s": 600.5, "what": "no IO"},
    {"t": "use", "attempt": 2, "unchanged": None, "what": "no device tells"},
    {**wire.stall_message(StallSeen("n1", 8, 11.5, usual_s=1.25, stage_s=-1.0, reports=True)), "attempt": 2},
    {
        **wire.compared_message(
            (WaitTimes(3, "n1", 60, 0.02, 0.001, (CallDurations("0#1", 7, (12, 13)),), 1.5, 20.0),),
            (EntryTimes(3, "n1", "0#1", 7, (1, 2, 3)),),
        ),
        "attempt": 2,
    },
    {"t": "stage", "attempt": 2, "rank": 3, "stage_s": 60.0},
    {"t": "progress", "attempt": 2, "step": 700, "beats": 64, "saved": 1},
    {**wire.alive_message({3: (1.5, "it did IO")}), "attempt": 2},
    {"t": "overdue", "attempt": 2, "rank": 3, "why": "no heartbeat for 61 s"},
    {"t": "said", "attempt": 2, "rank": 3, "what": "message", "words": ["half way"]},
]
MESSAGES = [*HELLOS, *SHIM_REPORTS, *AGENT_REPORTS]
Hello = wire.ShimHello | wire.AgentHello


def messages(bases: list[Any]) -> st.SearchStrategy[Any]:
    """Objects, as the link gives them."""
    return mutated_trees(bases).filter(lambda tree: isinstance(tree, dict))


def _greeted() -> tuple[SignedConnection, SignedConnection]:
    server, client = SignedConnection(b"k" * 32, server=True), SignedConnection(b"k" * 32, server=False)
    while not (server.ready and client.ready):
        for one, other in ((server, client), (client, server)):
            data = bytes(one.outbox)
            one.outbox.clear()
            other.feed(data)
    return server, client


def _strange(given: tuple[bool, list[bytes]]) -> list[dict[str, Any]]:
    """Bytes of somebody who does not know the secret."""
    as_server, portions = given
    link = SignedConnection(b"k" * 32, as_server)
    told = [message for portion in portions for message in link.feed(portion)]
    assert not link.ready and not told, "a stranger was let in"
    return told


def _signed(link: SignedConnection, text: bytes, number: int) -> bytes:
    return link._digest(False, number, text) + b" " + text + b"\n"


def _insider(lines: list[bytes]) -> list[Hello | wire.ShimReport | wire.AgentReport]:
    """Lines of somebody who knows the secret, read as the controller reads them."""
    server, client = _greeted()
    read: list[Any] = []
    for number, line in enumerate(lines):
        for message in server.feed(_signed(client, line.replace(b"\n", b" "), number)):
            assert isinstance(message, dict)
            read += list(_as_anything(message))
    return read


def _as_anything(message: dict[str, Any]) -> Iterable[Any]:
    readers: tuple[Callable[[Any], Any], ...] = (wire.read_hello, lambda told: wire.shim_report(0, told), wire.agent_report)
    for reader in readers:
        try:
            yield reader(message)
        except WireError as error:
            assert str(error)


@dataclass(frozen=True, slots=True)
class Damage:
    """To the lines of a connection. how: what; at, more: which line or byte, by its share of all."""

    how: str
    at: float
    more: float


DAMAGE = st.builds(
    Damage,
    st.sampled_from(("drop", "repeat", "swap", "cut", "flip", "put", "oversize", "no newline")),
    st.floats(0, 0.999),
    st.floats(0, 0.999),
)


def _damaged(lines: list[bytes], damage: Damage) -> list[bytes]:
    at, other = int(damage.at * len(lines)), int(damage.more * len(lines))
    line = lines[at] or b"\n"
    byte = int(damage.more * len(line))
    match damage.how:
        case "drop":
            return lines[:at] + lines[at + 1 :]
        case "repeat":
            return lines[: at + 1] + lines[at:]
        case "swap":
            lines[at], lines[other] = lines[other], lines[at]
            return lines
        case "cut":
            new = line[:byte]
        case "flip":
            new = line[:byte] + bytes([line[byte] ^ 1]) + line[byte + 1 :]
        case "put":
            new = line[:byte] + b"\x00\n" + line[byte:]
        case "oversize":
            new = line[:-1] + b"x" * MAX_LINE + b"\n"
        case _:
            new = line[:-1]
    return [*lines[:at], new, *lines[at + 1 :]]


def _meddled(given: tuple[list[dict[str, Any]], list[Damage], list[int]]) -> list[dict[str, Any]]:
    """A connection that somebody meddles with: what is told is what was said, up to where it was damaged."""
    said, damages, cuts = given
    server, client = _greeted()
    lines = [client.pack(message) for message in said]
    for damage in damages:
        lines = _damaged(lines, damage) if lines else lines
    data = b"".join(lines)
    told: list[dict[str, Any]] = []
    try:
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            told += server.feed(data[begin:end])
    finally:
        assert told == said[: len(told)], "what was told was never said"
    return told


# Neither NaN nor a float without end: messages are made of what `dumps` takes.
SAID = st.sampled_from(MESSAGES)
LINES = as_bytes(mutated([dumps(message) for message in MESSAGES], ("NaN", "1e999", "\\ud800", "[" * 300, '{"t":' * 90))) | (
    as_bytes(as_json(messages(MESSAGES)))
)
DEEP = st.builds(
    lambda message, depth, bracket: message.replace('"t"', f'"x":{bracket[0] * depth}{bracket[1] * depth},"t"'),
    st.sampled_from([dumps(message) for message in MESSAGES]),
    st.sampled_from((10, 100, 300, 900, 960, 980, 990, 1000, 2000, 100_000)),
    st.sampled_from((("[", "]"), ('{"":', "0}"), ("[", ""))),
)
GREETING = mutated(["FTS1 " + "0" * 32 + "\n", "0" * 32 + " " + "0" * 64 + "\n", "0" * 64 + "\n", "GET / HTTP/1.1\r\n\r\n"])
WIRE = [
    Parser("hello", messages(HELLOS), wire.read_hello, Hello),
    Parser("report of a shim", messages(SHIM_REPORTS), lambda told: wire.shim_report(0, told), wire.ShimReport),
    Parser("report of an agent", messages(AGENT_REPORTS), wire.agent_report, wire.AgentReport),
    Parser(
        "JSON of the shim", LINES.map(lambda line: line.decode("utf-8", "replace")), loads, object, (ValueError, RecursionError)
    ),
    Parser(
        "link, a stranger",
        st.tuples(st.booleans(), torn(as_bytes(GREETING) | st.binary(max_size=300))),
        _strange,
        list[Any],
        raises=(LinkError,),
    ),
    Parser("link, an insider", st.lists(LINES | as_bytes(DEEP), max_size=4), _insider, list[Any], raises=(LinkError,)),
    Parser(
        "link, meddled with",
        st.tuples(
            st.lists(SAID, max_size=5), st.lists(DAMAGE, max_size=3), st.lists(st.integers(0, 999), max_size=3).map(sorted)
        ),
        _meddled,
        list[dict[str, Any]],
        raises=(LinkError,),
    ),
    Parser(
        "channel",
        mutated(["1:4711:00ff:10.0.0.1,host", "1:4711:" + "00" * 32 + ":fe80::1"], (":", "2:")),
        lambda text: (Channel(text).port, Channel(text).secret, Channel(text).addresses),
        tuple[int, bytes, list[str]],
        raises=(ValueError,),
    ),
]

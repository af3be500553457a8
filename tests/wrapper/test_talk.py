"""A conversation over connections that break anywhere: every message is heard once, in order, on both sides."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from ftslurm.errors import WireError
from ftslurm.model import messages as wire
from ftslurm.wrapper.shim.messages import LinkError, SignedConnection
from ftslurm.wrapper.shim.session import ReliableStream
from tests.fuzz.messages import AGENT_REPORTS, SHIM_REPORTS
from tests.wrapper.test_link import SECRET, greeted

Message = dict[str, Any]


class Side:
    """One end: a talk, and the link of the connection there is. said, got: what went in and what came out."""

    def __init__(self, server: bool) -> None:
        self.server = server
        self.talk = ReliableStream()
        self.said: list[int] = []
        self.got: list[int] = []
        self.link: SignedConnection | None = None

    def say(self, number: int) -> bytes:
        self.said.append(number)
        message = self.talk.say({"what": number})
        return self.link.pack(message) if self.link else b""

    def hear(self, data: bytes) -> None:
        """As Session and Caller do."""
        assert self.link is not None
        for message in self.link.feed(data):
            if "has" in message:
                self.talk.has(message["has"])
            elif self.talk.hear(message):
                self.got.append(message["what"])


class Wire:
    """Bytes on their way, in both directions; a break loses them all, and so whatever number of the last messages."""

    def __init__(self) -> None:
        self.sides = (Side(True), Side(False))
        self.way: dict[bool, deque[int]] = {}
        self.connect()

    def connect(self) -> None:
        server, client = (SignedConnection(SECRET, side.server) for side in self.sides)
        greeted(server, client)
        self.way = {True: deque(), False: deque()}
        for side, link in zip(self.sides, (server, client), strict=True):
            side.link = link
            hello = link.pack({"has": side.talk.heard})
            self.way[side.server].extend(hello)
        for side in self.sides:  # each has read the other's hello before it says its own again
            self.carry(not side.server, 10**6)
            assert side.link is not None
            self.way[side.server].extend(b"".join(map(side.link.pack, side.talk.kept)))

    def carry(self, from_server: bool, count: int) -> None:
        data = bytes(self.way[from_server].popleft() for _ in range(min(count, len(self.way[from_server]))))
        self.sides[from_server].hear(data)  # False is 0: what the client says the server hears

    def beat(self, from_server: bool) -> None:
        side = self.sides[not from_server]
        assert side.link is not None
        self.way[from_server].extend(side.link.pack({"has": side.talk.heard}))


@given(st.lists(st.tuples(st.sampled_from(["say", "carry", "cut", "beat"]), st.booleans(), st.integers(1, 400)), max_size=60))
def test_cut_anywhere_every_message_is_heard_once_and_in_order(happens: list[tuple[str, bool, int]]) -> None:
    wire, count = Wire(), 0
    for what, from_server, size in happens:
        note(f"{what} {from_server} {size}")
        if what == "say":
            count += 1
            wire.way[from_server].extend(wire.sides[not from_server].say(count))
        elif what == "carry":
            wire.carry(from_server, size)
        elif what == "beat":
            wire.beat(from_server)
        else:
            wire.connect()
        for one, other in (wire.sides, wire.sides[::-1]):
            assert other.got == one.said[: len(other.got)]
    wire.connect()
    for from_server in (True, False):
        wire.carry(from_server, 10**6)
        wire.beat(not from_server)
        wire.carry(not from_server, 10**6)
    for one, other in (wire.sides, wire.sides[::-1]):
        assert other.got == one.said
        assert not one.talk.kept, "and nothing is kept that was heard"


def test_what_was_said_without_a_connection_is_kept() -> None:
    talk = ReliableStream()
    first, second = talk.say({"t": "a"}), talk.say({"t": "b"})
    assert list(talk.kept) == [first, second] == [{"t": "a", "n": 1}, {"t": "b", "n": 2}]
    talk.has(1)
    talk.has(0)
    assert list(talk.kept) == [second]


@pytest.mark.parametrize("number", [None, "1", 2.0, True, 3, 10**30])
def test_a_message_after_a_missing_one_is_refused(number: object) -> None:
    talk = ReliableStream()
    with pytest.raises(LinkError):
        talk.hear({"n": number})
    assert talk.heard == 0


@pytest.mark.parametrize("number", [None, "1", 1.0, True, -1, 2, 10**30])
def test_an_acknowledgement_of_what_was_never_said_is_refused(number: object) -> None:
    talk = ReliableStream()
    talk.say({"t": "a"})
    with pytest.raises(LinkError):
        talk.has(number)
    assert len(talk.kept) == 1


def test_an_old_number_is_heard_no_more() -> None:
    talk = ReliableStream()
    assert talk.hear({"n": 1}) and talk.hear({"n": 2})
    assert not talk.hear({"n": 1}) and not talk.hear({"n": 0}) and not talk.hear({"n": -5})
    assert talk.heard == 2


def test_no_report_has_the_name_of_a_word_of_the_conversation_itself() -> None:
    """It would be taken for one, and the connection be ended for it."""
    own = {"beat", "welcome", "refused"}
    assert not own & {message["t"] for message in (*AGENT_REPORTS, *SHIM_REPORTS)}
    for word in own:
        for read in (wire.agent_report, lambda message: wire.shim_report(0, message)):
            with pytest.raises(WireError, match="unknown message"):
                read({"t": word})

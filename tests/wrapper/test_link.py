"""One authenticated connection, without the socket: what gets through, and that nothing else does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.wrapper.shim import connection
from ftslurm.wrapper.shim.connection import Channel
from ftslurm.wrapper.shim.messages import MAX_LINE, LinkError, SignedConnection

SECRET = bytes(range(32))


def pair(servers: bytes = SECRET, clients: bytes = SECRET) -> tuple[SignedConnection, SignedConnection]:
    return SignedConnection(servers, server=True), SignedConnection(clients, server=False)


def sent(link: SignedConnection) -> bytes:
    data = bytes(link.outbox)
    link.outbox.clear()
    return data


def greeted(server: SignedConnection, client: SignedConnection) -> None:
    while not (server.ready and client.ready):
        before = (len(server.outbox), len(client.outbox))
        client.feed(sent(server))
        server.feed(sent(client))
        assert before != (0, 0), "both wait for each other"


def ready_pair() -> tuple[SignedConnection, SignedConnection]:
    server, client = pair()
    greeted(server, client)
    return server, client


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_both_sides_greet_and_then_speak(step: int) -> None:
    server, client = pair()
    said: list[dict[str, Any]] = []
    while not (server.ready and client.ready):
        for one, other in ((server, client), (client, server)):
            data = sent(one)
            for at in range(0, len(data), step):
                said += other.feed(data[at : at + step])
    assert said == []
    packed = client.pack({"t": "hello", "é": [1, None]}) + client.pack({"n": 2})
    got = [message for at in range(0, len(packed), step) for message in server.feed(packed[at : at + step])]
    assert got == [{"t": "hello", "é": [1, None]}, {"n": 2}]
    assert client.feed(server.pack({"t": "start"})) == [{"t": "start"}]


def test_a_message_right_behind_the_greeting_is_heard() -> None:
    server, client = pair()
    client.feed(sent(server))
    server.feed(sent(client))
    assert client.feed(sent(server) + server.pack({"t": "start"})) == [{"t": "start"}]


def test_no_secret_and_no_message_in_the_clear_before_the_greeting() -> None:
    server, client = pair()
    transcript = sent(server)
    client.feed(transcript)
    transcript += sent(client)
    assert SECRET not in transcript and SECRET.hex().encode() not in transcript
    assert not server.ready and not client.ready


def test_who_does_not_know_the_secret_gets_nowhere() -> None:
    for servers, clients in ((SECRET, b"x" * 32), (b"x" * 32, SECRET)):
        server, client = pair(servers, clients)
        client.feed(sent(server))
        with pytest.raises(LinkError, match="secret"):
            server.feed(sent(client))
        assert not server.ready and not server.outbox


def test_a_false_server_is_found_out_by_the_client() -> None:
    server, client = pair()
    client.feed(sent(server))
    sent(client)
    with pytest.raises(LinkError, match="secret"):
        client.feed(b"0" * 64 + b"\n")
    assert not client.ready


def test_a_client_s_own_proof_sent_back_proves_nothing() -> None:
    client = SignedConnection(SECRET, server=False)
    client.feed(b"FTS1 " + b"0" * 32 + b"\n")
    challenge, proof = sent(client).split()
    for answer in (proof, challenge):
        with pytest.raises(LinkError):
            SignedConnection.feed(client, answer + b"\n")


def test_a_greeting_from_another_connection_proves_nothing() -> None:
    server, client = pair()
    client.feed(sent(server))
    overheard = sent(client)
    again = SignedConnection(SECRET, server=True)
    sent(again)
    with pytest.raises(LinkError, match="secret"):
        again.feed(overheard)


@pytest.mark.parametrize(
    "line", [b"", b"FTS2 " + b"0" * 32, b"GET / HTTP/1.1", b"SSH-2.0-OpenSSH", b"FTS1", b"a b c d", b"\x00\xff\xfe"]
)
def test_strangers_are_told_apart_by_their_greeting(line: bytes) -> None:
    for server in (True, False):
        link = SignedConnection(SECRET, server)
        with pytest.raises(LinkError):
            link.feed(line + b"\n")
        assert not link.ready


def lines_of(link: SignedConnection, *messages: dict[str, Any]) -> list[bytes]:
    return [link.pack(message) for message in messages]


@pytest.mark.parametrize(
    "tamper",
    [
        lambda a, b, c: [a, a],  # said twice
        lambda a, b, c: [b, a],  # in another order
        lambda a, b, c: [b],  # one was dropped
        lambda a, b, c: [a, c],
        lambda a, b, c: [a[:-3] + b"}\n"],  # shorter
        lambda a, b, c: [a[:-2] + b" }\n"],
        lambda a, b, c: [b"0" * 32 + a[32:]],  # another digest
        lambda a, b, c: [a[33:]],  # no digest
        lambda a, b, c: [a[:32] + b"\n"],  # nothing but the digest
        lambda a, b, c: [b"\n"],
        lambda a, b, c: [a.replace(b"1", b"2")],
        lambda a, b, c: [a[:33] + b[33:]],
    ],
)
def test_what_was_changed_repeated_dropped_or_swapped_is_refused(tamper: Any) -> None:
    server, client = ready_pair()
    lines: Iterable[bytes] = tamper(*lines_of(client, {"n": 1}, {"n": 2}, {"n": 3}))
    with pytest.raises(LinkError):
        for line in lines:
            server.feed(line)


def test_what_one_said_cannot_be_said_back_to_it() -> None:
    server, client = ready_pair()
    with pytest.raises(LinkError):
        client.feed(client.pack({"t": "stop"}))
    with pytest.raises(LinkError):
        server.feed(server.pack({"t": "stop"}))


def test_what_was_said_on_one_connection_is_no_word_on_another() -> None:
    _, client = ready_pair()
    server, _ = ready_pair()
    with pytest.raises(LinkError):
        server.feed(client.pack({"t": "hello"}))


def test_half_a_message_is_no_message_yet() -> None:
    server, client = ready_pair()
    line = client.pack({"t": "hello"})
    assert server.feed(line[:-1]) == []
    assert server.feed(line[-1:]) == [{"t": "hello"}]


def test_a_greeting_without_end_is_refused_early() -> None:
    for server in (True, False):
        link = SignedConnection(SECRET, server)
        with pytest.raises(LinkError, match="without end"):
            for _ in range(100):
                link.feed(b"a" * 100)


def test_a_message_without_end_is_refused_before_it_eats_the_memory() -> None:
    server, _ = ready_pair()
    fed = 0
    with pytest.raises(LinkError, match="without end"):
        while fed < 4 * MAX_LINE:
            server.feed(b"x" * 65536)
            fed += 65536
    assert fed <= MAX_LINE + 65536


def test_a_message_of_a_megabyte_gets_through() -> None:
    server, client = ready_pair()
    message = {"argv": ["x" * 1000] * 1000}
    assert client.feed(server.pack(message)) == [message]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"3", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"a":' + b"1" * 5000 + b"}"]
)
def test_a_message_of_somebody_who_knows_the_secret_is_an_object_or_refused(text: bytes) -> None:
    server, client = ready_pair()
    line = client._digest(False, 0, text) + b" " + text + b"\n"
    with pytest.raises(LinkError):
        server.feed(line)


@given(st.lists(st.binary(max_size=300), max_size=8), st.booleans(), st.booleans())
def test_hostile_bytes_are_refused_and_nothing_else_happens(chunks: list[bytes], as_server: bool, greeted_before: bool) -> None:
    links = ready_pair() if greeted_before else pair()
    link = links[0] if as_server else links[1]
    try:
        for chunk in chunks:
            assert link.feed(chunk) == []
    except LinkError:
        pass
    assert link.ready == greeted_before


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=3), max_size=5),
       st.integers(0, 10**6), st.integers(1, 255))  # fmt: skip
def test_no_flipped_byte_gets_through(messages: list[dict[str, Any]], at: int, flip: int) -> None:
    server, client = ready_pair()
    data = bytearray(b"".join(lines_of(client, *messages)))
    if data:
        data[at % len(data)] ^= flip
    got: list[dict[str, Any]] = []
    try:
        for byte in range(0, len(data), 64):
            got += server.feed(bytes(data[byte : byte + 64]))
    except LinkError:
        pass
    assert got == [json.loads(json.dumps(message)) for message in messages[: len(got)]]
    assert not data or len(got) < len(messages)


# --- the channel's text


def test_a_channel_tells_where_and_how() -> None:
    channel = Channel(f"1:4711:{SECRET.hex()}:10.0.0.1,fe80::1,host")
    assert (channel.port, channel.secret, channel.addresses) == (4711, SECRET, ["10.0.0.1", "fe80::1", "host"])


@pytest.mark.parametrize("text", ["", "1", "2:1:00:a", "1:x:00:a", "1:1:zz:a", "1:1:00"])
def test_a_channel_that_is_none_is_an_error_of_one_kind(text: str) -> None:
    with pytest.raises(ValueError):
        Channel(text)


# --- calls


def test_who_is_accepted_and_not_greeted_calls_again_later_and_later() -> None:
    """ftrun may have thousands to greet; who is refused calls again at once."""
    pauses = [[connection.pause_s(tries) for _ in range(50)] for tries in range(8)]
    assert set(pauses[0]) == {0.0} and all(0.5 <= pause < 1.5 for pause in pauses[1])
    assert all(4.0 <= pause < 12.0 for pause in pauses[7]) and len({round(pause, 2) for pause in pauses[7]}) > 10
    spread = [connection.spread_s(8192) for _ in range(50)]
    assert all(0.0 <= pause < 1.7 for pause in spread) and max(spread) - min(spread) > 0.5 and connection.spread_s(8) < 0.01
    with socket.create_server(("127.0.0.1", 0)) as silent:
        channel = Channel(f"1:{silent.getsockname()[1]}:{'00' * 32}:127.0.0.1")
        with pytest.raises(connection.Busy, match="does not answer"):
            connection.connect(channel, {}, 0.3, greeting_s=0.1)
    with pytest.raises(connection.NobodyListens):
        connection.connect(channel, {}, 0.3, greeting_s=0.1)


@pytest.mark.parametrize(("error", "kind"), [
    (TimeoutError("timed out"), connection.NobodyAnswers),  # as through a firewall, which main.py names then
    (socket.gaierror("no such name"), OSError),
    (OSError("no route"), OSError),
])  # fmt: skip
def test_why_nobody_was_reached(error: OSError, kind: type[OSError], monkeypatch: pytest.MonkeyPatch) -> None:
    def dial(*_: object) -> socket.socket:
        raise error

    monkeypatch.setattr(connection, "_dial", dial)
    with pytest.raises(OSError, match=f"n1 port 7: {error}") as raised:
        connection.connect(Channel(f"1:7:{'00' * 32}:n1"), {}, 0.05)
    assert raised.type is kind

"""A caller that reads nothing costs the others nothing, and of memory so much at most."""

from __future__ import annotations

import selectors
import socket

import pytest

from ftslurm.wrapper import wire
from ftslurm.wrapper.shim.messages import SignedConnection
from ftslurm.wrapper.wire import Peer, Server


def test_who_lets_too_much_wait_is_let_go_and_the_others_hear_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_UNSENT", 1 << 20)
    selector, lost = selectors.DefaultSelector(), list[str]()
    peers: dict[object, Peer] = {}

    def hear(peer: Peer, message: wire.Message) -> None:
        peer.belong_to(message["rank"])
        peers[message["rank"]] = peer

    server = Server(selector, hear, lambda peer, why, hangup: lost.append(f"{peer.owner}: {why}"), "127.0.0.1")
    callers = {rank: _call(selector, server, rank, peers) for rank in (0, 1)}
    order = {"t": "order", "more": "x" * (1 << 16)}
    sent = 0
    while not lost and sent < 1000:  # the kernel holds some MB itself
        peers[1].send(order)
        sent += 1
    peers[0].send({"t": "start"})
    sock, link = callers[0]
    assert lost == ["1: it does not read what is sent to it"] and link.feed(sock.recv(1 << 16)) == [{"t": "start"}]
    for sock, _ in callers.values():
        sock.close()
    server.close()


def _call(
    selector: selectors.BaseSelector, server: Server, rank: int, known: dict[object, Peer]
) -> tuple[socket.socket, SignedConnection]:
    sock, link = socket.create_connection(("127.0.0.1", server.port), timeout=10), SignedConnection(server.secret, server=False)
    while rank not in known:
        for key, events in selector.select(0.01):
            key.data(events)
        if not link.ready:
            link.feed(sock.recv(4096))
            sock.sendall(link.take_outbox() + (link.pack({"t": "hello", "rank": rank}) if link.ready else b""))
    return sock, link

"""The controller's side of the connections: accepts them, proves them, and hands messages over. Never blocks."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Mapping
from typing import Any

from ftslurm.errors import LaunchFailed
from ftslurm.wrapper.shim import Link, LinkError

# A peer that does not read for so long that this much waits for it is treated as gone.
MAX_UNSENT = 16 << 20
# Connections that have not proved themselves yet; more are refused, so that a stranger cannot use up our descriptors.
MAX_STRANGERS = 4096

Message = Mapping[str, Any]


class Peer:
    """One connection. `name` is the rank or node once it has said hello; until then it is a stranger."""

    def __init__(self, server: Server, sock: socket.socket, secret: bytes) -> None:
        self._server = server
        self.sock = sock
        self.link = Link(secret, server=True)
        self._unsent = bytearray(self.link.outbox)
        self.link.outbox.clear()
        self.owner: Any = None

    def send(self, message: Message) -> None:
        """Queue `message` and send what can be sent at once; the rest goes when the socket takes it."""
        self._unsent += self.link.pack(dict(message))
        if len(self._unsent) > MAX_UNSENT:
            self._server.drop(self, "it does not read what is sent to it")
        else:
            self.flush()

    def drop(self, why: str) -> None:
        self._server.drop(self, why)

    def flush(self) -> None:
        try:
            while self._unsent:
                sent = self.sock.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self._server.drop(self, str(error), hung_up=isinstance(error, ConnectionError))
            return
        self._server.want_to_write(self, bool(self._unsent))

    def receive(self) -> None:
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._server.drop(self, error.strerror or str(error), hung_up=isinstance(error, ConnectionError))
            return
        if not data:
            self._server.drop(self, "it hung up", hung_up=True)
            return
        try:
            messages = self.link.feed(data)
        except LinkError as error:
            self._server.drop(self, str(error))
            return
        self._unsent += self.link.outbox
        self.link.outbox.clear()
        self.flush()
        for message in messages:
            self._server.on_message(self, message)


class Server:
    """Listens on every address of this node, on a port of the kernel's choice.

    on_message(peer, message), on_lost(peer, why, hung_up): called from within `ready`; `peer.owner` is the caller's to use.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_message: Callable[[Peer, Message], None],
        on_lost: Callable[[Peer, str, bool], None],
        address: str = "",
    ) -> None:
        self._selector = selector
        self.on_message = on_message
        self._on_lost = on_lost
        self._peers: set[Peer] = set()
        self.secret = os.urandom(32)
        self._listener = _listen(address)
        self.port: int = self._listener.getsockname()[1]
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def channel_text(self, addresses: list[str]) -> str:
        """For the shims and agents, by environment only. Format: Channel in shim.py."""
        return f"1:{self.port}:{self.secret.hex()}:{','.join(addresses)}"

    def _accept(self, _: int) -> None:
        try:
            sock, _address = self._listener.accept()
        except OSError:
            return  # it went away, or we are out of descriptors: the shim tries again
        if sum(peer.owner is None for peer in self._peers) >= MAX_STRANGERS:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer = Peer(self, sock, self.secret)
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._ready(peer, events))
        peer.flush()

    def _ready(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE and peer in self._peers:
            peer.flush()
        if events & selectors.EVENT_READ and peer in self._peers:
            peer.receive()

    def want_to_write(self, peer: Peer, wants: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants else 0)
        key = self._selector.get_key(peer.sock)
        if key.events != events:
            self._selector.modify(peer.sock, events, key.data)

    def drop(self, peer: Peer, why: str, hung_up: bool = False) -> None:
        """Close a connection, and say so if anybody knew the peer. hung_up: the other side did."""
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()
        if peer.owner is not None:
            self._on_lost(peer, why, hung_up)

    def close(self) -> None:
        """May be called twice."""
        for peer in list(self._peers):
            peer.owner = None
            self.drop(peer, "the controller ends")
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()


def _listen(address: str) -> socket.socket:
    try:
        if address:
            return socket.create_server((address, 0), family=_family(address), backlog=4096)
        if socket.has_dualstack_ipv6():
            try:
                return socket.create_server(("", 0), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
            except OSError:
                pass  # IPv6 is compiled in and switched off
        return socket.create_server(("", 0), backlog=4096)
    except OSError as error:
        raise LaunchFailed(
            f"cannot listen for the shims on {address or 'any address'}: {error.strerror}",
            hint="--ft-set address=ADDRESS names another address of this node",
        ) from None


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET

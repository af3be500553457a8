"""Connects to the controller by one of its addresses, and verifies it."""

from __future__ import annotations

import select
import time

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, socket
from ftslurm.wrapper.shim.protocol.channel import Channel
from ftslurm.wrapper.shim.protocol.messages import Message
from ftslurm.wrapper.shim.protocol.signed import LinkError, SignedConnection

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of a message that cannot be sent: the other side does not read, or is cut off. Then there is a new connection.
SEND_TIMEOUT_S = 5.0


class NobodyListens(OSError):
    """Every address refused: the host is up, and the controller is not."""


class NobodyAnswers(OSError):
    """No answer in time: what a firewall makes of a connection that it does not let through."""


def connect(channel: Channel, env: Mapping[str, str], timeout_s: float) -> tuple[socket.socket, SignedConnection]:
    """A connection whose other side has proved to be our controller.

    Raises: OSError when there is none in time, NobodyListens when it was refused to the last, NobodyAnswers when it timed out.
    """
    launcher = env.get("SLURM_LAUNCH_NODE_IPADDR")  # where srun runs, as this node reaches it: the controller's node
    addresses = list(dict.fromkeys(([launcher] if launcher and not channel.only else []) + channel.addresses))
    deadline, last = time.monotonic() + timeout_s, OSError("no address")
    while time.monotonic() < deadline:
        refused = set()
        for address in addresses:
            try:
                return _connect(address, channel, min(10.0, timeout_s))
            except (OSError, LinkError) as error:
                if not isinstance(error, socket.gaierror):
                    refused.add(isinstance(error, ConnectionRefusedError))
                kind = NobodyAnswers if isinstance(error, TimeoutError) else OSError
                last = kind(f"{address} port {channel.port}: {error}")
        if refused == {True}:
            last = NobodyListens(*last.args)
        time.sleep(0.2)  # nothing to await: the other side has to come up
    raise last


def _connect(address: str, channel: Channel, timeout_s: float) -> tuple[socket.socket, SignedConnection]:
    sock = _dial(address, channel.port, timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link = SignedConnection(channel.secret, server=False)
        while not link.ready:
            data = sock.recv(4096)
            if not data:
                raise LinkError("it hung up during the greeting")
            link.feed(data)
            sock.sendall(link.take_outbox())
    except BaseException:
        sock.close()
        raise
    sock.settimeout(SEND_TIMEOUT_S)
    return sock, link


def receive(sock: socket.socket, link: SignedConnection) -> list[Message]:
    """The messages that have come in, maybe none. Raises: OSError, LinkError; EOFError when the other side has hung up."""
    try:
        data = sock.recv(65536, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return []
    if not data:
        raise EOFError
    return link.feed(data)


def readable(source: socket.socket) -> bool:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(0))


def _dial(address: str, port: int, timeout_s: float) -> socket.socket:
    """As socket.create_connection."""
    last = OSError("no such address")
    try:  # a number, mostly: then no resolver is loaded, 1 MB a shim
        places = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except OSError:
        places = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)
    for family, kind, protocol, _, place in places:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(timeout_s)
            sock.connect(place)
            return sock
        except OSError as error:
            sock.close()
            last = error
    raise last

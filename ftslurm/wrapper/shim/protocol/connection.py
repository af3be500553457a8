"""Connects to the controller by one of its addresses, which the environment tells, and verifies it."""

from __future__ import annotations

import os
import select
import time

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, socket
from ftslurm.wrapper.shim.protocol.messages import Message
from ftslurm.wrapper.shim.protocol.munge import handed_over
from ftslurm.wrapper.shim.protocol.signed import LinkError, SignedConnection

if TYPE_CHECKING:
    from collections.abc import Mapping

CHANNEL_VARIABLE = "FTSLURM_CHANNEL"


class Channel:
    """How to reach the controller: `1:port/launch:secret:address,address`, kept out of every command line. launch: which of
    its steps this is, counted from 1; 0 or missing for others than shims. `=address`: it listens there alone. secret: itself,
    or a credential of munge's for our user (`munge.socket.credential`), or a file of our user's (`file.path`).

    A step over the nodes of several jobs has several sruns, and each counts its tasks from 0: then it is
    `2:8/0-3,6-7:port:...`, how many tasks there are in all, and the ranks of this srun's in order.
    """

    def __init__(self, text: str) -> None:
        version, rest = text.split(":", 1)
        self.total, self.ranks = 0, None
        if version == "2":
            place, rest = rest.split(":", 1)
            total, _, ranks = place.partition("/")
            self.total, self.ranks = int(total), unfolded(ranks)
        elif version != "1":
            raise ValueError(f"channel version {version}")
        port, secret, addresses = rest.split(":", 2)
        port, _, launch = port.partition("/")
        self.port, self.launch = int(port), int(launch or 0)
        self.secret = handed_over(secret)
        self.only = addresses.startswith("=")
        self.addresses = [address for address in addresses.lstrip("=").split(",") if address]


def unfolded(text: str) -> list[int]:
    """`0-3,6` -> 0, 1, 2, 3, 6."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


# Of a message that cannot be sent: the other side does not read, or is cut off. Then there is a new connection.
SEND_TIMEOUT_S = 5.0


# For ftrun to answer who calls: it may have thousands to greet at the same time.
GREETING_S = 10.0
# Who was not answered then waits before it calls again, twice as long each time and not all alike: a call that is given up and
# made again costs ftrun two greetings, and many of those more than it has time for.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 8.0
# Where one connection of a step breaks, all of them may: they call again within so long for each rank. ftrun greets about two
# thousand a second, and its backlog is 4,096 at most.
SPREAD_S = 2e-4


class Busy(OSError):
    """The host accepted the call, and the controller did not greet in time."""


class NobodyListens(OSError):
    """Every address refused: the host is up, and the controller is not."""


class NobodyAnswers(OSError):
    """No answer in time: what a firewall makes of a connection that it does not let through."""


def pause_s(tries: int) -> float:
    """Before another call, after so many that were not answered; 0 for none."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1)) * (0.5 + os.urandom(1)[0] / 256) if tries else 0.0


def spread_s(ranks: int) -> float:
    """Before the first call again of one of `ranks`, not all alike."""
    return ranks * SPREAD_S * int.from_bytes(os.urandom(2), "big") / 65536


def connect(
    channel: Channel, env: Mapping[str, str], timeout_s: float, greeting_s: float = GREETING_S, refused_s: float = 1e9
) -> tuple[socket.socket, SignedConnection]:
    """A connection whose other side has proved to be our controller. refused_s: of the timeout, while every address refuses.

    Raises: OSError when there is none in time, NobodyListens when it was refused to the last, NobodyAnswers when it timed out,
    Busy when it did not greet.
    """
    launcher = env.get("SLURM_LAUNCH_NODE_IPADDR")  # where srun runs, as this node reaches it: the controller's node
    addresses = list(dict.fromkeys(([launcher] if launcher and not channel.only else []) + channel.addresses))
    began, last, unanswered = time.monotonic(), OSError("no address"), 0
    deadline = began + timeout_s
    while time.monotonic() < deadline:
        refused = set()
        for address in addresses:
            try:
                return _connect(address, channel, min(10.0, timeout_s), greeting_s)
            except Busy as error:
                last, unanswered = Busy(f"{address} port {channel.port}: {error}"), unanswered + 1
            except (OSError, LinkError) as error:
                if not isinstance(error, socket.gaierror):
                    refused.add(isinstance(error, ConnectionRefusedError))
                kind = NobodyAnswers if isinstance(error, TimeoutError) else OSError
                last = kind(f"{address} port {channel.port}: {error}")
        if refused == {True}:
            last, deadline = NobodyListens(*last.args), min(deadline, began + refused_s)
        # Nothing to await: the other side has to come up, or to have time.
        time.sleep(min(pause_s(unanswered) or 0.2, max(deadline - time.monotonic(), 0.0)))
    raise last


def _connect(address: str, channel: Channel, timeout_s: float, greeting_s: float) -> tuple[socket.socket, SignedConnection]:
    sock = _dial(address, channel.port, timeout_s)
    sock.settimeout(greeting_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link = SignedConnection(channel.secret, server=False)
        while not link.ready:
            data = sock.recv(4096)
            if not data:
                raise Busy("it hung up during the greeting")
            link.feed(data)
            sock.sendall(link.take_outbox())
    except BaseException as error:
        sock.close()
        if isinstance(error, socket.timeout):
            raise Busy("it does not answer") from None
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

"""The controller's side of the connections: where it listens, how it verifies callers, how they receive the secret."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from ftslurm.errors import LaunchFailed
from ftslurm.model.events import Hangup
from ftslurm.system.files import OUT_OF_DESCRIPTORS, SpareDescriptors, private_folder, room
from ftslurm.wrapper.shim.connection import munge_word
from ftslurm.wrapper.shim.messages import LinkError, SignedConnection

# --- How shims and agents receive the secret of a run.
#
# srun sends a step's whole environment to its nodes, and without TLS in Slurm anyone on the way can read it. So the
# environment holds a munge credential, which munge decodes only for processes of our own user. A step that starts in a
# container without munge reads a file of our user, which ftrun mounts there with its interpreter. Otherwise (the local
# launcher, auth/slurm, a container that ftrun mounts nothing in) the environment holds the secret itself.

MUNGE, FILE, ENVIRONMENT, AUTO = "munge", "file", "environment", "auto"


def munge_socket(config: Mapping[str, str]) -> str | None:
    """munged's socket, from slurm.conf: empty for munge's default, None if Slurm does not use munge.

    config: of `scontrol show config`; empty if nobody answers, which does not rule munge out.
    """
    if config.get("AuthType", "auth/munge") != "auth/munge":
        return None
    words = config.get("AuthInfo", "").split(",")
    return next((word.removeprefix("socket=") for word in words if word.startswith("socket=")), "")


class SecretFile:
    """A file in a folder of our own, in the state folder or in what containers get mounted; each run has its own name, since a
    file system may show an old file for some time. name: of the job's.
    """

    def __init__(self, state: Path, name: str) -> None:
        self._folder, self._name = state / "secrets", name
        self._path: Path | None = None

    def word(self, secret: bytes) -> str:
        """Write the file; gives the word that names it. Raises: StateError, OSError."""
        if self._path is None:
            private_folder(self._folder)
            self.remove()  # of a killed run
            path = self._folder / f"{self._name}.{os.urandom(8).hex()}"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(secret)
                file.flush()
                os.fsync(file.fileno())
            self._path = path
        return f"file.{os.fsencode(self._path.absolute()).hex()}"

    def remove(self) -> None:
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name.rpartition(".")[0] == self._name:
                    path.unlink(missing_ok=True)


def secret_word(
    secret: bytes, wanted: str, socket: str | None, contained: bool, say: Callable[[str], None] = lambda text: None,
    file: SecretFile | None = None,
) -> str:  # fmt: skip
    """The word that hands `secret` over in a channel's text. wanted: `nodes.secret`. say: is told why the environment is used
    after all. file: for a step in a container that can read it; None if it cannot.

    Raises: LaunchFailed if munge is wanted and unavailable; StateError, OSError if a file cannot be written.
    """
    if file is not None and (wanted == FILE or (wanted == AUTO and contained)):
        return file.word(secret)
    if wanted == ENVIRONMENT or (wanted == AUTO and (socket is None or contained)):
        return secret.hex()
    try:
        return munge_word(secret, os.geteuid(), socket or "")
    except OSError as error:
        if wanted == MUNGE:
            raise LaunchFailed(f"munge cannot pass on the secret of this run: {error}", hint="set nodes.secret=auto") from None
        say(f"munge gives no credential ({error}): the secret of this run goes in the environment, which srun sends as it is")
        return secret.hex()


# --- The controller's side of the connections: on which address it listens; it accepts them, verifies them, and passes messages
# on. Never blocks.


def own_address(wanted: str, interfaces: Mapping[str, Sequence[str]]) -> str:
    """The address that `nodes.address` means on a node: an interface's, the one in a network, or the given one.

    interfaces: name -> addresses. A name that is not an interface is a host name for the resolver. Raises: LaunchFailed.
    """
    if wanted in interfaces:
        # A link-local address needs an interface name, which differs on other nodes.
        if not (own := [address for address in interfaces[wanted] if not ip_address(address).is_link_local]):
            raise _none(f"{wanted} has no address", interfaces)
        return own[0]
    if "/" not in wanted:
        return wanted
    try:
        network = ip_network(wanted, strict=False)
    except ValueError as error:
        raise _none(f"{wanted} is not a network: {error}", interfaces) from None
    for addresses in interfaces.values():
        for address in addresses:
            if ip_address(address) in network:
                return address
    raise _none(f"no address of this node is in {wanted}", interfaces)


def _none(why: str, interfaces: Mapping[str, Sequence[str]]) -> LaunchFailed:
    there = "; ".join(f"{name} {', '.join(addresses)}" for name, addresses in sorted(interfaces.items()) if addresses)
    return LaunchFailed(f"nodes.address: {why}", hint=f"there are {there}")


def of_this_node() -> dict[str, list[str]]:
    """Name of an interface -> its addresses, IPv4 first."""
    import socket

    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [each.address.partition("%")[0] for family in families for each in found if each.family == family]
        for name, found in psutil.net_if_addrs().items()
    }


# A peer that lets this many bytes wait is treated as lost.
MAX_UNSENT = 16 << 20
# Connections that have not identified themselves yet. If there are more, or as many peers as possible, the oldest is closed: ours
# identify themselves within a moment, and call again.
MAX_STRANGERS = 4096
STRANGER_S = 10.0
# Between one look at those who talk and the next: with one each, thousands that call while thousands talk overrun the backlog.
ACCEPTED_AT_ONCE = 64
# Callers that the kernel holds until they are accepted. For one socket it holds net.core.somaxconn at most, 128 before Linux 5.4
# (listen(2)), and drops others without a word: they wait for a greeting in vain. So there may be several sockets of one port.
WAITING, SOCKETS_MAX = 16384, 32
SOMAXCONN = Path("/proc/sys/net/core/somaxconn")
# Descriptors reserved for everything else: the ledger, a launcher, Slurm's commands. Peers are counted, because the kernel always
# gives the lowest free descriptor number.
DESCRIPTORS_KEPT = 128

Message = Mapping[str, Any]


class Peer:
    """One connection. `name` is the rank or node after its hello; until then it is a stranger."""

    def __init__(self, server: Server, sock: socket.socket, secret: bytes) -> None:
        self._server = server
        self.sock = sock
        self.link = SignedConnection(secret, server=True)
        self._unsent = bytearray(self.link.take_outbox())
        self._waits = False  # for the socket to take more
        self.owner: Any = None  # see belong_to
        self.since = time.monotonic()

    def belong_to(self, owner: Any) -> None:
        """It has identified itself; None: it belongs to nobody any more."""
        self.owner = owner
        self._server.strangers.pop(self, None)

    def send(self, message: Message) -> None:
        """Queue `message` and send what the socket takes now; the rest follows when it takes more."""
        self._unsent += self.link.pack(message)
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
            self._server.drop(self, str(error), _end_by(error))
            return
        if self._waits != bool(self._unsent):
            self._waits = not self._waits
            self._server.want_to_write(self, self._waits)

    def receive(self) -> None:
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._server.drop(self, error.strerror or str(error), _end_by(error))
            return
        if not data:
            self._server.drop(self, "it hung up", Hangup.CLOSED)
            return
        try:
            messages = self.link.feed(data)
        except LinkError as error:
            self._server.drop(self, str(error))
            return
        if self.link.outbox:
            self._unsent += self.link.take_outbox()
            self.flush()
        for message in messages:
            self._server.on_message(self, message)


class Server:
    """Listens on every address of this node or on one, on a port that the kernel chooses or on one of `ports` (both ends
    included).

    on_message(peer, message), on_lost(peer, why, hangup): called from within `ready`; `peer.owner` is free for the caller.
    most: connections at the same time.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_message: Callable[[Peer, Message], None],
        on_lost: Callable[[Peer, str, Hangup], None],
        address: str = "",
        ports: tuple[int, int] | None = None,
    ) -> None:
        self._selector = selector
        self.on_message = on_message
        self._on_lost = on_lost
        self._peers: set[Peer] = set()
        self.strangers: dict[Peer, None] = {}  # in the order of arrival
        self.secret = os.urandom(32)
        first = _listen(address, ports)
        self.port: int = first.getsockname()[1]
        self._listeners = [first, *_listen_beside(first)]
        for listener in self._listeners:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
        free = room()
        self.most = max(free - DESCRIPTORS_KEPT, free // 2)
        self._spares = SpareDescriptors(1)

    def channel_text(self, addresses: list[str], only: bool = False, word: str = "", launch: int = 0) -> str:
        """The text for the environment of shims and agents. Format: Channel in shim/connection.py. only: no other address works.
        word: hands the secret over; without it the text contains the secret. launch: of a step, counted from 1.
        """
        return f"1:{self.port}/{launch}:{word or self.secret.hex()}:{'=' if only else ''}{','.join(addresses)}"

    def _accept(self, listener: socket.socket, _: int) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _address = listener.accept()
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS and not self._drop_oldest_stranger():
                    self._turn_away(listener)
                return  # nobody else waits, or it has ended
            self._greet(sock)

    def _greet(self, sock: socket.socket) -> None:
        if (len(self.strangers) >= MAX_STRANGERS or len(self._peers) >= self.most) and not self._drop_oldest_stranger():
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer = Peer(self, sock, self.secret)
        self._peers.add(peer)
        self.strangers[peer] = None
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._ready(peer, events))
        peer.flush()

    def _drop_oldest_stranger(self) -> bool:
        """Drop the oldest stranger. False if there is none."""
        if not self.strangers:
            return False
        self.drop(next(iter(self.strangers)), "too many others call")
        return True

    def _turn_away(self, listener: socket.socket) -> None:
        """Refuse a waiting connection when no descriptor is left: it would keep the loop awake forever."""
        with self._spares.lent(), suppress(OSError):
            listener.accept()[0].close()

    def _ready(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE and peer in self._peers:
            peer.flush()
        if events & selectors.EVENT_READ and peer in self._peers:
            peer.receive()

    def want_to_write(self, peer: Peer, wants: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants else 0)
        self._selector.modify(peer.sock, events, self._selector.get_key(peer.sock).data)

    @property
    def wakes_at(self) -> float | None:
        """When `sweep` has something to do; monotonic seconds."""
        return next((peer.since + STRANGER_S for peer in self.strangers), None)

    def sweep(self, now: float) -> None:
        """Drop peers that have not said hello in time."""
        while self.strangers and now - (oldest := next(iter(self.strangers))).since >= STRANGER_S:
            self.drop(oldest, "it says nothing")

    def drop(self, peer: Peer, why: str, hangup: Hangup = Hangup.NONE) -> None:
        """Close a connection, and report it if the peer was known. hangup: how the other side closed it."""
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self.strangers.pop(peer, None)
        self._selector.unregister(peer.sock)
        peer.sock.close()
        if peer.owner is not None:
            self._on_lost(peer, why, hangup)

    def close(self) -> None:
        """Close all; may be called twice."""
        for peer in list(self._peers):
            peer.belong_to(None)
            self.drop(peer, "the controller ends")
        while self._listeners:
            self._selector.unregister(self._listeners[-1])
            self._listeners.pop().close()
        self._spares.close()


def _end_by(error: OSError) -> Hangup:
    return Hangup.RESET if isinstance(error, ConnectionError) else Hangup.NONE


def _listen(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Open a listening socket. Raises: LaunchFailed."""
    taken: OSError | None = None
    for port in _in_any_order(ports):
        try:
            return _listen_on(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or ports is None:
                raise LaunchFailed(
                    f"cannot listen for the shims on {address or 'any address'}: {error.strerror}",
                    hint="give another address of this node with --ft-set nodes.address=ADDRESS",
                ) from None
            taken = error
    assert taken is not None and ports is not None
    raise LaunchFailed(
        f"every port from {ports[0]} to {ports[1]} is taken on this node", hint="give others with --ft-set nodes.ports=LOW-HIGH"
    ) from taken


def _listen_beside(first: socket.socket) -> list[socket.socket]:
    """As many more sockets of its port as hold WAITING callers together; fewer where that cannot be. No other ftrun can share the
    port: its own first socket would have to be one that shares.
    """
    found: list[socket.socket] = []
    with suppress(OSError, ValueError):
        held = max(1, int(SOMAXCONN.read_text()))
        while len(found) + 1 < min(SOCKETS_MAX, WAITING / held):
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            found.append(_sharing(first))
    return found


def _sharing(first: socket.socket) -> socket.socket:
    """One more that listens at its port."""
    sock = socket.socket(first.family)
    try:
        for level, name in _SHARED if first.family == socket.AF_INET6 else _SHARED[:2]:
            sock.setsockopt(level, name, first.getsockopt(level, name))
        sock.bind(first.getsockname())
        sock.listen(WAITING)
    except OSError:
        sock.close()  # a selector would report one that does not listen again and again
        raise
    return sock


_SHARED = (
    (socket.SOL_SOCKET, socket.SO_REUSEADDR), (socket.SOL_SOCKET, socket.SO_REUSEPORT), (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY),
)  # fmt: skip


def _in_any_order(ports: tuple[int, int] | None) -> Sequence[int]:
    """The ports in random order: several programs, srun among them, search the same range. 0: the kernel chooses."""
    if ports is None:
        return (0,)
    import random  # rarely asked for

    low, high = ports
    return random.sample(range(low, high + 1), high - low + 1)


def _listen_on(address: str, port: int) -> socket.socket:
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=WAITING)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=WAITING, dualstack_ipv6=True)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            # IPv6 is compiled in but off
    return socket.create_server(("", port), backlog=WAITING)

"""How a shim reaches its controller: the addresses and the secret, which the environment, munge or a file tells."""

from __future__ import annotations

import ctypes
import os
import select
import stat
import time

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, socket
from ftslurm.wrapper.shim.messages import LinkError, Message, SignedConnection

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# --- The secret of an ftrun in a file of its user's: for a step that begins where there is no munge, and its folder is mounted.

SECRET_BYTES = 32
SECRET_SEEN_S = 10.0  # for a file system on the network to show what another node has just made


def secret_at(path: str) -> bytes:
    """Read as nobody else may have laid it there: a plain file with one name, ours alone, in a folder that is ours alone.

    Raises: OSError, ValueError.
    """
    deadline = time.monotonic() + SECRET_SEEN_S
    while True:
        try:
            return _secret_in(path)
        except FileNotFoundError:
            if time.monotonic() >= deadline:
                raise OSError(f"{path}, the secret of this run, does not exist: is its folder mounted here?") from None
        time.sleep(0.1)


def _secret_in(path: str) -> bytes:
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _ours_alone(os.fstat(folder), os.path.dirname(path))
        # No FIFO holds us up.
        file = os.open(os.path.basename(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(file)
            _ours_alone(found, path)
            secret = os.read(file, SECRET_BYTES + 1)
        finally:
            os.close(file)
    finally:
        os.close(folder)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or len(secret) != SECRET_BYTES:
        raise ValueError(f"{path} does not hold the secret of a run")
    return secret


def _ours_alone(found: os.stat_result, path: str) -> None:
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(f"{path} belongs to another user or is open to others")


# --- The secret of an ftrun as a credential of munge's, by libmunge.

# Of libmunge, munge.h.
MUNGE_LIBRARY = "libmunge.so.2"
MUNGE_CIPHER, MUNGE_SOCKET, MUNGE_UID = 0, 8, 9  # options
MUNGE_AES128 = 4
MUNGE_NO_SOCKET, MUNGE_TIMEOUT = 6, 7  # munged does not answer
# Expired, ahead of our clock, decoded here before (by the next rank): all that is no matter where a key is handed over, which
# is given all the same. Who may not have it gets another answer, and nothing (seen on 0.5.15).
MUNGE_GIVES = (0, 15, 16, 17)
MUNGED_S = 10.0  # for munged to come back


class Munge:
    """munged on this node, at `socket` (empty: where munge has it)."""

    def __init__(self, socket: str) -> None:
        """Raises: OSError."""
        self._library = library = ctypes.CDLL(MUNGE_LIBRARY)
        library.munge_ctx_create.restype = ctypes.c_void_p
        library.munge_strerror.restype = ctypes.c_char_p
        self._context = ctypes.c_void_p(library.munge_ctx_create())
        if socket:
            self._set(MUNGE_SOCKET, ctypes.c_char_p(os.fsencode(socket)))

    def encode(self, payload: bytes, user_id: int) -> bytes:
        """For processes of this user alone. Raises: OSError."""
        self._set(MUNGE_CIPHER, ctypes.c_int(MUNGE_AES128))
        self._set(MUNGE_UID, ctypes.c_int(user_id))
        text = ctypes.c_char_p()
        self._check(self._library.munge_encode(ctypes.byref(text), self._context, payload, ctypes.c_int(len(payload))), (0,))
        return text.value or b""

    def decode(self, credential: bytes) -> tuple[bytes, int]:
        """Payload, and whose process has encoded it. Raises: OSError."""
        data, size, user, group = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint(), ctypes.c_uint()
        deadline = time.monotonic() + MUNGED_S
        while True:
            status = self._library.munge_decode(credential, self._context, *map(ctypes.byref, (data, size, user, group)))
            if status not in (MUNGE_NO_SOCKET, MUNGE_TIMEOUT) or time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        self._check(status, MUNGE_GIVES)
        return ctypes.string_at(data, size.value), user.value

    def _set(self, option: int, value: Any) -> None:
        self._check(self._library.munge_ctx_set(self._context, ctypes.c_int(option), value), (0,))

    def _check(self, status: int, good: tuple[int, ...]) -> None:
        if status not in good:
            raise OSError(f"munge: {self._library.munge_strerror(status).decode(errors='replace')}")


def munge_word(secret: bytes, user_id: int, socket: str) -> str:
    """As Channel reads it. Raises: OSError."""
    text = Munge(socket).encode(secret, user_id).decode()
    return f"munge.{os.fsencode(socket).hex()}.{text.removeprefix('MUNGE:').removesuffix(':')}"


def handed_over(word: str) -> bytes:
    """The secret. Raises: OSError where munge or the file does not give it, ValueError for what is none of our user's."""
    if word.startswith("file."):
        return secret_at(os.fsdecode(bytes.fromhex(word.removeprefix("file."))))
    if not word.startswith("munge."):
        return bytes.fromhex(word)
    _, socket, text = word.split(".", 2)
    secret, user_id = Munge(os.fsdecode(bytes.fromhex(socket))).decode(f"MUNGE:{text}:".encode())
    if user_id != os.geteuid():
        raise ValueError(f"its secret belongs to user {user_id}, not to user {os.geteuid()}")
    return secret


# --- Connects to the controller by one of its addresses, which the environment tells, and verifies it.

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


# A message that cannot be sent for so long (the other side does not read, or is cut off) ends its connection; a new one follows.
SEND_TIMEOUT_S = 5.0


# For ftrun to answer who calls: it may have thousands to greet at the same time.
GREETING_S = 10.0
# Who was not answered then waits before it calls again, twice as long each time and not all alike: a call that is given up and
# made again costs ftrun two greetings, and many of those more than it has time for.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 8.0
# Where one connection of a step breaks, all of them may: they call again within this time for each rank. ftrun greets about two
# thousand a second, and its backlog is 4,096 at most.
SPREAD_S = 2e-4


class Busy(OSError):
    """The host accepted the call, and the controller did not greet in time."""


class NobodyListens(OSError):
    """Every address refused: the host is up, and the controller is not."""


class NobodyAnswers(OSError):
    """No answer in time: what a firewall makes of a connection that it does not let through."""


def pause_s(tries: int) -> float:
    """Seconds to wait before the next call. tries: calls so far that were not answered."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1)) * (0.5 + os.urandom(1)[0] / 256) if tries else 0.0


def spread_s(ranks: int) -> float:
    """Seconds to wait before the first new call, at random: `ranks` call again at the same time."""
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
    # For a text Python loads what names of other alphabets take: re, enum and a table of all letters, a third of a shim's start.
    host = address.encode() if address.isascii() else address
    try:  # a number, mostly: then no resolver is loaded, 1 MB a shim
        places = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except OSError:
        places = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
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

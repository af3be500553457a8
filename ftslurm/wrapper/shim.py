"""The shim: parent of one task's command. One file, standard library only: it also runs inside containers.

`srun ... python -I -S -c "from shim import main; main()" -- command args` stands where the command stood. The shim
calls the controller, runs the command when told to, reports how it ended, stops it with everything it left behind, runs
it again, and at last ends as the command did. It never starts anything by itself, and it outlives the controller only to
clean up. What the rank prints passes through it unchanged; the last of it, and the first that looks like an error, is
told when the rank fails.

A broken connection is built anew, and no message is lost or heard twice. The command runs on a lease that the
controller's answers renew; when it runs out, all is killed here, by the shim or, should that be stopped, by the kernel.
But for a suspended job: Slurm announces that (SIGTSTP, two seconds ahead), the shim asks the controller to wait for it
however long it takes, and only where the controller has said yes the lease does not run out meanwhile.

Threads: one forks, waits and talks to the controller, so death by PR_SET_PDEATHSIG stays bound to the shim as a whole;
the pumps only read, note and write, one dials after a break, and nobody ever waits for any of them.

Proof that nothing is left: the shim is the subreaper of its tree (prctl(2)), so whatever leaves its parent becomes a
child of the shim. When wait says ECHILD there is no descendant any more, whatever it forked, daemonised or renamed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
import time
from _thread import allocate_lock, start_new_thread
from _thread import error as ThreadError
from _thread import stack_size as set_stack_size

# The C modules themselves, where there are such: one shim a task starts at once on every core, and the Python halves of
# these (re, enum, selectors, OpenSSL) would double its start-up time and add 4 MB. What is used of them is documented
# API that the public modules pass through as it is.
try:
    import _signal as signal
    import _socket as socket
    from _blake2 import blake2s
    from _collections import deque
    from _json import encode_basestring_ascii, make_scanner
except ImportError:
    import signal
    import socket
    from collections import deque
    from hashlib import blake2s
    from json.encoder import encode_basestring_ascii
    from json.scanner import make_scanner
from _operator import _compare_digest as same_digest
from _operator import itemgetter

PROTOCOL = b"FTS1"
CHANNEL_VARIABLE = "FTSLURM_CHANNEL"
MARK = "FTSLURM_CALLED"  # see system/programs.py
PAGE_VARIABLE = "FTSLURM_PAGE"
MAX_LINE = 4 << 20  # an argv or environment of this size would not be executed either
MAX_GREETING = 200
CONNECT_TIMEOUT_S = 30.0
# Of a message that cannot be sent: the other side does not read, or is cut off. Then there is a new connection.
SEND_TIMEOUT_S = 5.0
REDIAL_S = 3.0  # for one try; the first lost SYN is sent again after one second
# The controller's host answers, and nobody listens there: ftrun has ended. Longer than a reload of a firewall's rules.
REFUSED_S = 5.0
# When Slurm has just asked the step to end, it has asked the batch script too, and ftrun most likely ended with it: Slurm kills
# all that a script leaves in its cgroup. As long after SIGTERM; SIGKILL follows within KillWait, 30 s by default.
ENDING_S, ENDING_REFUSED_S = 60.0, 0.5
CUT_OFF = "cut off from ftrun for longer than the lease"
MISSED_BEATS = 2  # as many without an answer, and the connection is taken for dead: TCP itself would wait for minutes
# From the end of the lease to the kernel's own SIGKILL, for the case that the shim cannot act: it kills the shim as well.
# Below the lease's margin (lease.margin).
GUARD_S = 1.0
# From Slurm's announcement that it will stop the job to taking it that it did not, by a clock that goes on meanwhile.
# slurmd sends the SIGSTOP two seconds after the SIGTSTP; seen on 22.05.
PAUSE_S = 10.0
# Without a controller nobody asks for a grace: the ranks get that of `stop.grace`, which it told, or the default, and the
# default of `stop.kill_wait`.
ORPHAN_GRACE_S, ORPHAN_KILL_WAIT_S = 20.0, 30.0
LEFT_WAIT_S = 3.0  # for what an older attempt left, after SIGKILL; no beat is sent meanwhile
EXEC_LOOKS, EXEC_S = 20, 0.005  # a process may have no environment at all, so not for long
RESCAN_S = 0.02  # between two SIGKILL rounds: children of the killed become ours only once they are reaped
OWN_FAILURE = 71  # EX_OSERR: the shim itself could not do its work

# Of output, as wire.py takes it: a piece has this many characters at most.
TAIL_MAX = 1 << 20
CHUNKS_MAX = 4096  # a stream; a rank that prints a byte every now and then would cost more memory than it prints
SMALL_BYTES = 4096  # what is larger is kept as it came
WORDS_MAX = MAX_LINE - (256 << 10)  # of one message, escaped: a control character takes six bytes
PIECE_S = 0.05  # fine enough to tell a cause from what follows on other ranks, coarse enough for few pieces
LINE_S = 1.0  # as long may a piece wait for the end of its last line
ERRORS_MAX, ERROR_LINE_MAX = 8192, 1024  # of one stream in one attempt
ERROR_WORDS = (b"rror", b"ERR", b"Traceback", b"atal", b"xception")
ERROR_PARTS = (b"rror", b"ERR", b"aceb", b"atal", b"xcep")  # of those; searched for twice as fast
READ_BYTES = 1 << 16  # what a pipe holds
# For rank 0's rendezvous, from so many below the ports of connections (on Linux 20768 to 32767), not those of others' defaults.
PORTS, LOWEST_PORT, PORTS_LEAST, PORT_TRIES, PORT_STRIDE = 12000, 10000, 100, 200, 7919
POPULAR_PORTS = (25565, 27017, 29400, 29500)  # the last two are torchrun's
STACK_BYTES = 256 << 10  # of a pump's thread; only what is touched becomes resident
# From a rank's end to the report, for what it wrote before to be read: a pump needs far less, but one that waits for a
# reader (srun is suspended) shall not hold the answer to a failure up.
SETTLE_S, SETTLE_STEP_S = 0.2, 0.001
# At the end, for a reader that is slow. Below `stop.kill_wait` and Slurm's KillWait of 30 s, after which it would be
# SIGKILL that ends us: what cannot be delivered by then belongs to a reader that does not read.
DELIVER_S = 10.0
NOTES_TOLD = 16 << 10  # of what the program has said, with its exit; its agent tells the rest
NAME_MAX = 1000  # characters of a command's name that are told; wire.py takes 4096 of the whole reason
NOTE_READ_S = 1.5  # an agent reads once a second (LOOK_S in pages.py)
SLOW_CYCLE_S = 0.1  # of the drill "slow": too short for any hang detection, too long to cost much

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Passed on to the command and reported. STOP and KILL do what the kernel does, TSTP and CONT announce.
FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGXCPU, signal.SIGURG,
)  # fmt: skip


# Slurm's, around the suspension of a job: two seconds before its SIGSTOP, and to go on. Passed on where Slurm signals the
# task alone, as a program may have handlers for them.
ANNOUNCING = (signal.SIGTSTP, signal.SIGCONT)


class LinkError(Exception):
    """The other side is not who it should be, or what it sent was damaged, repeated or out of order."""


class NobodyListens(OSError):
    """Every address refuses: the host lives, and the controller does not."""


class _JsonRules:
    """What a scanner asks for; the defaults of json.loads, without NaN and Infinity."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    memo: dict = {}  # noqa: RUF012 -- the scanner's own scratch

    @staticmethod
    def parse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")


_scan = make_scanner(_JsonRules())


def loads(text: str) -> object:
    """As json.loads. Raises: ValueError, RecursionError."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON value") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def dumps(value: object) -> str:
    """As json.dumps, for what messages are made of. Raises: TypeError for anything else."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(dumps, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode_basestring_ascii(key)}:{dumps(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"{type(value).__name__} in a message")


class Link:
    """One authenticated connection, without the socket: bytes in, messages (dicts) and bytes out.

    Both sides prove that they know the secret by answering the other's random challenge; every line after that carries
    a keyed digest over its direction, its number and its text, so nothing can be forged, replayed, dropped or swapped.
    """

    def __init__(self, secret: bytes, server: bool) -> None:
        self._secret = secret
        self._server = server
        self._mine = os.urandom(16).hex().encode()
        self._session = b""
        self._buffer = bytearray()
        self._sent = 0
        self._received = 0
        self._proved = False  # client: the server has still to answer our challenge
        self.ready = False
        self.outbox = bytearray(PROTOCOL + b" " + self._mine + b"\n" if server else b"")

    def feed(self, data: bytes) -> list[dict]:
        """Messages completed by `data`; bytes to send are in `outbox`. Raises: LinkError."""
        self._buffer += data
        messages = []
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if self.ready:
                messages.append(self._open(line))
            else:
                self._greet(line)
        if len(self._buffer) > (MAX_LINE if self.ready else MAX_GREETING):
            raise LinkError("a line without end")
        return messages

    def pack(self, message: dict) -> bytes:
        """`message` as one line. Only when `ready`."""
        text = dumps(message).encode()
        line = self._digest(self._server, self._sent, text) + b" " + text + b"\n"
        self._sent += 1
        return line

    def _open(self, line: bytes) -> dict:
        digest, _, text = line.partition(b" ")
        if not same_digest(digest, self._digest(not self._server, self._received, text)):
            raise LinkError("a message that does not carry the right digest")
        self._received += 1
        try:
            message = loads(text.decode())
        except (ValueError, RecursionError) as error:
            raise LinkError(f"a message that is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise LinkError("a message that is not an object")
        return message

    def _greet(self, line: bytes) -> None:
        """server: FTS1 challenge -> client: challenge proof -> server: proof; then both are ready."""
        words = line.split()
        if self._server and len(words) == 2:
            self._check(words[1], self._proof(b"c", self._mine, words[0]))
            self._begin(self._mine, words[0])
            self.outbox += self._proof(b"s", words[0], self._mine) + b"\n"
        elif not self._server and not self._proved and len(words) == 2 and words[0] == PROTOCOL:
            self._proved, self._theirs = True, words[1]
            self.outbox += self._mine + b" " + self._proof(b"c", self._theirs, self._mine) + b"\n"
        elif not self._server and self._proved and len(words) == 1:
            self._check(words[0], self._proof(b"s", self._mine, self._theirs))
            self._begin(self._theirs, self._mine)
        else:
            raise LinkError("not an ftslurm greeting")

    def _check(self, given: bytes, expected: bytes) -> None:
        if not same_digest(given, expected):
            raise LinkError("the other side does not know the secret of this job")

    def _begin(self, servers: bytes, clients: bytes) -> None:
        self._session = blake2s(servers + clients, key=self._secret).digest()
        self.ready = True

    def _proof(self, side: bytes, first: bytes, second: bytes) -> bytes:
        return blake2s(side + b" " + first + b" " + second, key=self._secret).hexdigest().encode()

    def _digest(self, from_server: bool, number: int, text: bytes) -> bytes:
        side = b"s" if from_server else b"c"
        return blake2s(side + number.to_bytes(8, "big") + text, key=self._session, digest_size=16).hexdigest().encode()


class Talk:
    """One side of a conversation over as many connections as it takes, without any of them: messages are numbered, kept
    until the other side has them, and said again after a break; what comes twice is heard once."""

    def __init__(self) -> None:
        self.heard = 0  # number of the last message that came in
        self._said = 0
        self._kept: deque[dict] = deque()

    def say(self, message: dict) -> dict:
        """`message` with its number, to be sent if there is a connection."""
        self._said += 1
        self._kept.append({**message, "n": self._said})
        return self._kept[-1]

    def hear(self, message: dict) -> bool:
        """Is it a new one? Raises: LinkError when one before it is missing."""
        number = message.get("n")
        if type(number) is not int or number > self.heard + 1:
            raise LinkError(f"after message {self.heard} came message {str(number)[:20]}")
        new = number == self.heard + 1
        self.heard = max(self.heard, number)
        return new

    def has(self, number) -> None:
        """The other side has everything up to `number`. Raises: LinkError when it cannot."""
        if type(number) is not int or not 0 <= number <= self._said:
            raise LinkError(f"message {str(number)[:20]} of {self._said} was acknowledged")
        while self._kept and self._kept[0]["n"] <= number:
            self._kept.popleft()

    @property
    def kept(self) -> list[dict]:
        """What the other side may not have yet, in order."""
        return list(self._kept)


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
            status = self._library.munge_decode(
                credential, self._context, *map(ctypes.byref, (data, size, user, group))
            )
            if status not in (MUNGE_NO_SOCKET, MUNGE_TIMEOUT) or time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        self._check(status, MUNGE_GIVES)
        return ctypes.string_at(data, size.value), user.value

    def _set(self, option: int, value) -> None:
        self._check(self._library.munge_ctx_set(self._context, ctypes.c_int(option), value), (0,))

    def _check(self, status: int, good: tuple) -> None:
        if status not in good:
            raise OSError(f"munge: {self._library.munge_strerror(status).decode(errors='replace')}")


def munge_word(secret: bytes, user_id: int, socket: str) -> str:
    """As Channel reads it. Raises: OSError."""
    text = Munge(socket).encode(secret, user_id).decode()
    return f"munge.{os.fsencode(socket).hex()}.{text.removeprefix('MUNGE:').removesuffix(':')}"


def handed_over(word: str) -> bytes:
    """The secret. Raises: OSError where munge does not give it, ValueError for what is none of our user's."""
    if not word.startswith("munge."):
        return bytes.fromhex(word)
    _, socket, text = word.split(".", 2)
    secret, user_id = Munge(os.fsdecode(bytes.fromhex(socket))).decode(f"MUNGE:{text}:".encode())
    if user_id != os.geteuid():
        raise ValueError(f"its secret is of user {user_id}, and not of {os.geteuid()}")
    return secret


class Channel:
    """How to reach the controller: `1:port/launch:secret:address,address`, kept out of every command line. launch: which of
    its steps this is, counted from 1; 0 or missing for others than shims. `=address`: it listens there alone. secret: itself,
    or a credential of munge's for our user: `munge.socket.credential`.

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


def connect(channel: Channel, env, timeout_s: float) -> tuple[socket.socket, Link]:
    """A connection whose other side has proved to be our controller.

    Raises: OSError when there is none in time, NobodyListens when it was refused to the last.
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
                last = OSError(f"{address} port {channel.port}: {error}")
        if refused == {True}:
            last = NobodyListens(*last.args)
        time.sleep(0.2)  # nothing to await: the other side has to come up
    raise last


def _connect(address: str, channel: Channel, timeout_s: float) -> tuple[socket.socket, Link]:
    sock = _dial(address, channel.port, timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link = Link(channel.secret, server=False)
        while not link.ready:
            data = sock.recv(4096)
            if not data:
                raise LinkError("it hung up during the greeting")
            link.feed(data)
            sock.sendall(link.outbox)
            link.outbox.clear()
    except BaseException:
        sock.close()
        raise
    sock.settimeout(SEND_TIMEOUT_S)
    return sock, link


def receive(sock: socket.socket, link: Link) -> list[dict]:
    """The messages that have come in, maybe none. Raises: OSError, LinkError; EOFError when the other side has hung up."""
    try:
        data = sock.recv(65536, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return []
    if not data:
        raise EOFError
    return link.feed(data)


def _readable(source) -> bool:
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


# --- the way to the controller


def boot_s() -> float:
    """Seconds by a clock that goes on while a machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def timer_library(load) -> ctypes.CDLL | None:
    """Where timer_create is, None if it is nowhere. load: as ctypes.CDLL. glibc before 2.34 keeps it in a library of its own."""
    for name in (None, "librt.so.1"):
        try:
            library = load(name)
            if hasattr(library, "timer_create"):
                return library
        except OSError:
            continue
    return None


class Timer:
    """A signal of the kernel's for this process at a given time, also while it is stopped. Where the kernel has no such
    timer there is none.

    Source: timer_create(2), which lets the signal be any.
    """

    def __init__(self, library, number: int) -> None:
        """library: None where there are no timers."""
        self._library = library
        self._timer = ctypes.c_void_p()
        event = (ctypes.c_int * 16)()  # struct sigevent: a value of 8 bytes, the signal, how to notify (0: by signal)
        event[2] = number
        made = library.timer_create(time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)) if library else -1
        self.there = made == 0

    def set(self, at: float) -> None:
        """at: as boot_s(); 0: not at all."""
        if self.there:
            whole = int(at)
            when = (ctypes.c_long * 4)(0, 0, whole, int((at - whole) * 1e9))
            self._library.timer_settime(self._timer, 1, ctypes.byref(when), None)  # 1: TIMER_ABSTIME


class Guard:
    """For the end of a lease while we stand still: SIGCONT wakes who was only stopped, so that we end all below us; then
    SIGKILL for us, and PR_SET_PDEATHSIG for the command alone. signal(7): both reach stopped processes.
    """

    def __init__(self, load=ctypes.CDLL) -> None:
        library = timer_library(load)
        self._wakes, self._kills = Timer(library, signal.SIGCONT), Timer(library, signal.SIGKILL)

    @property
    def there(self) -> bool:
        """Can the kernel do it?"""
        return self._wakes.there and self._kills.there

    def set(self, at: float) -> None:
        """at: the end of the lease, as boot_s(); 0: not at all."""
        self._wakes.set(at)
        self._kills.set(at + GUARD_S if at else 0.0)


class Line:
    """The conversation with the controller, kept up over broken connections, and the lease that comes with its answers.

    `poll` wakes when there is something for `listen`. Times are boot_s().
    """

    def __init__(self, channel: Channel, env: dict, sock: socket.socket, link: Link, hello: dict) -> None:
        """hello: the first message of every connection."""
        self._channel = channel
        self._env = env
        self._talk = Talk()
        self._hello = {**hello, "talk": os.urandom(16).hex()}
        self._wake_read, self._wake_write = waking()
        self.poll = select.poll()
        self.poll.register(self._wake_read, select.POLLIN)
        self.until = float("inf")  # the end of the lease; before the first answer there is nothing to end
        self.why = CUT_OFF  # it has ended
        self.answered = 0.0  # when the last answer was asked for, whether it renewed the lease or not
        self.gone = ""  # why there is no controller any more
        self.grace_s = ORPHAN_GRACE_S
        self._lease_s = 0.0
        self._beat_s = 0.0
        self._next_beat = float("inf")
        self._pause_at: float | None = None  # since when we expect to be stopped
        self.paused = False  # the controller waits for us: the lease does not run out
        self._held_at: float | None = None  # it has run out meanwhile, and counts anew: nothing runs before an answer
        self._asked: dict[int, float] = {}  # beats without an answer: number -> when it was sent
        self._beats = 0
        self._has = 0  # the last beat whose answer came
        self._welcome = False
        self._refused_at: float | None = None
        self._ends_by = 0.0  # until when the end of ftrun is to be expected
        self._found: tuple[socket.socket, Link] | OSError | None = None  # by the thread that dials
        self._sock: socket.socket | None = None
        # Given up, and still open: closed they would say that this process has ended.
        self._given_up: list[socket.socket] = []
        self._use(sock, link)

    def say(self, message: dict) -> None:
        """It arrives, sooner or later, or there is no controller any more."""
        numbered = self._talk.say(message)
        if self._welcome:
            self._send(numbered)

    def listen(self) -> list[dict]:
        """New messages. Raises: LinkError when the controller speaks another language."""
        if self._found is not None:
            os.read(self._wake_read, 16)
            found, self._found = self._found, None
            self._dialled(found)
        if self._sock is None or not _readable(self._sock):
            return []
        try:
            messages = receive(self._sock, self._link)
        except EOFError:
            self._broken("it hung up")
            return []
        except (OSError, LinkError) as error:  # forged or damaged: whoever did that is not in the next connection
            self._broken(str(error))
            return []
        return [message for message in messages if self._is_new(message)]

    def turn(self, now: float) -> None:
        """What is due: a beat; a new connection where beats have had no answer; the end of all tries."""
        if self._welcome and now >= self._next_beat:
            if len(self._asked) >= MISSED_BEATS:
                self._broken("it does not answer")
                return
            self._beat(now)
        if self._pause_at is not None and now - self._pause_at >= PAUSE_S:
            self.resume(now)
        if self._refused_at is not None and now - self._refused_at >= self._patience_s(now):
            self.gone = self.gone or "ftrun has ended"

    def asked_to_end(self, now: float) -> None:
        """Slurm has asked the step to end."""
        self._ends_by = now + ENDING_S

    def ending(self, now: float) -> bool:
        """Has Slurm asked for it just now?"""
        return now < self._ends_by

    def _patience_s(self, now: float) -> float:
        return ENDING_REFUSED_S if self.ending(now) else REFUSED_S

    def pause(self, now: float) -> None:
        """We are going to be stopped, and the controller most likely as well. Asks it to wait for us."""
        if self._lease_s and not self.gone:
            self._pause_at = now
            self._beat(now)

    def resume(self, now: float) -> None:
        """We run (again). A lease that ran out meanwhile counts anew, but nothing may run before the controller has answered:
        it may have been ended, or have begun without us by somebody else's hand."""
        if self._pause_at is None:
            return
        self._pause_at = None
        if self.paused and now >= self.until:
            self._held_at, self.until = now, now + self._lease_s
        self.paused = False
        self._beat(now)

    def excuse(self, now: float) -> None:
        """We stood still ourselves, and watch over nothing that may not run beside others: the lease counts anew."""
        if self.until < float("inf"):
            self.until = max(self.until, now + self._lease_s)

    @property
    def held(self) -> bool:
        """Must all stand still that runs on the lease?"""
        return self._held_at is not None

    def over(self, now: float) -> bool:
        """Has the lease run out?"""
        return now >= self.until and not self.paused

    def _beat(self, now: float) -> None:
        if self._welcome:
            self._beats += 1
            self._asked[self._beats] = now
            self._next_beat = now + self._beat_s if self._beat_s else float("inf")
            pause = {"pause": True} if self._pause_at is not None else {}
            self._send({"t": "beat", "k": self._beats, "a": self._talk.heard, "r": self._has, **pause})

    def wakes_in(self, now: float) -> float:
        """Seconds, infinite for never."""
        if self.gone:
            return float("inf")
        refused = float("inf") if self._refused_at is None else self._refused_at + self._patience_s(now)
        paused = float("inf") if self._pause_at is None else self._pause_at + PAUSE_S
        return max(0.0, min(self._next_beat, float("inf") if self.paused else self.until, refused, paused) - now)

    def close(self) -> None:
        """No word any more, and no try. The lease stays what it is. The connection ends with the process."""
        self._give_up()
        self.gone = self.gone or "closed"
        try:
            self.poll.unregister(self._wake_read)  # of a try that is still under way nobody needs to hear
        except KeyError:
            pass  # done before

    def hang_up(self) -> None:
        """`close`, by one who watches over no rank: the controller shall know."""
        self.close()
        self._close_given_up()

    @property
    def address(self) -> str:
        """Our own, as the controller reaches it."""
        return self._sock.getsockname()[0] if self._sock else ""

    def _is_new(self, message: dict) -> bool:
        """Raises: LinkError."""
        what = message.get("t")
        if what == "beat":
            self._talk.has(message.get("a"))
            asked = self._asked.pop(message.get("k"), None)
            if asked is not None:
                self._has = message["k"]
                self._asked = {number: at for number, at in self._asked.items() if at > asked}
                self._renew(asked, message)
                self.paused = self._pause_at is not None and bool(message.get("paused"))
            if message.get("let_go"):
                self._end_lease("ftrun has let this rank go")
            return False
        if what == "refused":
            self._end_lease("ftrun has gone on without this rank")
            return False
        if what == "welcome":
            self._welcomed(message)
            return False
        return self._talk.hear(message)

    def _welcomed(self, message: dict) -> None:
        self._talk.has(message.get("a"))
        self._lease_s, self._beat_s = (_within(message[name], 0, 1e9, (int, float)) for name in ("lease_s", "beat_s"))
        self.grace_s = _within(message.get("grace_s", ORPHAN_GRACE_S), 0, 1e9, (int, float))
        self._welcome, self._refused_at = True, None
        self._close_given_up()
        self._next_beat = boot_s() + self._beat_s if self._beat_s else float("inf")
        self._renew(self._hello_at, message)
        for kept in self._talk.kept:
            self._send(kept)

    def _renew(self, asked_at: float, answer: dict) -> None:
        """An answer counts from when it was asked for: nobody knows how long it was on its way."""
        if self._lease_s and not answer.get("let_go"):
            # From one that is itself cut off nothing is taken, and who has no lease yet gets none.
            until = asked_at + (0.0 if answer.get("cut_off") else self._lease_s)
            if self._held_at is not None and asked_at >= self._held_at and not answer.get("cut_off"):
                self._held_at = None
            self.until = until if self.until == float("inf") else max(self.until, until)
            self.answered = max(self.answered, asked_at)

    def _end_lease(self, why: str) -> None:
        self.why, self.until, self.paused = why, min(self.until, boot_s()), False

    def _use(self, sock: socket.socket, link: Link) -> None:
        self._sock, self._link, self._welcome, self._asked = sock, link, False, {}
        self.poll.register(sock, select.POLLIN)
        self._hello_at = boot_s()
        self._next_beat = float("inf")
        self._send({**self._hello, "a": self._talk.heard})

    def _send(self, message: dict) -> None:
        if self._sock is None:
            return
        try:
            self._sock.sendall(self._link.pack(message))
        except OSError as error:
            self._broken(str(error))

    def _give_up(self) -> None:
        if self._sock is not None:
            self.poll.unregister(self._sock)
            self._given_up.append(self._sock)
        self._sock, self._welcome, self._next_beat = None, False, float("inf")

    def _close_given_up(self) -> None:
        while self._given_up:
            self._given_up.pop().close()

    def _broken(self, why: str) -> None:
        self._give_up()
        self._dial()

    def _dial(self) -> None:
        if self.gone:
            return
        try:
            start_new_thread(self._dialling, ())
        except ThreadError as error:
            self.gone = f"no thread is to be had to call ftrun again: {error}"

    def _dialling(self) -> None:
        try:
            self._found = connect(self._channel, self._env, min(REDIAL_S, self._patience_s(boot_s())))
        except OSError as error:
            self._found = error
        os.write(self._wake_write, b"!")

    def _dialled(self, found) -> None:
        if isinstance(found, tuple):
            if self.gone:
                found[0].close()
            else:
                self._use(*found)
            return
        if not isinstance(found, NobodyListens):
            self._refused_at = None
        elif self._refused_at is None:
            self._refused_at = boot_s()
        self._dial()


# --- output


class FirstErrors:
    """The first lines of a stream that look like an error: causes are printed long before the end."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, bytes]] = []  # Unix seconds, text
        self._room = ERRORS_MAX
        self._rest = b""  # of a line that has not ended

    def look(self, data: bytes, at: float) -> None:
        """`data` follows on what was looked at before. Costs nothing any more once there is no room."""
        if self._room <= 0:
            return
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        self._rest = data[max(end, len(data) - ERROR_LINE_MAX) :]
        start = 0
        if not any(data.find(part, 0, end) >= 0 for part in ERROR_PARTS):
            return
        while self._room > 0:
            hits = [found for word in ERROR_WORDS if (found := data.find(word, start, end)) >= 0]
            if not hits:
                return
            hit = min(hits)
            first, last = max(start, data.rfind(b"\n", start, hit) + 1), data.find(b"\n", hit)
            begin = max(first, hit - ERROR_LINE_MAX // 2)
            line = data[begin : min(last, begin + ERROR_LINE_MAX, begin + self._room)] + b"\n"
            self.lines.append((at, line))
            self._room -= len(line)
            start = last + 1


class Tail:
    """The last bytes of one stream, with their times, and its first errors. Pure: it is told what came, and when.

    Adding copies no large data, as it is in the way of every byte. What leaves at the front is looked at for errors then:
    so no line is told twice.
    """

    def __init__(self, name: str, limit: int) -> None:
        """name: `out` or `err`. limit: bytes."""
        self._name = name
        self._limit = limit
        self._errors = FirstErrors()
        self._chunks: deque[tuple[float, bytes | bytearray]] = deque()
        self._size = 0
        self._cut = False

    def add(self, data: bytes, at: float) -> None:
        """data: not empty. at: Unix seconds when it arrived."""
        self._size += len(data)
        begun, last = self._chunks[-1] if self._chunks else (0.0, b"")
        if len(data) >= SMALL_BYTES:
            self._chunks.append((at, data))
        elif isinstance(last, bytearray) and len(last) < SMALL_BYTES and 0 <= at - begun <= PIECE_S:
            last += data
        else:
            self._chunks.append((at, bytearray(data)))
        while self._size - len(self._chunks[0][1]) >= self._limit or len(self._chunks) > CHUNKS_MAX:
            self._drop(len(self._chunks[0][1]))

    def pieces(self) -> tuple[list[list], list[list]]:
        """First errors, a line each, and the tail, whole lines but for the last: `[at, stream, text]`, none twice.

        What is one line only stays in the tail, though its front is gone.
        """
        self._drop(max(0, self._size - self._limit))
        if self._cut and any(b"\n" in data for _, data in self._chunks):
            while b"\n" not in self._chunks[0][1]:
                self._drop(len(self._chunks[0][1]))
            self._drop(self._chunks[0][1].find(b"\n") + 1)
            self._cut = False
        return self._named(self._errors.lines), self._named(join(self._chunks))

    def _drop(self, count: int) -> None:
        """The first bytes, of as many chunks as it takes."""
        self._size -= count
        self._cut = self._cut or count > 0
        while count:
            at, data = self._chunks.popleft()
            self._errors.look(data[:count], at)
            if len(data) > count:
                self._chunks.appendleft((at, data[count:]))
            count = max(0, count - len(data))

    def _named(self, parts: list[tuple[float, bytes]]) -> list[list]:
        return [[at, self._name, text.decode("utf-8", "replace")] for at, text in parts]


def join(chunks) -> list[tuple[float, bytes]]:
    """What arrived within PIECE_S as one piece each. In full flow a line goes to the piece in which it began."""
    pieces: list[tuple[float, bytearray]] = []
    latest = 0.0  # when the chunk before began, which itself took up to PIECE_S
    for at, data in chunks:
        more = 0
        if pieces:
            begun, text = pieces[-1]
            if 0 <= at - begun <= PIECE_S:
                more = len(data)
            elif 0 <= at - latest <= 2 * PIECE_S and 0 <= at - begun <= LINE_S and text[-1:] != b"\n":
                more = data.find(b"\n") + 1 or len(data)
            text += data[:more]
        if more < len(data):
            pieces.append((at, bytearray(data[more:])))
        latest = at
    return [(at, bytes(text)) for at, text in pieces]


def last_words(pieces: list[tuple[list[list], list[list]]], room: int) -> list[list]:
    """Of several tails: first errors, then the rest, each by time, in at most `room` bytes as JSON. What is old goes first."""
    by_time = itemgetter(0)
    errors = sorted((piece for first, _ in pieces for piece in first), key=by_time)
    room -= len(dumps(errors))
    kept: list[list] = []
    for at, stream, text in sorted((piece for _, last in pieces for piece in last), key=by_time)[::-1]:
        size = len(dumps([at, stream, text])) + 1
        if size > room:
            text = text[-(max(0, room - 100) // 6) :] if room > 106 else ""
            kept += [[at, stream, text.partition("\n")[2] or text]] if text else []
            break
        room -= size
        kept.append([at, stream, text])
    return errors + kept[::-1]


class Pump:
    """Carries one stream of one attempt to where the shim's own goes, in a thread: whoever reads there may not read."""

    def __init__(self, source: int, target: int, tail: Tail, earlier: list[Pump], shared: bool) -> None:
        """earlier: what they still have to deliver to the same target goes first. shared: by several ranks.

        Raises: ThreadError.
        """
        self.target = target
        self._tail = tail
        self.ended = False
        self.heard_at = time.monotonic()
        self._source = source
        self._earlier = earlier
        self._terminal = os.isatty(target)
        self._keeps_lines = shared and os.fstat(target).st_mode & 0o170000 == 0o010000  # a pipe
        self._lock = allocate_lock()  # around a read and the note of it, neither of which blocks
        self._carrying = False
        start_new_thread(self._run, ())

    def caught_up(self) -> bool:
        """Has all that was written so far been read and noted?"""
        with self._lock:
            return self.ended or not self._readable()

    def idle(self) -> bool:
        """Has it been delivered as well?"""
        with self._lock:
            return self.ended or not (self._carrying or self._readable())

    def pieces(self) -> tuple[list[list], list[list]]:
        with self._lock:
            return self._tail.pieces()

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        return any(events & select.POLLIN for _, events in poll.poll(0))

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        try:
            while self._take_and_give(poll):
                pass
        finally:
            with self._lock:
                self.ended = True
                os.close(self._source)

    def _take_and_give(self, poll) -> bool:
        """False at the end: nobody holds the other side any more, or nobody reads ours."""
        poll.poll()
        with self._lock:
            try:
                data = os.read(self._source, READ_BYTES)
            except OSError:
                return False  # EIO: how a pseudo terminal says that its other side is closed
            if not data:
                return False
            self._tail.add(data, time.time())
            self.heard_at = time.monotonic()
            self._carrying = True
        while self._earlier:
            if self._earlier[0].idle():
                del self._earlier[0]
            else:
                time.sleep(RESCAN_S)
        heard = self._give(data)
        self._carrying = False
        return heard

    def _give(self, data: bytes) -> bool:
        """False when nobody listens any more: the command shall see then what it would have seen without us.

        A full or broken disk ends nothing: as with output that srun writes, the command runs on, unheard.
        """
        view, done = memoryview(data), 0
        while done < len(data):
            end = self._end_of_write(data, done)
            try:
                done += os.write(self.target, view[done:end])
            except BlockingIOError:  # who shares it with us has set it so
                ready = select.poll()
                ready.register(self.target, select.POLLOUT)
                ready.poll()
            except OSError as error:
                return not (self._terminal or error.errno in (errno.EPIPE, errno.ECONNRESET))
        return True

    def _end_of_write(self, data: bytes, begin: int) -> int:
        """What is longer than PIPE_BUF ranks that share a pipe would tear apart: lines stay whole, as they were."""
        if not self._keeps_lines or len(data) - begin <= select.PIPE_BUF:
            return len(data)
        return data.rfind(b"\n", begin, begin + select.PIPE_BUF) + 1 or data.find(b"\n", begin) + 1 or len(data)


class Output:
    """What becomes of the command's stdout and stderr: pumped, or handed through."""

    def __init__(self, streams: tuple[int, ...], shared: bool) -> None:
        """streams: those of 1 and 2 that were open when the shim began. shared: by several ranks."""
        self._streams = streams
        self._shared = shared
        self._pumps: list[Pump] = []  # of this attempt
        self._unended: list[Pump] = []  # of all attempts
        set_stack_size(STACK_BYTES)

    def lay(self, limit: int) -> list[tuple[int, int]]:
        """Our ends for the command, to be closed once it has them, and the descriptors that it shall have them as.

        limit: bytes to keep of each stream; 0: the command gets our own descriptors, and so it does where no pipe, terminal
        or thread is to be had. It also gets a terminal that it reads from (srun --pty): that is its own to rule.
        """
        self._unended = [pump for pump in self._unended if not pump.ended]
        self._pumps = []
        ends: list[tuple[int, int]] = []
        streams = [fd for fd in self._streams if limit > 0 and not (os.isatty(fd) and os.isatty(0))]
        for fd in streams:
            if fd == 2 and len(streams) == 2 and _same_file(1, 2):  # one for both: so their order stays
                ends += [(end, 2) for end, _ in ends]
                continue
            try:
                ends.append((self._connect(fd, limit), fd))
            except OSError:
                continue
        self._unended += self._pumps
        return ends

    def _connect(self, fd: int, limit: int) -> int:
        """A new pump to `fd`; gives the command's end. Raises: OSError."""
        source, end = _terminal_like(fd) if os.isatty(fd) else os.pipe()
        tail = Tail("out" if fd == 1 else "err", min(limit, TAIL_MAX))
        try:
            earlier = [pump for pump in self._unended if pump.target == fd]
            self._pumps.append(Pump(source, fd, tail, earlier, self._shared))
        except ThreadError as error:
            os.close(source)
            os.close(end)
            raise OSError(errno.EAGAIN, str(error)) from None
        return end

    def caught_up(self) -> bool:
        return all(pump.caught_up() for pump in self._pumps)

    def silent_s(self, now: float) -> float:
        """For how long nothing has come, monotonic seconds; 0 where what comes does not pass by us."""
        return now - max((pump.heard_at for pump in self._pumps), default=now)

    def words(self) -> list[list]:
        """The last words of this attempt's command."""
        return last_words([pump.pieces() for pump in self._pumps], WORDS_MAX)

    def deliver(self, limit_s: float) -> None:
        """Wait until all of it has arrived."""
        deadline = time.monotonic() + limit_s
        for pump in self._unended:
            while not pump.idle() and time.monotonic() < deadline:
                time.sleep(SETTLE_STEP_S)


def _same_file(one: int, other: int) -> bool:
    here, there = os.fstat(one), os.fstat(other)
    return (here.st_dev, here.st_ino, here.st_rdev) == (there.st_dev, there.st_ino, there.st_rdev)


def _terminal_like(fd: int) -> tuple[int, int]:
    """A pseudo terminal as that of `fd`, but one that changes nothing (srun --unbuffered): our end, the command's end."""
    import fcntl
    import termios

    ours, theirs = os.openpty()
    mode = termios.tcgetattr(fd)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
    return ours, theirs


def open_streams() -> tuple[int, ...]:
    """Which of stdout and stderr we were given. The numbers of those that we were not are taken now, so that nothing of
    ours gets them; the command finds them closed all the same."""
    missing = []
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        missing.append(fd)
    os.close(fd)
    return tuple(fd for fd in (1, 2) if fd not in missing)


def complain(text: str) -> None:
    """A line on stderr, if it can be had without waiting: it may be said by the one who has to stop the rank. Nothing in it
    rules a terminal."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    print_at_once(2, f"{text}\n".encode(errors="replace"))


def print_at_once(fd: int, line: bytes) -> None:
    """Or not at all, where that would wait for who reads it."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        if poll.poll(0):
            os.write(fd, line)
    except OSError:
        pass  # nobody listens


# --- memory


def oom_kills(root: str = "") -> int | None:
    """How often the kernel has killed for memory in the cgroup of this process, None where nobody tells.

    root: what stands before /proc and /sys. Where the task's own cgroup has no memory controller its parents are asked,
    up to that of the step: whatever is above has others in it. Source: memory.events in the kernel's cgroup-v2.rst,
    memory.oom_control in its cgroup-v1/memory.rst.
    """
    places = {}
    for line in _lines(f"{root}/proc/self/cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            places["memory.events"] = f"{root}/sys/fs/cgroup", path
        elif "memory" in controllers.split(","):
            places["memory.oom_control"] = f"{root}/sys/fs/cgroup/memory", path
    for file, (base, path) in places.items():
        while True:
            for line in _lines(f"{base}{path}/{file}"):
                word, _, count = line.partition(" ")
                if word == "oom_kill" and count.isdigit():
                    return int(count)
            path = path.rpartition("/")[0]
            if "/step_" not in path:
                break
    return None


def _lines(path: str) -> list[str]:
    """Of a small file; none if it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return []
    try:
        return os.read(file, 1 << 16).decode(errors="replace").splitlines()
    except OSError:
        return []
    finally:
        os.close(file)


# --- the process tree


def descendants(root: int) -> list[int]:
    """Every process below `root`, by the kernel's own list where it has one (CONFIG_PROC_CHILDREN), else by parents."""
    if os.path.exists(f"/proc/{root}/task/{root}/children"):
        found, ahead = [], [root]
        while ahead:
            children = _children(ahead.pop())
            found += children
            ahead += children
        return found
    return _descendants_by_parent(root)


def _children(pid: int) -> list[int]:
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listing:
                found += [int(word) for word in listing.read().split()]
    except OSError:
        pass  # it ended while we looked
    return found


def _descendants_by_parent(root: int) -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    parents[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    found, ahead = [], [root]
    while ahead:
        parent = ahead.pop()
        children = [pid for pid, above in parents.items() if above == parent]
        found += children
        ahead += children
    return found


def left_before(page: str, env) -> list[int]:
    """Processes on this node of an older attempt of the same ftrun, in another of its steps: their shim was killed. Where
    Slurm tells the processes of a job by their parents (proctrack/linuxproc), nobody else ends them.

    page, env: of the command to come. A job that they have submitted has all their variables, but for the job's number.
    """
    same = {os.fsencode(f"{name}={env[name]}") for name in ("SLURM_JOB_ID", "SLURMD_NODENAME") if name in env}
    found, mark = [], f"{PAGE_VARIABLE}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        words = environ_of(int(name))
        pages = [os.fsdecode(word[len(mark) :]) for word in words if word.startswith(mark)]
        if len(same) == 2 and same <= set(words) and any(_is_older(other, page) for other in pages):
            found.append(int(name))
    return found


def environ_of(pid: int) -> list[bytes]:
    """`name=value`, empty for a process that is somebody else's or has ended. In the midst of execve(2) it has none for a
    moment: then it is asked again."""
    try:
        for _ in range(EXEC_LOOKS):
            with open(f"/proc/{pid}/environ", "rb") as variables:
                if data := variables.read():
                    return data.split(b"\0")
            with open(f"/proc/{pid}/statm", "rb") as memory:
                if memory.read().startswith(b"0 "):
                    break  # a zombie, or a thread of the kernel's
            time.sleep(EXEC_S)
    except OSError:
        pass
    return []


def _is_older(page: str, than: str) -> bool:
    """Of the same ftrun, and of another step."""
    (folder, _, place), (ours, _, our_place) = page.rpartition("/"), than.rpartition("/")
    number, our_number = place.rpartition(".")[2], our_place.rpartition(".")[2]
    if folder == ours or _family(folder) != _family(ours):
        return False
    return number.isdigit() and our_number.isdigit() and int(number) < int(our_number)


def _family(folder: str) -> str:
    return folder.rpartition(".")[2].partition("-")[0]


def end_left_before(page: str, env, limit_s: float) -> tuple[set[int], list[int]]:
    """Kill what is left of older attempts; gives all that was found, and those that outlive it."""
    found, deadline = set(), time.monotonic() + limit_s
    while (left := left_before(page, env)) and time.monotonic() < deadline:
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        found.update(left)
        time.sleep(RESCAN_S)
    return found, left


def waking() -> tuple[int, int]:
    """An end to read and one to write, for wake-ups. Not a pipe: that any process of the user's can open by /proc, and fill or
    empty it."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def send_signal(pid: int, number: int) -> None:
    """A negative `pid` means the process group."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already; or it changed its user (setuid), which only root could end


def count_in(env, name: str) -> int:
    """A number that Slurm has put there; 0 where it has not."""
    text = env.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


def free_port(of: str) -> int:
    """A TCP port that nobody has bound now and that is not in TIME_WAIT; 0 if there is none. of: whose, the same gives the same.

    Not one that the kernel gives to connections (ip_local_port_range in ip(7)): it takes seconds until rank 0 listens.
    """
    from binascii import crc32

    low, high = _ports_of_connections()
    first, span = max(LOWEST_PORT, low - PORTS), min(PORTS, low - LOWEST_PORT)
    if span < PORTS_LEAST:
        first, span = high + 1, min(PORTS, 65535 - high)
    start = crc32(of.encode())
    for number in range(PORT_TRIES if span >= PORTS_LEAST else 0):
        port = first + (start + number * PORT_STRIDE) % span
        if port not in POPULAR_PORTS and _bound(port):
            return port
    return _bound(0)


def _ports_of_connections() -> tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = file.read().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def _bound(port: int) -> int:
    """`port`, or any for 0, if it can be bound for both families of addresses, as torch's store does; else 0."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            probe = socket.socket(family)
        except OSError:  # the kernel has no such family
            continue
        try:
            probe.bind((anywhere, port))
            return probe.getsockname()[1]
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                return 0
        finally:
            probe.close()
    return 0


def find_program(name: str, path: str) -> str:
    """Where exec would find `name`; if it is nowhere, a name whose exec fails with the right error."""
    if "/" in name:
        return name
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder or ".", name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return "/nonexistent/" + name


class Command:
    """The user's command: started, watched, stopped with all it left behind. Speaks through what it returns."""

    def __init__(self, libc) -> None:
        self._libc = libc
        self.pid = 0
        self.attempt = 0
        self.status: int | None = None  # as waitpid gave it, of the command itself
        self.stopping = False
        self.crash_status = 0  # of a drill: what a SIGKILL is to look like
        self._deadline = 0.0
        self._kill_until = 0.0
        self._kill_wait_s = 0.0

    def start(self, attempt: int, argv: list[str], env: dict, ends: list[tuple[int, int]]) -> tuple[int, str]:
        """(0, "") once the command runs, else the errno (which slurmstepd makes the exit status) and the reason.

        ends: a descriptor of ours, closed afterwards, and the number under which the command gets it.
        """
        self.attempt, self.status, self.stopping, self.crash_status = attempt, None, False, 0
        path = find_program(argv[0], env.get("PATH", os.defpath))
        terminal = os.isatty(0)
        read_end, write_end = os.pipe()  # both close on exec; a failure comes through
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(path, argv, env, write_end, terminal, ends, parent)
        for end in {write_end, *(end for end, _ in ends)}:
            os.close(end)
        told = os.read(read_end, 16)
        os.close(read_end)
        if not told:
            return 0, ""
        os.waitpid(self.pid, 0)  # a failed child still has our handlers: a SIGTERM to it would look like one to us
        self.pid = 0
        number = int(told)
        name = argv[0] if len(argv[0]) <= NAME_MAX else argv[0][:NAME_MAX] + "..."
        return number, f"{name}: {os.strerror(number)}"

    def _become(
        self, path: str, argv: list[str], env: dict, failure: int, terminal: bool, ends: list[tuple[int, int]], parent: int
    ) -> None:
        """In the child: own process group, death with the shim, then the command.

        Every line costs a copy of the pages it touches, eight ranks at a time: what the parent can do, it does. Signals
        that the shim catches go back to their default by exec itself; ignored ones stay ignored, as under srun.
        """
        try:
            os.setpgid(0, 0)
            if terminal:  # srun --pty: the command is the one that talks to the terminal
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                os.tcsetpgrp(0, os.getpgrp())
                signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it was killed before
                os._exit(127)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python's start-up ignores these two
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            for end, fd in ends:
                os.dup2(end, fd)
            os.execve(path, argv, env)
        except OSError as error:
            os.write(failure, str(error.errno or errno.EIO).encode())
        except BaseException:
            os.write(failure, str(errno.EINVAL).encode())
        finally:
            os._exit(127)

    def reap(self) -> bool:
        """Take in all that ended. True when no descendant is left: ECHILD of a subreaper is the proof."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.pid:
                faked = self.crash_status and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                self.status = self.crash_status << 8 if faked else status

    def signal(self, number: int) -> None:
        """To the command itself, as Slurm signals a task."""
        if self.pid and self.status is None:
            send_signal(self.pid, number)

    def stop(self, now: float, grace_s: float, kill_wait_s: float, asked: bool = False) -> None:
        """SIGTERM (unless `asked` already) to the process group and to whatever left it; a second call can only shorten
        the grace."""
        if not self.stopping:
            # A stopped process does not notice a SIGTERM before it goes on.
            self._to_all(*(() if asked else (signal.SIGTERM,)), signal.SIGCONT)
            self._deadline = now + grace_s
        self.stopping, self._kill_wait_s, self._kill_until = True, kill_wait_s, 0.0
        self._deadline = min(self._deadline, now + grace_s)

    def kill(self, now: float, kill_wait_s: float) -> None:
        """SIGKILL to everything, at once: what stands still is not woken first. `press` sees to the rest."""
        if self.pid and self.status is None:
            send_signal(-self.pid, signal.SIGKILL)  # all that can be reached without a look at what there is
        self.stopping, self._deadline, self._kill_wait_s, self._kill_until = True, now, kill_wait_s, 0.0
        self.press(now)

    def press(self, now: float) -> bool:
        """While stopping: SIGKILL once the grace is over. False when even that has not helped in time."""
        if now < self._deadline:
            return True
        if not self._kill_until:
            self._kill_until = now + self._kill_wait_s
        self._to_all(signal.SIGKILL)
        return now < self._kill_until

    def wakes_in(self, now: float) -> float | None:
        if not self.stopping:
            return None
        return RESCAN_S if now >= self._deadline else self._deadline - now

    def freeze(self) -> None:
        """Stop every process below us. Whoever has a SIGSTOP forks no more, so some rounds find them all."""
        seen: set[int] = set()
        while new := [pid for pid in descendants(os.getpid()) if pid not in seen]:
            for pid in new:
                send_signal(pid, signal.SIGSTOP)
            seen.update(new)

    def thaw(self) -> None:
        self._to_all(signal.SIGCONT)

    def _to_all(self, *numbers: int) -> None:
        """To the process group as one, and to each descendant that has left it.

        The group counts only while a descendant of ours is in it: a number that is free again may be a stranger's.
        """
        ours = descendants(os.getpid())
        inside = [pid for pid in ours if self._in_group(pid)]
        targets = [pid for pid in ours if pid not in inside] + ([-self.pid] if inside else [])
        for number in numbers:
            for target in targets:
                send_signal(target, number)

    def _in_group(self, pid: int) -> bool:
        try:
            return os.getpgid(pid) == self.pid
        except ProcessLookupError:
            return False  # gone


class Drill:
    """A fault that is injected on purpose, on the user's order. Its messages are wire.drill_message's."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._share = 0.0  # of the time that the tree may run; 0: no such drill
        self._runs = True
        self._turn_at = 0.0

    def told(self, message: dict, now: float) -> None:
        """Raises: KeyError, TypeError, ValueError for what is no drill."""
        what = message["what"]
        if what == "crash" and ("status" in message) != ("signal" in message):
            if "status" in message:
                self._command.crash_status = _within(message["status"], 1, 255)
                self._command.signal(signal.SIGKILL)
            else:
                self._command.signal(_within(message["signal"], 1, 64))
        elif what == "slow":
            self._share, self._runs, self._turn_at = _within(message["share"], 0.01, 0.99, (int, float)), True, now
        elif what == "hang":
            self._share = 0.0
            self._command.freeze()
        elif what == "lost":
            self._command.freeze()  # so that nobody notices that others end, or starts anew
            for pid in (*descendants(os.getpid()), os.getpid()):
                send_signal(pid, signal.SIGKILL)
        elif what == "end":
            self._share = 0.0
            self._command.thaw()
        else:
            raise ValueError(f"unknown drill {what!r}")

    def over(self) -> None:
        """The attempt has ended, or is being stopped, which lets all run on anyway."""
        if self._share:
            self._share = 0.0
            self._command.thaw()

    def wakes_in(self, now: float) -> float | None:
        return max(0.0, self._turn_at - now) if self._share else None

    def press(self, now: float) -> None:
        """Stop the tree, or let it go on, when it is time."""
        if not self._share or now < self._turn_at:
            return
        self._runs = not self._runs
        if self._runs:
            self._command.thaw()
        else:
            self._command.freeze()
        self._turn_at = now + SLOW_CYCLE_S * (self._share if self._runs else 1 - self._share)


class Pages:
    """The folder of this step's shared pages on this node, and the names of our own rank's in it (sdk/page.py)."""

    def __init__(self, env: dict, rank: int, channel: Channel) -> None:
        self._folder = page_folder(f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}", channel)
        self._rank = rank
        self._complains = env.get("SLURM_LOCALID", "0") == "0"  # once a node

    def variables(self, attempt: int) -> dict:
        """For the command; nothing where there is no folder of our own, which is said."""
        why = why_not_private(self._folder)
        if not why:
            return {PAGE_VARIABLE: f"{self._folder}/{self._rank}.{attempt}"}
        if self._complains:
            self._complains = False
            complain(f"ftslurm: {socket.gethostname()}: {why}: heartbeats, progress and the probe of its ranks are not seen")
        return {}

    def clear(self) -> None:
        """Our own pages, and the folder with the last of them. A program's last message is often its very last act: what has just
        been written the agent has not read yet."""
        try:
            own = [name for name in os.listdir(self._folder) if name.startswith(f"{self._rank}.")]
            notes = [os.stat(f"{self._folder}/{name}").st_mtime for name in own if name.endswith(".notes")]
            time.sleep(max(0.0, min(NOTE_READ_S, max(notes, default=0.0) + NOTE_READ_S - time.time())))
            for name in own:
                if not os.path.isdir(f"{self._folder}/{name}"):
                    os.unlink(f"{self._folder}/{name}")
            os.rmdir(self._folder)
        except OSError:
            pass  # never made, or others are still in it


def page_folder(step: str, channel: Channel) -> str:
    """Where the pages of `step` (`123.0`) are on this node; agents look there as well."""
    # Steps of several clusters, or none, may meet on a machine. The names of a ftrun's folders have the same family, by which
    # _is_older() knows them; the mark is the step's own, so that nobody who sees one can take the name of the next.
    family, mark = (blake2s(what, key=channel.secret).hexdigest() for what in (b"pages", f"pages of {step}".encode()))
    base = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"  # noqa: S108
    return f"{base}/ftslurm.{os.getuid()}.{step}.{family[:8]}-{mark[:12]}"


def why_not_private(path: str) -> str:
    """Why `path` is no folder of ours alone (a link is none), though it was to be made; empty if it is."""
    try:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        info = os.lstat(path)
    except OSError as error:
        return f"{path} cannot be made ({error.strerror})"
    if info.st_uid != os.getuid():
        return f"{path} is user {info.st_uid}'s"
    if info.st_mode & 0o170077 != 0o040000:
        return f"{path} is {'open to others' if info.st_mode & 0o170000 == 0o040000 else 'no folder'}"
    return ""


def last_notes(page: str) -> list:
    """[place, text]: the last whole lines of what the program of `page` has said (sdk/notes.py), and where they begin."""
    try:
        fd = os.open(f"{page}.notes", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        begin = max(0, os.fstat(fd).st_size - NOTES_TOLD)
        data = os.pread(fd, NOTES_TOLD, begin)
    except OSError:
        return []
    finally:
        os.close(fd)
    skipped = data.find(b"\n") + 1 if begin else 0
    text = data[skipped : data.rfind(b"\n") + 1].decode(errors="replace")
    return [begin + skipped, text] if text else []


class Silence:
    """Tells when the command has printed nothing for too long, and when it has again."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._limit_s = 0.0
        self._since = 0.0
        self._told = False

    def watch(self, limit_s: float, since: float = 0.0) -> None:
        """From a start on; 0: no longer. since: monotonic, silence before does not count."""
        self._limit_s, self._since, self._told = limit_s, since, False

    def excuse(self, now: float) -> None:
        """Nobody could print while all was stopped."""
        self._since = now

    def _silent_s(self, now: float) -> float:
        return min(self._output.silent_s(now), now - self._since)

    def wakes_in(self, now: float) -> float | None:
        if not self._limit_s:
            return None
        return 1.0 if self._told else max(0.0, self._limit_s - self._silent_s(now))

    def news(self, now: float) -> float | None:
        """Seconds of silence to tell, 0 when it is over; None while there is nothing new."""
        silent_s = self._silent_s(now) if self._limit_s else 0.0
        if self._told == (0 < self._limit_s <= silent_s):
            return None
        self._told = not self._told
        return silent_s if self._told else 0.0


def _within(value, low: float, high: float, kinds: tuple = (int,)):
    if type(value) not in kinds or not low <= value <= high:
        raise ValueError(f"{value!r} is not from {low} to {high}")
    return value


class Shim:
    """One loop over the connection, the signals and the clock."""

    def __init__(
        self, argv: list[str], env: dict, channel: Channel, sock: socket.socket, link: Link, wakeup: int, passes_on: bool,
        output: Output,
    ) -> None:
        self._argv = argv
        self._env = env
        self._wakeup = wakeup
        self._passes_on = passes_on
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become subreaper (Linux 3.4 or later is needed)")
        self._guard = Guard()
        if not self._guard.there and env.get("SLURM_LOCALID", "0") == "0":  # once a node
            complain(f"ftslurm: {socket.gethostname()} has no timer_create: ranks whose shim is stopped outlive their lease")
        self._guarded = 0.0  # the end of the lease that the kernel knows, 0 for none
        self._command = Command(self._libc)
        self._drill = Drill(self._command)
        self._output = output
        self._silence = Silence(output)
        number = int(env.get("SLURM_PROCID", "0"))
        self._rank = channel.ranks[number] if channel.ranks is not None else number
        self._launch = channel.launch
        self._total = channel.total or int(env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or "1")
        self._pages = Pages(env, self._rank, channel)
        self._alone_here = False  # nothing is left of earlier steps
        self._reported = True  # the end of the command was told
        self._ended_at = 0.0  # Unix seconds
        self._asked = False  # to stop, before it ended
        self._tell_by = 0.0  # its end is told then at the latest
        self._page = ""  # of the command
        self._oom_kills: int | None = None  # before the attempt
        self._own_status: int | None = None  # of a command that ended by itself
        self._end: int | None = None  # the controller has let us go, with this status
        self._held = False  # what we watch over stands still until the controller has answered
        self._orphan = False
        self._line = Line(channel, env, sock, link, self._hello(sock.getsockname()[0]))

    def run(self) -> int:
        """The status to end with: 128+n means by signal n."""
        poll = self._line.poll
        poll.register(self._wakeup, select.POLLIN)
        while True:
            # Once more, where the time was up: it may have gone by while we stood still, and SIGCONT came with the end of that.
            ready = poll.poll(self._wait_ms(time.monotonic())) or poll.poll(0)
            self._keep_lease()  # before anything else: we may have stood still, and what waits to be read is old
            for fd, _ in ready:
                if fd == self._wakeup:
                    self._signalled(os.read(self._wakeup, 512))
                elif not self._orphan:
                    self._listen()
            if self._turn():
                self._pages.clear()
                return self._last_status()

    def _wait_ms(self, now: float) -> float | None:
        settle_s = SETTLE_STEP_S if self._unreported else None
        line_s = self._line.wakes_in(boot_s())
        moments = (self._command.wakes_in(now), self._drill.wakes_in(now), self._silence.wakes_in(now), settle_s,
                   line_s if line_s < 1e6 else None)  # fmt: skip
        return min((moment * 1000 for moment in moments if moment is not None), default=None)

    def _keep_lease(self) -> None:
        """The lease has run out: nothing of ours may run any more, since it may run elsewhere."""
        if self._line.paused and boot_s() >= self._line.until:
            self._resumed()
        if not self._orphan and self._line.over(boot_s()):
            self._command.kill(time.monotonic(), ORPHAN_KILL_WAIT_S)
            if self._end is None:
                complain(f"ftslurm: rank {self._rank}: {self._line.why}; what still ran of it was killed")
            self._alone()

    def _turn(self) -> bool:
        """Look at the children and the connection; True when all is done."""
        nothing_left = self._command.reap()
        now = time.monotonic()
        self._line.turn(boot_s())
        if self._line.gone and not self._orphan:
            self._orphaned()
        self._watch_over(nothing_left)
        if self._unreported:
            self._settle(now)
        if self._held:
            self._hold()
        else:
            self._drill.press(now)
        if (silent_s := self._silence.news(now)) is not None:
            self._say({"t": "silent", "for": silent_s})
        if self._command.stopping:
            if nothing_left:
                if not self._unreported:
                    self._stopped([])
            elif not self._command.press(now):
                self._stopped(descendants(os.getpid()))
        return not self._command.stopping and (self._end is not None or self._orphan)

    @property
    def _unreported(self) -> bool:
        """Has the command ended, and nobody knows yet?"""
        return self._command.status is not None and not self._reported

    def _settle(self, now: float) -> None:
        """Report the end of the command once its last words have been read. Whoever ended well has none to tell."""
        if not self._tell_by:
            self._ended_at, self._asked, self._tell_by = time.time(), self._command.stopping, now + SETTLE_S
        if not self._command.status or now >= self._tell_by or self._output.caught_up():
            self._report_exit()

    def _watch_over(self, nothing_left: bool) -> None:
        """Let the kernel know the end of the lease, until there is nothing to end and nothing will start."""
        done = self._line.paused or (nothing_left and (self._orphan or self._end is not None))
        until = 0.0 if done or self._line.until == float("inf") else self._line.until
        if until != self._guarded:
            self._guarded = until
            self._guard.set(until)

    # --- from the controller

    def _listen(self) -> None:
        try:
            for message in self._line.listen():
                if self._line.over(boot_s()):  # the welcome itself may have told so
                    break
                self._told(message)
        except (LinkError, KeyError, TypeError, ValueError) as error:
            complain(f"ftslurm: rank {self._rank}: ftrun cannot be understood: {error}")
            self._orphaned()

    def _told(self, message: dict) -> None:
        what = message["t"]
        if what == "start":
            self._start(
                int(message["attempt"]), message.get("argv") or self._argv, message["env"], int(message.get("tail") or 0),
                str(message.get("inject") or ""), self._banner(message),
            )  # fmt: skip
            self._silence.watch(0.0 if self._reported else float(message.get("silence_s") or 0))
        elif what == "stop":
            self._drill.over()
            self._silence.watch(0.0)
            self._command.attempt = int(message["attempt"])
            asked = bool(message.get("asked"))
            self._command.stop(time.monotonic(), float(message["grace_s"]), float(message["kill_wait_s"]), asked)
        elif what == "silence":
            if not self._reported:
                self._silence.watch(float(message["after_s"]), time.monotonic())
        elif what == "words":
            if not self._reported:
                self._say({"t": "words", "attempt": self._command.attempt, "tail": self._output.words()})
        elif what == "signal":
            self._command.signal(int(message["number"]))
        elif what == "drill":
            self._drill.told(message, time.monotonic())
        elif what == "end":
            self._drill.over()
            self._end = int(message["status"])
            if message.get("forget"):
                self._own_status = None
            # As Slurm does when a step ends: what the command left behind is killed, not asked.
            self._command.stop(time.monotonic(), 0.0, ORPHAN_KILL_WAIT_S)
        else:
            raise ValueError(f"unknown message {what!r}")

    def _banner(self, message: dict) -> list[tuple[int, bytes]]:
        """(stream, line): where the file behind a stream is shared, one of those who share it prints it."""
        line = str(message.get("banner") or "")[:NAME_MAX].encode(errors="replace") + b"\n"
        mine = {"task": True, "node": self._env.get("SLURM_LOCALID", "0") == "0", "one": self._rank == 0}
        return [(fd, line) for fd in (1, 2) if mine.get(str((message.get("streams") or {}).get(str(fd))))]

    def _start(
        self, attempt: int, argv: list[str], env: dict, tail: int, inject: str, banner: list[tuple[int, bytes]]
    ) -> None:
        """tail: bytes to keep of each output stream; 0: nothing stands between the command and ours. inject: for PYTHONPATH."""
        for fd, line in banner:
            print_at_once(fd, line)
        self._reported, self._own_status, self._tell_by = False, None, 0.0
        self._oom_kills = oom_kills()
        env = {**self._env, **self._pages.variables(attempt), **env}
        self._page = env.get(PAGE_VARIABLE, "")
        if inject and os.path.isdir(inject):
            env["PYTHONPATH"] = f"{inject}:{env['PYTHONPATH']}" if env.get("PYTHONPATH") else inject
        if left := self._end_left_before(env):
            status, why = OWN_FAILURE, f"processes {', '.join(map(str, left))} of an earlier attempt outlived SIGKILL"[:NAME_MAX]
        else:
            status, why = self._command.start(attempt, argv, env, self._output.lay(tail))
        if why:
            self._reported = True
            self._own_status = status
            self._say({"t": "unstartable", "attempt": attempt, "status": status, "why": why})
        else:
            self._say({"t": "started", "attempt": attempt, "pid": self._command.pid})

    def _end_left_before(self, env) -> list[int]:
        """What a shim of an earlier step, which was killed, has left of its rank. Gives those that outlive it."""
        if self._launch < 2 or self._alone_here or PAGE_VARIABLE not in env:
            return []
        ended, left = end_left_before(env[PAGE_VARIABLE], env, LEFT_WAIT_S)
        if ended:
            pids = ", ".join(map(str, sorted(ended)))[:NAME_MAX]
            complain(f"ftslurm: rank {self._rank}: processes of an earlier attempt were left and killed ({pids})")
        self._alone_here = not left
        return left

    def _orphaned(self) -> None:
        """No controller, no supervision: end what runs, so that nothing runs beside a later attempt.

        The grace ends with the lease, which the kernel goes on watching.
        """
        left_s = 0.0 if self._held else self._line.until - boot_s()
        asked = self._line.ending(boot_s())  # by Slurm; a second SIGTERM might disturb who writes a checkpoint
        self._command.stop(time.monotonic(), max(0.0, min(self._line.grace_s, left_s)), ORPHAN_KILL_WAIT_S, asked)
        self._alone()

    def _alone(self) -> None:
        self._orphan = True
        self._line.close()
        self._drill.over()

    # --- to the controller

    def _say(self, message: dict) -> None:
        if not self._orphan:
            self._line.say(message)

    def _hello(self, address: str) -> dict:
        env = self._env
        return {
            "t": "hello",
            "rank": self._rank,
            "node": env.get("SLURMD_NODENAME") or socket.gethostname(),
            "slot": int(env.get("SLURM_NODEID", "0")),
            "local": int(env.get("SLURM_LOCALID", "0")),
            "expected": self._total,
            "step": f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}",
            "launch": self._launch,
            "address": address,
            "pid": os.getpid(),
            "free_port": self._free_port(),
            "cpus": count_in(env, "SLURM_CPUS_ON_NODE"),
            "gpus": count_in(env, "SLURM_GPUS_ON_NODE"),
        }

    def _free_port(self) -> int:
        """For the next start: another one than for the last, which may still be in TIME_WAIT, or taken by somebody else."""
        if self._rank:
            return 0
        job, step = self._env.get("SLURM_JOB_ID", ""), self._env.get("SLURM_STEP_ID", "")  # the same outside of Slurm
        return free_port(f"{job}.{step}.{os.getpid()}.{self._command.attempt}")

    def _report_exit(self) -> None:
        status = self._command.status or 0
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 0 if killed_by else os.WEXITSTATUS(status)
        self._reported = True
        self._drill.over()
        self._silence.watch(0.0)
        if not self._asked:
            self._own_status = 128 + killed_by if killed_by else code
        if killed_by in FORWARDED and not self._asked:
            # Slurm signals the command and the shim one after the other: what killed the one is told before its end.
            time.sleep(RESCAN_S)
            self._signalled(self._pending())
        told = {"t": "exited", "attempt": self._command.attempt, "code": code, "signal": killed_by, "at": self._ended_at}
        if notes := last_notes(self._page):
            told["notes"] = notes
        if status:
            told["asked"] = self._asked
            if words := self._output.words():
                told["tail"] = words
            if self._oom_kills is not None and (oom_kills() or 0) > self._oom_kills:
                told["oom"] = True
        self._say(told)

    def _pending(self) -> bytes:
        ready, _, _ = select.select([self._wakeup], [], [], 0)
        return os.read(self._wakeup, 512) if ready else b""

    def _stopped(self, left: list[int]) -> None:
        if self._unreported:  # its own process is gone, but others cannot be killed
            self._report_exit()
        self._command.stopping = False
        self._say({"t": "stopped", "attempt": self._command.attempt, "left": left, "free_port": self._free_port()})

    # --- signals

    def _resumed(self) -> None:
        """What we watch over was let go on with us, and is stopped at once where it may not run."""
        self._line.resume(boot_s())
        self._silence.excuse(time.monotonic())
        self._held = self._held or self._line.held
        if self._held:
            self._hold()

    def _hold(self) -> None:
        """Until the controller has answered, or the end has come."""
        if self._command.stopping or self._orphan:
            self._held = False
        elif self._line.held:
            self._command.freeze()  # again: who was being forked is found now
        else:
            self._held = False
            self._command.thaw()

    def _signalled(self, numbers: bytes) -> None:
        for number in dict.fromkeys(numbers):
            if number == signal.SIGTSTP:
                self._line.pause(boot_s())
            elif number == signal.SIGCONT:
                self._resumed()
            elif number == signal.SIGTERM:
                self._line.asked_to_end(boot_s())
            if number in ANNOUNCING and self._passes_on and not self._held:
                self._command.signal(number)
            if number in FORWARDED:
                if self._passes_on:
                    self._command.signal(number)
                self._say({"t": "signal", "number": number})

    def _last_status(self) -> int:
        if self._own_status:
            return self._own_status
        return self._end if self._end is not None else 128 + signal.SIGTERM


def passes_signals_on(env) -> bool:
    """Does Slurm signal only the task itself (proctrack/cgroup: the shim), or the whole tree, the command included?

    Only a step's own cgroup means the former. Source: proctrack_p_signal in Slurm's proctrack plugins.
    """
    if env.get("FTSLURM_LOCAL"):
        return True
    try:
        with open("/proc/self/cgroup") as listing:
            return "/step_" in listing.read()
    except OSError:
        return False


def catch_signals() -> int:
    """Queue every signal we pass on, and SIGCHLD, for a loop; gives the end to read. Ignored ones stay ignored."""
    read_end, write_end = waking()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*FORWARDED, *ANNOUNCING, signal.SIGCHLD):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read_end


def end_as(status: int) -> None:
    """End as the command did: by the same signal, without a core of our own, so that srun reports what it would have."""
    number = status - 128
    if number in (*FORWARDED, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(status & 255)


def main() -> None:
    argv = sys.argv[1:]
    env = dict(os.environ)
    # Slurm gives every task pipes of its own; the local launcher, if it need not label, its own to all.
    output = Output(open_streams(), shared=bool(env.get("FTSLURM_LOCAL")))
    if argv[:1] == ["--"]:
        argv = argv[1:]
    wakeup = catch_signals()
    rank = env.get("SLURM_PROCID", "?")
    try:
        channel = Channel(env.pop(CHANNEL_VARIABLE))
        env.pop(MARK, None)
        sock, link = connect(channel, env, CONNECT_TIMEOUT_S)
        local = passes_signals_on(env)
        env.pop("FTSLURM_LOCAL", None)
        status = Shim(argv, env, channel, sock, link, wakeup, local, output).run()
    except (IndexError, KeyError, OSError, ValueError) as error:
        complain(
            f"ftslurm: rank {rank} on {socket.gethostname()} cannot reach ftrun, so its command was not started: {error}"
            " (a firewall between the nodes? FTRUN_NODES_PORTS and FTRUN_NODES_ADDRESS say what it lets through)"
        )
        os._exit(OWN_FAILURE)
    output.deliver(DELIVER_S)
    end_as(status)


if __name__ == "__main__":
    main()

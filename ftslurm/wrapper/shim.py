"""The shim: parent of one task's command. One file, standard library only: it also runs inside containers.

`srun ... python -I -S shim.py -- command args` stands where the command stood. The shim calls the controller, runs the
command when told to, reports how it ended, stops it with everything it left behind, runs it again, and at last ends as
the command did. It never starts anything by itself, and it outlives the controller only to clean up.

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

# The C modules themselves, where there are such: one shim a task starts at once on every core, and the Python halves of
# these (re, enum, selectors, OpenSSL) would double its start-up time and add 4 MB. What is used of them is documented
# API that the public modules pass through as it is.
try:
    import _signal as signal
    import _socket as socket
    from _blake2 import blake2s
    from _json import encode_basestring_ascii, make_scanner
except ImportError:
    import signal
    import socket
    from hashlib import blake2s
    from json.encoder import encode_basestring_ascii
    from json.scanner import make_scanner
from _operator import _compare_digest as same_digest

PROTOCOL = b"FTS1"
CHANNEL_VARIABLE = "FTSLURM_CHANNEL"
MAX_LINE = 4 << 20  # an argv or environment of this size would not be executed either
MAX_GREETING = 200
CONNECT_TIMEOUT_S = 30.0
# Without a controller nobody asks for a grace; the ranks get the default of `stop.grace` and `stop.kill_wait`.
ORPHAN_GRACE_S, ORPHAN_KILL_WAIT_S = 20.0, 30.0
RESCAN_S = 0.02  # between two SIGKILL rounds: children of the killed become ours only once they are reaped
OWN_FAILURE = 71  # EX_OSERR: the shim itself could not do its work

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Passed on to the command and reported. The rest (STOP, CONT, KILL, TSTP) does what the kernel does.
FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGXCPU, signal.SIGURG,
)  # fmt: skip


class LinkError(Exception):
    """The other side is not who it should be, or what it sent was damaged, repeated or out of order."""


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


class Channel:
    """How to reach the controller: `1:port:secret:address,address`, kept out of every command line."""

    def __init__(self, text: str) -> None:
        version, port, secret, addresses = text.split(":", 3)
        if version != "1":
            raise ValueError(f"channel version {version}")
        self.port = int(port)
        self.secret = bytes.fromhex(secret)
        self.addresses = [address for address in addresses.split(",") if address]


def connect(channel: Channel, env, timeout_s: float) -> tuple[socket.socket, Link]:
    """A connection whose other side has proved to be our controller. Raises: OSError when there is none in time."""
    launcher = env.get("SLURM_LAUNCH_NODE_IPADDR")  # where srun runs, as this node reaches it: the controller's node
    addresses = list(dict.fromkeys(([launcher] if launcher else []) + channel.addresses))
    deadline, last = time.monotonic() + timeout_s, OSError("no address")
    while time.monotonic() < deadline:
        for address in addresses:
            try:
                return _connect(address, channel, min(10.0, timeout_s))
            except (OSError, LinkError) as error:
                last = OSError(f"{address} port {channel.port}: {error}")
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
    sock.settimeout(None)
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


def send_signal(pid: int, number: int) -> None:
    """A negative `pid` means the process group."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already; or it changed its user (setuid), which only root could end


def free_port() -> int:
    """A TCP port that nobody has bound now and that is not in TIME_WAIT; 0 if there is none."""
    try:
        probe = socket.socket()
        try:
            probe.bind(("", 0))
            return probe.getsockname()[1]
        finally:
            probe.close()
    except OSError:
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
        self._deadline = 0.0
        self._kill_until = 0.0
        self._kill_wait_s = 0.0

    def start(self, attempt: int, argv: list[str], env: dict) -> tuple[int, str]:
        """(0, "") once the command runs, else the errno (which slurmstepd makes the exit status) and the reason."""
        self.attempt, self.status, self.stopping = attempt, None, False
        path = find_program(argv[0], env.get("PATH", os.defpath))
        terminal = os.isatty(0)
        read_end, write_end = os.pipe()  # both close on exec; a failure comes through
        self.pid = os.fork()
        if self.pid == 0:
            self._become(path, argv, env, write_end, terminal)
        os.close(write_end)
        told = os.read(read_end, 16)
        os.close(read_end)
        if not told:
            return 0, ""
        os.waitpid(self.pid, 0)  # a failed child still has our handlers: a SIGTERM to it would look like one to us
        self.pid = 0
        number = int(told)
        return number, f"{argv[0]}: {os.strerror(number)}"

    def _become(self, path: str, argv: list[str], env: dict, failure: int, terminal: bool) -> None:
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
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python's start-up ignores these two
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
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
                self.status = status

    def signal(self, number: int) -> None:
        """To the command itself, as Slurm signals a task."""
        if self.pid and self.status is None:
            send_signal(self.pid, number)

    def stop(self, now: float, grace_s: float, kill_wait_s: float, asked: bool = False) -> None:
        """SIGTERM (unless `asked` already) to the process group and to whatever left it; a second call can only shorten
        the grace."""
        if not self.stopping:
            if not asked:
                self._to_all(signal.SIGTERM, signal.SIGCONT)  # a stopped process does not notice a SIGTERM
            self._deadline = now + grace_s
        self.stopping, self._kill_wait_s, self._kill_until = True, kill_wait_s, 0.0
        self._deadline = min(self._deadline, now + grace_s)

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


class Shim:
    """One loop over the socket, the signals and the clock."""

    def __init__(self, argv: list[str], env: dict, sock: socket.socket, link: Link, wakeup: int, passes_on: bool) -> None:
        self._argv = argv
        self._env = env
        self._sock = sock
        self._link = link
        self._wakeup = wakeup
        self._passes_on = passes_on
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become subreaper (Linux 3.4 or later is needed)")
        self._command = Command(self._libc)
        self._rank = int(env.get("SLURM_PROCID", "0"))
        self._reported = True  # the end of the command was told
        self._own_status: int | None = None  # of a command that ended by itself
        self._end: int | None = None  # the controller has let us go, with this status
        self._orphan = False

    def run(self) -> int:
        """The status to end with: 128+n means by signal n."""
        self._say(self._hello())
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            wait_s = self._command.wakes_in(time.monotonic())
            for fd, _ in poll.poll(None if wait_s is None else wait_s * 1000):
                if fd == self._wakeup:
                    self._signalled(os.read(self._wakeup, 512))
                elif not self._orphan and not self._listen():
                    poll.unregister(self._sock)
                    self._orphaned()
            if self._turn():
                return self._last_status()

    def _turn(self) -> bool:
        """Look at the children; True when all is done."""
        nothing_left = self._command.reap()
        if self._command.status is not None and not self._reported:
            self._report_exit()
        if self._command.stopping:
            if nothing_left:
                self._stopped([])
            elif not self._command.press(time.monotonic()):
                self._stopped(descendants(os.getpid()))
        return not self._command.stopping and (self._end is not None or self._orphan)

    # --- from the controller

    def _listen(self) -> bool:
        try:
            for message in receive(self._sock, self._link):
                self._told(message)
        except EOFError:
            return False
        except (OSError, LinkError, KeyError, TypeError, ValueError) as error:
            print(f"ftslurm: rank {self._rank}: the connection to ftrun broke: {error}", file=sys.stderr)
            return False
        return True

    def _told(self, message: dict) -> None:
        what = message["t"]
        if what == "start":
            self._start(int(message["attempt"]), message.get("argv") or self._argv, message["env"])
        elif what == "stop":
            self._command.attempt = int(message["attempt"])
            asked = bool(message.get("asked"))
            self._command.stop(time.monotonic(), float(message["grace_s"]), float(message["kill_wait_s"]), asked)
        elif what == "signal":
            self._command.signal(int(message["number"]))
        elif what == "end":
            self._end = int(message["status"])
            if message.get("forget"):
                self._own_status = None
            # As Slurm does when a step ends: what the command left behind is killed, not asked.
            self._command.stop(time.monotonic(), 0.0, ORPHAN_KILL_WAIT_S)
        else:
            raise ValueError(f"unknown message {what!r}")

    def _start(self, attempt: int, argv: list[str], env: dict) -> None:
        self._reported, self._own_status = False, None
        status, why = self._command.start(attempt, argv, {**self._env, **env})
        if why:
            self._reported = True
            self._own_status = status
            self._say({"t": "unstartable", "attempt": attempt, "status": status, "why": why})
        else:
            self._say({"t": "started", "attempt": attempt, "pid": self._command.pid})

    def _orphaned(self) -> None:
        """No controller, no supervision: end what runs, so that nothing runs beside a later attempt."""
        self._orphan = True
        self._command.stop(time.monotonic(), ORPHAN_GRACE_S, ORPHAN_KILL_WAIT_S)

    # --- to the controller

    def _say(self, message: dict) -> None:
        if self._orphan:
            return
        try:
            self._sock.sendall(self._link.pack(message))
        except OSError:
            pass  # the same break shows when reading, where it is dealt with

    def _hello(self) -> dict:
        env = self._env
        return {
            "t": "hello",
            "rank": self._rank,
            "node": env.get("SLURMD_NODENAME") or socket.gethostname(),
            "slot": int(env.get("SLURM_NODEID", "0")),
            "local": int(env.get("SLURM_LOCALID", "0")),
            "expected": int(env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or "1"),
            "step": f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}",
            "address": self._sock.getsockname()[0],
            "pid": os.getpid(),
            "free_port": self._free_port(),
        }

    def _free_port(self) -> int:
        return free_port() if self._rank == 0 else 0

    def _report_exit(self) -> None:
        status = self._command.status or 0
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 0 if killed_by else os.WEXITSTATUS(status)
        self._reported = True
        if not self._command.stopping:
            self._own_status = 128 + killed_by if killed_by else code
        if killed_by in FORWARDED and not self._command.stopping:
            # Slurm signals the command and the shim one after the other: what killed the one is told before its end.
            time.sleep(RESCAN_S)
            self._signalled(self._pending())
        self._say({"t": "exited", "attempt": self._command.attempt, "code": code, "signal": killed_by, "at": time.time()})

    def _pending(self) -> bytes:
        ready, _, _ = select.select([self._wakeup], [], [], 0)
        return os.read(self._wakeup, 512) if ready else b""

    def _stopped(self, left: list[int]) -> None:
        self._command.stopping = False
        self._say({"t": "stopped", "attempt": self._command.attempt, "left": left, "free_port": self._free_port()})

    # --- signals

    def _signalled(self, numbers: bytes) -> None:
        for number in dict.fromkeys(numbers):
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
    """Queue every signal we pass on, and SIGCHLD, into a pipe; gives its reading end. Ignored ones stay ignored."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
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
    if argv[:1] == ["--"]:
        argv = argv[1:]
    wakeup = catch_signals()
    rank = env.get("SLURM_PROCID", "?")
    try:
        channel = Channel(env.pop(CHANNEL_VARIABLE))
        sock, link = connect(channel, env, CONNECT_TIMEOUT_S)
        local = passes_signals_on(env)
        env.pop("FTSLURM_LOCAL", None)
        status = Shim(argv, env, sock, link, wakeup, local).run()
    except (KeyError, OSError, ValueError) as error:
        print(
            f"ftslurm: rank {rank} on {socket.gethostname()} cannot reach ftrun, so its command was not started: {error}"
            " (a firewall between the nodes? FTRUN_ADDRESS names the address to use)",
            file=sys.stderr,
        )
        os._exit(OWN_FAILURE)
    end_as(status)


if __name__ == "__main__":
    main()

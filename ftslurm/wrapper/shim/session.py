"""A session with the controller that survives broken connections: every message arrives, in order and once."""

from __future__ import annotations

import os
import select
import time
from _thread import error as ThreadError
from _thread import start_new_thread

from ftslurm.wrapper.shim.connection import (
    GREETING_S,
    Busy,
    Channel,
    NobodyListens,
    connect,
    pause_s,
    readable,
    receive,
    spread_s,
)
from ftslurm.wrapper.shim.fast_stdlib import deque, socket
from ftslurm.wrapper.shim.lease import Lease, boot_s
from ftslurm.wrapper.shim.messages import LinkError, Message, SignedConnection, number_in
from ftslurm.wrapper.shim.processes import waking


class ReliableStream:
    """One side of a reliable stream, without its connections: messages are numbered, kept
    until the other side has them, and sent again after a break; duplicates are dropped."""

    def __init__(self) -> None:
        self.heard = 0  # number of the last message that came in
        self._said = 0
        self.kept: deque[Message] = deque()  # what the other side may not have yet, in order

    def say(self, message: Message) -> Message:
        """`message` with its number, to be sent if there is a connection."""
        self._said += 1
        self.kept.append({**message, "n": self._said})
        return self.kept[-1]

    def hear(self, message: Message) -> bool:
        """Is it a new one? Raises: LinkError when one before it is missing."""
        number = message.get("n")
        if type(number) is not int or number > self.heard + 1:
            raise LinkError(f"after message {self.heard} came message {str(number)[:20]}")
        new = number == self.heard + 1
        self.heard = max(self.heard, number)
        return new

    def has(self, number: object) -> None:
        """The other side has everything up to `number`. Raises: LinkError when it cannot."""
        if type(number) is not int or not 0 <= number <= self._said:
            raise LinkError(f"message {str(number)[:20]} of {self._said} was acknowledged")
        while self.kept and self.kept[0]["n"] <= number:
            self.kept.popleft()


REDIAL_S = 3.0  # for one try; the first lost SYN is sent again after one second
# The controller's host answers, and nobody listens there: ftrun has ended. Longer than a reload of a firewall's rules.
REFUSED_S = 5.0
# When Slurm has just asked the step to end, it has asked the batch script too, and ftrun most likely ended with it: Slurm kills
# all that a script leaves in its cgroup. As long after SIGTERM; SIGKILL follows within KillWait, 30 s by default.
ENDING_S, ENDING_REFUSED_S = 60.0, 0.5
MISSED_BEATS = 2  # as many without an answer, and the connection is taken for dead: TCP itself would wait for minutes
# Without a controller nobody asks for a grace: the ranks get that of `stop.grace`, which it told, or the default, and the
# default of `stop.kill_wait`.
ORPHAN_GRACE_S, ORPHAN_KILL_WAIT_S = 20.0, 30.0


class Session:
    """A session with the controller that survives broken connections, and the lease that its answers renew.

    `poll` wakes when there is something for `listen`. Times are boot_s().
    """

    def __init__(
        self, channel: Channel, env: dict[str, str], sock: socket.socket, link: SignedConnection, hello: Message
    ) -> None:
        """hello: the first message of every connection."""
        self._channel = channel
        self._env = env
        self._talk = ReliableStream()
        self._hello = {**hello, "talk": os.urandom(16).hex()}
        self._wake_read, self._wake_write = waking()
        self.poll = select.poll()
        self.poll.register(self._wake_read, select.POLLIN)
        self.lease = Lease()
        self.gone = ""  # why there is no controller any more
        self.grace_s = ORPHAN_GRACE_S
        self._beat_s = 0.0
        self._next_beat = float("inf")
        self._asked: dict[int, float] = {}  # beats without an answer: number -> when it was sent
        self._beats = 0
        self._has = 0  # the last beat whose answer came
        self._welcome = False
        self._refused_at: float | None = None
        self._unanswered = 0  # calls since the last connection that ftrun took and did not answer
        self._ends_by = 0.0  # until when the end of ftrun is to be expected
        self._found: tuple[socket.socket, SignedConnection] | OSError | None = None  # by the thread that dials
        self._sock: socket.socket | None = None
        # Given up, and still open: closed they would say that this process has ended.
        self._given_up: list[socket.socket] = []
        self._use(sock, link)

    def say(self, message: Message) -> None:
        """Send the message. It arrives sooner or later, unless the controller has ended."""
        numbered = self._talk.say(message)
        if self._welcome:
            self._send(numbered)

    def listen(self) -> list[Message]:
        """New messages. Raises: LinkError when the controller's protocol is unknown."""
        if self._found is not None:
            os.read(self._wake_read, 16)
            found, self._found = self._found, None
            self._dialled(found)
        if self._sock is None or not readable(self._sock):
            return []
        try:
            messages = receive(self._sock, self._link)
        except (EOFError, OSError, LinkError):  # hung up; or forged or damaged, as in the next it cannot be
            self._redial()
            return []
        return [message for message in messages if self._is_new(message)]

    def turn(self, now: float) -> None:
        """Do what is due: a beat, a new connection after unanswered beats, or giving up."""
        if self._welcome and now >= self._next_beat:
            if len(self._asked) >= MISSED_BEATS:
                self._redial()
                return
            self._beat(now)
        if self.lease.not_stopped(now):
            self.resume(now)
        if self._refused_at is not None and now - self._refused_at >= self._patience_s(now):
            self.gone = self.gone or "ftrun has ended"

    def asked_to_end(self, now: float) -> None:
        """Note that Slurm has asked the step to end."""
        self._ends_by = now + ENDING_S

    def ending(self, now: float) -> bool:
        """Has Slurm asked for it just now?"""
        return now < self._ends_by

    def _patience_s(self, now: float) -> float:
        return ENDING_REFUSED_S if self.ending(now) else REFUSED_S

    def pause(self, now: float) -> None:
        """We are going to be stopped, and the controller most likely as well. Asks it to wait for us."""
        if not self.gone and self.lease.pause(now):
            self._beat(now)

    def resume(self, now: float) -> None:
        """We run (again). Asks the controller, if it was told of the pause."""
        if self.lease.resume(now):
            self._beat(now)

    def _beat(self, now: float) -> None:
        if self._welcome:
            self._beats += 1
            self._asked[self._beats] = now
            self._next_beat = now + self._beat_s if self._beat_s else float("inf")
            pause = {"pause": True} if self.lease.pausing else {}
            self._send({"t": "beat", "k": self._beats, "a": self._talk.heard, "r": self._has, "u": time.time(), **pause})

    def wakes_in(self, now: float) -> float:
        """Seconds, infinite for never."""
        if self.gone:
            return float("inf")
        refused = float("inf") if self._refused_at is None else self._refused_at + self._patience_s(now)
        return max(0.0, min(self._next_beat, refused, self.lease.wakes_at()) - now)

    def close(self) -> None:
        """Send nothing more and do not reconnect. The lease stays as it is; the connection ends with the process."""
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

    def _is_new(self, message: Message) -> bool:
        """Raises: LinkError."""
        what = message.get("t")
        if what == "beat":
            self._talk.has(message.get("a"))
            asked = self._asked.pop(message.get("k", 0), None)
            if asked is not None:
                self._has = message["k"]
                self._asked = {beat: at for beat, at in self._asked.items() if at > asked}
                self.lease.renew(asked, message)
                self.lease.promised(message)
            if message.get("let_go"):
                self.lease.end("ftrun has released this rank", boot_s())
            return False
        if what == "refused":
            self.lease.end("ftrun has continued without this rank", boot_s())
            return False
        if what == "welcome":
            self._welcomed(message)
            return False
        return self._talk.hear(message)

    def _welcomed(self, message: Message) -> None:
        self._talk.has(message.get("a"))
        lease_s, self._beat_s = (number_in(message[name], 0, 1e9) for name in ("lease_s", "beat_s"))
        self.lease.lasts(lease_s)
        self.grace_s = number_in(message.get("grace_s", ORPHAN_GRACE_S), 0, 1e9)
        self._welcome, self._refused_at, self._unanswered = True, None, 0
        self._close_given_up()
        self._next_beat = boot_s() + self._beat_s if self._beat_s else float("inf")
        self.lease.renew(self._hello_at, message)
        for kept in self._talk.kept:
            self._send(kept)

    def _use(self, sock: socket.socket, link: SignedConnection) -> None:
        self._sock, self._link, self._welcome, self._asked = sock, link, False, {}
        self.poll.register(sock, select.POLLIN)
        self._hello_at = boot_s()
        self._next_beat = float("inf")
        self._send({**self._hello, "a": self._talk.heard, "u": time.time()})

    def _send(self, message: Message) -> None:
        if self._sock is None:
            return
        try:
            self._sock.sendall(self._link.pack(message))
        except OSError:
            self._redial()

    def _give_up(self) -> None:
        if self._sock is not None:
            self.poll.unregister(self._sock)
            self._given_up.append(self._sock)
        self._sock, self._welcome, self._next_beat = None, False, float("inf")

    def _close_given_up(self) -> None:
        while self._given_up:
            self._given_up.pop().close()

    def _redial(self) -> None:
        """Give up the connection, and call again."""
        self._give_up()
        self._dial()

    def _dial(self) -> None:
        if self.gone:
            return
        try:
            start_new_thread(self._dialling, ())
        except ThreadError as error:
            self.gone = f"cannot start a thread to call ftrun again: {error}"

    def _dialling(self) -> None:
        time.sleep(pause_s(self._unanswered) or (0.0 if self._refused_at else spread_s(self._hello.get("expected", 0))))
        limit_s = min(REDIAL_S, self._patience_s(boot_s()))
        try:
            greeting_s = GREETING_S if limit_s == REDIAL_S else limit_s
            # A refusal is told soon: Slurm may ask the step to end meanwhile.
            self._found = connect(self._channel, self._env, limit_s, greeting_s, ENDING_REFUSED_S / 2)
        except OSError as error:
            self._found = error
        os.write(self._wake_write, b"!")

    def _dialled(self, found: tuple[socket.socket, SignedConnection] | OSError) -> None:
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
        self._unanswered = self._unanswered + 1 if isinstance(found, Busy) else 0
        self._dial()

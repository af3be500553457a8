"""Messages: their JSON, and one signed connection that carries them."""

from __future__ import annotations

import os

from ftslurm.wrapper.shim.fast_stdlib import (
    TYPE_CHECKING,
    blake2s,
    encode_basestring_ascii,
    make_encoder,
    make_scanner,
    same_digest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

# --- One signed connection: both sides prove that they know the secret, and every line carries a digest.

PROTOCOL = b"FTS1"
MAX_LINE = 4 << 20  # an argv or environment of this size would not be executed either
MAX_GREETING = 200


class LinkError(Exception):
    """The other side is not who it should be, or what it sent was damaged, repeated or out of order."""


class SignedConnection:
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

    def take_outbox(self) -> bytes:
        """What is to be sent now."""
        data = bytes(self.outbox)
        self.outbox.clear()
        return data

    def feed(self, data: bytes) -> list[Message]:
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

    def pack(self, message: Message) -> bytes:
        """`message` as one line. Only when `ready`."""
        text = dumps(message).encode()
        line = self._digest(self._server, self._sent, text) + b" " + text + b"\n"
        self._sent += 1
        return line

    def _open(self, line: bytes) -> Message:
        digest, _, text = line.partition(b" ")
        if not same_digest(digest, self._digest(not self._server, self._received, text)):
            raise LinkError("a message with a wrong digest")
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


Message: TypeAlias = "Mapping[str, Any]"


# --- JSON, read and written by the C halves of the json module alone


class _JsonRules:
    """What a scanner asks for; the defaults of json.loads, without NaN and Infinity."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float, parse_int = float, int
    memo: dict[str, str] = {}  # noqa: RUF012 -- the scanner's own scratch

    @staticmethod
    def parse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")


_rules: Any = _JsonRules()
_scan = make_scanner(_rules)


def loads(text: str) -> object:
    """As json.loads. Raises: ValueError, RecursionError."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON value") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def _no_json(value: object) -> object:
    raise TypeError(f"{type(value).__name__} in a message")


_encode = make_encoder(None, _no_json, encode_basestring_ascii, None, ":", ",", False, False, True)


def dumps(value: object) -> str:
    """As json.dumps, for what messages are made of. Raises: TypeError for anything else."""
    return "".join(_encode(value, 0))


def integer_in(value: object, low: int, high: int) -> int:
    """An integer of a message. Raises: ValueError for what is none, or not within these."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} is not from {low} to {high}")
    return value


def number_in(value: object, low: float, high: float) -> float:
    """Likewise, with or without a fraction."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{value!r} is not from {low} to {high}")
    return value

"""What is kept of what a rank prints: the last of it, and the first that looks like an error. Pure."""

from __future__ import annotations

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, deque, itemgetter
from ftslurm.wrapper.shim.messages import MAX_LINE, dumps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

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
Piece: TypeAlias = "list[Any]"  # [at, stream, text], as in a message


class FirstErrors:
    """The first lines of a stream that look like an error: causes are printed long before the end."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, bytes]] = []  # Unix seconds, text
        self._room = ERRORS_MAX
        self._rest = b""  # of a line that has not ended

    def look(self, more: bytes | bytearray, at: float) -> None:
        """`more` follows on what was looked at before. Costs nothing any more once there is no room."""
        if self._room <= 0:
            return
        data = self._rest + more
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

    def pieces(self) -> tuple[list[Piece], list[Piece]]:
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

    def _named(self, parts: list[tuple[float, bytes]]) -> list[Piece]:
        return [[at, self._name, text.decode("utf-8", "replace")] for at, text in parts]


def join(chunks: Iterable[tuple[float, bytes | bytearray]]) -> list[tuple[float, bytes]]:
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


def last_words(pieces: list[tuple[list[Piece], list[Piece]]], room: int) -> list[Piece]:
    """Of several tails: first errors, then the rest, each by time, in at most `room` bytes as JSON. What is old goes first."""
    by_time = itemgetter(0)
    errors = sorted((piece for first, _ in pieces for piece in first), key=by_time)
    room -= len(dumps(errors))
    kept: list[Piece] = []
    for at, stream, text in sorted((piece for _, last in pieces for piece in last), key=by_time)[::-1]:
        size = len(dumps([at, stream, text])) + 1
        if size > room:
            text = text[-(max(0, room - 100) // 6) :] if room > 106 else ""
            kept += [[at, stream, text.partition("\n")[2] or text]] if text else []
            break
        room -= size
        kept.append([at, stream, text])
    return errors + kept[::-1]

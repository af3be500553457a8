"""What in an output is quoted, and what is reported: separates stack traces of many languages from the errors they end with.

A trace quotes the source: a frame names a file, the line below it shows the program's text, a caret points into it. None of
that is evidence, whatever words stand there: a program that compares with "uncorrectable ECC error" has not met one. What is
evidence is the line that a trace ends with (Python, Julia), or that it begins with (Java, Go, Rust, JavaScript). So a text is
walked through once, from the first line that looks like a part of a trace; quoted lines become blanks, and each error is told
with the place in the user's own code that it came from.

Text is hostile. Where a walk begins is found with RE2. Within it, each line is looked at once, LOOKED_BYTES of it, by
expressions of `re` (a call of RE2 from Python costs ten times as much, and a tail may be nothing but frames): all of them
begin at the line's beginning, and a literal is asked for before those that could try more than a few ways. What a walk
remembers does not grow with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import re2

# The bytes of a line that are read: paths are shorter, and prefixes much shorter.
LOOKED_BYTES = 1024
MESSAGE_CHARS = 300
# Processes that write into one output at once; of more than this the one that wrote longest ago is forgotten.
MAX_WRITERS = 64
# An error after a trace's last frame comes at once; after so many lines in between the trace was cut off.
PATIENCE_LINES = 40
# A block of code between fences (```) that is longer has no end.
FENCED_LINES, FENCED_BYTES = 200, 20_000


@dataclass(frozen=True, slots=True)
class Raised:
    """An error as its runtime told it."""

    offset: int  # of its line, bytes
    kind: str  # the type, `ValueError`, or `panic`, `abort`
    message: str
    place: str = ""  # `train.py:175`, the deepest frame of the user's own code, else the deepest; may be empty
    own: bool = False  # it is the user's own
    ignored: bool = False  # the runtime says that nobody cares (`Exception ignored in`)
    thrown: bool = False  # by a `raise` or `assert` in the user's own code, so its words are the program's, whatever they say
    deepest: str = ""  # the last frame, whoever's it is
    wraps: bool = False  # its cause is told below it (`Caused by:`)
    led_to: bool = False  # another error of the same process led to it, as the runtime says

    def __str__(self) -> str:
        said = f"{self.kind}: {self.message}" if self.message else self.kind
        return f"{said} (at {self.place})" if self.place else said


@dataclass(frozen=True, slots=True)
class Outline:
    """said: the text with all that is quoted blanked out, as long as it was. raised: in the order of the text."""

    said: bytes
    raised: tuple[Raised, ...] = ()


_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")


def plain(text: str) -> bytes:
    """The text without colours and without the NULs of UTF-16, and with the line breaks that a JSON logger had escaped.

    What a progress bar writes over with a carriage return are lines, too.
    """
    if "\0" in text:
        text = text.replace("\0", "").lstrip("\ufffd")  # and what marks their order
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\\" in text:  # one character is found much faster than two
        text = text.replace("\\n", "\n ")
    return text.encode(errors="replace")


_UNPLAIN = "\0\x1b\r\\"
# What goes on in the next piece: half of a Windows line break, of a colour, of what a JSON logger has escaped.
_HALF = re.compile(r"(?:\r|\\|\x1b(?:\[[0-9;]{0,20})?)\Z")
_HALF_CHARS = 22


def plain_pieces(texts: Sequence[str]) -> list[bytes]:
    """The same of an output that came in pieces, wherever it was cut."""
    whole = "".join(texts)
    if not any(char in whole for char in _UNPLAIN):  # as most are, and they come in hundreds of pieces
        return [text.encode(errors="replace") for text in texts]
    pieces: list[bytes] = []
    rest = ""
    for text in texts:
        text = rest + text
        half = _HALF.search(text, max(0, len(text) - _HALF_CHARS))
        rest = half.group() if half else ""
        pieces.append(plain(text.removesuffix(rest)))
    if rest:
        pieces[-1] += plain(rest)
    return pieces


def unlabelled(line: bytes) -> bytes:
    """The line as its program wrote it, without what a launcher puts before it to tell whose it is."""
    label = _LABEL.match(line)
    return line[label.end() :] if label else line


def label_of(line: bytes) -> bytes:
    """What a launcher puts before the line to tell whose it is; empty if it does not."""
    label = _LABEL.match(line)
    return label.group() if label else b""


def undated(line: bytes) -> bytes:
    """Without the label and the time before it; its level is still there."""
    before = _LABEL_AND_TIME.match(line)
    return line[before.end() :] if before else line


def unstamped(line: bytes) -> bytes:
    """Without what its logger puts before it as well: a time, a level. What separates those from the message may be left."""
    stamp = _STAMP.match(line)
    return line[stamp.end() :] if stamp else line


def outline(text: bytes) -> Outline:
    """Separates quoted from reported text, in time linear in its length."""
    if _MARK.search(text) is None:
        return Outline(text)
    walk = _Walk(text)
    walk.through()
    return Outline(bytes(walk.said), tuple(walk.raised))


_OPTIONS = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1
_OPTIONS.log_errors = False


def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())


# Where a walk begins: anything that only stands in a trace, or that announces one.
_MARK = re2.compile(
    "|".join(
    (
        r"Traceback \(most recent call last\)", r'File \\?"[^"\n]{1,400}", line \d', "most recent call first", "above exception",
        "Exception ignored", r"\n[^\n]{0,80}[ \t]\^+[~^ ]*\r?\n", r"^\s*\^", r"\n\s+at ", r"\n\s+@ ", r"\npanic: ", "^panic: ",
        r"goroutine \d", "panicked at ", "stack backtrace", "Stacktrace:", "terminate called", r"\nframe #\d", r"\]: frame #\d",
        "LoadError", "[Ee]xception in thread", "Caused by: ", r"\n\s*#\d+ +0x",
        "Check failure stack trace", "nested task error: ", "[Uu]nhandled [Tt]ask (?:ERROR|failure)",
        r"\n\s*\d+ \| ", r"\n\s*--> ", r": line \d+: ", "```",
    )
    ).encode(),
    _OPTIONS,
)  # fmt: skip
# Who writes: torchrun, Ray, srun -l, mpirun, pdsh, docker compose, a host by its name, a task by its number, and what a vLLM
# process says of itself.
_WHO = (
    r"\[(?:rank|default)? ?\d{1,6}\]:? ?|\((?:[\w.:/-]{1,60} (?:[\w.:/-]{1,30} ){0,2})?pid=\d+(?:, [^)\n]{1,80})?\) "
    r"|\(\w[\w.-]{0,60}\) |\d{1,6}: "
    r"|\w{1,3}\.[\w.-]{1,60}/\d{1,6} |\[\d+,\d+\]<std(?:err|out)>: ?|[a-z][\w.-]{0,60}\d: |[a-z][\w.-]{0,60}\d +\| "
    r"|[a-z][a-z-]{0,40}\d[\w-]{0,40}(?:\.[a-z][\w-]{0,40}){1,6}: |\[(?:std(?:err|out)|[a-z][\w.-]{0,60}[-:_]\d{1,7})\]:? "
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,60} [\w./-]{1,60}(?:\[\d{1,9}\])?: "
)
_WHEN = (
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T _-]\d\d:\d\d:\d\d(?:[.,:]\d{1,9}){0,3}(?:Z|[+-]\d\d:?\d\d)?\]?[:,]? ?"
    r"(?:[\w.-]{1,60} [\w./-]{1,60}\[\d{1,9}\]: )?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? |\d\d-\d\d \d\d:\d\d:\d\d |\d{2}/\d{2}(?:/\d{2,4})? \d\d:\d\d:\d\d "
)
_WORST = "ERROR|WARNING|WARN|INFO|CRITICAL|FATAL|DEBUG|TRACE"
_NAMED_LEVEL = (
    r"\[?[IWEFD]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +(?:\d+ )?[\w./<>-]{1,120}:\d+\] ?"
    rf"|\[(?:{_WORST})\]:? ?|\| (?:{_WORST}) +\| |(?:{_WORST}):[\w.-]{{1,80}}:|(?:{_WORST})(?::| +-| +\|)? "
    r"|\[\w[\w./-]{0,80}\.(?:py|cc|cpp|h|go|rs):\d+(?::\w{1,60})?\] |\w[\w./-]{0,80}\.py:\d+\] "
    r"|[A-Za-z_][\w.]{0,80}:[\w<>]{1,60}:\d{1,6} - "
)
_LEVEL = rf"{_NAMED_LEVEL}|- |\| "
_PREFIX = _compiled(rf"^(?:{_WHO}|{_WHEN}|{_LEVEL})+")
_WHO_ONLY = _compiled(_WHO)
_LABEL = _compiled(rf"^(?:{_WHO})+")
_LABEL_AND_TIME = _compiled(rf"^(?:{_WHO}|{_WHEN})+(?:\| (?=(?:{_WORST})\b)|- )?")
_STAMP = _compiled(rf"^(?:{_WHO}|{_WHEN}|{_NAMED_LEVEL})+")
_GROUP_MARGIN = _compiled(r"^[ \t]*(?:\|[ \t]?|\+-\+?-{2,}[^\n]*$)")
_FRAME = _compiled(r'^(\s*)File \\?"([^"\\]{1,400})\\?", line (\d{1,9})')  # in JSON the quotes are escaped
# `ValueError: bad`, `torch.OutOfMemoryError: CUDA ...`, `KeyboardInterrupt`, `queue.Empty`: what types of errors look like, and
# not `done` or `INFO: next`, which another process may print in between.
_ENDS = _compiled(
    r"^((?:\w+\.)*\w*(?:Error|Exception|Warning|Exit|Interrupt|Failure|Failed|Timeout|Expired|Exceeded|Died|NotFound|Group|Stop\w*|Abort\w*)"
    r"(?:\([\w.]{1,80}\))?|(?:[A-Za-z_]\w*\.)+[A-Z]\w+|[A-Z][a-z0-9]+[A-Z]\w*)(?:: ?(.*))?$"
)
# Right below the last frame any name will do, but for what a program says that it is doing (`Downloading: 42%`).
_ENDS_HERE = _compiled(r"^(?!\w+ing: )((?:\w+\.)*_{0,2}[A-Z]\w*[a-z]\w*|(?:[a-z_]\w*\.)+[a-z]\w*)(?:: ?(.*))?$")
_OTHER_LANGUAGE = _compiled(
    r"^\s+at [\w.$/<>\[\] ]{1,200}\(.*\)$|^\s+\.\.\. \d+ more$"  # Java
    r"|^\s+at (?:async )?(?:\S+ \()?[\w@./:-]{1,300}:\d+:\d+\)?$"  # JavaScript
    r"|^\s+@ +\S+|^\s+\[\d+\] .*(?:\(|$)|^\s+\[ ?\d+\] .*0x"  # glog, Julia, Open MPI
    r"|^goroutine \d+ \[|^\t?/\S+\.go:\d+|^created by |^[\w./*()-]{1,160}\(0x.*\)$"  # Go
    r"|^\s+\d+: +(?:0x[0-9a-f]+ - )?\S+|^\s+at /?\S+\.rs:\d+"  # Rust
    r"|^frame #\d+: |^\s*#\d+ +0x[0-9a-f]+ |^\s*\d+ 0x[0-9a-f]{8,} "  # PyTorch's C++, gdb, UCX
)
# How lines of a frame begin that is drawn around a trace: its corners, and its side.
_BOXES = ("\u256d\u2500".encode(), "\u2502".encode(), "\u2570\u2500".encode())
_BOXED_FRAME = _compiled(r"^\xe2\x94\x82 (\S{1,300}\.py):(\d{1,9}) in \S")
_THROWS = _compiled(r"(?:^\s*|[:;] *)(?:raise|assert)\b")
_CARET = _compiled(r"^[\s|:]*[~-]*\^[\^~\s-]*\S{0,40}$|^\s*~+\^*~*\s*$")
_LISTING = _compiled(r"^\s*\d{0,6} \| |^\s*--> \S+:\d+|^\s*\.\.\. \|")
_JS_PLACE = _compiled(r"^(?:file://)?[\w@./-]{1,300}\.[cm]?[jt]sx?:\d+$")
_LED_TO = _compiled(r"During handling of the above exception|direct cause of the following exception")
_IGNORED = _compiled(r"^Exception ignored in|^--- Logging error ---|^Exception ignored on calling")
_CAUSED_BY = b"Caused by: "
# Errors of other languages, each in one line: (expression, kind or empty for group 1, group of the message, group of the place).
_ONE_LINE = tuple(
    (literal, _compiled(pattern), kind, message, place)
    for literal, pattern, kind, message, place in (
        (b"terminate called after", r"^terminate called after throwing an instance of '([^']{1,200})'", "", 0, 0),
        (b"terminate called without", r"^(terminate) called without an active exception", "", 0, 0),
        (b"panic: ", r"^panic: (.{0,300})", "panic", 1, 0),
        (b"fatal error: ", r"^fatal error: (all goroutines are asleep.{0,100})", "panic", 1, 0),
        (b"panicked at '", r"^thread '[^']{0,80}'.{0,20} panicked at '(.{0,300})', (\S{1,200}?:\d+)(?::\d+)?$", "panic", 1, 2),
        (b"panicked at ", r"^thread '[^']{0,80}'.{0,20} panicked at (\S{1,200}?:\d+)(?::\d+)?:$", "panic", 0, 1),
        (b"Exception in thread", r"^Exception in thread \"[^\"]{0,120}\" ([\w.$]{1,200}):? ?(.{0,300})", "", 2, 0),
        (_CAUSED_BY, r"^Caused by: ([\w.$]{1,200}):? ?(.{0,300})", "", 2, 0),
        (b"ERROR: ", r"^ERROR: (?:LoadError: |InitError: )?(\w{1,80}(?:Error|Exception))(?:: |\()?(.{0,300})", "", 2, 0),
        (b"ERROR: LoadError: ", r"^ERROR: LoadError: (.{0,300})", "LoadError", 1, 0),
        (
            b"(unhandled task",
            r"^(?:ERROR )?\(unhandled task failure\): (?:(\w{1,80}(?:Error|Exception)): )?(.{0,300})",
            "julia",
            2,
            0,
        ),
        (b"Error: ", r"^((?:Uncaught )?[A-Z]\w{0,80}Error): (.{0,300})", "", 2, 0),
        (b": line ", r"^([\w./-]{1,200}: line \d+): (.{1,300})", "shell", 2, 1),
    )
)
# Julia's for an error while a file is run or a module starts: it names the error itself.
_WRAPS = frozenset({"LoadError", "InitError"})
_INNER = _compiled(r"^(?:LoadError: |InitError: )?(\w{1,80}(?:Error|Exception))(?:: |\(|:?$)(.{0,300})")
_WHAT = _compiled(r"^\s*what\(\): +(.{0,300})")
_LIBRARY = _compiled(
    r"site-packages|dist-packages|/lib/python\d|/lib64/python\d|^<|/pyenv/versions|[/\\]torch[/\\]|[/\\]ftslurm[/\\]sdk[/\\]|\.pyx\b|/usr/lib|/rustc/|/node_modules/|^node:|/usr/local/go/"
    r"|\.julia/packages|^\./\w+\.jl|at (?:java|javax|jdk|sun|scala|org\.apache)[.\w]*[./]"
)


@dataclass(slots=True)
class _Writer:
    """What one process was in the middle of."""

    indent: int = -1  # of the last frame; -1: in no trace
    own: str = ""
    any: str = ""
    throws: bool = False  # the line of the program below the last frame raises
    left: int = 0  # lines that the trace may still take
    fenced: int = 0  # so many more lines may stand in a block of code
    ignored: bool = False
    chain: bool = False  # the runtime has said that the next error comes of the one before
    last: int = -1  # number of its last error in `raised`
    below: int = -1  # number of the error whose frames are printed below it, and are not at an end
    bare: int = -1  # number of the error whose message is on the next line
    before: tuple[int, int] = (-1, -1)  # its line before, which a caret may point at


@dataclass(slots=True)
class _Walk:
    text: bytes
    said: bytearray = field(default_factory=bytearray)
    raised: list[Raised] = field(default_factory=list)
    writers: dict[bytes, _Writer] = field(default_factory=dict)
    prefix: bytes = b""
    who: bytes = b""

    def through(self) -> None:
        self.said = bytearray(self.text)
        position = 0
        while (mark := _MARK.search(self.text, position)) is not None:
            begin = max(position, self.text.rfind(b"\n", position, mark.start()) + 1)
            # A caret points at the line before it.
            begin = max(position, self.text.rfind(b"\n", position, max(position, begin - 1)) + 1)
            position = self._from(begin, mark.end())

    def _from(self, begin: int, marked: int) -> int:
        """Lines from `begin` on, until no writer is in a trace any more and `marked` is behind. Gives where it stopped."""
        for start, stop in _lines(self.text, begin):
            self._line(start, stop)
            if stop >= marked and not any(writer.left > 0 for writer in self.writers.values()):
                return min(stop + 1, len(self.text))
        return len(self.text)

    def _line(self, start: int, stop: int) -> None:
        line = self.text[start : min(stop, start + LOOKED_BYTES)].rstrip(b"\r")
        prefix = self._prefix(line)
        body = line[len(prefix) :]
        at = start + len(prefix)
        if not body.strip():
            return
        writer = self._writer()
        if margin := _GROUP_MARGIN.match(body):
            body = body[margin.end() :]
        if self._quoted(writer, body, at, stop):
            self._blank(at, stop)
        writer.left -= writer.left > 0
        writer.before = (at, stop)

    def _prefix(self, line: bytes) -> bytes:
        """What logs and launchers put before the line itself; and from now on it is its writer who writes."""
        if self.prefix and line.startswith(self.prefix) and line[len(self.prefix) :][:1] == b" ":
            return self.prefix
        found = _PREFIX.match(line)
        self.prefix = found.group() if found else b""
        self.who = b"".join(_WHO_ONLY.findall(self.prefix)) if found else b""
        return self.prefix

    def _writer(self) -> _Writer:
        whole = self.writers.get(b"")
        if whole is not None and whole.fenced:  # whatever stands in front of a line in a block of code is a part of that
            return whole
        found = self.writers.get(self.who)
        if found is None:
            while len(self.writers) >= MAX_WRITERS:
                del self.writers[next(iter(self.writers))]
            found = self.writers[self.who] = _Writer()
        return found

    def _blank(self, start: int, stop: int) -> None:
        self.said[start:stop] = b" " * (stop - start)

    def _quoted(self, w: _Writer, body: bytes, at: int, stop: int) -> bool:
        """Is the line a part of a trace that only quotes? Notes on the way what else it tells."""
        if body.startswith(b"```"):  # what a program generates blames no node
            w.fenced = w.left = 0 if w.fenced or not self._is_closed(stop) else FENCED_LINES
            return True
        if w.fenced:
            w.fenced -= 1
            return True
        if body.startswith(_BOXES):
            return self._boxed(w, body)
        if b"File " in body and (frame := _FRAME.match(body)):
            self._frame(w, frame)
            return True
        if b"Traceback (most recent call last)" in body:
            ignored = w.ignored
            self._begin(w)
            w.ignored = ignored
            return True
        if (b"^" in body or b"~" in body) and _CARET.match(body):
            if w.indent >= 0:
                w.left = PATIENCE_LINES
            elif w.before[0] >= 0:
                self._blank(*w.before)
            return True
        if w.indent >= 0:
            if body[: w.indent + 1].isspace():
                w.left = PATIENCE_LINES
                w.throws = w.throws or _THROWS.search(body) is not None
                return True
            if self._ends(w, body, at):
                return w.ignored
        return self._of_other_language(w, body, at)

    def _boxed(self, w: _Writer, body: bytes) -> bool:
        """A line of a trace that `rich` draws in a frame; the error stands below the frame."""
        if b"Traceback (most recent call last)" in body:
            self._begin(w)
        if w.indent < 0:
            return False
        w.left = PATIENCE_LINES
        if found := _BOXED_FRAME.match(body):
            self._at(w, found.group(1), int(found.group(2)))
        return True

    def _begin(self, w: _Writer) -> None:
        w.indent, w.own, w.any, w.left, w.below = 0, "", "", PATIENCE_LINES, -1

    def _is_closed(self, stop: int) -> bool:
        """Ends the block of code that a fence may open here? The next fence ends none if it names a language: of the block
        that this one has ended, the beginning is lost."""
        closing = self.text.find(b"```", stop, stop + FENCED_BYTES)
        return closing >= 0 and not self.text[closing + 3 : closing + 4].isalpha()

    def _frame(self, w: _Writer, frame: re.Match[bytes]) -> None:
        if w.indent < 0:
            self._begin(w)
        w.indent, w.left = len(frame.group(1)), PATIENCE_LINES
        self._at(w, frame.group(2), int(frame.group(3)))

    def _at(self, w: _Writer, file: bytes, number: int) -> None:
        place = f"{file.decode(errors='replace')}:{number}"
        w.any, w.throws = place, False
        if _LIBRARY.search(file) is None:
            w.own = place

    def _ends(self, w: _Writer, body: bytes, at: int) -> bool:
        """Does the line end a Python traceback?"""
        body = body.strip()
        found = _ENDS.match(body) or (_ENDS_HERE.match(body) if w.left == PATIENCE_LINES - 1 else None)
        if found is None:
            return False
        message = (found.group(2) or b"").decode(errors="replace").strip()[:MESSAGE_CHARS]
        thrown = w.throws and w.any == w.own
        raised = Raised(at, found.group(1).decode(), message, w.own or w.any, bool(w.own), w.ignored, thrown, w.any)
        self._raise(w, raised)
        w.indent, w.left = -1, 0
        return True

    def _raise(self, w: _Writer, raised: Raised) -> None:
        w.last = len(self.raised)
        self.raised.append(replace(raised, led_to=True) if w.chain else raised)
        w.chain = False

    def _of_other_language(self, w: _Writer, body: bytes, at: int) -> bool:
        if _LED_TO.search(body):
            w.left, w.chain = PATIENCE_LINES, w.last >= 0
            return True
        if _IGNORED.search(body):
            w.ignored, w.left = True, PATIENCE_LINES
            return True
        w.ignored = w.ignored and w.indent >= 0
        if _OTHER_LANGUAGE.match(body):
            w.left = PATIENCE_LINES  # frames of an error that was told before them
            return True
        if _LISTING.match(body) or _JS_PLACE.match(body):
            w.left = max(w.left, 4)
            return True
        if w.bare >= 0:  # C++ and Rust: what it says stands in the next line
            said = _WHAT.match(body)
            text = (said.group(1) if said else body).decode(errors="replace").strip()[:MESSAGE_CHARS]
            self.raised[w.bare] = replace(self.raised[w.bare], message=text)
            w.bare, w.left = -1, PATIENCE_LINES
            return False
        self._one_line(w, body, at)
        return False

    def _one_line(self, w: _Writer, body: bytes, at: int) -> None:
        """An error that is told in one line, before its frames or without any."""
        for literal, pattern, kind, message, place in _ONE_LINE:
            found = pattern.match(body) if literal in body else None
            if found is None:
                continue
            groups = ["", *(_text(group) for group in found.groups())]
            name = kind or groups[1]
            if kind == "julia":
                name = groups[1] or "ErrorException"
            if name in _WRAPS and (inner := _INNER.match(found.group(message))):
                name, groups[message] = _text(inner.group(1)), _text(inner.group(2))
            where = groups[place].replace(": line ", ":")
            if literal == _CAUSED_BY and w.below >= 0:
                self.raised[w.below] = replace(self.raised[w.below], wraps=True)
            self._raise(w, Raised(at, name, groups[message][:MESSAGE_CHARS], where, bool(where)))
            w.below, w.left = w.last, PATIENCE_LINES
            w.bare = w.last if not message and name != "terminate" else -1
            return


def _lines(text: bytes, begin: int) -> Iterator[tuple[int, int]]:
    while begin < len(text):
        stop = text.find(b"\n", begin)
        stop = len(text) if stop < 0 else stop
        yield begin, stop
        begin = stop + 1


def _text(group: bytes | None) -> str:
    return (group or b"").decode(errors="replace").strip()

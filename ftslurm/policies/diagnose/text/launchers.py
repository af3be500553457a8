"""Lines about another's failure: what launchers print about their processes, and who only says that something failed.

Whoever passes an error on, reports the end of another process, says what it does about an error, or tells the reader where to
look, has not met the cause itself. Such a line counts where nothing else is told, and defers to all that its rank says besides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import re2

from ftslurm.catalogs.scanner import asks
from ftslurm.model.exits import ExitStatus, from_shell, signal_name, signal_number

# A launcher prints last, so its lines are at the end.
LAST_CHARS = 16384
LAST_LINES = 40
_WORDS = {
    "Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7, "Illegal instruction": 4,
    "Floating point exception": 8, "Terminated": 15,
}  # fmt: skip


def compiled(pattern: str) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile(pattern.encode(), options)


# torchrun names the first failure last, under this heading.
_ROOT_CAUSE = "Root Cause (first observed failure)"
# How a child ended: by a status, negative for a signal; by the number of a signal, its name, or the shell's word for it.
_STATUS, _SIGNAL, _NAME = "status", "signal", "name"
_LINES = tuple(
    (compiled(pattern), kind)
    for pattern, kind in (
        (r"failed \(exitcode: (-?\d{1,3})\)", _STATUS),
        (r"died with <Signals\.SIG\w+: (\d{1,2})>", _SIGNAL),
        (r"terminated with signal (SIG[A-Z]{2,8})", _NAME),
        (r"exits with return code = (-?\d{1,3})", _STATUS),
        (rf"error: [\w.-]{{1,80}}: tasks? [\d,\[\]-]{{1,200}}: ({'|'.join(_WORDS)})", _NAME),  # srun
        (r"error: [\w.-]{1,80}: tasks? [\d,\[\]-]{1,200}: Exited with exit code (\d{1,3})", _STATUS),
        (r"exited on signal (\d{1,2})", _SIGNAL),
        (r"exit status of rank \d+: killed by signal (\d{1,2})", _SIGNAL),  # MPICH's
        (r"exit status of rank \d+: return code (\d{1,3})", _STATUS),
        (r"(?:^|\n)=\s+EXIT CODE: (\d{1,3})", _STATUS),
        (r"(?i)\bexit(?:ed)?[ _]?(?:with )?(?:code|status)?\W{0,3}(-\d{1,2})\b", _STATUS),  # a parent's in Python
        (r"returned non-zero exit status (\d{1,3})\.", _STATUS),
        (rf": line \d{{1,6}}: +\d{{1,9}} ({'|'.join(_WORDS)})", _NAME),
        (r"(?:^|\n)(Killed|Segmentation fault|Bus error|Illegal instruction)(?: \(core dumped\))?\s*$", _NAME),
    )
)
_TABLE_LINE = compiled(r"(?m)^[^\n]*exitcode +: (-?\d{1,3})[^\n]*$")


def root_cause(text: bytes) -> bytes:
    """The line of torchrun's table that tells how the first child failed; empty if there is none."""
    found = _in_table(text)
    return found.group().strip() if found else b""


def _in_table(text: bytes) -> Any:
    table = text.rfind(_ROOT_CAUSE.encode())
    return _TABLE_LINE.search(text[table:]) if table >= 0 else None


def child_line(text: str) -> str:
    """The line in which a launcher says how its first child failed, for people; empty if it does not."""
    data = text[-LAST_CHARS:].encode(errors="replace")
    if line := root_cause(data):
        return line.decode(errors="replace")[:SHOWN_CHARS]
    for found, _ in _told(data):
        begin, end = data.rfind(b"\n", 0, found.start(1)) + 1, data.find(b"\n", found.end(1))
        return data[begin : end if end >= 0 else len(data)].strip().decode(errors="replace")[:SHOWN_CHARS]
    return ""


def child_status(text: str) -> ExitStatus | None:
    """How the first child of a launcher failed, by the launcher's last words; None if they do not say, or only that it did."""
    data = text[-LAST_CHARS:].encode(errors="replace")
    if any(_SRUNS_OWN.search(line) and not _OF_TASKS.search(line) for line in data.splitlines()[-LAST_LINES:]):
        return None  # srun itself refused or failed to start the step
    table = _in_table(data)
    for found, kind in ((table, _STATUS),) if table else _told(data):
        said = found.group(1).decode()
        if kind == _NAME:
            number = _WORDS.get(said) or signal_number(said)
            return ExitStatus(0, number) if said in (*_WORDS, signal_name(number)) else None
        number = int(said)
        if kind == _SIGNAL or number < 0:
            return ExitStatus(0, abs(number))
        return from_shell(number) if number > 1 else None
    return None


def _told(data: bytes) -> Iterator[tuple[Any, str]]:
    return ((found, kind) for pattern, kind in _LINES if (found := pattern.search(data)))


# What reports the end of another process, and comes after it.
_REPORTS = compiled(
    r"^(?:\d{1,6}: )?slurm(?:step)?d[\w.\[\]-]{0,60}: "
    r"|^(?:(?:srun|salloc|sbatch)(?:\.\w+)?|mpirun|mpiexec|prun|make(?:\[\d+\])?|ninja|ssh|pdsh\S*): "
    r"|^\[?(?:mpiexec|proxy|prterun)[@:\]]"
    r"|\bJob step aborted: Waiting up to|cannot recover from this failure|\bprocess killed \(SIGTERM\)"
    r"|\*\*\* MPI_ERRORS_ARE_FATAL|\*\*\*    and potentially your MPI job"
    r"|\bprocess(?:es)? returned an? non-zero exit code"
    r"|(?i:\bexit(?:ed)?[ _]?(?:with )?(?:code|status)?)\W{0,3}-\d{1,2}\b"
    r"|MPI_Abort|torch[./]distributed[./]elastic|exitcode|closing signal|FAILED\s*$|NO_OTHER_FAILURES|Root Cause"
    r"|^(?:\[\S{1,80}\] )?(?:\*\*\* Process received signal|Signal(?: code)?: )"
    r"|^\s*(?:Appels ?:|Ex.{1,2}cution arr.{1,2}t.{1,2}e|Aufrufe:|Ausf.{1,2}hrung angehalten|Llamadas:"
    r"|Ejecuci.{1,2}n interrumpida)"
    r"|^\s*(?:Calls:|Execution halted|signal \(\d+\)|in expression starting|\S+ at \S+ \(unknown line\))"
    r"|^\s*(?:Aborted|Killed|Terminated|Bus error|Illegal instruction|Segmentation fault)(?: \(core dumped\))?\s*$"
)
# What srun itself could not do or was refused is its own word, and no report.
_SRUNS_OWN = compiled(r"^(?:srun|salloc|sbatch)(?:\.\w+)?: (?:error|fatal): ")
_SSHS_OWN = compiled(r"^ssh: (?:connect to|Could not resolve) ")
_OF_TASKS = compiled(
    r": tasks? [\d,\[\]-]+: |\bJob step aborted|\bTerminating\b|\bForce.Terminated|\bTimed out waiting"
    r"|\bJob allocation .{0,20}revoked"
    r"|\bNode failure on\b|: MESSAGE_|\bJob has been cancelled"
)
# A launcher that prints the log of what it started: the words are the other's.
_PASSED_ON = compiled(r": +\[?(?:ERROR|FATAL|CRITICAL)\b\]?:? |: {3,}\S|\bexecv\w* error\b")
# A launcher could not do its own work: its word, and no report of another's end.
_COULD_NOT_START = compiled(r"(?i)\b(?:unable to|cannot|could not|failed to) (?:run|launch|start|spawn|execute)\b")


def is_report(line: bytes) -> bool:
    """Does it only report the end of another process?"""
    if _SSHS_OWN.search(line):
        return False
    if _SRUNS_OWN.search(line):
        return _OF_TASKS.search(line) is not None
    return _REPORTS.search(line) is not None and not (_PASSED_ON.search(line) or _COULD_NOT_START.search(line))


# `*** STEP 1.0 ON n1 CANCELLED AT 2020-07-03T02:59:56 DUE TO TIME LIMIT ***`
_SLURMS_REASON = " DUE TO "
_FOR_MEMORY = re.compile(r"(?i)\boom[-_ ]?kill|\bout[- ]of[- ]memory handler")


def tells_reason(line: str, number: int) -> bool:
    """Does Slurm say in this line why it ended the rank with that signal?"""
    return _SLURMS_REASON in line or (number == 9 and _FOR_MEMORY.search(line[:1000]) is not None)


def signal_line(text: str, number: int) -> str:
    """The line in which a shell or a launcher tells a signal by its word (`Illegal instruction`); empty if none does."""
    words = [word for word, each in _WORDS.items() if each == number] if number else []
    lines = text[-LAST_CHARS:].splitlines()[-LAST_LINES:] if words else []
    if reason := next((line.strip()[:SHOWN_CHARS] for line in lines if tells_reason(line, number)), ""):
        return reason
    return next((line.strip()[:SHOWN_CHARS] for line in lines if any(word in line for word in words)), "")


SHOWN_CHARS = 400


LOOKED_BYTES = 1024

_only_reports = asks(
    # what a framework says when a library below has failed, which has said more
    r"\b(?:NCCL|RCCL|HCCL|UCX|MPI|CUDA|HIP) error in\b|\b(?:run|rerun) with \w+=|\bset \w+=\w+ (?:to|for) (?:get|see|more)",
    # where to look
    r"(?i)\b(?:see|check|read|inspect) (?:the )?(?:\w+ ){0,2}(?:above|below|stack ?traces?|logs?|log files?|root cause"
    r"|inner exception|(?:previous|earlier|preceding|other) (?:error|log|output|message|line)s?)\b",
    # what is done about it
    r"(?i)\b(?:taking|bringing|tearing|shutting) (?:\w+ ){0,4}down\b",
    # another process, of which no more is known
    r"(?i)\b(?:worker|process|child|subprocess|actor|executor)s?\b.{0,40}"
    r"\b(?:exited|died|ended|terminated|crashed) unexpectedly\b",
    # how a program goes down, whatever for
    r"\bterminate called without an active exception\b",
    # the other end is gone, whatever for
    r"\[Errno 32\]|\bBrokenPipeError\b",
    # by its number only
    r"(?i)\berror code(?: is)?:? ?-?\d{1,6}\W*$",
    # a stack of errors that is cut off behind its head
    r"(?i)\berror stack:\W*$",
    # that a step failed, and no reason
    r"(?i)^(?:[\w.\[\]()/-]+: )?(?:\w+ ){1,4}failed\.?\s*$",
)


# Whoever waited for another in vain, which is gone or has stopped, says so.
_waited = asks(
    r"(?i)\btimed? ?-?out\b|\bbarrier\b|\bwaiting for\b|\bonly \d+ of \d+\b|\b\d+/\d+ clients joined\b"
    r"|\bdid(?: not|n't) (?:appear|arrive|report|answer|respond|show up|join|reply)\b|\bfailed to fill whole buffer\b"
    r"|\b(?:closed|reset|gone|lost|dropped) by (?:the )?(?:remote|peer|other)\b"
    r"|(?-i:\b(?:UNAVAILABLE|UnavailableError)\b|\bEOFError: read end of file)"
)


_of_another = asks(
    r"(?i)\b(?:on|by|in|from) (?:an ?other|a different|some other|the other)"
    r" (?:rank|process|node|task|worker|processor|peer)s?\b"
)


def of_another(line: bytes) -> bool:
    """Does it say that another process has failed, and that it ends itself for that?"""
    return _of_another(line[:LOOKED_BYTES])


def waited_in_vain(line: bytes) -> bool:
    """Does it say that its process has waited for another in vain?"""
    return _waited(line[:LOOKED_BYTES])


def only_reports(line: bytes) -> bool:
    return _only_reports(line[:LOOKED_BYTES]) or of_another(line)

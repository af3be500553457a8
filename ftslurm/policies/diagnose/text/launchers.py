"""What launchers print about the processes that they started: torchrun, mpirun, DeepSpeed, a shell, Python's subprocess."""

from __future__ import annotations

import re
from typing import Any

import re2

from ftslurm.model.exits import ExitStatus, signal_name
from ftslurm.policies.diagnose.text.lines import is_mild, is_source

# A launcher prints last, so its lines are at the end.
LAST_CHARS = 16384
LAST_LINES = 40
_SIGNALS = {signal_name(number): number for number in range(1, 32)}
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
_TABLE = compiled(r"exitcode +: (-?\d{1,3})")
# Each has one group: a status, negative for a signal; the number of a signal; its name; or the shell's word for it.
_LINES = tuple(
    (compiled(pattern), kind)
    for pattern, kind in (
        (r"failed \(exitcode: (-?\d{1,3})\)", "status"),
        (r"died with <Signals\.SIG\w+: (\d{1,2})>", "signal"),
        (r"terminated with signal (SIG[A-Z]{2,8})", "name"),
        (r"exits with return code = (-?\d{1,3})", "status"),
        (rf"error: [\w.-]{{1,80}}: tasks? [\d,\[\]-]{{1,200}}: ({'|'.join(_WORDS)})", "word"),  # srun
        (r"error: [\w.-]{1,80}: tasks? [\d,\[\]-]{1,200}: Exited with exit code (\d{1,3})", "status"),
        (r"exited on signal (\d{1,2})", "signal"),
        (r"exit status of rank \d+: killed by signal (\d{1,2})", "signal"),  # MPICH's
        (r"exit status of rank \d+: return code (\d{1,3})", "status"),
        (r"(?:^|\n)=\s+EXIT CODE: (\d{1,3})", "status"),
        (r"(?i)\bexit(?:ed)?[ _]?(?:with )?(?:code|status)?\W{0,3}(-\d{1,2})\b", "status"),  # a parent's in Python
        (r"returned non-zero exit status (\d{1,3})\.", "status"),
        (rf": line \d{{1,6}}: +\d{{1,9}} ({'|'.join(_WORDS)})", "word"),
        (r"(?:^|\n)(Killed|Segmentation fault|Bus error|Illegal instruction)(?: \(core dumped\))?\s*$", "word"),
    )
)
_TABLE_LINE = compiled(r"(?m)^[^\n]*exitcode +: -?\d{1,3}[^\n]*$")


def root_cause(text: bytes) -> bytes:
    """The line of torchrun's table that tells how the first child failed; empty if there is none."""
    table = text.rfind(_ROOT_CAUSE.encode())
    found = _TABLE_LINE.search(text[table:]) if table >= 0 else None
    return found.group().strip() if found else b""


def child_line(text: str) -> str:
    """The line in which a launcher says how its first child failed, for people; empty if it does not."""
    data = text[-LAST_CHARS:].encode(errors="replace")
    if line := root_cause(data):
        return line.decode(errors="replace")[:SHOWN_CHARS]
    for pattern, _ in _LINES:
        if found := pattern.search(data):
            begin, end = data.rfind(b"\n", 0, found.start(1)) + 1, data.find(b"\n", found.end(1))
            return data[begin : end if end >= 0 else len(data)].strip().decode(errors="replace")[:SHOWN_CHARS]
    return ""


def refused(text: str) -> bool:
    """Did srun itself refuse or fail to start the step?"""
    return any(
        _SRUNS_OWN.search(line) and not _OF_TASKS.search(line)
        for line in text[-LAST_CHARS:].encode("latin-1", "replace").splitlines()[-LAST_LINES:]
    )


def child_status(text: str) -> ExitStatus | None:
    """How the first child of a launcher failed, from the launcher's last words; None if it does not say, or only that it did."""
    last = text[-LAST_CHARS:]
    table = last.rfind(_ROOT_CAUSE)
    if table >= 0 and (found := _TABLE.search(last[table:].encode("latin-1", "replace"))):
        return _status(int(found.group(1)))
    data = last.encode("latin-1", "replace")
    for pattern, kind in _LINES:
        if (found := pattern.search(data)) is None:
            continue
        said = found.group(1).decode("latin-1")
        if kind == "word":
            return ExitStatus(0, _WORDS[said])
        if kind == "name":
            return ExitStatus(0, _SIGNALS[said]) if said in _SIGNALS else None
        return ExitStatus(0, int(said)) if kind == "signal" else _status(int(said))
    return None


def _status(number: int) -> ExitStatus | None:
    if number < 0:
        return ExitStatus(0, -number)
    if number > 128:
        return ExitStatus(0, number - 128) if re.fullmatch(r"SIG[A-Z]+", signal_name(number - 128)) else ExitStatus(number)
    return ExitStatus(number) if number > 1 else None


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


def signal_by_name(text: str, number: int) -> str:
    """The line in which a handler of the program's own names the signal: `*** SIGSEGV (@(nil))`; empty if none does."""
    name = signal_name(number)
    lines = text[-LAST_CHARS:].splitlines()[-LAST_LINES:] if number else []
    return next((line.strip()[:SHOWN_CHARS] for line in lines if name in line), "")


def status_line(text: str, status: int) -> str:
    """The last line at the end of a text that tells an error by this very exit status, `severe (29): file not found`; or the
    command that a shell could not run, which is what 126 and 127 say; empty if none does."""
    tells = (
        _NO_COMMAND
        if status in (126, 127)
        else compiled(rf"(?i)\b(?:severe|error|code|status|errno|returned|exit\w*)\W{{0,4}}{status}\b(?:\W|$).{{0,4}}\w")
    )
    for line in reversed(text[-LAST_CHARS:].splitlines()[-LAST_LINES:]):
        data = line[:1000].encode("latin-1", "replace")
        if tells.search(data) and not (is_mild(data) or is_report(data) or _VAGUE_STATUS.search(data) or is_source(data)):
            return line.strip()[:SHOWN_CHARS]
    return ""


# A shell's or env's for what it was to run.
_NO_COMMAND = compiled(
    r"(?i)^\S+: (?:line \d+: )?.{1,200}: (?:command not found|no such file or directory|permission denied|cannot execute.{0,60}"
    r"|bad interpreter.{0,60})\W*$"
)
# That it ended so, or by which signal, is no reason.
_VAGUE_STATUS = compiled(
    r"(?i)\b(?:exit(?:ed|s|ing)?|return(?:ed|s)?|finished|ended|terminated)\b.{0,30}\b(?:code|status)\b|\bSIG[A-Z]{3,6}\b"
)
SHOWN_CHARS = 400

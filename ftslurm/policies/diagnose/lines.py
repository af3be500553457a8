"""Which lines are no evidence: those about another's failure, and those that quote, guess, advise, or report what was handled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ftslurm.catalogs.scanner import asks, compiled
from ftslurm.model.exits import ExitStatus, from_shell, signal_name, signal_number
from ftslurm.policies.diagnose.traces import unlabelled, unstamped

# --- Lines about another's failure: what launchers print about their processes, and who only says that something failed.
#
# Whoever passes an error on, reports the end of another process, says what it does about an error, or tells the reader where
# to look, has not met the cause itself. Such a line counts where nothing else is told, and defers to all that its rank says
# besides

# A launcher prints last, so its lines are at the end.
LAST_CHARS = 16384
LAST_LINES = 40
_WORDS = {
    "Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7, "Illegal instruction": 4,
    "Floating point exception": 8, "Terminated": 15,
}  # fmt: skip


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
    # where to look
    r"(?i)\b(?:see|check|read|inspect) (?:the )?(?:\w+ ){0,2}(?:above|below|stack ?traces?|logs?|log files?|root cause"
    r"|inner exception|(?:previous|earlier|preceding|other) (?:error|log|output|message|line)s?)\b",
    # another process, of which no more is known
    r"(?i)\b(?:worker|process|child|subprocess|actor|executor)s?\b.{0,40}"
    r"\b(?:exited|died|ended|terminated|crashed) unexpectedly\b",
    # by its number only
    r"(?i)\berror code(?: is)?:? ?-?\d{1,6}\W*$",
    # a stack of errors that is cut off behind its head
    r"(?i)\berror stack:\W*$",
)


_of_another = asks(
    r"(?i)\b(?:on|by|in|from) (?:an ?other|a different|some other|the other)"
    r" (?:rank|process|node|task|worker|processor|peer)s?\b"
)


def of_another(line: bytes) -> bool:
    """Does it say that another process has failed, and that it ends itself for that?"""
    return _of_another(line[:LOOKED_BYTES])


def only_reports(line: bytes) -> bool:
    return _only_reports(line[:LOOKED_BYTES]) or of_another(line)


# --- Is a line that a pattern knows evidence? Not if it quotes, guesses, advises, or reports something already handled.
#
# A line of output may hold an error's words for many reasons: a sentence of a data set, a help text, a list of possible
# causes, somebody else's log shown in quotation marks. Only where the words are said, by the program that writes the line, do
# they count

# The bytes before the words that show how they are meant.
LOOKED_BACK = 400
_DIGITS_ALIKE = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_TRACE_BELOW = b"traceback (most recent"
# A list of guesses is not longer than this.
LIST_LINES = 12


# What stands between quotation marks and the words, and belongs to them: `RuntimeError: CUDA error: ...`.
_LEAD = compiled(
    r"(?:(?:\w+\.)*\w*(?:Error|Exception|Failure|Interrupt|Warning)(?:\([\w.]+\))?: ?"
    r"|(?:(?:CUDA|HIP|ACL|NCCL|RCCL|HCCL) )?\[?(?i:fatal|error)\]?:? "
    r"|(?:NCCL|RCCL|HCCL|UCX|MCCL) (?:WARN|ERROR|INFO) (?:[\w/.]{1,40} ?: ?)?)+"
    r"(?:\[(?:Errno -?\d+\] )?)?$"
)
_opens = asks(r"""(?:^|[\s(\[{=:,>|])(?:[rbf]?['"]{1,3}|`+|“|\xe2\x80\x9c|\xc2\xab)$""")
# Who quotes, and means it: a logger's JSON, a type's own form (`OSError('...')`), and the libraries that quote what they pass on.
_passes_on = asks(
    r"(?i)(?:\b(?:failure|failed|error|reason|status|exception|what\(\)|code|returned|with|instance of|cause|errstr"
    r"|message|msg|exc|exc_info|detail|stderr)"
    r"""(?: \d+)?['"]?\)?\s*[:=(]?\s*|\w+(?:Error|Exception|Failure|Died)\((?:\d+, )?)\\?['"`]+$"""
)
# An item of a list of strings that has not ended; an apostrophe within a word ends none.
_in_a_list_of_strings = asks(r"\[(?:[rbf]?'[^']*', ?)*[rbf]?'[^\s'](?:[^']|\b'\b)*$")
# The GNU tools and C library end with an apostrophe what they begin with a backtick.
_GNU_QUOTED = compiled(r"`[^`'\n]*'")
_is_in_a_call = asks(
    r"\b(?:raise|throw(?: new)?|return|assert|print|printf|echo|log\w*\.\w+|f?puts|console\.\w+)\b"
    r"""[^'"`]*['"`]+$"""
)
# How a line of source, of a comment, of a diff or of a quotation begins.
_begins_as_source = asks(
    r"^\s*(?:#(?:\D|$)|//|/\*|\* |--? |> ?|\$ |>>> |\.\.\. |\++ |@|\||<!--|;;|%)"
    r"|^\s*(?:def|class|import|from|if|elif|else|for|while|return|raise|assert|try|except|with|throw|catch|case|switch"
    r"|function|fn|let|const|var|pub|use|static|print|echo|grep|sed|awk|pattern|regex)\b[^:]*[('\"`=/]"
    r"|^\s+warnings\.warn\("
    r"|^\s*(?:major|minor): "  # how HDF5 sorts each frame of its stack of errors
    r"""|^\s*[\w.\[\]]+ (?:=|\+=|==) |^\s*['"]\w+['"]: ['"]"""
)
# The same behind a time and a level, where a logger may put `-` or `|` itself; and what a dialogue or a sample begins with.
_begins_as_quotation = asks(
    r"^\s*(?:#(?:\D|$)|//|> ?|>>> |\++ |\$ |(?i:(?:examples?|question|answer|prompt|assistant|human|user)(?: \d{1,6})?: ))"
)
# What a sentence, a data set or a chat says right before it shows some text.
_shows_a_text = asks(
    r"(?i)(?:^|[^\w-])(?:for example|such as|like|called|named|known as|said|says|saying|reads|prints|printed"
    r"|mentions|the words?|the text|the line|means|what is|explains?|question|answer|prompt|response|instruction|input|output"
    r"|sample|text|content|caption|document|article|title|user|assistant)\b:?[ '\"`]*$"
)
# A message in a JSON logger's line, as far as the end of what is looked at.
_JSON_MESSAGE = re.compile(
    rb'"(?:error|reason|status|exception|message|msg|exc|exc_info|detail|stderr)"\s*:\s*"((?:[^"\\]|\\.)*)$', re.DOTALL
)
_hedges = asks(
    r"(?i)\b(?:may|might|could|would|can|should)(?: have| also| still)?"
    r"(?: be| been| lead| cause| result| indicate| mean| happen| get| see| fail| hit)\b"
    r"|\b(?:possibl[ey]|probably|perhaps|maybe|potential(?:ly)?|likely|typically|usually|often|sometimes|commonly)\b"
    r"|\bif (?:you|this|it|your|there)\b|\bin case\b|\bwhen you\b|\bto avoid\b|\bin order to\b"
    r"|\b(?:if|when|unless|whenever|against|on|for)\W*$"
    r"|^\W*(?:please|try|consider|make sure|ensure|check|verify|see|note that|note|hint|tip|refer to|help|usage|advice)\b"
    r"|\bretr(?:y|ies) (?:on|for)\b"
)
_announces_guesses = asks(
    r"(?i)\b(?:(?:potential|possible|common|likely|typical|usual|frequent) (?:root )?"
    r"(?:causes?|reasons?|solutions?|fix(?:es)?|issues?)|troubleshooting|reasons? (?:include|are|may)"
    r"|caused by (?:one|any) of(?::| (?:these|those|several|many|(?:the )?(?:following|below)))|one of the following|known issues"
    r"|hints?:|tips?:|suggestions?:|things to (?:try|check)|faq|usage:|options:|examples?:)"
)
_gives_an_example = asks(r"(?i)(?:^|[^\w-])(?:e\.g\.|i\.e\.)(?:[^.;!]|\.\w)*$")
_is_item = asks(r"\A\s*(?:\(?\d{1,2}[.):]|[-*]|\xe2\x80\xa2)\s|\A\s{2,}\S")
_has_a_mild_level = asks(
    r"^(?:[^\n]*?[\s\[(|:]|)(?:WARN(?:ING)?|INFO|DEBUG|TRACE|NOTICE|[\w.]*Warning)"
    r"(?:[\]|:),]| -|\s{1,8}[|\[(-]|\s+\d|\s+[\w.]+:)|^[IW]\d{4} \d\d:|^(?:\[rank\d+\]:)?\[[IW](?:\b|\d{3,4} \d\d:)"
)
_has_a_level_of_information = asks(
    r"^(?:[^\n]*?[\s\[(|:]|)(?:INFO|DEBUG|TRACE)(?:[\]|:),]| -|\s{1,8}[|\[(-]|\s+\d|\s+[\w.]+:)"
    r"|^I\d{4} \d\d:|^(?:\[rank\d+\]:)?\[I(?:\b|\d{3,4} \d\d:)"
)
_is_a_step = asks(
    r"(?i)^\W*(?:global[_ ])?(?:step|epoch|iter(?:ation)?|batch)s?\W{0,3}\d|^[^|\n]{0,60}\b\d{1,3}%\|.{0,60}\| *\d+/\d+ \["
    r"|\bHTTP/\d(?:\.\d)?\" 2\d\d\b"
)
_speaks_of_an_error = asks(r"(?i)\b(?:error|fatal|critical|failed)\b")
_libraries_complain = asks(r"\b(?:NCCL|RCCL|HCCL|UCX|MCCL) (?:WARN|ERROR)")  # the worst that these ever say
_libraries_inform = asks(r"\b(?:NCCL|RCCL|HCCL|UCX|MCCL|OFI) (?:INFO|TRACE|DEBUG)\b")
_tells_a_way_out = asks(
    r"(?i)\b(?:retrying|will retry|will try again|trying again|retry in|retry \d+ of|attempt \d+ of|falling back|fall back"
    r"|fallback|defaulting to|ignored|ignoring|skipping|skipped|suppressed|recovered|recovering|continuing|non-fatal"
    r"|disabled|using .* instead|(?:continuing|going on|proceeding) with"
    r"|using (?:the |a |an )?(?:\w+ ){0,2}(?:backend|default|version))\b"
)


def is_evidence(text: bytes, offset: int, line: bytes, start: int) -> bool:
    """Are the words said? text: all of it. offset: of the line in it. start: in the line, where the words begin."""
    before = line[max(0, start - LOOKED_BACK) : start]
    return _is_said(before.translate(_DIGITS_ALIKE)) and not _in_a_list(text, offset, line)


# A cascade prints one line a thousand times, with other numbers.
@lru_cache(maxsize=2048)
def _is_said(before: bytes) -> bool:
    return not (_quotes(before) or _guesses(before))


def is_mild(line: bytes) -> bool:
    """Is it logged below the level of an error, or as something that the program overcame by itself?"""
    if _libraries_complain(line):
        return is_dealt_with(line)
    if _libraries_inform(line[:200]):
        return True
    return _has_a_mild_level(line[:200]) or is_dealt_with(line)


def is_information(line: bytes) -> bool:
    """Is it logged below the level of a warning?"""
    return _has_a_level_of_information(line[:200]) or _libraries_inform(line[:200])


def is_of_ordinary_work(line: bytes) -> bool:
    """Is it a step, a request served, or other information that the program itself logs as it works, and no library's?"""
    begin = line[:200]
    if _is_a_step(unstamped(begin)):
        return True
    return _has_a_level_of_information(begin) and not (_libraries_inform(begin) or _speaks_of_an_error(begin))


def is_dealt_with(line: bytes) -> bool:
    """Is it about something that the program overcame by itself?"""
    return _tells_a_way_out(line[:1000])


def is_source(line: bytes) -> bool:
    """Does it look like a line of a program, of a comment or of a quotation?"""
    return _begins_as_source(line[:LOOKED_BACK])


def _quotes(before: bytes) -> bool:
    if b'"' in before and (message := _JSON_MESSAGE.search(before)):
        return _quotes(message.group(1).replace(b'\\"', b'"'))
    lead = _LEAD.search(before)
    outside = before[: lead.start()] if lead else before
    if b"[" in outside and b"'" in outside and _in_a_list_of_strings(outside):
        return True
    if _opens(outside) or _inside(outside):
        return not _passes_on(outside) or _is_in_a_call(outside)
    if not outside.strip():
        return False
    own = unlabelled(outside)
    if _begins_as_source(outside) or (own != outside and _begins_as_source(own)):
        return True
    return _shows_a_text(own) or _begins_as_quotation(unstamped(own))


def _inside(outside: bytes) -> bool:
    """Has a quotation begun before that has not ended? An apostrophe within a word begins none."""
    opened = outside.count(b"`") - len(_GNU_QUOTED.findall(outside)) if b"`" in outside else 0
    return opened % 2 == 1 or outside.count(b'"') % 2 == 1


def is_guessed(before: bytes) -> bool:
    """Is what follows these words a guess, an advice or an explanation?"""
    return _guesses(before[-LOOKED_BACK:])


def _guesses(before: bytes) -> bool:
    if _announces_guesses(before) or _gives_an_example(before):
        return True
    sentence = before[max(before.rfind(b". "), before.rfind(b"; "), before.rfind(b"! ")) + 1 :]
    return _hedges(sentence)


def _in_a_list(text: bytes, offset: int, line: bytes) -> bool:
    """Is it an item of a list whose first line says that these are guesses?"""
    if line[:1].isalpha() or (line[:1] == b"[" and not line.startswith((b": ", b" "), line.find(b"]") + 1)):
        return False  # most lines begin so, and no item does, nor its label
    if not _is_item(unlabelled(line[:80])):
        return False
    end = offset
    for _ in range(LIST_LINES):
        begin = text.rfind(b"\n", max(0, end - 2000), max(0, end - 1)) + 1
        above = text[begin : max(begin, end - 1)]
        if _TRACE_BELOW in above[:LOOKED_BACK].lower():
            return False  # CANN's, below its possible causes and solutions: what follows has happened
        if _announces_guesses(above[:LOOKED_BACK]):
            return True
        if begin == 0 or (above.strip() and not _is_item(unlabelled(above[:80]))):
            return False
        end = begin
    return False

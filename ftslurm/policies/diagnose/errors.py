"""Which line at the end of a program's output tells its error, where no pattern knows it? And what stands before it, or below."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ftslurm.catalogs.scanner import compiled
from ftslurm.policies.diagnose.lines import (
    LAST_CHARS,
    LAST_LINES,
    SHOWN_CHARS,
    is_evidence,
    is_guessed,
    is_information,
    is_mild,
    is_of_ordinary_work,
    is_report,
    is_source,
)
from ftslurm.policies.diagnose.traces import undated

# What a program says when it gives up, in whatever words.
_GIVES_UP = compiled(
    r"(?i)\b(?:error|exception|(?-i:\w{0,59}[a-z](?:Error|Exception))|fatal|failed|failure"
    r"|cannot|can not|could not|can't|couldn't|unable to|invalid|not found"
    r"|denied|refused"
    r"|no such|abort(?:ed|ing)?|terminat(?:ed|ing)|killed|exceed(?:ed|s)|missing|unsupported|not supported|exits with"
    r"|times out|program (?:will|has to|had to) (?:terminate|abort|exit|stop)"
    r"|bad (?:address|file)|broken|overflow|corrupt(?:ed)?|illegal|exit code|not true|timed out"
    r"|time-?out|exiting|rejected|neither|does not exist|fault|unreachable|unavailable|unrecognized|undefined|mismatch"
    r"|out of (?:\w+ )?(?:memory|resources|space|descriptors|handles)|unbound|ambiguous"
    r"|not in \w+ format|no licen[cs]es? (?:\w+ )?available|truncated|double free"
    r"|stack smashing|(?:did|does|has|have|is|was|are) not converged?"
    r"|not converged|fail\w* to converge"
    r"|loss is (?:nan|inf)|(?:nan|inf)s? (?:loss|or (?:nan|inf)|detected|found|encountered)"
    r"|(?-i:MPI_ERR_[A-Z_]{2,30}|[A-Z]+_ERROR_LOG|[a-z]\w{0,20}Error[A-Z]\w{2,60})"
    r"|expired|halted|MPI_ABORT|disallowed|severe|not enough|unexpected(?:ly)?|not a valid"
    r"|problems? (?:with|finding|reading|opening|writing)|(?:closed|reset|terminated) by|\w*max\w*(?: \w+){0,4} reached"
    r"|limit (?:\w+ )?reached|(?:does|do|did) not (?:match|fit|agree)|not (?:permitted|allowed)"
    r"|non-ok-status|insufficient|incompatible|violation|lost|no (?:module|available|free|valid|matching|usable|suitable)"
    r"|(?:NCCL|RCCL|HCCL|UCX|MCCL) (?:WARN|ERROR))\b"
    r"|(?-i:^(?:(?:\S{4,40} )?\d\d:\d\d:\d\d\.\d{1,9}: +)?[EF] +[\w./-]{1,120}:\d+\] |^[EF]\d{4} \d\d:\d\d:)"  # glog's levels
    r"|[\])'\"] fail(?:\.|\W*$)"
)
# Says that something failed and not what: another line does, mostly one below.
_VAGUE = compiled(
    r"(?i)\b(?:failed|exits|terminated)(?: unexpectedly)? with (?:an? )?(?:\w+ )?(?:error |exit |return )?(?:code"
    r"|status|signal)\b|\ban? (?:\w+ )?error (?:has |was )?(?:occurred|encountered|detected)|\bexception (?:in|from"
    r"|on) (?:MPI )?(?:thread|worker|process|callback)|\bunhandled (?:cuda |system |internal |runtime "
    r"|python )?(?:exception|error)\b|: (?:\d+ )?broken pipe\b|\bcall\w* (?:\w+ ){0,2}api failed|\binner error!"
    r"|\bnccl\w+Error: "  # what NCCL's documentation says of a result
    r"|\b(?:fatal )?(?:\w+ )?error (?:at|in) (?:file )?[\w./-]+(?::\d+|\(\d+\)|,? at line \d+)\W*$|\berror in file\W*$"
    r"|(?:\s-|\.\.|:)\s*fail(?:ed|ure)\W*$"  # how a table of steps says it
    r"|\bunable to (?:reliably )?start (?:one or more|the|all) (?:daemon|process|task|worker)"
    r"|^\W*errors? (?:occurred|encountered) (?:during|while|in|at)\b"
    r"|^(?:\w+: )?(?:line \d+: |\d+: )?[\w./+-]+: (?:command )?not found\W*$"  # a shell's, which goes on without
    # A manager of workflows says first which of its steps has failed, and why it was to run.
    r"|\bfail(?:ed|ure) to (?:submit|execute|launch|schedule) (?:the |a )?(?:process|job|task|step|command|workflow|script)\b"
    r"|\berror (?:executing|running|submitting) (?:process|rule|step|task|job|stage)|\bfailed for some reason\b"
    r"|^\W*\[Error\]: |^\W*rectify the fault"  # torch_npu's, the same for every error of a kind
    r"|^\W*(?:(?:command|standard|process) )?error\W*$"
    r"|^\W*(?:fatal|error)\w* (?:called|detected|condition|termination)\b(?: from file\b.*)?\W*$"
    r"|^\W*(?:CUDA|HIP|MPI|NCCL|GPU|runtime|internal|system|general) (?:error|failure)\W*$"
)
# `srun: error: If munged is up, restart with ...`: advice at the level of an error.
_ADVISES = compiled(
    r"(?i)^(?:[\w./-]{1,60}: |[\[\]\w: ]{1,40} )(?:error|fatal): (?:(?:or )?(?:if|please|try|see|check)|to get more"
    r"|configure using)\b"
)
# A frame around a message, of which each line is marked as an error.
_RULER = compiled(r"(?i)\berror:?\s*[-=*#]{8,}(?:[\w ]{1,40}[-=*#]{4,})?\s*$")
# Prints the end of another's log: the errors below are the other's, and tell more than what was said above.
_SHOWS_A_LOG = compiled(
    r"(?i)\blast \d+ lines\b|\b(?:tail|end|contents?) of (?:\S+ ){0,4}(?:log|output|std(?:out|err))\b"
    r"|\bcaptured (?:log|std(?:out|err))\b|\bprinting (?:\w+ )?log file\b"
)
# So many lines of its ordinary work a rank logs that has overcome an error.
WORKED_ON_LINES = 2
# Further apart than this many lines they are not of one failure.
APART_LINES = 12
# A sentence goes on over so many lines; below an error its stack has so many.
SENTENCE_LINES, STACK_LINES = 4, 24
# Who speaks: with that a line begins anew.
_OPENS = re.compile(r"\s*[\w./\[\]-]{1,60}: ")
# Text is wrapped no earlier, mostly.
WRAPPED_CHARS = 50
_ENDS = ".:!?;-=*#>}])"
# A frame of MPICH's or HDF5's stack of errors, the deepest last: its place, and what is said there.
_STACKED = compiled(r"^\s*(?:\d{1,6}: )?(?:[\w:<>~]+\(\d+\)\.*:|#\d{1,3}:? .{1,300} line \d+ in .{1,100}\(\):)(.*)$")


def told_error(text: str, but: Collection[str] = (), mild: bool = False, vaguely: bool = True) -> str:
    """The line that says why a program gave up: of the errors at its end the first, for what follows is its echo.

    For people; empty if nothing there sounds like an error. but: how lines begin that are not meant. mild: take warnings as
    well. A line that only says that something failed gives way to one that says what, and what is only guessed or advised, or
    only reports the end of another process, is left out.
    """
    printed = text[-LAST_CHARS:].splitlines()[-LAST_LINES:]
    lines = [unlabelled_line(line) for line in printed]
    choice = _told(printed, lines, tuple(but), mild, vaguely)
    return _labelled(printed, lines, choice)[:SHOWN_CHARS] if choice >= 0 else ""


def _told(printed: Sequence[str], lines: Sequence[str], skipped: tuple[str, ...], mild: bool, vaguely: bool) -> int:
    """The number of the line that `told_error` gives, -1 if there is none. lines: those printed, without labels."""
    told, vague = -1, -1
    ordinary = 0
    for number in range(len(lines) - 1, -1, -1):
        first = min((each for each in (told, vague) if each >= 0), default=number)
        if first - number > APART_LINES:
            break
        data = _bytes(lines[number])
        ordinary += told >= 0 and is_of_ordinary_work(_bytes(printed[number]))
        if told >= 0 and (ordinary >= WORKED_ON_LINES or _SHOWS_A_LOG.search(data)):
            break  # it went on after what stands above; or that is another's log
        found = _GIVES_UP.search(data)
        if (
            found is None
            or (not mild and is_mild(_bytes(printed[number])))
            or is_source(data)
            or printed[number].strip().startswith(skipped)
        ):
            continue
        if is_guessed(_sentence(lines, number, found.start())) or any(kind.search(data) for kind in (_ADVISES, _ADVICE, _RULER)):
            continue
        if is_report(data):
            continue
        if _VAGUE.search(data) or is_information(_bytes(printed[number])):
            vague = number
        else:
            told = number
    return told if told >= 0 or not vaguely else vague


def last_line(text: str) -> str:
    """The last line of a text, of those that report no other process's end if there are such; empty if it says nothing."""
    lines = [line for line in text[-LAST_CHARS:].splitlines()[-LAST_LINES:] if _HAS_WORDS.search(line)]
    own = (line for line in reversed(lines) if not is_report(_bytes(unlabelled_line(line))))
    return next(own, lines[-1] if lines else "").strip()[:SHOWN_CHARS]


# What a ruler, a frame of a table or an empty line has none of.
_HAS_WORDS = re.compile(r"\w")
# What complains without a word that gives up. Ordinary lines say this as well, so it counts only if nothing else does.
_COMPLAINS = compiled(
    r"(?i)\b(?:unknown|unrecogni[sz]ed|undefined|undeclared|must (?:be|not|have)|should (?:be|not)|(?:is|are) required"
    r"|expected|inconsistent|conflict\w*|out of (?:range|bounds|order)|negative|singular|bad|wrong"
    r"|too (?:many|few|large|small|long|short|big|old|new|close|far|high|low|deep)"
    r"|not (?:exist|present|set|defined|ready|loaded|installed|readable"
    r"|writable|found|initiali[sz]ed|recogni[sz]ed|implemented|known|unique|consistent|divisible|equal)|deadlock"
    r"|doesn't|isn't|wasn't|did not|does not|blew up|instabilit\w*|diverg\w*|ambiguous)\b"
)


def complaint(text: str) -> str:
    """The last line at the end of a text that complains of something, for a program that says no more; empty if none does."""
    printed = text[-LAST_CHARS:].splitlines()[-APART_LINES:]
    lines = [unlabelled_line(line) for line in printed]
    for number in range(len(lines) - 1, -1, -1):
        data = _bytes(lines[number])
        found = _COMPLAINS.search(data)
        if found is None or is_mild(_bytes(printed[number])) or is_source(data) or is_report(data):
            continue
        if is_guessed(_sentence(lines, number, found.start())):
            continue
        return _labelled(printed, lines, number)[:SHOWN_CHARS]
    return ""


# Labels and times are shorter.
LABEL_CHARS = 200


def _bytes(line: str) -> bytes:
    return line[:1000].encode("latin-1", "replace")


def unlabelled_line(line: str) -> str:
    """The line without what a launcher puts before it, whose it is and when it was printed."""
    begin = line[:LABEL_CHARS].encode("latin-1", "replace")
    return line[len(begin) - len(undated(begin)) :]


# A runtime's advice below an error, and what it says of errors of a kind.
_ADVICE = compiled(
    r"(?i)^\W*(?:possible )?(?:solution|cause|reason|suggestion|action|hint)s?: "
    r"|\bwas unable to find any relevant network interfaces\b"  # it takes another module then
    r"|\berror log\b|\b(?:has|have) sent help message\b|\bset MCA parameter\b"
    r"|\b(?:this|these|such) (?:\w+ )?(?:errors?|failures?|problems?|exceptions?|messages?)"
    r" (?:may|might|could|can|usually|typically|often|generally)\b"
)
# A cause stands so close above what it led to, empty lines not counted.
BEFORE_LINES = 8


def error_before(text: str, line: str) -> str:
    """The first error that was said right before `line`, and led to it; empty if there is none.

    A call that fails says so, and then everything says so that has called it.
    """
    at = text.find(line)
    if at < 0 or not line:
        return ""
    printed = [each for each in text[max(0, at - LAST_CHARS) : at].splitlines() if each.strip()][-BEFORE_LINES:]
    above = [unlabelled_line(line) for line in printed]
    for number, each in enumerate(printed):
        data = _bytes(above[number])
        found = _GIVES_UP.search(data)
        if found is None or is_report(data) or any(kind.search(data) for kind in (_VAGUE, _ADVICE)) or is_mild(_bytes(each)):
            continue
        if is_source(data) or not is_evidence(data, 0, data, found.start()):
            continue
        if not is_guessed(_sentence(above, number, found.start())):
            return (_labelled(printed, above, number) if above[number].rstrip().endswith(":") else each.strip())[:SHOWN_CHARS]
    return ""


def _sentence(lines: Sequence[str], number: int, start: int) -> bytes:
    """What its sentence, which may have begun some lines above, says before the words at `start`."""
    said = [line.strip() for line in lines[_begun(lines, number) : number]]
    return " ".join((*said, lines[number][:start])).encode("latin-1", "replace")


def _begun(lines: Sequence[str], number: int, least: int = 1) -> int:
    """The line in which the sentence of this one begins. least: characters of a line that goes on in the next."""
    for begun in range(number, max(-1, number - SENTENCE_LINES - 1), -1):
        above = lines[begun - 1].strip() if begun else ""
        if len(above) < least or above[-1] in _ENDS or _OPENS.match(lines[begun]) or not lines[begun].strip()[:1].islower():
            break
    return begun


def _ended(lines: Sequence[str], number: int) -> int:
    """The line in which the sentence of this one ends, where the text is wrapped."""
    for ended in range(number, min(len(lines), number + SENTENCE_LINES)):
        here = lines[ended].strip()
        below = lines[ended + 1].strip() if ended + 1 < len(lines) else ""
        if len(here) < WRAPPED_CHARS or here[-1] in _ENDS or not below[:1].islower() or _OPENS.match(below):
            break
    return ended


# `Reason: bad input`, or `--> Returned "Unreachable" (-12) instead of "Success" (0)`: what the call above gave back.
_SAYS_WHY = re.compile(r"\s*(?:-->\s+|(?:Reason|Cause|Details?): )\S")


def _labelled(printed: Sequence[str], lines: Sequence[str], number: int) -> str:
    """As `_shown`, behind whose line it is and when it was printed, if there is room for that."""
    label, found, _ = printed[number].partition(lines[number])
    shown = _shown(lines, number)
    return label.lstrip(" |") + shown if found and len(label) + len(shown) <= SHOWN_CHARS else shown


def _shown(lines: Sequence[str], number: int) -> str:
    """The line with what it announces: the one below, or the deepest of its stack."""
    begun, ended = _begun(lines, number, WRAPPED_CHARS), _ended(lines, number)
    shown = " ".join(line.strip() for line in lines[begun : ended + 1])
    if deepest := _deepest(lines[number : number + 1 + STACK_LINES]):
        return f"{shown[: SHOWN_CHARS // 2]} ... {deepest}" if deepest not in shown else shown
    if shown.endswith(":") or _VAGUE.search(_bytes(shown)):
        below = (line.strip() for line in lines[ended + 1 : ended + 3] if _HAS_WORDS.search(line))
        return f"{shown} {next((line for line in below if not _VAGUE.search(_bytes(line))), '')}".strip()
    if ended + 1 < len(lines) and _SAYS_WHY.match(lines[ended + 1]):
        return f"{shown} {lines[ended + 1].strip()}"
    return shown


def _deepest(lines: Sequence[str]) -> str:
    """The last that a stack of errors says, which stands among these lines; else empty."""
    frames = ((line, _STACKED.search(_bytes(line))) for line in lines)
    return next((line.strip() for line, found in reversed([*frames]) if found and found.group(1).strip()), "")

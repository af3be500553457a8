"""Does a line only say that something failed, so that another line, wherever it stands, says what?

A pattern knows what kind of failure a line tells; how much it tells, its own words show. Who passes an error on, reports the end
of another process, says what it does about an error, gives a number only, or tells the reader where to look, has not met the
cause itself. Such a line counts where nothing else is told, and defers to all that its rank says besides.
"""

from __future__ import annotations

from ftslurm.catalogs.scanner import asks

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

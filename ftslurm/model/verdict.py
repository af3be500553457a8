"""What is behind a failed attempt, as far as facts and words tell: the values of the classification."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from ftslurm.model.exits import ExitStatus
from ftslurm.model.values import Value, field, replace


class ErrorClass(str, Enum):
    """Whose fault it is. UNKNOWN: nothing that was seen tells; never taken for the program's or a node's."""

    HARDWARE = "hardware"
    NETWORK = "network"
    USER_CODE = "user-code"
    OOM = "oom"
    DATA = "data"
    STORAGE = "storage"
    UNKNOWN = "unknown"


class Retriable(str, Enum):
    """Would running again with no change have a fair chance?"""

    YES = "yes"
    ONCE = "once"
    NO = "no"
    UNKNOWN = "unknown"


class Blame(str, Enum):
    """What a finding says of the node that showed it. SUSPECT counts against it: excluded when it happens there again."""

    YES = "yes"
    SUSPECT = "suspect"
    NO = "no"


class Role(str, Enum):
    """What a line of output is to a failure. SYMPTOM: printed by bystanders as well. CONTEXT: a note, no failure."""

    ROOT = "root"
    SYMPTOM = "symptom"
    CONTEXT = "context"


class Confidence(str, Enum):
    """FACT: a device, the kernel or Slurm says so. STRONG: several ranks or a root line. WEAK: one symptom or a status."""

    FACT = "fact"
    STRONG = "strong"
    WEAK = "weak"
    NONE = "none"


class Piece(Value):
    """Some output of a rank in one piece. at: Unix seconds when it came out, on the rank's node. stream: `out` or `err`."""

    at: float
    stream: str
    text: str


class RankEnd(Value):
    """How one rank of a failed attempt ended, and its last words."""

    rank: int
    node: str
    status: ExitStatus | None = None  # None if it is not known (the shim is gone)
    at: float = 0.0  # Unix seconds, 0 if not known
    stopped: bool = False  # it ended after it had been told to stop, so its status says nothing
    lost: bool = False  # its shim is silent
    oom: bool | None = None  # does the kernel say that it was killed for memory? None: it says nothing
    output: tuple[Piece, ...] = ()
    alive: float = 0.0  # when it last did IO or gave a sign of life, as far as its agent has seen, Unix seconds
    alive_by: str = ""  # which of them


class Suspect(Value):
    """A node that something speaks against. rank: -1 where it is not one rank. blame: never NO."""

    node: str
    rank: int
    blame: Blame
    why: str


EVERYWHERE = "on every rank"  # the spread of what all ranks say


class HintWords(Value):
    """A common reason why jobs hang (catalogs/hang-hints.yaml, which explains the fields)."""

    what: str
    advice: str
    stacks: str = ""
    says: str = ""
    printed: str = ""
    last: bool = False
    warns: str = ""
    warning: str = ""


class Lead(Value):
    """What a verdict goes by, taken apart for people. rank: -1 where it is the word of a device, a node or Slurm.

    said: the line, code or status itself. meaning: what the catalogues say of it, empty where no pattern knows it.
    place: `train.py:175` in the user's own code, or the device. spread: on how many ranks, or how far it is the cause at all.
    advice: what a person can do.
    """

    rank: int = -1
    node: str = ""
    said: str = ""
    meaning: str = ""
    place: str = ""
    spread: str = ""
    advice: str = ""


NO_LEAD = Lead()
UNKNOWN = "unknown"  # the signature of a failure that nobody could look into


class Verdict(Value):
    """What is behind a failure."""

    error_class: ErrorClass
    retriable: Retriable
    confidence: Confidence
    signature: str  # what the same failure is known by (`py-import`, `exit 1`, `SIGSEGV`)
    what: str
    suspects: tuple[Suspect, ...] = ()
    evidence: tuple[str, ...] = ()  # the lines and facts that count, for people, the one that decides first
    program: bool = False  # the same everywhere, so it is the program or its data and no node
    confirm: int = 0  # tries worth spending although `retriable` is NO
    heals: bool = False  # a device error that a restart in place may answer
    shown: Mapping[int, str] = field(default_factory=dict)  # rank -> node, of the ranks whose words decide
    setup: str = ""  # one node failed before any rank had begun its work, so its installation is to be doubted: in words
    follows: str = ""  # what the error follows from node to node, where it is the program's for that
    called: bool = False  # words of the user's own call it retriable, whatever else it is
    lead: Lead = NO_LEAD
    hidden_by: tuple[str, ...] = ()  # the program only says which devices it sees, and these variables hide some from it
    because: tuple[str, ...] = ()  # ids of the pattern and of the rules that made it, in their order

    def by(self, rule: str, **changes: Any) -> Verdict:
        """The verdict as a rule has changed it."""
        return replace(self, because=(*self.because, rule), **changes)


def unknown(why: str) -> Verdict:
    """Of a failure that could not be looked into."""
    return Verdict(ErrorClass.UNKNOWN, Retriable.UNKNOWN, Confidence.NONE, UNKNOWN, f"not known: {why}")

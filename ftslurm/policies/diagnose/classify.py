"""Why did an attempt fail? Facts first, then what the ranks printed, then how they ended.

The reading order (the rules that make one verdict of many findings), as the functions below stand:
 1. facts beat text: a device's own code, Slurm's word on a node, the kernel's out-of-memory kill;
 2. a root line beats a symptom, the earliest beats the later ones, over all ranks; an error that no pattern knows is a root,
    what is quoted, guessed or only a warning is none (findings.py), and a header defers to what names the thing; a line after
    which its rank went on well, or printed only after the ranks were told to stop, counts for nothing;
 3. the same root on (nearly) every rank is the program or its data, not a node;
 4. where only bystanders speak, the rank that says nothing, or is furthest behind, is the suspect;
 5. then the exit statuses, a signal before a number; and if nothing of this tells, the verdict is UNKNOWN.
Source: the fault diagnosis of MindCluster, NVRx's attribution and AIMaster agree on these (cascades dominate the logs of
a failed collective).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate
from operator import attrgetter
from typing import Protocol

from ftslurm.catalogs.patterns import ExitMeaning, Found, Pattern
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.exits import ExitStatus, signal_name
from ftslurm.model.text import visible
from ftslurm.model.values import dataclass
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Lead, Piece, RankEnd, Retriable, Role, Suspect, Verdict
from ftslurm.policies.diagnose.contrast import without_control
from ftslurm.policies.diagnose.findings import Finding, ends_of_runs
from ftslurm.policies.diagnose.launchers import (
    LAST_CHARS,
    NESTED,
    child_line,
    child_status,
    complaint,
    error_before,
    own_words,
    refused,
    signal_by_name,
    signal_line,
    status_line,
    tells_reason,
    told_error,
)
from ftslurm.policies.diagnose.lines import is_information
from ftslurm.policies.diagnose.long_phase import LongPhase, at_work, long_phase
from ftslurm.policies.diagnose.summaries import only_reports
from ftslurm.policies.diagnose.traces import outline, plain, plain_pieces
from ftslurm.policies.diagnose.values import of_the_node, port_in
from ftslurm.policies.diagnose.wording import Kind, kind_of_words

# A rank that prints ordinary lines for this long after an error has overcome it; a traceback and what libraries say of it
# come within moments.
OVERCOME_S = 2.0
# What a device error brings down fails within seconds.
LAST_WORDS_S = 5.0
# Lines this close before the next error belong to it (a traceback is printed before its last line).
BURST_S = 0.5
# What two ranks did is told to be one after the other if so far apart.
JITTER_S = 0.1
# So many ranks are asked what they say; a thousand would say the same.
LISTENED_TO = 32
# Limits of what is shown to people.
EVIDENCE_LINES, EVIDENCE_CHARS = 6, 300
EXCERPT_BEFORE = 80
MORE_OF_CAUSE = 60
# An error around another; `rank: [24]` is a value.
_WRAPS = re.compile(r": (?!\[)")
BEGINNING_CHARS = 80
# Python's status for any exception, and false(1)'s, so it tells nothing.
GENERAL_ERROR = 1
_LESS_MEMORY = "request more memory (--mem), or use less: fewer loader workers, smaller batches"
# What programs end with over any error, so that their own words tell more: beside 1, a wrong call, a status of their own,
# exit(-1), and git's.
_ANY_ERROR = frozenset({GENERAL_ERROR, 2, 3, 128, 255})
# The status of a rank that MPI_Abort ended: 128 and SIGTERM.
_ASKED_OF_ITSELF = 128 + 15
# As a shell passes on a signal: 128 and its number.
SHELLS_OWN = range(128, 160)
_ABORT_PASSED_ON = SHELLS_OWN.start + 6
# A shell's for a command that it cannot run.
_NO_COMMAND = frozenset({126, 127})

# What is missing or closed on one node only, while the ranks of others got further: that node's mount or installation.
_NODES_SETUP = frozenset({
    "file-missing", "py-import", "user-so-missing", "user-perm-exec", "user-glibc", "user-cann-env", "fs-permission",
    "container-mount", "container-command", "image-missing", "slurm-execve", "python-no-module", "python-no-file", "versions",
    "cuda-driver-old", "exit 126", "exit 127",
})  # fmt: skip
# Patterns on files. In a folder that is local to each node, such an error is about the node.
_FILES = frozenset({"file-missing", "fs-permission", "enospc", "shm-small", "device-file"})
# Patterns on a shared file: if only one of several ranks meets the error, the others have not read that file yet.
_SHARED_FILES = frozenset({"stale-nfs", "io-error"})
_PORT_IN_USE = "address-in-use"
_FILE_RACE = "file-race"
# How a process goes down that another's failure may have taken along.
_CRASHES = frozenset({"segv", "sigbus"})
_FROM_OUTSIDE, _OF_ITSELF = frozenset({9, 15}), frozenset({4, 7, 8, 11})
# It cleans up behind a process that has died, and falls over what is gone already.
_CLEANER = "multiprocessing/resource_tracker.py"
# Something that was to be there is not: so cleaning up fails after a failure.
_STUMBLED = re.compile(r"\b(?:AttributeError|UnboundLocalError|NameError): ")
# Lines of a launcher about its children.
_HEADERS = frozenset({"child-failed", "torchelastic-child", "torchelastic-signal", "mpi-abort", "mpi-abort-more", "sigabrt"})
# On more than one node, or on the only one, the program causes these itself.
_ASKED_FOR = frozenset({
    "container-start", "segv", "sigbus", "SIGSEGV", "SIGBUS", "illegal-memory", "misaligned-address", "rocm-memory-fault",
})  # fmt: skip
# Symptoms that every rank of a group prints after waiting in vain; the rank that prints none is the one they waited for.
_WAITED = frozenset({
    "hccl-EI0002", "hccl-EI0006", "hccl-topo-timeout", "nccl-watchdog", "torch-dist-timeout", "torch-socket-timeout",
    "acl-507046", "acl-107019", "gloo-peer", "ms-timeout-node",
})  # fmt: skip
# What a ruler, a frame of a table or an empty line has none of.
_WORDS = re.compile(r"\w")
# A shell's word for a crash, which does not tell the cause.
_BARE_CRASH = re.compile(r"^\W*(?:Segmentation fault|Bus error|Illegal instruction|Aborted)(?: \(core dumped\))?\W*$")
_SEQUENCE = re.compile(r"last (?:enqueued|completed) (?:NCCL )?work:? ?(\d{1,12})|SeqNum=(\d{1,12})")
_WATCHDOG = "nccl-watchdog"
_COLLECTIVE = re.compile(r"SeqNum=(\d{1,12}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}))?")
# What ends a rank by itself, so that the network errors of others come of it.
_ENDS_A_RANK = frozenset({ErrorClass.OOM, ErrorClass.HARDWARE})
_LOST_A_PEER = re.compile(r"(?i)\b(?:peer|remote)\b|\b(?:connection|socket)\b.{0,40}\b(?:closed|reset|lost|broken|aborted)\b")
_OF_A_PEER = re.compile(r"(?i)\b(?:peer|remote|recv|send|closed)\b|\b(?:connect|time|socket|proxy)|\bretcode\b")
# Exceptions about something missing because it could not be created.
_REACTIONS = frozenset({"py-name", "py-type"})
# Patterns on what the system answered, which does not tell what it was asked for.
_HOW_ONLY = frozenset({"threads-more"})
_OF_A_PROCESS = re.compile(r"(?i)thread|fork|process|spawn")
# An accelerator's runtime was called wrongly, whatever the device's code would mean by itself.
_WRONG_CALL = re.compile(
    r"(?i)\b(?:argument|parameter|device id)s? (?:is|are) (?:invalid|wrong|illegal)\b|\binvalid (?:argument|parameter|device id)"
)
# A shell misses a command, and goes on: a helper's, unless the status says that it was the rank's own.
_COMMAND = "user-perm-exec"
_HELPER = re.compile(r"^(?:\S+: ){0,2}(?:line \d+: )?\S+: (?:command )?not found$")
# Patterns that tell who complains, but not about what.
_GENERAL = frozenset({"nccl-warn"})
# Classes that a program can cause on every rank by itself.
_PROGRAMS = frozenset({ErrorClass.USER_CODE, ErrorClass.DATA, ErrorClass.OOM, ErrorClass.STORAGE, ErrorClass.UNKNOWN})


class Book(Protocol):
    """What patterns.PatternBook.of_ranks() gives."""

    def scan(self, text: bytes, *, counts: Callable[[Found], bool]) -> list[Found]: ...

    def exit(self, status: int) -> ExitMeaning: ...

    def named(self, id: str) -> Pattern | None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known besides the ranks' ends. faults: of devices, graded. bad_nodes: node -> why it counts as broken."""

    faults: tuple[Fault, ...] = ()
    bad_nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """A line of a rank's output that reports a failure. own: its rank failed by itself."""

    end: RankEnd
    at: float
    line: str
    pattern: Pattern
    overcome: bool = False  # the rank then went on well
    place: str = ""  # in the user's own code, where a trace tells it
    mild: bool = False  # its writer does not call it an error
    settled: bool = False  # nor a failure
    led_to: bool = False  # an exception that came of the one before it

    @property
    def own(self) -> bool:
        return failed(self.end)

    def __str__(self) -> str:
        where = f" (at {self.place})" if self.place else ""
        return f"rank {self.end.rank} on {self.end.node}: {self.line}{where}"


def failed(end: RankEnd) -> bool:
    """Did the rank fail by itself, and not because it was told to stop?"""
    return end.status is not None and not end.status.ok and not end.stopped


def classify(ends: Sequence[RankEnd], facts: Facts, book: Book) -> Verdict:
    """The verdict on one attempt. ends: every rank of it."""
    hits = [hit for end in ends for hit in _hits(end, book)]
    first = min((end.at for end in ends if failed(end)), default=float("inf"))
    live = [hit for hit in hits if not hit.overcome and not _after_the_fact(hit, first)]
    live = list(_without_stumbles(_without_warnings(live)))
    return _by_facts(live, facts) or _with_keywords(without_control(_by_words(ends, live, book), ends), live)


def _without_warnings(hits: Sequence[Hit]) -> Sequence[Hit]:
    """The hits without warnings. A warning is a cause only if no rank reports an error, or only bystanders do.

    Then a warning of a failed rank may be the cause: PyTorch's store only warns that a name or a port is not available, and
    reports as an error that no rank could connect.
    """
    errors = [hit for hit in hits if not hit.mild]
    if any(hit.pattern.role is Role.ROOT for hit in errors):
        return errors
    # A line of information is none if its rank says an error that no pattern knows.
    informing = _ranks_of(hit for hit in hits if hit.own and _only_informs(hit))
    said: dict[int, list[str]] = defaultdict(list)
    for hit in hits if informing else ():
        said[hit.end.rank].append(_beginning(hit))
    told = {rank for rank, end in informing.items() if _own_words(end, said[rank], vaguely=False)}
    hits = [hit for hit in hits if hit.end.rank not in told or not _only_informs(hit)]
    if not errors:
        return hits
    return [hit for hit in hits if not hit.mild or (hit.own and not hit.settled and hit.pattern.role is Role.ROOT)]


def _only_informs(hit: Hit) -> bool:
    return hit.mild and is_information(hit.line.encode(errors="replace"))


def _by_words(ends: Sequence[RankEnd], hits: Sequence[Hit], book: Book) -> Verdict:
    if oom := [end for end in ends if end.oom]:
        return _out_of_memory(oom)
    said = [hit for hit in hits if hit.pattern.role is Role.ROOT]
    if roots := _but_late_crashes(_but_reports(said, hits, ends), hits, ends):
        return _by_root(ends, _shared_ports(roots, book), hits)
    symptoms = [hit for hit in hits if hit.pattern.role is Role.SYMPTOM]
    if lost := [end for end in ends if end.lost]:
        return _by_loss(lost, symptoms)
    spoke = {hit.end.rank for hit in symptoms if hit.pattern.id not in _HEADERS}
    passed_on = {hit.end.rank for hit in symptoms}
    headers: dict[int, set[str]] = defaultdict(set)
    for hit in symptoms:
        headers[hit.end.rank].add(_beginning(hit))
    # A launcher ends with a status of its own; what it says of its child tells more.
    silent = [_as_its_child(end) for end in ends if failed(end) and end.rank not in spoke]
    # What a rank said itself, before it passed on that another process failed, tells more, too.
    silent = [
        end for end in silent
        if end.rank not in passed_on or _tells(end) or _own_words(end, headers[end.rank], vaguely=False)
    ]  # fmt: skip
    if symptoms:  # a trace that was cut off tells nothing, and others tell something
        silent = [end for end in silent if _tells(end) or not _torn(end)]
    # What those who spoke ended with as well tells no more than their words: an abort by who saw the same.
    if symptoms and _ended_alike(silent, ends, spoke):
        silent = []
    if silent:
        return _by_status(ends, silent, symptoms, book)
    return _by_symptoms(ends, symptoms) if symptoms else _nothing(ends)


def _but_reports(roots: Sequence[Hit], hits: Sequence[Hit], ends: Sequence[RankEnd]) -> Sequence[Hit]:
    """The roots; none if each only reports that something else failed, and its rank says what: then it is a bystander's line.

    Nor if another rank says what, which failed no later, and of which no line is known.
    """
    if not roots or not all(map(_only_reports, roots)):
        return roots
    told = {
        hit.end.rank
        for hit in hits
        if hit.pattern.role is Role.SYMPTOM and not hit.pattern.defers and hit.pattern.id not in _HEADERS
    }
    if all(hit.end.rank in told for hit in roots):
        return []
    spoke, last = {hit.end.rank for hit in hits}, max(hit.end.at for hit in roots)
    others = (end for end in ends if failed(end) and end.rank not in spoke and end.output and end.at <= last)
    return [] if any(_own_words(end, (), vaguely=False) for end in others) else roots


def _but_late_crashes(roots: Sequence[Hit], hits: Sequence[Hit], ends: Sequence[RankEnd]) -> Sequence[Hit]:
    """The roots; none if each is a crash that tells no cause, and another rank failed before it and says of what."""
    if not roots or any(hit.pattern.id not in _CRASHES for hit in roots):
        return roots
    spoke, first = {hit.end.rank for hit in hits}, min(hit.end.at for hit in roots)
    before = [end for end in ends if failed(end) and end.rank not in spoke and end.at < first - JITTER_S]
    return [] if any(_own_words(end, (), vaguely=False) for end in before[:LISTENED_TO]) else roots


def _only_reports(hit: Hit) -> bool:
    by_words = only_reports(hit.line.encode(errors="replace"))
    return by_words or (hit.pattern.defers and not hit.pattern.pattern)


def _ended_alike(silent: Sequence[RankEnd], ends: Sequence[RankEnd], spoke: Collection[int]) -> bool:
    how = {end.status for end in ends if end.rank in spoke and failed(end)}
    return all(end.status in how and end.status is not None and _gave_up(end.status) for end in silent)


def _torn(end: RankEnd) -> bool:
    """Has its output the beginning of a trace, and no error?"""
    began = any("Traceback (most recent call last)" in piece.text for piece in end.output)
    return began and not _own_words(end, ())


def _tells(end: RankEnd) -> bool:
    return end.status is not None and (end.status.signal != 0 or end.status.code != GENERAL_ERROR)


def _as_its_child(end: RankEnd) -> RankEnd:
    """The end of a rank that is a launcher: if its own status is a general error, the status of its child that it printed."""
    text = "" if _tells(end) else "".join(piece.text for piece in end.output)
    status = child_status(text) if text and not refused(text) else None
    return replace(end, status=status) if status else end


# --- 1. facts


def _by_facts(hits: Sequence[Hit], facts: Facts) -> Verdict | None:
    """The verdict from facts. hits: what the ranks printed; a root line on the same node makes a suspicion certain."""
    blamed = facts.bad_nodes
    acting = [f for f in facts.faults if f.fault_class in (FaultClass.SELF_HEALING, FaultClass.ISOLATE)]
    hardware = [f for f in acting if not f.user_induced]
    if not blamed and not acting:
        return None
    roots = [hit for hit in hits if hit.pattern.role is Role.ROOT]
    convicted = {hit.end.node for hit in roots if hit.pattern.blame is Blame.YES}
    suspects = [Suspect(node, -1, Blame.YES, why) for node, why in blamed.items()]
    for fault in hardware:
        certain = fault.fault_class is FaultClass.ISOLATE or fault.node in convicted
        suspects.append(Suspect(fault.node, -1, Blame.YES if certain else Blame.SUSPECT, str(fault)))
    evidence = [f"{node}: {why}" for node, why in blamed.items()] + [str(fault) for fault in acting]
    evidence += [str(hit) for hit in _one_a_rank(roots)]
    signature = acting[0].code if acting else "node"
    if blamed or hardware:
        error_class = ErrorClass.HARDWARE
    else:  # the program's own doing, which its own words may name better
        error_class = ErrorClass.USER_CODE
        signature = next((hit.pattern.id for hit in roots if hit.pattern.error_class is error_class), signature)
    program = error_class is ErrorClass.USER_CODE and len({(fault.node, fault.device) for fault in acting}) > 1
    lead = Lead(-1, *next(iter(blamed.items()))) if blamed else _of_fault(acting[0])
    return Verdict(
        error_class, Retriable.YES, Confidence.FACT, signature, evidence[0], tuple(suspects), tuple(evidence[:EVIDENCE_LINES]),
        program, lead=lead,
    )  # fmt: skip


def _of_fault(fault: Fault) -> Lead:
    return Lead(-1, fault.node, fault.code, fault.name, f"device {fault.device} of {fault.node}")


def _out_of_memory(killed: Sequence[RankEnd]) -> Verdict:
    """The verdict on ranks killed for memory. The job causes it on whichever node, so no node is excluded."""
    evidence = tuple(f"rank {end.rank} on {end.node}: killed by the kernel: out of memory" for end in killed)
    lead = Lead(
        killed[0].rank, killed[0].node, "killed by the kernel: out of memory",
        spread=f"{len(killed)} ranks" if len(killed) > 1 else "", advice=_LESS_MEMORY,
    )  # fmt: skip
    return Verdict(
        ErrorClass.OOM, Retriable.NO, Confidence.FACT, "oom-kill", evidence[0], (), evidence[:EVIDENCE_LINES], confirm=1,
        lead=lead,
    )  # fmt: skip


# --- what the ranks said


def _hits(end: RankEnd, book: Book) -> list[Hit]:
    """Every line of the rank's output that a pattern or rule knows, in order of time."""
    found: list[Hit] = []
    for stream in ("out", "err"):
        pieces = [piece for piece in end.output if piece.stream == stream]
        if not pieces:
            continue
        texts = plain_pieces([piece.text for piece in pieces])
        begins = list(accumulate(map(len, texts[:-1]), initial=0))
        for hit in ends_of_runs(b"".join(texts), book):
            if _CLEANER in hit.place:
                continue
            piece = pieces[bisect_right(begins, hit.offset) - 1]
            told = Hit(end, piece.at, _excerpt(hit), hit.pattern, False, visible(hit.place), hit.mild, hit.settled, hit.led_to)
            found.append(replace(told, pattern=replace(hit.pattern, defers=True)) if _helpers(told) else told)
    found.sort(key=lambda hit: hit.at)
    return _marked(end, found)


def _excerpt(hit: Finding) -> str:
    """The line for people; of a long line, the part that matters."""
    begin = hit.start - EXCERPT_BEFORE if hit.start > EVIDENCE_CHARS - EXCERPT_BEFORE else 0
    if len(hit.line) > EVIDENCE_CHARS and (after := hit.line.rfind(b"] ", begin, hit.start + 1)) >= 0:
        begin = after + 2  # when and where it was printed is the part to leave out
    text = hit.line[begin:].decode(errors="replace").strip()
    if len(text) > EVIDENCE_CHARS and not begin and len(_WRAPS.findall(text[:LAST_CHARS])) >= NESTED and not hit.word:
        # Who wraps an error in another (`a: b: c: d`) says the cause last, and from its beginning if it is not too long.
        half = EVIDENCE_CHARS // 2 - 3
        cause = text.rfind(": ", len(text) - half - MORE_OF_CAUSE, len(text) - half) + 1
        last = text[cause:].lstrip() if cause else text[-half:]
        return visible(f"{text[:half]} [...] {last}")
    text = text[:EVIDENCE_CHARS]
    return visible(f"... {text}" if begin else text)


def _marked(end: RankEnd, hits: list[Hit]) -> list[Hit]:
    """Marks hits as overcome if the rank printed ordinary lines for a while afterwards; never the last hit of a failed rank."""
    times = [hit.at for hit in hits]
    lines = _LinesAhead(end.output)
    marked = []
    for number, hit in enumerate(hits, start=1):
        later = bisect_right(times, hit.at + OVERCOME_S)
        until = (times[later] if later < len(times) else end.at or float("inf")) - BURST_S
        went_on = lines.second_after(hit.at + OVERCOME_S) < until
        last_words = hit.own and number == len(hits)
        marked.append(replace(hit, overcome=True) if went_on and not last_words else hit)
    return marked


class _LinesAhead:
    """When a rank printed lines. It is asked for ever later times, and so reads each piece once at most, mostly only a few."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = sorted(pieces, key=_printed_at)
        self._read = 0  # pieces that were read or passed over
        self._ahead: deque[float] = deque()

    def second_after(self, at: float) -> float:
        """When the second line after `at` was printed; infinity if there is none."""
        while self._ahead and self._ahead[0] <= at:
            self._ahead.popleft()
        self._read = bisect_right(self._pieces, at, lo=self._read, key=_printed_at)
        while len(self._ahead) < 2 and self._read < len(self._pieces):
            piece = self._pieces[self._read]
            self._ahead.extend(piece.at for line in _first_lines(piece.text) if line.strip())
            self._read += 1
        return self._ahead[1] if len(self._ahead) >= 2 else float("inf")


_printed_at = attrgetter("at")


def _first_lines(text: str) -> list[str]:
    """The first eight lines."""
    lines = text[:1000].splitlines()
    return lines[:8] if len(lines) > 8 else text.splitlines()[:8]


def _after_the_fact(hit: Hit, first: float) -> bool:
    """Did a rank that was told to stop print it after another rank had failed? Then it is a reaction, whatever it says.

    first: when the first rank failed.
    """
    if hit.own or hit.pattern.role is not Role.ROOT or not hit.end.stopped:
        return False
    return hit.at > first


def _by_root(ends: Sequence[RankEnd], roots: Sequence[Hit], hits: Sequence[Hit]) -> Verdict:
    roots = _without_echoes(_without_headers(roots))
    first = min(roots, key=lambda hit: hit.at)
    same = _ranks_of(hit for hit in roots if hit.pattern.id == first.pattern.id)
    everywhere = _everywhere(same, ends)
    error_class, p = first.pattern.error_class, first.pattern
    retriable, confirm = p.retriable, p.confirm
    if everywhere and error_class is ErrorClass.HARDWARE:
        # Not every node breaks in the same moment, and a restart finds the same nodes with the same program.
        error_class, retriable, confirm = ErrorClass.USER_CODE, Retriable.NO, max(1, confirm)
    elif p.id in _ASKED_FOR and (everywhere or len({end.node for end in ends}) == 1):
        error_class, retriable = ErrorClass.USER_CODE, Retriable.NO
    elif everywhere and (error_class is ErrorClass.USER_CODE or (error_class is ErrorClass.OOM and p.blame is Blame.NO)):
        retriable = Retriable.NO
    called_wrongly = first.pattern.error_class is ErrorClass.HARDWARE and _WRONG_CALL.search(_beside(first, hits)) is not None
    if called_wrongly:
        error_class, retriable = ErrorClass.USER_CODE, Retriable.NO
    if p.id == _FILE_RACE and 2 * len(same) > len(ends) > 1:
        retriable = Retriable.NO  # no race: whoever comes second finds the file, each time
    if (kind := _by_words_beside(first, hits)) is not None:
        error_class, retriable = kind.error_class, kind.retriable
    suspects = () if everywhere or called_wrongly else _suspects((hit for hit in roots if hit.pattern.id == p.id), roots)
    if p.id in _SHARED_FILES and not of_the_node(first.line) and not _one_node(same, ends):
        suspects = ()
    complained = _complained_first(first, hits)
    if complained:
        suspects = _of_one_node(complained)
    alone = "" if suspects or p.id not in _NODES_SETUP else _one_node(same, ends)
    if not (alone or suspects) and p.id in _FILES and of_the_node(first.line, device=p.id != "enospc"):
        alone = _no_other_node(same, ends)
    if alone:
        suspects = (Suspect(alone, first.end.rank, Blame.SUSPECT, f"{first}; on that node only"),)
    others = Counter(hit.pattern.id for hit in hits if hit.pattern.id != p.id)
    where = _spread(same, ends)
    lead = Lead(
        first.end.rank, first.end.node, _words_of(first, hits), p.name if p.pattern else "", first.place, where,
        p.note if p.pattern else "",
    )  # fmt: skip
    evidence = [str(hit) for hit in complained[:1]] + [_with_own_words(first, hits)]
    evidence += [str(hit) for hit in _one_a_rank(roots) if hit.end.rank != first.end.rank and hit.pattern.id == p.id]
    if others:
        beside = ", ".join(f"{name} x{times}" for name, times in others.most_common(4))
        evidence.append(f"also seen, and taken as consequences: {beside}")
    return Verdict(
        error_class, Retriable.ONCE if alone else retriable, Confidence.STRONG, p.id,
        f"{p.name}{f', {where}' if where else ''} ({first})", suspects, tuple(evidence[:EVIDENCE_LINES]),
        everywhere and error_class in _PROGRAMS, confirm, not (everywhere or called_wrongly) and p.heals, _places(same),
        lead=lead,
    )  # fmt: skip


def _by_words_beside(root: Hit, hits: Sequence[Hit]) -> Kind | None:
    """What a root that is only a reaction is about: the detail below a header, or the error just before an exception
    whose words tell nothing."""
    if root.pattern.defers and root.pattern.error_class is ErrorClass.UNKNOWN:
        return kind_of_words(_beside(root, hits))
    if root.pattern.id in _HOW_ONLY and not _OF_A_PROCESS.search(root.line):
        kind = kind_of_words(_led_to(root, hits))
        return kind if kind and kind.error_class is ErrorClass.NETWORK else None
    if _helpers(root):
        return kind_of_words(_beside(root, hits))
    if root.pattern.defers and not root.pattern.pattern and (kind := kind_of_words(_beside(root, hits))):
        return kind
    reaction = not root.pattern.pattern or root.pattern.id in _REACTIONS
    if reaction and root.pattern.error_class is ErrorClass.USER_CODE and not kind_of_words(root.line):
        return kind_of_words(_led_to(root, hits))
    return None


def _helpers(hit: Hit) -> bool:
    """Is it a shell's word on a command that the rank went on without?"""
    status = hit.end.status
    own = status is not None and (status.code in _NO_COMMAND or not failed(hit.end))
    return hit.pattern.id == _COMMAND and not own and _HELPER.search(own_words(hit.line)) is not None


def _complained_first(first: Hit, hits: Sequence[Hit]) -> list[Hit]:
    """Of ranks that report network errors: those that blamed their own node before any rank blamed a peer."""
    if first.pattern.error_class is not ErrorClass.NETWORK and first.pattern.id not in _WAITED:
        return []
    before = [hit for hit in hits if hit.pattern.id in _GENERAL and hit.at < first.at - BURST_S]
    return sorted((hit for hit in before if not _OF_A_PEER.search(hit.line)), key=lambda hit: hit.at)


def _of_one_node(hits: Sequence[Hit]) -> tuple[Suspect, ...]:
    """The suspect, if all hits are on one node: what other nodes print about it is an echo."""
    nodes = {hit.end.node for hit in hits}
    return (Suspect(nodes.pop(), hits[0].end.rank, Blame.SUSPECT, str(hits[0])),) if len(nodes) == 1 else ()


def _without_headers(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without headers, on each rank that also printed the error itself."""
    named = {hit.end.rank for hit in hits if not hit.pattern.defers}
    return [hit for hit in hits if not hit.pattern.defers or hit.end.rank not in named]


def _without_stumbles(hits: Sequence[Hit]) -> Sequence[Hit]:
    """The hits without what a rank's program or launcher fell over as it cleaned up after it had reported a failure."""
    reported: dict[int, float] = {}
    kept = []
    for hit in hits:
        at = reported.get(hit.end.rank)
        if at is not None and hit.at <= at + LAST_WORDS_S and hit.pattern.role is Role.ROOT and _STUMBLED.search(hit.line):
            continue
        if (hit.pattern.defers or hit.pattern.role is Role.SYMPTOM) and not hit.mild:
            reported[hit.end.rank] = hit.at
        kept.append(hit)
    return kept


def _without_echoes(roots: Sequence[Hit]) -> Sequence[Hit]:
    """One trouble that several ranks meet in the same moment is told by whoever names it, not by who only says that it failed,
    nor by who has lost a peer by it.
    """
    named = [hit for hit in roots if not hit.pattern.defers]
    losses = {id(hit) for hit in named if hit.pattern.error_class is ErrorClass.NETWORK}
    named = [hit for hit in named if id(hit) not in losses]

    def echoes(hit: Hit) -> bool:
        if id(hit) in losses:
            others = [each for each in named if each.end.rank != hit.end.rank and each.at <= hit.at + LAST_WORDS_S]
            peers = _LOST_A_PEER.search(hit.line) is not None
            return any(peers or each.pattern.error_class in _ENDS_A_RANK for each in others)
        mine = (each for each in named if each.pattern.error_class is hit.pattern.error_class)
        return hit.pattern.defers and any(abs(each.at - hit.at) <= LAST_WORDS_S for each in mine)

    return [hit for hit in roots if not echoes(hit)]


def _everywhere(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> bool:
    """Is it on at least half of the ranks (the others may have been stopped earlier), and not on one node only?"""
    nodes = {end.node for end in ends}
    wide = len(nodes) > 1 and len({end.node for end in same.values()}) > 1
    most = len(same) >= 2 and 2 * len(same) >= len(ends)
    return (most and wide) or (len(nodes) == 1 and 1 < len(same) == len(ends))


def _one_node(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    """The node all of whose ranks (two at the least) are in `same`, while none of another node is; else empty."""
    nodes = {end.node for end in same.values()}
    mine = [end for end in ends if end.node in nodes]
    return next(iter(nodes)) if len(nodes) == 1 and 1 < len(mine) == len(same) < len(ends) else ""


def _no_other_node(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    """The node of all ranks in `same`, while there are others; else empty."""
    nodes = {end.node for end in same.values()}
    return next(iter(nodes)) if len(nodes) == 1 and len({end.node for end in ends}) > 1 else ""


def _shared_ports(roots: Sequence[Hit], book: Book) -> Sequence[Hit]:
    """Did several ranks of a node find the same port in use? Then they all want it, and the program causes the conflict."""
    in_use = {hit.end.rank: hit for hit in roots if hit.pattern.id == _PORT_IN_USE}
    wanted = Counter((hit.end.node, port_in(hit.line)) for hit in in_use.values())
    shared = book.named("port-shared")
    if shared is None or not any(port and times > 1 for (_, port), times in wanted.items()):
        return roots
    return [replace(hit, pattern=shared) if hit.pattern.id == _PORT_IN_USE else hit for hit in roots]


def _suspects(hits: Iterable[Hit], roots: Sequence[Hit]) -> tuple[Suspect, ...]:
    """roots: all of them. An error that a rank survived, before it failed from another one, does not convict its node."""
    last: dict[int, dict[str, float]] = defaultdict(dict)
    for root in roots:
        last[root.end.rank][root.pattern.id] = max(root.at, last[root.end.rank].get(root.pattern.id, 0.0))
    found: dict[str, Suspect] = {}
    for hit in hits:
        if hit.pattern.blame is Blame.NO or hit.end.node in found:
            continue
        later = any(at > hit.at + LAST_WORDS_S for id, at in last[hit.end.rank].items() if id != hit.pattern.id)
        blame = Blame.SUSPECT if later else hit.pattern.blame
        found.setdefault(hit.end.node, Suspect(hit.end.node, hit.end.rank, blame, str(hit)))
    return tuple(found.values())


def _with_keywords(verdict: Verdict, hits: Sequence[Hit]) -> Verdict:
    """A keyword of the user's own, in the output of a rank that failed, makes the error retriable (AIMaster)."""
    for hit in hits:
        if hit.own and hit.pattern.id.startswith("keyword:"):
            evidence = (*verdict.evidence[: EVIDENCE_LINES - 1], f"matches retry.keywords: {hit}")
            return replace(verdict, retriable=Retriable.YES, evidence=evidence, called=True)
    return verdict


# --- what bystanders printed


def _by_symptoms(ends: Sequence[RankEnd], symptoms: Sequence[Hit]) -> Verdict:
    every, symptoms = symptoms, _without_headers(symptoms)
    first = min(symptoms, key=lambda hit: (not hit.own, hit.pattern.defers, hit.at))
    if verdict := _out_of_step(ends, [hit for hit in symptoms if hit.pattern.id == _WATCHDOG]):
        return verdict
    waited = [hit for hit in symptoms if hit.pattern.id in _WAITED]
    suspects = _silent(ends, waited) or _behind(ends, waited)
    complained = [] if suspects else _complained_first(first, every)
    suspects = suspects or (_of_one_node(complained) if complained else ())
    if waited and (phase := _long_phase(ends, waited)):
        return long_phase(phase, [str(hit) for hit in _one_a_rank(symptoms)])
    others = [str(hit) for hit in _one_a_rank(symptoms) if hit is not first]
    evidence = [suspect.why if complained else f"{suspect.why}; {first}" for suspect in suspects]
    evidence += [_with_own_words(first, symptoms), *others]
    error_class = first.pattern.error_class
    retriable = first.pattern.retriable
    kind = kind_of_words(first.line.split(" ... ")[-1])
    if kind and kind.error_class is ErrorClass.NETWORK and error_class in (ErrorClass.UNKNOWN, ErrorClass.NETWORK):
        # No rank failed for another reason, so this is what they all report.
        error_class = kind.error_class
        if kind.retriable is Retriable.NO and not _no_other_node(_ranks_of(hit for hit in symptoms if hit.own), ends):
            retriable = Retriable.NO  # a set-up that stays as it is, and other nodes may have another
    return Verdict(
        error_class, retriable, Confidence.WEAK, first.pattern.id,
        f"{first.pattern.name} ({first}); a consequence; its cause was not seen", suspects, tuple(evidence[:EVIDENCE_LINES]),
        shown={} if suspects or waited else _places(_ranks_of(hit for hit in symptoms if hit.pattern is first.pattern)),
        lead=Lead(
            first.end.rank, first.end.node, _words_of(first, symptoms), first.pattern.name, first.place,
            "a consequence; its cause was not seen", first.pattern.note,
        ),
    )  # fmt: skip


def _out_of_step(ends: Sequence[RankEnd], timeouts: Sequence[Hit]) -> Verdict | None:
    """Ranks that waited for each other in different collectives: the program made them diverge, and will again.

    At one number another operation or size tells it. At other numbers that alone may still be a collective that one rank has
    ended and another has not, so there the operation or size has to differ as well, or the numbers by more than one.
    """
    told: dict[int, tuple[int, tuple[str, str]]] = {}
    lines: dict[int, Hit] = {}
    for hit in timeouts:
        if found := _COLLECTIVE.search(hit.line):
            told.setdefault(hit.end.rank, (int(found.group(1)), (found.group(2), found.group(3) or "")))
            lines.setdefault(hit.end.rank, hit)
    numbers, calls = {number for number, _ in told.values()}, {call for _, call in told.values()}
    # If one of many is behind, it may be the one that hangs.
    if len(calls) < 2 and not (len(told) == 2 and max(numbers, default=0) - min(numbers, default=0) > 1):
        return None
    in_step = [lines[rank] for rank in sorted(lines, key=lambda rank: told[rank][0])]  # who is behind first
    evidence = [str(hit) for hit in in_step]
    return Verdict(
        ErrorClass.USER_CODE, Retriable.NO, Confidence.WEAK, "out-of-step",
        f"the ranks waited for each other in different collectives ({evidence[0]})", (), tuple(evidence[:EVIDENCE_LINES]),
        confirm=1, shown=_places({rank: hit.end for rank, hit in lines.items()}),
        lead=_lead(in_step[0], "the ranks waited for each other in different collectives"),
    )  # fmt: skip


def _long_phase(ends: Sequence[RankEnd], waited: Sequence[Hit]) -> LongPhase | None:
    first = min(waited, key=lambda hit: hit.at)
    return at_work(ends, _ranks_of(waited), first.at, [hit.line for hit in waited], first.pattern.id)


def _silent(ends: Sequence[RankEnd], waited: Sequence[Hit]) -> tuple[Suspect, ...]:
    """Most ranks printed that they waited in vain: the few others are those that they waited for."""
    told = _ranks_of(waited)
    silent = [end for end in ends if end.rank not in told and not failed(end) and (end.stopped or end.lost)]
    if not silent or len(told) < 2 or 2 * len(silent) >= len(told) + len(silent):
        return ()
    nodes = {end.node: end for end in reversed(silent)}
    why = f"is silent, while {len(told)} of {len(ends)} ranks waited for it"
    return tuple(Suspect(node, end.rank, Blame.SUSPECT, f"rank {end.rank} on {node} {why}") for node, end in nodes.items())


def _behind(ends: Sequence[RankEnd], waited: Sequence[Hit]) -> tuple[Suspect, ...]:
    """All ranks waited: the one whose last collective is furthest behind, if there is exactly one."""
    reached: dict[int, int] = {}
    for hit in waited:
        if numbers := [int(a or b) for a, b in _SEQUENCE.findall(hit.line)]:
            reached[hit.end.rank] = min(numbers)
    lowest = min(reached.values(), default=0)
    behind = [rank for rank, number in reached.items() if number == lowest]
    if len(behind) != 1 or len(reached) < 3:
        return ()
    end = next(end for end in ends if end.rank == behind[0])
    why = f"rank {end.rank} on {end.node} is furthest behind, at collective {lowest}"
    return (Suspect(end.node, end.rank, Blame.SUSPECT, why),)


def _by_loss(lost: Sequence[RankEnd], symptoms: Sequence[Hit]) -> Verdict:
    """The verdict on lost ranks, which cannot print anything more."""
    nodes = {end.node: end for end in reversed(lost)}
    suspects = tuple(Suspect(node, end.rank, Blame.SUSPECT, f"rank {end.rank} on {node} was lost") for node, end in nodes.items())
    evidence = [suspect.why for suspect in suspects] + [str(hit) for hit in _one_a_rank(symptoms)]
    return Verdict(
        ErrorClass.UNKNOWN, Retriable.YES, Confidence.WEAK, "lost", evidence[0],
        suspects if len(suspects) == 1 else (), tuple(evidence[:EVIDENCE_LINES]),
        lead=Lead(lost[0].rank, lost[0].node, "was lost", "for an unknown reason"),
    )  # fmt: skip


# --- exit statuses


def _by_status(ends: Sequence[RankEnd], silent: Sequence[RankEnd], symptoms: Sequence[Hit], book: Book) -> Verdict:
    """The verdict from exit statuses. silent: ranks that failed without known output. Signals count before numbers, and
    earlier ends before later ones."""
    first = _first_to_tell(silent)
    assert first.status is not None
    same = {end.rank: end for end in silent if end.status == first.status}
    everywhere = _everywhere(same, ends)
    m = book.exit(first.status.shell)
    number = first.status.signal
    words = _last_words(first)
    signature = signal_name(number) if number else f"exit {first.status.code}"
    known = first.status.code != GENERAL_ERROR or number
    itself = _own_words(first, [_beginning(hit) for hit in symptoms if hit.end.rank == first.rank])
    if not itself and not symptoms and not _told_of(first, number):
        itself = _complaint(first)
    if not number and first.status.code not in _ANY_ERROR and (named := _names_status(first)):
        words, itself = f"; it printed: {named}", named
    means = m.listed and number == 0 and first.status.code not in (*_ANY_ERROR, _ASKED_OF_ITSELF, _ABORT_PASSED_ON)
    if itself and _gave_up(first.status) and not means:
        return _by_last_words(first, same, everywhere, signature, itself, symptoms, _spread(same, ends))
    what = f"rank {first.rank} on {first.node} {first.status}"
    alone = signature in _NODES_SETUP and _one_node(same, ends)
    held = bool(alone) or (known and not everywhere and m.blame is not Blame.NO)
    if first.status.code in _ANY_ERROR and any(piece.text.strip() for piece in first.output):
        held = False  # a launcher that fails says nothing on the program's behalf; a program that speaks has ended itself
    # What is wrong with one node's processor or installation, another node may not have.
    others = held and m.retriable is Retriable.NO and bool(_no_other_node(same, ends))
    evidence = [what + (f" ({m.meaning})" if known else ", and none of its output is known") + words]
    evidence += [str(hit) for hit in _one_a_rank(symptoms)]
    crash = signature in _ASKED_FOR and (everywhere or len({end.node for end in ends}) == 1)
    error_class = m.error_class if known else ErrorClass.UNKNOWN
    retriable = Retriable.ONCE if others else m.retriable if known else Retriable.UNKNOWN
    if crash:
        error_class, retriable = ErrorClass.USER_CODE, Retriable.NO
    if (told := _told_of(first, number)) and (kind := kind_of_words(told)) and (not known or told in words):
        error_class, retriable = kind.error_class, kind.retriable
    return Verdict(
        error_class, retriable,
        Confidence.WEAK if known else Confidence.NONE, signature, evidence[0],
        (Suspect(first.node, first.rank, Blame.SUSPECT, what),) if held else (), tuple(evidence[:EVIDENCE_LINES]),
        everywhere and bool(known), confirm=1 if crash else 0, shown=_places(same),
        lead=Lead(
            first.rank, first.node, f"{signature}{words}", m.meaning if known else "" if words else "it printed nothing",
            spread=_spread(same, ends),
        ),
    )  # fmt: skip


def _first_to_tell(silent: Sequence[RankEnd]) -> RankEnd:
    """The rank whose end tells most: the first that crashed, unless another had failed before and says of what; else the first.

    One that was killed gives way to one that crashed in the same moments: launchers kill the others. (One that aborts may do so
    because the killed one is gone.) And one that only says that something failed to one that says what.
    """
    in_time = sorted(silent, key=lambda end: end.at)
    crashed = [end for end in in_time if end.status and end.status.signal]
    first = crashed[0] if crashed else in_time[0]
    if first.status and first.status.signal in _FROM_OUTSIDE:
        own = (end for end in crashed if end.status and end.status.signal in _OF_ITSELF)
        first = next((end for end in own if end.at <= first.at + BURST_S), first)
    if crashed:
        others = [end for end in in_time if end.at < first.at - JITTER_S]
    elif first.output and not _says_what(first):
        others = [end for end in in_time if end is not first and end.status == first.status and end.at <= first.at + LAST_WORDS_S]
    else:
        others = []
    telling = (end for end in others[:LISTENED_TO] if not (end.status and end.status.signal))
    return next((end for end in telling if _says_what(end)), first)


def _says_what(end: RankEnd) -> bool:
    """Does it say what failed, and not only that something did?"""
    words = _own_words(end, (), vaguely=False)
    return bool(words) and not only_reports(words.split(" ... ")[-1].encode(errors="replace"))


def _told_of(end: RankEnd, number: int) -> str:
    """What else tells of the rank's end: Slurm's reason for a signal, else a launcher's line, else a warning of its own."""
    number = number or (max(0, end.status.code - SHELLS_OWN.start) if end.status else 0)
    if reason := next((line for said in _said(end) if tells_reason(line := signal_line(said, number), number)), ""):
        return reason
    if end.status and end.status.signal:
        return ""
    return next((line for said in _said(end) if (line := told_error(said, mild=True))), "")


def _gave_up(status: ExitStatus) -> bool:
    """Is it a status with which a program ends itself after an error: by exit, or by abort?"""
    if status.signal or status.code == _ABORT_PASSED_ON:
        return status.code == _ABORT_PASSED_ON or signal_name(status.signal) == "SIGABRT"
    return status.code in (_ASKED_OF_ITSELF, *_ANY_ERROR) or status.code not in (0, *SHELLS_OWN)


def _by_last_words(
    first: RankEnd, same: Mapping[int, RankEnd], everywhere: bool, signature: str, words: str, symptoms: Sequence[Hit],
    spread: str,
) -> Verdict:  # fmt: skip
    """The verdict on a program that prints an error and ends itself: the next start usually fails in the same way.

    An exception are words about something that passes.
    """
    what = f"rank {first.rank} on {first.node} {first.status}; it printed: {words}"
    evidence = [what, *(str(hit) for hit in _one_a_rank(symptoms))]
    kind = kind_of_words(words) or Kind(ErrorClass.USER_CODE, Retriable.NO)
    return Verdict(
        kind.error_class, kind.retriable, Confidence.WEAK, signature, what, (), tuple(evidence[:EVIDENCE_LINES]),
        everywhere, confirm=1, shown=_places(same), lead=Lead(first.rank, first.node, words, spread=spread),
    )  # fmt: skip


def _with_own_words(hit: Hit, hits: Sequence[Hit]) -> str:
    """The hit with what else its rank printed, which may be a cause that no pattern knows."""
    own = _beside(hit, hits)
    if not own and (before := _led_to(hit, hits)):
        return f"{hit}; just before: {before}"
    if not own and (after := _came_of(hit, hits)):
        return f"{hit}; which led to: {after}"
    return f"{hit}; it printed: {own}" if own else str(hit)


def _led_to(hit: Hit, hits: Sequence[Hit]) -> str:
    """An error that no pattern knows, and that the rank printed in the moments before the hit."""
    if hit.pattern.role is not Role.ROOT:
        return ""
    said = [piece for piece in hit.end.output if hit.at - BURST_S <= piece.at <= hit.at]
    text = outline(plain("".join(piece.text for piece in said)[-2 * LAST_CHARS :])).said.decode(errors="replace")
    return visible(error_before(text, _beginning(hit), [_beginning(each) for each in _known(hit, hits)]))


def _came_of(hit: Hit, hits: Sequence[Hit]) -> str:
    """The last exception of the chain that this one began, by the runtime's word; its rank told it last of all."""
    mine = [each for each in hits if each.end.rank == hit.end.rank and hit.at <= each.at <= hit.at + LAST_WORDS_S]
    behind = mine[mine.index(hit) + 1 :] if hit in mine and hit.pattern.role is Role.ROOT else []
    last = next((each for each in reversed(behind) if each.pattern.role is Role.ROOT), None)
    if last is None or not last.led_to or last.pattern.defers:
        return ""
    said = last.line.partition(": ")[2] or last.line
    return "" if said in hit.line or hit.line in last.line else last.line  # it may only say the same again


def _words_of(hit: Hit, hits: Sequence[Hit]) -> str:
    """As `_with_own_words`, without rank and place."""
    own = _beside(hit, hits)
    if not own:
        return hit.line
    # A header says less than what it was said with; a line that names the thing says more.
    header = hit.pattern.defers or hit.pattern.id in _HEADERS or _BARE_CRASH.search(own_words(hit.line)) is not None
    return f"{own}; {hit.line}" if header else f"{hit.line}; {own}"


def _beside(hit: Hit, hits: Sequence[Hit]) -> str:
    crash = _BARE_CRASH.search(own_words(hit.line)) is not None
    if " ... " in hit.line or (not crash and not hit.pattern.defers and hit.pattern.role is Role.ROOT):
        return ""  # its detail is there already, or it needs none
    but = [_beginning(each) for each in _known(hit, hits) if each is hit or not each.pattern.defers]
    return _own_words(hit.end, but) or _warned_of(hit.end, but)


def _known(hit: Hit, hits: Sequence[Hit]) -> list[Hit]:
    """Hits of the same rank from patterns that know more than who complains."""
    return [each for each in hits if each.end.rank == hit.end.rank and (each is hit or each.pattern.id not in _GENERAL)]


def _lead(hit: Hit, meaning: str) -> Lead:
    return Lead(hit.end.rank, hit.end.node, hit.line, meaning, hit.place)


def _spread(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    if len(ends) < 2:
        return ""
    return "on every rank" if len(same) == len(ends) else f"on {len(same)} of {len(ends)} ranks"


def _beginning(hit: Hit) -> str:
    """The begin of its line as printed, without the detail that was joined to it."""
    return hit.line.split(" ... ")[0][:BEGINNING_CHARS]


def _own_words(end: RankEnd, but: Collection[str], vaguely: bool = True) -> str:
    """The line that the program may have printed as the reason. but: beginnings of lines to pass over.

    vaguely: even if that only says that something failed.
    """
    return visible(next((line for text in _said(end) if (line := told_error(text, but, reports=False, vaguely=vaguely))), ""))


def _names_status(end: RankEnd) -> str:
    """The line that tells an error by the number with which the rank exited."""
    code = end.status.code if end.status else 0
    return visible(next((line for text in _said(end) if code and (line := status_line(text, code))), ""))


def _complaint(end: RankEnd) -> str:
    return visible(next((line for text in _said(end) if (line := complaint(text))), ""))


def _warned_of(end: RankEnd, but: Collection[str]) -> str:
    """The warning that the rank printed before it gave up, if it printed no error."""
    return visible(next((line for text in _said(end) if (line := told_error(text, but, reports=False, mild=True))), ""))


def _last_words(end: RankEnd) -> str:
    """For people: the last line about the rank's end, by the rank or by its launcher."""
    number = end.status.signal or max(0, end.status.code - SHELLS_OWN.start) if end.status else 0
    for said in _said(end):
        shown = signal_line(said, number)
        if _BARE_CRASH.search(own_words(shown)) and (own := told_error(said, reports=False)):
            shown = own
        found = shown or (child_line(said) or signal_by_name(said, number) if number else "")
        if found := found or told_error(said) or told_error(said, mild=True):
            return visible(f"; it printed: {found}")
    if last := next((line.strip() for text in _said(end) for line in reversed(text.splitlines()) if _WORDS.search(line)), ""):
        return visible(f"; its last line: {last[:EVIDENCE_CHARS]}")
    return ""


def _said(end: RankEnd) -> Iterator[str]:
    """The end of each of its streams, without quoted text."""
    for stream in ("err", "out"):
        if text := "".join(piece.text for piece in end.output if piece.stream == stream):
            yield outline(plain(text[-LAST_CHARS:])).said.decode(errors="replace")


def _nothing(ends: Sequence[RankEnd]) -> Verdict:
    what = "no rank failed by itself, and no output is known"
    return Verdict(ErrorClass.UNKNOWN, Retriable.UNKNOWN, Confidence.NONE, "unknown", what)


# --- small things


def _ranks_of(hits: Iterable[Hit]) -> dict[int, RankEnd]:
    return {hit.end.rank: hit.end for hit in hits}


def _places(ends: Mapping[int, RankEnd]) -> dict[int, str]:
    return {rank: end.node for rank, end in ends.items()}


def _one_a_rank(hits: Sequence[Hit]) -> list[Hit]:
    found: dict[int, Hit] = defaultdict()
    for hit in sorted(hits, key=lambda hit: hit.at):
        found.setdefault(hit.end.rank, hit)
    return list(found.values())
